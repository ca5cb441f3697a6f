"""What gives itself away by its looks, whatever its field is called: keys, tokens, card numbers, IBANs."""

import re
from array import array
from collections.abc import Sequence
from functools import cache, cached_property
from itertools import accumulate, compress
from typing import Final

from msgspec import Struct


class LazyPattern:
    """A regular expression that is compiled on first use, so that an import does not pay for it."""

    def __init__(self, source: str) -> None:
        self._source = source

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        return re.compile(self._source)


class SecretPattern(Struct, frozen=True, kw_only=True):
    """A pattern, and what a text must have in it for the pattern to be worth a try, in lower case."""

    hints: tuple[str, ...]
    pattern: LazyPattern


def _pattern(*hints: str, pattern: str) -> SecretPattern:
    return SecretPattern(hints=hints, pattern=LazyPattern(pattern))


# Every pattern takes linear time: its parts are bounded, or cannot begin again inside what was already looked at.
SECRET_PATTERNS: Final = (
    _pattern(  # keys of providers, by their beginnings
        *("sk-", "sk_", "pk-", "pk_", "rk-", "rk_", "whsec_"),
        pattern=r"(?<![A-Za-z0-9])(?:sk|pk|rk|whsec)[-_](?:[A-Za-z0-9]{1,64}[-_]){0,8}[A-Za-z0-9]{16,}[A-Za-z0-9_-]*",
    ),
    _pattern(
        *("gho_", "ghp_", "ghr_", "ghs_", "ghu_", "github_pat_", "glpat-", "hf_", "xox", "npm_"),
        pattern=r"(?<![A-Za-z0-9])(?:gh[oprsu]_|github_pat_|glpat-|hf_|xox[abeoprs]-|npm_)[A-Za-z0-9_-]{16,}",
    ),
    _pattern("akia", "asia", pattern=r"(?<![A-Za-z0-9])(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])"),
    _pattern("aiza", pattern=r"(?<![A-Za-z0-9])AIza[A-Za-z0-9_-]{30,}"),
    _pattern(  # what a header says after "Bearer": it has a digit, or is too long for a word
        "bearer",
        pattern=r"(?i:(?<![A-Za-z0-9])bearer)\s{1,8}"
        r"(?:(?=[A-Za-z0-9._~+/-]{0,40}[0-9])[A-Za-z0-9._~+/-]{8,}|[A-Za-z0-9._~+/-]{20,})=*",
    ),
    _pattern("eyj", pattern=r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"),  # JWT
    _pattern("://", pattern=r"(?<=://)[^\s/:@?#]{0,256}:[^\s/@]{1,256}(?=@)"),  # passwords in addresses
    _pattern(
        "-----begin",
        pattern=r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)",
    ),
)

_ANY_HINT: Final = LazyPattern("|".join(re.escape(hint) for look in SECRET_PATTERNS for hint in look.hints))
"""Most texts have none of them, which is said in one search."""
_TWO_DIGITS: Final = LazyPattern(r"[0-9][^0-9]*+[0-9]")
# Groups of digits, one sign between two of them. Whole groups only, and possessive: a run of a million digits is looked
# at once, and takes no memory. A digit comes first, which is what the search can skip to.
_GROUP_END = r"(?![A-Za-z0-9])(?!\.[0-9])"
_RUN: Final = LazyPattern(
    r"[0-9](?<![A-Za-z0-9].)(?<![0-9]\..)(?=(?:[ -]?[0-9]){12})"
    rf"[0-9]*+{_GROUP_END}(?:[ -][0-9]++{_GROUP_END})*+"
)
_IBAN: Final = LazyPattern(r"[A-Za-z](?<![A-Za-z0-9].)[A-Za-z][0-9]{2}(?=[ -]?[A-Za-z0-9])")

_DIGITS: Final = b"0123456789"
_TO_NUMBER: Final = bytes.maketrans(_DIGITS, bytes(range(10)))
_TO_DOUBLED: Final = bytes((0, 2, 4, 6, 8, 1, 3, 5, 7, 9)) + bytes(246)
"""What Luhn's rule adds for a number that is doubled."""
_NOT: Final = bytes((1, 0)) + bytes(254)
_IS_DIGIT: Final = bytes(code in _DIGITS for code in range(256))

IBAN_LENGTHS: Final = {
    "AD": 24, "AE": 23, "AL": 28, "AT": 20, "AZ": 28, "BA": 20, "BE": 16, "BG": 22, "BH": 22, "BI": 27, "BR": 29,
    "BY": 28, "CH": 21, "CR": 22, "CY": 28, "CZ": 24, "DE": 22, "DJ": 27, "DK": 18, "DO": 28, "EE": 20, "EG": 29,
    "ES": 24, "FI": 18, "FK": 18, "FO": 18, "FR": 27, "GB": 22, "GE": 22, "GI": 23, "GL": 18, "GR": 27, "GT": 28,
    "HN": 28, "HR": 21, "HU": 28, "IE": 22, "IL": 23, "IQ": 23, "IS": 26, "IT": 27, "JO": 30, "KW": 30, "KZ": 20,
    "LB": 28, "LC": 32, "LI": 21, "LT": 20, "LU": 20, "LV": 21, "LY": 25, "MC": 27, "MD": 24, "ME": 22, "MK": 19,
    "MN": 20, "MR": 27, "MT": 31, "MU": 30, "NI": 28, "NL": 18, "NO": 15, "OM": 23, "PK": 24, "PL": 28, "PS": 29,
    "PT": 25, "QA": 29, "RO": 24, "RS": 22, "RU": 33, "SA": 24, "SC": 31, "SD": 18, "SE": 24, "SI": 19, "SK": 24,
    "SM": 27, "SO": 23, "ST": 25, "SV": 28, "TL": 23, "TN": 24, "TR": 26, "UA": 29, "VA": 22, "VG": 24, "XK": 20,
    "YE": 30,
}  # fmt: skip
"""How long an IBAN is, by its country."""


def remove_secrets(text: str, instead: str) -> str:
    """A text without anything that gives itself away."""
    if len(text) < 13:  # Nothing here is so short.
        return text
    lower = text.lower()
    if _ANY_HINT.compiled.search(lower):
        for look in SECRET_PATTERNS:
            if any(hint in lower for hint in look.hints):
                text = look.pattern.compiled.sub(instead, text)
    if not _TWO_DIGITS.compiled.search(text):
        return text
    text = _RUN.compiled.sub(lambda run: _without_cards(run[0], instead), text)
    return _without_ibans(text, instead) if _IBAN.compiled.search(text) else text


def is_card(digits: str) -> bool:
    """Whether digits can be the number of a payment card: one of the known beginnings, its length, its check digit.

    Times in milli-, micro- or nanoseconds begin with 1, and no card does.
    """
    numbers = digits.encode().translate(_TO_NUMBER)
    if not 13 <= len(numbers) <= 19 or len(numbers) not in _card_lengths(numbers[:4]):
        return False
    return (sum(numbers[-1::-2]) + sum(numbers[-2::-2].translate(_TO_DOUBLED))) % 10 == 0


def _card_lengths(first: bytes) -> Sequence[int]:
    """How many digits a card has that begins with these four, the most first."""
    two = first[0] * 10 + first[1]
    if first[0] == 4:
        return (19, 16, 13)
    if 51 <= two <= 55 or 2221 <= two * 100 + first[2] * 10 + first[3] <= 2720:
        return (16,)
    if two in (34, 37):
        return (15,)
    if two in (30, 36, 38, 39):
        return (14,)
    return (19, 18, 17, 16) if two == 35 or first[0] == 6 else ()


def is_iban(text: str) -> bool:
    """Whether letters and digits, without spaces, are an IBAN: its country's length, and its check digits."""
    if IBAN_LENGTHS.get(text[:2].upper()) != len(text):
        return False
    return int("".join(str(int(char, 36)) for char in text[4:] + text[:4])) % 97 == 1


def _without_cards(run: str, instead: str) -> str:
    """A run of groups of digits may hold more than a card: each group may be its beginning, the longest card wins.

    Luhn's sums are taken once for the whole run, so that each candidate costs one subtraction.
    """
    raw = run.encode()
    numbers = raw.translate(_TO_NUMBER, b" -")
    if len(numbers) == len(raw):
        return instead if is_card(run) else run
    is_digit = raw.translate(_IS_DIGIT)
    # Whether a digit is the first of its group; the end of the run counts as one, too.
    is_first = bytes(compress(b"\0" + is_digit, is_digit)).translate(_NOT) + b"\1"
    doubled = numbers.translate(_TO_DOUBLED)
    even, odd = bytearray(numbers), bytearray(numbers)
    even[::2], odd[1::2] = doubled[::2], doubled[1::2]
    # The last digit of a card is not doubled: the sum to take depends on where the card ends.
    sums = array("L", accumulate(even, initial=0)), array("L", accumulate(odd, initial=0))
    found: list[tuple[int, int]] = []
    first = 0
    while 0 <= first <= len(numbers) - 13:
        for length in _card_lengths(numbers[first : first + 4]):
            end = first + length
            if end <= len(numbers) and is_first[end] and (sums[end % 2][end] - sums[end % 2][first]) % 10 == 0:
                found.append((first, end))
                first = end
                break
        else:
            first = is_first.find(1, first + 1)
    return _without_spans(run, array("L", compress(range(len(raw)), is_digit)), found, instead) if found else run


def _without_spans(run: str, places: Sequence[int], spans: Sequence[tuple[int, int]], instead: str) -> str:
    parts: list[str] = []
    done = 0
    for first, end in spans:
        parts += (run[done : places[first]], instead)
        done = places[end - 1] + 1
    return "".join((*parts, run[done:]))


def _without_ibans(text: str, instead: str) -> str:
    parts: list[str] = []
    done = 0
    for match in _IBAN.compiled.finditer(text):
        start = match.start()
        if start >= done and (end := _end_of_iban(text, start)):
            parts += (text[done:start], instead)
            done = end
    return "".join((*parts, text[done:])) if parts else text


def _end_of_iban(text: str, start: int) -> int | None:
    length = IBAN_LENGTHS.get(text[start : start + 2].upper())
    if length is None:
        return None
    match = _build_iban_pattern(length).match(text, start)
    return match.end() if match is not None and is_iban(match[0].replace(" ", "").replace("-", "")) else None


@cache
def _build_iban_pattern(length: int) -> re.Pattern[str]:
    """So many letters and digits, with one sign between two of them at most."""
    return re.compile(rf"[A-Za-z0-9](?:[ -]?[A-Za-z0-9]){{{length - 1}}}(?![A-Za-z0-9])")

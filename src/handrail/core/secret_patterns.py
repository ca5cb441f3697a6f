"""What gives itself away by its looks, whatever its field is called: keys, tokens, card numbers, IBANs."""

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
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
    _pattern(  # first: it is the only one that goes over lines
        "-----begin",
        pattern=r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)",
    ),
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
_MODULO_10: Final = (10).__rmod__
_LETTER_X: Final = ord("x")
_IS_DIGIT_OR_END: Final = bytes(code in b"0123456789x" for code in range(256))
_IS_END: Final = bytes(code == _LETTER_X for code in range(256))
_ALL_BITS: Final = bytes((0, 255)) + bytes(254)
_LENGTHS_BY_FIRST: Final = bytes((0, 0, 0b1000, 0b1111110, 0b1001001, 0b1000, 0b1111000)) + bytes(249)
"""The lengths of cards that begin with this digit: bit 0 is 13, bit 6 is 19."""
_CANDIDATE: Final = re.compile(b"[^\0]")

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
_IBAN_DIGITS: Final = {ord(letter): str(number) for number, letter in enumerate("ABCDEFGHIJKLMNOPQRSTUVWXYZ", 10)}
"""What its check digits count a letter as."""


MAX_PIECE: Final = 10_000
"""Characters that one search looks at: `re` holds the interpreter, and with it every event loop, until it is done."""
_LONGEST_ADDRESS: Final = 600
"""How much of a text a password in an address may be in; it is the only pattern with other signs inside."""
_CUT: Final = LazyPattern(r"[.:,;!?()\[\]{}<>|\"'](?=\s)")
_CUT_IN_WORD: Final = LazyPattern(r"[,;!?()\[\]{}<>|\"']")


def remove_secrets(text: str, instead: str) -> str:
    """A text without anything that gives itself away; a long one is looked through piece by piece."""
    if len(text) <= MAX_PIECE:
        return _remove_secrets(text, instead)
    if "-----BEGIN" in text:
        text = SECRET_PATTERNS[0].pattern.compiled.sub(instead, text)
    return "".join([_remove_secrets(piece, instead) for piece in _split(text)])


def _split(text: str) -> Iterator[str]:
    """The pieces of a text, cut where nothing that gives itself away can be on both sides.

    What has no such place, a million digits for example, is one piece.
    """
    start = 0
    while len(text) - start > MAX_PIECE:
        end = start + MAX_PIECE
        place = _find_cut(text, start, end)
        while place is None and end < len(text):
            start_of_next, end = end, min(end + MAX_PIECE, len(text))
            place = _find_cut(text, start_of_next, end)
        if place is None:
            break
        yield text[start:place]
        start = place
    yield text[start:]


def _find_cut(text: str, start: int, end: int) -> int | None:
    """The last place in a part of a text where it can be cut."""
    for begin in (max(start, end - 1_000), start):  # Most often there is one close to the end.
        places = [match.end() for match in _CUT.compiled.finditer(text, begin, end)]
        if places:
            return places[-1]
        places = [match.end() for match in _CUT_IN_WORD.compiled.finditer(text, begin, end)]
        if places and "://" not in text[max(0, places[-1] - _LONGEST_ADDRESS) : places[-1]]:
            return places[-1]
    return None


def _remove_secrets(text: str, instead: str) -> str:
    if len(text) < 13:  # Nothing here is so short.
        return text
    lower = text.lower()
    if _ANY_HINT.compiled.search(lower):
        for look in SECRET_PATTERNS:
            if any(hint in lower for hint in look.hints):
                text = look.pattern.compiled.sub(instead, text)
    if not _TWO_DIGITS.compiled.search(text):
        return text
    if _IBAN.compiled.search(text):  # First: the groups of an account may look like a card.
        text = _without_ibans(text, instead)
    return _without_cards(text, instead)


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


def _has_check_digits(text: str) -> bool:
    """Whether the check digits of what has the length of an IBAN, without spaces, are right."""
    account, head = text[4:], text[:4]
    if account.isdigit():
        return int(account + head.upper().translate(_IBAN_DIGITS)) % 97 == 1
    return int((account + head).upper().translate(_IBAN_DIGITS)) % 97 == 1


def _without_cards(text: str, instead: str) -> str:
    """A text without the numbers of cards, whose digits may be in groups.

    A run of groups of digits may hold more than a card: each group may be its beginning, the longest card wins.
    """
    runs = [match.span() for match in _RUN.compiled.finditer(text)]
    if not runs:
        return text
    spans: list[tuple[int, int]] = []
    grouped: list[tuple[int, int]] = []
    for start, end in runs:
        run = text[start:end]
        if not run.isdigit():
            grouped.append((start, end))
        elif is_card(run):
            spans.append((start, end))
    if grouped:
        spans = sorted([*spans, *_find_grouped_cards(text, grouped)])
    parts: list[str] = []
    done = 0
    for start, end in spans:
        parts += (text[done:start], instead)
        done = end
    return "".join((*parts, text[done:])) if parts else text


def _find_grouped_cards(text: str, runs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Where the cards are in runs of groups of digits.

    Whether Luhn's sum of so many digits is right is computed for all beginnings at once, with one large number for each
    length: its bytes are the differences of sums, and a difference of 0 is right. So a million groups cost no more than
    a few.
    """
    raw = b"x".join([text[start:end].encode() for start, end in runs])  # No card goes over an x.
    numbers = raw.translate(_TO_NUMBER, b" -")
    is_kept = raw.translate(_IS_DIGIT_OR_END)
    # Whether a digit is the first of its group; the end of a run counts as one, too.
    follows_digit = bytes(compress(b"\0" + raw.translate(_IS_DIGIT), is_kept))
    is_first = _join_bits(follows_digit.translate(_NOT), numbers.translate(_IS_END)) + b"\1"
    doubled = numbers.translate(_TO_DOUBLED)
    even, odd = bytearray(numbers), bytearray(numbers)
    even[::2], odd[1::2] = doubled[::2], doubled[1::2]
    # The last digit of a card is not doubled: the sum to take depends on where the card ends.
    sums = [bytes(map(_MODULO_10, accumulate(one, initial=0))) for one in (even, odd)]
    lengths = _find_lengths(numbers, is_first, sums)
    places = array("L", compress(range(len(raw)), is_kept))
    found: list[tuple[int, int]] = []
    candidate = _CANDIDATE.search(lengths)
    offsets = _compute_offsets(runs)
    while candidate is not None:
        first = candidate.start()
        for length in _card_lengths(numbers[first : first + 4]):
            if lengths[first] >> (length - 13) & 1 and (
                len(runs) == 1 or _LETTER_X not in numbers[first : first + length]
            ):
                begin, end = places[first], places[first + length - 1] + 1
                run = 0 if len(runs) == 1 else bisect_right(offsets, begin) - 1
                shift = runs[run][0] - offsets[run]
                found.append((begin + shift, end + shift))
                first += length - 1
                break
        candidate = _CANDIDATE.search(lengths, first + 1)
    return found


def _find_lengths(numbers: bytes, is_first: bytes, sums: Sequence[bytes]) -> bytes:
    """For each digit the lengths (bit 0: 13 … bit 6: 19) of what begins there and has the right sum and end."""
    lengths = int.from_bytes(numbers.translate(_LENGTHS_BY_FIRST))
    count = len(numbers)
    possible = 0
    for length in range(13, 20):
        if count < length:
            break
        right = bytearray(count)
        for parity in (0, 1):  # of the end
            ends = sums[parity][length:]
            begins = sums[parity][: len(ends)]
            is_right = (int.from_bytes(ends) ^ int.from_bytes(begins)).to_bytes(len(ends)).translate(_NOT)
            first = (parity - length) % 2
            right[first : len(ends) : 2] = is_right[first::2]
        ending = is_first[length:].ljust(count, b"\0")[:count]
        possible |= (int.from_bytes(right) & int.from_bytes(ending)) << (length - 13)
    beginning = int.from_bytes(is_first[:count].translate(_ALL_BITS))
    return (possible & lengths & beginning).to_bytes(count)


def _compute_offsets(runs: Sequence[tuple[int, int]]) -> list[int]:
    """Where each run begins in all of them, with one sign between two."""
    return list(accumulate((end - start + 1 for start, end in runs[:-1]), initial=0))


def _join_bits(one: bytes, other: bytes) -> bytes:
    return (int.from_bytes(one) | int.from_bytes(other)).to_bytes(len(one))


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
    return match.end() if match and _has_check_digits(match[0].replace(" ", "").replace("-", "")) else None


@cache
def _build_iban_pattern(length: int) -> re.Pattern[str]:
    """So many letters and digits, with one sign between two of them at most."""
    return re.compile(rf"[A-Za-z0-9](?:[ -]?+[A-Za-z0-9]){{{length - 1}}}+(?![A-Za-z0-9])")

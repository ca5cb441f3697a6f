"""What gives itself away by its looks, whatever its field is called: keys, tokens, card numbers, IBANs."""

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import accumulate, compress
from typing import Final

from msgspec import Struct

from handrail.core.lazy_loading import LazyPattern


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
        pattern=r"(?<![A-Za-z0-9])(?:sk|pk|rk|whsec)[-_]"
        r"(?:[A-Za-z0-9]{1,15}+[-_]){0,8}+[A-Za-z0-9]{16}[A-Za-z0-9_-]*+",  # its first long part decides
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
_LETTER_X: Final = ord("x")
_TO_NUMBER: Final = bytes.maketrans(_DIGITS + b"x", bytes((*range(10), 0)))
_TO_DOUBLED: Final = bytes.maketrans(_DIGITS + b"x", bytes((0, 2, 4, 6, 8, 1, 3, 5, 7, 9, 0)))
"""What Luhn's rule adds for a digit that is doubled."""
_IS_SUM: Final = bytes(code % 10 == 0 for code in range(256))
_NOT: Final = bytes((1, 0)) + bytes(254)
_IS_DIGIT: Final = bytes(code in _DIGITS for code in range(256))
_IS_DIGIT_OR_END: Final = bytes(code in b"0123456789x" for code in range(256))
_IS_END: Final = bytes(code == _LETTER_X for code in range(256))
_ALL_BITS: Final = bytes((0, 255)) + bytes(254)
_LENGTHS_BY_FIRST: Final = bytes(48) + bytes((0, 0, 0b1000, 0b1111110, 0b1001001, 0b1000, 0b1111000)) + bytes(201)
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
MIN_SECRET: Final = 13
"""Characters; nothing shorter gives itself away."""
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
    raw = digits.encode()
    if not 13 <= len(raw) <= 19 or len(raw) not in _card_lengths(raw[:4]):
        return False
    return (sum(raw[-1::-2].translate(_TO_NUMBER)) + sum(raw[-2::-2].translate(_TO_DOUBLED))) % 10 == 0


def _card_lengths(first: bytes) -> Sequence[int]:
    """How many digits a card has that begins with these four, the most first."""
    four = int(first)
    two = four // 100
    if two // 10 == 4:
        return (19, 16, 13)
    if 51 <= two <= 55 or 2221 <= four <= 2720:
        return (16,)
    if two in (34, 37):
        return (15,)
    if two in (30, 36, 38, 39):
        return (14,)
    return (19, 18, 17, 16) if two == 35 or two // 10 == 6 else ()


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

    All beginnings are judged at once, with one large number whose bytes are the digits: so a million groups cost no
    more than a few.
    """
    raw = b"x".join([text[start:end].encode() for start, end in runs])  # No card goes over an x.
    digits = raw.translate(None, b" -")
    is_kept = raw.translate(_IS_DIGIT_OR_END)
    # Whether a digit is the first of its group; the end of a run counts as one, too.
    follows_digit = bytes(compress(b"\0" + raw.translate(_IS_DIGIT), is_kept))
    is_first = _join_bits(follows_digit.translate(_NOT), digits.translate(_IS_END)) + b"\1"
    lengths = _find_lengths(digits, is_first)
    candidate = _CANDIDATE.search(lengths)
    if candidate is None:
        return []
    places = array("L", compress(range(len(raw)), is_kept))
    found: list[tuple[int, int]] = []
    offsets = _compute_offsets(runs)
    while candidate is not None:
        first = candidate.start()
        run_rest = digits[first : first + 19].partition(b"x")[0]
        for length in _card_lengths(run_rest[:4]) if len(run_rest) >= 13 else ():
            if lengths[first] >> (length - 13) & 1 and length <= len(run_rest):
                begin, end = places[first], places[first + length - 1] + 1
                run = 0 if len(runs) == 1 else bisect_right(offsets, begin) - 1
                shift = runs[run][0] - offsets[run]
                found.append((begin + shift, end + shift))
                first += length - 1
                break
        candidate = _CANDIDATE.search(lengths, first + 1)
    return found


def _find_lengths(digits: bytes, is_first: bytes) -> bytes:
    """For each digit the lengths (bit 0: 13 … bit 6: 19) of what begins there and has the right sum and end."""
    count = len(digits)
    lengths = int.from_bytes(digits.translate(_LENGTHS_BY_FIRST))
    possible = 0
    for length in range(13, min(count, 19) + 1):
        ending = int.from_bytes(is_first[length:].ljust(count, b"\0")[:count])
        possible |= ending << (length - 13)
    possible &= lengths & int.from_bytes(is_first[:count].translate(_ALL_BITS))
    if not possible:
        return b""
    # Luhn's sums: each byte is the sum of the digits that begin there. It is 171 at most, so that no byte runs over.
    ends, doubled = int.from_bytes(digits.translate(_TO_NUMBER)), int.from_bytes(digits.translate(_TO_DOUBLED))
    mask = (1 << (8 * count)) - 1

    def shift(sums: int, places: int) -> int:
        return sums << (8 * places) & mask

    two = doubled + shift(ends, 1)
    four = two + shift(two, 2)
    eight = four + shift(four, 4)
    twelve, sixteen = eight + shift(four, 8), eight + shift(eight, 8)
    fourteen, eighteen = twelve + shift(two, 12), sixteen + shift(two, 16)
    thirteen, fifteen, seventeen, nineteen = (ends + shift(sums, 1) for sums in (twelve, fourteen, sixteen, eighteen))
    right = 0
    for bit, sums in enumerate((thirteen, fourteen, fifteen, sixteen, seventeen, eighteen, nineteen)):
        right |= int.from_bytes(sums.to_bytes(count).translate(_IS_SUM)) << bit
    return (possible & right).to_bytes(count)


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
        pattern = _get_iban_pattern(text[start : start + 2])
        if pattern is None or start < done:
            continue
        iban = pattern.match(text, start)
        if iban is not None and _has_check_digits(iban[0].replace(" ", "").replace("-", "")):
            parts += (text[done:start], instead)
            done = iban.end()
    return "".join((*parts, text[done:])) if parts else text


@cache
def _get_iban_pattern(country: str) -> re.Pattern[str] | None:
    """As many letters and digits as an account of this country has, with one sign between two of them at most."""
    length = IBAN_LENGTHS.get(country.upper())
    if length is None:
        return None
    return re.compile(rf"[A-Za-z0-9](?:[ -]?+[A-Za-z0-9]){{{length - 1}}}+(?![A-Za-z0-9])")

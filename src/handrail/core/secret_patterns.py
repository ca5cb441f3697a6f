"""What gives itself away by its looks, whatever its field is called: keys, tokens, card numbers, IBANs."""

import re
from collections.abc import Sequence
from functools import cached_property
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
_TWO_DIGITS: Final = LazyPattern(r"[0-9][^0-9]*[0-9]")
_THIRTEEN_DIGITS: Final = LazyPattern(r"(?:[0-9][^0-9]*){12}[0-9]")
_RUN = LazyPattern(r"(?<![A-Za-z0-9])(?<![0-9]\.)[0-9](?:[ -]?[0-9]){12,}(?![A-Za-z0-9])(?!\.[0-9])")
_GROUP = LazyPattern(r"[0-9]+")
_IBAN = LazyPattern(r"(?<![A-Za-z0-9])[A-Za-z]{2}[0-9]{2}(?=[ -]?[A-Za-z0-9])")

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
    if _THIRTEEN_DIGITS.compiled.search(text):
        text = _RUN.compiled.sub(lambda run: _without_cards(run[0], instead), text)
    return _without_ibans(text, instead) if _IBAN.compiled.search(text) else text


def is_card(digits: str) -> bool:
    """Whether digits can be the number of a payment card: one of the known beginnings, its length, its check digit.

    Times in milli-, micro- or nanoseconds begin with 1, and no card does.
    """
    first, two, length = digits[:1], digits[:2], len(digits)
    known = (
        (first == "4" and length in (13, 16, 19))
        or (("51" <= two <= "55" or "2221" <= digits[:4] <= "2720") and length == 16)
        or (two in ("34", "37") and length == 15)
        or (two in ("30", "36", "38", "39") and length == 14)
        or ((two == "35" or first == "6") and 16 <= length <= 19)
    )
    return known and _luhn(digits)


def is_iban(text: str) -> bool:
    """Whether letters and digits, without spaces, are an IBAN: its country's length, and its check digits."""
    if IBAN_LENGTHS.get(text[:2].upper()) != len(text):
        return False
    return int("".join(str(int(char, 36)) for char in text[4:] + text[:4])) % 97 == 1


def _without_cards(run: str, instead: str) -> str:
    """A run of digits may hold more than the card: each group may be its beginning, the longest card wins."""
    groups = [(match.start(), match.end()) for match in _GROUP.compiled.finditer(run)]
    parts: list[str] = []
    done = first = 0
    while first < len(groups):
        last = _last_group(run, groups, first)
        if last is None:
            first += 1
            continue
        parts += (run[done : groups[first][0]], instead)
        done = groups[last][1]
        first = last + 1
    return "".join((*parts, run[done:]))


def _last_group(run: str, groups: Sequence[tuple[int, int]], first: int) -> int | None:
    digits, found = "", None
    for last in range(first, len(groups)):
        start, end = groups[last]
        digits += run[start:end]
        if len(digits) > 19:
            break
        if len(digits) >= 13 and is_card(digits):
            found = last
    return found


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
    found, place = "", start
    while len(found) < length and place < len(text):
        char = text[place]
        if char.isascii() and char.isalnum():
            found += char
        elif char not in " -" or text[place - 1] in " -":
            return None
        place += 1
    if place < len(text) and text[place].isascii() and text[place].isalnum():
        return None
    return place if is_iban(found) else None


def _luhn(digits: str) -> bool:
    total = 0
    for place, char in enumerate(reversed(digits)):
        number = int(char) * (1 + place % 2)
        total += number - 9 if number > 9 else number
    return total % 10 == 0

"""Finds typed values in a message: addresses, dates, money and ids, which code copies better than a model."""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import date
from typing import Any, Final, Literal

from handrail.core.lazy_loading import LazyPattern

SpanKind = Literal["email", "url", "phone", "date", "id"]

_EMAIL: Final = LazyPattern(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_URL: Final = LazyPattern(r"https?://[^\s<>\"“”]+", re.IGNORECASE)
_PHONE: Final = LazyPattern(r"(?<![\w-])(?:\+|0)\d(?:[ ()/-]{0,2}\d){5,14}(?![\w-])")
_ID: Final = LazyPattern(r"(?<![\w@./-])(?=[\w-]*\d)(?=[\w-]*[A-Za-z])\w+(?:-\w+)*(?![\w@-])")
_DASHED: Final = LazyPattern(r"(?<![\w@./-])\w{2,}(?:-\w{2,})+(?![\w@-])")
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH: Final = r"(?P<month>(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*)\.?"
_DAY: Final = r"(?P<day>\d{1,2})(?:st|nd|rd|th|\.)?"
_DATES: Final = tuple(
    LazyPattern(rf"(?<![\w-]){pattern}(?![\w-])", re.IGNORECASE)
    for pattern in (
        r"(?P<year>\d{4})-(?P<month>\d{2})-(?P<day>\d{2})",
        r"(?P<day>\d{1,2})\.(?P<month>\d{1,2})\.(?P<year>\d{4})",
        rf"{_DAY} (?:of )?{_MONTH},? (?P<year>\d{{4}})",
        rf"{_MONTH} {_DAY},? (?P<year>\d{{4}})",
    )
)
_CURRENCY: Final = r"(?:euros?|eur|dollars?|usd|pounds?|gbp|francs?|chf|cents?)\b"
_NUMBER: Final = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:[.,]\d+)?"
_MONEY: Final = LazyPattern(
    rf"[€$£]\s?(?P<before>{_NUMBER})|(?<![\w.,-])(?P<after>{_NUMBER})\s?(?:[€$£]|{_CURRENCY})", re.IGNORECASE
)
_PLAIN_NUMBER: Final = LazyPattern(rf"(?<![\w.,-])-?(?:{_NUMBER})(?![\w-])")

_NAMES: Final[tuple[tuple[SpanKind, LazyPattern], ...]] = (
    ("email", LazyPattern(r"e-?mail|(^|_)mail($|_)", re.IGNORECASE)),
    ("url", LazyPattern(r"(^|_)(url|uri|link|href)($|_)", re.IGNORECASE)),
    ("phone", LazyPattern(r"phone|mobile|(^|_)tel($|_)", re.IGNORECASE)),
    ("id", LazyPattern(r"(^|_)(id|number|no|code|ref|reference|sku|host|hostname)$", re.IGNORECASE)),
)
_FORMATS: Final[dict[str, SpanKind]] = {"email": "email", "uri": "url", "url": "url", "date": "date"}
_MONEY_NAMES: Final = LazyPattern(r"amount|price|cost|money|euro|dollar|budget|fee", re.IGNORECASE)


def find_kind(name: str, node: Mapping[str, Any]) -> SpanKind | None:
    """The kind of value that a string parameter takes, by its format or its name; None if it may be any text."""
    declared = node.get("format")
    if isinstance(declared, str) and declared in _FORMATS:
        return _FORMATS[declared]
    return next((kind for kind, pattern in _NAMES if pattern.compiled.search(name)), None)


def is_money(name: str, node: Mapping[str, Any]) -> bool:
    """Whether a number is an amount of money, by its name or its description."""
    return _MONEY_NAMES.compiled.search(f"{name} {node.get('description', '')}") is not None


def extract(kind: SpanKind, text: str) -> list[str]:
    """List the values of a kind in a text, each once, in their order; dates as `2026-01-31`."""
    return list(dict.fromkeys(_EXTRACT[kind](text)))


def extract_money(text: str) -> list[float]:
    """List the numbers that a currency stands beside."""
    return [_to_number(found["before"] or found["after"]) for found in _MONEY.compiled.finditer(text)]


def extract_numbers(text: str) -> list[float]:
    """List the numbers in a text that are part of no word, address, date or phone number."""
    for pattern in (_URL, _EMAIL, *_DATES, _PHONE):
        text = pattern.compiled.sub(" ", text)
    return [_to_number(found) for found in _PLAIN_NUMBER.compiled.findall(text)]


def _to_number(text: str) -> float:
    if re.fullmatch(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?", text):
        return float(text.replace(",", ""))
    return float(text.replace(",", "."))


def _extract_urls(text: str) -> list[str]:
    return [found.rstrip(".,;:!?)]}'\"’") for found in _URL.compiled.findall(text)]


def _extract_dates(text: str) -> list[str]:
    found: list[tuple[int, str]] = []
    for match in (match for pattern in _DATES for match in pattern.compiled.finditer(text)):
        month = match["month"]
        number = int(month) if month.isdecimal() else _MONTHS.index(month[:3].lower()) + 1
        with suppress(ValueError):
            found.append((match.start(), date(int(match["year"]), number, int(match["day"])).isoformat()))
    return [item for _, item in sorted(found)]


def _extract_ids(text: str) -> list[str]:
    """Words with letters and digits, such as `A-17`; if there are none, words with a hyphen."""
    for pattern in (_URL, _EMAIL, *_DATES, _PHONE):
        text = pattern.compiled.sub(" ", text)
    return _ID.compiled.findall(text) or _DASHED.compiled.findall(text)


_EXTRACT: Final[dict[SpanKind, Callable[[str], list[str]]]] = {
    "email": lambda text: [found.rstrip(".-") for found in _EMAIL.compiled.findall(text)],
    "url": _extract_urls,
    "phone": lambda text: [found.strip() for found in _PHONE.compiled.findall(text)],
    "date": _extract_dates,
    "id": _extract_ids,
}

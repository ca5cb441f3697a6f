"""Compares what people write with values: words, numbers, dates and names, normalised.

It decides whether a text supports a value. It never decides about a permission: that compares the values themselves.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from decimal import Decimal
from typing import Any, Final, cast

from handrail.core.lazy_loading import LazyPattern
from handrail.core.text import normalize_unicode

_CJK: Final = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
_TOKEN: Final = LazyPattern(rf"[{_CJK}]|\d+(?:[.,]\d+)*|[^\W\d_{_CJK}]+(?:'[^\W\d_{_CJK}]+)*")
_GROUPING: Final = LazyPattern(r"(?<=\d)[\u00a0\u202f'’ ](?=\d{3}(?!\d))")
_GROUPED: Final = LazyPattern(r"\d{1,3}(?:[.,]\d{3})+")
_NUMBER: Final = LazyPattern(r"\d+(?:[.,]\d+)*")
_AFTER: Final = LazyPattern(r"\s*.{0,8}", re.DOTALL)
"""As much as is read of what follows a number: a copy of all that does is a copy of the text for each number."""
_ISO_DATE: Final = LazyPattern(r"(\d{4})-(\d{1,2})-(\d{1,2})(?:[T ](\d{2}:\d{2}).*)?")
_LOCAL_DATE: Final = LazyPattern(r"(\d{1,2})[-./](\d{1,2})[-./](\d{4})")
_TIME: Final = LazyPattern(r"(\d{1,2}):(\d{2})(?::\d{2})?")
_SPOKEN_TIME: Final = LazyPattern(r"(\d{1,2})(?:[:.h](\d{2}))?\s*(am|pm|a\.m\.|p\.m\.|h|uhr|o'clock)?")
_MIN_CODE: Final = 4
"""The shortest value with digits that is found in a text without regard to spaces, such as an account number."""

_UNITS: Final = {
    "zero": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9,
    "ten": 10, "eleven": 11, "twelve": 12, "thirteen": 13, "fourteen": 14, "fifteen": 15, "sixteen": 16,
    "seventeen": 17, "eighteen": 18, "nineteen": 19,
}  # fmt: skip
_TENS: Final = {
    "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90,
}  # fmt: skip
_SCALES: Final = {"hundred": 100, "thousand": 1_000, "million": 1_000_000, "k": 1_000, "m": 1_000_000}
_CODES: Final = "chf pln rub aud cad nzd sgd hkd sek nok dkk czk huf inr brl mxn krw uah"
_CURRENCIES: Final[Mapping[str, frozenset[str]]] = {
    name: frozenset(codes.split())
    for codes, names in (
        *((code, code) for code in _CODES.split()),
        ("eur", "eur euro euros евро €"), ("usd", "usd"), ("gbp", "gbp pound pounds £"), ("jpy", "jpy yen 円"),
        ("usd aud cad nzd sgd hkd", "dollar dollars dolar dolares dolary dolarow dollaro dollari $"),
        ("usd aud cad nzd sgd hkd", "доллар доллара долларов"), ("cny", "cny yuan 元 块"), ("jpy cny", "¥"),
        ("pln", "zł złoty złote złotych"), ("brl", "reais"), ("rub", "рубль рубля рублеи руб ₽"), ("inr", "₹"),
        ("krw", "₩"), ("uah", "₴"),
    )
    for name in names.split()
}  # fmt: skip
"""The currencies that a word, as `split_words` writes it, or a sign can stand for."""
_MONTHS: Final = {
    name: number
    for number, names in enumerate(
        (
            "january jan", "february feb", "march mar", "april apr", "may", "june jun", "july jul", "august aug",
            "september sep sept", "october oct", "november nov", "december dec",
        ),
        start=1,
    )
    for name in names.split()
}  # fmt: skip
_WEEKDAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_TODAY: Final = frozenset(("today", "now", "immediately", "straightaway", "tonight", "asap"))


def split_words(text: str) -> list[str]:
    """Split a text into words and numbers without case, accents and punctuation.

    A Chinese or Japanese character is a word of its own.
    """
    plain = normalize_unicode(text.replace("’", "'")).casefold()
    plain = normalize_unicode(plain, "NFKD") if not plain.isascii() else plain
    # Only accents: the marks of Japanese syllables change what they mean.
    plain = normalize_unicode("".join(char for char in plain if not "\u0300" <= char <= "\u036f"), "NFC")
    return _TOKEN.compiled.findall(plain.replace("_", " "))


def contains_words(text: str, quote: str) -> bool:
    """Whether the words of a quote stand in a text, one after the other. Parts that `…` separates are looked for apart.

    A quote without words stands nowhere.
    """
    words = _pad(text)
    parts = [part for part in map(_pad, re.split(r"\.\.\.|…", quote)) if part.strip()]
    return bool(parts) and all(part in words for part in parts)


def _pad(text: str) -> str:
    words = (re.sub("[.,]", "", word) if _GROUPED.compiled.fullmatch(word) else word for word in split_words(text))
    return f" {' '.join(words)} "


def mentions_value(text: str, value: Any, *, today: date | None = None) -> bool:
    """Whether a text contains a value: a number in any notation, a date, a name, or each value of a list or mapping.

    Truth values and null have no words of their own: every text contains them. `today` is needed for dates such as
    "tomorrow".
    """
    if value is None or isinstance(value, bool):
        return True
    if isinstance(value, int | float | Decimal):
        return _has_number(text, to_decimal(value))
    if isinstance(value, Mapping):
        return all(mentions_value(text, part, today=today) for part in cast(Mapping[Any, Any], value).values())
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return all(mentions_value(text, part, today=today) for part in cast(Sequence[Any], value))
    return _mentions_text(text, str(value), today)


def _mentions_text(text: str, value: str, today: date | None) -> bool:
    if not split_words(value) or contains_words(text, value):
        return True
    if (found := _ISO_DATE.compiled.fullmatch(value.strip())) is not None:
        is_day = _mentions_date(text, int(found[1]), int(found[2]), int(found[3]), today)
        return is_day and (found[4] is None or found[4] == "00:00" or _mentions_time(text, found[4]))
    if (found := _LOCAL_DATE.compiled.fullmatch(value.strip())) is not None:  # Day first, or month first.
        first, second, year = int(found[1]), int(found[2]), int(found[3])
        return _mentions_date(text, year, second, first, today) or _mentions_date(text, year, first, second, today)
    if _TIME.compiled.fullmatch(value.strip()) is not None:
        return _mentions_time(text, value.strip())
    if _has_number(text, to_decimal(value)):
        return True
    code = "".join(split_words(value))
    is_code = len(code) >= _MIN_CODE and any(char.isdigit() for char in code)
    return is_code and _joins_to(split_words(text), code)


def _joins_to(words: Sequence[str], code: str) -> bool:
    """Whether some words that follow each other are the code, without the spaces between them."""
    for start, word in enumerate(words):
        joined, place = word, start + 1
        while len(joined) < len(code) and place < len(words):
            joined, place = joined + words[place], place + 1
        if joined == code:
            return True
    return False


def _has_number(text: str, number: Decimal | None) -> bool:
    return number is not None and any(number in readings for readings in find_numbers(text))


def to_decimal(value: Any) -> Decimal | None:
    """The number that a value is, so that `5`, `5.0` and `"5"` are equal; None if it is none."""
    try:
        return Decimal(str(value).strip()).normalize()
    except (ArithmeticError, ValueError):
        return None


def find_numbers(text: str) -> list[set[Decimal]]:
    """Find the numbers of a text, in digits or in English words, each with its readings: `1,500` is 1500 or 1.5."""
    text = normalize_unicode(_GROUPING.compiled.sub("", text))
    found = [_scale(_read_digits(match[0]), _read_after(match)) for match in _NUMBER.compiled.finditer(text)]
    return found + [{number} for number in _find_spelled_numbers(split_words(text))]


def _read_after(number: re.Match[str]) -> str:
    after = _AFTER.compiled.match(number.string, number.end())
    return "" if after is None else after[0]


def _scale(readings: Iterator[str], after: str, *, is_strict: bool = False) -> set[Decimal]:
    """The numbers that some digits can be, with the word for thousands or millions that may follow them."""
    numbers = {number for reading in readings if (number := to_decimal(reading)) is not None}
    scale = after.lstrip()[:8].casefold()
    if after[:1] in ("к", "К"):  # The Russian k; after a space it is a preposition.
        scale = f"k{scale[1:]}"
    word = next((word for word in _SCALES if re.match(rf"{word}\b", scale)), None)
    if word is None:
        return numbers
    scaled = {(number * _SCALES[word]).normalize() for number in numbers}
    return scaled | numbers if word == "m" and not is_strict else scaled  # 500 m can be metres.


def repeats_numbers(text: str, shown: str) -> bool:
    """Whether every number of a text is also a number of what was shown, in the same order: who says "from 2 to 1" does
    not agree to "from 1 to 2". Of `1,500` only 1500 counts, unless it is written in the same way there: to be asked
    again is better than to agree to a thousandth."""
    numbers = find_numbers(shown)
    known = set[Decimal]().union(*numbers)
    place = 0
    written = set(_NUMBER.compiled.findall(normalize_unicode(shown)))
    plain = normalize_unicode(_GROUPING.compiled.sub("", text))
    for match in _NUMBER.compiled.finditer(plain):
        digits, after = match[0], _read_after(match)
        is_grouped = digits not in written and digits[0] != "0" and _GROUPED.compiled.fullmatch(digits) is not None
        readings = iter([re.sub(r"[.,]", "", digits)]) if is_grouped else _read_digits(digits)
        found = _scale(readings, after, is_strict=True)
        while place < len(numbers) and not found & numbers[place]:
            place += 1
        if place == len(numbers):
            return False
    return all(number in known for number in _find_spelled_numbers(split_words(text)))


def repeats_currencies(text: str, shown: str) -> bool:
    """Whether every currency that a text names is one of those that were shown, if any was."""
    known = frozenset[str]().union(*_find_currencies(shown))
    return not known or all(codes & known for codes in _find_currencies(text))


def _find_currencies(text: str) -> Iterator[frozenset[str]]:
    """Yield the currencies that a text names, each with the codes that it can have."""
    for name in [*split_words(text), *normalize_unicode(text)]:
        if (codes := _CURRENCIES.get(name)) is not None:
            yield codes
        elif len(name) == 1 and unicodedata.category(name) == "Sc":  # A sign of another currency stands for itself.
            yield frozenset((name,))


def is_number_word(word: str) -> bool:
    """Whether a word is part of a number that is written in English words."""
    return word in _UNITS or word in _TENS or word in _SCALES


def _read_digits(digits: str) -> Iterator[str]:
    plain = re.sub(r"[.,]", "", digits)
    last = max(digits.rfind("."), digits.rfind(","))
    if last < 0:
        yield digits
        return
    if _GROUPED.compiled.fullmatch(digits):
        yield plain
    if digits.count(digits[last]) > 1:  # No number has two decimal marks: they separate groups, as in 5,00,000.
        yield plain
        return
    yield f"{re.sub(r'[.,]', '', digits[:last])}.{digits[last + 1 :]}"


def _find_spelled_numbers(words: Sequence[str]) -> Iterator[Decimal]:
    total, part, is_open = 0, 0, False
    for word in [*words, ""]:
        if word in _UNITS or word in _TENS:
            part, is_open = part + _UNITS.get(word, _TENS.get(word, 0)), True
        elif word == "hundred" and (is_open or part == 0):
            part, is_open = max(part, 1) * 100, True
        elif word in ("thousand", "million") and (is_open or part == 0):
            total, part, is_open = total + max(part, 1) * _SCALES[word], 0, True
        elif word == "and" and is_open:
            continue
        elif is_open:
            yield Decimal(total + part).normalize()
            total, part, is_open = 0, 0, False


def _mentions_time(text: str, value: str) -> bool:
    found = _TIME.compiled.match(value)
    assert found is not None
    wanted = (int(found[1]), int(found[2]))
    words = set(split_words(text))
    if (wanted == (12, 0) and "noon" in words) or (wanted == (0, 0) and "midnight" in words):
        return True
    for spoken in _SPOKEN_TIME.compiled.finditer(text.casefold()):
        hour, minute, half = int(spoken[1]), int(spoken[2] or 0), (spoken[3] or "").replace(".", "")
        if half in ("am", "pm"):
            hour = hour % 12 + (12 if half == "pm" else 0)
        if (hour, minute) == wanted or (not half and (hour + 12, minute) == wanted):
            return True
    return False


def _mentions_date(text: str, year: int, month: int, day: int, today: date | None) -> bool:
    words = split_words(text)
    joined = " ".join(words)
    numbers = {int(number) for number in re.findall(r"\d+", text)}
    is_month = month in numbers or any(_MONTHS.get(word) == month for word in words)
    years = {number for number in numbers if 1000 <= number <= 9999}
    if day in numbers and is_month and (not years or year in years):
        return True
    if today is None:
        return False
    try:
        wanted = date(year, month, day)
    except ValueError:
        return False
    if wanted == today and (_TODAY & set(words) or "right away" in joined):
        return True
    days = (wanted - today).days
    if "tomorrow" in words and wanted == today + timedelta(days=1):
        return True
    if "yesterday" in words and wanted == today - timedelta(days=1):
        return True
    if (found := re.search(r"\bin (\w+) (day|week)s?\b", joined)) is not None:
        count = _UNITS.get(found[1], int(found[1]) if found[1].isdigit() else 1 if found[1] in ("a", "an") else -1)
        if days == count * (7 if found[2] == "week" else 1):
            return True
    return _WEEKDAYS[wanted.weekday()] in words and 0 <= days <= 14

"""Finds values in texts, character for character: whole words, and the numbers that words are.

It decides about permissions, so nothing is normalised but white space. `core/value_mentions.py` compares what people
mean.
"""

import math
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any, Final, Literal, TypeAlias, cast

from handrail.core.lazy_loading import LazyPattern

DecimalMark: TypeAlias = Literal[".", ","]
ExactNumber: TypeAlias = int | Decimal

AROUND: Final = (
    "\"'`´“”‘’„‚‟‛«»‹›「」『』"  # quotes
    "()[]{}<>（）［］｛｝＜＞【】〈〉《》〔〕〖〗"  # brackets
    ".,;:!?"
)
"""What is not part of a word at its beginning and its end."""
MIN_CHARS: Final = 3
"""Letters and digits of the shortest text that is looked for in a text."""
_MAX_OCCURRENCES: Final = 1_000
_MAX_DIGITS: Final = 60
_MAX_GROUP: Final = 5
"""Characters of the first digits of a number whose digits are grouped by spaces, with a sign and a currency."""
_CURRENCY: Final = "$€£¥₣₤₦₩₪₫₭₮₱₲₴₵₸₹₺₽₾₿¢"
_PLAIN: Final = LazyPattern(r"-?[0-9]+(?:\.[0-9]+)?")
_AMBIGUOUS: Final = LazyPattern(r"-?[1-9][0-9]{0,2}\.[0-9]{3}")
"""1.200 is 1.2 in one country, and 1200 in the next."""
_WRITTEN: Final = {
    ".": LazyPattern(r"-?(?:[0-9]+|[1-9][0-9]{0,2}(?:,[0-9]{3})+)(?:\.[0-9]+)?"),
    ",": LazyPattern(r"-?(?:[0-9]+|[1-9][0-9]{0,2}(?:\.[0-9]{3})+)(?:,[0-9]+)?"),
}
_ODD_SPACE: Final = LazyPattern(r"[^\S \t\r\n]")


def is_searchable(value: str) -> bool:
    """Whether a text can stand in another text at all: three letters or digits, and edges that are those of words."""
    if not value or value[0] in AROUND or value[-1] in AROUND or value[0].isspace() or value[-1].isspace():
        return False
    if _ODD_SPACE.compiled.search(value) is not None:  # A value with a space that only looks like one is another value.
        return False
    count = 0
    for char in value:
        count += char.isalnum()
        if count >= MIN_CHARS:
            return True
    return False


def stands_in(value: str, text: str) -> bool:
    """Whether a searchable value stands in a text whose white space is single spaces, from word edge to word edge."""
    position = text.find(value)
    for _ in range(_MAX_OCCURRENCES):
        if position < 0:
            return False
        end = position + len(value)
        left, right = text.rfind(" ", 0, position) + 1, text.find(" ", end)
        before, after = text[left:position], text[end : right if right >= 0 else len(text)]
        if not before.strip(AROUND) and not after.strip(AROUND):
            return True
        position = text.find(value, position + 1)
    return False


def collapse_spaces(text: str) -> str:
    """The text with each run of white space as one space, and none around it."""
    return " ".join(text.split())


def to_number(value: Any) -> ExactNumber | None:
    """A number by its value, so that equal numbers are equal keys; None for what is no finite number."""
    if type(value) is int:
        return value if value.bit_length() <= 200 else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float) and not math.isfinite(value):  # NaN and the infinities.
        return None
    return Decimal(repr(float(value))) if isinstance(value, float) else int(value)


def read_number(word: str, decimal: DecimalMark | None) -> ExactNumber | None:
    """The number that a word is, less one currency sign; None if it is none, or can be read as two."""
    if len(word) > _MAX_DIGITS or (not word.isascii() and word[0] not in _CURRENCY and word[-1] not in _CURRENCY):
        return None
    if word[:1] in _CURRENCY and word:
        word = word[1:]
    elif word[-1:] in _CURRENCY and word:
        word = word[:-1]
    if decimal is None:
        if _PLAIN.compiled.fullmatch(word) is None or _AMBIGUOUS.compiled.fullmatch(word) is not None:
            return None
        return Decimal(word)
    if _WRITTEN[decimal].compiled.fullmatch(word) is None:
        return None
    group = "," if decimal == "." else "."
    return Decimal(word.replace(group, "").replace(decimal, "."))


def list_words(chunks: Sequence[str], decimal: DecimalMark | None) -> Iterator[tuple[str, ExactNumber | None]]:
    """Yield the words of a text that was split at its white space, each with the number that it is.

    A number that continues the one before it, as in `1 200`, is none; nor is the 5 of `.5`.
    """
    was_group = False
    words = [chunk.strip(AROUND) for chunk in chunks]
    for place, (chunk, word) in enumerate(zip(chunks, words, strict=True)):
        if not word:
            was_group = False
            continue
        number = None
        if word[-1].isdigit() or word[-1] in _CURRENCY:
            following = words[place + 1] if place + 1 < len(words) else ""
            is_head = len(word) <= _MAX_GROUP and _is_group(following) and word[-1].isdigit()
            is_part = (was_group and _is_group(word)) or is_head
            if not is_part and not (chunk[0] in ".," and chunk.lstrip(AROUND) != chunk):
                number = read_number(word, decimal)
            was_group = is_part
        else:
            was_group = False
        yield word, number


def _is_group(word: str) -> bool:
    """Whether a word may be the rest of a number whose digits are grouped by spaces: `200`, `200.50`, `200€`."""
    return word[:3].isdigit() and not word[3:4].isdigit()


def list_leaves(value: Any, *, with_names: bool = False) -> Iterator[str | ExactNumber]:
    """Yield the strings and numbers of a JSON value, and on request the names of its fields."""
    stack: list[Any] = [value]
    while stack:
        found = stack.pop()
        if isinstance(found, str):
            yield found
        elif isinstance(found, dict):
            fields = cast(dict[Any, Any], found)
            stack.extend(fields.values())
            if with_names:
                yield from (name for name in fields if isinstance(name, str))
        elif isinstance(found, list | tuple):
            stack.extend(cast(list[Any], found))
        elif (number := to_number(found)) is not None:
            yield number

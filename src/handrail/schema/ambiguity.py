"""JSON that two readers understand differently, which a tool with consequences must not act on."""

import json
import math
from collections.abc import Iterator
from typing import Any, Final, cast

import msgspec

from handrail.errors import ToolArgsParseError
from handrail.schema.faults import no_json

_MOST_DIGITS = 4300
"""What Python converts; the parser that reads the arguments has the same limit."""
_SHORT: Final = 2_000
"""Characters: no number in it can have too many digits."""


def refuse_ambiguous(text: str) -> None:
    """Refuse duplicate keys and numbers that are not finite, anywhere in the text.

    Parsers differ in what they make of both: what was authorised might not be what runs. Read-only tools take the last
    one of two keys.
    """
    if len(text) > _SHORT or not _is_plain(text):
        _read(text, _UNAMBIGUOUS)


def _is_plain(text: str) -> bool:
    """Whether a short text is certainly unambiguous; one that may not be is read carefully.

    Every string in it has two quotes. If there are no more than the strings that are left after reading account for,
    no key was dropped in favour of an equal one.
    """
    try:
        return text.count('"') == 2 * _strings(_PLAIN.decode(text))
    except (msgspec.DecodeError, UnicodeError, RecursionError, _NotFinite):
        return False


class _NotFinite(Exception):
    """A number is out of range."""


def _strings(value: Any) -> int:
    """How many strings are in a value, keys among them."""
    if isinstance(value, str):
        return 1
    if isinstance(value, dict):
        members = cast(dict[str, Any], value)
        return len(members) + sum(map(_strings, members.values()))
    if isinstance(value, list):
        return sum(map(_strings, cast(list[Any], value)))
    if isinstance(value, float) and not math.isfinite(value):
        raise _NotFinite
    return 0


def refuse_infinite(text: str) -> None:
    """Refuse numbers that are not finite, anywhere in the text."""
    _read(text, _FINITE)


def _read(text: str, decoder: json.JSONDecoder) -> None:
    try:
        decoder.decode(text)
    except ToolArgsParseError:
        raise
    except (ValueError, RecursionError) as error:
        raise no_json("nested too deeply" if isinstance(error, RecursionError) else str(error)) from error


def not_finite(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The places of numbers that are not finite in a JSON-like value."""
    if isinstance(value, float):
        if not math.isfinite(value):
            yield path
    elif isinstance(value, dict):
        for key, one in cast(dict[str, Any], value).items():
            yield from not_finite(one, (*path, key))
    elif isinstance(value, list):
        for index, one in enumerate(cast(list[Any], value)):
            yield from not_finite(one, (*path, index))


def _unique(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise no_json(f"the key {key!r} appears twice")
        seen.add(key)


def _not_finite(constant: str) -> None:
    raise no_json(f"{constant} is not a JSON number")


def _finite(text: str) -> None:
    if math.isinf(float(text)):
        raise no_json(f"the number {text} is out of range")


def _bounded(text: str) -> None:
    if len(text.lstrip("-")) > _MOST_DIGITS:
        raise no_json(f"a number has more than {_MOST_DIGITS:,} digits")


_PLAIN: Final = msgspec.json.Decoder()
# Made once: a decoder costs more than most arguments take to read.
_FINITE: Final = json.JSONDecoder(parse_constant=_not_finite, parse_float=_finite, parse_int=_bounded)
_UNAMBIGUOUS: Final = json.JSONDecoder(
    parse_constant=_not_finite, parse_float=_finite, parse_int=_bounded, object_pairs_hook=_unique
)

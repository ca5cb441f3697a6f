"""JSON that two readers understand differently, which a tool with consequences must not act on."""

import json
import math
from collections.abc import Iterator
from typing import Any, Final, cast

from handrail.errors import ToolArgsParseError
from handrail.schema.faults import no_json

_MOST_DIGITS = 4300
"""What Python converts; the parser that reads the arguments has the same limit."""


def refuse_ambiguous(text: str) -> None:
    """Refuse duplicate keys and numbers that are not finite, anywhere in the text.

    Parsers differ in what they make of both: what was authorised might not be what runs. Read-only tools take the last
    one of two keys.
    """
    _read(text, _UNAMBIGUOUS)


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


# Made once: a decoder costs more than most arguments take to read.
_FINITE: Final = json.JSONDecoder(parse_constant=_not_finite, parse_float=_finite, parse_int=_bounded)
_UNAMBIGUOUS: Final = json.JSONDecoder(
    parse_constant=_not_finite, parse_float=_finite, parse_int=_bounded, object_pairs_hook=_unique
)

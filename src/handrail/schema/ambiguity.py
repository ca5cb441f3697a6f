"""Refusing JSON that two parsers read differently: duplicate keys and numbers that are not finite."""

import json
import math
from collections.abc import Iterable, Iterator
from typing import Any, Final, cast

import msgspec

from handrail.errors import ToolArgsParseError
from handrail.schema.validation_errors import build_json_error

_MAX_DIGITS = 4300
"""Python's own limit; the parser of the arguments has the same one."""
_MAX_QUICK_CHARS: Final = 2_000
"""A shorter text cannot contain a number with too many digits."""


def refuse_ambiguous(text: str) -> None:
    """Refuse duplicate keys and numbers that are not finite, anywhere in the text.

    Parsers disagree about both, so that what was authorised might not be what runs. Read-only tools take the last of
    two equal keys.
    """
    if len(text) > _MAX_QUICK_CHARS or not _is_certainly_unambiguous(text):
        _decode(text, _UNAMBIGUOUS_DECODER)


def _is_certainly_unambiguous(text: str) -> bool:
    """Whether a short text is certainly unambiguous; any other text is decoded by the slower decoder.

    Every string has two quotes. If the decoded value has as many strings as the text has pairs of quotes, no key was
    dropped in favour of an equal one.
    """
    try:
        return text.count('"') == 2 * _count_strings(_QUICK_DECODER.decode(text))
    except (msgspec.DecodeError, UnicodeError, RecursionError, _NotFinite):
        return False


class _NotFinite(Exception):
    """A number is not finite."""


def _count_strings(value: "_Json") -> int:
    """Count the strings in a value, keys included."""
    members: Iterable[_Json] = (value,)
    count = 0
    if isinstance(value, dict):
        members, count = value.values(), len(value)
    elif isinstance(value, list):
        members = value
    for one in members:
        if isinstance(one, str):
            count += 1
        elif isinstance(one, _NESTED):
            count += _count_strings(one)  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(one, float) and not math.isfinite(one):
            raise _NotFinite
    return count


def refuse_infinite(text: str) -> None:
    """Refuse numbers that are not finite, anywhere in the text."""
    _decode(text, _FINITE_DECODER)


def _decode(text: str, decoder: json.JSONDecoder) -> None:
    try:
        decoder.decode(text)
    except ToolArgsParseError:
        raise
    except (ValueError, RecursionError) as error:
        raise build_json_error("nested too deeply" if isinstance(error, RecursionError) else str(error)) from error


def find_non_finite(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The paths of the numbers in a JSON-like value that are not finite."""
    if isinstance(value, float):
        if not math.isfinite(value):
            yield path
    elif isinstance(value, dict):
        for key, one in cast(dict[str, Any], value).items():
            yield from find_non_finite(one, (*path, key))
    elif isinstance(value, list):
        for index, one in enumerate(cast(list[Any], value)):
            yield from find_non_finite(one, (*path, index))


def _refuse_duplicate_keys(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise build_json_error(f"the key {key!r} appears twice")
        seen.add(key)


def _refuse_constant(constant: str) -> None:
    raise build_json_error(f"{constant} is not a JSON number")


def _refuse_infinite_float(text: str) -> None:
    if math.isinf(float(text)):
        raise build_json_error(f"the number {text} is out of range")


def _refuse_long_integer(text: str) -> None:
    if len(text.lstrip("-")) > _MAX_DIGITS:
        raise build_json_error(f"a number has more than {_MAX_DIGITS:,} digits")


_Json = dict[str, Any] | list[Any] | str | float | None
_NESTED: Final = (dict, list)
_QUICK_DECODER: Final = msgspec.json.Decoder()
# Created once: creating a decoder takes longer than decoding most arguments.
_FINITE_DECODER: Final = json.JSONDecoder(
    parse_constant=_refuse_constant, parse_float=_refuse_infinite_float, parse_int=_refuse_long_integer
)
_UNAMBIGUOUS_DECODER: Final = json.JSONDecoder(
    parse_constant=_refuse_constant,
    parse_float=_refuse_infinite_float,
    parse_int=_refuse_long_integer,
    object_pairs_hook=_refuse_duplicate_keys,
)

"""How values are written into paths, queries, headers, cookies and forms."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, cast
from urllib.parse import quote

from handrail.core.text import compact_json
from handrail.errors import InvalidArgumentsError

_RESERVED: Final = ":/?[]@!$'()*,;"
"""What `allowReserved` lets through: not `#`, `&`, `=` and `+`, which would change the query itself."""
_SEPARATORS: Final = {"spaceDelimited": "%20", "pipeDelimited": "%7C", "form": ","}


def format_value(value: Any) -> str:
    """One value as text."""
    return value if isinstance(value, str) else compact_json(value)


def format_path_value(
    argument: str, value: Any, style: str, *, name: str, explode: bool, multi_segment: bool = False
) -> str:
    """A value for a path template."""

    def encode(one: Any) -> str:
        return quote(format_value(one), safe="/" if multi_segment else "")

    prefix, joint = {"label": (".", "." if explode else ","), "matrix": (";", ";" if explode else ",")}.get(
        style, ("", ",")
    )
    label = f"{quote(name, safe='')}=" if style == "matrix" else ""
    if isinstance(value, dict):
        pairs = [(encode(key), encode(member)) for key, member in cast(dict[str, Any], value).items()]
        if explode:
            written = prefix + joint.join(f"{key}={pair}" for key, pair in pairs)
        else:
            written = prefix + label + joint.join(part for pair in pairs for part in pair)
    elif isinstance(value, list):
        parts = [encode(item) for item in cast(list[Any], value)]
        each = label if explode else ""
        written = prefix + (label if not explode else "") + joint.join(each + part for part in parts)
    else:
        written = prefix + label + encode(value)
    segments = written.split("/") if multi_segment else [written]
    if any(segment in ("", ".", "..") for segment in segments):
        # Nothing, or a step upwards, would make this another operation's path.
        raise InvalidArgumentsError(
            f"`{argument}` is part of a path: it cannot be empty, `.` or `..`.", places=[argument]
        )
    return written


def format_query_pairs(
    name: str, value: Any, style: str, *, explode: bool, allow_reserved: bool = False
) -> Iterator[tuple[str, str]]:
    """A value for a query or a form, as names and values that are encoded already."""

    def encode(one: Any) -> str:
        return quote(format_value(one), safe=_RESERVED if allow_reserved else "")

    if style == "deepObject":
        for path, leaf in _iterate_leaves(name, value):
            yield quote(path, safe=""), encode(leaf)
    elif isinstance(value, dict):
        pairs = [(encode(key), encode(member)) for key, member in cast(dict[str, Any], value).items()]
        if explode and style == "form":
            yield from pairs
        elif pairs:
            yield quote(name, safe=""), _SEPARATORS.get(style, ",").join(part for pair in pairs for part in pair)
    elif isinstance(value, list):
        parts = [encode(item) for item in cast(list[Any], value)]
        if explode:
            yield from ((quote(name, safe=""), part) for part in parts)
        elif parts:
            yield quote(name, safe=""), _SEPARATORS.get(style, ",").join(parts)
    else:
        yield quote(name, safe=""), encode(value)


def format_header_value(name: str, value: Any, *, explode: bool) -> str:
    """A value for a header, which a line break must never end."""
    if isinstance(value, dict):
        pairs = cast(dict[str, Any], value).items()
        text = ",".join(
            f"{key}={format_value(pair)}" if explode else f"{key},{format_value(pair)}" for key, pair in pairs
        )
    elif isinstance(value, list):
        text = ",".join(format_value(item) for item in cast(list[Any], value))
    else:
        text = format_value(value)
    if not text.isascii() or not text.isprintable():
        raise InvalidArgumentsError(f"`{name}` is sent as a header: only printable ASCII fits.", places=[name])
    return text


def format_form(fields: Mapping[str, Any], styles: Mapping[str, tuple[str, bool]]) -> str:
    """An `application/x-www-form-urlencoded` body; each field has its style, and whether it is exploded."""
    pairs: list[tuple[str, str]] = []
    for name, value in fields.items():
        style, explode = styles.get(name, ("form", True))
        if name not in styles and isinstance(value, dict):
            value = compact_json(value)  # What OpenAPI says of an object that has no style.
        pairs += format_query_pairs(name, value, style, explode=explode)
    return "&".join(f"{name}={value}" for name, value in pairs)


def _iterate_leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Every value inside a value, each with its path in brackets: `filter[price][min]`, `items[0]`."""
    if isinstance(value, dict):
        for key, member in cast(dict[str, Any], value).items():
            yield from _iterate_leaves(f"{path}[{key}]", member)
    elif isinstance(value, list):
        for index, item in enumerate(cast(list[Any], value)):
            yield from _iterate_leaves(f"{path}[{index}]", item)
    else:
        yield path, "" if value is None else value

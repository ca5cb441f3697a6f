"""Walking and changing the subschemas of a JSON Schema."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

Schema = dict[str, Any]

_MAPS = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_ONES = (
    "items",
    "additionalProperties",
    "not",
    "if",
    "then",
    "else",
    "contains",
    "propertyNames",
    "unevaluatedProperties",
    "unevaluatedItems",
)


def map_children(schema: Mapping[str, Any], change: Callable[[str, Any], Any]) -> Schema:
    """A copy of a schema with `change(name, subschema)` applied to its direct subschemas; the name may be ""."""
    copy: Schema = {}
    for key, value in schema.items():
        if key in _MAPS and isinstance(value, dict):
            copy[key] = {name: change(name, child) for name, child in cast(Schema, value).items()}
        elif key in _LISTS and isinstance(value, list):
            copy[key] = [change("", child) for child in cast(list[Any], value)]
        elif key in _ONES and isinstance(value, dict):
            copy[key] = change("", value)
        else:
            copy[key] = value
    return copy


def iter_subschemas(schema: Mapping[str, Any]) -> Iterator[tuple[str, Schema]]:
    """Every subschema at any depth, with its property name."""
    found: list[tuple[str, Schema]] = []

    def note(name: str, child: Any) -> Any:
        if isinstance(child, dict):
            found.append((name, cast(Schema, child)))
        return cast(Any, child)

    map_children(schema, note)
    for name, child in found:
        yield name, child
        yield from iter_subschemas(child)


def remove_titles(schema: Mapping[str, Any]) -> Schema:
    """A copy without the titles that Pydantic generates from names, which only cost tokens."""

    def clean(name: str, child: Any) -> Any:
        if not isinstance(child, dict):
            return child
        copy = map_children(cast(Schema, child), clean)
        if copy.get("title") in (name, name.replace("_", " ").title()):
            del copy["title"]
        return copy

    copy = map_children(schema, clean)
    copy.pop("title", None)
    return copy

"""The size limits of a provider's strict mode."""

from typing import Any, cast

from msgspec import Struct

from handrail.schema.schema_nodes import NotRepresentable, get_types
from handrail.schema.subschemas import Schema, iter_subschemas, map_children


class SchemaLimits(Struct, frozen=True, kw_only=True):
    """The limits of one schema."""

    properties: int = 5_000
    levels: int = 10
    characters: int = 120_000
    """Characters in the names of properties and definitions, and in fixed values."""
    enum_values: int = 1_000
    long_enum: int = 250
    """An enum with more values than this also has a limit of characters."""
    long_enum_characters: int = 15_000


LIMITS = SchemaLimits()


def check_limits(schema: Schema, limits: SchemaLimits, dialect: str) -> None:
    """Raise `NotRepresentable` for a schema that is too large."""
    every = [schema, *(child for _, child in iter_subschemas(schema))]
    names = [name for node in every for name in cast(Schema, node.get("properties", {}))]
    enums = [cast(list[Any], node.get("enum", [])) for node in every]
    texts = [*names, *cast(Schema, schema.get("$defs", {})), *(value for values in enums for value in values)]
    texts += [node["const"] for node in every if "const" in node]
    long = [_count_characters(values) for values in enums if len(values) > limits.long_enum]
    for what, count, most in (
        ("properties", len(names), limits.properties),
        ("levels", _count_levels(schema, schema, {}), limits.levels),
        ("characters in names and values", _count_characters(texts), limits.characters),
        ("enum values", sum(map(len, enums)), limits.enum_values),
        ("characters in one enum", max(long, default=0), limits.long_enum_characters),
    ):
        if count > most:
            raise NotRepresentable(f"it has {count:,} {what}; {dialect} allows {most:,}")


def _count_characters(values: list[Any]) -> int:
    return sum(len(str(value)) for value in values)


def _count_levels(node: Schema, root: Schema, known: dict[str, int]) -> int:
    """The nesting depth of objects and arrays; a definition counts where it is referred to, a cycle once."""
    if "$ref" in node:
        target = str(node["$ref"]).removeprefix("#/$defs/")
        if target not in known:
            known[target] = 0
            known[target] = _count_levels(cast(Schema, root.get("$defs", {})).get(target, {}), root, known)
        return known[target]
    below = [0]

    def visit(name: str, child: Any) -> Any:
        if isinstance(child, dict):
            below.append(_count_levels(cast(Schema, child), root, known))
        return cast(Any, child)

    map_children({key: value for key, value in node.items() if key != "$defs"}, visit)
    return bool({"object", "array"} & (get_types(node) or frozenset())) + max(below)


def is_recursive(schema: Schema) -> bool:
    """Whether a schema refers to itself."""
    definitions = cast(Schema, schema.get("$defs", {}))
    ahead = {name: _collect_targets(cast(Schema, node)) for name, node in definitions.items()}
    if "#" in _collect_targets(schema):
        return True
    # Remove what refers to nothing that is left; the rest is a cycle.
    while leaves := [name for name, targets in ahead.items() if not targets & ahead.keys()]:
        for name in leaves:
            del ahead[name]
    return bool(ahead)


def _collect_targets(node: Schema) -> set[str]:
    every = [node, *(child for _, child in iter_subschemas(node))]
    return {str(schema["$ref"]).removeprefix("#/$defs/") for schema in every if "$ref" in schema}

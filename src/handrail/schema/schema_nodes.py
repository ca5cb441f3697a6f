"""Reading one node of a JSON Schema: references, unions, types, fixed values."""

from collections.abc import Mapping
from typing import Any, cast

from msgspec import Struct, field

from handrail.core.text import canonical_json
from handrail.schema.subschemas import Schema, map_children

ANNOTATIONS = frozenset(
    {
        "title",
        "examples",
        "example",
        "$schema",
        "$id",
        "$comment",
        "deprecated",
        "readOnly",
        "writeOnly",
        "discriminator",
    }
)
"""Keywords that do not restrict values and that a model does not need."""


class NotRepresentable(Exception):
    """The schema cannot be represented in this dialect; the text is the reason, with the path."""


def rename_definitions(schema: Mapping[str, Any]) -> Schema:
    """The schema with `definitions` renamed to `$defs`."""
    if "definitions" not in schema:
        return dict(schema)

    def rename(node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        copy = map_children(cast(Schema, node), lambda _, child: rename(child))
        if str(copy.get("$ref")).startswith("#/definitions/"):
            copy["$ref"] = str(copy["$ref"]).replace("#/definitions/", "#/$defs/", 1)
        return copy

    root: Schema = rename(dict(schema))
    older = root.pop("definitions")
    return {**root, "$defs": {**older, **root.get("$defs", {})}}


def resolve(node: Any, root: Schema) -> Schema:
    """The node with references followed and an `allOf` of one part merged."""
    for _ in range(20):
        node = merge_all_of(cast(Schema, node))
        target = node.get("$ref")
        if target is None:
            return node
        node = root if target == "#" else find_definition(root, str(target))
    raise NotRepresentable("its references are circular")


def find_definition(root: Schema, target: str) -> Schema:
    """The definition that a local reference names."""
    found = cast(Schema, root.get("$defs", {})).get(target.removeprefix("#/$defs/"))
    if not isinstance(found, dict):
        raise NotRepresentable(f"{target} is not defined")
    return cast(Schema, found)


def merge_all_of(node: Schema) -> Schema:
    """Merge an `allOf` of one part into the node; Pydantic and others write a reference with a description so."""
    if "allOf" not in node:
        return node
    parts = cast(list[Any], node["allOf"])
    rest = {key: value for key, value in node.items() if key != "allOf"}
    if len(parts) != 1 or not isinstance(parts[0], dict):
        raise NotRepresentable("it uses allOf")
    part = cast(Schema, parts[0])
    if clash := sorted((part.keys() & rest.keys()) - ANNOTATIONS - {"description", "default", "type"}):
        raise NotRepresentable(f"it uses allOf beside {', '.join(clash)}")
    return {**part, **rest}


def get_branches(node: Schema) -> list[Any] | None:
    """The branches of a union, or None."""
    found = node.get("anyOf", node.get("oneOf"))
    return cast(list[Any], found) if isinstance(found, list) else None


def get_types(node: Schema) -> frozenset[str] | None:
    """The JSON types of a node, named or implied by its keywords; None if it accepts any."""
    kind = node.get("type")
    if isinstance(kind, str):
        return frozenset({kind})
    if isinstance(kind, list):
        return frozenset(cast(list[str], kind))
    if (values := get_fixed_values(node)) is not None:
        return frozenset(get_json_type(value) for value in values)
    if "properties" in node:
        return frozenset({"object"})
    return frozenset({"array"}) if "items" in node else None


def get_fixed_values(node: Schema) -> list[Any] | None:
    """The values of an `enum` or `const`; None if a node has neither."""
    return [node["const"]] if "const" in node else cast("list[Any] | None", node.get("enum"))


def get_json_type(value: Any) -> str:
    """The JSON type of a value."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def can_be_null(node: Any, root: Schema, seen: set[str] | None = None) -> bool:
    """Whether a schema accepts null; `seen` holds the references that were followed already."""
    if not isinstance(node, dict):
        return node is True
    seen = set[str]() if seen is None else seen
    if target := str(cast(Schema, node).get("$ref", "")):
        if target in seen:
            return False
        seen.add(target)
    node = resolve(node, root)
    if (either := get_branches(node)) is not None:
        return any(can_be_null(branch, root, seen) for branch in either)
    if (values := get_fixed_values(node)) is not None and None not in values:
        return False
    allowed = get_types(node)
    return allowed is None or "null" in allowed


def can_be_omitted(node: Schema, name: str, root: Schema) -> bool:
    """Whether null stands for "omitted" in this property, in a dialect where every property is required."""
    child: Any = node["properties"].get(name)
    if name in node.get("required", []) or not isinstance(child, dict) or can_be_null(cast(Schema, child), root):
        return False
    return not _is_constant_default(cast(Schema, child), root)


def _is_constant_default(child: Schema, root: Schema) -> bool:
    """Whether this is a constant that is its own default, which marks the branch of a union and is always sent."""
    return "default" in child and get_fixed_values(resolve(child, root)) == [child["default"]]


class DisjointCheck(Struct, frozen=True, kw_only=True):
    """Checks that two nodes have no value in common, where every property is sent and null may mean "omitted"."""

    root: Schema
    results: dict[tuple[int, int], tuple[bool, Schema, Schema]] = field(default_factory=dict[Any, Any])
    """Results by the ids of two nodes, and the nodes, so that their ids are not reused."""

    def __call__(self, one: Any, other: Any) -> bool:
        one, other = resolve(one, self.root), resolve(other, self.root)
        pair = (id(one), id(other))
        if pair not in self.results:
            self.results[pair] = (False, one, other)  # the result during the comparison, if the schema is recursive
            self.results[pair] = (self._is_disjoint(one, other), one, other)
        return self.results[pair][0]

    def _is_disjoint(self, one: Schema, other: Schema) -> bool:
        for first, second in ((one, other), (other, one)):
            if (either := get_branches(first)) is not None:
                return all(self(branch, second) for branch in either)
        common = _get_common_types(get_types(one), get_types(other))
        if common is not None and not common:
            return True
        values, others = get_fixed_values(one), get_fixed_values(other)
        if values is not None and others is not None:
            return {canonical_json(value) for value in values}.isdisjoint(canonical_json(value) for value in others)
        return common == frozenset({"object"}) and self._are_objects_disjoint(one, other)

    def _are_objects_disjoint(self, one: Schema, other: Schema) -> bool:
        mine, theirs = cast(Schema, one.get("properties", {})), cast(Schema, other.get("properties", {}))
        if mine.keys() != theirs.keys():
            return True
        return any(
            self(mine[name], theirs[name])
            and not (can_be_omitted(one, name, self.root) and self._can_be_null(other, name))
            and not (can_be_omitted(other, name, self.root) and self._can_be_null(one, name))
            for name in mine
        )

    def _can_be_null(self, node: Schema, name: str) -> bool:
        return can_be_null(node["properties"][name], self.root) or can_be_omitted(node, name, self.root)


def _get_common_types(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    if one is None or other is None:
        return one or other
    return _add_integer(one) & _add_integer(other)


def _add_integer(allowed: frozenset[str]) -> frozenset[str]:
    return allowed | {"integer"} if "number" in allowed else allowed

"""Reading one node of a JSON Schema: references, unions, types."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from handrail.core.text import canonical_json
from handrail.schema.tidy import Schema, map_children

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
"""What says nothing about which values are valid, and nothing that a model needs."""


class NotRepresentable(Exception):
    """The schema cannot be said in this subset; the text is the reason, with the place."""


def with_defs(schema: Mapping[str, Any]) -> Schema:
    """The schema with `definitions` under their present name."""
    if "definitions" not in schema:
        return dict(schema)

    def renamed(node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        copy = map_children(cast(Schema, node), lambda _, child: renamed(child))
        if str(copy.get("$ref")).startswith("#/definitions/"):
            copy["$ref"] = str(copy["$ref"]).replace("#/definitions/", "#/$defs/", 1)
        return copy

    root: Schema = renamed(dict(schema))
    older = root.pop("definitions")
    return {**root, "$defs": {**older, **root.get("$defs", {})}}


def resolved(node: Any, root: Schema) -> Schema:
    """The node that is meant: references followed, an `allOf` of one part merged."""
    for _ in range(20):
        node = merged(cast(Schema, node))
        target = node.get("$ref")
        if target is None:
            return node
        node = root if target == "#" else named(root, str(target))
    raise NotRepresentable("its references go in circles")


def named(root: Schema, target: str) -> Schema:
    """The definition that a local reference names."""
    found = cast(Schema, root.get("$defs", {})).get(target.removeprefix("#/$defs/"))
    if not isinstance(found, dict):
        raise NotRepresentable(f"{target} leads nowhere")
    return cast(Schema, found)


def merged(node: Schema) -> Schema:
    """The node with an `allOf` of one part merged into it, as Pydantic and others decorate a reference."""
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


def branches(node: Schema) -> list[Any] | None:
    """The branches of a union, or None."""
    found = node.get("anyOf", node.get("oneOf"))
    return cast(list[Any], found) if isinstance(found, list) else None


def kinds(node: Schema) -> frozenset[str] | None:
    """The JSON types that a node names, also where its other keywords imply one; None where it takes any."""
    kind = node.get("type")
    if isinstance(kind, str):
        return frozenset({kind})
    if isinstance(kind, list):
        return frozenset(cast(list[str], kind))
    if (values := fixed(node)) is not None:
        return frozenset(kind_of(value) for value in values)
    if "properties" in node:
        return frozenset({"object"})
    return frozenset({"array"}) if "items" in node else None


def fixed(node: Schema) -> list[Any] | None:
    """The only values that a node takes, or None where it is not so."""
    return [node["const"]] if "const" in node else cast("list[Any] | None", node.get("enum"))


def kind_of(value: Any) -> str:
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


def accepts_null(node: Any, root: Schema, seen: set[str] | None = None) -> bool:
    """Whether null fits a schema; `seen` holds the references that were followed already."""
    if not isinstance(node, dict):
        return node is True
    seen = set[str]() if seen is None else seen
    if target := str(cast(Schema, node).get("$ref", "")):
        if target in seen:
            return False
        seen.add(target)
    node = resolved(node, root)
    if (either := branches(node)) is not None:
        return any(accepts_null(branch, root, seen) for branch in either)
    if (values := fixed(node)) is not None and None not in values:
        return False
    allowed = kinds(node)
    return allowed is None or "null" in allowed


def may_be_left_out(node: Schema, name: str, root: Schema) -> bool:
    """Whether null for this property stands for "left out", where every property has to be sent."""
    child: Any = node["properties"].get(name)
    if name in node.get("required", []) or not isinstance(child, dict) or accepts_null(cast(Schema, child), root):
        return False
    return not _is_its_default(cast(Schema, child), root)


def _is_its_default(child: Schema, root: Schema) -> bool:
    """A constant that is its own default, the mark of a union's branch, is always sent."""
    return "default" in child and fixed(resolved(child, root)) == [child["default"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """Whether two nodes have no value in common, where every property is sent and null may stand for "left out"."""

    root: Schema
    known: dict[tuple[int, int], tuple[bool, Schema, Schema]] = field(default_factory=dict[Any, Any])
    """What was found for two nodes, and the nodes, so that their ids stay theirs."""

    def __call__(self, one: Any, other: Any) -> bool:
        one, other = resolved(one, self.root), resolved(other, self.root)
        pair = (id(one), id(other))
        if pair not in self.known:
            self.known[pair] = (False, one, other)  # the answer while it is looked for, where a schema is recursive
            self.known[pair] = (self._look(one, other), one, other)
        return self.known[pair][0]

    def _look(self, one: Schema, other: Schema) -> bool:
        for first, second in ((one, other), (other, one)):
            if (either := branches(first)) is not None:
                return all(self(branch, second) for branch in either)
        common = _common(kinds(one), kinds(other))
        if common is not None and not common:
            return True
        values, others = fixed(one), fixed(other)
        if values is not None and others is not None:
            return {canonical_json(value) for value in values}.isdisjoint(canonical_json(value) for value in others)
        return common == frozenset({"object"}) and self._objects(one, other)

    def _objects(self, one: Schema, other: Schema) -> bool:
        mine, theirs = cast(Schema, one.get("properties", {})), cast(Schema, other.get("properties", {}))
        if mine.keys() != theirs.keys():
            return True
        return any(
            self(mine[name], theirs[name])
            and not (may_be_left_out(one, name, self.root) and self._may_be_null(other, name))
            and not (may_be_left_out(other, name, self.root) and self._may_be_null(one, name))
            for name in mine
        )

    def _may_be_null(self, node: Schema, name: str) -> bool:
        return accepts_null(node["properties"][name], self.root) or may_be_left_out(node, name, self.root)


def _common(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    if one is None or other is None:
        return one or other
    return _with_numbers(one) & _with_numbers(other)


def _with_numbers(allowed: frozenset[str]) -> frozenset[str]:
    return allowed | {"integer"} if "number" in allowed else allowed

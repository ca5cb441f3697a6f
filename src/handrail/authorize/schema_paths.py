"""Finds what a JSON Schema says about a path into the arguments."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from msgspec import Struct

from handrail.schema.schema_nodes import ANNOTATIONS, NotRepresentable, get_branches, rename_definitions, resolve
from handrail.schema.subschemas import Schema


class PathNodes(Struct, frozen=True):
    """The nodes of a schema that describe the value at a path."""

    nodes: tuple[Schema, ...] = ()
    missing: str = ""
    """The first name of the path that there is not."""
    names: tuple[str, ...] = ()
    """The names that there are instead."""
    is_open: bool = False
    """Whether the schema allows a value there without describing it."""


_OPEN = PathNodes(is_open=True)
_BESIDE_REFERENCE = ANNOTATIONS | {"$ref", "$defs", "type", "description", "default"}
_MAX_DEPTH = 40


def find_nodes(schemas: Sequence[Mapping[str, Any]], steps: Sequence[str | int]) -> PathNodes:
    """The nodes at a path in several schemas; a union has one for each of its branches, without the one for null."""
    roots = [rename_definitions(schema) for schema in schemas]
    return _join([_find(root, tuple(steps), root, 0) for root in roots])


def _find(node: Any, steps: tuple[str | int, ...], root: Schema, depth: int) -> PathNodes:
    if not isinstance(node, dict) or depth > _MAX_DEPTH:
        return _OPEN
    if "$ref" in node and node.keys() - _BESIDE_REFERENCE:  # Both say something about the value.
        return _OPEN
    try:
        here = resolve(cast(Schema, node), root)
    except (NotRepresentable, RecursionError):
        return _OPEN
    if (branches := get_branches(here)) is not None:
        every = [branch for branch in branches if branch != {"type": "null"}]
        return _join([_find(branch, steps, root, depth + 1) for branch in every])
    if not steps:
        return PathNodes((here,))
    step, rest = steps[0], steps[1:]
    if isinstance(step, int):
        is_list = here.get("type", "array") == "array" and isinstance(here.get("items"), dict)
        return _find(here["items"], rest, root, depth + 1) if is_list and "prefixItems" not in here else _OPEN
    properties: Any = here.get("properties")
    others: Any = here.get("additionalProperties", False)
    if not isinstance(properties, Mapping):
        return _find(others, rest, root, depth + 1) if isinstance(others, dict) else _OPEN
    known = cast(Mapping[str, Any], properties)
    if step in known:
        return _find(known[step], rest, root, depth + 1)
    if others is not False or "patternProperties" in here:
        return _OPEN
    return PathNodes(missing=step, names=tuple(known))


def _join(found: Sequence[PathNodes]) -> PathNodes:
    return PathNodes(
        nodes=tuple(node for place in found for node in place.nodes),
        missing=next((place.missing for place in found if place.missing), ""),
        names=tuple(name for place in found for name in place.names),
        is_open=any(place.is_open for place in found),
    )

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
_MAX_FOUND = 1_000


def find_nodes(schemas: Sequence[Mapping[str, Any]], steps: Sequence[str | int]) -> PathNodes:
    """The nodes at a path in several schemas; a union has one for each of its branches, without the one for null."""
    roots = [rename_definitions(schema) for schema in schemas]
    return _join([_find(root, tuple(steps), root, 0) for root in roots])


class DeclaredArguments:
    """What the schema of a tool says about its arguments: the names that there are, and what stands under a path."""

    __slots__ = ("_defaults", "_found", "_schema", "names")

    def __init__(self, schema: Mapping[str, Any], *, is_declared: bool = True) -> None:
        properties: Any = schema.get("properties")
        # Without declared properties any argument can be there, under any name.
        is_known = is_declared and isinstance(properties, Mapping)
        self.names = frozenset(cast(Mapping[str, Any], properties)) if is_known else None
        """The arguments that there are; None if there can be any."""
        self._schema = schema
        self._found: dict[tuple[str | int, ...], PathNodes] = {}
        self._defaults: dict[tuple[str | int, ...], list[Any]] = {}

    def has(self, name: object) -> bool:
        """Whether the tool can have this argument."""
        return self.names is None or name in self.names

    def find(self, steps: tuple[str | int, ...]) -> PathNodes:
        """The nodes at a path; which element of a list it is makes no difference."""
        steps = tuple(0 if isinstance(step, int) else step for step in steps)
        found = self._found.get(steps)
        if found is None:
            if len(self._found) >= _MAX_FOUND:  # A model can make up any number of names.
                self._found.clear()
            found = self._found[steps] = find_nodes([self._schema], steps)
        return found

    def find_defaults(self, steps: tuple[str | int, ...]) -> list[Any]:
        """The defaults of the value at a path; several if it is in a union."""
        if not steps or not isinstance(name := steps[-1], str):
            return []
        steps = tuple(0 if isinstance(step, int) else step for step in steps)
        found = self._defaults.get(steps)
        if found is None:
            if len(self._defaults) >= _MAX_FOUND:
                self._defaults.clear()
            parents: list[Any] = [node.get("properties") for node in self.find(steps[:-1]).nodes]
            fields: list[Any] = [parent[name] for parent in parents if isinstance(parent, dict) and name in parent]
            found = self._defaults[steps] = [
                field["default"] for field in fields if isinstance(field, dict) and "default" in field
            ]
        return found

    def has_field(self, steps: tuple[str | int, ...], name: object) -> bool:
        """Whether the object at a path declares a field of this name."""
        declared = (node.get("properties") for node in self.find(steps).nodes)
        return any(isinstance(fields, Mapping) and name in fields for fields in declared)


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

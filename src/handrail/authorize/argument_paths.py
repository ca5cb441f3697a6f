"""Paths into arguments: `to.country`, `items[0].price`, `flights[].date`; what stands there, by value and by schema."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

from msgspec import Struct

from handrail.core.lazy_loading import LazyPattern
from handrail.errors import ConfigError
from handrail.schema.schema_nodes import (
    ANNOTATIONS,
    NotRepresentable,
    get_branches,
    get_types,
    rename_definitions,
    resolve,
)
from handrail.schema.subschemas import Schema
from handrail.schema.validation_errors import format_path

ABSENT: Final = object()
"""There is nothing at the path."""
EVERY: Final = -1
"""The step to every element of a list; no index of a path is negative."""

PathSteps: TypeAlias = tuple[str | int, ...]

_PATH: Final = LazyPattern(r"[^.\[\]]+(\[\d*\]|\.[^.\[\]]+)*")
_STEP: Final = LazyPattern(r"(\[)(\d*)\]|([^.\[\]]+)")


def parse_path(path: object) -> PathSteps:
    """The steps of a path; raises `ConfigError`."""
    if not isinstance(path, str) or not _PATH.compiled.fullmatch(path):
        raise ConfigError(
            f"{path!r} is not a path into the arguments; write it like `items[0].price`, or `items[].price` for all."
        )
    return tuple(
        (int(index) if index else EVERY) if bracket else name for bracket, index, name in _STEP.compiled.findall(path)
    )


def write_path(steps: Sequence[str | int]) -> str:
    """The path as it is written."""
    return format_path(["[]" if step == EVERY else step for step in steps]).replace(".[]", "[]")


def look_up(value: Any, steps: PathSteps) -> Any:
    """The value at a path without `[]`; `ABSENT` if there is none."""
    for step in steps:
        kind = list if isinstance(step, int) else Mapping
        if not isinstance(value, kind):
            return ABSENT
        try:
            value = cast(Any, value)[step]
        except (KeyError, IndexError):
            return ABSENT
    return value


def look_up_all(value: Any, steps: PathSteps) -> Iterator[tuple[PathSteps, Any]]:
    """Yield the values at a path with `[]`, each with its own path; nothing for an empty list."""
    if EVERY not in steps:
        yield steps, look_up(value, steps)
        return
    place = steps.index(EVERY)
    before, after = steps[:place], steps[place + 1 :]
    found = look_up(value, before)
    if not isinstance(found, list):
        yield steps, ABSENT
        return
    for number, element in enumerate(cast(list[Any], found)):
        for inner, leaf in look_up_all(element, after):
            yield (*before, number, *inner), leaf


def is_missing(value: Any, steps: PathSteps) -> bool:
    """Whether a path ends at something that is not there, or null; not at a value of another kind."""
    for step in steps:
        if value is None:
            return True
        if step == EVERY:
            return isinstance(value, list) and not value
        kind = list if isinstance(step, int) else Mapping
        if not isinstance(value, kind):
            return False
        try:
            value = cast(Any, value)[step]
        except (KeyError, IndexError):
            return True
    return value is None


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
_SCALARS = frozenset({"string", "number", "integer", "boolean", "null"})
_NO_OBJECT = _SCALARS | {"array"}
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
    kinds = get_types(here)
    if kinds is not None and (kinds <= _SCALARS or (isinstance(step, str) and kinds <= _NO_OBJECT)):
        return PathNodes(missing=str(step))
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

"""The sources that `from` names: `customer`, `application`, `operator`, `tool:SELECTOR`, `tool:SELECTOR.field`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

from handrail.authorize.schema_paths import find_nodes
from handrail.core.provenance_records import FieldPath, SourceKind, SourceTool, ValueSource
from handrail.core.selectors import is_name, parse_selector
from handrail.core.suggestions import suggest
from handrail.core.tool import Tool
from handrail.errors import ConfigError
from handrail.schema.schema_nodes import rename_definitions

_PEOPLE: Final[tuple[SourceKind, ...]] = ("customer", "application", "operator")
_MAX_LISTS: Final = 10
_SCALARS: Final = ("string", "integer", "number", "boolean", "null")
_EXPECTED: Final = "customer, application, operator, tool:NAME, tool:NAME.field"


def parse_sources(operand: Any) -> tuple[ValueSource, ...]:
    """The sources of a `from`; raises `ConfigError`."""
    given = [operand] if isinstance(operand, str) else operand
    if not isinstance(given, list | tuple) or not given:
        raise ConfigError(f"from must be a list of sources, got {operand!r}; it takes: {_EXPECTED}.")
    return tuple(_parse_source(text) for text in cast(Sequence[Any], given))


def _parse_source(text: Any) -> ValueSource:
    if isinstance(text, str):
        for kind in _PEOPLE:
            if text == kind:
                return ValueSource(text, kind)
        steps = text.removeprefix("tool:").split(".")
        if text.startswith("tool:") and all(step and step == step.strip() for step in steps):
            return ValueSource(text, "tool", _build_find_path(text))
    near = suggest(text, _PEOPLE) if isinstance(text, str) else "."
    raise ConfigError(f"unknown source {text!r} in from{near} It takes: {_EXPECTED}.")


def _split_source(text: str) -> Iterator[tuple[str, FieldPath]]:
    """Yield every way to read `tool:a.b`: the tool `a.b`, then the field b of the tool `a`."""
    steps = text.removeprefix("tool:").split(".")
    for length in range(len(steps), 0, -1):
        yield ".".join(steps[:length]), tuple(steps[length:])


def _build_find_path(text: str) -> Any:
    readings = [(parse_selector(selector), path) for selector, path in _split_source(text)]

    def find_path(tool: SourceTool) -> FieldPath | None:
        for selects, path in readings:
            if selects(cast(Any, tool)):
                return path
        return None

    return find_path


def to_source_tool(tool: Tool[..., Any], *, reads_more: bool = False) -> SourceTool:
    """What a source sees of a tool."""
    return SourceTool(tool.name, tool.source, tool.tags, reads_more)


def find_source_problems(source: ValueSource, pool: Mapping[str, Tool[..., Any]], *, are_all: bool) -> Iterator[str]:
    """Why no value can ever come from a source: no such tool, or no such field in what the tool returns."""
    if source.kind != "tool":
        return
    paths = [(tool, path) for tool in pool.values() if (path := source.find_path(to_source_tool(tool))) is not None]
    if not paths:
        if are_all:
            name = next((selector for selector, _ in reversed(list(_split_source(source.text)))), "")
            hint = suggest(name, pool) if is_name(name) else "."
            yield f"unknown tool {name!r} in the source {source.text!r}{hint}"
        return
    missing = [find_missing_field(tool.output_schema, path) for tool, path in paths]
    if all(missing):
        field, names = cast(tuple[str, tuple[str, ...]], missing[0])
        tool = paths[0][0].name
        hint = suggest(field, names)
        yield f"the output of {tool!r} has no field {field!r}, which the source {source.text!r} names{hint}"


def find_missing_field(schema: Mapping[str, Any] | None, path: FieldPath) -> tuple[str, tuple[str, ...]] | None:
    """The first name of a field that the output of a tool does not have, and those that it has; None if it may."""
    if not schema:
        return None
    definitions = rename_definitions(schema).get("$defs", {})
    found = find_nodes([schema], ())
    for step in path:
        for _ in range(_MAX_LISTS):  # Each element of a list has the fields.
            if found.is_open or not found.nodes or any(node.get("type") != "array" for node in found.nodes):
                break
            found = find_nodes([{**node, "$defs": definitions} for node in found.nodes], (0,))
        if found.is_open or not found.nodes:
            return None
        if all(node.get("type") in _SCALARS for node in found.nodes):
            return step, ()
        found = find_nodes([{**node, "$defs": definitions} for node in found.nodes], (step,))
        if not found.is_open and not found.nodes:
            return step, found.names
    return None

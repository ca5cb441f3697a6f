"""The condition `from`: whether a value, with everything in it, comes from the sources that a rule names."""

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

from msgspec import Struct

from handrail.authorize.argument_paths import (
    ABSENT,
    DeclaredArguments,
    PathSteps,
    find_nodes,
    is_missing,
    look_up_all,
    write_path,
)
from handrail.core.context import ToolContext
from handrail.core.exact_words import ExactNumber, list_leaves, to_number
from handrail.core.provenance import Provenance
from handrail.core.provenance_records import FieldPath, SourceKind, SourceTool, ValueRecord, ValueSource
from handrail.core.selectors import is_name, parse_selector
from handrail.core.text import escape_invisible, normalize_unicode, suggest
from handrail.core.tool import Tool
from handrail.errors import ConfigError, shorten
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


_MAX_DEPTH: Final = 60
_MAX_LEAVES: Final = 20_000
_MAX_SHOWN: Final = 20
"""How many values of one argument are described."""
_MAX_CHARS: Final = 2_000
"""Characters of an escaped value."""
_UNSEEN: Final = frozenset({"Cc", "Cf"})
_UNKNOWN: Final = object()
"""A value that no source can have: NaN, or what is nested too deeply."""


class ValueOrigin(Struct, frozen=True, kw_only=True):
    """Where one value of a call comes from, compared with what a rule wants."""

    path: str
    argument: str
    """The argument that the path leads into."""
    wanted: tuple[str, ...]
    is_from: bool | None
    """Whether it comes from one of those; None if nobody can tell."""
    value: Any
    seen: ValueRecord | None = None
    """Where it was first seen."""
    has_provenance: bool = True

    @property
    def is_unsaid(self) -> bool:
        """Whether the customer should have said it, and did not, or nobody can tell."""
        return not self.is_from and "customer" in self.wanted

    def describe(self, *, with_value: bool = False) -> str:
        """A sentence for whoever decides. Without the value it has kinds, names of tools and ids of calls only."""
        wanted = " or ".join(self.wanted)
        if self.is_from:
            return f"from {wanted}"
        if not self.has_provenance:
            return f"nobody knows whether it is from {wanted}: this conversation has no provenance"
        text = f"not from {wanted}" if self.is_from is False else f"not known to be from {wanted}"
        text += f"; {_describe_record(self.seen)}"
        if with_value and isinstance(self.value, str) and _needs_escape(self.value):
            escaped = escape_invisible(ascii(self.value))
            text += f"{_WITH_VALUE}{shorten(escaped, _MAX_CHARS)}"
        return text


_WITH_VALUE: Final = "; written with escapes it is "


def remove_values(seen: Mapping[str, str]) -> dict[str, str]:
    """What `ValueOrigin.describe` says of each path, without the values."""
    return {path: text.partition(_WITH_VALUE)[0] for path, text in seen.items()}


def _describe_record(record: ValueRecord | None) -> str:
    if record is None:
        return "not seen before in this conversation"
    if record.tool is not None:
        return f"first seen in the result of {record.tool.name} ({record.call_id})"
    place = {
        "customer": "the customer's own words",
        "application": "what the application knows",
        "quoted": "a text that the customer pasted",
    }
    return f"first seen in {place[record.kind]}"


def _needs_escape(value: str) -> bool:
    return not value.isascii() or not value.isprintable() or value != " ".join(value.split())


class OriginTest:
    """One `from` of a condition, compiled once."""

    __slots__ = ("_name", "sources", "steps")

    def __init__(self, steps: PathSteps, sources: tuple[ValueSource, ...]) -> None:
        self.steps = steps
        self.sources = sources
        self._name = steps[0] if len(steps) == 1 and isinstance(steps[0], str) else None

    def evaluate(
        self, arguments: Mapping[str, Any], declared: DeclaredArguments | None, context: ToolContext[Any] | None
    ) -> bool | None:
        """Whether the argument comes from the sources; None if nobody can tell.

        What is absent, null, empty or the schema's default has no origin, and holds.
        """
        provenance, turn = _get_provenance(context)
        if self._name is not None and provenance is not None:  # The path of most calls.
            value = arguments.get(self._name)
            if type(value) is str and value and provenance.is_from(value, self.sources, turn):
                return True
        if is_missing(arguments, self.steps):
            return declared is None or declared.has(self.steps[0]) or self.steps[0] in arguments
        is_certain = True
        for _, value in self._list_values(arguments, declared):
            outcome = self._check(value, provenance, turn)
            if outcome is False and isinstance(value, str) and provenance is not None:
                # A restriction is not escaped by a character that nobody sees.
                loose = _loosen(value)
                outcome = None if loose != value and provenance.is_from(loose, self.sources, turn) else False
            if outcome is False:
                return False
            is_certain = is_certain and outcome is True
        return True if is_certain else None

    def _check(self, value: Any, provenance: Provenance | None, turn: int) -> bool | None:
        if provenance is None or value is ABSENT:
            return None
        return False if value is _UNKNOWN else provenance.is_from(value, self.sources, turn)

    def _list_values(
        self, arguments: Mapping[str, Any], declared: DeclaredArguments | None
    ) -> Iterator[tuple[PathSteps, Any]]:
        """Yield the values that need a source: strings, numbers, and names of fields that the schema does not have.

        `ABSENT` stands for a value of another kind than the path expects.
        """
        count = 0
        for steps, found in look_up_all(arguments, self.steps):
            stack: list[tuple[PathSteps, Any, bool]] = [(steps, found, False)]
            while stack:
                place, value, is_name = stack.pop()
                count += 1
                if count > _MAX_LEAVES or len(place) - len(steps) > _MAX_DEPTH:
                    yield place, _UNKNOWN
                    return
                if is_name:
                    yield place, value
                elif value is ABSENT:
                    if not is_missing(arguments, place):
                        yield place, ABSENT
                elif value is None or _is_default(place, value, declared):
                    continue
                elif isinstance(value, str):
                    if value:
                        yield place, value
                elif isinstance(value, Mapping):
                    for name, child in reversed(list(cast(Mapping[Any, Any], value).items())):
                        stack.append(((*place, name), child, False))
                        if declared is None or not declared.has_field(place, name):
                            stack.append(((*place, name), str(name), True))
                elif isinstance(value, list | tuple):
                    elements = list(enumerate(cast(list[Any], value)))
                    stack.extend(((*place, number), element, False) for number, element in reversed(elements))
                else:
                    number = to_number(value)
                    yield place, _UNKNOWN if number is None else number

    def describe(
        self, arguments: Mapping[str, Any], declared: DeclaredArguments | None, context: ToolContext[Any] | None
    ) -> Iterator[ValueOrigin]:
        """Yield where the values come from: one line if all of them are fine, else one for each that is not."""
        provenance, turn = _get_provenance(context)
        wanted = tuple(source.text for source in self.sources)
        count = shown = 0
        for place, value in self._list_values(arguments, declared):
            count += 1
            outcome = self._check(value, provenance, turn)
            if outcome is True:
                continue
            if shown >= _MAX_SHOWN:
                break
            shown += 1
            is_plain = value is not _UNKNOWN and value is not ABSENT
            yield ValueOrigin(
                path=write_path(place),
                argument=str(place[0]),
                wanted=wanted,
                is_from=outcome,
                value=value if is_plain else None,
                seen=provenance.find_first(value) if provenance is not None and is_plain else None,
                has_provenance=provenance is not None,
            )
        if count and not shown:
            path, argument = write_path(self.steps), str(self.steps[0])
            yield ValueOrigin(path=path, argument=argument, wanted=wanted, is_from=True, value=None)


def _get_provenance(context: ToolContext[Any] | None) -> tuple[Provenance | None, int]:
    """What is known about the origins of this conversation's values, never that of another one; and its turn."""
    if context is None:
        return None, 0
    provenance = context.provenance
    is_own = provenance is not None and provenance.session_id in (None, context.session_id)
    return provenance if is_own else None, context.turn


def _is_default(place: PathSteps, value: Any, declared: DeclaredArguments | None) -> bool:
    if declared is None:
        return False
    return any(type(default) is type(value) and default == value for default in declared.find_defaults(place))


def _loosen(value: str) -> str:
    """A text in its NFKC form, without characters that are not seen and without white space around it."""
    normalized = normalize_unicode(value)
    return "".join(char for char in normalized if char.isspace() or unicodedata.category(char) not in _UNSEEN).strip()


def list_changed_values(before: Mapping[str, Any], after: Mapping[str, Any]) -> set[str | ExactNumber]:
    """The strings and numbers of changed arguments that the arguments before did not have."""
    return set(list_leaves(dict(after))) - set(list_leaves(dict(before)))

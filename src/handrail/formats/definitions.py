"""The definitions of a pool, which every wire format builds in the same way, and the checks of a tool choice."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, Literal, cast, get_args

from msgspec import Struct, structs, to_builtins
from typing_extensions import TypeVar

from handrail.core.tool import Tool
from handrail.core.values import ToolCall
from handrail.errors import ConfigError, UnsupportedToolError, shorten
from handrail.formats.names import ToolNames

T = TypeVar("T", default=dict[str, Any])
ToolChoiceMode = Literal["auto", "none", "required"]
_NO_DESCRIPTION = "has no description: the model sees only its name and its arguments; write a docstring"


class Diagnostic(Struct, frozen=True, kw_only=True):
    """Something that a developer should know about one tool's definition."""

    tool: str
    text: str


class RenderedTool(Struct, frozen=True, kw_only=True):
    """One tool, rendered for one provider."""

    name: str
    """The name that the provider knows."""
    definition: dict[str, Any]
    decode_arguments: Callable[[str], str] | None = None
    """From the JSON text that the model sends to text that fits the tool's own schema; None where they are the same."""
    non_strict_definition: dict[str, Any] | None = None
    """The definition without strict mode, for a request whose limit of strict tools is used up."""
    notes: tuple[str, ...] = ()


class Definitions(list[T], Generic[T]):
    """Tool definitions to send, and what is needed to decode the calls that come back.

    It is a list, so that every SDK takes it as it is. A tool that a provider would refuse is in `skipped`, and is not
    sent.
    """

    names: ToolNames
    """The names that the provider knows, to decode its calls."""
    skipped: tuple[Diagnostic, ...]
    notes: tuple[Diagnostic, ...]
    """What was changed: names, strictness, constraints that are only checked locally."""

    def __init__(
        self,
        definitions: Iterable[T] = (),
        *,
        rendered: Mapping[str, tuple[str, RenderedTool]] | None = None,
        skipped: Sequence[Diagnostic] = (),
        notes: Sequence[Diagnostic] = (),
    ) -> None:
        super().__init__(definitions)
        self._rendered = rendered or {}
        self.names = ToolNames({wire: (own, tool.decode_arguments) for wire, (own, tool) in self._rendered.items()})
        self.skipped = tuple(skipped)
        self.notes = tuple(notes)

    def decode(self, call: ToolCall) -> ToolCall:
        """A call under the tool's own name, with arguments that fit the tool's own schema."""
        return self.names.decode(call)

    def wire_name(self, name: str) -> str:
        """The provider's name of a tool."""
        return self.names.get_wire_name(name)

    def get_rendered(self, wire_name: str) -> tuple[str, RenderedTool]:
        """The tool's own name and its rendering, by the name that the provider knows."""
        return self._rendered[wire_name]

    def wrap_in(self, entry: Any) -> "Definitions[Any]":
        """These definitions in a single list entry, for an API that takes one; an empty list without an entry."""
        return self._copy_with([entry] if entry else [])

    def copy_for_caller(self) -> "Definitions[T]":
        """A copy that the caller may change, such as to add a cache mark."""
        return self._copy_with(map(to_builtins, self))

    def _copy_with(self, definitions: Iterable[Any]) -> "Definitions[Any]":
        copy: Definitions[Any] = Definitions(definitions, skipped=self.skipped, notes=self.notes)
        copy._rendered, copy.names = self._rendered, self.names
        return copy


def build_definitions(
    pool: Iterable[Tool[..., Any]],
    *,
    dialect: str,
    render: Callable[[Tool[..., Any]], RenderedTool],
    max_tools: int | None = None,
) -> Definitions[Any]:
    """Build the definitions of a pool. Each tool is rendered once per dialect, and keeps the rendering."""
    definitions: list[dict[str, Any]] = []
    by_name: dict[str, tuple[str, RenderedTool]] = {}
    skipped: list[Diagnostic] = []
    notes: list[Diagnostic] = []
    for tool in pool:
        found = _render_once(tool, dialect, render)
        if not isinstance(found, RenderedTool):
            skipped.append(found)
        elif found.name in by_name:
            other = by_name[found.name][0]
            skipped.append(Diagnostic(tool=tool.name, text=f"`{other}` already has the name `{found.name}` there"))
        elif max_tools is not None and len(definitions) == max_tools:
            skipped.append(Diagnostic(tool=tool.name, text=f"a request takes at most {max_tools} tools"))
        else:
            by_name[found.name] = (tool.name, found)
            definitions.append(to_builtins(found.definition))  # Whoever changes his copy does not change the tool's.
            if found.notes:
                notes.extend(Diagnostic(tool=tool.name, text=text) for text in found.notes)
    return Definitions(definitions, rendered=by_name, skipped=skipped, notes=notes)


def _render_once(
    tool: Tool[..., Any], dialect: str, render: Callable[[Tool[..., Any]], RenderedTool]
) -> RenderedTool | Diagnostic:
    if not isinstance(tool, Tool):  # pyright: ignore[reportUnnecessaryIsInstance]  # the pool is the caller's
        raise ConfigError(f"pool must contain Tool objects, got {tool!r}. Use as_tool() or a ToolRegistry.")
    known = tool.wire.get(dialect)
    if known is None:
        try:
            found = render(tool)
            known = structs.replace(
                found,
                definition=_copy_json(found.definition),
                non_strict_definition=_copy_json(found.non_strict_definition),
                notes=found.notes if tool.description.strip() else (*found.notes, _NO_DESCRIPTION),
            )
        except UnsupportedToolError as reason:
            known = Diagnostic(tool=tool.name, text=str(reason))
        except (ValueError, RecursionError) as error:  # From the schema, or from the examples.
            known = Diagnostic(tool=tool.name, text=f"it cannot be written as JSON: {shorten(str(error), 200)}")
        tool.wire[dialect] = known
    return known


def _copy_json(value: Any) -> Any:
    """A copy of a JSON value in plain dicts and lists; raises `ValueError` for what JSON cannot hold."""
    match value:
        case None | bool() | int():
            return value
        case str():
            value.encode()  # A UnicodeEncodeError is a ValueError.
            return value
        case float() if math.isfinite(value):
            return value
        case Mapping():
            return {_check_key(name): _copy_json(member) for name, member in cast(Mapping[Any, Any], value).items()}
        case list() | tuple():
            return [_copy_json(item) for item in cast(list[Any], value)]
        case _:
            raise ValueError(f"{value!r} is not JSON")


def _check_key(name: Any) -> str:
    if not isinstance(name, str):
        raise ValueError(f"the key {name!r} is not a text")
    name.encode()
    return name


class CheckedToolChoice(Struct, frozen=True, kw_only=True):
    """What a caller allows the model to do, with the names that the provider knows."""

    mode: ToolChoiceMode
    tool: str | None
    allowed: tuple[str, ...]


def check_tool_choice(
    mode: str, tool: str | None, allowed: Sequence[str], definitions: Sequence[Any] | None
) -> CheckedToolChoice:
    """Check a choice before a provider has to refuse it."""
    if mode not in get_args(ToolChoiceMode):
        raise ConfigError(
            f"A choice is auto, none or required, not {mode!r}. For one tool, write tool_choice(tool={mode!r})."
        )
    if isinstance(allowed, str):
        raise ConfigError(f"allowed is a list of names, not one text: [{allowed!r}].")
    if tool is not None and (mode != "auto" or allowed):
        raise ConfigError("tool_choice(tool=…) already says everything; leave mode and allowed out.")
    names = [*allowed] if tool is None else [tool]
    for name in names:
        if not isinstance(name, str) or not name:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"A choice names a tool by its name, not by {name!r}.")
    if isinstance(definitions, Definitions):
        names = [_find_wire_name(name, definitions) for name in names]
        if mode == "required" and not definitions:
            raise ConfigError("A choice cannot be required in a request without tools.")
    one = names.pop() if tool is not None else None
    return CheckedToolChoice(mode=cast(ToolChoiceMode, mode), tool=one, allowed=tuple(names))


def _find_wire_name(name: str, definitions: Definitions[Any]) -> str:
    if name not in definitions.names:
        raise ConfigError(f"unknown tool {name!r} in the tool choice; this request has: {definitions.names}.")
    return definitions.names.get_wire_name(name)

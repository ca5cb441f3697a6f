"""What every wire format does alike: one definition per tool, bad ones set aside, and the way back."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Generic, Literal, cast, get_args

from msgspec import Struct, structs
from typing_extensions import TypeVar

from handrail.core.tool import Tool
from handrail.core.values import ToolCall
from handrail.errors import ConfigError, shorten
from handrail.formats.frozen import freeze

T = TypeVar("T", default=dict[str, Any])
Mode = Literal["auto", "none", "required"]


class Diagnostic(Struct, frozen=True, kw_only=True):
    """Something that a developer should know about one tool's definition."""

    tool: str
    text: str


class Wired(Struct, frozen=True, kw_only=True):
    """One tool as one provider gets it."""

    name: str
    """The name that this provider sees."""
    definition: dict[str, Any]
    decode: Callable[[str], str] | None = None
    """The model's arguments back to what the tool accepts."""
    loose: dict[str, Any] | None = None
    """The definition without strictness, for a request that has no more room for it."""
    notes: tuple[str, ...] = ()


class SkippedTool(Exception):
    """This tool cannot go out to this provider; the text is the reason."""


class Definitions(list[T], Generic[T]):
    """Tool definitions to send, and what is needed to read the answer.

    It is a list, so that every SDK takes it as it is. A tool that a provider would refuse is in `skipped`, and the
    request goes out without it.
    """

    skipped: tuple[Diagnostic, ...]
    notes: tuple[Diagnostic, ...]
    """What was changed on the way: names, strictness, constraints that are only checked locally."""

    def __init__(
        self,
        definitions: Iterable[T] = (),
        *,
        wired: Mapping[str, tuple[str, Wired]] | None = None,
        skipped: Sequence[Diagnostic] = (),
        notes: Sequence[Diagnostic] = (),
    ) -> None:
        super().__init__(definitions)
        self._wired = wired or {}
        self._names = {tool: name for name, (tool, _) in self._wired.items()}
        self.skipped = tuple(skipped)
        self.notes = tuple(notes)

    def decode(self, call: ToolCall) -> ToolCall:
        """A call in the provider's terms, in the tool's own."""
        found = self._wired.get(call.name)
        if found is None:
            return call
        name, wired = found
        if wired.decode is None:
            return call if name == call.name else structs.replace(call, name=name)
        return structs.replace(call, name=name, arguments_json=wired.decode(call.arguments_json))

    def wire_name(self, name: str) -> str:
        """What the provider calls the tool of this name."""
        return self._names.get(name, name)

    def has(self, name: str) -> bool:
        """Whether the tool of this name goes out."""
        return name in self._names

    def behind(self, wire_name: str) -> tuple[str, Wired]:
        """The tool's own name, and what was worked out for it, by the name that the provider knows."""
        return self._wired[wire_name]

    def listed(self) -> str:
        """The names of the tools that go out, for an error message."""
        return ", ".join(self._names) or "none"

    def gathered(self, entry: Any) -> "Definitions[Any]":
        """These definitions inside one entry, for an API that wants them so; none without an entry."""
        return self._like([entry] if entry else [])

    def fresh(self) -> "Definitions[T]":
        """A copy for one more caller: it can be changed (a cache mark, say), and the schemas in it are shared and
        cannot.
        """
        return self._like(map(_own, self))

    def _like(self, definitions: Iterable[Any]) -> "Definitions[Any]":
        copy: Definitions[Any] = Definitions(definitions, skipped=self.skipped, notes=self.notes)
        copy._wired, copy._names = self._wired, self._names
        return copy


def _own(definition: Any) -> Any:
    """A definition of the caller's own, around the schema that all callers share."""
    if "function" in definition:
        return {**definition, "function": {**definition["function"]}}
    if "function_declarations" in definition:
        return {"function_declarations": [{**one} for one in definition["function_declarations"]]}
    return {**definition}


def assemble(
    pool: Iterable[Tool[..., Any]], *, dialect: str, wire: Callable[[Tool[..., Any]], Wired], most: int | None = None
) -> Definitions[Any]:
    """The definitions of a pool. Each tool is worked out once per dialect and remembered on the tool."""
    definitions: list[dict[str, Any]] = []
    by_name: dict[str, tuple[str, Wired]] = {}
    aside: list[Diagnostic] = []
    notes: list[Diagnostic] = []
    for tool in pool:
        found = _worked_out(tool, dialect, wire)
        if not isinstance(found, Wired):
            aside.append(found)
        elif found.name in by_name:
            other = by_name[found.name][0]
            aside.append(Diagnostic(tool=tool.name, text=f"`{other}` already has the name `{found.name}` there"))
        elif most is not None and len(definitions) == most:
            aside.append(Diagnostic(tool=tool.name, text=f"a request takes at most {most} tools"))
        else:
            by_name[found.name] = (tool.name, found)
            definitions.append(_own(found.definition))
            if found.notes:
                notes.extend(Diagnostic(tool=tool.name, text=text) for text in found.notes)
    return Definitions(definitions, wired=by_name, skipped=aside, notes=notes)


def _worked_out(tool: Tool[..., Any], dialect: str, wire: Callable[[Tool[..., Any]], Wired]) -> Wired | Diagnostic:
    if not isinstance(tool, Tool):  # pyright: ignore[reportUnnecessaryIsInstance]  # the pool is the caller's
        raise ConfigError(f"A pool holds tools, not {tool!r}. Use as_tool() or a ToolRegistry.")
    known = tool.wire.get(dialect)
    if known is None:
        try:
            found = wire(tool)
            known = structs.replace(found, definition=freeze(found.definition), loose=freeze(found.loose))
        except SkippedTool as reason:
            known = Diagnostic(tool=tool.name, text=str(reason))
        except (ValueError, RecursionError) as error:  # From the schema, or from the examples.
            known = Diagnostic(tool=tool.name, text=f"it cannot be written as JSON: {shorten(str(error), 200)}")
        tool.wire[dialect] = known
    return known


def fitted_name(name: str, *, allowed: re.Pattern[str], limit: int) -> tuple[str, tuple[str, ...]]:
    """A name that the provider accepts, and a note if it had to be changed. Equal names give equal names."""
    if len(name) <= limit and allowed.fullmatch(name):
        return name, ()
    mark = sha256(name.encode()).hexdigest()[:8]
    readable = re.sub(r"[^A-Za-z0-9_]", "_", name)[: limit - len(mark) - 2]
    if not re.match(r"[A-Za-z_]", readable):
        readable = f"_{readable}"
    fitted = f"{readable}_{mark}"
    return fitted, (f"goes out as `{fitted}`, because the name `{name}` is not accepted",)


def decoded(calls: Iterable[ToolCall], definitions: Sequence[Any] | None) -> list[ToolCall]:
    """The calls in the tools' own terms, where the definitions that were sent are at hand."""
    if isinstance(definitions, Definitions):
        return [definitions.decode(call) for call in calls]
    return list(calls)


class Wanted(Struct, frozen=True, kw_only=True):
    """What a caller allows the model to do, with the names that the provider knows."""

    mode: Mode
    tool: str | None
    allowed: tuple[str, ...]


def wanted(mode: str, tool: str | None, allowed: Sequence[str], definitions: Sequence[Any] | None) -> Wanted:
    """Check a choice before a provider has to refuse it."""
    if mode not in get_args(Mode):
        raise ConfigError(
            f"A choice is auto, none or required, not {mode!r}. For one tool, write choice(tool={mode!r})."
        )
    if isinstance(allowed, str):
        raise ConfigError(f"allowed is a list of names, not one text: [{allowed!r}].")
    if tool is not None and (mode != "auto" or allowed):
        raise ConfigError("choice(tool=…) already says everything; leave mode and allowed out.")
    names = [*allowed] if tool is None else [tool]
    for name in names:
        if not isinstance(name, str) or not name:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"A choice names a tool by its name, not by {name!r}.")
    if isinstance(definitions, Definitions):
        names = [_sent(name, definitions) for name in names]
        if mode == "required" and not definitions:
            raise ConfigError("A choice cannot be required in a request without tools.")
    one = names.pop() if tool is not None else None
    return Wanted(mode=cast(Mode, mode), tool=one, allowed=tuple(names))


def _sent(name: str, definitions: Definitions[Any]) -> str:
    if not definitions.has(name):
        listed = definitions.listed()
        raise ConfigError(f"`{name}` is not among the definitions of this request; they have: {listed}.")
    return definitions.wire_name(name)

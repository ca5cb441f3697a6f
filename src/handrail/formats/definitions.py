"""What every wire format does alike: one definition per tool, bad ones set aside, and the way back."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Generic, Literal, cast, get_args

from msgspec import Struct, structs
from pydantic_core import from_json
from typing_extensions import TypeVar

from handrail.core.text import compact_json
from handrail.core.tool import Tool
from handrail.core.values import ToolCall
from handrail.errors import ConfigError

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
    notes: tuple[str, ...] = ()


class SetAside(Exception):
    """This tool cannot go out to this provider; the text is the reason."""


class Definitions(list[T], Generic[T]):
    """Tool definitions to send, and what is needed to read the answer.

    It is a list, so that every SDK takes it as it is. A tool that a provider would refuse is in `set_aside`, and the
    request goes out without it.
    """

    set_aside: tuple[Diagnostic, ...]
    notes: tuple[Diagnostic, ...]
    """What was changed on the way: names, strictness, constraints that are only checked locally."""

    def __init__(
        self,
        definitions: Iterable[T] = (),
        *,
        wired: Mapping[str, tuple[str, Wired]] | None = None,
        set_aside: Sequence[Diagnostic] = (),
        notes: Sequence[Diagnostic] = (),
    ) -> None:
        super().__init__(definitions)
        self._wired = wired or {}
        self._names = {tool: name for name, (tool, _) in self._wired.items()}
        self.set_aside = tuple(set_aside)
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

    def listed(self) -> str:
        """The names of the tools that go out, for an error message."""
        return ", ".join(self._names) or "none"

    def gathered(self, entry: Any) -> "Definitions[Any]":
        """These definitions inside one entry, for an API that wants them so; none without an entry."""
        whole: Definitions[Any] = Definitions([entry] if entry else [], set_aside=self.set_aside, notes=self.notes)
        whole._wired, whole._names = self._wired, self._names
        return whole

    def fresh(self) -> "Definitions[T]":
        """A copy whose definitions can be changed (a cache mark, say) without changing anybody else's."""
        copies = [cast(T, {**cast(dict[str, Any], one)}) for one in self]
        copy: Definitions[T] = Definitions(copies, set_aside=self.set_aside, notes=self.notes)
        copy._wired, copy._names = self._wired, self._names
        return copy


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
            definitions.append({**found.definition})
            if found.notes:
                notes.extend(Diagnostic(tool=tool.name, text=text) for text in found.notes)
    return Definitions(definitions, wired=by_name, set_aside=aside, notes=notes)


def _worked_out(tool: Tool[..., Any], dialect: str, wire: Callable[[Tool[..., Any]], Wired]) -> Wired | Diagnostic:
    if not isinstance(tool, Tool):  # pyright: ignore[reportUnnecessaryIsInstance]  # the pool is the caller's
        raise ConfigError(f"A pool holds tools, not {tool!r}. Use as_tool() or a ToolRegistry.")
    known = tool.wire.get(dialect)
    if known is None:
        try:
            known = wire(tool)
        except SetAside as reason:
            known = Diagnostic(tool=tool.name, text=str(reason))
        tool.wire[dialect] = known
    return known


def fitted_name(name: str, *, allowed: re.Pattern[str], limit: int) -> tuple[str, tuple[str, ...]]:
    """A name that the provider accepts, and a note if it had to be changed. Equal names give equal names."""
    if len(name) <= limit and allowed.fullmatch(name):
        return name, ()
    mark = sha256(name.encode()).hexdigest()[:8]
    readable = re.sub(r"[^A-Za-z0-9_-]", "_", name)[: limit - len(mark) - 2]
    if not re.match(r"[A-Za-z_]", readable):
        readable = f"_{readable}"
    fitted = f"{readable}_{mark}"
    return fitted, (f"goes out as `{fitted}`, because the name `{name}` is not accepted",)


def with_examples(tool: Tool[..., Any]) -> str:
    """The description, with the examples in it, for an API that has no field for them."""
    if not tool.examples:
        return tool.description
    lines = "\n".join(compact_json(example) for example in tool.examples)
    return f"{tool.description}\n\nExamples of arguments:\n{lines}".strip()


def plain_object(tool: Tool[..., Any]) -> dict[str, Any]:
    """The schema, if its root is a plain object, which every API asks for."""
    schema = dict(tool.input_schema)
    if "$ref" in schema:
        target = str(schema["$ref"]).removeprefix("#/$defs/")
        found = cast(dict[str, Any], schema.get("$defs", {})).get(target)
        if isinstance(found, dict):
            schema = {**cast(dict[str, Any], found), "$defs": schema["$defs"]}
    if schema.get("type") != "object":
        raise SetAside("its input_schema is not an object")
    if refused := sorted(schema.keys() & {"anyOf", "oneOf", "allOf", "not", "enum", "const"}):
        raise SetAside(f"its input_schema has {', '.join(refused)} at the root, which the API refuses")
    schema.setdefault("properties", {})
    return schema


def read(source: Any, name: str, default: Any = None) -> Any:
    """A field of an SDK's object or of a plain dict, which are the same thing to a format."""
    if isinstance(source, Mapping):
        return cast(Mapping[str, Any], source).get(name, default)
    return getattr(source, name, default)


def decoded(calls: Iterable[ToolCall], definitions: Sequence[Any] | None) -> list[ToolCall]:
    """The calls in the tools' own terms, where the definitions that were sent are at hand."""
    if isinstance(definitions, Definitions):
        return [definitions.decode(call) for call in calls]
    return list(calls)


def unfinished(arguments: str) -> str:
    """Arguments of a call that the provider cut off, as text that no parser takes for complete.

    The call still has to be answered; it must never run.
    """
    try:
        from_json(arguments or "{}")
    except ValueError:
        return arguments
    return arguments.rstrip()[:-1] or "{"


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
    names = [*allowed, tool] if tool is not None else list(allowed)
    if isinstance(definitions, Definitions):
        for name in names:
            if not definitions.has(name):
                listed = definitions.listed()
                raise ConfigError(f"`{name}` is not among the definitions of this request; they have: {listed}.")
        names = [definitions.wire_name(name) for name in names]
    one = names.pop() if tool is not None else None
    return Wanted(mode=cast(Mode, mode), tool=one, allowed=tuple(names))

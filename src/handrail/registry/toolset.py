"""`Toolset`: tools that are renamed, filtered or changed on their way into an executor."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal, cast
from weakref import WeakKeyDictionary

from pydantic_core import from_json

from handrail.core.log import log
from handrail.core.selectors import Selector, parse_selectors
from handrail.core.text import compact_json
from handrail.core.tool import KeyOf, Tool
from handrail.define.build import as_tool
from handrail.errors import ConfigError, InvalidArgumentsError
from handrail.registry.pool import ToolSource

AnyTool = Tool[..., Any]
Change = Callable[[AnyTool], AnyTool | None]
"""From a tool to the changed one, or to None where it is left out."""


class Toolset:
    """Tools on their way into an executor: each method returns a new toolset around this one.

    A changed tool is a tool like any other: policy, approvals, ledger and audit see its new name, and the arguments
    that its handler gets. A selector is a name, a glob, a source (`mcp:server`) or a tag (`tag:name`); one that
    selects nothing is an error.
    """

    __slots__ = ("_change", "_inner", "_is_checked", "_known", "_selectors")

    def __init__(self, tools: Iterable[object] | ToolSource) -> None:
        self._inner: ToolSource | tuple[AnyTool, ...] = (
            tools if isinstance(tools, ToolSource) else tuple(map(as_tool, tools))
        )
        self._change: Change | None = None
        self._selectors: dict[str, Selector] = {}
        self._known: WeakKeyDictionary[AnyTool, AnyTool | None] = WeakKeyDictionary()
        self._is_checked = False
        """Whether the selectors have once selected something. What is not there later has gone, and is no mistake."""

    @property
    def tools(self) -> tuple[AnyTool, ...]:
        """The tools, as they are now."""
        before = tuple(self._inner.tools) if isinstance(self._inner, ToolSource) else self._inner
        if self._change is None:
            return before
        if not self._is_checked:
            self._check(before)
        changed = tuple(tool for tool in map(self._apply_change, before) if tool is not None)
        self._is_checked = bool(before)
        return changed

    def _check(self, before: tuple[AnyTool, ...]) -> None:
        for text, selects in self._selectors.items():
            if before and not any(map(selects, before)):
                listed = ", ".join(tool.name for tool in before[:20])
                raise ConfigError(f"{text!r} selects none of these tools: {listed}.")

    def _apply_change(self, tool: AnyTool) -> AnyTool | None:
        # The same tool gives the same tool, so that an executor sees what has really changed.
        if tool not in self._known:
            try:
                self._known[tool] = cast(Change, self._change)(tool)
            except ConfigError as error:
                if not self._is_checked:
                    raise
                # The source has changed the tool: unchanged by us, it could do more than it should.
                log.error("%s is left out: %s", tool.name, error)
                self._known[tool] = None
        return self._known[tool]

    def __iter__(self) -> Iterator[AnyTool]:
        return iter(self.tools)

    def __len__(self) -> int:
        return len(self.tools)

    def __repr__(self) -> str:
        return f"Toolset({', '.join(tool.name for tool in self.tools)})"

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Have a function called whenever the tools have changed; the returned one ends that."""
        return self._inner.subscribe(listener) if isinstance(self._inner, ToolSource) else lambda: None

    # Which tools, and what they are called.

    def only(self, *selectors: str) -> "Toolset":
        """Keep the tools that one of the selectors names."""
        chosen = parse_selectors(selectors)
        return self._with(selectors, lambda tool: tool if chosen(tool) else None)

    def without(self, *selectors: str) -> "Toolset":
        """Leave out the tools that one of the selectors names."""
        denied = parse_selectors(selectors)
        return self._with(selectors, lambda tool: None if denied(tool) else tool)

    def prefix(self, text: str) -> "Toolset":
        """Put a text before every name."""
        return self._with((), lambda tool: replace(tool, name=f"{text}{tool.name}"))

    def rename(self, names: Mapping[str, str]) -> "Toolset":
        """Give tools other names: from the name that a tool has here to its new one."""
        return self._with(names, lambda tool: replace(tool, name=names.get(tool.name, tool.name)))

    # What they say about themselves.

    def describe(self, descriptions: Mapping[str, str]) -> "Toolset":
        """Give tools other descriptions, by their names."""
        return self._with(
            descriptions, lambda tool: replace(tool, description=descriptions.get(tool.name, tool.description))
        )

    def tag(self, *tags: str, on: str = "*") -> "Toolset":
        """Add tags to the tools that a selector names: all of them, unless it is given."""
        return self._where(on, lambda tool: replace(tool, tags=tool.tags | frozenset(tags)))

    def require_approval(self, selector: str, *, by: Literal["customer", "operator"]) -> "Toolset":
        """Have somebody agree to every call of these tools, whatever the policy allows."""
        return self._where(selector, lambda tool: replace(tool, requires_approval=by))

    # What they take.

    def default(self, selector: str, **values: Any) -> "Toolset":
        """Give arguments defaults of your own: what the model leaves out is filled in before anything is decided."""
        return self._where(selector, lambda tool: _with_values(tool, values, is_hidden=False))

    def hide(self, selector: str, **values: Any) -> "Toolset":
        """Take arguments away from the model, and give each its value. Policy and audit still see them."""
        return self._where(selector, lambda tool: _with_values(tool, values, is_hidden=True))

    def _where(self, selector: str, change: Callable[[AnyTool], AnyTool]) -> "Toolset":
        chosen = parse_selectors([selector])
        return self._with([selector], lambda tool: change(tool) if chosen(tool) else tool)

    def _with(self, selectors: Iterable[str], change: Change) -> "Toolset":
        made = Toolset(self)
        made._change = change
        made._selectors = {text: parse_selectors([text]) for text in selectors if text != "*"}
        return made


def _with_values(tool: AnyTool, values: Mapping[str, Any], *, is_hidden: bool) -> AnyTool:
    """A tool whose arguments have these values where the model gives none; or cannot give any."""
    properties: dict[str, Any] = dict(tool.input_schema.get("properties", {}))
    for name in values:
        if name not in properties:
            listed = ", ".join(properties) or "none"
            raise ConfigError(f"`{tool.name}` has no argument {name!r}; its arguments are: {listed}.")
    texts = {name: compact_json(value) for name, value in values.items()}
    taken = {name: properties[name] for name in values} if is_hidden else {}
    if is_hidden:
        properties = {name: member for name, member in properties.items() if name not in values}
    else:
        for name, value in values.items():
            one: Any = properties[name]
            properties[name] = {**cast(dict[str, Any], one), "default": value} if isinstance(one, dict) else one
    required = [name for name in tool.input_schema.get("required", ()) if name not in values]
    schema = {**tool.input_schema, "properties": properties, "required": required}
    if not required:
        del schema["required"]

    def fill(parse: Callable[[str], Any]) -> Callable[[str], Any]:
        return lambda text: parse(_fill_in(text or "{}", texts, tool=tool, is_hidden=is_hidden))

    parsers = None if tool.parsers is None else tool.parsers.wrap(fill)
    hidden = frozenset(values) if is_hidden else frozenset[str]()
    return replace(
        tool,
        input_schema=schema,
        parse=fill(tool.parse) if parsers is None else parsers.lenient,
        parsers=parsers,
        hidden_arguments={**tool.hidden_arguments, **taken},
        key=_without_names(tool.key, hidden),
        lock_key=_without_names(tool.lock_key, hidden),
        examples=tuple({name: v for name, v in example.items() if name not in hidden} for example in tool.examples),
    )


def _without_names(key: tuple[str, ...] | KeyOf | None, hidden: frozenset[str]) -> tuple[str, ...] | KeyOf | None:
    """A key that names a hidden argument, as a function: the names of a key are arguments that a model sees."""
    if key is None or callable(key) or not hidden.intersection(key):
        return key
    names = key

    def key_of(arguments: Mapping[str, Any]) -> list[Any]:
        return [arguments.get(name) for name in names]

    return key_of


def _fill_in(text: str, values: Mapping[str, str], *, tool: AnyTool, is_hidden: bool) -> str:
    """The JSON text of the arguments with values added at its end.

    What the model wrote stays as it is, letter by letter, so that the tool's own parser judges all of it: a text that
    is no object, or has a name twice, is still one.
    """
    try:
        given = from_json(text)
    except (ValueError, TypeError):
        return text
    if not isinstance(given, dict):
        return text
    sent = cast(dict[str, Any], given)
    if is_hidden:
        for name in values:
            if name in sent:
                listed = ", ".join(item for item in tool.input_schema.get("properties", ()) if item not in values)
                raise InvalidArgumentsError(
                    f"`{name}` is not an argument of this tool. Its arguments are: {listed or 'none'}.", places=[name]
                )
    added = ", ".join(f"{compact_json(name)}: {value}" for name, value in values.items() if name not in sent)
    if not added:
        return text
    return f"{text.rstrip()[:-1]}{', ' if sent else ''}{added}}}"

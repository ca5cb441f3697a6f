"""An immutable set of tools, and their definitions for every provider."""

from collections import Counter
from collections.abc import Iterable, Iterator
from importlib import import_module
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, Self

from handrail.core.lazy_loading import LazyModule
from handrail.core.selectors import parse_selectors
from handrail.core.text import join_names
from handrail.core.tool import Tool, ToolLike
from handrail.define.build import as_tool
from handrail.errors import DuplicateToolError, ToolNotFoundError

if TYPE_CHECKING:
    import difflib
else:
    difflib = LazyModule("difflib")

if TYPE_CHECKING:
    from anthropic.types import ToolParam
    from google.genai.types import ToolDict
    from openai.types.chat import ChatCompletionFunctionToolParam
    from openai.types.realtime import RealtimeFunctionToolParam
    from openai.types.responses import FunctionToolParam

    from handrail.formats.definitions import Definitions


_MAX_LISTED: Final = 20
"""Of how many tools the names are listed for a model that asks for one that is not there."""
_MAX_COMPARED: Final = 50
"""With how many names one that is not there is compared, to suggest the one that was meant."""
_MAX_ALIKE: Final = 10
"""The same where there are more: of those that have the most parts of three letters in common with it."""
_MAX_PARTS: Final = 300
"""How many names with a part in common are looked at, to find those that have most in common."""
_MAX_NAME_CHARS: Final = 256
"""No tool has a longer name."""


class ToolRegistry:
    """The tools that an agent has, by name. It never changes: `register` returns a new one."""

    __slots__ = ("_definitions", "_has_deferred", "_name_index", "_tools")

    def __init__(self, tools: Iterable[object] = ()) -> None:
        self._tools: dict[str, Tool[..., Any]] = {}
        self._definitions: dict[str, Definitions[Any]] = {}
        self._name_index: dict[str, list[str]] | None = None
        self._has_deferred: bool | None = None
        for source in tools:
            self._add(as_tool(source))

    def _add(self, tool: Tool[..., Any]) -> None:
        known = self._tools.get(tool.name)
        if known is not None and known is not tool:
            raise DuplicateToolError(
                f"There is already a tool named `{tool.name}`, from {known.source}. "
                f"Give one of them another name, or use register(…, replace=True)."
            )
        self._tools[tool.name] = tool

    def register(self, tool: ToolLike | object, *, replace: bool = False) -> Self:
        """A new registry with this tool in it; this one stays as it is."""
        added = as_tool(tool)
        copy = type(self)()
        copy._tools = dict(self._tools)
        if replace:
            copy._tools[added.name] = added  # In the place of the other one, so that the rest stays where it was.
        else:
            copy._add(added)
        return copy

    def get(self, name: str) -> Tool[..., Any]:
        """The tool of this name, or `ToolNotFoundError`."""
        try:
            return self._tools[name]
        except (KeyError, TypeError):
            similar = self._find_similar(str(name))
            available = sorted(self._tools) if len(self._tools) <= _MAX_LISTED else ()
            raise ToolNotFoundError(str(name), similar=similar, available=available) from None

    def _find_similar(self, name: str) -> list[str]:
        """The names that are most like this one. A model can ask for any name, any number of times: whatever it asks
        for, at most `_MAX_COMPARED` names are compared."""
        if len(name) > _MAX_NAME_CHARS:
            return []
        if len(self._tools) <= _MAX_COMPARED:
            return difflib.get_close_matches(name, self._tools, n=2)
        if self._name_index is None:
            self._name_index = _index_names(self._tools)
        index = self._name_index
        rarest = sorted((index[part] for part in _split_name(name) if part in index), key=len)
        shared = Counter(islice(chain.from_iterable(rarest), _MAX_PARTS))
        return difflib.get_close_matches(name, [known for known, _ in shared.most_common(_MAX_ALIKE)], n=2)

    def select(self, *selectors: str) -> Self:
        """A registry of the tools that one of the selectors names: a name, a glob, a source, a tag."""
        chosen = parse_selectors(selectors)
        return type(self)(tool for tool in self if chosen(tool))

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in the order of registration."""
        return tuple(self._tools)

    @property
    def has_deferred(self) -> bool:
        """Whether some tools are offered only once a search has found them."""
        if self._has_deferred is None:
            self._has_deferred = any(tool.defer_loading for tool in self._tools.values())
        return self._has_deferred

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._tools

    def __iter__(self) -> Iterator[Tool[..., Any]]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def __repr__(self) -> str:
        return f"ToolRegistry({join_names(self._tools)})"

    def to_anthropic_tools(self) -> "Definitions[ToolParam]":
        """Definitions for Anthropic Messages."""
        return self._render("anthropic")

    def to_openai_tools(self) -> "Definitions[FunctionToolParam]":
        """Definitions for OpenAI Responses."""
        return self._render("openai_responses")

    def to_openai_chat_tools(self) -> "Definitions[ChatCompletionFunctionToolParam]":
        """Definitions for OpenAI Chat Completions."""
        return self._render("openai_chat")

    def to_openai_realtime_tools(self) -> "Definitions[RealtimeFunctionToolParam]":
        """Definitions for OpenAI Realtime."""
        return self._render("openai_realtime")

    def to_gemini_tools(self) -> "Definitions[ToolDict]":
        """Definitions for Gemini."""
        return self._render("gemini")

    def to_mcp_tools(self) -> "Definitions[dict[str, Any]]":
        """Definitions for an MCP server's `tools/list`."""
        return self._render("mcp")

    def _render(self, format_name: str) -> Any:
        """Definitions are rendered once, since the tools never change; every caller gets a copy.

        The format is imported here, so that a registry does not load the formats that nobody uses.
        """
        known = self._definitions.get(format_name)
        if known is None:
            known = self._definitions[format_name] = import_module(f"handrail.formats.{format_name}").tools(self)
        return known.copy_for_caller()


def _index_names(names: Iterable[str]) -> dict[str, list[str]]:
    """The names by the parts of three letters that they have."""
    index: dict[str, list[str]] = {}
    for name in names:
        for part in _split_name(name):
            index.setdefault(part, []).append(name)
    return index


def _split_name(name: str) -> set[str]:
    text = name.lower()
    return {text[start : start + 3] for start in range(max(len(text) - 2, 1))}

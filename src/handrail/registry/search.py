"""Finding tools by what a text asks for: by meaning where the embedding model is there, else by words in common."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from heapq import nlargest, nsmallest
from typing import Any, Final, cast
from weakref import WeakKeyDictionary

from msgspec import Struct
from pydantic_core import from_json

from handrail.core.tool import Tool
from handrail.core.values import ToolResult
from handrail.define.build import build_tool
from handrail.errors import ConfigError
from handrail.models.embedding import Embedding
from handrail.registry.pool import ToolSource
from handrail.registry.text_similarity import Embedder, TextSimilarity, WordIndex

SEARCH_TOOLS: Final = "search_tools"
MAX_RESULTS: Final = 20
_MAX_DESCRIPTION_CHARS: Final = 300
"""How much of a description a search shows."""


class SearchResult(Struct, frozen=True, kw_only=True):
    """A tool, and how well it fits."""

    tool: Tool[..., Any]
    score: float


class ToolSearch:
    """A large pool of tools that a model searches instead of reading all of it.

    `Executor([pay, *ToolSearch(pool)])` offers `pay` and `search_tools`; what a search finds is offered from the next
    step on, after the others, so that the definitions that a prompt cache holds stay as they are.

    There is no threshold: a true match may have a score of 0.2. Take the best few, and let whoever reads them choose.

    Args:
        tools: The pool, or a source whose tools change.
        embedder: Compares texts by their meaning; by default the small embedding of the catalogue, and words where it
            is missing.
        limit: How many tools one search finds.
    """

    def __init__(
        self, tools: Iterable[Tool[..., Any]] | ToolSource, *, embedder: Embedder | None = None, limit: int = 5
    ) -> None:
        if not 1 <= limit <= MAX_RESULTS:
            raise ConfigError(f"limit must be between 1 and {MAX_RESULTS}, got {limit!r}.")
        self._source = tools if isinstance(tools, ToolSource) else tuple(tools)
        self._deferred: WeakKeyDictionary[Tool[..., Any], Tool[..., Any]] = WeakKeyDictionary()
        self._meaning = TextSimilarity(embedder or Embedding())
        self._limit = limit
        self._tool = self._search_tool()
        self._tools = _SearchedTools((), ())

    @property
    def tools(self) -> tuple[Tool[..., Any], ...]:
        """`search_tools`, and the tools that it searches, as they are now."""
        return self._tool, *self._update().tools

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Have a function called whenever the tools have changed; the returned one ends that."""
        return self._source.subscribe(listener) if isinstance(self._source, ToolSource) else lambda: None

    def __iter__(self) -> Iterator[Tool[..., Any]]:
        return iter(self.tools)

    def _update(self) -> "_SearchedTools":
        """The tools that are searched, as they are now; the same tool gives the same one each time."""
        now = tuple(self._source.tools) if isinstance(self._source, ToolSource) else self._source
        if now is not self._tools.given and now != self._tools.given:
            for tool in now:
                if tool not in self._deferred:
                    self._deferred[tool] = replace(tool, defer_loading=True)
            self._tools = _SearchedTools(now, tuple(self._deferred[tool] for tool in now))
        return self._tools

    def search(self, text: str, *, limit: int | None = None) -> list[SearchResult]:
        """The tools that fit best, the best one first. What has nothing in common with the text is not among them."""
        limit = self._limit if limit is None else limit
        if limit < 1:
            raise ConfigError(f"A search finds at least 1 tool, not {limit}.")
        searched = self._update()
        if not (tools := searched.tools):
            return []
        if self._meaning.is_available:
            scores = self._meaning.measure(searched.texts, text)
        else:
            scores = searched.index.measure(text)
        lowest = nlargest(limit, scores)[-1]
        found = (
            (-score, tools[place].consequential, tools[place].name, place)  # Of two that fit alike, what only reads.
            for place, score in enumerate(scores)
            if score >= lowest and score > 0
        )
        return [SearchResult(tool=tools[place], score=-score) for score, _, _, place in nsmallest(limit, found)]

    def _search_tool(self) -> Tool[..., Any]:
        default = self._limit

        def search_tools(payload: dict[str, Any]) -> dict[str, Any]:
            found = self.search(payload["query"], limit=payload.get("limit", default))
            listed = [
                {"name": result.tool.name, "description": result.tool.description[:_MAX_DESCRIPTION_CHARS]}
                for result in found
            ]
            return {"tools": listed} if listed else {"tools": [], "note": "Nothing fits. Try other words."}

        return build_tool(
            {
                "name": SEARCH_TOOLS,
                "description": (
                    "Search for more tools by what you want to do, in plain words. "
                    "What is found can be called from your next step on."
                ),
                "input_schema": {
                    "type": "object",
                    "properties": {
                        "query": {"type": "string", "minLength": 1, "maxLength": 500},
                        "limit": {"type": "integer", "minimum": 1, "maximum": MAX_RESULTS, "default": default},
                    },
                    "required": ["query"],
                    "additionalProperties": False,
                },
                "execute": search_tools,
                "read_only": True,
                "concurrency_safe": True,
            }
        )


class _SearchedTools:
    """A pool: the tools as they were given, as they are offered, and the texts that they are found by."""

    def __init__(self, given: tuple[Tool[..., Any], ...], tools: tuple[Tool[..., Any], ...]) -> None:
        self.given = given
        self.tools = tools
        self.texts = tuple(map(get_search_text, tools))

    @cached_property
    def index(self) -> WordIndex:
        return WordIndex([get_search_words(tool) for tool in self.tools])


def offered_tools(tools: Iterable[Tool[..., Any]], results: Iterable[ToolResult]) -> tuple[Tool[..., Any], ...]:
    """The tools to offer in the next step: all that are not deferred, then what searches have found, in that order.

    The results are those of the conversation so far; each step's tools begin with those of the step before.
    """
    every = tuple(tools)
    deferred = {tool.name: tool for tool in every if tool.defer_loading}
    if not deferred:
        return every
    found = dict.fromkeys(
        name
        for result in results
        if result.tool_name == SEARCH_TOOLS and result.ok
        for name in _iter_found_names(result.output)
    )
    return (
        *(tool for tool in every if not tool.defer_loading),
        *(deferred[name] for name in found if name in deferred),
    )


def _iter_found_names(output: Any) -> Iterator[str]:
    """The names in what `search_tools` returned; a history keeps it as the text that the model was shown."""
    if isinstance(output, str):
        try:
            output = from_json(output)
        except ValueError:
            return
    listed: Any = cast(dict[str, Any], output).get("tools") if isinstance(output, dict) else None
    for entry in cast(list[Any], listed) if isinstance(listed, list) else ():
        name: Any = cast(dict[str, Any], entry).get("name") if isinstance(entry, dict) else None
        if isinstance(name, str):
            yield name


def get_search_text(tool: Tool[..., Any]) -> str:
    """The description alone: names of arguments only blur it."""
    return tool.description or tool.name.replace("_", " ")


def get_search_words(tool: Tool[..., Any]) -> str:
    """The text whose words are compared: the name says as much as the description."""
    return f"{tool.name.replace('_', ' ')} {get_search_text(tool)}"

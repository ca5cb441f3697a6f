"""Finding tools by what a text asks for: by meaning where the embedding model is there, else by words in common."""

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from heapq import nlargest, nsmallest
from importlib import import_module
from math import log
from threading import Lock
from typing import Any, Final, Protocol, cast
from weakref import WeakKeyDictionary

from msgspec import Struct
from pydantic_core import from_json

from handrail.core.tool import Tool
from handrail.core.values import ToolResult
from handrail.define.build import build_tool
from handrail.errors import ConfigError, MissingExtraError
from handrail.models.embedding import Embedding
from handrail.registry.tool_source import ToolSource

SEARCH_TOOLS: Final = "search_tools"
MAX_RESULTS: Final = 20
_MAX_DESCRIPTION_CHARS: Final = 300
"""How much of a description a search shows."""
_MAX_CACHED_VECTORS: Final = 4096
"""How many vectors are kept beside those of the last pool."""
_STOP_WORDS: Final = re.compile(
    r"(a|an|and|are|at|do|find|for|from|get|has|have|how|i|in|is|it|list|look|me|my|of|on|or|please|show|that|the|this|to"
    r"|up|what|where|which|who|with|you|your)"
)


class Embedder(Protocol):
    """What turns texts into vectors: `handrail.models.embedding.Embedding`."""

    @property
    def is_available(self) -> bool: ...

    def embed(self, texts: Sequence[str]) -> list[list[float]]: ...


class TextSimilarity:
    """How close texts are in meaning. The vector of a text that others are compared with is worked out once."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._lock = Lock()
        self._vectors: OrderedDict[str, Any] = OrderedDict()
        """By text, those last that were used last."""
        self._pool: tuple[tuple[str, ...], Any] = ((), None)
        """The texts of the last comparison, and their vectors as one matrix."""

    @property
    def is_available(self) -> bool:
        """Whether the model that knows is on this machine."""
        return self._embedder.is_available

    def measure(self, texts: Sequence[str], to: str) -> list[float]:
        """How close each of the texts is to this one: 1 is the same, 0 has nothing to do with it."""
        if not texts:
            return []
        matrix = self._build_matrix(tuple(texts))
        return (matrix @ self._embed([to])[0]).tolist()

    def _build_matrix(self, texts: tuple[str, ...]) -> Any:
        known, matrix = self._pool
        if texts == known:
            return matrix
        with self._lock:  # A pool is embedded once, also where several threads need it.
            if texts == self._pool[0]:
                return self._pool[1]
            vectors = self._vectors
            if new := list(dict.fromkeys(text for text in texts if text not in vectors)):
                vectors.update(zip(new, self._embed(new), strict=True))
            matrix = _import_numpy().stack([vectors[text] for text in texts])
            for text in texts:
                vectors.move_to_end(text)
            # All texts of the pool stay, however many they are: the next comparison needs them.
            while len(vectors) > max(_MAX_CACHED_VECTORS, len(texts)):
                vectors.popitem(last=False)
            self._pool = texts, matrix
            return matrix

    def _embed(self, texts: Sequence[str]) -> Any:
        """Vectors of length 1, whatever the embedder returns."""
        numpy = _import_numpy()
        vectors = numpy.asarray(self._embedder.embed(texts), dtype=numpy.float32)
        lengths = numpy.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors / numpy.where(lengths == 0, 1, lengths)


def _import_numpy() -> Any:
    try:
        return import_module("numpy")
    except ImportError as error:
        raise MissingExtraError("numpy", extra="embedded") from error


class SearchResult(Struct, frozen=True, kw_only=True):
    """A tool, and how well it fits."""

    tool: Tool[..., Any]
    score: float


class ToolSearch:
    """A large pool of tools that a model searches instead of reading all of it.

    `Executor([pay, *ToolSearch(pool)])` offers `pay` and `search_tools`; what a search finds is offered from the next
    step on, after the others, so that the definitions that a prompt cache holds stay as they are.

    There is no threshold: a true match may have a score of 0.2. Take the best few, and let whoever reads them choose.
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
        self._index = _WordIndex(())

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
            if self._index.tools is not tools:
                self._index = _WordIndex(tools)
            scores = self._index.scores(text)
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
                {"name": one.tool.name, "description": one.tool.description[:_MAX_DESCRIPTION_CHARS]} for one in found
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


class _WordIndex:
    """The words of tools; one that few tools have says more than one that many have."""

    def __init__(self, tools: tuple[Tool[..., Any], ...]) -> None:
        self.tools = tools
        self._places: dict[str, list[int]] = {}
        """Which tools have a word."""
        for place, tool in enumerate(tools):
            for word in _extract_tool_words(tool):
                self._places.setdefault(word, []).append(place)

    def scores(self, text: str) -> list[float]:
        """How much of a text each tool has in common with it."""
        scores = [0.0] * len(self.tools)
        if not (wanted := sorted(extract_words(text))):
            return scores
        weights = {word: log(1 + len(self.tools) / len(self._places.get(word, (0,)))) for word in wanted}
        whole = sum(weights.values())
        for word in wanted:
            for place in self._places.get(word, ()):
                scores[place] += weights[word]
        return [score / whole for score in scores]


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
    for one in cast(list[Any], listed) if isinstance(listed, list) else ():
        name: Any = cast(dict[str, Any], one).get("name") if isinstance(one, dict) else None
        if isinstance(name, str):
            yield name


def score_tools(tools: Sequence[Tool[..., Any]], text: str, meaning: TextSimilarity) -> list[float]:
    """How well each tool fits a text."""
    if meaning.is_available:
        return meaning.measure([get_search_text(tool) for tool in tools], text)
    wanted = extract_words(text)
    return [len(wanted & _extract_tool_words(tool)) / (len(wanted) or 1) for tool in tools]


def get_search_text(tool: Tool[..., Any]) -> str:
    """The description alone: names of arguments only blur it."""
    return tool.description or tool.name.replace("_", " ")


def extract_words(text: str) -> set[str]:
    """The words that carry meaning, without their endings."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text)  # listOrders
    return {word[:5] for word in re.findall(r"[^\W\d_]+", apart.casefold()) if not _STOP_WORDS.fullmatch(word)}


def _extract_tool_words(tool: Tool[..., Any]) -> set[str]:
    return extract_words(f"{tool.name.replace('_', ' ')} {get_search_text(tool)}")

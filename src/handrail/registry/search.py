"""Finding tools by what a text asks for: by meaning where the embedding model is there, else by words in common."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from msgspec import Struct

from handrail.core.tool import Tool
from handrail.errors import ConfigError
from handrail.models.embedding import Embedding, closeness

_REMEMBERED: Final = 4096
_COMMON: Final = re.compile(
    r"(a|an|and|are|at|do|find|for|from|get|has|have|how|i|in|is|it|list|look|me|my|of|on|or|please|show|that|the|this|to"
    r"|up|what|where|which|who|with|you|your)"
)


class Embedder(Protocol):
    """What turns texts into vectors: `handrail.models.embedding.Embedding`."""

    @property
    def present(self) -> bool: ...

    def embed(self, texts: Sequence[str]) -> list[list[float]]: ...


class Meaning:
    """How close texts are in meaning. The vector of a text that others are compared with is worked out once."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._vectors: dict[str, list[float]] = {}

    @property
    def present(self) -> bool:
        """Whether the model that knows is on this machine."""
        return self._embedder.present

    def close(self, texts: Sequence[str], to: str) -> list[float]:
        """How close each of the texts is to this one: 1 is the same, 0 has nothing to do with it."""
        vectors = self._known(texts)
        (wanted,) = self._embedder.embed([to])
        return [closeness(wanted, vectors[text]) for text in texts]

    def _known(self, texts: Sequence[str]) -> Mapping[str, list[float]]:
        known = self._vectors if len(self._vectors) < _REMEMBERED else {}
        new = list(dict.fromkeys(text for text in texts if text not in known))
        # A new mapping each time: other threads go on with the one that they have.
        self._vectors = {**known, **dict(zip(new, self._embedder.embed(new), strict=True))} if new else known
        return self._vectors


class Found(Struct, frozen=True, kw_only=True):
    """A tool, and how well it fits."""

    tool: Tool[..., Any]
    score: float


class ToolSearch:
    """Searches a pool of tools.

    There is no threshold: a true match may have a score of 0.2. Take the best few, and let whoever reads them choose.
    """

    def __init__(self, tools: Iterable[Tool[..., Any]], *, embedder: Embedder | None = None) -> None:
        self._tools = tuple(tools)
        self._meaning = Meaning(embedder or Embedding())

    def search(self, text: str, *, limit: int = 5) -> list[Found]:
        """The tools that fit best, the best one first. What has nothing in common with the text is not among them."""
        if limit < 1:
            raise ConfigError(f"A search finds at least 1 tool, not {limit}.")
        scores = scored(self._tools, text, self._meaning)
        every = [Found(tool=tool, score=score) for tool, score in zip(self._tools, scores, strict=True) if score > 0]
        return sorted(every, key=lambda one: (-one.score, one.tool.name))[:limit]


def scored(tools: Sequence[Tool[..., Any]], text: str, meaning: Meaning) -> list[float]:
    """How well each tool fits a text."""
    if meaning.present:
        return meaning.close([described(tool) for tool in tools], text)
    wanted = words(text)
    return [len(wanted & _words_of(tool)) / (len(wanted) or 1) for tool in tools]


def described(tool: Tool[..., Any]) -> str:
    """The description alone: names of arguments only blur it."""
    return tool.description or tool.name.replace("_", " ")


def words(text: str) -> set[str]:
    """The words that carry meaning, without their endings."""
    return {word[:5] for word in re.findall(r"[^\W\d_]+", text.casefold()) if not _COMMON.fullmatch(word)}


def _words_of(tool: Tool[..., Any]) -> set[str]:
    return words(f"{tool.name.replace('_', ' ')} {described(tool)}")

"""Pre-filters: select the guidelines that the judge is asked about, for agents with many."""

import asyncio
import math
import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Final, Protocol

from handrail.errors import ConfigError
from handrail.guide.values import Guideline
from handrail.models.embedding import Embedding
from handrail.registry.search import Embedder, TextSimilarity

_WORD: Final = re.compile(r"[^\W\d_]{2,}")
_COMMON: Final = frozenset(
    (
        "about", "after", "all", "also", "an", "and", "any", "are", "as", "ask", "asks", "at", "be", "because", "been",
        "but", "by", "can", "case", "could", "customer", "did", "do", "does", "for", "from", "had", "has", "have", "he",
        "her", "his", "how", "if", "in", "into", "is", "it", "its", "just", "me", "my", "not", "of", "on", "or", "our",
        "out", "please", "she", "so", "some", "that", "the", "their", "them", "then", "there", "they", "this", "to",
        "up", "us", "user", "want", "wants", "was", "we", "were", "what", "when", "where", "which", "who", "why",
        "will", "with", "would", "you", "your",
    )
)  # fmt: skip


class Prefilter(Protocol):
    """Selects the guidelines that a text may be about."""

    async def select(self, guidelines: Sequence[Guideline], text: str, limit: int) -> Sequence[str]:
        """Return the ids of at most `limit` guidelines, the likeliest first; none to select all."""
        ...


class LexicalPrefilter:
    """Ranks guidelines by the words that they share with a text; rare words count more."""

    def __init__(self) -> None:
        self._indexed: Sequence[Guideline] | None = None
        self._places: dict[str, list[int]] = {}

    async def select(self, guidelines: Sequence[Guideline], text: str, limit: int) -> Sequence[str]:
        """Return the guidelines that share the most words, then the others in order; none if no word is shared."""
        if self._indexed is not guidelines:
            self._index(guidelines)
        scores: defaultdict[int, float] = defaultdict(float)
        total = len(guidelines)
        for stem in set(_stems(text)):
            places = self._places.get(stem, ())
            for place in places:
                scores[place] += math.log(1 + total / len(places))
        if not scores:
            return []
        ranked = sorted(range(total), key=lambda place: -scores.get(place, 0.0))
        return [guidelines[place].id for place in ranked[:limit]]

    def _index(self, guidelines: Sequence[Guideline]) -> None:
        places: dict[str, list[int]] = {}
        for place, one in enumerate(guidelines):
            names = " ".join(one.tools).replace("_", " ")
            for stem in set(_stems(f"{one.condition} {one.action} {names}")):
                places.setdefault(stem, []).append(place)
        self._indexed, self._places = guidelines, places


class EmbeddingPrefilter:
    """Ranks guidelines by the similarity of their condition to a text. Needs `handrail[embedded]`."""

    def __init__(self, embedder: Embedder | None = None) -> None:
        self._meaning = TextSimilarity(embedder or Embedding())

    async def select(self, guidelines: Sequence[Guideline], text: str, limit: int) -> Sequence[str]:
        """Return the most similar guidelines."""
        conditions = [one.condition for one in guidelines]
        scores = await asyncio.to_thread(self._meaning.measure, conditions, text)
        ranked = sorted(range(len(guidelines)), key=lambda place: -scores[place])
        return [guidelines[place].id for place in ranked[:limit]]


def _stems(text: str) -> list[str]:
    return [word[:5] for word in _WORD.findall(text.casefold()) if word not in _COMMON]


def build_prefilter(given: Prefilter | str | None) -> Prefilter | None:
    """Build the pre-filter of a name; an object that is one is returned as it is."""
    if given is None or not isinstance(given, str):
        return given
    if given not in ("lexical", "embedding"):
        raise ConfigError(f"prefilter must be 'lexical', 'embedding', None or an object with select(), got {given!r}.")
    return LexicalPrefilter() if given == "lexical" else EmbeddingPrefilter()

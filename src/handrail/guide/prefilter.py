"""Pre-filters: select the guidelines that the judge is asked about, for agents with many."""

import asyncio
from collections.abc import Sequence
from itertools import islice
from typing import Protocol

from handrail.errors import ConfigError
from handrail.guide.values import Guideline
from handrail.models.embedding import Embedding
from handrail.registry.text_similarity import Embedder, TextSimilarity, WordIndex


class Prefilter(Protocol):
    """Selects the guidelines that a text may be about."""

    async def select(self, guidelines: Sequence[Guideline], text: str, limit: int) -> Sequence[str]:
        """Return the ids of at most `limit` guidelines, the likeliest first; none to select all."""
        ...


class LexicalPrefilter:
    """Ranks guidelines by the words that they share with a text; rare words count more."""

    def __init__(self) -> None:
        self._indexed: Sequence[Guideline] = ()
        self._index = WordIndex(())

    async def select(self, guidelines: Sequence[Guideline], text: str, limit: int) -> Sequence[str]:
        """Return the guidelines that share the most words, then the others in order; none if no word is shared."""
        if self._indexed is not guidelines:
            self._indexed, self._index = guidelines, WordIndex([*map(_get_words, guidelines)])
        if not (ranked := self._index.rank(text)):
            return []
        if len(ranked) < limit:
            known = frozenset(ranked)
            ranked += islice((place for place in range(len(guidelines)) if place not in known), limit - len(ranked))
        return [guidelines[place].id for place in ranked[:limit]]


class EmbeddingPrefilter:
    """Ranks guidelines by the similarity of their condition to a text. Needs `handrail[embedded]`."""

    def __init__(self, embedder: Embedder | None = None) -> None:
        self._meaning = TextSimilarity(embedder or Embedding())

    async def select(self, guidelines: Sequence[Guideline], text: str, limit: int) -> Sequence[str]:
        """Return the most similar guidelines."""
        conditions = [guideline.condition for guideline in guidelines]
        scores = await asyncio.to_thread(self._meaning.measure, conditions, text)
        ranked = sorted(range(len(guidelines)), key=scores.__getitem__, reverse=True)
        return [guidelines[place].id for place in ranked[:limit]]


def _get_words(guideline: Guideline) -> str:
    return f"{guideline.condition} {guideline.action} {' '.join(guideline.tools).replace('_', ' ')}"


def build_prefilter(given: Prefilter | str | None) -> Prefilter | None:
    """Build the pre-filter of a name; an object that is one is returned as it is."""
    if given is None or not isinstance(given, str):
        return given
    if given not in ("lexical", "embedding"):
        raise ConfigError(f"prefilter must be 'lexical', 'embedding', None or an object with select(), got {given!r}.")
    return LexicalPrefilter() if given == "lexical" else EmbeddingPrefilter()

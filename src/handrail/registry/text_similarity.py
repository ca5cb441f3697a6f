"""Measures how well texts fit another text: by meaning where the embedding model is installed, else by common words."""

from collections import OrderedDict
from collections.abc import Sequence
from importlib import import_module
from itertools import compress
from math import log
from threading import Lock
from typing import Any, Final, Protocol

from handrail.core.lazy_loading import LazyPattern
from handrail.errors import MissingExtraError

_MAX_CACHED_VECTORS: Final = 4096
"""How many vectors are kept beside those of the last pool."""
_BLOCK: Final = 1000
"""Rows of a matrix that are multiplied at once."""
_STOP_WORDS: Final = frozenset(
    (
        *("a", "an", "and", "are", "at", "do", "find", "for", "from", "get", "has", "have", "how", "i", "in", "is"),
        *("it", "list", "look", "me", "my", "of", "on", "or", "please", "show", "that", "the", "this", "to", "up"),
        *("what", "where", "which", "who", "with", "you", "your"),
    )
)


class Embedder(Protocol):
    """What turns texts into vectors: `handrail.models.embedding.Embedding`."""

    @property
    def is_available(self) -> bool: ...

    def embed(self, texts: Sequence[str]) -> list[list[float]]: ...


class TextSimilarity:
    """Measures how close texts are in meaning; the vector of each text is computed once."""

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
        matrix, vector = self._build_matrix(tuple(texts)), self._embed([to])[0]
        # In blocks: the threads that a large product is given cost a hundred times what it does.
        blocks = range(0, len(matrix), _BLOCK)
        return _import_numpy().concatenate([matrix[start : start + _BLOCK] @ vector for start in blocks]).tolist()

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


class WordIndex:
    """Measures how many words texts have in common with another; a word that few of them have counts more."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._count = len(texts)
        self._places: dict[str, list[int]] = {}
        """The positions of the texts that have a word."""
        for place, text in enumerate(texts):
            for word in extract_words(text):
                self._places.setdefault(word, []).append(place)
        self._weights = {word: log(1 + len(texts) / len(places)) for word, places in self._places.items()}
        self._unknown_weight = log(1 + len(texts))
        """Of a word that none of the texts has."""

    def measure(self, to: str) -> list[float]:
        """How much of this text each of the texts has: 1 is every word, 0 is none."""
        scores, total = self._add_weights(to)
        return [score / total for score in scores]

    def rank(self, to: str) -> list[int]:
        """The positions of the texts that have a word of this one, the most alike first."""
        scores, _ = self._add_weights(to)
        found = list(compress(range(self._count), scores))
        found.sort(key=scores.__getitem__, reverse=True)
        return found

    def _add_weights(self, to: str) -> tuple[list[float], float]:
        """The sum over the words that each of the texts has, and the sum over all words."""
        scores, total = [0.0] * self._count, 0.0
        for word in sorted(extract_words(to)):
            places = self._places.get(word)
            if places is None:
                total += self._unknown_weight
                continue
            weight = self._weights[word]
            total += weight
            for place in places:
                scores[place] += weight
        return scores, total or 1.0


def extract_words(text: str) -> set[str]:
    """The words that carry meaning, without their endings."""
    apart = _INNER_CAPITALS.compiled.sub(" ", text)
    return {word[:5] for word in _WORDS.compiled.findall(apart.casefold()) if word not in _STOP_WORDS}


_INNER_CAPITALS: Final = LazyPattern(r"(?<=[a-z])(?=[A-Z])")
"""Where the second word of `listOrders` begins."""
_WORDS: Final = LazyPattern(r"[^\W\d_]+")

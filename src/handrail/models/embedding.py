"""Text embeddings with MiniLM on onnxruntime."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any, Final

from handrail.core.text import encodable
from handrail.errors import MissingExtraError, ModelFileError
from handrail.models.cache import find_directory, inspect_model
from handrail.models.catalogue import MINILM

MAX_TOKENS: Final = 256
"""The most tokens of a text that are embedded; the model was trained on no more."""


class Embedding:
    """The embedding model of the catalogue, loaded on first use; it is thread-safe."""

    def __init__(self, *, root: Path | None = None, threads: int = 1, batch_size: int = 16) -> None:
        self._root = root
        self._threads = threads
        self._batch = batch_size
        self._lock = Lock()
        self._loaded: tuple[Any, Any, Any] | None = None

    @property
    def is_available(self) -> bool:
        """Whether its files are on this machine; does not load the model."""
        return inspect_model(MINILM, root=self._root).is_complete

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return one vector of length 1 for each text, in the same order."""
        numpy, tokenizer, session = self._load()
        vectors: list[list[float]] = [[]] * len(texts)
        # A batch is padded to its longest text, so texts of similar length are batched together.
        order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
        for start in range(0, len(order), self._batch):
            places = order[start : start + self._batch]
            # The tokenizer does not accept lone surrogates.
            encoded = tokenizer.encode_batch([encodable(texts[place]) for place in places])
            ids = numpy.array([encoding.ids for encoding in encoded], dtype=numpy.int64)
            mask = numpy.array([encoding.attention_mask for encoding in encoded], dtype=numpy.int64)
            feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": numpy.zeros_like(ids)}
            states = session.run(None, feeds)[0]
            weights = mask[:, :, None].astype(numpy.float32)
            means = (states * weights).sum(axis=1) / weights.sum(axis=1)
            found = (means / numpy.linalg.norm(means, axis=1, keepdims=True)).tolist()
            for place, vector in zip(places, found, strict=True):
                vectors[place] = vector
        return vectors

    def _load(self) -> tuple[Any, Any, Any]:
        with self._lock:
            if self._loaded is None:
                self._loaded = _open_model(find_directory(MINILM.name, root=self._root), threads=self._threads)
            return self._loaded


def _open_model(place: Path, *, threads: int) -> tuple[Any, Any, Any]:
    try:
        numpy, onnxruntime, tokenizers = map(import_module, ("numpy", "onnxruntime", "tokenizers"))
    except ImportError as error:
        raise MissingExtraError(error.name or "onnxruntime", extra="embedded") from error
    model, vocabulary = (str(place / file.name) for file in MINILM.files)
    try:
        tokenizer: Any = tokenizers.Tokenizer.from_file(vocabulary)
        # The file asks for padding to 128 tokens, which makes short texts ten times as slow.
        tokenizer.enable_padding()
        tokenizer.enable_truncation(MAX_TOKENS)
        options: Any = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        session: Any = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # Both libraries raise plain Exceptions.
        raise ModelFileError(
            f"The files in {place} cannot be loaded ({type(error).__name__}). "
            f"Fetch them again: handrail model remove {MINILM.name}, then handrail model pull {MINILM.name}"
        ) from error
    return numpy, tokenizer, session

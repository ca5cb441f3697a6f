"""Runs a GGUF file with llama.cpp in this process: one request at a time, with constrained decoding."""

import asyncio
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from threading import Event
from typing import Any, Final

from msgspec import Struct

from handrail.core.text import compact_json, encodable, escape_special_tokens
from handrail.errors import (
    ContextTooLongError,
    MissingExtraError,
    ModelFileError,
    ProviderDownError,
    ProviderError,
    shorten,
)
from handrail.providers.embedded.schema_reduction import as_list, as_mapping
from handrail.providers.provider import FinishReason, Usage

_COMPACT: Final = {"whitespace_flexible": False, "key_separator": ": ", "item_separator": ", "}
"""Makes the decoder write JSON without white space, on which a small model would spend its tokens."""

_FINISH_REASONS: Final[Mapping[str, FinishReason]] = {"stop": "stop", "length": "length"}


class Completion(Struct, frozen=True, kw_only=True):
    """The output of the model."""

    text: str
    finish_reason: FinishReason
    usage: Usage
    id: str


class Engine:
    """A model file and the thread that runs it. The file is loaded with the first request."""

    def __init__(self, file: Path, *, threads: int, context_window: int) -> None:
        self.file = file
        self.context_window = context_window
        self._threads = threads
        # One worker: concurrent requests queue here, and not in the default thread pool.
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="handrail-embedded")
        self._server: Any = None
        self._grammar: Callable[[dict[str, Any]], str] | None = None

    async def complete(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        max_tokens: int,
        schema: dict[str, Any] | None = None,
        on_text: Callable[[str], object] | None = None,
    ) -> Completion:
        """Complete a conversation. `on_text` is called with text as it arrives, in another thread."""
        body: dict[str, Any] = {
            "messages": [{key: escape_special_tokens(text) for key, text in message.items()} for message in messages],
            "max_tokens": max_tokens,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        stop = Event()
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._worker, self._complete, body, schema, on_text, stop
            )
        finally:  # The caller was cancelled: the model stops at its next token, and the next request can run.
            stop.set()

    def close(self) -> None:
        """Free the memory after the running requests; a later request loads the file again."""
        self._worker.submit(self._unload).result()

    def _unload(self) -> None:
        self._server = None

    def _complete(
        self,
        body: dict[str, Any],
        schema: dict[str, Any] | None,
        on_text: Callable[[str], object] | None,
        stop: Event,
    ) -> Completion:
        if stop.is_set():
            return Completion(text="", finish_reason="other", usage=Usage(), id="")
        server = self._load()
        stream = _StreamReader(on_text, stop)
        try:
            if schema is not None and self._grammar is not None:
                # Encoded as JSON, which replaces lone surrogates.
                body["grammar"] = self._grammar(json.loads(compact_json({**schema, "x-guidance": _COMPACT})))
            server.handle_chat_completions(body, stream.add_chunk)
        except (ValueError, RuntimeError) as error:
            raise ProviderError(f"{self.file.name} cannot process this request: {shorten(str(error), 300)}") from error
        return stream.build_completion(self.file.name)

    def _load(self) -> Any:
        if self._server is not None:
            return self._server
        try:
            llama: Any = import_module("xllamacpp")
        except ImportError as error:
            raise MissingExtraError("xllamacpp", extra="embedded") from error
        parameters = llama.CommonParams()
        parameters.verbosity = 0
        parameters.model.path = str(self.file)
        parameters.n_ctx = self.context_window
        parameters.n_parallel = 1
        parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = self._threads
        parameters.cache_ram_mib = 0  # The default would keep 8 GB of old prompts.
        parameters.warmup = False
        # It also opens a port on the loopback, which cannot be switched off; a random key keeps others out.
        parameters.api_keys = [secrets.token_urlsafe(32)]
        parameters.ui = parameters.endpoint_slots = False
        try:
            self._server = llama.Server(parameters)
        except (RuntimeError, ValueError) as error:
            raise ModelFileError(f"{self.file} cannot be loaded as a model: {shorten(str(error), 300)}") from error
        self._grammar = llama.json_schema_to_grammar
        return self._server


class _StreamReader:
    """Collects the chunks of a streamed response."""

    def __init__(self, on_text: Callable[[str], object] | None, stop: Event) -> None:
        self._on_text = on_text
        self._stop = stop
        self._words: list[str] = []
        self._reason: Any = None
        self._usage: Mapping[str, Any] = {}
        self._id = ""
        self._failure: Mapping[str, Any] | None = None

    def add_chunk(self, chunk: Any) -> bool:
        """Add a chunk; return True to stop. It never raises, because llama.cpp would swallow the exception."""
        piece = as_mapping(chunk)
        if failure := as_mapping(piece.get("error")):
            self._failure = failure
        self._id = str(piece.get("id") or self._id)
        self._usage = as_mapping(piece.get("usage")) or self._usage
        for choice in map(as_mapping, as_list(piece.get("choices"))):
            self._reason = choice.get("finish_reason") or self._reason
            words = as_mapping(choice.get("delta")).get("content")
            if isinstance(words, str) and words and not self._stop.is_set():
                self._words.append(words)
                if self._on_text is not None:
                    self._on_text(words)
        return self._stop.is_set()

    def build_completion(self, name: str) -> Completion:
        """Build the completion, or raise the error of the stream."""
        if (failure := self._failure) is not None:
            text = shorten(str(failure.get("message", "")), 300)
            if failure.get("type") == "exceed_context_size_error":
                raise ContextTooLongError(f"The conversation does not fit into {name}: {text}.")
            raise ProviderError(f"{name} did not respond: {text}.")
        if self._reason is None and not self._stop.is_set():
            raise ProviderDownError(f"{name} ended in the middle of a response.")
        details = as_mapping(self._usage.get("prompt_tokens_details"))
        return Completion(
            text=encodable("".join(self._words)),
            finish_reason=_FINISH_REASONS.get(str(self._reason), "other"),
            usage=Usage(
                input=self._usage.get("prompt_tokens", 0),
                output=self._usage.get("completion_tokens", 0),
                cached=details.get("cached_tokens", 0),
            ),
            id=self._id,
        )

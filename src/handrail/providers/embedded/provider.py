"""The embedded provider: a tool is chosen, and the model fills in its arguments with constrained decoding."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TypeAlias
from uuid import uuid4

from handrail.core.lazy_loading import LazyPattern
from handrail.core.tool import Tool
from handrail.core.values import ToolCall
from handrail.errors import ConfigError, MissingExtraError, ModelFileError
from handrail.formats.definitions import Definitions
from handrail.formats.names import NameRule
from handrail.models.cache import find_directory
from handrail.models.catalogue import CATALOGUE, SMOLLM2
from handrail.models.embedding import Embedding
from handrail.providers.embedded import prompts
from handrail.providers.embedded.engine import Completion, Engine
from handrail.providers.embedded.schema_reduction import build_decodable_schema
from handrail.providers.embedded.tool_choice import ToolRanker, choose_tool, is_request, select_tools
from handrail.providers.message_conversion import (
    AssistantStep,
    NativeStep,
    ResultsStep,
    TranscriptRules,
    UserStep,
    build_steps,
)
from handrail.providers.messages import AssistantMessage, Message, ToolMessage, UserMessage
from handrail.providers.provider import FinishReason, ModelRequest, ModelResponse, StreamEvent, TextDelta, Usage
from handrail.providers.response_schema import check_response_schema
from handrail.registry.text_similarity import Embedder

DEMONSTRATION_MAX_BYTES: Final = 500_000_000
"""Files with fewer bytes are demonstration models."""

_ANY_NAME: Final = LazyPattern(r".*", re.DOTALL)
_RULES: Final = TranscriptRules(
    format="embedded",
    ids=NameRule(pattern=_ANY_NAME, max_chars=1_000),
    names=NameRule(pattern=_ANY_NAME, max_chars=256),
    read_native_calls=lambda _: None,
)
_OnText: TypeAlias = Callable[[str], object]


class EmbeddedProvider:
    """A GGUF model in this process, by its name in the catalogue or by the path of its file.

    It makes at most one call for each message of the customer, and replies after its result.
    """

    def __init__(
        self,
        path_or_name: str | Path = SMOLLM2.name,
        *,
        embedding: Embedder | None = None,
        threads: int | None = None,
        context_window: int = 4096,
        max_tokens: int = 512,
        is_demonstration: bool | None = None,
    ) -> None:
        """Load a model; a name of the catalogue is downloaded once.

        Args:
            path_or_name: A name of the catalogue, or the path of a GGUF file.
            embedding: Ranks tools by their meaning; by default the small embedding of the catalogue, where it is there.
            threads: Threads of the model. By default one for very small models and two for others: llama.cpp's threads
                wait for each other actively, and if something else runs on those cores, two are many times slower than
                one.
            context_window: Tokens that the model sees at once.
            max_tokens: Tokens of one response.
            is_demonstration: For very small models: code ranks the tools, values are copied from the message, and
                replies are templates. The default is True for files under 500 MB.
        """
        if find_spec("xllamacpp") is None:  # Raised before anybody downloads a model for it.
            raise MissingExtraError("xllamacpp", extra="embedded")
        file = _find_model_file(path_or_name)
        self._is_demonstration = (
            file.stat().st_size < DEMONSTRATION_MAX_BYTES if is_demonstration is None else is_demonstration
        )
        threads = (1 if self._is_demonstration else 2) if threads is None else threads
        if min(threads, context_window, max_tokens) < 1:
            raise ConfigError("threads, context_window and max_tokens must be at least 1.")
        self.model = str(path_or_name) if str(path_or_name) in CATALOGUE else file.stem
        self._engine = Engine(file, threads=threads, context_window=context_window)
        self._ranker = ToolRanker(embedding or Embedding(threads=threads))
        self._max_tokens = max_tokens

    @property
    def name(self) -> str:
        """`embedded:` and the name of the model."""
        return f"embedded:{self.model}"

    def __repr__(self) -> str:
        return f"EmbeddedProvider({self.model!r})"

    async def ask(self, request: ModelRequest) -> ModelResponse:
        """Send a request and return the complete response."""
        return await self._start(request).run(None)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamEvent]:
        """Yield text as it arrives, then the complete response."""
        texts: asyncio.Queue[str | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        exchange = self._start(request)

        def put_text(text: str) -> None:
            loop.call_soon_threadsafe(texts.put_nowait, text)

        task = asyncio.create_task(exchange.run(put_text))
        task.add_done_callback(lambda _: texts.put_nowait(None))
        sent: list[str] = []
        try:
            while (text := await texts.get()) is not None:
                sent.append(text)
                yield TextDelta(text=text)
            response = await task
        finally:
            task.cancel()
            await asyncio.wait([task])
        if rest := response.text.removeprefix("".join(sent)):
            yield TextDelta(text=rest)
        yield response

    async def aclose(self) -> None:
        """Free the memory of the model."""
        await asyncio.to_thread(self._engine.close)

    def _start(self, request: ModelRequest) -> "_Exchange":
        limit = request.max_tokens or self._max_tokens
        return _Exchange(
            request,
            engine=self._engine,
            ranker=self._ranker,
            model=self.model,
            max_tokens=limit,
            is_demonstration=self._is_demonstration,
        )


class _Exchange:
    """Handles one request."""

    def __init__(
        self,
        request: ModelRequest,
        *,
        engine: Engine,
        ranker: ToolRanker,
        model: str,
        max_tokens: int,
        is_demonstration: bool,
    ) -> None:
        self._request = request
        self._engine = engine
        self._ranker = ranker
        self._model = model
        self._max_tokens = max_tokens
        self._is_demonstration = is_demonstration
        self._usage = Usage()

    async def run(self, on_text: _OnText | None) -> ModelResponse:
        """Return a response with a call if one is needed, else with text."""
        request = self._request
        turns = _build_turns(request)
        tools, must = select_tools(request)
        last = request.messages[-1]
        message = _read_last_message(request.messages)
        if tools and (must or isinstance(last, UserMessage)):
            picked = await choose_tool(
                tools,
                message,
                must=must,
                is_demonstration=self._is_demonstration,
                ranker=self._ranker,
                ask=lambda turns, schema: self._ask(turns, schema=schema),
            )
            if picked is not None:
                is_asked = self._is_demonstration and not must
                is_order = is_request(message)
                question = prompts.ask_for_missing_value(picked, message, is_order=is_order) if is_asked else ""
                return self._build_response(text=question) if question else await self._fill_arguments(picked, message)
        if request.schema is not None:
            return await self._reply_in_json(turns)
        if isinstance(last, ToolMessage):
            if self._is_demonstration:
                return self._build_response(text=prompts.describe_results(last.results))
            turns = prompts.build_reply_prompt(turns, last.results)
        elif self._is_demonstration and request.tools:
            return self._build_response(text=prompts.describe_tools(tools))
        words = await self._ask(turns, on_text=on_text)
        return self._build_response(text=words.text, finish_reason=words.finish_reason)

    async def _fill_arguments(self, tool: Tool[..., Any], message: str) -> ModelResponse:
        arguments, cut = "{}", False
        if tool.input_schema.get("properties"):
            schema = build_decodable_schema(tool.input_schema, copy_from=message if self._is_demonstration else None)
            filled = await self._ask(prompts.build_arguments_prompt(tool, message), schema=schema)
            arguments, cut = filled.text, filled.finish_reason == "length"
        # The arguments stay text, which the executor parses and validates.
        call = ToolCall(id=f"call_{uuid4().hex}", name=tool.name, arguments_json=arguments or "?")
        return self._build_response(calls=(call,), finish_reason="length" if cut else "tool_calls")

    async def _reply_in_json(self, turns: prompts.PromptTurns) -> ModelResponse:
        schema = check_response_schema(self._request.schema or {})
        shaped = await self._ask(prompts.build_json_prompt(turns, schema), schema=build_decodable_schema(schema))
        return self._build_response(text=shaped.text, finish_reason=shaped.finish_reason)

    async def _ask(
        self, turns: prompts.PromptTurns, *, schema: dict[str, Any] | None = None, on_text: _OnText | None = None
    ) -> Completion:
        completion = await self._engine.complete(turns, max_tokens=self._max_tokens, schema=schema, on_text=on_text)
        self._usage += completion.usage
        return completion

    def _build_response(
        self, *, text: str = "", calls: tuple[ToolCall, ...] = (), finish_reason: FinishReason = "stop"
    ) -> ModelResponse:
        id_ = f"reply_{uuid4().hex}"
        return ModelResponse(
            text=text, calls=calls, finish_reason=finish_reason, usage=self._usage, id=id_, model=self._model
        )


def _find_model_file(path_or_name: str | Path) -> Path:
    """Find the model file: one of the catalogue, or a path to a GGUF file."""
    name = str(path_or_name)
    if name in CATALOGUE:
        file = CATALOGUE[name].files[0].name
        if not file.endswith(".gguf"):
            raise ModelFileError(
                f"`{name}` is not a language model. The catalogue has: {', '.join(_list_language_models())}."
            )
        return find_directory(name) / file
    path = Path(path_or_name).expanduser()
    try:
        with path.open("rb") as opened:
            begins = opened.read(4)
    except OSError as error:
        known = " or ".join(f"handrail model pull {model}" for model in _list_language_models())
        raise ModelFileError(
            f"There is no model file {name!r} ({error.strerror}). Pass the path of a GGUF file, or pull one: {known}"
        ) from error
    if begins != b"GGUF":
        raise ModelFileError(f"{path} is not a GGUF file: it does not begin with those four letters.")
    return path


def _list_language_models() -> list[str]:
    return [model.name for model in CATALOGUE.values() if model.files[0].name.endswith(".gguf")]


def _read_last_message(messages: Sequence[Message]) -> str:
    """Return the customer's last message, with the messages before it to which the model replied with a question."""
    parts: list[str] = []
    for message in reversed(messages):
        match message:
            case UserMessage():
                parts.append(message.text)
            case AssistantMessage() if parts and not (
                message.text.startswith(prompts.QUESTION_START) and not message.calls
            ):
                break
            case _:
                pass
    return "\n".join(reversed(parts))


def _build_turns(request: ModelRequest) -> prompts.PromptTurns:
    """Convert the conversation for the model's chat template; results become messages of the user."""
    turns: prompts.PromptTurns = []
    if request.instructions:
        turns.append({"role": "system", "content": request.instructions})
    for step in build_steps(request.messages, rules=_RULES, definitions=Definitions()):
        match step:
            case UserStep():
                turns.append({"role": "user", "content": step.text})
            case AssistantStep() | NativeStep():
                called = "".join(f"\n(calls {call.name} with {call.arguments_json or '{}'})" for call in step.calls)
                text = step.text if isinstance(step, AssistantStep) else ""
                turns.append({"role": "assistant", "content": f"{text}{called}".strip()})
            case ResultsStep():
                results = "\n".join(f"({result.tool_name} answered: {result.for_model()})" for result in step.results)
                turns.append({"role": "user", "content": results})
    return turns

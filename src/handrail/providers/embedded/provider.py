"""The provider that needs no key: the embedding picks a tool, the model fills in its arguments under the schema."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TypeAlias
from uuid import uuid4

from handrail.core.tool import Tool
from handrail.core.values import ToolCall
from handrail.errors import ConfigError, MissingExtraError, ModelFileError
from handrail.formats.definitions import Definitions, wanted
from handrail.models.cache import located
from handrail.models.catalogue import CATALOGUE, SMOLLM2
from handrail.models.embedding import Embedding
from handrail.providers.embedded import prompts
from handrail.providers.embedded.constrain import decodable
from handrail.providers.embedded.engine import Completion, Engine
from handrail.providers.embedded.picking import Picker
from handrail.providers.messages import AssistantMessage, Message, ToolMessage, UserMessage
from handrail.providers.provider import FinishReason, ModelRequest, ModelResponse, StreamEvent, TextDelta, Usage
from handrail.providers.shape import checked
from handrail.providers.transcript import Answered, Heard, Repeated, Rules, Said, steps
from handrail.registry.search import Embedder

SMALL: Final = 500_000_000
"""Bytes of a file under which a model is a demonstration model."""

_RULES: Final = Rules(
    form="embedded",
    ids=re.compile(r".*", re.DOTALL),
    longest_id=1_000,
    names=re.compile(r".*", re.DOTALL),
    longest_name=256,
    known=lambda _: None,
)
_Words: TypeAlias = Callable[[str], object]


class EmbeddedProvider:
    """A GGUF model in this process, by its name in the catalogue or by the path of its file.

    It makes at most one call for one message of the customer, and answers after its result.
    """

    def __init__(
        self,
        path_or_name: str | Path = SMOLLM2.name,
        *,
        embedding: Embedder | None = None,
        threads: int | None = None,
        context: int = 4096,
        max_tokens: int = 512,
        demonstration: bool | None = None,
    ) -> None:
        """`demonstration` is for a model too small to choose, to invent or to word: code ranks the tools, values are
        copied out of the message, and answers are templates. Unless it is said, files under 500 MB are such models.
        They get one thread, others two: llama.cpp's threads wait for each other without pause, and where something
        else runs on those cores, two are many times slower than one.
        """
        if find_spec("xllamacpp") is None:  # Said before anybody fetches a model for it.
            raise MissingExtraError("xllamacpp", extra="embedded")
        file = _file(path_or_name)
        self._small = file.stat().st_size < SMALL if demonstration is None else demonstration
        threads = (1 if self._small else 2) if threads is None else threads
        if min(threads, context, max_tokens) < 1:
            raise ConfigError("threads, context and max_tokens are 1 or more.")
        self.model = str(path_or_name) if str(path_or_name) in CATALOGUE else file.stem
        self._engine = Engine(file, threads=threads, context=context)
        self._picker = Picker(embedding or Embedding(threads=threads))
        self._max_tokens = max_tokens

    @property
    def name(self) -> str:
        """That it is embedded, and which model."""
        return f"embedded:{self.model}"

    def __repr__(self) -> str:
        return f"EmbeddedProvider({self.model!r})"

    async def ask(self, request: ModelRequest) -> ModelResponse:
        """The whole reply."""
        return await self._answer(request).reply(None)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamEvent]:
        """The words as they come, then the whole reply."""
        words: asyncio.Queue[str | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        answer = self._answer(request)

        def said(text: str) -> None:
            loop.call_soon_threadsafe(words.put_nowait, text)

        task = asyncio.create_task(answer.reply(said))
        task.add_done_callback(lambda _: words.put_nowait(None))
        heard: list[str] = []
        try:
            while (text := await words.get()) is not None:
                heard.append(text)
                yield TextDelta(text=text)
            reply = await task
        finally:
            task.cancel()
            await asyncio.wait([task])
        if rest := reply.text.removeprefix("".join(heard)):
            yield TextDelta(text=rest)
        yield reply

    async def aclose(self) -> None:
        """Give the model's memory back."""
        await asyncio.to_thread(self._engine.close)

    def _answer(self, request: ModelRequest) -> "_Answer":
        limit = request.max_tokens or self._max_tokens
        return _Answer(
            request, engine=self._engine, picker=self._picker, model=self.model, limit=limit, small=self._small
        )


class _Answer:
    """One request, on its way to one reply."""

    def __init__(
        self, request: ModelRequest, *, engine: Engine, picker: Picker, model: str, limit: int, small: bool
    ) -> None:
        self._request = request
        self._engine = engine
        self._picker = picker
        self._model = model
        self._limit = limit
        self._small = small
        self._usage = Usage()

    async def reply(self, said: _Words | None) -> ModelResponse:
        """A call where one is due, else words."""
        request = self._request
        turns = _turns(request)
        tools, must = _allowed(request)
        last = request.messages[-1]
        message = _said(request.messages)
        if tools and (must or isinstance(last, UserMessage)):
            picked = await self._pick(tools, message, must=must)
            if picked is not None:
                question = prompts.missing(picked, message) if self._small and not must else ""
                return self._reply(text=question) if question else await self._call(picked, message)
        if request.schema is not None:
            return await self._shaped(turns)
        if isinstance(last, ToolMessage):
            if self._small:
                return self._reply(text=prompts.told(last.results))
            turns = prompts.wording(turns, last.results)
        elif self._small and request.tools:
            return self._reply(text=prompts.offered(tools))
        words = await self._ask(turns, said=said)
        return self._reply(text=words.text, finish_reason=words.finish_reason)

    async def _pick(self, tools: Sequence[Tool[..., Any]], message: str, *, must: bool) -> Tool[..., Any] | None:
        if must and len(tools) == 1:
            return tools[0]
        picked = await asyncio.to_thread(self._picker.pick, tools, message)
        if self._small:
            return picked.tools[0] if must or not picked.chatter else None
        turns, schema = prompts.choosing(picked.tools, message, may_reply=not must)
        chosen = await self._ask(turns, schema=schema)
        return next(
            (tool for tool in picked.tools if chosen.text == f'"{tool.name}"'), picked.tools[0] if must else None
        )

    async def _call(self, tool: Tool[..., Any], message: str) -> ModelResponse:
        arguments, cut = "{}", False
        if tool.input_schema.get("properties"):
            schema = decodable(tool.input_schema, copied_from=message if self._small else None)
            filled = await self._ask(prompts.filling(tool, message), schema=schema)
            arguments, cut = filled.text, filled.finish_reason == "length"
        # Nothing that the model wrote is believed here: it stays text, which the executor parses and validates.
        call = ToolCall(id=f"call_{uuid4().hex}", name=tool.name, arguments_json=arguments or "?")
        return self._reply(calls=(call,), finish_reason="length" if cut else "tool_calls")

    async def _shaped(self, turns: prompts.Turns) -> ModelResponse:
        schema = checked(self._request.schema or {})
        shaped = await self._ask(prompts.shaping(turns, schema), schema=decodable(schema))
        return self._reply(text=shaped.text, finish_reason=shaped.finish_reason)

    async def _ask(
        self, turns: prompts.Turns, *, schema: dict[str, Any] | None = None, said: _Words | None = None
    ) -> Completion:
        completion = await self._engine.complete(turns, max_tokens=self._limit, schema=schema, said=said)
        self._usage += completion.usage
        return completion

    def _reply(
        self, *, text: str = "", calls: tuple[ToolCall, ...] = (), finish_reason: FinishReason = "stop"
    ) -> ModelResponse:
        id_ = f"reply_{uuid4().hex}"
        return ModelResponse(
            text=text, calls=calls, finish_reason=finish_reason, usage=self._usage, id=id_, model=self._model
        )


def _file(path_or_name: str | Path) -> Path:
    """The model's file: the one of the catalogue, or the one at a path, if it looks like a model."""
    name = str(path_or_name)
    if name in CATALOGUE:
        file = CATALOGUE[name].files[0].name
        if not file.endswith(".gguf"):
            raise ModelFileError(
                f"`{name}` is no language model. Those of the catalogue are: {', '.join(_language())}."
            )
        return located(name) / file
    path = Path(path_or_name).expanduser()
    try:
        with path.open("rb") as opened:
            begins = opened.read(4)
    except OSError as error:
        known = " or ".join(f"handrail model pull {one}" for one in _language())
        raise ModelFileError(
            f"There is no model file {name!r} ({error.strerror}). Give the path of a GGUF file, or fetch one: {known}"
        ) from error
    if begins != b"GGUF":
        raise ModelFileError(f"{path} is not a GGUF file: it does not begin with those four letters.")
    return path


def _language() -> list[str]:
    return [model.name for model in CATALOGUE.values() if model.files[0].name.endswith(".gguf")]


def _allowed(request: ModelRequest) -> tuple[Sequence[Tool[..., Any]], bool]:
    """The tools that may be called, and whether one must be."""
    choice = request.tool_choice
    want = wanted(choice.mode, choice.tool, choice.allowed, None)
    names = [tool.name for tool in request.tools]
    chosen = (want.tool,) if want.tool is not None else want.allowed
    for name in chosen:
        if name not in names:
            listed = ", ".join(names) or "none"
            raise ConfigError(f"`{name}` is not among the tools of this request; they are: {listed}.")
    must = want.mode == "required" or want.tool is not None
    if must and not names:
        raise ConfigError("A choice cannot be required in a request without tools.")
    if want.mode == "none":
        return (), False
    return [tool for tool in request.tools if not chosen or tool.name in chosen], must


def _said(messages: Sequence[Message]) -> str:
    """The customer's last message; with the ones before it, as far as they were answered with a question."""
    parts: list[str] = []
    for message in reversed(messages):
        match message:
            case UserMessage():
                parts.append(message.text)
            case AssistantMessage() if parts and not (message.text.startswith(prompts.NEEDED) and not message.calls):
                break
            case _:
                pass
    return "\n".join(reversed(parts))


def _turns(request: ModelRequest) -> prompts.Turns:
    """The conversation as the model's template takes it; results are told by the customer's side."""
    turns: prompts.Turns = []
    if request.instructions:
        turns.append({"role": "system", "content": request.instructions})
    for step in steps(request.messages, rules=_RULES, definitions=Definitions()):
        match step:
            case Heard():
                turns.append({"role": "user", "content": step.text})
            case Said() | Repeated():
                called = "".join(f"\n(calls {call.name} with {call.arguments_json or '{}'})" for call in step.calls)
                text = step.text if isinstance(step, Said) else ""
                turns.append({"role": "assistant", "content": f"{text}{called}".strip()})
            case Answered():
                results = "\n".join(f"({result.tool_name} answered: {result.for_model()})" for result in step.results)
                turns.append({"role": "user", "content": results})
    return turns

"""OpenAI Chat Completions, and the many servers that speak it: Ollama, vLLM, llama.cpp."""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar, Final, cast

from msgspec import structs

from handrail.core.text import encodable
from handrail.formats import openai_chat as wire
from handrail.formats.incoming import read
from handrail.formats.openai_schema import NAME, loose
from handrail.providers import asking, openai_sdk
from handrail.providers.connect import reached
from handrail.providers.failures import Told
from handrail.providers.provider import (
    FinishReason,
    ModelRequest,
    ModelResponse,
    Prices,
    StreamEvent,
    ToolChoice,
    Usage,
)
from handrail.providers.shape import Shape, shaped
from handrail.providers.transcript import (
    Answered,
    Heard,
    Items,
    Known,
    Repeated,
    Rules,
    Said,
    Step,
    argument_text,
    is_object,
    steps,
)
from handrail.schema import strict

_FINISH_REASONS: Final[Mapping[str | None, FinishReason]] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "refusal",
}


class OpenAIChat:
    """A model behind Chat Completions: OpenAI's own, or any server's that `base_url` names, which needs no key."""

    form: ClassVar[str] = "openai_chat"
    what: ClassVar[str] = "a chat completion"

    def __init__(
        self,
        model: str,
        *,
        client: Any = None,
        api_key: str | None = None,
        base_url: str | None = None,
        timeout: float = 600.0,
        max_retries: int = 2,
        prices: Prices | None = None,
        max_tokens: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.model = model
        self.prices = prices
        self.access = reached(openai_sdk.PLACE, client, api_key=api_key, base_url=base_url, its=openai_sdk.access_of)
        self._clients = openai_sdk.clients(self.access, given=client, timeout=timeout, max_retries=max_retries)
        self._max_tokens = max_tokens
        self._options = self._clients.options(options, of=lambda client: client.chat.completions.create)
        self._pools = asking.Pools(wire.tools)

    @property
    def name(self) -> str:
        """The API and the model."""
        return f"openai:{self.model}"

    def __repr__(self) -> str:
        return f"OpenAIChat({self.model!r})"

    async def ask(self, request: ModelRequest) -> ModelResponse:
        """The whole reply."""
        return await asking.ask(self, request)

    def stream(self, request: ModelRequest) -> AsyncGenerator[StreamEvent]:
        """The words as they come, then the whole reply."""
        return asking.stream(self, request)

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        if (client := self._clients.mine()) is not None:
            await client.close()

    def errors(self) -> tuple[type[BaseException], ...]:
        """What the SDK raises."""
        return openai_sdk.errors()

    def told(self, error: Any) -> Told | None:
        """What an error of the SDK says."""
        return openai_sdk.told(error)

    def prepare(self, request: ModelRequest) -> asking.Sent:
        """The request in this API's terms."""
        # Few other servers know a choice among some tools, and one that is passed over is no limit.
        narrow = not self.access.at_home
        definitions = self._pools.allowed(request) if narrow else self._pools.of(request.tools)
        shape = None if request.schema is None else shaped(request.schema, dialect=strict.OPENAI)
        spoken = steps(request.messages, rules=_RULES, definitions=definitions)
        system = [{"role": "system", "content": encodable(request.instructions)}] if request.instructions else []
        messages = [*system, *(message for step in spoken for message in _messages(step))]
        body: dict[str, Any] = {**self._options, "model": self.model, "messages": messages}
        if definitions:
            body["tools"] = definitions
        if (limit := request.max_tokens or self._max_tokens) is not None:
            # OpenAI's newer models refuse the old name; many other servers know no other.
            body["max_completion_tokens" if self.access.at_home else "max_tokens"] = limit
        want = structs.replace(request.tool_choice, allowed=()) if narrow else request.tool_choice
        if want != ToolChoice():
            choice = wire.tool_choice(want.mode, tool=want.tool, allowed=want.allowed, definitions=definitions)
            body |= {"tool_choice": choice} if definitions else {}
        if shape is not None:
            body["response_format"] = {"type": "json_schema", "json_schema": _format(shape)}
        return asking.Sent(body=body, definitions=definitions, shape=shape)

    async def whole(self, body: dict[str, Any]) -> Any:
        """Ask the SDK."""
        return await self._clients.here().chat.completions.create(**body)

    def events(self, body: dict[str, Any]) -> AbstractAsyncContextManager[AsyncIterator[Any]]:
        """Ask the SDK for a stream."""
        options = {"include_usage": True, **body.get("stream_options", {})}
        return asking.opened(self._clients.here().chat.completions.create, {**body, "stream_options": options})

    def words(self, event: Any) -> str:
        """The words in a chunk."""
        delta = read(_choice(event), "delta")
        return (read(delta, "content") or "") + (read(delta, "refusal") or "")

    def ends(self, event: Any) -> bool:
        """Whether the model says in this chunk why it stopped."""
        return bool(read(_choice(event), "finish_reason"))  # Some servers send an empty one with every chunk.

    def read(self, response: Any) -> asking.Heard:
        """A completion, or the chunks of one."""
        chunks = cast(list[Any], response) if isinstance(response, list) else [response]
        if not isinstance(response, list) and _choice(response) is None:
            raise ValueError("a completion has choices")
        (message,) = wire.assistant_messages(response)
        reasons = [reason for one in chunks if (reason := read(_choice(one), "finish_reason"))]
        refused = read(message, "refusal") or ""
        finish_reason = _FINISH_REASONS.get(reasons[-1] if reasons else None, "other")
        used = next((found for one in reversed(chunks) if (found := read(one, "usage")) is not None), None)
        return asking.Heard(
            text=(read(message, "content") or "") + refused,
            calls=wire.calls(response),
            finish_reason="refusal" if refused else finish_reason,
            usage=Usage(
                input=asking.count(read(used, "prompt_tokens")),
                output=asking.count(read(used, "completion_tokens")),
                cached=asking.count(read(read(used, "prompt_tokens_details"), "cached_tokens")),
            ),
            id=read(chunks[0], "id") or "",
            model=read(chunks[0], "model") or "",
            # Other servers refuse fields that they do not know, also empty ones.
            said=[{key: value for key, value in message.items() if value != []}],
        )


def _choice(response: Any) -> Any:
    """The one choice that is read; others were not asked for."""
    return next((one for one in read(response, "choices") or () if not read(one, "index")), None)


def _known(items: Items) -> Known | None:
    """The calls of a message. Many servers read the arguments of calls again, and fail if they are no JSON."""
    if len(items) != 1:
        return None
    message = items[0]
    calls = wire.calls(message)
    if not all(is_object(call) for call in calls) or not any(
        read(message, key) for key in ("content", "tool_calls", "refusal")
    ):
        return None
    return [(call.id, call.name) for call in calls]


_RULES: Final = Rules(
    form=OpenAIChat.form,
    ids=re.compile(r"[\x21-\x7e]+"),
    longest_id=40,
    names=NAME,
    longest_name=64,
    known=_known,
)


def _messages(step: Step) -> list[Any]:
    match step:
        case Heard():
            return [{"role": "user", "content": step.text}]
        case Answered():
            return [*wire.results(step.results)]
        case Said():
            calls = [
                {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": argument_text(one)}}
                for one in step.calls
            ]
            message = {"role": "assistant", "content": step.text or None}
            return [{**message, "tool_calls": calls} if calls else message]
        case Repeated():
            return [*step.items]


def _format(shape: Shape) -> dict[str, Any]:
    schema = shape.schema if shape.strict else loose(shape.schema)
    return {"name": "answer", "schema": schema, "strict": shape.strict}

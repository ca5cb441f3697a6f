"""OpenAI Responses."""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar, Final, cast

from handrail.core.text import encodable
from handrail.formats import openai_responses as wire
from handrail.formats.incoming import read
from handrail.formats.openai_schema import NAME, loose
from handrail.providers import asking, openai_sdk
from handrail.providers.connect import reached
from handrail.providers.failures import Told, as_error
from handrail.providers.provider import (
    FinishReason,
    ModelRequest,
    ModelResponse,
    Prices,
    StreamEvent,
    ToolChoice,
    Usage,
)
from handrail.providers.shape import shaped
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
    steps,
)
from handrail.schema import strict

_ENDS: Final = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")
_WORDS: Final = ("response.output_text.delta", "response.refusal.delta")
_FINISH_REASONS: Final[Mapping[Any, FinishReason]] = {"max_output_tokens": "length", "content_filter": "refusal"}


class OpenAIResponses:
    """A model behind OpenAI's Responses. The whole conversation is sent each time; nothing is looked up by its id."""

    form: ClassVar[str] = "openai_responses"
    what: ClassVar[str] = "a response"

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
        self._options = self._clients.options(options, of=lambda client: client.responses.create)
        self._pools = asking.Pools(wire.tools)

    @property
    def name(self) -> str:
        """The API and the model."""
        return f"openai-responses:{self.model}"

    def __repr__(self) -> str:
        return f"OpenAIResponses({self.model!r})"

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
        definitions = self._pools.of(request.tools)
        shape = None if request.schema is None else shaped(request.schema, dialect=strict.OPENAI)
        spoken = steps(request.messages, rules=_RULES, definitions=definitions)
        body: dict[str, Any] = {
            **self._options,
            "model": self.model,
            "input": [item for step in spoken for item in _items(step)],
        }
        if request.instructions:
            body["instructions"] = encodable(request.instructions)
        if definitions:
            body["tools"] = definitions
        if (limit := request.max_tokens or self._max_tokens) is not None:
            body["max_output_tokens"] = limit
        if request.tool_choice != ToolChoice():
            want = request.tool_choice
            choice = wire.tool_choice(want.mode, tool=want.tool, allowed=want.allowed, definitions=definitions)
            body |= {"tool_choice": choice} if definitions else {}
        if shape is not None:
            schema = shape.schema if shape.strict else loose(shape.schema)
            form = {"type": "json_schema", "name": "answer", "schema": schema, "strict": shape.strict}
            body["text"] = {**body.get("text", {}), "format": form}
        return asking.Sent(body=body, definitions=definitions, shape=shape)

    async def whole(self, body: dict[str, Any]) -> Any:
        """Ask the SDK."""
        return await self._clients.here().responses.create(**body)

    def events(self, body: dict[str, Any]) -> AbstractAsyncContextManager[AsyncIterator[Any]]:
        """Ask the SDK for a stream."""
        return asking.opened(self._clients.here().responses.create, body)

    def words(self, event: Any) -> str:
        """The words in an event."""
        if read(event, "type") == "error":
            raise self._failed(event)
        return read(event, "delta") or "" if read(event, "type") in _WORDS else ""

    def ends(self, event: Any) -> bool:
        """Whether this event holds the whole response."""
        return read(event, "type") in _ENDS

    def read(self, response: Any) -> asking.Heard:
        """A response, or the events of one; what failed is raised."""
        if isinstance(response, list):
            last = next(one for one in reversed(cast(list[Any], response)) if self.ends(one))
            response = read(last, "response")
        status = read(response, "status")
        if status == "failed":
            raise self._failed(read(response, "error"))
        output: list[Any] = read(response, "output")
        if not isinstance(output, list) or not isinstance(status, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError("a response has a status and an output")
        parts = [part for item in output if read(item, "type") == "message" for part in read(item, "content") or ()]
        refused = any(read(part, "type") == "refusal" for part in parts)
        finish_reason: FinishReason = "stop" if status == "completed" else "other"
        if status == "incomplete":
            finish_reason = _FINISH_REASONS.get(read(read(response, "incomplete_details"), "reason"), "other")
        used = read(response, "usage")
        return asking.Heard(
            text="".join(read(part, "text") or read(part, "refusal") or "" for part in parts),
            calls=wire.calls(response),
            finish_reason="refusal" if refused else finish_reason,
            usage=Usage(
                input=asking.count(read(used, "input_tokens")),
                output=asking.count(read(used, "output_tokens")),
                cached=asking.count(read(read(used, "input_tokens_details"), "cached_tokens")),
            ),
            id=read(response, "id") or "",
            model=read(response, "model") or "",
            said=wire.assistant_messages(response),
        )

    def _failed(self, error: Any) -> Exception:
        told = Told(code=str(read(error, "code") or ""), text=str(read(error, "message") or ""))
        return as_error(told, access=self.access, model=self.model)


def _known(items: Items) -> Known | None:
    return [(call.id, call.name) for call in wire.calls(list(items))]


_RULES: Final = Rules(
    form=OpenAIResponses.form,
    ids=re.compile(r"[\x21-\x7e]+"),
    longest_id=64,
    names=NAME,
    longest_name=128,
    known=_known,
)


def _items(step: Step) -> list[Any]:
    match step:
        case Heard():
            return [{"role": "user", "content": step.text}]
        case Answered():
            return [*wire.results(step.results)]
        case Said():
            spoken = [{"role": "assistant", "content": step.text}] if step.text.strip() else []
            return [
                *spoken,
                *(
                    {"type": "function_call", "call_id": one.id, "name": one.name, "arguments": argument_text(one)}
                    for one in step.calls
                ),
            ]
        case Repeated():
            return [*step.items]

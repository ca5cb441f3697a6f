"""The two ways of asking, whole and streamed, which are the same for every API."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, ClassVar, Final, Protocol

from msgspec import Struct, structs

from handrail.core.text import compact_json, encodable
from handrail.core.tool import Tool
from handrail.core.values import ToolCall
from handrail.errors import ProviderError
from handrail.formats.definitions import Definitions, wanted
from handrail.providers import failures
from handrail.providers.connect import Access
from handrail.providers.messages import Native
from handrail.providers.provider import FinishReason, ModelRequest, ModelResponse, Prices, StreamEvent, TextDelta, Usage
from handrail.providers.shape import Shape
from handrail.providers.transcript import distinct

_UNREADABLE: Final = (AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What reading an answer raises that is not of the form that its API promises; the SDKs read too."""


class Sent(Struct, frozen=True, kw_only=True):
    """A request in an API's own terms, and what is needed to read the answer."""

    body: dict[str, Any]
    """The arguments of the SDK's method."""
    definitions: Definitions[Any]
    shape: Shape | None = None


class Heard(Struct, frozen=True, kw_only=True):
    """An answer as its API's module reads it."""

    text: str
    calls: Sequence[ToolCall]
    finish_reason: FinishReason
    usage: Usage
    id: str
    model: str
    said: Sequence[Any]
    """What goes back as it came."""


class Api(Protocol):
    """What an API's module says of itself, so that it can be asked."""

    form: ClassVar[str]
    what: ClassVar[str]
    """What an answer is called, for an error message."""

    @property
    def access(self) -> Access: ...

    @property
    def model(self) -> str: ...

    @property
    def prices(self) -> Prices | None: ...

    def errors(self) -> tuple[type[BaseException], ...]:
        """What its SDK raises for an answer with an error."""
        ...

    def told(self, error: Any) -> failures.Told | None:
        """What such an error says; None if there was no answer."""
        ...

    def prepare(self, request: ModelRequest) -> Sent: ...

    async def whole(self, body: dict[str, Any]) -> Any: ...

    def events(self, body: dict[str, Any]) -> AbstractAsyncContextManager[AsyncIterator[Any]]:
        """The events of a streamed answer; leaving the context closes the connection."""
        ...

    def words(self, event: Any) -> str:
        """The words in an event."""
        ...

    def ends(self, event: Any) -> bool:
        """Whether all that matters has arrived with this event."""
        ...

    def read(self, response: Any) -> Heard:
        """A whole answer, or the list of its events."""
        ...


async def ask(api: Api, request: ModelRequest) -> ModelResponse:
    """The whole reply."""
    sent = api.prepare(request)
    expected: tuple[type[BaseException], ...] = (*api.errors(), *failures.transport_errors(), *_UNREADABLE)
    try:
        response = await api.whole(sent.body)
    except expected as error:
        failed = _failure(api, error)
    else:
        if isinstance(response, list):
            raise failures.not_understood(api.access, api.what)
        return _reply(api, response, sent)
    # Outside of the handler, so that the SDK's error, which knows the key, is not tied to ours.
    raise failed


async def stream(api: Api, request: ModelRequest) -> AsyncGenerator[StreamEvent]:
    """The words as they come, then the whole reply; a stream that is cut raises, and gives no reply."""
    sent = api.prepare(request)
    expected: tuple[type[BaseException], ...] = (*api.errors(), *failures.transport_errors(), *_UNREADABLE)
    events: list[Any] = []
    ended = False
    failed: ProviderError | None = None
    words: list[str] = []
    try:
        async with api.events(sent.body) as arriving:
            async for event in arriving:
                events.append(event)
                ended = ended or _read(api, api.ends, event)
                text = encodable(_read(api, api.words, event))
                if text and sent.shape is None:
                    words.append(text)
                    yield TextDelta(text=text)
    except expected as error:
        failed = _failure(api, error)
    if failed is not None:
        raise failed
    if not ended:
        raise failures.cut(api.access)
    reply = _reply(api, events, sent)
    if rest := reply.text.removeprefix("".join(words)):
        yield TextDelta(text=rest)
    yield reply


def _failure(api: Api, error: BaseException) -> ProviderError:
    if isinstance(error, api.errors()) and (told := api.told(error)) is not None:
        return failures.as_error(told, access=api.access, model=api.model)
    if isinstance(error, _UNREADABLE):
        return failures.not_understood(api.access, api.what)
    return failures.unreachable(error, access=api.access)


def _read(api: Api, reader: Callable[[Any], Any], value: Any) -> Any:
    try:
        return reader(value)
    except _UNREADABLE:
        pass
    raise failures.not_understood(api.access, api.what)


def _reply(api: Api, response: Any, sent: Sent) -> ModelResponse:
    heard: Heard = _read(api, lambda given: _storable(api.read(given)), response)
    calls = [sent.definitions.decode(call) for call in heard.calls]
    return ModelResponse(
        text=heard.text if sent.shape is None else sent.shape.decode(heard.text),
        calls=tuple(calls),
        finish_reason=_finish_reason(heard.finish_reason, calls),
        usage=heard.usage if api.prices is None else api.prices.of(heard.usage),
        id=heard.id,
        model=heard.model,
        native=Native(format=api.form, items=tuple(heard.said)) if heard.said else None,
    )


def _storable(heard: Heard) -> Heard:
    """The answer with text that UTF-8 holds, items that JSON holds, and calls that can be told apart."""
    items = json.loads(compact_json(list(heard.said)))
    if not all(isinstance(item, dict) for item in items):
        raise TypeError("what a model said is objects")
    return structs.replace(
        heard,
        text=encodable(heard.text),
        calls=distinct(heard.calls),
        id=encodable(str(heard.id)),
        model=encodable(str(heard.model)),
        said=items,
    )


def _finish_reason(finish_reason: FinishReason, calls: Sequence[ToolCall]) -> FinishReason:
    """Many servers say "done" of an answer that asks for calls; and calls that are not there cannot be waited for."""
    if finish_reason == "stop" and calls:
        return "tool_calls"
    return "other" if finish_reason == "tool_calls" and not calls else finish_reason


def count(value: Any) -> int:
    """A number of tokens; servers leave it out, or send null."""
    return value if isinstance(value, int) and value > 0 else 0


class Pools:
    """The definitions of the last pool that was sent: the same tools give the same bytes, and are rendered once."""

    def __init__(self, make: Callable[[Sequence[Tool[..., Any]]], Definitions[Any]]) -> None:
        self._make = make
        self._last: tuple[tuple[Tool[..., Any], ...], Definitions[Any]] = ((), make(()))

    def of(self, tools: Sequence[Tool[..., Any]]) -> Definitions[Any]:
        """The definitions of these tools."""
        known, definitions = self._last
        if len(known) != len(tools) or any(one is not other for one, other in zip(known, tools, strict=True)):
            definitions = self._make(tools)
            self._last = (tuple(tools), definitions)
        return definitions

    def allowed(self, request: ModelRequest) -> Definitions[Any]:
        """Only the definitions that the choice allows, for an API that cannot limit a choice to some of them."""
        choice = request.tool_choice
        if not choice.allowed:
            return self.of(request.tools)
        wanted(choice.mode, choice.tool, choice.allowed, self._make(request.tools))
        return self.of([tool for tool in request.tools if tool.name in choice.allowed])


@asynccontextmanager
async def opened(method: Callable[..., Any], body: dict[str, Any]) -> AsyncGenerator[AsyncIterator[Any]]:
    """The events of a stream, whose connection is closed in the end."""
    async with await method(**body, stream=True) as stream:
        yield stream

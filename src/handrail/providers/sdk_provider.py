"""One provider class for every official SDK: how it connects, and the `Adapter` protocol that each API implements."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, ClassVar, Final, Protocol, TypeVar

from msgspec import Struct, structs

from handrail.core.text import compact_json, encodable
from handrail.core.tool import Tool
from handrail.core.values import ToolCall
from handrail.errors import ConfigError, ProviderError
from handrail.formats.definitions import Definitions, check_tool_choice
from handrail.providers import provider_errors
from handrail.providers.endpoints import (
    ClientPool,
    Endpoint,
    ProviderInfo,
    check_options,
    check_retry_settings,
    resolve_endpoint,
)
from handrail.providers.message_conversion import assign_unique_ids
from handrail.providers.messages import Native
from handrail.providers.provider import FinishReason, ModelRequest, ModelResponse, Prices, StreamEvent, TextDelta, Usage
from handrail.providers.response_schema import ResponseSchema

T = TypeVar("T")

_PARSE_ERRORS: Final = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What parsing raises, here or in an SDK, when a response does not have the structure that its API documents."""


class Sdk(Struct, frozen=True, kw_only=True):
    """An official SDK, and the provider that it is for."""

    provider: ProviderInfo
    load: Callable[[], Any]
    """Imports the package; raises `MissingExtraError`."""
    create_client: Callable[[Any, Endpoint, float, int], Any]
    """Creates an async client from the package, the endpoint, the timeout in seconds, and the number of retries."""
    close_client: Callable[[Any], Awaitable[object]]
    read_client: Callable[[Any], Endpoint]
    """Reads the endpoint of a client that the caller created."""
    get_errors: Callable[[Any], tuple[type[BaseException], ...]]
    """Returns the exceptions of the package for an error response."""
    read_error: Callable[[Any, Any], provider_errors.ErrorDetails | None]
    """Reads an exception, given the package; None if the server sent no response."""


class ProviderConnection(Struct, frozen=True, kw_only=True):
    """A model, the clients of its server, and the settings of every request."""

    sdk: Sdk
    model: str
    endpoint: Endpoint
    clients: ClientPool
    max_tokens: int | None
    options: Mapping[str, Any]
    timeout: float | None
    """Seconds that one request may take; None for a client of the caller, which has its own."""


def connect(
    sdk: Sdk,
    model: str,
    *,
    client: Any,
    api_key: str | None,
    base_url: str | None,
    timeout: float,
    max_retries: int,
    max_tokens: int | None,
    options: Mapping[str, Any] | None,
    list_options: Callable[[Any], Iterable[str]],
) -> ProviderConnection:
    """Connect to a model with the caller's client or a new one; `list_options` lists the options of its SDK method."""
    if client is None:
        endpoint = resolve_endpoint(sdk.provider, api_key=api_key, base_url=base_url)
    elif api_key is not None or base_url is not None:
        raise ConfigError("client has its own key and address; do not pass api_key or base_url with it.")
    else:
        endpoint = sdk.read_client(client)
    check_retry_settings(timeout=timeout, max_retries=max_retries)
    package = sdk.load()
    clients = ClientPool(lambda: sdk.create_client(package, endpoint, timeout, max_retries), client=client)
    checked = check_options(options, known=list_options(clients.get_any())) if options else {}
    return ProviderConnection(
        sdk=sdk,
        model=model,
        endpoint=endpoint,
        clients=clients,
        max_tokens=max_tokens,
        options=checked,
        timeout=timeout if client is None else None,
    )


class ProviderRequest(Struct, frozen=True, kw_only=True):
    """A request as one API takes it, and what is needed to parse the response."""

    body: dict[str, Any]
    """The keyword arguments of the SDK's method."""
    definitions: Definitions[Any]
    response_schema: ResponseSchema | None = None


class ParsedResponse(Struct, frozen=True, kw_only=True):
    """A response as its adapter parsed it, before calls are decoded and costs are added."""

    text: str
    calls: Sequence[ToolCall]
    finish_reason: FinishReason
    usage: Usage
    id: str
    model: str
    native_items: Sequence[Any]
    """The response in the API's own format, to be sent back unchanged."""


class Adapter(Protocol):
    """Everything that differs between two APIs: building a request, sending it, parsing the response."""

    label: ClassVar[str]
    """The first part of the provider's name: `openai` in `openai:gpt-5`."""
    format: ClassVar[str]
    """The module of `handrail.formats` whose native messages this API takes back."""
    response_noun: ClassVar[str]
    """What a response is called in an error message."""

    @property
    def connection(self) -> ProviderConnection: ...

    def build_request(self, request: ModelRequest) -> ProviderRequest: ...

    async def send(self, body: dict[str, Any]) -> Any:
        """Send a request and return the SDK's response object."""
        ...

    def open_stream(self, body: dict[str, Any]) -> AbstractAsyncContextManager[AsyncIterator[Any]]:
        """Open a stream of events; leaving the context closes the connection."""
        ...

    def read_text(self, event: Any) -> str:
        """The text in one stream event."""
        ...

    def is_final(self, event: Any) -> bool:
        """Whether the response is complete with this event."""
        ...

    def parse_response(self, response: Any) -> ParsedResponse:
        """Parse a response, or the list of its stream events."""
        ...


class _Deadline(Struct):
    """The time left for one request. Only the waits for the server count, not what its caller does in between.

    The SDKs count theirs anew with each byte that arrives.
    """

    left: float | None

    async def wait(self, awaitable: Awaitable[T]) -> T:
        """Await something; raise `TimeoutError` when the time is used up."""
        if self.left is None:
            return await awaitable
        started = time.monotonic()
        try:
            # In the current task: SDKs have scopes of anyio, which remember the task that they were entered in.
            async with asyncio.timeout(self.left):
                return await awaitable
        finally:
            self.left -= time.monotonic() - started


_END: Final = object()
"""What a stream gives after its last event."""


class SdkProvider:
    """A language model behind an official SDK. The adapter knows the API; errors and costs are handled here."""

    def __init__(self, adapter: Adapter, *, prices: Prices | None = None) -> None:
        self.adapter = adapter
        self._prices = prices

    @property
    def model(self) -> str:
        """The model, as the API names it."""
        return self.adapter.connection.model

    @property
    def endpoint(self) -> Endpoint:
        """The server and the key for it."""
        return self.adapter.connection.endpoint

    @property
    def name(self) -> str:
        """The API and the model: `openai:gpt-5`."""
        return f"{self.adapter.label}:{self.model}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r})"

    async def ask(self, request: ModelRequest) -> ModelResponse:
        """Send a request and return the complete response."""
        adapter = self.adapter
        sent = adapter.build_request(request)
        try:
            response = await _Deadline(adapter.connection.timeout).wait(adapter.send(sent.body))
        except self._list_expected_errors() as error:
            failure = self._convert_error(error)
        else:
            if isinstance(response, list):
                raise self._build_bad_response_error()
            return self._build_response(response, sent)
        # Raised outside of the `except`, so that the SDK's exception, which contains the key, is not chained.
        raise failure

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamEvent]:
        """Send a request and yield text as it arrives, then the complete response; a stream that ends early raises."""
        adapter = self.adapter
        sent = adapter.build_request(request)
        events: list[Any] = []
        is_complete = False
        failure: ProviderError | None = None
        texts: list[str] = []
        try:
            async with AsyncExitStack() as stack:
                deadline = _Deadline(adapter.connection.timeout)
                stream = aiter(await deadline.wait(stack.enter_async_context(adapter.open_stream(sent.body))))
                while (event := await deadline.wait(anext(stream, _END))) is not _END:
                    events.append(event)
                    is_complete = is_complete or self._parse(adapter.is_final, event)
                    text = encodable(self._parse(adapter.read_text, event))
                    if text and sent.response_schema is None:
                        texts.append(text)
                        yield TextDelta(text=text)
        except self._list_expected_errors() as error:
            failure = self._convert_error(error)
        if failure is not None:
            raise failure
        if not is_complete:
            raise provider_errors.build_cut_stream_error(adapter.connection.endpoint)
        response = self._build_response(events, sent)
        if rest := response.text.removeprefix("".join(texts)):
            yield TextDelta(text=rest)
        yield response

    async def aclose(self) -> None:
        """Close the connections of the running event loop; a client that you passed stays open."""
        if (client := self.adapter.connection.clients.pop()) is not None:
            await self.adapter.connection.sdk.close_client(client)

    def _list_expected_errors(self) -> tuple[type[BaseException], ...]:
        sdk = self.adapter.connection.sdk
        return (*sdk.get_errors(sdk.load()), *provider_errors.get_transport_errors(), *_PARSE_ERRORS)

    def _convert_error(self, error: BaseException) -> ProviderError:
        connection = self.adapter.connection
        package = connection.sdk.load()
        if isinstance(error, connection.sdk.get_errors(package)):
            details = connection.sdk.read_error(package, error)
            if details is not None:
                return provider_errors.build_error(details, endpoint=connection.endpoint, model=connection.model)
        if isinstance(error, _PARSE_ERRORS):
            return self._build_bad_response_error()
        return provider_errors.build_unreachable_error(error, endpoint=connection.endpoint)

    def _parse(self, parse: Callable[[Any], Any], value: Any) -> Any:
        try:
            return parse(value)
        except _PARSE_ERRORS:
            pass
        raise self._build_bad_response_error()

    def _build_bad_response_error(self) -> ProviderError:
        return provider_errors.build_bad_response_error(self.adapter.connection.endpoint, self.adapter.response_noun)

    def _build_response(self, response: Any, sent: ProviderRequest) -> ModelResponse:
        parsed: ParsedResponse = self._parse(lambda value: _clean(self.adapter.parse_response(value)), response)
        calls = [sent.definitions.decode(call) for call in parsed.calls]
        return ModelResponse(
            text=parsed.text if sent.response_schema is None else sent.response_schema.decode(parsed.text),
            calls=tuple(calls),
            finish_reason=_choose_finish_reason(parsed.finish_reason, calls),
            usage=parsed.usage if self._prices is None else self._prices.apply(parsed.usage),
            id=parsed.id,
            model=parsed.model,
            native=Native(format=self.adapter.format, items=tuple(parsed.native_items))
            if parsed.native_items
            else None,
        )


def _clean(parsed: ParsedResponse) -> ParsedResponse:
    """Clean the text for UTF-8 and the native items for JSON, and make the ids of calls unique."""
    items = json.loads(compact_json(list(parsed.native_items)))
    if not all(isinstance(item, dict) for item in items):
        raise TypeError("a native message must be an object")
    return structs.replace(
        parsed,
        text=encodable(parsed.text),
        calls=assign_unique_ids(parsed.calls),
        id=encodable(str(parsed.id)),
        model=encodable(str(parsed.model)),
        native_items=items,
    )


def _choose_finish_reason(finish_reason: FinishReason, calls: Sequence[ToolCall]) -> FinishReason:
    """The finish reason that agrees with the calls: many servers send `stop` with calls, or `tool_calls` without."""
    if finish_reason == "stop" and calls:
        return "tool_calls"
    return "other" if finish_reason == "tool_calls" and not calls else finish_reason


def read_token_count(value: Any) -> int:
    """Read a number of tokens; 0 if a server leaves it out, or sends null or what no response can have used."""
    return value if isinstance(value, int) and 0 < value < _MAX_TOKENS else 0


_MAX_TOKENS: Final = 10**12
"""From here on, a count would not fit into a price, a metric or a column."""


class DefinitionsCache:
    """The definitions of the last pool that was sent, so that equal pools are rendered once, to the same bytes."""

    def __init__(self, render: Callable[[Sequence[Tool[..., Any]]], Definitions[Any]]) -> None:
        self._render = render
        self._last: tuple[tuple[Tool[..., Any], ...], Definitions[Any]] = ((), render(()))

    def get(self, tools: Sequence[Tool[..., Any]]) -> Definitions[Any]:
        """The definitions of these tools."""
        last, definitions = self._last
        if len(last) != len(tools) or any(value is not other for value, other in zip(last, tools, strict=True)):
            definitions = self._render(tools)
            self._last = (tuple(tools), definitions)
        return definitions

    def get_allowed(self, request: ModelRequest) -> Definitions[Any]:
        """The definitions that the tool choice allows, for an API that cannot limit a choice to some tools."""
        choice = request.tool_choice
        if not choice.allowed:
            return self.get(request.tools)
        check_tool_choice(choice.mode, choice.tool, choice.allowed, self._render(request.tools))
        return self.get([tool for tool in request.tools if tool.name in choice.allowed])


@asynccontextmanager
async def open_events(method: Callable[..., Any], body: dict[str, Any]) -> AsyncGenerator[AsyncIterator[Any]]:
    """Call an SDK's method with `stream=True`, and close the connection at the end."""
    async with await method(**body, stream=True) as stream:
        yield stream

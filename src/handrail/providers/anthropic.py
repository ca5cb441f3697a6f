"""Anthropic's Messages API: requests, responses, streams and errors."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from inspect import signature
from typing import Any, ClassVar, Final, cast

from handrail.core.log import quiet_library
from handrail.core.text import compact_json, encodable
from handrail.errors import MissingExtraError
from handrail.formats import anthropic as wire
from handrail.formats import names
from handrail.formats.call_parsing import get_field
from handrail.formats.definitions import Definitions
from handrail.providers.endpoints import NO_KEY, Endpoint, ProviderInfo
from handrail.providers.message_conversion import (
    CONTINUE,
    CONVERSATION_START,
    EMPTY_TEXT,
    AssistantStep,
    NativeCalls,
    NativeItems,
    NativeStep,
    ResultsStep,
    TranscriptRules,
    TranscriptStep,
    UserStep,
    build_steps,
    read_arguments,
)
from handrail.providers.provider import FinishReason, ModelRequest, Prices, ToolChoice, Usage
from handrail.providers.provider_errors import read_stainless_error
from handrail.providers.response_schema import ResponseSchema, build_response_schema
from handrail.providers.sdk_provider import (
    DefinitionsCache,
    ParsedResponse,
    ProviderConnection,
    ProviderRequest,
    Sdk,
    SdkProvider,
    connect,
    open_events,
    read_token_count,
)
from handrail.schema import strict_schema

_ANTHROPIC: Final = ProviderInfo(
    title="Anthropic",
    label="anthropic",
    key_variables=("ANTHROPIC_API_KEY",),
    base_url_variable="ANTHROPIC_BASE_URL",
    domain="api.anthropic.com",
)
_FINISH_REASONS: Final[Mapping[Any, FinishReason]] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
}


class AnthropicMessages(SdkProvider):
    """A model behind Anthropic Messages. The API requires `max_tokens`, so it has a default.

    The options are those of `OpenAIResponses`.
    """

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
        max_tokens: int = 8_192,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        connection = connect(
            ANTHROPIC,
            model,
            client=client,
            api_key=api_key,
            base_url=base_url,
            timeout=timeout,
            max_retries=max_retries,
            max_tokens=max_tokens,
            options=options,
            list_options=lambda client: signature(client.messages.create).parameters,
        )
        super().__init__(_MessagesAdapter(connection), prices=prices)


class _MessagesAdapter:
    """Builds requests for Anthropic Messages, and reads its responses."""

    label: ClassVar[str] = "anthropic"
    format: ClassVar[str] = "anthropic"
    response_noun: ClassVar[str] = "a message"

    def __init__(self, connection: ProviderConnection) -> None:
        self.connection = connection
        self._definitions = DefinitionsCache(wire.tools)

    def build_request(self, request: ModelRequest) -> ProviderRequest:
        """The keyword arguments of the SDK's method for a request."""
        definitions = self._definitions.get_allowed(request)
        steps = build_steps(request.messages, rules=_RULES, definitions=definitions)
        messages = [message for step in steps for message in _render_step(step)]
        if messages[0]["role"] != "user":
            messages.insert(0, {"role": "user", "content": CONVERSATION_START})
        if not _can_model_speak_next(steps[-1]):
            messages.append({"role": "user", "content": CONTINUE})
        body: dict[str, Any] = {
            **self.connection.options,
            "model": self.connection.model,
            "messages": messages,
            "max_tokens": request.max_tokens or self.connection.max_tokens,
        }
        instructions = encodable(request.instructions)
        if definitions:
            body["tools"] = definitions
        elif used := _define_used_tools(steps):
            body |= {"tools": used, "tool_choice": {"type": "none"}}
        if request.tool_choice != ToolChoice(allowed=request.tool_choice.allowed):
            choice = wire.tool_choice(request.tool_choice.mode, tool=request.tool_choice.tool, definitions=definitions)
            body |= {"tool_choice": choice} if definitions else {}
        response_schema: ResponseSchema | None = None
        if request.schema is not None:
            response_schema = build_response_schema(request.schema, dialect=strict_schema.ANTHROPIC)
            if response_schema.strict and _has_strict_budget(response_schema, definitions):
                form = {"type": "json_schema", "schema": response_schema.schema}
                body["output_config"] = {**body.get("output_config", {}), "format": form}
            else:
                wish = f"Respond only with JSON that fits this JSON Schema: {compact_json(response_schema.schema)}"
                instructions = f"{instructions}\n\n{wish}".strip()
        if instructions.strip():
            body["system"] = instructions
        return ProviderRequest(body=body, definitions=definitions, response_schema=response_schema)

    async def send(self, body: dict[str, Any]) -> Any:
        """Send a request and return the SDK's response object."""
        return await self.connection.clients.get().messages.create(**body)

    def open_stream(self, body: dict[str, Any]) -> AbstractAsyncContextManager[AsyncIterator[Any]]:
        """Open a stream of events."""
        return open_events(self.connection.clients.get().messages.create, body)

    def read_text(self, event: Any) -> str:
        """The text in one stream event."""
        return (
            get_field(get_field(event, "delta"), "text") or ""
            if get_field(event, "type") == "content_block_delta"
            else ""
        )

    def is_final(self, event: Any) -> bool:
        """Whether this is the last event."""
        return get_field(event, "type") == "message_stop"

    def parse_response(self, response: Any) -> ParsedResponse:
        """Parse a message, or the list of its stream events."""
        first, ending, used = _read_envelope(response)
        reason = get_field(ending, "stop_reason")
        messages = wire.assistant_messages(response)
        blocks = cast(Sequence[Any], get_field(messages[0], "content") if messages else ())
        if not all(isinstance(block, Mapping) for block in blocks):
            raise ValueError("a message has blocks")
        text = "".join(get_field(block, "text") or "" for block in blocks if get_field(block, "type") == "text")
        explained = get_field(get_field(ending, "stop_details"), "explanation") if reason == "refusal" else None
        cached = read_token_count(get_field(used, "cache_read_input_tokens"))
        written = read_token_count(get_field(used, "cache_creation_input_tokens"))
        return ParsedResponse(
            text=text or explained or "",
            calls=wire.calls(response),
            finish_reason=_FINISH_REASONS.get(reason, "other"),
            usage=Usage(
                input=read_token_count(get_field(used, "input_tokens")) + cached + written,
                output=read_token_count(get_field(used, "output_tokens")),
                cached=cached,
            ),
            id=get_field(first, "id") or "",
            model=get_field(first, "model") or "",
            native_items=messages,
        )


def _define_used_tools(steps: Sequence[TranscriptStep]) -> list[dict[str, Any]]:
    """Define the tools that were called before: the API refuses a conversation with calls and no tools."""
    names = dict.fromkeys(
        call.name for step in steps if isinstance(step, AssistantStep | NativeStep) for call in step.calls
    )
    empty: dict[str, Any] = {"type": "object", "properties": {}}
    return [{"name": name, "description": "Not available any more.", "input_schema": empty} for name in names]


def _can_model_speak_next(last: TranscriptStep) -> bool:
    """Whether the model may respond next: newer ones do not continue their own message, except a paused turn."""
    if isinstance(last, AssistantStep):
        return False
    blocks = [block for item in last.items for block in item["content"]] if isinstance(last, NativeStep) else []
    return not blocks or any(get_field(block, "type") == "server_tool_use" for block in blocks)


def _read_envelope(response: Any) -> tuple[Any, Any, dict[str, Any]]:
    """Read the start, the end and the usage of a message; of two values, the later one counts."""
    if not isinstance(response, list):
        if not isinstance(get_field(response, "content"), list):
            raise ValueError("a message has content")
        return response, response, _read_usage(get_field(response, "usage"))
    events = cast(list[Any], response)
    first = next((get_field(event, "message") for event in events if get_field(event, "type") == "message_start"), None)
    last = next((event for event in reversed(events) if get_field(event, "type") == "message_delta"), None)
    return (
        first,
        get_field(last, "delta"),
        _read_usage(get_field(first, "usage")) | _read_usage(get_field(last, "usage")),
    )


def _read_usage(usage: Any) -> dict[str, Any]:
    names = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    return {name: value for name in names if (value := get_field(usage, name)) is not None}


def _has_strict_budget(response_schema: ResponseSchema, definitions: Definitions[Any]) -> bool:
    """Whether the request has room for one more strict schema."""
    schemas = [definition["input_schema"] for definition in definitions if definition.get("strict")]
    costs = [wire.count_strict_cost(schema) for schema in (*schemas, response_schema.schema)]
    limits = {what: most for what, most in wire.STRICT_LIMITS.items() if what != "strict tools"}
    return all(sum(cost[what] for cost in costs) <= most for what, most in limits.items())


def _read_native_calls(items: NativeItems) -> NativeCalls | None:
    return [(call.id, call.name) for call in wire.calls(items[0])] if len(items) == 1 else None


_RULES: Final = TranscriptRules(
    format=_MessagesAdapter.format, ids=names.ANTHROPIC_ID, names=names.ANTHROPIC, read_native_calls=_read_native_calls
)


def _render_step(step: TranscriptStep) -> list[Any]:
    match step:
        case UserStep():
            return [{"role": "user", "content": step.text if step.text.strip() else EMPTY_TEXT}]
        case ResultsStep():
            return [*wire.results(step.results)]
        case AssistantStep():
            text = [{"type": "text", "text": step.text}] if step.text.strip() else []
            calls = [
                {"type": "tool_use", "id": call.id, "name": call.name, "input": read_arguments(call)}
                for call in step.calls
            ]
            return [{"role": "assistant", "content": [*text, *calls]}]
        case NativeStep():
            return [*step.items]


def _load_sdk() -> Any:
    try:
        import anthropic  # noqa: PLC0415  # optional
    except ImportError as error:
        raise MissingExtraError("anthropic", extra="anthropic") from error
    quiet_library("anthropic")  # At DEBUG it logs every request with its messages.
    return anthropic


def _read_client(client: Any) -> Endpoint:
    return Endpoint(
        provider=_ANTHROPIC, api_key=str(client.api_key or client.auth_token or NO_KEY), base_url=str(client.base_url)
    )


def _create_client(package: Any, endpoint: Endpoint, timeout: float, max_retries: int) -> Any:
    return package.AsyncAnthropic(
        api_key=endpoint.api_key, base_url=endpoint.base_url, timeout=timeout, max_retries=max_retries
    )


ANTHROPIC: Final = Sdk(
    provider=_ANTHROPIC,
    load=_load_sdk,
    create_client=_create_client,
    close_client=lambda client: client.close(),
    read_client=_read_client,
    get_errors=lambda package: (package.AnthropicError,),
    read_error=read_stainless_error,
)

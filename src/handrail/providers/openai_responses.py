"""OpenAI's Responses API: requests, responses, streams and errors."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from inspect import signature
from typing import Any, ClassVar, Final, cast

from handrail.core.text import encodable
from handrail.formats import names
from handrail.formats import openai_responses as wire
from handrail.formats.call_parsing import get_field
from handrail.providers import openai_sdk
from handrail.providers.message_conversion import (
    AssistantStep,
    NativeCalls,
    NativeItems,
    NativeStep,
    ResultsStep,
    TranscriptRules,
    TranscriptStep,
    UserStep,
    build_steps,
    render_arguments,
)
from handrail.providers.provider import FinishReason, ModelRequest, Prices, ToolChoice, Usage
from handrail.providers.provider_errors import ErrorDetails, build_error
from handrail.providers.response_schema import build_response_schema
from handrail.providers.sdk_provider import (
    DefinitionsCache,
    ParsedResponse,
    ProviderConnection,
    ProviderRequest,
    SdkProvider,
    connect,
    open_events,
    read_token_count,
)
from handrail.schema import strict_schema

_TEXT_EVENTS: Final = ("response.output_text.delta", "response.refusal.delta")
_FINISH_REASONS: Final[Mapping[Any, FinishReason]] = {"max_output_tokens": "length", "content_filter": "refusal"}


class OpenAIResponses(SdkProvider):
    """A model behind OpenAI Responses. The whole conversation is sent each time; nothing is looked up by its id."""

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
        """Connect to nothing yet: the first request does.

        Args:
            model: The name of the model.
            client: A client of the official SDK, if you have one already.
            api_key: The key; by default that of the environment, as the SDK reads it.
            base_url: Another server that speaks the same API.
            timeout: Seconds that one request may take, to its last byte and with what is tried again.
            max_retries: How often the SDK tries a request again that failed on the way.
            prices: What tokens cost, to add `usage.cost`.
            max_tokens: Tokens of one response.
            options: Further parameters of every request, such as `temperature`.
        """
        connection = connect(
            openai_sdk.OPENAI,
            model,
            client=client,
            api_key=api_key,
            base_url=base_url,
            timeout=timeout,
            max_retries=max_retries,
            max_tokens=max_tokens,
            options=options,
            list_options=lambda client: signature(client.responses.create).parameters,
        )
        super().__init__(_ResponsesAdapter(connection), prices=prices)


class _ResponsesAdapter:
    """Builds requests for Responses, and reads its responses."""

    label: ClassVar[str] = "openai-responses"
    format: ClassVar[str] = "openai_responses"
    response_noun: ClassVar[str] = "a response"

    def __init__(self, connection: ProviderConnection) -> None:
        self.connection = connection
        self._definitions = DefinitionsCache(wire.tools)

    def build_request(self, request: ModelRequest) -> ProviderRequest:
        """The keyword arguments of the SDK's method for a request."""
        definitions = self._definitions.get(request.tools)
        response_schema = (
            None if request.schema is None else build_response_schema(request.schema, dialect=strict_schema.OPENAI)
        )
        steps = build_steps(request.messages, rules=_RULES, definitions=definitions)
        body: dict[str, Any] = {
            **self.connection.options,
            "model": self.connection.model,
            "input": [item for step in steps for item in _render_step(step)],
        }
        if request.instructions:
            body["instructions"] = encodable(request.instructions)
        if definitions:
            body["tools"] = definitions
        if (limit := request.max_tokens or self.connection.max_tokens) is not None:
            body["max_output_tokens"] = limit
        if request.tool_choice != ToolChoice():
            chosen = request.tool_choice
            choice = wire.tool_choice(chosen.mode, tool=chosen.tool, allowed=chosen.allowed, definitions=definitions)
            body |= {"tool_choice": choice} if definitions else {}
        if response_schema is not None:
            form = {"type": "json_schema", **openai_sdk.render_response_schema(response_schema)}
            body["text"] = {**body.get("text", {}), "format": form}
        return ProviderRequest(body=body, definitions=definitions, response_schema=response_schema)

    async def send(self, body: dict[str, Any]) -> Any:
        """Send a request and return the SDK's response object."""
        return await self.connection.clients.get().responses.create(**body)

    def open_stream(self, body: dict[str, Any]) -> AbstractAsyncContextManager[AsyncIterator[Any]]:
        """Open a stream of events."""
        return open_events(self.connection.clients.get().responses.create, body)

    def read_text(self, event: Any) -> str:
        """The words in an event."""
        if get_field(event, "type") == "error":
            raise self._build_error(event)
        return get_field(event, "delta") or "" if get_field(event, "type") in _TEXT_EVENTS else ""

    def is_final(self, event: Any) -> bool:
        """Whether this event holds the whole response."""
        return get_field(event, "type") in wire.FINAL_EVENTS

    def parse_response(self, response: Any) -> ParsedResponse:
        """A response, or the events of one; what failed is raised."""
        if isinstance(response, list):
            last = next(item for item in reversed(cast(list[Any], response)) if self.is_final(item))
            response = get_field(last, "response")
        status = get_field(response, "status")
        if status == "failed":
            raise self._build_error(get_field(response, "error"))
        output: list[Any] = get_field(response, "output")
        if not isinstance(output, list) or not isinstance(status, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError("a response has a status and an output")
        parts = [
            part for item in output if get_field(item, "type") == "message" for part in get_field(item, "content") or ()
        ]
        refused = any(get_field(part, "type") == "refusal" for part in parts)
        finish_reason: FinishReason = "stop" if status == "completed" else "other"
        if status == "incomplete":
            finish_reason = _FINISH_REASONS.get(get_field(get_field(response, "incomplete_details"), "reason"), "other")
        used = get_field(response, "usage")
        return ParsedResponse(
            text="".join(get_field(part, "text") or get_field(part, "refusal") or "" for part in parts),
            calls=wire.calls(response),
            finish_reason="refusal" if refused else finish_reason,
            usage=Usage(
                input=read_token_count(get_field(used, "input_tokens")),
                output=read_token_count(get_field(used, "output_tokens")),
                cached=read_token_count(get_field(get_field(used, "input_tokens_details"), "cached_tokens")),
            ),
            id=get_field(response, "id") or "",
            model=get_field(response, "model") or "",
            native_items=wire.assistant_messages(response),
        )

    def _build_error(self, error: Any) -> Exception:
        details = ErrorDetails(code=str(get_field(error, "code") or ""), message=str(get_field(error, "message") or ""))
        return build_error(details, endpoint=self.connection.endpoint, model=self.connection.model)


def _read_native_calls(items: NativeItems) -> NativeCalls | None:
    return [(call.id, call.name) for call in wire.calls(list(items))]


_RULES: Final = TranscriptRules(
    format=_ResponsesAdapter.format,
    ids=names.OPENAI_RESPONSES_ID,
    names=names.OPENAI_RESPONSES,
    read_native_calls=_read_native_calls,
)


def _render_step(step: TranscriptStep) -> list[Any]:
    match step:
        case UserStep():
            return [{"role": "user", "content": step.text}]
        case ResultsStep():
            return [*wire.results(step.results)]
        case AssistantStep():
            steps = [{"role": "assistant", "content": step.text}] if step.text.strip() else []
            return [
                *steps,
                *(
                    {
                        "type": "function_call",
                        "call_id": call.id,
                        "name": call.name,
                        "arguments": render_arguments(call),
                    }
                    for call in step.calls
                ),
            ]
        case NativeStep():
            return [*step.items]

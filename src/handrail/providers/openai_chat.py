"""OpenAI Chat Completions, and the many servers that speak it: Ollama, vLLM, llama.cpp."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from inspect import signature
from typing import Any, ClassVar, Final, cast

from msgspec import structs

from handrail.core.text import encodable
from handrail.formats import names
from handrail.formats import openai_chat as wire
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
    has_object_arguments,
    render_arguments,
)
from handrail.providers.provider import FinishReason, ModelRequest, Prices, ToolChoice, Usage
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

_FINISH_REASONS: Final[Mapping[str | None, FinishReason]] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "refusal",
}


class OpenAIChat(SdkProvider):
    """A model behind Chat Completions: OpenAI's own, or any server that `base_url` names, which needs no key.

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
        max_tokens: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
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
            list_options=lambda client: signature(client.chat.completions.create).parameters,
        )
        super().__init__(_ChatAdapter(connection), prices=prices)


class _ChatAdapter:
    """Builds requests for Chat Completions, and reads its responses."""

    label: ClassVar[str] = "openai"
    format: ClassVar[str] = "openai_chat"
    response_noun: ClassVar[str] = "a chat completion"

    def __init__(self, connection: ProviderConnection) -> None:
        self.connection = connection
        self._definitions = DefinitionsCache(wire.tools)

    def build_request(self, request: ModelRequest) -> ProviderRequest:
        """The keyword arguments of the SDK's method for a request."""
        # Few other servers know a choice among some tools, and one that is passed over is no limit.
        narrow = not self.connection.endpoint.is_official
        definitions = self._definitions.get_allowed(request) if narrow else self._definitions.get(request.tools)
        response_schema = (
            None if request.schema is None else build_response_schema(request.schema, dialect=strict_schema.OPENAI)
        )
        steps = build_steps(request.messages, rules=_RULES, definitions=definitions)
        system = [{"role": "system", "content": encodable(request.instructions)}] if request.instructions else []
        messages = [*system, *(message for step in steps for message in _render_step(step))]
        body: dict[str, Any] = {**self.connection.options, "model": self.connection.model, "messages": messages}
        if definitions:
            body["tools"] = definitions
        if (limit := request.max_tokens or self.connection.max_tokens) is not None:
            # OpenAI's newer models refuse the old name; many other servers know no other.
            body["max_completion_tokens" if self.connection.endpoint.is_official else "max_tokens"] = limit
        chosen = structs.replace(request.tool_choice, allowed=()) if narrow else request.tool_choice
        if chosen != ToolChoice():
            choice = wire.tool_choice(chosen.mode, tool=chosen.tool, allowed=chosen.allowed, definitions=definitions)
            body |= {"tool_choice": choice} if definitions else {}
        if response_schema is not None:
            form = openai_sdk.render_response_schema(response_schema)
            body["response_format"] = {"type": "json_schema", "json_schema": form}
        return ProviderRequest(body=body, definitions=definitions, response_schema=response_schema)

    async def send(self, body: dict[str, Any]) -> Any:
        """Send a request and return the SDK's response object."""
        return await self.connection.clients.get().chat.completions.create(**body)

    def open_stream(self, body: dict[str, Any]) -> AbstractAsyncContextManager[AsyncIterator[Any]]:
        """Open a stream of events."""
        options = {"include_usage": True, **body.get("stream_options", {})}
        return open_events(self.connection.clients.get().chat.completions.create, {**body, "stream_options": options})

    def read_text(self, event: Any) -> str:
        """The words in a chunk."""
        delta = get_field(_read_choice(event), "delta")
        return (get_field(delta, "content") or "") + (get_field(delta, "refusal") or "")

    def is_final(self, event: Any) -> bool:
        """Whether the model says in this chunk why it stopped."""
        return bool(get_field(_read_choice(event), "finish_reason"))  # Some servers send an empty one with every chunk.

    def parse_response(self, response: Any) -> ParsedResponse:
        """A completion, or the chunks of one."""
        chunks = cast(list[Any], response) if isinstance(response, list) else [response]
        if not isinstance(response, list) and _read_choice(response) is None:
            raise ValueError("a completion has choices")
        (message,) = wire.assistant_messages(response)
        reasons = [reason for chunk in chunks if (reason := get_field(_read_choice(chunk), "finish_reason"))]
        refused = get_field(message, "refusal") or ""
        finish_reason: FinishReason = _FINISH_REASONS.get(reasons[-1] if reasons else None, "other")
        used = next((found for chunk in reversed(chunks) if (found := get_field(chunk, "usage")) is not None), None)
        return ParsedResponse(
            text=(get_field(message, "content") or "") + refused,
            calls=wire.calls(response),
            finish_reason="refusal" if refused else finish_reason,
            usage=Usage(
                input=read_token_count(get_field(used, "prompt_tokens")),
                output=read_token_count(get_field(used, "completion_tokens")),
                cached=read_token_count(get_field(get_field(used, "prompt_tokens_details"), "cached_tokens")),
            ),
            id=get_field(chunks[0], "id") or "",
            model=get_field(chunks[0], "model") or "",
            # Other servers refuse fields that they do not know, also empty ones.
            native_items=[{key: value for key, value in message.items() if value != []}],
        )


def _read_choice(response: Any) -> Any:
    """The one choice that is read; others were not asked for."""
    return next((item for item in get_field(response, "choices") or () if not get_field(item, "index")), None)


def _read_native_calls(items: NativeItems) -> NativeCalls | None:
    """The calls of a message. Many servers read the arguments of calls again, and fail if they are no JSON."""
    if len(items) != 1:
        return None
    message = items[0]
    calls = wire.calls(message)
    if not all(has_object_arguments(call) for call in calls) or not any(
        get_field(message, key) for key in ("content", "tool_calls", "refusal")
    ):
        return None
    return [(call.id, call.name) for call in calls]


_RULES: Final = TranscriptRules(
    format=_ChatAdapter.format, ids=names.OPENAI_CHAT_ID, names=names.OPENAI_CHAT, read_native_calls=_read_native_calls
)


def _render_step(step: TranscriptStep) -> list[Any]:
    match step:
        case UserStep():
            return [{"role": "user", "content": step.text}]
        case ResultsStep():
            return [*wire.results(step.results)]
        case AssistantStep():
            calls = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": render_arguments(call)},
                }
                for call in step.calls
            ]
            message = {"role": "assistant", "content": step.text or None}
            return [{**message, "tool_calls": calls} if calls else message]
        case NativeStep():
            return [*step.items]

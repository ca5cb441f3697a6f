"""Google's generateContent API: requests, responses, streams and errors."""

import math
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from typing import Any, ClassVar, Final, cast

import pydantic
from msgspec import structs

from handrail.core.text import compact_json, encodable
from handrail.core.values import ToolCall, ToolResult
from handrail.errors import ConfigError, MissingExtraError
from handrail.formats import gemini as wire
from handrail.formats import names
from handrail.formats.call_parsing import get_field
from handrail.formats.gemini import get_camel_field
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
from handrail.providers.provider_errors import read_google_error
from handrail.providers.response_schema import build_response_schema
from handrail.providers.sdk_provider import (
    DefinitionsCache,
    ParsedResponse,
    ProviderConnection,
    ProviderRequest,
    Sdk,
    SdkProvider,
    connect,
    read_token_count,
)

_GEMINI: Final = ProviderInfo(
    title="Gemini",
    label="gemini",
    key_variables=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    base_url_variable="GOOGLE_GEMINI_BASE_URL",
    domain="generativelanguage.googleapis.com",
)
_FINISH_REASONS: Final[Mapping[str, FinishReason]] = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "SAFETY": "refusal",
    "RECITATION": "refusal",
    "BLOCKLIST": "refusal",
    "PROHIBITED_CONTENT": "refusal",
    "SPII": "refusal",
    "IMAGE_SAFETY": "refusal",
    "IMAGE_PROHIBITED_CONTENT": "refusal",
    "IMAGE_RECITATION": "refusal",
}
_FOREIGN_CALL_SIGNATURE: Final = b"skip_thought_signature_validator"
"""What Google documents as the signature of a call that another model has made."""
_TEXT_RESULTS_ONLY: Final = re.compile(r"(gemini-[12]\b|gemma)")
"""Models that take no media in the response of a function; Gemini 3 was the first that does."""


class GeminiModel(SdkProvider):
    """A model behind Gemini's generateContent.

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
            GEMINI,
            model,
            client=client,
            api_key=api_key,
            base_url=base_url,
            timeout=timeout,
            max_retries=max_retries,
            max_tokens=max_tokens,
            options=options,
            list_options=lambda _: _load_sdk().types.GenerateContentConfig.model_fields,
        )
        super().__init__(_GenerateContentAdapter(connection), prices=prices)


class _GenerateContentAdapter:
    """Builds requests for generateContent, and reads its responses."""

    label: ClassVar[str] = "gemini"
    format: ClassVar[str] = "gemini"
    response_noun: ClassVar[str] = "a response of generateContent"

    def __init__(self, connection: ProviderConnection) -> None:
        self.connection = connection
        self._definitions = DefinitionsCache(wire.tools)

    def build_request(self, request: ModelRequest) -> ProviderRequest:
        """The keyword arguments of the SDK's method for a request."""
        types = _load_sdk().types
        definitions = self._definitions.get(request.tools)
        response_schema = None if request.schema is None else build_response_schema(request.schema, dialect=None)
        steps = build_steps(request.messages, rules=_RULES, definitions=definitions)
        config: dict[str, Any] = {**self.connection.options, "automatic_function_calling": {"disable": True}}
        if request.instructions.strip():
            config["system_instruction"] = encodable(request.instructions)
        if definitions:
            config["tools"] = list(definitions)
        if (limit := request.max_tokens or self.connection.max_tokens) is not None:
            config["max_output_tokens"] = limit
        if request.tool_choice != ToolChoice():
            chosen = request.tool_choice
            choice = wire.tool_choice(chosen.mode, tool=chosen.tool, allowed=chosen.allowed, definitions=definitions)
            config |= {"tool_config": choice} if definitions else {}
        if response_schema is not None:
            config |= {
                "response_mime_type": "application/json",
                "response_json_schema": wire.replace_const(response_schema.schema),
            }
        takes_media = not _TEXT_RESULTS_ONLY.match(self.connection.model.rpartition("/")[2])
        contents = _merge_roles([_render_step(step, types, takes_media=takes_media) for step in steps])
        try:
            body = {
                "model": self.connection.model,
                "contents": contents,
                "config": types.GenerateContentConfig(**config),
            }
        except pydantic.ValidationError as error:
            raise ConfigError(f"Gemini's SDK does not take these options: {error}") from error
        return ProviderRequest(body=body, definitions=definitions, response_schema=response_schema)

    async def send(self, body: dict[str, Any]) -> Any:
        """Send a request and return the SDK's response object."""
        return await self.connection.clients.get().aio.models.generate_content(**body)

    def open_stream(self, body: dict[str, Any]) -> AbstractAsyncContextManager[AsyncIterator[Any]]:
        """Open a stream of events."""
        return _open_chunks(self.connection.clients.get(), body)

    def read_text(self, event: Any) -> str:
        """The text in one chunk."""
        return "".join(get_field(part, "text") or "" for part in _read_parts(event) if not get_field(part, "thought"))

    def is_final(self, event: Any) -> bool:
        """Whether this chunk has a finish reason, or the reason of a blocked prompt."""
        return bool(_read_finish_reason(event)) or _is_blocked(event)

    def parse_response(self, response: Any) -> ParsedResponse:
        """Parse a response, or the list of its chunks."""
        chunks = cast(list[Any], response) if isinstance(response, list) else [response]
        reason = next((found for chunk in reversed(chunks) if (found := _read_finish_reason(chunk))), "")
        blocked = any(map(_is_blocked, chunks))
        used = next(
            (found for chunk in reversed(chunks) if (found := get_camel_field(chunk, "usage_metadata")) is not None),
            None,
        )
        if not blocked and all(_read_candidate(chunk) is None for chunk in chunks):
            raise ValueError("a response has candidates")
        text = "".join(map(self.read_text, chunks))
        finish_reason: FinishReason = "refusal" if blocked else _FINISH_REASONS.get(reason, "other")
        if not text and finish_reason == "refusal":
            text = next((found for chunk in chunks if (found := _read_refusal(chunk))), "")
        return ParsedResponse(
            text=text,
            calls=wire.calls(response),
            finish_reason=finish_reason,
            usage=Usage(
                input=read_token_count(get_camel_field(used, "prompt_token_count")),
                output=read_token_count(get_camel_field(used, "candidates_token_count"))
                + read_token_count(get_camel_field(used, "thoughts_token_count")),
                cached=read_token_count(get_camel_field(used, "cached_content_token_count")),
            ),
            id=get_camel_field(chunks[0], "response_id") or "",
            model=get_camel_field(chunks[0], "model_version") or "",
            native_items=_to_json_contents(wire.assistant_messages(response)),
        )


class _StreamResponse:
    """Holds the HTTP response of a stream, which the SDK does not close if the stream is left early."""

    response: Any = None


_STREAM_RESPONSE: Final[ContextVar[_StreamResponse | None]] = ContextVar("opened", default=None)


async def _keep_response(response: Any) -> None:
    """Keep the first successful response after a stream was requested; no other request runs in between."""
    opened = _STREAM_RESPONSE.get()
    if opened is not None and opened.response is None and response.status_code == 200:
        opened.response = response


@asynccontextmanager
async def _open_chunks(client: Any, body: dict[str, Any]) -> AsyncGenerator[AsyncIterator[Any]]:
    opened = _StreamResponse()
    _STREAM_RESPONSE.set(opened)
    chunks = await client.aio.models.generate_content_stream(**body)
    try:
        yield chunks
    finally:
        await chunks.aclose()
        if opened.response is not None:
            await opened.response.aclose()


def _read_candidate(response: Any) -> Any:
    return next(iter(get_field(response, "candidates") or ()), None)


def _read_parts(response: Any) -> Sequence[Any]:
    return get_field(get_field(_read_candidate(response), "content"), "parts") or ()


def _read_finish_reason(response: Any) -> str:
    reason = get_camel_field(_read_candidate(response), "finish_reason")
    return str(getattr(reason, "value", reason) or "")


def _is_blocked(response: Any) -> bool:
    return get_camel_field(get_camel_field(response, "prompt_feedback"), "block_reason") is not None


def _read_refusal(response: Any) -> str:
    feedback = get_camel_field(response, "prompt_feedback")
    return (
        get_camel_field(_read_candidate(response), "finish_message")
        or get_camel_field(feedback, "block_reason_message")
        or ""
    )


def _to_json_contents(contents: Sequence[Any]) -> list[Any]:
    """Convert the model's contents to JSON; the SDK encodes signatures, which are bytes."""
    content = _load_sdk().types.Content
    return [content.model_validate(item).model_dump(mode="json", exclude_none=True) for item in contents]


def _read_native_calls(items: NativeItems) -> NativeCalls | None:
    if len(items) != 1:
        return None
    calls = [
        call
        for part in get_field(items[0], "parts") or ()
        if (call := get_camel_field(part, "function_call")) is not None
    ]
    return [(get_field(call, "id"), get_field(call, "name") or "") for call in calls]


_RULES: Final = TranscriptRules(
    format=_GenerateContentAdapter.format,
    ids=names.GEMINI_ID,
    names=names.GEMINI,
    read_native_calls=_read_native_calls,
    needs_ids=False,
)


def _without_media(result: ToolResult) -> ToolResult:
    """The result with its media described in the text."""
    return structs.replace(result, output=result.for_model(), media=()) if result.media else result


def _render_step(step: TranscriptStep, types: Any, *, takes_media: bool) -> dict[str, Any]:
    match step:
        case UserStep():
            return {"role": "user", "parts": [{"text": step.text if step.text.strip() else EMPTY_TEXT}]}
        case ResultsStep():
            results = step.results if takes_media else map(_without_media, step.results)
            (content,) = cast(list[Any], wire.results(results))
            for part, name in zip(content["parts"], step.names, strict=True):
                part["function_response"]["name"] = name
            return content
        case AssistantStep():
            text = [{"text": step.text}] if step.text.strip() else []
            calls = [
                {
                    "function_call": _render_call(call),
                    "thought_signature": _FOREIGN_CALL_SIGNATURE,
                }
                for call in step.calls
            ]
            return {"role": "model", "parts": [*text, *calls]}
        case NativeStep():
            parts = [types.Content.model_validate_json(compact_json(item)).parts for item in step.items]
            return {"role": "model", "parts": [part for some in parts for part in some]}


def _render_call(call: ToolCall) -> dict[str, Any]:
    rendered: dict[str, Any] = {"name": call.name, "args": read_arguments(call)}
    return {**rendered, "id": call.wire_id} if call.wire_id else rendered


def _merge_roles(contents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge neighbouring contents of one role; the API requires the user first and last."""
    if contents[0]["role"] != "user":
        contents = [{"role": "user", "parts": [{"text": CONVERSATION_START}]}, *contents]
    if contents[-1]["role"] != "user":
        contents = [*contents, {"role": "user", "parts": [{"text": CONTINUE}]}]
    found: list[dict[str, Any]] = []
    for content in contents:
        if found and found[-1]["role"] == content["role"]:
            found[-1] = {"role": content["role"], "parts": [*found[-1]["parts"], *content["parts"]]}
        else:
            found.append(content)
    return found


def _load_sdk() -> Any:
    try:
        from google import genai  # noqa: PLC0415  # optional
        from google.genai import errors, types  # noqa: F401, PLC0415  # pyright: ignore[reportUnusedImport]
    except ImportError as error:
        raise MissingExtraError("google-genai", extra="gemini") from error
    return genai


def _read_client(client: Any) -> Endpoint:
    inner = getattr(client, "_api_client", None)
    return Endpoint(provider=_GEMINI, api_key=str(getattr(inner, "api_key", None) or NO_KEY), base_url=None)


def _create_client(package: Any, endpoint: Endpoint, timeout: float, max_retries: int) -> Any:
    http: dict[str, Any] = {
        "timeout": None if math.isinf(timeout) else max(1, int(timeout * 1_000)),
        "retry_options": {"attempts": max_retries + 1},
        "async_client_args": {"event_hooks": {"response": [_keep_response]}},
    }
    if endpoint.base_url is not None:
        http["base_url"] = endpoint.base_url
    return package.Client(api_key=endpoint.api_key, vertexai=False, http_options=http)


async def _close_client(client: Any) -> None:
    await client.aio.aclose()
    client.close()


GEMINI: Final = Sdk(
    provider=_GEMINI,
    load=_load_sdk,
    create_client=_create_client,
    close_client=_close_client,
    read_client=_read_client,
    get_errors=lambda package: (package.errors.APIError,),
    read_error=lambda _, error: read_google_error(error),
)

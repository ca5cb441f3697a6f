"""Google Gemini: generateContent."""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from typing import Any, ClassVar, Final, cast

import pydantic

from handrail.core.text import compact_json, encodable
from handrail.errors import ConfigError, MissingExtraError
from handrail.formats import gemini as wire
from handrail.formats.gemini_stream import field
from handrail.formats.incoming import read
from handrail.providers import asking
from handrail.providers.connect import NO_KEY, Access, Clients, Place, check_patience, checked_options, reached
from handrail.providers.failures import Told, from_google
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
    BEGINNING,
    GO_ON,
    NOTHING,
    Answered,
    Heard,
    Items,
    Known,
    Repeated,
    Rules,
    Said,
    Step,
    argument_value,
    steps,
)

PLACE: Final = Place(
    title="Gemini",
    label="gemini",
    key=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    address="GOOGLE_GEMINI_BASE_URL",
    home="generativelanguage.googleapis.com",
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
_NOT_ITS_OWN: Final = b"skip_thought_signature_validator"
"""What Google documents as the signature of a call that another model has made."""


class GeminiModel:
    """A model behind Gemini's generateContent."""

    form: ClassVar[str] = "gemini"
    what: ClassVar[str] = "a response of generateContent"

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
        self.access = reached(PLACE, client, api_key=api_key, base_url=base_url, its=_access_of)
        check_patience(timeout=timeout, max_retries=max_retries)
        package, key = _sdk(), self.access.key
        http: dict[str, Any] = {
            "timeout": max(1, int(timeout * 1_000)),
            "retry_options": {"attempts": max_retries + 1},
            "async_client_args": {"event_hooks": {"response": [_note]}},
        }
        if self.access.base_url is not None:
            http["base_url"] = self.access.base_url
        self._clients = Clients(
            lambda: package.Client(api_key=key, vertexai=False, http_options=http),
            given=client,
        )
        self._max_tokens = max_tokens
        self._options = checked_options(options, known=package.types.GenerateContentConfig.model_fields)
        self._pools = asking.Pools(wire.tools)

    @property
    def name(self) -> str:
        """The API and the model."""
        return f"gemini:{self.model}"

    def __repr__(self) -> str:
        return f"GeminiModel({self.model!r})"

    async def ask(self, request: ModelRequest) -> ModelResponse:
        """The whole reply."""
        return await asking.ask(self, request)

    def stream(self, request: ModelRequest) -> AsyncGenerator[StreamEvent]:
        """The words as they come, then the whole reply."""
        return asking.stream(self, request)

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        if (client := self._clients.mine()) is not None:
            await client.aio.aclose()
            client.close()

    def errors(self) -> tuple[type[BaseException], ...]:
        """What the SDK raises."""
        return (_sdk().errors.APIError,)

    def told(self, error: Any) -> Told | None:
        """What an error of the SDK says."""
        return from_google(error)

    def prepare(self, request: ModelRequest) -> asking.Sent:
        """The request in this API's terms."""
        types = _sdk().types
        definitions = self._pools.of(request.tools)
        shape = None if request.schema is None else shaped(request.schema, dialect=None)
        spoken = steps(request.messages, rules=_RULES, definitions=definitions)
        config: dict[str, Any] = {**self._options, "automatic_function_calling": {"disable": True}}
        if request.instructions.strip():
            config["system_instruction"] = encodable(request.instructions)
        if definitions:
            config["tools"] = list(definitions)
        if (limit := request.max_tokens or self._max_tokens) is not None:
            config["max_output_tokens"] = limit
        if request.tool_choice != ToolChoice():
            want = request.tool_choice
            choice = wire.tool_choice(want.mode, tool=want.tool, allowed=want.allowed, definitions=definitions)
            config |= {"tool_config": choice} if definitions else {}
        if shape is not None:
            config |= {
                "response_mime_type": "application/json",
                "response_json_schema": wire.without_const(shape.schema),
            }
        contents = _alternating([_content(step, types) for step in spoken])
        try:
            body = {"model": self.model, "contents": contents, "config": types.GenerateContentConfig(**config)}
        except pydantic.ValidationError as error:
            raise ConfigError(f"Gemini's SDK does not take these options: {error}") from error
        return asking.Sent(body=body, definitions=definitions, shape=shape)

    async def whole(self, body: dict[str, Any]) -> Any:
        """Ask the SDK."""
        return await self._clients.here().aio.models.generate_content(**body)

    def events(self, body: dict[str, Any]) -> AbstractAsyncContextManager[AsyncIterator[Any]]:
        """Ask the SDK for a stream."""
        return _opened(self._clients.here(), body)

    def words(self, event: Any) -> str:
        """The words in a chunk."""
        return "".join(read(part, "text") or "" for part in _parts(event) if not read(part, "thought"))

    def ends(self, event: Any) -> bool:
        """Whether the model says in this chunk why it stopped, or why it did not begin."""
        return bool(_reason(event)) or _blocked(event)

    def read(self, response: Any) -> asking.Heard:
        """A response, or the chunks of one."""
        chunks = cast(list[Any], response) if isinstance(response, list) else [response]
        reason = next((found for one in reversed(chunks) if (found := _reason(one))), "")
        blocked = any(map(_blocked, chunks))
        used = next((found for one in reversed(chunks) if (found := field(one, "usage_metadata")) is not None), None)
        if not blocked and all(_candidate(one) is None for one in chunks):
            raise ValueError("a response has candidates")
        text = "".join(map(self.words, chunks))
        finish_reason: FinishReason = "refusal" if blocked else _FINISH_REASONS.get(reason, "other")
        if not text and finish_reason == "refusal":
            text = next((found for one in chunks if (found := _explained(one))), "")
        return asking.Heard(
            text=text,
            calls=wire.calls(response),
            finish_reason=finish_reason,
            usage=Usage(
                input=asking.count(field(used, "prompt_token_count")),
                output=asking.count(field(used, "candidates_token_count"))
                + asking.count(field(used, "thoughts_token_count")),
                cached=asking.count(field(used, "cached_content_token_count")),
            ),
            id=field(chunks[0], "response_id") or "",
            model=field(chunks[0], "model_version") or "",
            said=_stored(wire.assistant_messages(response)),
        )


class _Opened:
    """The response of a stream, which the SDK leaves to the garbage collector when it is left early."""

    response: Any = None


_OPENED: Final[ContextVar[_Opened | None]] = ContextVar("opened", default=None)


async def _note(response: Any) -> None:
    """The first good response after a stream was asked for is that stream's: nothing else runs in between."""
    opened = _OPENED.get()
    if opened is not None and opened.response is None and response.status_code == 200:
        opened.response = response


@asynccontextmanager
async def _opened(client: Any, body: dict[str, Any]) -> AsyncGenerator[AsyncIterator[Any]]:
    opened = _Opened()
    _OPENED.set(opened)
    chunks = await client.aio.models.generate_content_stream(**body)
    try:
        yield chunks
    finally:
        await chunks.aclose()
        if opened.response is not None:
            await opened.response.aclose()


def _candidate(response: Any) -> Any:
    return next(iter(read(response, "candidates") or ()), None)


def _parts(response: Any) -> Sequence[Any]:
    return read(read(_candidate(response), "content"), "parts") or ()


def _reason(response: Any) -> str:
    reason = field(_candidate(response), "finish_reason")
    return str(getattr(reason, "value", reason) or "")


def _blocked(response: Any) -> bool:
    return field(field(response, "prompt_feedback"), "block_reason") is not None


def _explained(response: Any) -> str:
    feedback = field(response, "prompt_feedback")
    return field(_candidate(response), "finish_message") or field(feedback, "block_reason_message") or ""


def _stored(contents: Sequence[Any]) -> list[Any]:
    """What the model said as JSON: a signature is bytes, which the SDK itself can write and read."""
    content = _sdk().types.Content
    return [content.model_validate(one).model_dump(mode="json", exclude_none=True) for one in contents]


def _known(items: Items) -> Known | None:
    if len(items) != 1:
        return None
    calls = [call for part in read(items[0], "parts") or () if (call := field(part, "function_call")) is not None]
    return [(read(call, "id"), read(call, "name") or "") for call in calls]


_RULES: Final = Rules(
    form=GeminiModel.form,
    ids=re.compile(r"[\x21-\x7e]+"),
    longest_id=256,
    names=re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]*"),
    longest_name=64,
    known=_known,
)


def _content(step: Step, types: Any) -> dict[str, Any]:
    match step:
        case Heard():
            return {"role": "user", "parts": [{"text": step.text if step.text.strip() else NOTHING}]}
        case Answered():
            (content,) = cast(list[Any], wire.results(step.results))
            for part, name in zip(content["parts"], step.names, strict=True):
                part["function_response"]["name"] = name
            return content
        case Said():
            text = [{"text": step.text}] if step.text.strip() else []
            calls = [
                {"function_call": _call(one.id, one.name, argument_value(one)), "thought_signature": _NOT_ITS_OWN}
                for one in step.calls
            ]
            return {"role": "model", "parts": [*text, *calls]}
        case Repeated():
            parts = [types.Content.model_validate_json(compact_json(one)).parts for one in step.items]
            return {"role": "model", "parts": [part for some in parts for part in some]}


def _call(id_: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    call: dict[str, Any] = {"name": name, "args": arguments}
    return call if wire.is_own(id_) else {**call, "id": id_}


def _alternating(contents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The contents with each side's in one, beginning and ending with the person, as the API wants them."""
    if contents[0]["role"] != "user":
        contents = [{"role": "user", "parts": [{"text": BEGINNING}]}, *contents]
    if contents[-1]["role"] != "user":
        contents = [*contents, {"role": "user", "parts": [{"text": GO_ON}]}]
    found: list[dict[str, Any]] = []
    for content in contents:
        if found and found[-1]["role"] == content["role"]:
            found[-1] = {"role": content["role"], "parts": [*found[-1]["parts"], *content["parts"]]}
        else:
            found.append(content)
    return found


def _sdk() -> Any:
    try:
        from google import genai  # noqa: PLC0415  # optional
        from google.genai import errors, types  # noqa: F401, PLC0415  # pyright: ignore[reportUnusedImport]
    except ImportError as error:
        raise MissingExtraError("google-genai", extra="gemini") from error
    return genai


def _access_of(client: Any) -> Access:
    inner = getattr(client, "_api_client", None)
    return Access(place=PLACE, key=str(getattr(inner, "api_key", None) or NO_KEY), base_url=None)

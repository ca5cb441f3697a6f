"""Anthropic Messages."""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar, Final, cast

from handrail.core.text import compact_json, encodable
from handrail.errors import MissingExtraError
from handrail.formats import anthropic as wire
from handrail.formats.definitions import Definitions
from handrail.formats.incoming import read
from handrail.providers import asking
from handrail.providers.connect import NO_KEY, Access, Clients, Place, check_patience, reached
from handrail.providers.failures import Told, from_stainless
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
from handrail.schema import strict

PLACE: Final = Place(
    title="Anthropic",
    label="anthropic",
    key=("ANTHROPIC_API_KEY",),
    address="ANTHROPIC_BASE_URL",
    home="api.anthropic.com",
)
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]+")
_FINISH_REASONS: Final[Mapping[Any, FinishReason]] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
}


class AnthropicMessages:
    """A model behind Anthropic's Messages. Its `max_tokens` is the API's, which wants one."""

    form: ClassVar[str] = "anthropic"
    what: ClassVar[str] = "a message"

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
        self.model = model
        self.prices = prices
        self.access = reached(PLACE, client, api_key=api_key, base_url=base_url, its=_access_of)
        check_patience(timeout=timeout, max_retries=max_retries)
        package, key, address = _sdk(), self.access.key, self.access.base_url
        self._clients = Clients(
            lambda: package.AsyncAnthropic(api_key=key, base_url=address, timeout=timeout, max_retries=max_retries),
            given=client,
        )
        self._max_tokens = max_tokens
        self._options = self._clients.options(options, of=lambda client: client.messages.create)
        self._pools = asking.Pools(wire.tools)

    @property
    def name(self) -> str:
        """The API and the model."""
        return f"anthropic:{self.model}"

    def __repr__(self) -> str:
        return f"AnthropicMessages({self.model!r})"

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
        return (_sdk().AnthropicError,)

    def told(self, error: Any) -> Told | None:
        """What an error of the SDK says."""
        return None if isinstance(error, _sdk().APIConnectionError) else from_stainless(error)

    def prepare(self, request: ModelRequest) -> asking.Sent:
        """The request in this API's terms."""
        definitions = self._pools.allowed(request)
        spoken = steps(request.messages, rules=_RULES, definitions=definitions)
        messages = [message for step in spoken for message in _messages(step)]
        if messages[0]["role"] != "user":
            messages.insert(0, {"role": "user", "content": BEGINNING})
        if not _is_users_turn(spoken[-1]):
            messages.append({"role": "user", "content": GO_ON})
        body: dict[str, Any] = {
            **self._options,
            "model": self.model,
            "messages": messages,
            "max_tokens": request.max_tokens or self._max_tokens,
        }
        instructions = encodable(request.instructions)
        if definitions:
            body["tools"] = definitions
        elif used := _used(spoken):
            body |= {"tools": used, "tool_choice": {"type": "none"}}
        if request.tool_choice != ToolChoice(allowed=request.tool_choice.allowed):
            choice = wire.tool_choice(request.tool_choice.mode, tool=request.tool_choice.tool, definitions=definitions)
            body |= {"tool_choice": choice} if definitions else {}
        shape: Shape | None = None
        if request.schema is not None:
            shape = shaped(request.schema, dialect=strict.ANTHROPIC)
            if shape.strict and _affordable(shape, definitions):
                form = {"type": "json_schema", "schema": shape.schema}
                body["output_config"] = {**body.get("output_config", {}), "format": form}
            else:
                wish = f"Answer with JSON alone, which fits this JSON Schema: {compact_json(shape.schema)}"
                instructions = f"{instructions}\n\n{wish}".strip()
        if instructions.strip():
            body["system"] = instructions
        return asking.Sent(body=body, definitions=definitions, shape=shape)

    async def whole(self, body: dict[str, Any]) -> Any:
        """Ask the SDK."""
        return await self._clients.here().messages.create(**body)

    def events(self, body: dict[str, Any]) -> AbstractAsyncContextManager[AsyncIterator[Any]]:
        """Ask the SDK for a stream."""
        return asking.opened(self._clients.here().messages.create, body)

    def words(self, event: Any) -> str:
        """The words in an event."""
        return read(read(event, "delta"), "text") or "" if read(event, "type") == "content_block_delta" else ""

    def ends(self, event: Any) -> bool:
        """Whether this is the last event."""
        return read(event, "type") == "message_stop"

    def read(self, response: Any) -> asking.Heard:
        """A message, or the events of one."""
        first, ending, used = _ends_of(response)
        reason = read(ending, "stop_reason")
        said = wire.assistant_messages(response)
        blocks = cast(Sequence[Any], read(said[0], "content") if said else ())
        if not all(isinstance(block, Mapping) for block in blocks):
            raise ValueError("a message has blocks")
        text = "".join(read(block, "text") or "" for block in blocks if read(block, "type") == "text")
        explained = read(read(ending, "stop_details"), "explanation") if reason == "refusal" else None
        cached = asking.count(read(used, "cache_read_input_tokens"))
        written = asking.count(read(used, "cache_creation_input_tokens"))
        return asking.Heard(
            text=text or explained or "",
            calls=wire.calls(response),
            finish_reason=_FINISH_REASONS.get(reason, "other"),
            usage=Usage(
                input=asking.count(read(used, "input_tokens")) + cached + written,
                output=asking.count(read(used, "output_tokens")),
                cached=cached,
            ),
            id=read(first, "id") or "",
            model=read(first, "model") or "",
            said=said,
        )


def _used(spoken: Sequence[Step]) -> list[dict[str, Any]]:
    """Definitions of the tools that were called before: the API has refused a conversation with calls and no tools."""
    names = dict.fromkeys(call.name for step in spoken if isinstance(step, Said | Repeated) for call in step.calls)
    empty: dict[str, Any] = {"type": "object", "properties": {}}
    return [{"name": name, "description": "Not available any more.", "input_schema": empty} for name in names]


def _is_users_turn(last: Step) -> bool:
    """Whether the model speaks next: newer ones do not go on with their own words, but for a turn that they paused."""
    if isinstance(last, Said):
        return False
    blocks = [block for item in last.items for block in item["content"]] if isinstance(last, Repeated) else []
    return not blocks or any(read(block, "type") == "server_tool_use" for block in blocks)


def _ends_of(response: Any) -> tuple[Any, Any, dict[str, Any]]:
    """How a message begins, how it ends, and its usage: what is said last counts."""
    if not isinstance(response, list):
        if not isinstance(read(response, "content"), list):
            raise ValueError("a message has content")
        return response, response, _numbers(read(response, "usage"))
    events = cast(list[Any], response)
    first = next((read(one, "message") for one in events if read(one, "type") == "message_start"), None)
    last = next((one for one in reversed(events) if read(one, "type") == "message_delta"), None)
    return first, read(last, "delta"), _numbers(read(first, "usage")) | _numbers(read(last, "usage"))


def _numbers(usage: Any) -> dict[str, Any]:
    names = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    return {name: value for name in names if (value := read(usage, name)) is not None}


def _affordable(shape: Shape, definitions: Definitions[Any]) -> bool:
    """Whether the request has room for one more strict schema."""
    schemas = [one["input_schema"] for one in definitions if one.get("strict")]
    costs = [wire.cost(schema) for schema in (*schemas, shape.schema)]
    limits = {what: most for what, most in wire.MOST_STRICT.items() if what != "strict tools"}
    return all(sum(cost[what] for cost in costs) <= most for what, most in limits.items())


def _known(items: Items) -> Known | None:
    return [(call.id, call.name) for call in wire.calls(items[0])] if len(items) == 1 else None


_RULES: Final = Rules(
    form=AnthropicMessages.form, ids=_NAME, longest_id=64, names=_NAME, longest_name=128, known=_known
)


def _messages(step: Step) -> list[Any]:
    match step:
        case Heard():
            return [{"role": "user", "content": step.text if step.text.strip() else NOTHING}]
        case Answered():
            return [*wire.results(step.results)]
        case Said():
            text = [{"type": "text", "text": step.text}] if step.text.strip() else []
            calls = [
                {"type": "tool_use", "id": one.id, "name": one.name, "input": argument_value(one)} for one in step.calls
            ]
            return [{"role": "assistant", "content": [*text, *calls]}]
        case Repeated():
            return [*step.items]


def _sdk() -> Any:
    try:
        import anthropic  # noqa: PLC0415  # optional
    except ImportError as error:
        raise MissingExtraError("anthropic", extra="anthropic") from error
    return anthropic


def _access_of(client: Any) -> Access:
    return Access(place=PLACE, key=str(client.api_key or client.auth_token or NO_KEY), base_url=str(client.base_url))

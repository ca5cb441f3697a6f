"""The one small protocol: a request goes to a language model, and its reply comes back, whole or in pieces."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

from msgspec import Struct

from handrail.core.tool import Tool
from handrail.core.values import ToolCall
from handrail.errors import ConfigError
from handrail.formats.definitions import Mode
from handrail.providers.messages import AssistantMessage, Message, Native

FinishReason = Literal["stop", "tool_calls", "length", "refusal", "other"]
"""Why a model stopped: it was done, it waits for its calls, it ran out of tokens, it (or a filter) refused, other."""


class ToolChoice(Struct, frozen=True, kw_only=True, gc=False):
    """What the model may call."""

    mode: Mode = "auto"
    tool: str | None = None
    """This one, and it must."""
    allowed: tuple[str, ...] = ()
    """Of the tools in the request, only these; all of them are still sent, so that a prompt cache holds."""


class ModelRequest(Struct, frozen=True, kw_only=True):
    """What a model is asked."""

    messages: Sequence[Message]
    instructions: str = ""
    """What an API calls its system prompt."""
    tools: Sequence[Tool[..., Any]] = ()
    tool_choice: ToolChoice = ToolChoice()
    schema: Mapping[str, Any] | None = None
    """A JSON Schema that the text of the reply has to fit; see `generate_structured`."""
    max_tokens: int | None = None
    """How long the reply may be; the adapter's own limit unless it is said."""


class Usage(Struct, frozen=True, kw_only=True, gc=False):
    """What a reply took."""

    input: int = 0
    """Tokens that were read, those from a cache among them."""
    output: int = 0
    """Tokens that were written, thoughts among them."""
    cached: int = 0
    """Of the input, what came from a cache."""
    cost: float | None = None
    """In the currency of the prices; None where no prices are configured."""

    def __add__(self, other: "Usage") -> "Usage":
        costs = [one.cost for one in (self, other) if one.cost is not None]
        return Usage(
            input=self.input + other.input,
            output=self.output + other.output,
            cached=self.cached + other.cached,
            cost=sum(costs) if costs else None,
        )


class Prices(Struct, frozen=True, kw_only=True, gc=False):
    """What a million tokens cost."""

    input: float
    output: float
    cached: float | None = None
    """Of input that came from a cache; the price of other input unless it is said."""

    def __post_init__(self) -> None:
        if min(self.input, self.output, self.cached or 0.0) < 0:
            raise ConfigError("A price is 0 or more.")

    def of(self, usage: Usage) -> Usage:
        """The usage with its cost."""
        cached = self.input if self.cached is None else self.cached
        cost = (usage.input - usage.cached) * self.input + usage.cached * cached + usage.output * self.output
        return Usage(input=usage.input, output=usage.output, cached=usage.cached, cost=cost / 1_000_000)


class TextDelta(Struct, frozen=True, kw_only=True, gc=False):
    """The next words of a reply that is still being written."""

    text: str


class ModelResponse(Struct, frozen=True, kw_only=True):
    """What a model answered."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    """In the terms of the tools in the request: already decoded, not yet validated. One that was cut off is among them,
    with text that no parser takes, so that it is answered and never runs."""
    finish_reason: FinishReason = "stop"
    usage: Usage = Usage()
    id: str = ""
    """The provider's id of the response."""
    model: str = ""
    """Which model answered, as the provider says."""
    native: Native | None = None

    def message(self) -> AssistantMessage:
        """What this reply adds to the conversation."""
        return AssistantMessage(text=self.text, calls=self.calls, native=self.native)


StreamEvent: TypeAlias = TextDelta | ModelResponse


class Provider(Protocol):
    """A language model that can be asked. Failures are `ProviderError`s."""

    @property
    def name(self) -> str:
        """Which API this is, and which model: `openai:gpt-5`."""
        ...

    async def ask(self, request: ModelRequest) -> ModelResponse:
        """The whole reply."""
        ...

    def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        """The reply as it is written: its words, then, last and once, the whole. A stream that is cut raises."""
        ...

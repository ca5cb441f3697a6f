"""The `Provider` protocol: a request to a language model, and its response, complete or streamed."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

from msgspec import Struct

from handrail.core.tool import Tool
from handrail.core.values import ToolCall
from handrail.errors import ConfigError
from handrail.formats.definitions import ToolChoiceMode
from handrail.providers.messages import AssistantMessage, Message, Native

FinishReason = Literal["stop", "tool_calls", "length", "refusal", "other"]
"""Why a model stopped: done, waiting for tool results, out of tokens, refused (by the model or a filter), other."""


class ToolChoice(Struct, frozen=True, kw_only=True, gc=False):
    """Which tools the model may call."""

    mode: ToolChoiceMode = "auto"
    tool: str | None = None
    """The one tool that the model must call."""
    allowed: tuple[str, ...] = ()
    """The tools of the request that may be called; all of them are still sent, so that a prompt cache stays valid."""


class ModelRequest(Struct, frozen=True, kw_only=True):
    """A request to a language model."""

    messages: Sequence[Message]
    instructions: str = ""
    """The system prompt."""
    tools: Sequence[Tool[..., Any]] = ()
    tool_choice: ToolChoice = ToolChoice()
    schema: Mapping[str, Any] | None = None
    """A JSON Schema that the text of the response must fit; see `generate_structured`."""
    max_tokens: int | None = None
    """The most tokens that the response may have; the provider's own limit if unset."""


class Usage(Struct, frozen=True, kw_only=True, gc=False):
    """The tokens and the cost of a response."""

    input: int = 0
    """Input tokens, cached ones included."""
    output: int = 0
    """Output tokens, thoughts included."""
    cached: int = 0
    """Input tokens that came from a cache."""
    cost: float | None = None
    """In the currency of the prices; None if no prices are configured."""

    def __add__(self, other: "Usage") -> "Usage":
        costs = [item.cost for item in (self, other) if item.cost is not None]
        return Usage(
            input=self.input + other.input,
            output=self.output + other.output,
            cached=self.cached + other.cached,
            cost=sum(costs) if costs else None,
        )


class Prices(Struct, frozen=True, kw_only=True, gc=False):
    """What a million tokens cost."""

    input: float
    """The price of input."""
    output: float
    """The price of output."""
    cached: float | None = None
    """The price of cached input; `input` if unset."""

    def __post_init__(self) -> None:
        if min(self.input, self.output, self.cached or 0.0) < 0:
            raise ConfigError(f"prices must be at least 0, got {self!r}.")

    def apply(self, usage: Usage) -> Usage:
        """Add the cost to a usage."""
        cached = self.input if self.cached is None else self.cached
        cost = (usage.input - usage.cached) * self.input + usage.cached * cached + usage.output * self.output
        return Usage(input=usage.input, output=usage.output, cached=usage.cached, cost=cost / 1_000_000)


class TextDelta(Struct, frozen=True, kw_only=True, gc=False):
    """The next piece of text of a streamed response."""

    text: str


class ModelResponse(Struct, frozen=True, kw_only=True):
    """The response of a language model."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    """Decoded to the tools' own names and arguments, not validated. A call that was cut off has arguments that no
    parser accepts, so that it gets an error as its result and never runs."""
    finish_reason: FinishReason = "stop"
    usage: Usage = Usage()
    id: str = ""
    """The provider's id of the response."""
    model: str = ""
    """The model that responded, as the provider reports it."""
    native: Native | None = None

    def message(self) -> AssistantMessage:
        """The message that this response adds to the conversation."""
        return AssistantMessage(text=self.text, calls=self.calls, native=self.native)


StreamEvent: TypeAlias = TextDelta | ModelResponse


class Provider(Protocol):
    """A language model. Failures are `ProviderError`s."""

    @property
    def name(self) -> str:
        """The API and the model: `openai:gpt-5`."""
        ...

    async def ask(self, request: ModelRequest) -> ModelResponse:
        """Send a request and return the complete response."""
        ...

    def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        """Yield text as it arrives, then the complete response, once. A stream that ends early raises."""
        ...

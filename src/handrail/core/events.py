"""The events that listeners receive: frozen records, each with its time, session and tenant."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

from msgspec import Struct

from handrail.core.values import Decision, ToolCall, ToolResult


class Event(Struct, frozen=True, kw_only=True):
    """Something that happened. A listener is any callable that takes one."""

    at: float
    """Seconds since the epoch."""
    session_id: str
    tenant_id: str | None = None
    customer_id: str | None = None
    sip_call_id: str | None = None
    """The Call-ID of the SIP dialogue, for the events of a phone call."""


Listener = Callable[[Any], object]
"""Gets every event; what it returns is ignored."""


class CallAccepted(Event, frozen=True, kw_only=True):
    """A call was accepted and may have to wait for a decision, a lock or earlier calls.

    A call that starts at once only emits `CallStarted`.
    """

    call: ToolCall


class CallStarted(Event, frozen=True, kw_only=True):
    """A handler is about to run."""

    call: ToolCall
    agent_id: str | None = None
    dependencies: tuple[str, ...] = ()
    """The names of the caller's `deps`: the keys of a mapping, or the name of their type; never their values."""
    decision: Decision | None = None
    """What let the call run."""
    accepted: ToolCall | None = None
    """The call that `CallAccepted` has, if whoever approved it changed its arguments since."""


class CallFinished(Event, frozen=True, kw_only=True):
    """A call has its result."""

    call: ToolCall
    result: ToolResult
    decision: Decision | None = None
    slow: bool = False
    """Whether the call took longer than the executor's threshold for slow calls."""
    accepted: ToolCall | None = None
    """The call that `CallAccepted` has, if whoever approved it changed its arguments since."""


class CallCancelled(Event, frozen=True, kw_only=True):
    """A call was cancelled; its result says what is known about its effect."""

    call: ToolCall
    reason: str = ""
    scope: Literal["call", "response", "session"] = "call"
    """Whether it was cancelled by itself, with the calls of its response, or with all calls of its session."""


class Cancelling(Event, frozen=True, kw_only=True):
    """All calls of a session are about to be cancelled."""

    tracked: int
    """Calls that have no result yet."""
    cancellable: int
    """Those among them that are cancelled at once; the others may finish first."""


class Cancellation(Event, frozen=True, kw_only=True):
    """The calls of a response, or all calls of a session, were cancelled; emitted once, at the end."""

    scope: Literal["response", "session"]
    response_id: str | None = None
    reason: str
    """`missing_response_id`: nothing was cancelled, because the request named no response."""
    cancelled: int = 0
    remaining: int = 0
    """Handlers that keep running."""
    pending: int = 0
    """Calls that still have no result."""


class CallIgnored(Event, frozen=True, kw_only=True):
    """A call arrived again and was not run again."""

    call: ToolCall
    reason: str
    """`already_pending` or `already_executed`."""


class CallQueued(Event, frozen=True, kw_only=True):
    """A durable call was stored, and waits for a worker."""

    call: ToolCall
    priority: int = 0


class CallTakenOver(Event, frozen=True, kw_only=True):
    """A call that another owner had begun is run again here; the other one can record nothing any more."""

    call: ToolCall
    previous_owner: str
    owner: str


class WorkerEvent(Event, frozen=True, kw_only=True):
    """What happened to a durable call that another process runs, told where it was submitted or is waited for.

    It comes at most once, or not at all: what became of a call is what `Executor.wait` returns. Its own type, so that
    what counts calls counts each where it runs.
    """

    worker: str
    """The `owner` of the executor that runs it."""
    event: Event
    """`CallStarted`, `Progress` (redacted), `CallTakenOver`, or `CallFinished` with the recorded result; the call in it
    has an id and a name, and no arguments."""


class DecisionMade(Event, frozen=True, kw_only=True):
    """A call was denied, or needs an approval. A call that is simply allowed emits no event."""

    call: ToolCall
    decision: Decision
    observed: bool = False
    """True in `mode="observe"`: the decision was recorded and the call ran anyway."""
    seen: Mapping[str, str] = {}
    """Where values come from that a rule with `from` asks about, by their path: kinds, names of tools and ids of calls;
    never a value."""


class CircuitBreakerChanged(Event, frozen=True, kw_only=True):
    """A tool's circuit breaker changed its state: `open` means that its calls are refused for a while."""

    tool_name: str
    state: str


class Progress(Event, frozen=True, kw_only=True):
    """A handler reported the progress of a long call."""

    call_id: str
    tool_name: str
    message: str
    fraction: float | None = None


class DoubtResolved(Event, frozen=True, kw_only=True):
    """An operator recorded whether a call with an unknown outcome took effect."""

    call_id: str
    tool_name: str
    happened: bool
    who: str
    reason: str = ""


class ToolsBuilt(Event, frozen=True, kw_only=True):
    """The tools of a tenant were built from its configuration."""

    tool_names: tuple[str, ...]
    failed: tuple[str, ...] = ()
    """The builders that raised; their tools are missing."""
    tool_choice: str | None = None


class LogEvent(Event, frozen=True, kw_only=True):
    """An event with its own name and fields, such as one step of a transfer."""

    name: str
    severity: Literal["debug", "info", "warning", "error"] = "info"
    call: ToolCall | None = None
    fields: Mapping[str, Any] = {}
    """Ids, names, codes and counts; never the value of an argument or an address."""


class TurnPlanned(Event, frozen=True, kw_only=True):
    """Which guidelines matched in a turn, and which calls they led to."""

    turn: int
    guideline_ids: tuple[str, ...] = ()
    call_ids: tuple[str, ...] = ()
    model_calls: int = 0
    """Requests to a model in this turn."""
    iterations: int = 0
    trace: tuple[str, ...] = ()
    """What was decided, line by line: ids, names and codes, without any text of the conversation."""


class ApprovalRequested(Event, frozen=True, kw_only=True):
    """A call needs an approval, and the request was stored."""

    token: str
    tool_name: str
    by: str
    """Who must decide: the customer or an operator."""
    arguments_digest: str = ""
    expires_at: float = 0.0


class ApprovalDecided(Event, frozen=True, kw_only=True):
    """Somebody approved or denied a call."""

    token: str
    tool_name: str
    by: str
    who: str
    outcome: Literal["approved", "denied"]
    reason: str = ""
    arguments_digest: str = ""
    has_changed_arguments: bool = False
    seconds: float = 0.0
    """Since the request."""


class ApprovalUsed(Event, frozen=True, kw_only=True):
    """An approval was consumed by a call, which may run now."""

    token: str
    tool_name: str
    by: str = ""
    who: str = ""
    arguments_digest: str = ""
    call_id: str | None = None


class TurnStarted(Event, frozen=True, kw_only=True):
    """A turn of a conversation began."""

    turn: int
    agent_id: str | None = None


class TurnFinished(Event, frozen=True, kw_only=True):
    """A turn of a conversation ended, or raised an error."""

    turn: int
    stop_reason: str
    """As in `TurnResult`, or `error`."""
    duration_ms: float
    model_calls: int = 0
    tool_calls: int = 0


class ModelCalled(Event, frozen=True, kw_only=True):
    """A request to a model ended with a response or an error."""

    provider: str
    """The API and the model of the request: `openai:gpt-5`."""
    model: str = ""
    """The model that responded, as the provider reports it."""
    turn: int = 0
    duration_ms: float
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost: float | None = None
    finish_reason: str = ""
    error: str | None = None
    """The code of the provider's error."""

"""The facts that listeners get: frozen, each with its time, session and tenant in itself."""

from msgspec import Struct

from handrail.core.values import Decision, ToolCall, ToolResult


class Event(Struct, frozen=True, kw_only=True):
    """Something that happened. A listener is any callable that takes one."""

    at: float
    """Seconds since the epoch."""
    session_id: str
    tenant_id: str | None = None


class CallStarted(Event, frozen=True, kw_only=True):
    """A handler is about to run."""

    call: ToolCall


class CallFinished(Event, frozen=True, kw_only=True):
    """A call has its answer."""

    call: ToolCall
    result: ToolResult
    decision: Decision | None = None


class CallCancelled(Event, frozen=True, kw_only=True):
    """A call was cancelled; its result says what is known about its effect."""

    call: ToolCall
    reason: str = ""


class CallIgnored(Event, frozen=True, kw_only=True):
    """A call arrived again and was not run again."""

    call: ToolCall
    reason: str
    """`already_pending` or `already_executed`."""


class DecisionMade(Event, frozen=True, kw_only=True):
    """A call was refused, or somebody is asked. What is simply allowed makes no event."""

    call: ToolCall
    decision: Decision


class Progress(Event, frozen=True, kw_only=True):
    """How far a long call has come, in the handler's own words."""

    call_id: str
    tool_name: str
    message: str
    fraction: float | None = None


class ToolsBuilt(Event, frozen=True, kw_only=True):
    """A tenant's configuration became tools."""

    tool_names: tuple[str, ...]
    failed: tuple[str, ...] = ()


class TurnPlanned(Event, frozen=True, kw_only=True):
    """Which guidelines matched in a turn, and which calls they led to."""

    turn: int
    guideline_ids: tuple[str, ...] = ()
    call_ids: tuple[str, ...] = ()

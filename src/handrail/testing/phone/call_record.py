"""What is written down about a call while it is played: one timeline, and what the report counts."""

import json
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, cast

EntrySource: TypeAlias = Literal["server", "client", "caller", "agent", "http", "call"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEntry:
    """Something that happened, with the state of the call at that moment."""

    at: float
    source: EntrySource
    type: str
    data: dict[str, Any]
    response_active: bool = False
    caller_speaking: bool = False
    playing: bool = False
    ended: bool = False


@dataclass(slots=True, kw_only=True)
class ToolCallRecord:
    """A call that the model completed, and what became of it."""

    call_id: str
    name: str
    arguments: str
    at: float
    answered_at: float | None = None
    followed_at: float | None = None
    """When a response that could speak about the output was completed or heard."""
    voiced_at: float | None = None
    outputs: int = 0
    output: str | None = None
    """The first output, as the client sent it."""

    @property
    def error(self) -> str | None:
        """The code of the failure that the output is; None for any other output."""
        try:
            value: object = json.loads(self.output or "")
        except ValueError:
            return None
        fields = cast(dict[str, object], value) if isinstance(value, dict) else {}
        return str(fields.get("error")) if fields.get("ok") is False else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRecord:
    """An error that the server sent."""

    at: float
    code: str | None
    message: str
    event_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRecord:
    """A request of call control, and what it was answered."""

    at: float
    verb: str
    body: Any
    status: int | None
    """None: the connection was lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptLine:
    """Something that was said."""

    at: float
    speaker: Literal["agent", "caller"]
    text: str


@dataclass(slots=True)
class Record:
    """All that is known about a call so far."""

    timeline: list[TimelineEntry] = field(default_factory=list[TimelineEntry])
    calls: dict[str, ToolCallRecord] = field(default_factory=dict[str, ToolCallRecord])
    errors: list[ErrorRecord] = field(default_factory=list[ErrorRecord])
    http: list[HttpRecord] = field(default_factory=list[HttpRecord])
    transcript: list[TranscriptLine] = field(default_factory=list[TranscriptLine])
    silences: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    duplicate_outputs: list[str] = field(default_factory=list[str])
    unknown_outputs: list[str] = field(default_factory=list[str])
    suppressed_calls: list[str] = field(default_factory=list[str])
    """Calls of the script that the response was not allowed to make: its tool choice was none."""
    created_while_active: int = 0
    unscripted_responses: int = 0
    problems: list[str] = field(default_factory=list[str])
    """What the script asked for and did not happen."""
    accepted_at: float | None = None
    ended_at: float | None = None
    ended: str | None = None
    """Why the call ended: caller, agent, transferred, rejected, expired, unanswered."""

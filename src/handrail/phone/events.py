"""The events of phone calls, each with the ids that name the call and its tenant."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from msgspec import structs

from handrail.core.events import Event, LogEvent
from handrail.core.log import log
from handrail.core.values import ToolCall

Severity = Literal["debug", "info", "warning", "error"]


class ResultSpoken(Event, frozen=True, kw_only=True):
    """The first response that includes the result of a tool call started playing to the caller."""

    call_id: str
    tool_name: str
    seconds: float
    """Since the model made the call."""


class SpeechTranscribed(Event, frozen=True, kw_only=True):
    """Something was said in a phone call: the caller's words, or the agent's once they were played."""

    speaker: Literal["agent", "caller"]
    text: str
    """Redacted as recordings are. A log does not write it."""
    seconds: float
    """Since the beginning of the call."""
    is_interrupted: bool = False
    """Whether the caller did not hear it to its end."""


class PhoneCallEnded(Event, frozen=True, kw_only=True):
    """A phone call is over, and all its tool calls are settled."""

    reason: str
    seconds: float
    tool_calls: int = 0
    unanswered: int = 0
    """Tool calls that got no output although the phone call continued."""
    never_spoken: int = 0
    """Results that no response was created for although the phone call continued."""
    cut_off: int = 0
    """Tool calls whose output or response was still missing when the phone call ended."""
    usage: Mapping[str, int] = {}
    """The tokens that the model used, by kind."""


class Listeners:
    """Tells every listener of a gateway what happens; one that fails never breaks a call."""

    def __init__(self, listeners: Iterable[Callable[[Event], object]]) -> None:
        self._listeners = tuple(listeners)
        self.calls: dict[str, tuple[str | None, str]] = {}
        """The Call-ID of the SIP dialogue and the tenant of each phone call under way, by their session ids."""

    def emit(self, event: Event) -> None:
        """Tell every listener, with the ids of the phone call that not every event has of itself."""
        if (event.sip_call_id is None or event.tenant_id is None) and event.session_id in self.calls:
            sip_call_id, tenant_id = self.calls[event.session_id]
            event = structs.replace(event, sip_call_id=sip_call_id, tenant_id=tenant_id)
        for listener in self._listeners:
            try:
                listener(event)
            except KeyboardInterrupt:
                raise
            except BaseException:  # whatever it raises, the call goes on
                log.exception("a listener failed")


class CallLog:
    """Emits the events of one phone call."""

    def __init__(
        self, *, session_id: str, sip_call_id: str | None, tenant_id: str, emit: Callable[[Event], None]
    ) -> None:
        self._session_id = session_id
        self._sip_call_id = sip_call_id
        self._tenant_id = tenant_id
        self._emit = emit

    def emit(self, kind: Callable[..., Event], **fields: Any) -> None:
        """Emit an event of this type."""
        self._emit(
            kind(
                at=time.time(),
                session_id=self._session_id,
                tenant_id=self._tenant_id,
                sip_call_id=self._sip_call_id,
                **fields,
            )
        )

    def note(self, name: str, severity: Severity = "info", /, *, call: ToolCall | None = None, **fields: Any) -> None:
        """Emit an event of the log by its name."""
        self.emit(LogEvent, name=name, severity=severity, call=call, fields=fields)

"""The events of one phone call, each with the ids that name the call and its tenant."""

import time
from collections.abc import Callable
from typing import Any, Literal

from handrail.core.events import Event, LogEvent
from handrail.core.values import ToolCall
from handrail.phone.incoming import IncomingCall

Severity = Literal["debug", "info", "warning", "error"]


class CallLog:
    """Emits the events of one phone call."""

    def __init__(self, call: IncomingCall, *, tenant_id: str, emit: Callable[[Event], None]) -> None:
        self._call = call
        self._tenant_id = tenant_id
        self._emit = emit

    def emit(self, kind: Callable[..., Event], **fields: Any) -> None:
        """Emit an event of this type."""
        self._emit(
            kind(
                at=time.time(),
                session_id=self._call.session_id,
                tenant_id=self._tenant_id,
                sip_call_id=self._call.sip_call_id,
                **fields,
            )
        )

    def note(self, name: str, severity: Severity = "info", /, *, call: ToolCall | None = None, **fields: Any) -> None:
        """Emit an event of the log by its name."""
        self.emit(LogEvent, name=name, severity=severity, call=call, fields=fields)

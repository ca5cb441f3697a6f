"""Tracks the calls that were accepted or started and have no result yet."""

import threading
from typing import Final

from handrail.core.events import CallAccepted, CallFinished, CallIgnored, CallStarted
from handrail.core.values import ToolCall

_OPENING: Final = (CallAccepted, CallStarted)

CallIdentity = tuple[str, int]
"""The session and the `id()` of a call: ids come from a model, and two calls may have the same.

Whoever keeps one keeps its call, too: that keeps the `id()` unique.
"""


class _Session:
    """The open calls of a session by `id`, each with whether its handler runs, and the number of those."""

    __slots__ = ("active", "calls")

    def __init__(self) -> None:
        self.calls: dict[int, tuple[ToolCall, bool]] = {}
        self.active = 0


class CallCounter:
    """Counts, per session, the calls without a result and those whose handler runs."""

    def __init__(self) -> None:
        self.sessions: dict[str, _Session] = {}
        """The sessions with open calls."""
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """The number of sessions with open calls."""
        return len(self.sessions)

    def count(self, event: object) -> None:
        """Count an event."""
        if isinstance(event, _OPENING):
            with self._lock:
                self._add(event, active=isinstance(event, CallStarted))
        elif isinstance(event, CallFinished) or (isinstance(event, CallIgnored) and event.reason == "already_executed"):
            with self._lock:  # An ignored call was accepted first, and then found in the ledger.
                self._remove(event)

    def get(self, session_id: str) -> tuple[int, int]:
        """Return how many calls of a session have no result, and how many of their handlers run."""
        session = self.sessions.get(session_id)
        return (0, 0) if session is None else (len(session.calls), session.active)

    def _add(self, event: CallAccepted | CallStarted, *, active: bool) -> None:
        session = self.sessions.get(event.session_id)
        if session is None:
            session = self.sessions[event.session_id] = _Session()
        call = _find_accepted(event)
        previous = session.calls.get(id(call))
        was_active = previous is not None and previous[1]
        session.calls[id(call)] = (call, active or was_active)  # The reference keeps the id of the object unique.
        if active and not was_active:
            session.active += 1

    def _remove(self, event: CallFinished | CallIgnored) -> None:
        session = self.sessions.get(event.session_id)
        found = None if session is None else session.calls.pop(id(_find_accepted(event)), None)
        if session is None or found is None:
            return
        if found[1]:
            session.active -= 1
        if not session.calls:
            del self.sessions[event.session_id]


def _find_accepted(event: CallAccepted | CallStarted | CallFinished | CallIgnored) -> ToolCall:
    """The call as it was accepted: with other arguments it is another object."""
    accepted = event.accepted if isinstance(event, CallStarted | CallFinished) else None
    return event.call if accepted is None else accepted

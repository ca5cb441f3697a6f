"""Tracks the calls that were accepted or started and have no result yet."""

import threading
from collections import Counter
from typing import Final, Generic, TypeVar

from handrail.core.events import CallAccepted, CallCancelled, CallFinished, CallIgnored, CallStarted
from handrail.core.values import ToolCall

T = TypeVar("T")

_OPENING: Final = (CallAccepted, CallStarted)

CallEvent = CallAccepted | CallStarted | CallFinished | CallIgnored | CallCancelled


class OpenCalls(Generic[T]):
    """A value for each open call.

    A call is identified by its session and its object: ids come from a model, and two calls may have the same.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[str, int], tuple[ToolCall, T]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def put(self, event: CallEvent, value: T) -> T | None:
        """Set the value of a call; return the previous one."""
        identity = (event.session_id, id(event.call))
        previous = self._open.get(identity)
        self._open[identity] = (event.call, value)  # The reference keeps the id of the object unique.
        return previous[1] if previous else None

    def get(self, event: CallEvent) -> T | None:
        """Return the value of a call, if it is open."""
        found = self._open.get((event.session_id, id(event.call)))
        return found[1] if found else None

    def pop(self, event: CallEvent) -> T | None:
        """Remove a call; return its value."""
        found = self._open.pop((event.session_id, id(event.call)), None)
        return found[1] if found else None


class CallCounter:
    """Counts, per session, the calls without a result and those whose handler runs."""

    def __init__(self) -> None:
        self._calls: OpenCalls[bool] = OpenCalls()
        self._pending: Counter[str] = Counter()
        self._active: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """The number of sessions with open calls."""
        return len(self._pending.keys() | self._active.keys())

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
        return self._pending[session_id], self._active[session_id]

    def _add(self, event: CallAccepted | CallStarted, *, active: bool) -> None:
        previous = self._calls.put(event, active)
        if previous is None:
            self._pending[event.session_id] += 1
        if active and not previous:
            self._active[event.session_id] += 1

    def _remove(self, event: CallFinished | CallIgnored) -> None:
        active = self._calls.pop(event)
        if active is not None:
            _decrement(self._pending, event.session_id)
        if active:
            _decrement(self._active, event.session_id)


def _decrement(counter: Counter[str], name: str) -> None:
    counter[name] -= 1
    if counter[name] <= 0:
        del counter[name]

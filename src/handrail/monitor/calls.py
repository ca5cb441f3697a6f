"""The calls that were told as taken on or started, and not yet as over."""

import threading
from collections import Counter
from typing import Generic, TypeVar

from handrail.core.events import CallAccepted, CallCancelled, CallFinished, CallIgnored, CallStarted
from handrail.core.values import ToolCall

T = TypeVar("T")

CallEvent = CallAccepted | CallStarted | CallFinished | CallIgnored | CallCancelled


class Calls(Generic[T]):
    """What a listener remembers of each call on its way.

    A call is told apart by its session and by its very object: ids come from a model, and two calls may have one.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[str, int], tuple[ToolCall, T]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def put(self, event: CallEvent, value: T) -> T | None:
        """Remember something; what was remembered before."""
        place = (event.session_id, id(event.call))
        before = self._open.get(place)
        self._open[place] = (event.call, value)  # The object is kept, so that its identity is nobody else's.
        return before[1] if before else None

    def get(self, event: CallEvent) -> T | None:
        """What is remembered of a call."""
        found = self._open.get((event.session_id, id(event.call)))
        return found[1] if found else None

    def pop(self, event: CallEvent) -> T | None:
        """Forget a call that is over."""
        found = self._open.pop((event.session_id, id(event.call)), None)
        return found[1] if found else None


class Counts:
    """How many calls of a session wait for their answer, and how many of their handlers run."""

    def __init__(self) -> None:
        self._calls: Calls[bool] = Calls()
        self._pending: Counter[str] = Counter()
        self._active: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """The sessions that have calls on their way."""
        return len(self._pending.keys() | self._active.keys())

    def see(self, event: object) -> None:
        """Count an event."""
        if isinstance(event, CallAccepted | CallStarted):
            with self._lock:
                self._begin(event, active=isinstance(event, CallStarted))
        elif isinstance(event, CallFinished) or (isinstance(event, CallIgnored) and event.reason == "already_executed"):
            with self._lock:  # The latter was taken on, and then found in the ledger.
                self._end(event)

    def of(self, session_id: str) -> tuple[int, int]:
        """The calls of a session that have no answer, and those among them whose handler runs."""
        return self._pending[session_id], self._active[session_id]

    def _begin(self, event: CallAccepted | CallStarted, *, active: bool) -> None:
        before = self._calls.put(event, active)
        if before is None:
            self._pending[event.session_id] += 1
        if active and not before:
            self._active[event.session_id] += 1

    def _end(self, event: CallFinished | CallIgnored) -> None:
        active = self._calls.pop(event)
        if active is not None:
            _less(self._pending, event.session_id)
        if active:
            _less(self._active, event.session_id)


def _less(counter: Counter[str], name: str) -> None:
    counter[name] -= 1
    if counter[name] <= 0:
        del counter[name]

"""Virtual time: actions that are due at a moment, run in order."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count


class Timer:
    """An action that waits for its moment."""

    __slots__ = ("_action", "when")

    def __init__(self, when: float, action: Callable[[], None]) -> None:
        self.when = when
        self._action: Callable[[], None] | None = action

    @property
    def is_pending(self) -> bool:
        return self._action is not None

    def cancel(self) -> None:
        self._action = None

    def fire(self) -> None:
        action, self._action = self._action, None
        if action is not None:
            action()


class Clock:
    """The time of one call, in seconds since it began to ring (R12). It moves only when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0
        self._timers: list[tuple[float, int, Timer]] = []
        self._numbers = count()

    def after(self, delay: float, action: Callable[[], None]) -> Timer:
        """Run `action` in `delay` seconds."""
        timer = Timer(self.now + max(delay, 0.0), action)
        heappush(self._timers, (timer.when, next(self._numbers), timer))
        return timer

    def next_due(self) -> float | None:
        """When the next action is due; None when nothing waits."""
        while self._timers and not self._timers[0][2].is_pending:
            heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def run_next(self) -> None:
        """Move to the next action that is due, and run it."""
        if self.next_due() is not None:
            when, _, timer = heappop(self._timers)
            self.now = max(self.now, when)
            timer.fire()

    def clear(self) -> None:
        """Forget everything that waits."""
        self._timers.clear()

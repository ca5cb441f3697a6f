"""How often, and whether at all: rate limits and a circuit breaker per tool. Both count in this process only."""

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Literal

from msgspec import Struct

from handrail.core.context import ToolContext
from handrail.core.select import Selector, any_of
from handrail.core.tool import Tool
from handrail.errors import ConfigError

Clock = Callable[[], float]


class RateLimit(Struct, frozen=True, kw_only=True):
    """At most so many calls in so many seconds, of the selected tools, per tool, session or tenant."""

    calls: int
    seconds: float
    tools: tuple[str, ...] = ()
    """Selectors; none of them means every tool."""
    per: Literal["tool", "session", "tenant"] = "tool"

    def __post_init__(self) -> None:
        if self.calls < 1 or self.seconds <= 0 or self.per not in ("tool", "session", "tenant"):
            raise ConfigError("A rate limit has at least 1 call, more than 0 seconds, per tool, session or tenant.")


class _Counted:
    __slots__ = ("limit", "most", "selects", "times")

    def __init__(self, limit: RateLimit) -> None:
        self.limit = limit
        self.selects: Selector = any_of(limit.tools) if limit.tools else lambda tool: True
        self.times: dict[tuple[str, ...], deque[float]] = {}
        self.most = 10_000
        """How many places may be remembered before it is looked which of them are still needed."""

    def place(self, tool: Tool[..., Any], context: ToolContext[Any]) -> tuple[str, ...]:
        match self.limit.per:
            case "tool":
                return (tool.name,)
            case "session":
                return (context.tenant_id or "", context.session_id)
            case "tenant":
                return (context.tenant_id or "",)


class RateLimits:
    """All limits of an executor. A refused call does not count."""

    def __init__(self, limits: Iterable[RateLimit], *, clock: Clock = time.monotonic) -> None:
        self._limits = [_Counted(limit) for limit in limits]
        self._clock = clock

    def __bool__(self) -> bool:
        return bool(self._limits)

    def wait_for(self, tool: Tool[..., Any], context: ToolContext[Any]) -> float:
        """0 and the call is counted, or the seconds after which it would be let through."""
        now = self._clock()
        places: list[deque[float]] = []
        for one in self._limits:
            if not one.selects(tool):
                continue
            times = one.times.setdefault(one.place(tool, context), deque())
            while times and times[0] <= now - one.limit.seconds:
                times.popleft()
            if len(times) >= one.limit.calls:
                return max(times[0] + one.limit.seconds - now, 0.001)
            places.append(times)
        for times in places:
            times.append(now)
        self._forget_idle(now)
        return 0.0

    def _forget_idle(self, now: float) -> None:
        for one in self._limits:
            if len(one.times) > one.most:
                one.times = {
                    place: times for place, times in one.times.items() if times and times[-1] > now - one.limit.seconds
                }
                one.most = max(10_000, 2 * len(one.times))


class CircuitBreaker(Struct, frozen=True, kw_only=True):
    """After so many failures in a row a tool rests for so many seconds; then one call tries."""

    failures: int = 5
    seconds: float = 30.0

    def __post_init__(self) -> None:
        if self.failures < 1 or self.seconds <= 0:
            raise ConfigError("A breaker opens after at least 1 failure, for more than 0 seconds.")


BreakerState = Literal["closed", "open", "half_open"]


class _Health:
    __slots__ = ("failures", "opened_at", "state")

    def __init__(self) -> None:
        self.failures = 0
        self.opened_at = 0.0
        self.state: BreakerState = "closed"


class Breakers:
    """One circuit breaker per tool."""

    def __init__(
        self, settings: CircuitBreaker, *, changed: Callable[[str, BreakerState], None], clock: Clock = time.monotonic
    ) -> None:
        self._settings = settings
        self._changed = changed
        self._clock = clock
        self._health: dict[str, _Health] = {}

    def refuses(self, tool: str) -> float | None:
        """The seconds until a call may try again, or None: go ahead."""
        health = self._health.get(tool)
        if health is None or health.state == "closed":
            return None
        left = health.opened_at + self._settings.seconds - self._clock()
        if health.state == "open" and left <= 0:
            self._turn(tool, health, "half_open")
            return None
        return max(left, 0.001)

    def report(self, tool: str, ok: bool | None) -> None:
        """A call of this tool worked, failed, or (None) says nothing about the tool's health."""
        health = self._health.get(tool)
        if health is None:
            if ok is not False:
                return
            health = self._health[tool] = _Health()
        if ok is None:
            if health.state == "half_open":  # The try told nothing: the next call may try.
                self._turn(tool, health, "open")
            return
        if ok:
            health.failures = 0
            if health.state != "closed":
                self._turn(tool, health, "closed")
            return
        health.failures += 1
        if health.state == "half_open" or (health.state == "closed" and health.failures >= self._settings.failures):
            health.opened_at = self._clock()
            self._turn(tool, health, "open")

    def state(self, tool: str) -> BreakerState:
        """The state of a tool's breaker."""
        health = self._health.get(tool)
        return health.state if health else "closed"

    def _turn(self, tool: str, health: _Health, state: BreakerState) -> None:
        health.state = state
        self._changed(tool, state)

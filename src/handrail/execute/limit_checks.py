"""What can delay or refuse a call that is allowed: concurrency limits, rate limits and circuit breakers."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

from msgspec import Struct

from handrail.authorize.authorizer import Refusal
from handrail.core import failure_results
from handrail.core.context import ToolContext
from handrail.core.selectors import SelectorTable
from handrail.core.tool import Tool
from handrail.execute.event_bus import EventBus
from handrail.execute.limits import CircuitBreaker, Limits, RateLimit
from handrail.execute.scheduler import CallScope


class ConcurrencyLimit:
    """At most so many calls at once; the one that waits longest is next."""

    __slots__ = ("_free", "_waiting", "users")

    def __init__(self, max_concurrent: int) -> None:
        self._free = max_concurrent
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.users = 0
        """How many calls run or wait."""

    async def acquire(self) -> None:
        """Wait until the call may run."""
        self.users += 1
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except BaseException:
            with contextlib.suppress(ValueError):
                self._waiting.remove(turn)
            if turn.cancelled():
                self.users -= 1
            else:  # It was granted in the same moment.
                self.release()
            raise

    def release(self) -> None:
        """Let the next call run."""
        self.users -= 1
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


class _CallTimes:
    """The times of the calls that count against one rate limit."""

    __slots__ = ("limit", "max_groups", "times")

    def __init__(self, limit: RateLimit) -> None:
        self.limit = limit
        self.times: dict[tuple[str, ...], deque[float]] = {}
        self.max_groups = 10_000
        """How many tools, sessions or tenants are remembered before idle ones are forgotten."""

    def group(self, tool: Tool[..., Any], context: ToolContext[Any]) -> tuple[str, ...]:
        match self.limit.per:
            case "tool":
                return (tool.name,)
            case "session":
                return (context.tenant_id or "", context.session_id)
            case "tenant":
                return (context.tenant_id or "",)

    def forget_idle(self, now: float) -> None:
        """Forget the groups that no call counts in any more."""
        start = now - self.limit.period
        self.times = {group: times for group, times in self.times.items() if times and times[-1] > start}
        self.max_groups = max(10_000, 2 * len(self.times))


class RateLimits:
    """All rate limits of an executor. A refused call does not count."""

    def __init__(self, limits: Iterable[RateLimit], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = SelectorTable((limit.tools, _CallTimes(limit)) for limit in limits)
        self._clock = clock

    def __bool__(self) -> bool:
        return bool(self._limits)

    def acquire(self, tool: Tool[..., Any], context: ToolContext[Any]) -> float:
        """Count the call and return 0, or return the seconds after which it would be allowed."""
        now = self._clock()
        groups: list[deque[float]] = []
        limits = self._limits.find(tool)
        for counted in limits:
            times = counted.times.setdefault(counted.group(tool, context), deque())
            while times and times[0] <= now - counted.limit.period:
                times.popleft()
            if len(times) >= counted.limit.max_calls:
                return max(times[0] + counted.limit.period - now, 0.001)
            groups.append(times)
        for times in groups:
            times.append(now)
        for counted in limits:
            if len(counted.times) > counted.max_groups:
                counted.forget_idle(now)
        return 0.0


BreakerState = Literal["closed", "open", "half_open"]


class _ToolHealth:
    __slots__ = ("failures", "opened_at", "state")

    def __init__(self) -> None:
        self.failures = 0
        self.opened_at = 0.0
        self.state: BreakerState = "closed"


class CircuitBreakers:
    """One circuit breaker per tool."""

    def __init__(
        self,
        settings: CircuitBreaker,
        *,
        on_change: Callable[[str, BreakerState], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._on_change = on_change
        self._clock = clock
        self._tools: dict[str, _ToolHealth] = {}

    def wait_time(self, tool: str) -> float | None:
        """The seconds until a call may try again; None if it may run now."""
        health = self._tools.get(tool)
        if health is None or health.state == "closed":
            return None
        left = health.opened_at + self._settings.reset_timeout - self._clock()
        if health.state == "open" and left <= 0:
            self._set_state(tool, health, "half_open")
            return None
        return max(left, 0.001)

    def report(self, tool: str, is_healthy: bool | None) -> None:
        """A call of this tool worked, failed, or (None) says nothing about the tool's health."""
        health = self._tools.get(tool)
        if health is None:
            if is_healthy is not False:
                return
            health = self._tools[tool] = _ToolHealth()
        if is_healthy is None:
            if health.state == "half_open":  # The call that tried says nothing: the next one may try.
                self._set_state(tool, health, "open")
            return
        if is_healthy:
            health.failures = 0
            if health.state != "closed":
                self._set_state(tool, health, "closed")
            return
        health.failures += 1
        is_tripped = health.state == "closed" and health.failures >= self._settings.max_failures
        if is_tripped or health.state == "half_open":
            health.opened_at = self._clock()
            self._set_state(tool, health, "open")

    def _set_state(self, tool: str, health: _ToolHealth, state: BreakerState) -> None:
        health.state = state
        self._on_change(tool, state)


class AdmissionControl:
    """All limits of an executor. They count the calls of this process only."""

    def __init__(self, limits: Limits, *, events: EventBus) -> None:
        breaker, max_concurrent = limits.circuit_breaker, limits.max_concurrent
        self._rates = RateLimits(limits.rate_limits)
        self._breakers = CircuitBreakers(breaker, on_change=events.emit_breaker_state) if breaker else None
        self._total = ConcurrencyLimit(max_concurrent) if max_concurrent else None
        self._max_per_session = limits.max_concurrent_per_session
        self._sessions: dict[str, ConcurrencyLimit] = {}
        per_tool = limits.max_concurrent_per_tool
        self._per_tool = SelectorTable(((text,), ConcurrencyLimit(limit)) for text, limit in per_tool.items())
        self.is_unlimited = not any((self._rates, breaker, max_concurrent, self._max_per_session, per_tool))

    def limits_for(self, tool: Tool[..., Any], session_id: str) -> Iterator[ConcurrencyLimit]:
        """The limits that a call counts against, always in this order: of its tool, of its session, of all calls."""
        yield from self._per_tool.find(tool)
        if self._max_per_session:
            yield self._sessions.setdefault(session_id, ConcurrencyLimit(self._max_per_session))
        if self._total is not None:
            yield self._total

    def forget_idle(self, session_id: str) -> None:
        """Forget the limit of a session that has no calls."""
        limit = self._sessions.get(session_id)
        if limit is not None and not limit.users:
            del self._sessions[session_id]

    def check(self, tool: Tool[..., Any], context: ToolContext[Any]) -> None:
        """Raise `Refusal` if the tool's circuit breaker is open, or a rate limit is reached."""
        if self._breakers is not None and (wait := self._breakers.wait_time(tool.name)) is not None:
            raise Refusal(failure_results.circuit_open(tool.name, wait))
        if self._rates and (wait := self._rates.acquire(tool, context)):
            self.report(tool, None)
            raise Refusal(failure_results.rate_limited(tool.name, wait))

    def report(self, tool: Tool[..., Any], is_healthy: bool | None) -> None:
        """Report to the circuit breaker how a call went."""
        if self._breakers is not None:
            self._breakers.report(tool.name, is_healthy)


class Admission(Struct, eq=False):
    """What one call holds of the limits. `release` has to be called, whatever becomes of the call."""

    control: AdmissionControl
    tool: Tool[..., Any]
    scope: CallScope
    _acquired: tuple[ConcurrencyLimit, ...] = ()
    _is_checked: bool = False
    _is_reported: bool = False

    async def acquire(self, context: ToolContext[Any]) -> None:
        """Wait for every concurrency limit, then check rate limits and circuit breaker. A second time does nothing."""
        if self._is_checked or self.control.is_unlimited:
            return
        for limit in self.control.limits_for(self.tool, self.scope.ref[0]):
            if limit not in self.scope.limits:  # A call inside a call that counts already does not count again.
                await limit.acquire()
                self._acquired += (limit,)
                self.scope.limits += (limit,)
        self.control.check(self.tool, context)
        self._is_checked = True

    def report(self, is_healthy: bool | None) -> None:
        """Report how the call went, once; None says nothing about the tool's health."""
        if self._is_checked and not self._is_reported:
            self._is_reported = True
            self.control.report(self.tool, is_healthy)

    def release(self) -> None:
        """The call is over, or was given up."""
        if self.control.is_unlimited:
            return
        self.report(None)
        for limit in self._acquired:
            limit.release()
        self._acquired = ()
        self.control.forget_idle(self.scope.ref[0])

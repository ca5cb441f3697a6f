"""What bounds the calls of an executor: how many run at once, how often they may be made or fail, and for how long."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import Struct, structs

from handrail.authorize.authorizer import Refusal
from handrail.core import failure_results
from handrail.core.context import ToolContext
from handrail.core.selectors import SelectorTable
from handrail.core.tool import Tool
from handrail.errors import ConfigError
from handrail.execute.event_bus import EventBus
from handrail.execute.scheduler import CallScope


class RateLimit(Struct, frozen=True, kw_only=True):
    """At most `max_calls` calls of the selected tools in `period` seconds, per tool, session or tenant."""

    max_calls: int
    """Calls in one period."""
    period: float
    """Seconds."""
    tools: tuple[str, ...] = ()
    """Selectors; none of them means every tool."""
    per: Literal["tool", "session", "tenant"] = "tool"
    """What is counted together: the calls of each tool, of each session or of each tenant."""

    def __post_init__(self) -> None:
        if self.max_calls < 1:
            raise ConfigError(f"max_calls must be at least 1, got {self.max_calls!r}.")
        if not self.period > 0:
            raise ConfigError(f"period must be more than 0 seconds, got {self.period!r}.")
        if self.per not in ("tool", "session", "tenant"):
            raise ConfigError(f"per must be 'tool', 'session' or 'tenant', got {self.per!r}.")


class CircuitBreaker(Struct, frozen=True, kw_only=True):
    """After `max_failures` failures in a row a tool is refused for `reset_timeout` seconds; then one call tries."""

    max_failures: int = 5
    """Failures in a row after which the tool is refused."""
    reset_timeout: float = 30.0
    """Seconds."""

    def __post_init__(self) -> None:
        if self.max_failures < 1:
            raise ConfigError(f"max_failures must be at least 1, got {self.max_failures!r}.")
        if not self.reset_timeout > 0:
            raise ConfigError(f"reset_timeout must be more than 0 seconds, got {self.reset_timeout!r}.")


class Limits(Struct, frozen=True, kw_only=True):
    """How much an executor accepts and runs: `Executor(tools, limits=Limits(max_concurrent=8))`.

    But for `max_queued_per_tenant`, they count the calls of this process only.
    """

    max_concurrent: int | None = None
    """Calls that run at the same time. Further ones wait; None is unlimited."""
    max_concurrent_per_session: int | None = None
    """The same, for each session."""
    max_concurrent_per_tool: Mapping[str, int] = {}
    """The same, for the tools of each selector: `{"send_*": 2}`."""
    max_threads: int = 32
    """Threads for sync handlers. A call that finds none free waits."""
    max_argument_chars: int = 1_000_000
    """The length of a call's arguments. Longer ones are refused before they are parsed."""
    max_output_chars: int | None = None
    """The length of an output that a model gets at once; the rest can be read with `read_more`. None is unlimited."""
    max_media_bytes: int = 5_000_000
    """The size of the images and files of one result. Larger ones are left out."""
    max_remembered_bytes: int = 50_000_000
    """The size of the results of read-only calls that are kept in memory, to answer a call that arrives twice."""
    max_queued_per_tenant: int | None = None
    """Durable calls of a tenant, of all processes, that wait for a worker. Further ones are refused; None is
    unlimited."""
    rate_limits: Sequence[RateLimit] = ()
    """How often tools may be called; see `RateLimit`."""
    circuit_breaker: CircuitBreaker | None = None
    """When a tool that fails is not called for a time; see `CircuitBreaker`. None is never."""

    def __post_init__(self) -> None:
        # A copy: what is shared by several executors must not change.
        structs.force_setattr(self, "rate_limits", tuple(self.rate_limits))
        structs.force_setattr(self, "max_concurrent_per_tool", dict(self.max_concurrent_per_tool))
        for name, minimum in _MINIMUM.items():
            _check_count(name, getattr(self, name), minimum)
        for selector, count in self.max_concurrent_per_tool.items():
            _check_count(f"max_concurrent_per_tool[{selector!r}]", count, 1)
        for limit in self.rate_limits:
            if not isinstance(limit, RateLimit):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigError(f"rate_limits must contain RateLimit values, got {limit!r}.")
        if not isinstance(self.circuit_breaker, CircuitBreaker | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"circuit_breaker must be a CircuitBreaker or None, got {self.circuit_breaker!r}.")


class Timeouts(Struct, frozen=True, kw_only=True):
    """How long the parts of a call may take, in seconds: `Executor(tools, timeouts=Timeouts(call=10))`."""

    call: float = 30.0
    """The handler, for tools without a `timeout` of their own. The time that a call waits in a queue does not count."""
    slow_after: float = 5.0
    """A call that takes longer is marked as slow in its `CallFinished` event."""
    overhead: float = 10.0
    """Everything else in a call, in total: permission checks, hooks, `verify`, ledger and approvals."""
    in_progress: float = 10.0
    """Waiting for the same call in another process; after that the result is `in_progress`."""
    lease: float = 15.0
    """How long a process that died is believed to be alive. While it lives, it renews the leases of its calls."""
    lease_grace: float = 60.0
    """How long after its timeout a call of a process that died could still take effect."""
    approval: float = 900.0
    """How long an approval can be given and used."""
    resend_after: float = 5.0
    """How long a durable call is queued and not begun before a worker sends it again to whatever delivers it."""
    unserved_after: float = 60.0
    """How long a durable call is queued before whoever waits for it is told that no worker takes it."""
    repeat_window: float = 86_400.0
    """How long a call with a new id and the same effect is a repetition, which the customer has to agree to."""

    def __post_init__(self) -> None:
        for name in ("call", "slow_after", "overhead", "lease", "approval", "resend_after", "unserved_after"):
            if not _is_number(seconds := getattr(self, name)) or not seconds > 0:
                raise ConfigError(f"{name} must be more than 0 seconds, got {seconds!r}.")
        for name in ("in_progress", "lease_grace", "repeat_window"):
            if not _is_number(seconds := getattr(self, name)) or not seconds >= 0:
                raise ConfigError(f"{name} must be 0 seconds or more, got {seconds!r}.")


class RetryPolicy(Struct, frozen=True, kw_only=True):
    """How often a read-only or idempotent tool is tried, and how long to wait in between."""

    max_attempts: int = 1
    """How often a call is tried in all; 1 is never again."""
    initial_delay: float = 0.2
    """Seconds before the second attempt; it doubles each time, and a random part keeps callers apart."""
    max_delay: float = 5.0
    """The most seconds between two attempts."""

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ConfigError(f"max_attempts must be at least 1, got {self.max_attempts!r}.")
        if self.initial_delay < 0:
            raise ConfigError(f"initial_delay must be 0 seconds or more, got {self.initial_delay!r}.")
        if self.max_delay < self.initial_delay:
            raise ConfigError(f"max_delay must be at least initial_delay, got {self.max_delay!r}.")

    def delay_after(self, attempt: int) -> float:
        """How long to wait at most after this attempt."""
        doublings = min(attempt - 1, 1_000)  # More are no float, and longer than any `max_delay`.
        return min(self.initial_delay * 2.0**doublings, self.max_delay)


_MINIMUM: Final = {
    "max_concurrent": 1,
    "max_concurrent_per_session": 1,
    "max_queued_per_tenant": 1,
    "max_threads": 1,
    "max_argument_chars": 1,
    "max_output_chars": 1,
    "max_media_bytes": 0,
    "max_remembered_bytes": 0,
}
_OPTIONAL: Final = ("max_concurrent", "max_concurrent_per_session", "max_queued_per_tenant", "max_output_chars")
"""Those that may be None."""


def _check_count(name: str, count: object, minimum: int) -> None:
    if count is None and name in _OPTIONAL:
        return
    if isinstance(count, bool) or not isinstance(count, int) or count < minimum:
        raise ConfigError(f"{name} must be {f'at least {minimum}' if minimum else '0 or more'}, got {count!r}.")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


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

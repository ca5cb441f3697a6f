"""Rate limits. They count the calls of this process only."""

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Literal

from msgspec import Struct

from handrail.core.context import ToolContext
from handrail.core.selectors import SelectorTable
from handrail.core.tool import Tool
from handrail.errors import ConfigError


class RateLimit(Struct, frozen=True, kw_only=True):
    """At most `max_calls` calls of the selected tools in `period` seconds, per tool, session or tenant."""

    max_calls: int
    period: float
    """Seconds."""
    tools: tuple[str, ...] = ()
    """Selectors; none of them means every tool."""
    per: Literal["tool", "session", "tenant"] = "tool"

    def __post_init__(self) -> None:
        if self.max_calls < 1:
            raise ConfigError(f"max_calls must be at least 1, got {self.max_calls!r}.")
        if not self.period > 0:
            raise ConfigError(f"period must be more than 0 seconds, got {self.period!r}.")
        if self.per not in ("tool", "session", "tenant"):
            raise ConfigError(f"per must be 'tool', 'session' or 'tenant', got {self.per!r}.")


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
        for one in limits:
            times = one.times.setdefault(one.group(tool, context), deque())
            while times and times[0] <= now - one.limit.period:
                times.popleft()
            if len(times) >= one.limit.max_calls:
                return max(times[0] + one.limit.period - now, 0.001)
            groups.append(times)
        for times in groups:
            times.append(now)
        for one in limits:
            if len(one.times) > one.max_groups:
                one.forget_idle(now)
        return 0.0

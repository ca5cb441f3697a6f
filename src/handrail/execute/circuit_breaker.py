"""A circuit breaker for each tool: when it opens, and when a call may try again. It counts this process only."""

import time
from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from handrail.errors import ConfigError


class CircuitBreaker(Struct, frozen=True, kw_only=True):
    """After `max_failures` failures in a row a tool is refused for `reset_timeout` seconds; then one call tries."""

    max_failures: int = 5
    reset_timeout: float = 30.0
    """Seconds."""

    def __post_init__(self) -> None:
        if self.max_failures < 1:
            raise ConfigError(f"max_failures must be at least 1, got {self.max_failures!r}.")
        if not self.reset_timeout > 0:
            raise ConfigError(f"reset_timeout must be more than 0 seconds, got {self.reset_timeout!r}.")


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

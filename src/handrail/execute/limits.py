"""What bounds the calls of an executor: how many they may be, how often they may fail, and how long they may take."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from msgspec import Struct, structs

from handrail.errors import ConfigError


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
        return min(self.initial_delay * 2 ** (attempt - 1), self.max_delay)


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

"""What bounds the calls of an executor: `Limits` counts them, `Timeouts` measures them."""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct, structs

from handrail.errors import ConfigError
from handrail.execute.circuit_breaker import CircuitBreaker
from handrail.execute.rate_limits import RateLimit


class Limits(Struct, frozen=True, kw_only=True):
    """How much an executor accepts and runs: `Executor(tools, limits=Limits(max_concurrent=8))`.

    They count the calls of this process only.
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
    repeat_window: float = 86_400.0
    """How long a call with a new id and the same effect is a repetition, which the customer has to agree to."""

    def __post_init__(self) -> None:
        for name in ("call", "slow_after", "overhead", "lease", "approval"):
            if not _is_number(seconds := getattr(self, name)) or not seconds > 0:
                raise ConfigError(f"{name} must be more than 0 seconds, got {seconds!r}.")
        for name in ("in_progress", "repeat_window"):
            if not _is_number(seconds := getattr(self, name)) or not seconds >= 0:
                raise ConfigError(f"{name} must be 0 seconds or more, got {seconds!r}.")
        if not _is_number(self.lease_grace) or self.lease_grace != self.lease_grace:
            raise ConfigError(f"lease_grace must be a number of seconds, got {self.lease_grace!r}.")


_MINIMUM: Final = {
    "max_concurrent": 1,
    "max_concurrent_per_session": 1,
    "max_threads": 1,
    "max_argument_chars": 1,
    "max_output_chars": 1,
    "max_media_bytes": 0,
    "max_remembered_bytes": 0,
}
_OPTIONAL: Final = ("max_concurrent", "max_concurrent_per_session", "max_output_chars")
"""Those that may be None."""


def _check_count(name: str, count: object, minimum: int) -> None:
    if count is None and name in _OPTIONAL:
        return
    if isinstance(count, bool) or not isinstance(count, int) or count < minimum:
        raise ConfigError(f"{name} must be {f'at least {minimum}' if minimum else '0 or more'}, got {count!r}.")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

"""How often, how well and how fast tools run: counted in this process, per tool and tenant."""

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Final

from msgspec import Struct

from handrail.core.events import BreakerTurned, CallFinished, CallIgnored, CallStarted, Event
from handrail.errors import ConfigError
from handrail.monitor.calls import Calls
from handrail.monitor.labels import Labels, tool_of

SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""The bounds of the histogram: what a caller notices, up to the usual timeout and beyond."""


class Figures(Struct, frozen=True, kw_only=True):
    """What is known about one tool of one tenant."""

    tool: str
    tenant: str
    """Empty for calls without a tenant."""
    count: int
    """Calls that were answered."""
    succeeded: int
    failed: int
    """Calls whose handler began and did not succeed."""
    refused: int
    """Calls that ended before their handler began: invalid, not allowed, not yet approved, too many."""
    cancelled: int
    """Calls that somebody cancelled; they say nothing about the tool."""
    slow: int
    ignored: Mapping[str, int]
    """Calls that arrived again and were not counted again, by reason."""
    errors: Mapping[str, int]
    """Failures and refusals, by their code."""
    seconds: float
    """The time that succeeded and failed calls took together."""
    histogram: tuple[tuple[float, int], ...]
    """How many of them took at most so many seconds; the last bound is infinity."""

    @property
    def success_rate(self) -> float | None:
        """Succeeded calls among those that ran; None if none did."""
        ran = self.succeeded + self.failed
        return self.succeeded / ran if ran else None


class Metrics:
    """Counts what it is told. `snapshot()` for a program, `prometheus()` for a scraper.

    The first `max_tools` tools and `max_tenants` tenants have figures of their own; all others share `other`.
    """

    def __init__(
        self, *, buckets: Iterable[float] = SECONDS, max_tools: int = 100, max_tenants: int = 50, max_codes: int = 50
    ) -> None:
        self._bounds = tuple(buckets)
        if not self._bounds or any(low >= high for low, high in zip(self._bounds, self._bounds[1:], strict=False)):
            raise ConfigError("The buckets of a histogram are seconds in rising order, at least one.")
        self._tools = Labels(max_tools)
        self._tenants = Labels(max_tenants)
        self._codes = Labels(max_codes)
        self._series: dict[tuple[str, str], _Series] = {}
        self._breakers: dict[str, bool] = {}
        self._begun: Calls[bool] = Calls()
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        """Count one event."""
        if isinstance(event, CallStarted):
            self._begun.put(event, True)
        elif isinstance(event, CallFinished):
            self._finished(event, began=self._begun.pop(event) is not None)
        elif isinstance(event, CallIgnored):
            with self._lock:
                series = self._of(self._tools(event.call.name), event.tenant_id)
                series.ignored[self._codes(event.reason)] += 1
        elif isinstance(event, BreakerTurned):
            with self._lock:
                self._breakers[self._tools(event.tool_name)] = event.state == "open"

    def snapshot(self) -> tuple[Figures, ...]:
        """The figures of every tool and tenant, by name."""
        with self._lock:
            return tuple(
                series.figures(tool, tenant, self._bounds) for (tool, tenant), series in sorted(self._series.items())
            )

    def prometheus(self) -> str:
        """The figures in Prometheus' text format."""
        figures = self.snapshot()
        with self._lock:
            breakers = sorted(self._breakers.items())
        return "".join((*_calls(figures), *_durations(figures), *_running(len(self._begun), breakers)))

    def _finished(self, event: CallFinished, *, began: bool) -> None:
        result = event.result
        seconds = result.duration_ms / 1000
        with self._lock:
            series = self._of(self._tools(tool_of(event.call, result)), event.tenant_id)
            series.slow += event.slow
            if result.error is not None:
                series.errors[self._codes(result.error.code)] += 1
            if result.error is None:
                series.succeeded += 1
            elif result.error.code == "cancelled":
                series.cancelled += 1
                return
            elif began:
                series.failed += 1
            else:
                series.refused += 1
                return
            series.seconds += seconds
            series.buckets[bisect_left(self._bounds, seconds)] += 1

    def _of(self, tool: str, tenant_id: str | None) -> "_Series":
        place = (tool, "" if tenant_id is None else self._tenants(tenant_id))
        series = self._series.get(place)
        if series is None:
            series = self._series[place] = _Series(len(self._bounds) + 1)
        return series


class _Series:
    """The running counts of one tool and tenant."""

    __slots__ = ("buckets", "cancelled", "errors", "failed", "ignored", "refused", "seconds", "slow", "succeeded")

    def __init__(self, buckets: int) -> None:
        self.succeeded = self.failed = self.refused = self.cancelled = self.slow = 0
        self.errors: Counter[str] = Counter()
        self.ignored: Counter[str] = Counter()
        self.seconds = 0.0
        self.buckets = [0] * buckets

    def figures(self, tool: str, tenant: str, bounds: Sequence[float]) -> Figures:
        return Figures(
            tool=tool,
            tenant=tenant,
            count=self.succeeded + self.failed + self.refused + self.cancelled,
            succeeded=self.succeeded,
            failed=self.failed,
            refused=self.refused,
            cancelled=self.cancelled,
            slow=self.slow,
            ignored=dict(sorted(self.ignored.items())),
            errors=dict(sorted(self.errors.items())),
            seconds=self.seconds,
            histogram=tuple(zip((*bounds, float("inf")), accumulate(self.buckets), strict=True)),
        )


# Prometheus' text format.


def _calls(figures: Sequence[Figures]) -> Iterable[str]:
    yield _head("handrail_calls_total", "counter", "Calls that were answered.")
    for one in figures:
        for outcome in ("succeeded", "failed", "refused", "cancelled"):
            yield _row("handrail_calls_total", getattr(one, outcome), *_who(one), ("outcome", outcome))
    yield _head("handrail_call_errors_total", "counter", "Calls that failed or were refused, by the code of the error.")
    for one in figures:
        for code, count in one.errors.items():
            yield _row("handrail_call_errors_total", count, *_who(one), ("code", code))
    yield _head("handrail_calls_ignored_total", "counter", "Calls that arrived again and were not run again.")
    for one in figures:
        for reason, count in one.ignored.items():
            yield _row("handrail_calls_ignored_total", count, *_who(one), ("reason", reason))
    yield _head("handrail_calls_slow_total", "counter", "Calls that took longer than calls should.")
    for one in figures:
        yield _row("handrail_calls_slow_total", one.slow, *_who(one))


def _durations(figures: Sequence[Figures]) -> Iterable[str]:
    name = "handrail_call_duration_seconds"
    yield _head(name, "histogram", "How long calls took that succeeded or failed, from arrival to answer.")
    for one in figures:
        for bound, count in one.histogram:
            yield _row(f"{name}_bucket", count, *_who(one), ("le", "+Inf" if bound == float("inf") else repr(bound)))
        yield _row(f"{name}_sum", one.seconds, *_who(one))
        yield _row(f"{name}_count", one.histogram[-1][1], *_who(one))


def _running(active: int, breakers: Iterable[tuple[str, bool]]) -> Iterable[str]:
    yield _head("handrail_calls_running", "gauge", "Handlers that run now.")
    yield _row("handrail_calls_running", active)
    yield _head("handrail_breaker_open", "gauge", "Whether a tool rests, because it failed repeatedly.")
    for tool, is_open in breakers:
        yield _row("handrail_breaker_open", int(is_open), ("tool", tool))


def _who(figures: Figures) -> tuple[tuple[str, str], ...]:
    return ("tool", figures.tool), ("tenant", figures.tenant)


def _head(name: str, kind: str, text: str) -> str:
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def _row(name: str, value: float, *labels: tuple[str, str]) -> str:
    inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
    return f"{name}{{{inside}}} {value!r}\n" if inside else f"{name} {value!r}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')

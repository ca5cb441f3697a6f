"""Counts and durations of calls in this process, per tool and tenant, for a program or for Prometheus."""

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Final

from msgspec import Struct

from handrail.core.events import CallFinished, CallIgnored, CallStarted, CircuitBreakerChanged, Event
from handrail.errors import ConfigError
from handrail.monitor.agent_metrics import AgentMetrics
from handrail.monitor.calls import OpenCalls
from handrail.monitor.labels import LabelLimit, find_tool_label
from handrail.monitor.phone_metrics import PhoneCallMetrics, PhoneMetrics, VoiceMetrics
from handrail.monitor.prometheus import format_head, format_row

DURATION_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""The upper bounds of the histogram, in seconds."""


class ToolMetrics(Struct, frozen=True, kw_only=True):
    """The metrics of one tool and tenant."""

    tool: str
    tenant: str
    """Empty for calls without a tenant."""
    count: int
    """Calls that have a result."""
    succeeded: int
    failed: int
    """Calls whose handler was started and failed."""
    refused: int
    """Calls that were refused before their handler started: invalid, denied, not approved, rate limited."""
    cancelled: int
    """Calls that were cancelled. They are not part of the success rate."""
    slow: int
    ignored: Mapping[str, int]
    """Repeated calls that were not run again, by reason. They are not part of `count`."""
    errors: Mapping[str, int]
    """Failed and refused calls, by error code."""
    seconds: float
    """The total duration of succeeded and failed calls."""
    histogram: tuple[tuple[float, int], ...]
    """Cumulative counts of these calls by upper bound in seconds; the last bound is infinity."""

    @property
    def success_rate(self) -> float | None:
        """The share of succeeded calls among succeeded and failed ones; None if there are none."""
        ran = self.succeeded + self.failed
        return self.succeeded / ran if ran else None


class Metrics:
    """A listener that counts calls. Read it with `snapshot()`, or serve `prometheus()` to a scraper.

    The first `max_tools` tools and `max_tenants` tenants are counted separately, all others as `other`.
    """

    def __init__(
        self,
        *,
        buckets: Iterable[float] = DURATION_BUCKETS,
        max_tools: int = 100,
        max_tenants: int = 50,
        max_codes: int = 50,
    ) -> None:
        self._bounds = tuple(buckets)
        if not self._bounds or any(low >= high for low, high in zip(self._bounds, self._bounds[1:], strict=False)):
            raise ConfigError("buckets must be at least one number of seconds, in rising order.")
        self._tools = LabelLimit(max_tools)
        self._tenants = LabelLimit(max_tenants)
        self._codes = LabelLimit(max_codes)
        self._series: dict[tuple[str, str], _Series] = {}
        self._breakers: dict[str, bool] = {}
        self._started: OpenCalls[bool] = OpenCalls()
        self._lock = threading.Lock()
        self._agent = AgentMetrics(self._bounds, codes=self._codes)
        self._phone = PhoneMetrics(self._bounds, tools=self._tools, tenants=self._tenants)

    def __call__(self, event: Event) -> None:
        """Count one event."""
        self._phone(event)
        self._agent(event)
        if isinstance(event, CallStarted):
            self._started.put(event, True)
        elif isinstance(event, CallFinished):
            self._count_result(event, has_started=self._started.pop(event) is not None)
        elif isinstance(event, CallIgnored):
            with self._lock:
                series = self._find_series(self._tools(event.call.name), event.tenant_id)
                series.ignored[self._codes(event.reason)] += 1
        elif isinstance(event, CircuitBreakerChanged):
            with self._lock:
                self._breakers[self._tools(event.tool_name)] = event.state == "open"

    def snapshot(self) -> tuple[ToolMetrics, ...]:
        """Return the metrics of every tool and tenant, sorted by name."""
        with self._lock:
            return tuple(
                series.build_metrics(tool, tenant, self._bounds)
                for (tool, tenant), series in sorted(self._series.items())
            )

    def voices(self) -> tuple[VoiceMetrics, ...]:
        """Return the time until results were spoken, for every tool and tenant."""
        return self._phone.voices()

    def phone_calls(self) -> tuple[PhoneCallMetrics, ...]:
        """Return the finished phone calls of every tenant."""
        return self._phone.calls()

    def prometheus(self) -> str:
        """Return the metrics in Prometheus' text format."""
        metrics = self.snapshot()
        with self._lock:
            breakers = sorted(self._breakers.items())
        return "".join(
            (
                *_format_calls(metrics),
                *_format_durations(metrics),
                *_format_gauges(len(self._started), breakers),
                *self._agent.prometheus(),
                *self._phone.prometheus(),
            )
        )

    def _count_result(self, event: CallFinished, *, has_started: bool) -> None:
        result = event.result
        seconds = result.duration_ms / 1000
        with self._lock:
            series = self._find_series(self._tools(find_tool_label(event.call, result)), event.tenant_id)
            series.slow += event.slow
            if result.error is not None:
                series.errors[self._codes(result.error.code)] += 1
            if result.error is None:
                series.succeeded += 1
            elif result.error.code == "cancelled":
                series.cancelled += 1
                return
            elif has_started:
                series.failed += 1
            else:
                series.refused += 1
                return
            series.seconds += seconds
            series.buckets[bisect_left(self._bounds, seconds)] += 1

    def _find_series(self, tool: str, tenant_id: str | None) -> "_Series":
        labels = (tool, "" if tenant_id is None else self._tenants(tenant_id))
        series = self._series.get(labels)
        if series is None:
            series = self._series[labels] = _Series(len(self._bounds) + 1)
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

    def build_metrics(self, tool: str, tenant: str, bounds: Sequence[float]) -> ToolMetrics:
        return ToolMetrics(
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


def _format_calls(metrics: Sequence[ToolMetrics]) -> Iterable[str]:
    yield format_head("handrail_calls_total", "counter", "Calls that have a result.")
    for one in metrics:
        for outcome in ("succeeded", "failed", "refused", "cancelled"):
            yield format_row("handrail_calls_total", getattr(one, outcome), *_labels(one), ("outcome", outcome))
    yield format_head("handrail_call_errors_total", "counter", "Calls that failed or were refused, by error code.")
    for one in metrics:
        for code, count in one.errors.items():
            yield format_row("handrail_call_errors_total", count, *_labels(one), ("code", code))
    yield format_head("handrail_calls_ignored_total", "counter", "Repeated calls that were not run again.")
    for one in metrics:
        for reason, count in one.ignored.items():
            yield format_row("handrail_calls_ignored_total", count, *_labels(one), ("reason", reason))
    yield format_head("handrail_calls_slow_total", "counter", "Calls that took longer than slow_after.")
    for one in metrics:
        yield format_row("handrail_calls_slow_total", one.slow, *_labels(one))


def _format_durations(metrics: Sequence[ToolMetrics]) -> Iterable[str]:
    name = "handrail_call_duration_seconds"
    yield format_head(name, "histogram", "Duration of calls that succeeded or failed, from arrival to result.")
    for one in metrics:
        for bound, count in one.histogram:
            yield format_row(
                f"{name}_bucket", count, *_labels(one), ("le", "+Inf" if bound == float("inf") else repr(bound))
            )
        yield format_row(f"{name}_sum", one.seconds, *_labels(one))
        yield format_row(f"{name}_count", one.histogram[-1][1], *_labels(one))


def _format_gauges(running: int, breakers: Iterable[tuple[str, bool]]) -> Iterable[str]:
    yield format_head("handrail_calls_running", "gauge", "Handlers that are running.")
    yield format_row("handrail_calls_running", running)
    yield format_head("handrail_breaker_open", "gauge", "Whether the circuit breaker of a tool is open.")
    for tool, is_open in breakers:
        yield format_row("handrail_breaker_open", int(is_open), ("tool", tool))


def _labels(metrics: ToolMetrics) -> tuple[tuple[str, str], ...]:
    return ("tool", metrics.tool), ("tenant", metrics.tenant)

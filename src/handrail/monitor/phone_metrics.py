"""Metrics of phone calls: the time until a result is spoken, and results that never were."""

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from msgspec import Struct

from handrail.core.events import Event, PhoneCallEnded, ResultSpoken
from handrail.monitor.labels import LabelLimit
from handrail.monitor.prometheus import format_head, format_row


class VoiceMetrics(Struct, frozen=True, kw_only=True):
    """The time until the results of one tool and tenant were spoken."""

    tool: str
    tenant: str
    count: int
    seconds: float
    histogram: tuple[tuple[float, int], ...]
    """Cumulative counts by upper bound in seconds, from tool call to first audio; the last bound is infinity."""


class PhoneCallMetrics(Struct, frozen=True, kw_only=True):
    """The finished phone calls of one tenant."""

    tenant: str
    calls: Mapping[str, int]
    """The number of phone calls, by the reason of their end."""
    unanswered: int
    """Tool calls that got no output although the phone call continued; anything but 0 is a bug."""
    never_spoken: int
    """Results that were never spoken although the phone call continued; 0 unless the provider failed repeatedly."""
    cut_off: int
    tokens: Mapping[str, int]


class PhoneMetrics:
    """Counts the events of phone calls."""

    def __init__(self, bounds: Sequence[float], *, tools: LabelLimit, tenants: LabelLimit) -> None:
        self._bounds = tuple(bounds)
        self._tools = tools
        self._tenants = tenants
        self._voices: dict[tuple[str, str], tuple[list[int], list[float]]] = {}
        self._calls: dict[str, Counter[str]] = {}
        self._tokens: dict[str, Counter[str]] = {}
        self._counts: dict[str, Counter[str]] = {}
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        """Count one event."""
        if isinstance(event, ResultSpoken):
            with self._lock:
                key = self._tools(event.tool_name), self._tenant(event)
                buckets, total = self._voices.setdefault(key, ([0] * (len(self._bounds) + 1), [0.0]))
                buckets[bisect_left(self._bounds, event.seconds)] += 1
                total[0] += event.seconds
        elif isinstance(event, PhoneCallEnded):
            with self._lock:
                tenant = self._tenant(event)
                self._calls.setdefault(tenant, Counter())[event.reason] += 1
                self._tokens.setdefault(tenant, Counter()).update(event.usage)
                counts = self._counts.setdefault(tenant, Counter())
                counts.update(unanswered=event.unanswered, never_spoken=event.never_spoken, cut_off=event.cut_off)

    def _tenant(self, event: Event) -> str:
        return "" if event.tenant_id is None else self._tenants(event.tenant_id)

    def voices(self) -> tuple[VoiceMetrics, ...]:
        """Return the metrics of every tool and tenant, sorted by name."""
        with self._lock:
            return tuple(
                VoiceMetrics(
                    tool=tool,
                    tenant=tenant,
                    count=sum(buckets),
                    seconds=total[0],
                    histogram=tuple(zip((*self._bounds, float("inf")), accumulate(buckets), strict=True)),
                )
                for (tool, tenant), (buckets, total) in sorted(self._voices.items())
            )

    def calls(self) -> tuple[PhoneCallMetrics, ...]:
        """Return the metrics of every tenant, sorted by name."""
        with self._lock:
            return tuple(
                PhoneCallMetrics(
                    tenant=tenant,
                    calls=dict(sorted(calls.items())),
                    unanswered=self._counts[tenant]["unanswered"],
                    never_spoken=self._counts[tenant]["never_spoken"],
                    cut_off=self._counts[tenant]["cut_off"],
                    tokens=dict(sorted(self._tokens[tenant].items())),
                )
                for tenant, calls in sorted(self._calls.items())
            )

    def prometheus(self) -> Iterable[str]:
        """Return the metrics in Prometheus' text format; nothing without phone calls."""
        voices, calls = self.voices(), self.calls()
        if voices:
            name = "handrail_time_to_voice_seconds"
            yield format_head(
                name, "histogram", "Time from a tool call to the first audio of a response with its result."
            )
            for one in voices:
                who = ("tool", one.tool), ("tenant", one.tenant)
                for bound, count in one.histogram:
                    yield format_row(
                        f"{name}_bucket", count, *who, ("le", "+Inf" if bound == float("inf") else repr(bound))
                    )
                yield format_row(f"{name}_sum", one.seconds, *who)
                yield format_row(f"{name}_count", one.count, *who)
        if not calls:
            return
        yield format_head("handrail_phone_calls_total", "counter", "Finished phone calls, by the reason of their end.")
        for one in calls:
            for reason, count in one.calls.items():
                yield format_row("handrail_phone_calls_total", count, ("tenant", one.tenant), ("reason", reason))
        for name, text in (
            ("unanswered", "Tool calls of phone calls that got no output."),
            ("never_spoken", "Results that were never spoken."),
            ("cut_off", "Tool calls whose output or response was missing when the phone call ended."),
        ):
            yield format_head(f"handrail_phone_{name}_total", "counter", text)
            for one in calls:
                yield format_row(f"handrail_phone_{name}_total", getattr(one, name), ("tenant", one.tenant))
        yield format_head("handrail_phone_tokens_total", "counter", "Tokens of phone calls, by kind.")
        for one in calls:
            for kind, count in one.tokens.items():
                yield format_row("handrail_phone_tokens_total", count, ("tenant", one.tenant), ("kind", kind))

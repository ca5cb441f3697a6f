"""Metrics of phone calls: the time until a result is spoken, and results that never were."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from handrail.core.events import Event
from handrail.monitor.labels import Children, LabelLimit
from handrail.phone.events import PhoneCallEnded, ResultSpoken

if TYPE_CHECKING:
    from prometheus_client import Counter, Histogram


class _CreateCounter(Protocol):
    def __call__(self, name: str, text: str, /, *labels: str) -> "Children[Counter]": ...


class _CreateHistogram(Protocol):
    def __call__(self, name: str, text: str, /, *labels: str) -> "Children[Histogram]": ...


class PhoneMetrics:
    """Counts the events of phone calls."""

    def __init__(
        self,
        count: _CreateCounter,
        measure: _CreateHistogram,
        *,
        tools: LabelLimit,
        tenants: LabelLimit,
        codes: LabelLimit,
    ) -> None:
        self._tools = tools
        self._tenants = tenants
        self._codes = codes
        self._voices = measure(
            "handrail_time_to_voice_seconds",
            "Time from a tool call to the first audio of a response with its result.",
            "tool",
            "tenant",
        )
        self._calls = count(
            "handrail_phone_calls_total", "Finished phone calls, by the reason of their end.", "tenant", "reason"
        )
        self._unanswered = count(
            "handrail_phone_unanswered_total", "Tool calls of phone calls that got no output.", "tenant"
        )
        self._never_spoken = count("handrail_phone_never_spoken_total", "Results that were never spoken.", "tenant")
        self._cut_off = count(
            "handrail_phone_cut_off_total",
            "Tool calls whose output or response was missing when the phone call ended.",
            "tenant",
        )
        self._tokens = count("handrail_phone_tokens_total", "Tokens of phone calls, by kind.", "tenant", "kind")
        self.recorders: Mapping[type[Event], Callable[[Any], None]] = {
            ResultSpoken: self._record_spoken,
            PhoneCallEnded: self._record_end,
        }
        """What records an event, by its type."""

    def _record_spoken(self, event: ResultSpoken) -> None:
        self._voices(self._tools(event.tool_name), self._find_tenant(event)).observe(event.seconds)

    def _record_end(self, event: PhoneCallEnded) -> None:
        tenant = self._find_tenant(event)
        self._calls(tenant, self._codes(event.reason)).inc()
        self._unanswered(tenant).inc(event.unanswered)
        self._never_spoken(tenant).inc(event.never_spoken)
        self._cut_off(tenant).inc(event.cut_off)
        for kind, number in event.usage.items():
            self._tokens(tenant, self._codes(kind)).inc(number)

    def _find_tenant(self, event: Event) -> str:
        return "" if event.tenant_id is None else self._tenants(event.tenant_id)

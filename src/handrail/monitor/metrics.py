"""Counts and durations of calls, model calls, turns, approvals and phone calls, in a Prometheus registry."""

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

from msgspec import Struct

from handrail.core import events
from handrail.core.events import Event
from handrail.core.values import ToolCall, ToolResult
from handrail.errors import ConfigError, MissingExtraError, shorten
from handrail.monitor.calls import CallIdentity
from handrail.phone.events import PhoneCallEnded, ResultSpoken

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter, Histogram
    from prometheus_client.metrics import MetricWrapperBase

DURATION_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""The upper bounds of the histograms, in seconds."""

_MAX_KEPT: Final = 10_000
"""Pairs of a tool and a tenant whose metrics are found at once; a tenant may be any text."""
_OUTCOMES: Final = ("succeeded", "failed", "refused", "cancelled")
_MULTIPROCESS: Final = ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir")
"""Set if the client writes its values to files, for other processes: then a function cannot give one."""


M = TypeVar("M", bound="MetricWrapperBase")

OTHER: Final = "other"
UNKNOWN: Final = "unknown"
"""The label of every tool that does not exist: a model can invent any number of names."""


class LabelLimit:
    """Returns the first `max_labels` names unchanged, and `other` for all further names."""

    __slots__ = ("_lock", "_max_labels", "_names")

    def __init__(self, max_labels: int) -> None:
        self._max_labels = max_labels
        self._names: dict[str, str] = {}
        self._lock = threading.Lock()

    def has(self, name: str) -> bool:
        """Whether a name has a label of its own."""
        return name in self._names

    def __call__(self, name: str) -> str:
        """Return the label of a name."""
        label = self._names.get(name)
        if label is not None:
            return label
        with self._lock:
            if name not in self._names and len(self._names) >= self._max_labels:
                return OTHER
            # Half of a surrogate pair, which a model can write in JSON, would fail every later scrape.
            text = name.encode("utf-8", "replace").decode()
            return self._names.setdefault(name, shorten(text, 100))


class Children(Generic[M]):
    """The children of one metric by their labels, kept: `labels()` costs three times as much as an increment."""

    __slots__ = ("_children", "_metric")

    def __init__(self, metric: M) -> None:
        self._metric = metric
        self._children: dict[tuple[str, ...], M] = {}

    def __call__(self, *labels: str) -> M:
        """Return the child with these labels."""
        child = self._children.get(labels)
        if child is None:
            child = self._children[labels] = self._metric.labels(*labels)
        return child


def find_tool_label(call: ToolCall, result: ToolResult, labels: LabelLimit) -> str:
    """Return the tool's name, or `unknown` if there is no such tool, or its result does not say whether there is."""
    error = result.error
    if error is None or result.decision is not None:
        return call.name
    is_any_name = error.code in ("duplicate_call", "unavailable") and not labels.has(call.name)
    return UNKNOWN if is_any_name or error.code == "tool_not_found" else call.name


class Metrics:
    """A listener that counts events in a registry of `prometheus_client`. Needs the extra `metrics`.

    All `Metrics` of one registry count together.

    Args:
        registry: By default the global one, which `prometheus_client.start_http_server()` and `generate_latest()`
            expose.
        buckets: The bounds of the histograms of durations, in seconds.
        max_tools: How many tools have a label of their own; all others have the label `other`.
        max_tenants: The same for tenants.
        max_codes: The same for error codes.
    """

    def __init__(
        self,
        registry: "CollectorRegistry | None" = None,
        *,
        buckets: Iterable[float] = DURATION_BUCKETS,
        max_tools: int = 100,
        max_tenants: int = 50,
        max_codes: int = 50,
    ) -> None:
        settings = _Settings(buckets=tuple(buckets), max_tools=max_tools, max_tenants=max_tenants, max_codes=max_codes)
        bounds = settings.buckets
        if not bounds or any(low >= high for low, high in pairwise(bounds)):
            raise ConfigError(f"buckets must be at least one number of seconds, in rising order, got {bounds}.")
        try:
            import prometheus_client  # noqa: PLC0415  # optional
        except ModuleNotFoundError as error:
            raise MissingExtraError("prometheus-client", extra="metrics") from error
        self.registry: CollectorRegistry = prometheus_client.REGISTRY if registry is None else registry
        """The registry that has the counts."""
        self._recorders = _find_recorder(self.registry, settings).recorders

    def __call__(self, event: Event) -> None:
        """Count one event."""
        record = self._recorders.get(type(event))
        if record is not None:
            record(event)


class _Settings(Struct, frozen=True, kw_only=True):
    buckets: tuple[float, ...]
    max_tools: int
    max_tenants: int
    max_codes: int


class _Recorder:
    """The metrics of one registry."""

    def __init__(self, registry: "CollectorRegistry", settings: _Settings) -> None:
        from prometheus_client import Counter, Gauge, Histogram  # noqa: PLC0415  # optional

        def count(name: str, text: str, *labels: str) -> Children[Counter]:
            return Children(Counter(name, text, labels, registry=registry))

        def measure(name: str, text: str, *labels: str) -> Children[Histogram]:
            return Children(Histogram(name, text, labels, registry=registry, buckets=settings.buckets))

        self.settings = settings
        self._tools = LabelLimit(settings.max_tools)
        self._tenants = LabelLimit(settings.max_tenants)
        self._codes = LabelLimit(settings.max_codes)
        self._providers = LabelLimit(50)
        self._started: dict[CallIdentity, ToolCall] = {}
        self._succeeded: dict[tuple[str, str | None], tuple[Counter, Histogram]] = {}
        """Where calls are counted that succeed, by tool and tenant as the event has them."""
        self._series: set[tuple[str, str]] = set()
        self._waiting: dict[str, float] = {}
        self._lock = threading.Lock()

        who = ("tool", "tenant")
        self._calls = count("handrail_calls_total", "Calls that have a result.", *who, "outcome")
        self._errors = count(
            "handrail_call_errors_total", "Calls that failed or were refused, by error code.", *who, "code"
        )
        self._ignored = count("handrail_calls_ignored_total", "Repeated calls that were not run again.", *who, "reason")
        self._slow = count("handrail_calls_slow_total", "Calls that took longer than slow_after.", *who)
        self._durations = measure(
            "handrail_call_duration_seconds",
            "Duration of calls that succeeded or failed, from arrival to result.",
            *who,
        )
        self._running = Gauge(
            "handrail_calls_running", "Handlers that are running.", registry=registry, multiprocess_mode="livesum"
        )
        self._counts_running = any(name in os.environ for name in _MULTIPROCESS)
        if not self._counts_running:
            self._running.set_function(self._started.__len__)
        self._breakers = Children(
            Gauge(
                "handrail_breaker_open", "Whether the circuit breaker of a tool is open.", ["tool"], registry=registry
            )
        )
        self._model_calls = count(
            "handrail_model_calls_total", "Requests to models, by error code or ok.", "provider", "code"
        )
        self._tokens = count(
            "handrail_model_tokens_total", "Tokens of models; cached ones are input, too.", "provider", "kind"
        )
        self._costs = count("handrail_model_cost_total", "Cost of models, in the currency of the prices.", "provider")
        self._model_durations = measure(
            "handrail_model_duration_seconds", "Duration of requests to models, to the end of the response.", "provider"
        )
        self._turns = count("handrail_turns_total", "Turns of conversations, by stop reason.", "stop_reason")
        waiting = Gauge(
            "handrail_approvals_waiting", "Approvals requested in this process and open.", registry=registry
        )
        waiting.set_function(self._count_waiting)  # Approvals expire without an event.
        self._decisions = measure(
            "handrail_approval_decision_seconds", "Time from the request of an approval to its decision.", "outcome"
        )
        phone = PhoneMetrics(count, measure, tools=self._tools, tenants=self._tenants, codes=self._codes)
        self.recorders: dict[type[Event], Callable[[Any], None]] = {
            events.CallStarted: self._record_start,
            events.CallFinished: self._record_result,
            events.CallIgnored: self._record_ignored,
            events.CircuitBreakerChanged: self._record_breaker,
            events.ModelCalled: self._record_model_call,
            events.TurnFinished: self._record_turn,
            events.ApprovalRequested: self._record_approval_request,
            events.ApprovalDecided: self._record_approval_decision,
            events.ApprovalUsed: self._record_approval_use,
            **phone.recorders,
        }

    def _record_start(self, event: events.CallStarted) -> None:
        identity = (event.session_id, id(event.call))
        if self._counts_running and identity not in self._started:
            self._running.inc()
        self._started[identity] = event.call

    def _record_result(self, event: events.CallFinished) -> None:
        has_started = self._started.pop((event.session_id, id(event.call)), None) is not None
        if has_started and self._counts_running:
            self._running.dec()
        result = event.result
        if result.error is None and not event.slow:
            found = self._succeeded.get((event.call.name, event.tenant_id))
            if found is not None:
                found[0].inc()
                found[1].observe(result.duration_ms / 1000)
                return
        who = self._find_labels(find_tool_label(event.call, result, self._tools), event.tenant_id)
        if event.slow:
            self._slow(*who).inc()
        if result.error is None:
            outcome = "succeeded"
            if len(self._succeeded) < _MAX_KEPT:
                self._succeeded[event.call.name, event.tenant_id] = (self._calls(*who, outcome), self._durations(*who))
        else:
            self._errors(*who, self._codes(result.error.code)).inc()
            is_cancelled = result.error.code == "cancelled"
            outcome = "cancelled" if is_cancelled else "failed" if has_started else "refused"
        self._calls(*who, outcome).inc()
        if outcome in ("succeeded", "failed"):
            self._durations(*who).observe(result.duration_ms / 1000)

    def _record_ignored(self, event: events.CallIgnored) -> None:
        who = self._find_labels(event.call.name, event.tenant_id)
        self._ignored(*who, self._codes(event.reason)).inc()

    def _find_labels(self, tool: str, tenant_id: str | None) -> tuple[str, str]:
        who = (self._tools(tool), "" if tenant_id is None else self._tenants(tenant_id))
        if who not in self._series:
            self._series.add(who)
            for outcome in _OUTCOMES:  # A rate needs the zero before the first count.
                self._calls(*who, outcome)
            self._slow(*who)
            self._durations(*who)
        return who

    def _record_breaker(self, event: events.CircuitBreakerChanged) -> None:
        self._breakers(self._tools(event.tool_name)).set(event.state == "open")

    def _record_model_call(self, event: events.ModelCalled) -> None:
        provider = self._providers(event.provider)
        self._model_calls(provider, "ok" if event.error is None else self._codes(event.error)).inc()
        self._tokens(provider, "input").inc(event.input_tokens)
        self._tokens(provider, "output").inc(event.output_tokens)
        self._tokens(provider, "cached").inc(event.cached_tokens)
        if event.cost is not None:
            self._costs(provider).inc(event.cost)
        self._model_durations(provider).observe(event.duration_ms / 1000)

    def _record_turn(self, event: events.TurnFinished) -> None:
        self._turns(self._codes(event.stop_reason)).inc()

    def _record_approval_request(self, event: events.ApprovalRequested) -> None:
        with self._lock:
            self._waiting[event.token] = event.expires_at
            is_due = len(self._waiting) % 1_000 == 0
        if is_due:  # Nobody may ever read the gauge.
            self._count_waiting()

    def _record_approval_decision(self, event: events.ApprovalDecided) -> None:
        with self._lock:
            self._waiting.pop(event.token, None)
        self._decisions(self._codes(event.outcome)).observe(event.seconds)

    def _record_approval_use(self, event: events.ApprovalUsed) -> None:
        with self._lock:
            self._waiting.pop(event.token, None)

    def _count_waiting(self) -> float:
        now = time.time()
        with self._lock:
            self._waiting = {token: expires for token, expires in self._waiting.items() if expires > now}
            return len(self._waiting)


# A registry refuses a second metric of one name and cannot be asked for the first.
_recorders: WeakKeyDictionary["CollectorRegistry", _Recorder] = WeakKeyDictionary()
_recorders_lock = threading.Lock()


def _find_recorder(registry: "CollectorRegistry", settings: _Settings) -> _Recorder:
    with _recorders_lock:
        recorder = _recorders.get(registry)
        if recorder is None:
            recorder = _recorders[registry] = _Recorder(registry, settings)
        elif recorder.settings != settings:
            raise ConfigError(
                f"The registry has metrics of Handrail with other settings: {recorder.settings}, got {settings}. "
                "Pass the same ones, or a registry of its own."
            )
        return recorder


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

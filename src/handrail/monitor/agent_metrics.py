"""Counts and durations of model calls, turns and approvals, for Prometheus."""

import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate

from handrail.core.events import ApprovalDecided, ApprovalRequested, ApprovalUsed, Event, ModelCalled, TurnFinished
from handrail.monitor.labels import LabelLimit
from handrail.monitor.prometheus import format_head, format_row


class _Histogram:
    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._buckets = [0] * (len(bounds) + 1)
        self._seconds = 0.0

    def add(self, seconds: float) -> None:
        self._seconds += seconds
        self._buckets[bisect_left(self._bounds, seconds)] += 1

    def format(self, name: str, *labels: tuple[str, str]) -> Iterable[str]:
        for bound, count in zip((*map(repr, self._bounds), "+Inf"), accumulate(self._buckets), strict=True):
            yield format_row(f"{name}_bucket", count, *labels, ("le", bound))
        yield format_row(f"{name}_sum", self._seconds, *labels)
        yield format_row(f"{name}_count", sum(self._buckets), *labels)


class AgentMetrics:
    """Counts model calls, turns and approvals."""

    def __init__(self, bounds: Sequence[float], *, codes: LabelLimit) -> None:
        self._bounds = bounds
        self._codes = codes
        self._providers = LabelLimit(50)
        self._lock = threading.Lock()
        self._model_calls: Counter[tuple[str, str]] = Counter()
        self._tokens: Counter[tuple[str, str]] = Counter()
        self._costs: dict[str, float] = {}
        self._model_seconds: dict[str, _Histogram] = {}
        self._turns: Counter[str] = Counter()
        self._waiting: dict[str, float] = {}
        self._decisions: dict[str, _Histogram] = {}

    def __call__(self, event: Event) -> None:
        """Count one event."""
        match event:
            case ModelCalled():
                with self._lock:
                    self._count_model_call(event)
            case TurnFinished():
                with self._lock:
                    self._turns[self._codes(event.stop_reason)] += 1
            case ApprovalRequested():
                with self._lock:
                    self._waiting[event.token] = event.expires_at
            case ApprovalDecided():
                with self._lock:
                    self._waiting.pop(event.token, None)
                    self._decisions.setdefault(event.outcome, _Histogram(self._bounds)).add(event.seconds)
            case ApprovalUsed():
                with self._lock:
                    self._waiting.pop(event.token, None)
            case _:
                pass

    def _count_model_call(self, event: ModelCalled) -> None:
        provider = self._providers(event.provider)
        self._model_calls[provider, "ok" if event.error is None else self._codes(event.error)] += 1
        for kind, count in (
            ("input", event.input_tokens), ("output", event.output_tokens), ("cached", event.cached_tokens)
        ):  # fmt: skip
            self._tokens[provider, kind] += count
        if event.cost is not None:
            self._costs[provider] = self._costs.get(provider, 0.0) + event.cost
        self._model_seconds.setdefault(provider, _Histogram(self._bounds)).add(event.duration_ms / 1000)

    def prometheus(self) -> Iterable[str]:
        """Return the metrics in Prometheus' text format."""
        with self._lock:
            yield format_head("handrail_model_calls_total", "counter", "Requests to models, by error code or ok.")
            for (provider, code), count in sorted(self._model_calls.items()):
                yield format_row("handrail_model_calls_total", count, ("provider", provider), ("code", code))
            yield format_head("handrail_model_tokens_total", "counter", "Tokens of models; cached ones are input, too.")
            for (provider, kind), count in sorted(self._tokens.items()):
                yield format_row("handrail_model_tokens_total", count, ("provider", provider), ("kind", kind))
            yield format_head("handrail_model_cost_total", "counter", "Cost of models, in the currency of the prices.")
            for provider, cost in sorted(self._costs.items()):
                yield format_row("handrail_model_cost_total", cost, ("provider", provider))
            name = "handrail_model_duration_seconds"
            yield format_head(name, "histogram", "Duration of requests to models, to the end of the response.")
            for provider, histogram in sorted(self._model_seconds.items()):
                yield from histogram.format(name, ("provider", provider))
            yield format_head("handrail_turns_total", "counter", "Turns of conversations, by stop reason.")
            for reason, count in sorted(self._turns.items()):
                yield format_row("handrail_turns_total", count, ("stop_reason", reason))
            yield format_head("handrail_approvals_waiting", "gauge", "Approvals requested in this process and open.")
            now = time.time()
            self._waiting = {token: expires for token, expires in self._waiting.items() if expires > now}
            yield format_row("handrail_approvals_waiting", len(self._waiting))
            name = "handrail_approval_decision_seconds"
            yield format_head(name, "histogram", "Time from the request of an approval to its decision.")
            for outcome, histogram in sorted(self._decisions.items()):
                yield from histogram.format(name, ("outcome", outcome))

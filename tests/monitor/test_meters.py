"""The duration of calls as OpenTelemetry's metric."""

import sys
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader

from handrail import Executor, ToolContext
from handrail.errors import MissingExtraError
from handrail.monitor import Meters
from handrail.monitor.metrics import DURATION_BUCKETS
from tests.monitor.conftest import CONTEXT, call, crash, look, pay


class Meter:
    def __init__(self, **options: Any) -> None:
        self._reader = InMemoryMetricReader()
        self.listener = Meters(MeterProvider([self._reader]), **options)

    @property
    def metric(self) -> Any:
        data = self._reader.get_metrics_data()
        assert data is not None
        [resource] = data.resource_metrics
        [scope] = resource.scope_metrics
        [metric] = scope.metrics
        assert scope.scope.name == "handrail"
        return metric

    @property
    def points(self) -> list[HistogramDataPoint]:
        return list(self.metric.data.data_points)


async def test_the_duration_of_calls_is_recorded_under_the_conventional_name() -> None:
    meter = Meter()
    executor = Executor([look, crash], listeners=[meter.listener])

    results = [await executor.run(call("look", id=f"c-{n}"), CONTEXT) for n in range(2)]
    results.append(await executor.run(call("crash", id="c-9"), ToolContext(session_id="s-2")))

    assert (meter.metric.name, meter.metric.unit) == ("gen_ai.execute_tool.duration", "s")
    good, bad = sorted(meter.points, key=lambda point: "error.type" in (point.attributes or {}))
    assert good.attributes == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "look",
        "handrail.tenant.id": "acme",
    }
    assert bad.attributes == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "crash",
        "error.type": "tool_execution_failed",
    }
    assert (good.count, bad.count) == (2, 1)
    assert good.sum == pytest.approx(sum(result.duration_ms for result in results[:2]) / 1000)
    assert tuple(good.explicit_bounds) == DURATION_BUCKETS


async def test_what_is_refused_before_it_begins_has_no_duration() -> None:
    meter = Meter()
    executor = Executor([look, pay], listeners=[meter.listener])

    await executor.run(call("pay"), CONTEXT)
    await executor.run(call("nothing", id="c-2"), CONTEXT)
    await executor.run(call("look", id="c-3"), CONTEXT)

    [point] = meter.points
    assert point.attributes is not None
    assert point.attributes["gen_ai.tool.name"] == "look"


async def test_tools_and_tenants_beyond_the_bound_share_one_name() -> None:
    meter = Meter(max_tools=1, max_tenants=1)
    executor = Executor([look, crash], listeners=[meter.listener])

    await executor.run(call("look"), CONTEXT)
    for number in range(3):
        await executor.run(call("crash", id=f"c-{number}"), ToolContext(session_id="s", tenant_id=f"t-{number}"))

    named = [(dict(point.attributes or {}), point.count) for point in meter.points]
    assert sorted((one["gen_ai.tool.name"], one["handrail.tenant.id"], count) for one, count in named) == [
        ("look", "acme", 1),
        ("other", "other", 3),
    ]


def test_without_opentelemetry_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.metrics", None)

    with pytest.raises(MissingExtraError, match=r"handrail\[otel\]"):
        Meters()

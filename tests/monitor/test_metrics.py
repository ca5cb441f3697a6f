"""Counts, success rate, latency and errors per tool and tenant, in a form that a scraper reads."""

import math
import re
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from handrail import Executor, Policy, Rule, ToolContext, tool
from handrail.core import events
from handrail.core.values import Failure, ToolResult
from handrail.errors import ConfigError
from handrail.execute.circuit_breaker import CircuitBreaker
from handrail.monitor import Metrics
from handrail.monitor.metrics import ToolMetrics
from tests.monitor.conftest import CONTEXT, Door, call, crash, look, pay, refuse

ALLOWED = Policy([Rule.allow("*")])
OTHER = ToolContext[Any](session_id="s-2", tenant_id="other-tenant")


def finished(tool: str = "look", *, tenant: str | None = "acme", ms: float = 1.0, code: str = "", **fields: Any) -> Any:
    error = Failure(code=code, message="x") if code else None
    result = ToolResult(error=error, duration_ms=ms)
    return events.CallFinished(at=0.0, session_id="s", tenant_id=tenant, call=call(tool), result=result, **fields)


def ran(metrics: Metrics, event: Any) -> None:
    """Tell of a call from its start to its end."""
    metrics(events.CallStarted(at=0.0, session_id="s", tenant_id=event.tenant_id, call=event.call))
    metrics(event)


def figures(metrics: Metrics, tool: str, tenant: str = "acme") -> ToolMetrics:
    [found] = [one for one in metrics.snapshot() if (one.tool, one.tenant) == (tool, tenant)]
    return found


@pytest.mark.proves("PH-82", "PH-83", "PH-85")
async def test_calls_are_counted_per_tool_and_tenant_by_what_came_of_them() -> None:
    metrics = Metrics()
    executor = Executor([look, crash, refuse, pay], listeners=[metrics])

    for number in range(3):
        await executor.run(call("look", id=f"l-{number}"), CONTEXT)
    await executor.run(call("look", id="l-9"), OTHER)
    await executor.run(call("look", '{"days": "many"}', id="l-10"), CONTEXT)
    await executor.run(call("crash", id="x-1"), CONTEXT)
    await executor.run(call("refuse", id="x-2"), CONTEXT)
    await executor.run(call("pay", id="p-1"), CONTEXT)

    seen = figures(metrics, "look")
    assert (seen.count, seen.succeeded, seen.failed, seen.refused) == (4, 3, 0, 1)
    assert seen.success_rate == 1.0
    assert seen.errors == {"invalid_arguments": 1}
    assert figures(metrics, "look", "other-tenant").count == 1
    assert figures(metrics, "crash").errors == {"tool_execution_failed": 1}
    assert figures(metrics, "crash").success_rate == 0.0
    assert (figures(metrics, "refuse").failed, figures(metrics, "refuse").errors) == (1, {"account_closed": 1})
    asked = figures(metrics, "pay")
    assert (asked.refused, asked.success_rate, asked.errors) == (1, None, {"approval_required": 1})


@pytest.mark.proves("PH-84")
def test_the_histogram_counts_what_took_at_most_so_long() -> None:
    metrics = Metrics(buckets=[0.1, 1.0])
    for ms in (50.0, 100.0, 100.1, 5_000.0):
        ran(metrics, finished(ms=ms))

    seen = figures(metrics, "look")
    assert seen.histogram == ((0.1, 2), (1.0, 3), (math.inf, 4))
    assert seen.seconds == pytest.approx(5.2501)


def test_what_was_refused_or_cancelled_is_not_in_the_histogram() -> None:
    metrics = Metrics()
    metrics(finished(code="permission_denied"))
    ran(metrics, finished(code="cancelled"))

    seen = figures(metrics, "look")
    assert (seen.count, seen.refused, seen.cancelled, seen.failed) == (2, 1, 1, 0)
    assert seen.histogram[-1][1] == 0
    assert seen.success_rate is None


async def test_a_call_that_arrives_again_is_counted_as_ignored_only() -> None:
    metrics = Metrics()
    executor = Executor([pay], policy=ALLOWED, listeners=[metrics])

    await executor.run(call("pay"), CONTEXT)
    await executor.run(call("pay"), CONTEXT)

    assert (figures(metrics, "pay").count, figures(metrics, "pay").ignored) == (1, {"already_executed": 1})


async def test_slow_calls_running_calls_and_open_breakers_are_counted() -> None:
    metrics, door = Metrics(), Door()

    @tool(read_only=True)
    async def look_around() -> str:
        """Look at the metrics while it runs."""
        assert "handrail_calls_running 1\n" in metrics.prometheus()
        door.entered.set()
        return "x"

    executor = Executor([look_around, crash], circuit_breaker=CircuitBreaker(max_failures=1), listeners=[metrics])
    await executor.run(call("look_around"), CONTEXT)
    await executor.run(call("crash", id="c-2"), CONTEXT)
    metrics(finished("late", slow=True))

    text = metrics.prometheus()
    assert door.entered.is_set()
    assert figures(metrics, "late").slow == 1
    assert "handrail_calls_running 0\n" in text
    assert 'handrail_breaker_open{tool="crash"} 1\n' in text


# Bounds


def test_names_beyond_the_bound_share_one_label() -> None:
    metrics = Metrics(max_tools=2, max_tenants=1, max_codes=1)
    for number in range(5):
        ran(metrics, finished(f"tool-{number}", tenant=f"tenant-{number}", code=f"code-{number}"))

    assert [(one.tool, one.tenant, one.count, dict(one.errors)) for one in metrics.snapshot()] == [
        ("other", "other", 3, {"other": 3}),
        ("tool-0", "tenant-0", 1, {"code-0": 1}),
        ("tool-1", "other", 1, {"other": 1}),
    ]


async def test_tools_that_do_not_exist_share_one_label_and_take_no_room() -> None:
    metrics = Metrics(max_tools=2)
    executor = Executor([look], listeners=[metrics])

    for number in range(5):
        await executor.run(call(f"invented-{number}", id=f"c-{number}"), CONTEXT)
    await executor.run(call("look", id="c-9"), CONTEXT)

    assert [(one.tool, one.count) for one in metrics.snapshot()] == [("look", 1), ("unknown", 5)]


def test_a_call_without_a_tenant_has_an_empty_one() -> None:
    metrics = Metrics()
    metrics(finished(tenant=None))

    assert figures(metrics, "look", "").count == 1


@pytest.mark.parametrize("buckets", [[], [1.0, 1.0], [2.0, 1.0]])
def test_buckets_that_do_not_rise_are_refused(buckets: list[float]) -> None:
    with pytest.raises(ConfigError, match="rising"):
        Metrics(buckets=buckets)


def test_no_count_is_lost_between_threads() -> None:
    metrics = Metrics()

    def work() -> None:
        for _ in range(500):
            ran(metrics, finished(code="account_closed"))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (figures(metrics, "look").failed, figures(metrics, "look").errors) == (2_000, {"account_closed": 2_000})


# Prometheus

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = rf'{NAME}="(?:[^"\\\n]|\\["\\n])*"'
ROW = re.compile(rf"{NAME}(?:\{{{LABEL}(?:,{LABEL})*\}})? (?:[0-9.e+-]+|\+Inf|NaN)")
COMMENT = re.compile(rf"# (?:HELP {NAME} [^\n]*|TYPE {NAME} (?:counter|gauge|histogram))")

names = st.text(min_size=1, max_size=12) | st.sampled_from(['"', "\\", "\\n", "\n", 'a"b\\c\nd', "é", "{}", "a,b=c"])


@given(
    st.lists(
        st.tuples(names, st.none() | names, st.sampled_from(["", "a_code"]) | names, st.floats(0, 1e6)), max_size=8
    )
)
def test_the_text_is_valid_whatever_tools_and_tenants_are_called(
    calls: list[tuple[str, str | None, str, float]],
) -> None:
    metrics = Metrics()
    for name, tenant, code, ms in calls:
        ran(metrics, finished(name, tenant=tenant, code=code, ms=ms))

    text = metrics.prometheus()

    assert text.endswith("\n")
    assert [row for row in text[:-1].split("\n") if not ROW.fullmatch(row) and not COMMENT.fullmatch(row)] == []
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert sum(sample.value for sample in families["handrail_calls"].samples) == len(calls)
    samples = [
        (sample.name, tuple(sorted(sample.labels.items()))) for family in families.values() for sample in family.samples
    ]
    assert len(samples) == len(set(samples))


def test_a_scraper_reads_back_what_was_counted() -> None:
    metrics = Metrics(buckets=[0.5])
    hostile = 'say "hi" \\ now'
    ran(metrics, finished(hostile, ms=250.0))
    ran(metrics, finished(hostile, ms=750.0, code="account_closed"))

    families = {family.name: family for family in text_string_to_metric_families(metrics.prometheus())}

    histogram = families["handrail_call_duration_seconds"]
    assert histogram.type == "histogram"
    assert [
        (sample.name.rpartition("_")[2], sample.labels.get("le"), sample.value) for sample in histogram.samples
    ] == [
        ("bucket", "0.5", 1.0),
        ("bucket", "+Inf", 2.0),
        ("sum", None, 1.0),
        ("count", None, 2.0),
    ]
    assert {sample.labels["tool"] for sample in histogram.samples} == {hostile}
    assert {
        sample.labels["outcome"]: sample.value for sample in families["handrail_calls"].samples
    } == {"succeeded": 1.0, "failed": 1.0, "refused": 0.0, "cancelled": 0.0}  # fmt: skip
    [error] = families["handrail_call_errors"].samples
    assert (error.labels, error.value) == ({"tool": hostile, "tenant": "acme", "code": "account_closed"}, 1.0)
    for family in families.values():
        assert family.documentation

"""Counts, latency and errors per tool and tenant, in the registry that a service exposes."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from prometheus_client import REGISTRY, CollectorRegistry, Counter, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from handrail import Executor, Failure, Policy, Rule, ToolContext, ToolResult, tool
from handrail.core import events
from handrail.errors import ConfigError
from handrail.execute import CircuitBreaker, Limits
from handrail.monitor import Metrics
from handrail.phone import PhoneCallEnded, ResultSpoken
from tests.monitor.conftest import CONTEXT, Door, call, crash, create_metrics, look, pay, refuse

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


def outcomes(metrics: Metrics, tool: str, tenant: str = "acme") -> dict[str, float]:
    """How many calls ended how, without the zeros."""
    return samples(metrics, "handrail_calls_total", "outcome", tool=tool, tenant=tenant)


def errors(metrics: Metrics, tool: str, tenant: str = "acme") -> dict[str, float]:
    return samples(metrics, "handrail_call_errors_total", "code", tool=tool, tenant=tenant)


def samples(metrics: Metrics, name: str, by: str, **labels: str) -> dict[str, float]:
    return {
        sample.labels[by]: sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == name and sample.value and labels.items() <= sample.labels.items()
    }


@pytest.mark.proves("PH-82", "PH-83", "PH-85")
async def test_calls_are_counted_per_tool_and_tenant_by_what_came_of_them() -> None:
    metrics = create_metrics()
    executor = Executor([look, crash, refuse, pay], listeners=[metrics])

    for number in range(3):
        await executor.run(call("look", id=f"l-{number}"), CONTEXT)
    await executor.run(call("look", id="l-9"), OTHER)
    await executor.run(call("look", '{"days": "many"}', id="l-10"), CONTEXT)
    await executor.run(call("crash", id="x-1"), CONTEXT)
    await executor.run(call("refuse", id="x-2"), CONTEXT)
    await executor.run(call("pay", id="p-1"), CONTEXT)

    assert outcomes(metrics, "look") == {"succeeded": 3, "refused": 1}
    assert errors(metrics, "look") == {"invalid_arguments": 1}
    assert outcomes(metrics, "look", "other-tenant") == {"succeeded": 1}
    assert (outcomes(metrics, "crash"), errors(metrics, "crash")) == ({"failed": 1}, {"tool_execution_failed": 1})
    assert (outcomes(metrics, "refuse"), errors(metrics, "refuse")) == ({"failed": 1}, {"account_closed": 1})
    assert (outcomes(metrics, "pay"), errors(metrics, "pay")) == ({"refused": 1}, {"approval_required": 1})


@pytest.mark.proves("PH-84")
def test_the_histogram_counts_what_took_at_most_so_long() -> None:
    metrics = create_metrics(buckets=[0.1, 1.0])
    for ms in (50.0, 100.0, 100.1, 5_000.0):
        ran(metrics, finished(ms=ms))

    name = "handrail_call_duration_seconds"
    assert samples(metrics, f"{name}_bucket", "le", tool="look", tenant="acme") == {"0.1": 2, "1.0": 3, "+Inf": 4}
    assert samples(metrics, f"{name}_sum", "tool") == {"look": pytest.approx(5.2501)}


def test_what_was_refused_or_cancelled_is_not_in_the_histogram() -> None:
    metrics = create_metrics()
    metrics(finished(code="permission_denied"))
    ran(metrics, finished(code="cancelled"))

    assert outcomes(metrics, "look") == {"refused": 1, "cancelled": 1}
    assert samples(metrics, "handrail_call_duration_seconds_count", "tool") == {}


async def test_a_call_that_arrives_again_is_counted_as_ignored_only() -> None:
    metrics = create_metrics()
    executor = Executor([pay], policy=ALLOWED, listeners=[metrics])

    await executor.run(call("pay"), CONTEXT)
    await executor.run(call("pay"), CONTEXT)

    assert outcomes(metrics, "pay") == {"succeeded": 1}
    assert samples(metrics, "handrail_calls_ignored_total", "reason", tool="pay") == {"already_executed": 1}


async def test_slow_calls_running_calls_and_open_breakers_are_counted() -> None:
    metrics, door = create_metrics(), Door()

    @tool(read_only=True)
    async def look_around() -> str:
        """Look at the metrics while it runs."""
        assert metrics.registry.get_sample_value("handrail_calls_running") == 1
        door.entered.set()
        return "x"

    executor = Executor(
        [look_around, crash], limits=Limits(circuit_breaker=CircuitBreaker(max_failures=1)), listeners=[metrics]
    )
    await executor.run(call("look_around"), CONTEXT)
    await executor.run(call("crash", id="c-2"), CONTEXT)
    metrics(finished("late", slow=True))

    assert door.entered.is_set()
    assert samples(metrics, "handrail_calls_slow_total", "tool") == {"late": 1}
    assert metrics.registry.get_sample_value("handrail_calls_running") == 0
    assert samples(metrics, "handrail_breaker_open", "tool") == {"crash": 1}


def test_running_calls_are_counted_for_other_processes_too(tmp_path: Path) -> None:
    code = """
from prometheus_client import CollectorRegistry, multiprocess
from handrail import ToolCall, ToolResult
from handrail.core.events import CallFinished, CallStarted
from handrail.monitor import Metrics

metrics, registry, about = Metrics(CollectorRegistry()), CollectorRegistry(), {"at": 0.0, "session_id": "s"}
calls = [ToolCall(id=name, name="look") for name in "abc"]
for call in calls:
    metrics(CallStarted(call=call, **about))
metrics(CallFinished(call=calls[0], result=ToolResult(output="x"), **about))
multiprocess.MultiProcessCollector(registry)
print(registry.get_sample_value("handrail_calls_running"))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr) == ("2.0", "")


# The registry


def test_the_metrics_join_what_the_service_exposes() -> None:
    registry = CollectorRegistry()
    Counter("requests_total", "Requests of the service.", registry=registry).inc()
    ran(Metrics(registry), finished())

    text = generate_latest(registry).decode()
    assert "requests_total 1.0\n" in text
    assert 'handrail_calls_total{outcome="succeeded",tenant="acme",tool="look"} 1.0\n' in text


def test_the_metrics_of_one_registry_count_together_and_share_its_limits() -> None:
    registry = CollectorRegistry()
    first, second = Metrics(registry, max_tools=2), Metrics(registry, max_tools=2)
    ran(first, finished("a"))
    ran(second, finished("a"))
    ran(second, finished("b"))
    ran(first, finished("c"))
    first(events.CallStarted(at=0.0, session_id="s", call=call("a")))
    second(events.CallStarted(at=0.0, session_id="s", call=call("a")))

    assert samples(first, "handrail_calls_total", "tool", outcome="succeeded") == {"a": 2, "b": 1, "other": 1}
    assert registry.get_sample_value("handrail_calls_running") == 2
    other = create_metrics(max_tools=2)
    assert samples(other, "handrail_calls_total", "tool") == {}


def test_one_registry_has_one_set_of_buckets_and_limits() -> None:
    registry = CollectorRegistry()
    Metrics(registry)
    with pytest.raises(ConfigError, match=r"other settings.*max_tools=100.*max_tools=3"):
        Metrics(registry, max_tools=3)


def test_without_a_registry_it_is_the_global_one() -> None:
    assert Metrics().registry is REGISTRY


def test_a_registry_that_nobody_keeps_is_not_kept_by_its_metrics() -> None:
    import gc
    import weakref

    registry = CollectorRegistry()
    ran(Metrics(registry), finished())
    gone = weakref.ref(registry)
    del registry
    gc.collect()
    assert gone() is None


# Bounds


def test_names_beyond_the_bound_share_one_label() -> None:
    metrics = create_metrics(max_tools=2, max_tenants=1, max_codes=1)
    for number in range(5):
        ran(metrics, finished(f"tool-{number}", tenant=f"tenant-{number}", code=f"code-{number}"))

    assert samples(metrics, "handrail_calls_total", "tool") == {"tool-0": 1, "tool-1": 1, "other": 3}
    assert samples(metrics, "handrail_calls_total", "tenant", tool="tool-1") == {"other": 1}
    assert samples(metrics, "handrail_call_errors_total", "code", tool="tool-0") == {"code-0": 1}
    assert samples(metrics, "handrail_call_errors_total", "code", tool="other") == {"other": 3}


async def test_tools_that_do_not_exist_share_one_label_and_take_no_room() -> None:
    metrics = create_metrics(max_tools=2)
    executor = Executor([look], listeners=[metrics])

    for number in range(5):
        await executor.run(call(f"invented-{number}", id=f"c-{number}"), CONTEXT)
    await executor.run(call("look", id="c-9"), CONTEXT)

    assert samples(metrics, "handrail_calls_total", "tool") == {"look": 1, "unknown": 5}


@pytest.mark.parametrize("how", ["an id that cannot be stored", "long arguments", "the id of another call"])
async def test_tools_that_do_not_exist_take_no_room_whatever_else_is_wrong_with_their_calls(how: str) -> None:
    metrics = create_metrics(max_tools=3)
    executor = Executor([look, pay], policy=ALLOWED, listeners=[metrics], limits=Limits(max_argument_chars=100))
    await executor.run(call("pay", id="c-1"), CONTEXT)

    for number in range(5):
        sent = call(f"invented-{number}", id={"the id of another call": "c-1"}.get(how, f"c-{number}\x00"))
        if how == "long arguments":
            sent = structs.replace(sent, id=f"i-{number}", arguments_json='{"a": "' + "x" * 200 + '"}')
        await executor.run(sent, CONTEXT)
    await executor.run(call("look", id="c-9"), CONTEXT)

    assert samples(metrics, "handrail_calls_total", "tool") == {"look": 1, "pay": 1, "unknown": 5}


def test_a_call_without_a_tenant_has_an_empty_one() -> None:
    metrics = create_metrics()
    metrics(finished(tenant=None))

    assert outcomes(metrics, "look", "") == {"succeeded": 1}


@pytest.mark.parametrize("buckets", [[], [1.0, 1.0], [2.0, 1.0]])
def test_buckets_that_do_not_rise_are_refused(buckets: list[float]) -> None:
    with pytest.raises(ConfigError, match="rising"):
        create_metrics(buckets=buckets)


def test_no_count_is_lost_between_threads() -> None:
    metrics = create_metrics()

    def work() -> None:
        for _ in range(500):
            ran(metrics, finished(code="account_closed"))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (outcomes(metrics, "look"), errors(metrics, "look")) == ({"failed": 2_000}, {"account_closed": 2_000})


names = st.text(min_size=1, max_size=12) | st.sampled_from(
    ['"', "\\", "\\n", "\n", 'a"b\\c\nd', "é", "{}", "a,b=c", "\ud800"]
)


@given(
    st.lists(
        st.tuples(names, st.none() | names, st.sampled_from(["", "a_code"]) | names, st.floats(0, 1e6)), max_size=8
    )
)
def test_a_scraper_reads_every_count_whatever_tools_and_tenants_are_called(
    calls: list[tuple[str, str | None, str, float]],
) -> None:
    metrics = create_metrics()
    for name, tenant, code, ms in calls:
        ran(metrics, finished(name, tenant=tenant, code=code, ms=ms))

    text = generate_latest(metrics.registry).decode()

    families = {family.name: family for family in text_string_to_metric_families(text)}
    counted = [sample for sample in families["handrail_calls"].samples if sample.name == "handrail_calls_total"]
    assert sum(sample.value for sample in counted) == len(calls)
    for family in families.values():
        assert family.documentation


def test_phone_calls_are_counted_per_tool_and_tenant() -> None:
    metrics = create_metrics(buckets=[1.0, 2.0])
    for seconds in (0.5, 1.5, 9.0):
        metrics(
            ResultSpoken(at=0.0, session_id="s", tenant_id="acme", call_id="c", tool_name="lookup", seconds=seconds)
        )
    for reason, cut_off in (("caller", 1), ("transferred", 0), ("caller", 0)):
        metrics(
            PhoneCallEnded(
                at=0.0,
                session_id="s",
                tenant_id="acme",
                reason=reason,
                seconds=60.0,
                cut_off=cut_off,
                usage={"total_tokens": 100},
            )
        )

    read = metrics.registry.get_sample_value
    who, tenant = {"tool": "lookup", "tenant": "acme"}, {"tenant": "acme"}
    name = "handrail_time_to_voice_seconds"
    assert (read(f"{name}_count", who), read(f"{name}_sum", who)) == (3, 11.0)
    assert [read(f"{name}_bucket", {**who, "le": bound}) for bound in ("1.0", "2.0", "+Inf")] == [1, 2, 3]
    assert read("handrail_phone_calls_total", {**tenant, "reason": "caller"}) == 2
    assert read("handrail_phone_calls_total", {**tenant, "reason": "transferred"}) == 1
    assert read("handrail_phone_tokens_total", {**tenant, "kind": "total_tokens"}) == 300
    assert [read(f"handrail_phone_{name}_total", tenant) for name in ("unanswered", "never_spoken", "cut_off")] == [
        0, 0, 1
    ]  # fmt: skip

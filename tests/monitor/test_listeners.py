"""Whatever a listener does, a call gets its answer, and the other listeners are told."""

import asyncio

import pytest

from handrail import Executor, Policy, Rule
from handrail.core import Event
from handrail.execute.event_bus import Listener
from tests.monitor.conftest import CONTEXT, Lines, call, crash, create_metrics, look, pay, refuse

CANARY = "kestrel"
ALLOWED = Policy([Rule.allow("*")])
KINDS: list[type[BaseException]] = [
    *(RuntimeError, AssertionError, StopIteration, ExceptionGroup, SystemExit, GeneratorExit, asyncio.CancelledError)
]


def broken(kind: type[BaseException]) -> Listener:
    def listener(event: Event) -> None:
        raise kind(CANARY, [ValueError(CANARY)]) if kind is ExceptionGroup else kind(CANARY)

    return listener


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["look", "pay", "crash", "refuse", "nothing"])
async def test_a_listener_that_raises_never_breaks_a_call(
    kind: type[BaseException], name: str, lines: Lines, caplog: pytest.LogCaptureFixture
) -> None:
    tools, metrics = [look, pay, crash, refuse], create_metrics()
    executor = Executor(tools, policy=ALLOWED, listeners=[broken(kind), lines.log, metrics])

    result = await executor.run(call(name), CONTEXT)
    alone = await Executor(tools, policy=ALLOWED).run(call(name), CONTEXT)

    assert (result.output, result.error, result.call_id) == (alone.output, alone.error, "c-1")
    assert lines.names[-1] == "call_finished"
    [calls] = [family for family in metrics.registry.collect() if family.name == "handrail_calls"]
    assert sum(sample.value for sample in calls.samples if sample.name == "handrail_calls_total") == 1
    assert "a listener failed on CallFinished" in caplog.text
    assert CANARY not in caplog.text


async def test_a_listener_that_raises_never_breaks_a_cancellation(lines: Lines) -> None:
    executor = Executor([look], listeners=[broken(RuntimeError), lines.log])

    assert executor.cancel_tools_for_response("r-1", session_id="s-1") == 0
    await executor.cancel_all("s-1")

    assert lines.names == ["cancellation", "cancelling", "cancellation"]

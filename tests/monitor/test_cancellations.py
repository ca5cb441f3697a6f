"""A cancellation is told call by call, and once at its end, with counts that are true."""

import asyncio
import logging
from typing import Any

import pytest

from handrail import Executor, Policy, Rule, ToolResult, tool
from tests.monitor.conftest import CONTEXT, Door, Lines, call, ids_of

ALLOWED = Policy([Rule.allow("*")])


async def running(executor: Executor, door: Door, **options: Any) -> asyncio.Task[ToolResult]:
    """A call whose handler has begun."""
    task = asyncio.create_task(executor.run(call("wait", **options), CONTEXT))
    await door.entered.wait()
    door.entered.clear()
    return task


@pytest.mark.proves("PH-69", "PH-70")
async def test_the_calls_of_a_response_are_reported_each_and_then_together(lines: Lines) -> None:
    door = Door()
    executor = Executor([door.tool(read_only=True, concurrency_safe=True)], listeners=[lines.log])
    cancelled = [await running(executor, door, id=f"c-{n}", response_id="r-1") for n in (1, 2)]
    other = await running(executor, door, id="c-3", response_id="r-2")

    assert executor.cancel_tools_for_response("r-1", session_id="s-1") == 2
    results = await asyncio.gather(*cancelled)
    door.opened.set()

    assert (await other).ok
    assert [result.error.code for result in results if result.error] == ["cancelled", "cancelled"]
    told = lines.of("call_cancelled")
    assert [(line.call_id, line.response_id, line.tenant_id, line.tool) for line in told] == [
        ("c-1", "r-1", "acme", "wait"),
        ("c-2", "r-1", "acme", "wait"),
    ]
    assert ids_of(told[0])["session_id"] == "s-1"
    end = lines.one("cancellation")
    assert (end.scope, end.response_id, end.cancelled, end.remaining) == ("response", "r-1", 2, 0)
    assert (end.session_id, end.tenant_id, end.levelno) == ("s-1", "acme", logging.INFO)
    assert lines.names.index("cancellation") > lines.names.index("call_cancelled")


async def test_what_its_tool_lets_finish_is_reported_as_remaining(lines: Lines) -> None:
    door = Door()
    executor = Executor([door.tool()], policy=ALLOWED, listeners=[lines.log])
    paying = await running(executor, door)

    assert executor.cancel_tools_for_response("r-1", session_id="s-1") == 0
    door.opened.set()

    assert (await paying).ok
    end = lines.one("cancellation")
    assert (end.cancelled, end.remaining, end.pending) == (0, 1, 1)
    assert lines.of("call_cancelled") == []


@pytest.mark.proves("PH-71")
async def test_a_cancellation_that_does_not_say_what_does_nothing_and_is_reported(lines: Lines) -> None:
    door = Door()
    executor = Executor([door.tool(read_only=True)], listeners=[lines.log])
    waiting = await running(executor, door, response_id=None)

    assert executor.cancel_tools_for_response("", session_id="s-1") == 0
    door.opened.set()

    assert (await waiting).ok
    skipped = lines.one("cancellation_skipped")
    assert (skipped.session_id, skipped.reason, skipped.cancelled) == ("s-1", "missing_response_id", 0)
    assert skipped.levelno == logging.WARNING
    assert lines.of("cancellation") == []


@pytest.mark.proves("PH-72")
async def test_the_end_of_a_session_is_reported_at_its_start_and_at_its_end(lines: Lines) -> None:
    door, second = Door(), Door()
    read = door.tool(read_only=True, concurrency_safe=True)

    @tool(name="pay", concurrency_safe=True)
    async def pay() -> str:
        """Finish, once the session is to end."""
        second.entered.set()
        await second.opened.wait()
        return "paid"

    executor = Executor([read, pay], policy=ALLOWED, listeners=[lines.log, finish_when_told(second)])
    looking = await running(executor, door)
    paying = asyncio.create_task(executor.run(call("pay", id="c-2"), CONTEXT))
    await second.entered.wait()

    ended = await executor.cancel_all("s-1")

    started, end = lines.one("cancelling"), lines.one("cancellation")
    assert (started.tracked, started.cancellable, started.tenant_id) == (2, 1, "acme")
    assert (end.scope, end.cancelled, end.remaining, end.pending) == ("session", 1, 0, 0)
    assert (ended.cancelled, ended.remaining) == (1, 0)
    assert end.levelno == logging.INFO
    # Everything had ended before the end was told.
    assert lines.names[-1] == "cancellation"
    assert {line.call_id: line.ok for line in lines.of("call_finished")} == {"c-1": False, "c-2": True}
    assert executor.running_calls("s-1") == ()
    assert ((await looking).ok, (await paying).ok) == (False, True)


def finish_when_told(door: Door) -> Any:
    def listener(event: object) -> None:
        if type(event).__name__ == "Cancelling":
            door.opened.set()

    return listener


async def test_a_session_without_calls_ends_at_once_and_is_reported(lines: Lines) -> None:
    await Executor([], listeners=[lines.log]).cancel_all("s-1")

    assert (lines.one("cancelling").tracked, lines.one("cancellation").cancelled) == (0, 0)


async def test_a_handler_that_does_not_stop_is_reported_as_remaining_and_counted_once(lines: Lines) -> None:
    door = Door()

    @tool(on_interrupt="cancel", name="wait")  # A read that goes on is left behind, an effect is not.
    async def stubborn() -> str:
        """Go on, whatever is said."""
        door.entered.set()
        while not door.opened.is_set():
            try:
                await door.opened.wait()
            except asyncio.CancelledError:
                continue
        return "done"

    executor = Executor([stubborn], policy=ALLOWED, listeners=[lines.log])
    waiting = await running(executor, door)

    ended = await executor.cancel_all("s-1", grace=0.01)
    end = lines.one("cancellation")
    door.opened.set()
    await waiting

    assert (end.cancelled, end.remaining, end.pending, end.levelno) == (1, 1, 1, logging.WARNING)
    assert (ended.cancelled, ended.remaining) == (1, 1)
    assert len(lines.of("call_cancelled")) == 1


async def test_a_caller_who_leaves_is_reported_as_the_end_of_a_read(lines: Lines) -> None:
    door = Door()
    executor = Executor([door.tool(read_only=True)], listeners=[lines.log])
    looking = await running(executor, door)

    looking.cancel()

    with pytest.raises(asyncio.CancelledError):
        await looking
    line = lines.one("call_finished")
    assert (line.call_id, line.ok, line.error["code"]) == ("c-1", False, "cancelled")


async def test_a_call_with_the_id_of_another_is_reported_too(lines: Lines) -> None:
    executor = Executor(
        [Door().tool(), tool(read_only=True, name="look")(shown)], policy=ALLOWED, listeners=[lines.log]
    )

    await executor.run(call("look", '{"a": 1}'), CONTEXT)
    clash = await executor.run(call("look", '{"a": 2}'), CONTEXT)

    assert clash.error is not None
    assert [line.ok for line in lines.of("call_finished")] == [True, False]
    assert lines.of("call_finished")[1].error["code"] == "duplicate_call"


async def shown(a: int) -> int:
    """Show a number."""
    return a

"""A handler has a deadline, and one that does not stop is answered for."""

import asyncio
import contextlib
import time
from dataclasses import replace
from typing import Any

import pytest

from handrail import ConfigError, Executor, ToolContext, ToolError, ToolResult, tool
from handrail.core import CallFinished, CallStarted, Redactor
from handrail.execute import Timeouts, running
from tests.execute.helpers import ALLOWED, Book, Heard, Held, at, call, code_of, quiet
from tests.warped import warped

# Deadlines


@pytest.mark.proves("PH-79")
@pytest.mark.parametrize(("read_only", "code"), [(True, "tool_timeout"), (False, "outcome_unknown")])
@pytest.mark.parametrize("whose", ["tool", "executor"])
async def test_a_handler_that_takes_too_long_is_stopped(read_only: bool, code: str, whose: str) -> None:
    stopped: list[str] = []

    @tool(read_only=read_only, timeout=0.02 if whose == "tool" else None)
    async def hang() -> None:
        """Hang."""
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.append("stopped")
            raise

    book = Book()
    executor = Executor([hang], policy=ALLOWED, ledger=book, timeouts=Timeouts(call=60 if whose == "tool" else 0.02))
    result = await executor.run(call("hang"), at())

    assert code_of(result) == code
    assert stopped == ["stopped"]
    assert await book.state() == (None if read_only else "unknown")
    assert not executor.running_calls("s-1")
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


@pytest.mark.proves("PH-79")
async def test_a_slow_call_is_flagged_in_the_events() -> None:
    @tool(read_only=True)
    async def look(seconds: float) -> None:
        """Look."""
        await asyncio.sleep(seconds)

    heard = Heard()
    executor = Executor([look], listeners=[heard], timeouts=Timeouts(slow_after=0.02))
    await executor.run(call("look", "c-1", seconds=0), at())
    await executor.run(call("look", "c-2", seconds=0.03), at())

    assert [event.slow for event in heard.of(CallFinished)] == [False, True]


async def test_one_calls_deadline_is_nobody_elses() -> None:
    @tool(read_only=True, concurrency_safe=True, timeout=0.02)
    async def short() -> None:
        """Hang."""
        await asyncio.Event().wait()

    slow = Held()

    @tool(read_only=True, concurrency_safe=True)
    async def long() -> str:
        """Wait."""
        return await slow()

    executor = Executor([short, long])
    waiting = asyncio.create_task(executor.run(call("long", "c-0"), at()))
    codes = [code_of(result) for result in await executor.run_all([call("short", f"c-{n}") for n in (1, 2)], at())]
    slow.go.set()

    assert codes == ["tool_timeout", "tool_timeout"]
    assert (await waiting).output == "done"


@pytest.mark.parametrize(
    ("makes", "code", "state"),
    [("returns", None, "committed"), ("fails", "outcome_unknown", "unknown"), ("refuses", "rolled_back", "failed")],
)
async def test_what_a_handler_makes_of_being_stopped_is_the_truth(makes: str, code: str | None, state: str) -> None:
    @tool(timeout=0.02)
    async def act() -> str:
        """Act."""
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if makes == "returns":
                return "done all the same"
            if makes == "refuses":
                raise ToolError("It was rolled back.", code="rolled_back") from None
            raise ConnectionError("lost") from None
        return ""

    book = Book()
    result = await Executor([act], policy=ALLOWED, ledger=book).run(call("act"), at())

    assert (code_of(result), await book.state()) == (code, state)


async def test_a_read_that_fails_because_it_was_stopped_is_a_timeout_and_leaves_the_callers_task_alone() -> None:
    @tool(read_only=True, timeout=0.02)
    async def look() -> None:
        """Look."""
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ConnectionError("lost") from None

    assert code_of(await Executor([look]).run(call("look"), at())) == "tool_timeout"
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()
    async with asyncio.timeout(5):
        await asyncio.sleep(0)


# Handlers that do not stop


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "GRACE", 0.02)


@pytest.mark.usefixtures("impatient")
@warped
async def test_a_stuck_handler_gets_an_unknown_outcome_and_its_session_continues() -> None:
    go = asyncio.Event()
    swallowed: list[int] = []

    @tool(timeout=0.02)
    async def stuck() -> str:
        """Never stops."""
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                swallowed.append(1)
        return "done in the end"

    @tool
    async def act() -> str:
        """Runs alone."""
        return "acted"

    heard, book = Heard(), Book()
    executor = Executor([stuck, act], policy=ALLOWED, ledger=book, listeners=[heard])
    try:
        result = await asyncio.wait_for(executor.run(call("stuck"), at()), 600)
        assert code_of(result) == "outcome_unknown"
        assert not executor.running_calls("s-1")
        assert await book.state() == "running"  # It is the truth.

        assert (await executor.run(call("act", "c-2"), at())).output == "acted"
        assert code_of(await executor.run(call("stuck"), at())) == "outcome_unknown"
        assert code_of(await executor.run(call("stuck", "c-3"), at(turn=2))) == "outcome_unknown"
        assert len(heard.of(CallStarted)) == 2
    finally:
        go.set()
    while await book.state() == "running":
        await asyncio.sleep(0)
    assert (await executor.run(call("stuck"), at())).output == "done in the end"
    assert swallowed


@pytest.mark.usefixtures("impatient")
async def test_a_read_that_swallows_its_cancellation_is_cancelled_again() -> None:
    @tool(read_only=True, timeout=0.02)
    async def careless() -> None:
        """Swallows what it should not."""
        for _ in range(3):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue
        await asyncio.Event().wait()

    assert code_of(await Executor([careless]).run(call("careless"), at())) == "tool_timeout"
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("moment", ["first step", "last step", "between"])
async def test_a_handler_may_cancel_its_own_call(read_only: bool, moment: str) -> None:
    @tool(read_only=read_only)
    async def act(context: ToolContext[Any]) -> str:
        """Cancel myself."""
        if moment != "first step":
            await asyncio.sleep(0)
        executor.cancel("c-1", session_id="s-1")
        if moment != "last step":
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        return "done"

    executor = Executor([act], policy=ALLOWED)
    result = await executor.run(call("act"), at())
    await asyncio.sleep(0)  # Nothing is left that would cancel the caller.

    if moment == "last step" or (read_only and moment == "first step"):  # Then it is not known as running yet.
        assert result.output == "done"
    else:
        assert code_of(result) == ("cancelled" if read_only else "outcome_unknown")


async def test_a_handler_that_blocks_the_loop_gets_a_result_with_what_it_did_and_is_flagged() -> None:
    heard = Heard()

    @tool
    async def blocks() -> str:
        """Block everything."""
        time.sleep(0.05)
        return "done"

    @tool(read_only=True, timeout=0.01)
    async def waits() -> str:
        """Wait for ever."""
        await asyncio.Event().wait()
        return "never"

    executor = Executor(
        [blocks, waits],
        policy=ALLOWED,
        listeners=[heard],
        timeouts=Timeouts(call=0.02, slow_after=0.01),
    )
    waiting = asyncio.create_task(executor.run(call("waits", "w"), at("other")))
    result = await executor.run(call("blocks", "b"), at())

    assert result.output == "done"  # It happened: no timer can make that untrue.
    assert [event.slow for event in heard.of(CallFinished) if event.call.name == "blocks"] == [True]
    assert code_of(await waiting) == "tool_timeout"


async def test_a_result_that_is_there_is_had_at_once_by_everybody_who_asks_later() -> None:
    @tool
    async def act() -> None:
        """Act."""

    one = running.RunningCall(call=call("act"), tool=act, context=at(), identity="", ref=("s-1", "c-1"))
    early = one.result_future()
    assert one.has_waiters
    result = ToolResult(output="done")
    one.resolve(result)
    one.resolve(ToolResult(output="again"))

    async with asyncio.timeout(60):
        assert [await early, await one.result_future(), await one.wait_result()] == [result] * 3


# The timer of all calls.


def build_running(id: str) -> running.RunningCall:
    @tool
    async def act() -> None:
        """Act."""

    return running.RunningCall(call=call("act", id), tool=act, context=at(), identity="", ref=("s-1", id))


async def test_the_deadlines_of_a_loop_that_runs_are_not_taken_to_another_one() -> None:
    deadlines, mine, theirs = running.Deadlines(), build_running("c-1"), build_running("c-2")
    loop = asyncio.get_running_loop()
    deadlines.add(mine, 600, loop)

    async def add_elsewhere() -> None:
        deadlines.add(theirs, 0.001, asyncio.get_running_loop())
        while theirs.stopped_by is None:
            await asyncio.sleep(0.001)

    with pytest.raises(ConfigError, match="another one is still using this one"):
        await asyncio.to_thread(asyncio.run, add_elsewhere())
    deadlines.remove(mine)
    await asyncio.to_thread(asyncio.run, add_elsewhere())  # Nothing runs in the first one any more.

    assert (mine.stopped_by, theirs.stopped_by) == (None, "timeout")


async def test_a_call_of_a_loop_that_is_over_is_not_stopped_in_the_next_one() -> None:
    deadlines, left, mine = running.Deadlines(), build_running("c-1"), build_running("c-2")

    async def leave() -> None:
        deadlines.add(left, 0.001, asyncio.get_running_loop())

    await asyncio.to_thread(asyncio.run, leave())
    deadlines.add(mine, 0.002, asyncio.get_running_loop())
    while mine.stopped_by is None:
        await asyncio.sleep(0.001)

    assert left.stopped_by is None


@pytest.mark.parametrize("read_only", [True, False])
@warped
async def test_a_call_is_stopped_at_its_deadline_whatever_came_before_it(read_only: bool) -> None:
    @tool(read_only=read_only, concurrency_safe=True)
    async def hang(seconds: float) -> None:
        """Hang."""
        await asyncio.sleep(seconds)

    loop = asyncio.get_running_loop()
    tools = [replace(hang, name=f"hang_{timeout}", timeout=timeout) for timeout in (30, 10, 20)]
    executor = Executor(tools, policy=ALLOWED)

    async def run(timeout: int, seconds: float, id: str) -> tuple[bool, float]:
        started = loop.time()
        result = await executor.run(call(f"hang_{timeout}", id, seconds=seconds), at(id))
        return result.ok, loop.time() - started

    ended = await asyncio.gather(
        run(30, 600, "a"), run(10, 600, "b"), run(20, 5, "c"), run(20, 600, "d"), run(10, 9, "e"), run(10, 600, "f")
    )
    assert [ok for ok, _ in ended] == [False, False, True, False, True, False]
    assert [seconds for _, seconds in ended] == pytest.approx([30, 10, 5, 20, 9, 10], abs=0.001)


@pytest.mark.usefixtures("impatient")
@warped
async def test_an_effect_that_swallows_its_cancellation_is_cancelled_again_and_ends() -> None:
    swallowed: list[int] = []

    @tool(timeout=1)
    async def careless() -> str:
        """Swallow two cancellations."""
        while len(swallowed) < 2:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                swallowed.append(1)
        return "done in the end"

    book = Book()
    executor = Executor([careless], policy=ALLOWED, ledger=book)
    assert code_of(await executor.run(call("careless"), at())) == "outcome_unknown"
    await asyncio.sleep(10)

    assert (len(swallowed), await book.state()) == (2, "committed")


# A read that goes on after it was stopped.


@pytest.mark.parametrize("fails", [False, True])
async def test_a_read_that_was_stopped_cleans_up_behind_its_result(
    fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    cleaned, errors = asyncio.Event(), list[Any]()
    asyncio.get_running_loop().set_exception_handler(lambda loop, error: errors.append(error))

    @tool(read_only=True, timeout=0.01)
    async def look() -> None:
        """Look."""
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            cleaned.set()
            if fails:
                raise ValueError("the clean-up failed")

    assert code_of(await Executor([look]).run(call("look"), at())) == "tool_timeout"
    assert not cleaned.is_set()
    await asyncio.wait_for(cleaned.wait(), 30)
    await quiet()

    assert errors == []
    assert ("look failed after it was stopped" in caplog.text) is fails
    assert not running._RESTS  # pyright: ignore[reportPrivateUsage]  # Nothing of it is kept.


async def test_a_read_whose_caller_is_cancelled_cleans_up_before_the_caller_ends() -> None:
    begun, cleaned = asyncio.Event(), list[str]()

    @tool(read_only=True)
    async def look() -> None:
        """Look."""
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            cleaned.append("cleaned")

    task = asyncio.create_task(Executor([look]).run(call("look"), at()))
    await begun.wait()
    task.cancel()
    await asyncio.wait([task])

    assert (task.cancelled(), cleaned) == (True, ["cleaned"])


@pytest.mark.usefixtures("impatient")
@warped
async def test_a_call_whose_hook_does_not_let_go_of_it_has_its_result_and_its_session_continues() -> None:
    reached, go, ran = asyncio.Event(), asyncio.Event(), list[str]()

    class Stuck:
        async def authorised(self, call: Any, tool: Any, decision: Any, context: Any) -> None:
            reached.set()
            while call.id == "c-1" and not go.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await go.wait()

    @tool
    async def act() -> str:
        """Act."""
        ran.append("acted")
        return "acted"

    executor = Executor([act], policy=ALLOWED, hooks=[Stuck()], timeouts=Timeouts(overhead=600))
    stuck = asyncio.create_task(executor.run(call("act"), at()))
    try:
        await reached.wait()
        assert executor.cancel("c-1", session_id="s-1")
        result = await asyncio.wait_for(stuck, 600)
        assert (code_of(result), ran) == ("cancelled", [])
        assert "Nothing was done" in result.for_model()
        assert (await executor.run(call("act", "c-2"), at())).output == "acted"
    finally:
        go.set()
    await quiet()
    assert ran == ["acted"]


async def test_a_defect_in_the_task_of_a_call_is_a_result_and_nothing_is_left_of_the_call() -> None:
    errors: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, error: errors.append(error))

    class Written(Book):
        is_written = True

    class Broken(Redactor):
        def arguments(self, arguments: Any, **given: Any) -> Any:
            if arguments.get("fails"):
                raise ValueError("broken")
            return super().arguments(arguments, **given)

    @tool
    async def act(fails: bool = False) -> str:
        """Act."""
        return "acted"

    executor = Executor([act], policy=ALLOWED, ledger=Written(), redactor=Broken(), scope="session")
    failed = await executor.run(call("act", fails=True), at())
    await quiet()

    assert (code_of(failed), executor.running_calls("s-1"), errors) == ("unavailable", (), [])
    assert (await executor.run(call("act", "c-2"), at())).output == "acted"

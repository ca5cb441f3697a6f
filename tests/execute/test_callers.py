"""A caller may leave at any moment: nothing runs twice, nothing is lost, and what has begun is finished."""

import asyncio
import types
from collections.abc import Coroutine, Generator
from typing import Any

import pytest

from handrail import ConfigError, Executor, Policy, Rule, ToolContext, ToolResult, tool
from handrail.authorize import MemoryApprovals
from handrail.core import Approval, CallFinished, CallStarted
from handrail.execute import Entry, Limits, Recalled
from tests.execute.helpers import ALLOWED, Book, Heard, Held, at, call, code_of, quiet


class SlowBook(Book):
    """Every step of the ledger is a wait, before and after it takes effect."""

    async def recall(self, **given: Any) -> Recalled:
        await asyncio.sleep(0)
        found = await super().recall(**given)
        await asyncio.sleep(0)
        return found

    async def claim(self, entry: Entry, **given: Any) -> bool:
        await asyncio.sleep(0)
        won = await super().claim(entry, **given)
        await asyncio.sleep(0)
        return won

    async def settle(self, entry: Entry) -> None:
        await asyncio.sleep(0)
        await super().settle(entry)
        await asyncio.sleep(0)


class SlowApprovals(MemoryApprovals):
    async def ask(self, approval: Approval) -> Approval:
        await asyncio.sleep(0)
        return await super().ask(approval)

    async def consume(self, token: str, *, now: float, call_id: str | None = None) -> bool:
        await asyncio.sleep(0)
        return await super().consume(token, now=now, call_id=call_id)


class SlowHook:
    async def before(self, *_: Any) -> None:
        await asyncio.sleep(0)

    async def authorised(self, *_: Any) -> None:
        await asyncio.sleep(0)


class Scene:
    """A tool that is slow in every way, and notes how often it really ran."""

    def __init__(self, *, read_only: bool, asked: bool, limited: bool) -> None:
        self.began: list[str] = []
        self.ended: list[str] = []
        self.heard = Heard()
        self.book = SlowBook()
        self.approvals = SlowApprovals()

        @tool(read_only=read_only)
        async def act(n: int, context: ToolContext[Any]) -> str:
            """Act."""
            assert context.call is not None
            self.began.append(context.call.id)
            for _ in range(3):
                await asyncio.sleep(0)
            self.ended.append(context.call.id)
            return f"done {n}"

        self.executor = Executor(
            [act],
            policy=Policy([*([Rule.ask("act", by="operator", where={"n": 1})] if asked else []), Rule.allow("*")]),
            ledger=self.book,
            approvals=self.approvals,
            hooks=[SlowHook()] if limited else [],
            limits=Limits(max_concurrent=1 if limited else None),
            listeners=[self.heard],
        )

    async def run(self, id: str = "c-1", n: int = 1) -> ToolResult:
        return await self.executor.run(call("act", id, n=n), at())

    async def approve(self) -> None:
        for approval in await self.approvals.pending():
            await self.approvals.approve(approval.token, by="operator", who="ann")

    async def over(self) -> None:
        """Everything that was begun has come to its end, and nothing is left of it."""
        while self.executor.running_calls("s-1"):
            await asyncio.sleep(0)
        await quiet()
        assert (await self.run("other", n=2)).output == "done 2"  # Nobody holds the lane, or a place, any more.
        started = [event.call.id for event in self.heard.of(CallStarted)]
        finished = [event.call.id for event in self.heard.of(CallFinished)]
        assert all(item in finished for item in started)


@types.coroutine
def cancelled_at(step: int, coroutine: Coroutine[Any, Any, Any], log: list[int]) -> Generator[Any, Any, Any]:
    """Run a coroutine, and have its task cancelled in the moment in which it waits for the so-and-so-many-th time."""
    waits = 0
    error: BaseException | None = None
    while True:
        try:
            waiting_for = coroutine.send(None) if error is None else coroutine.throw(error)
        except StopIteration as returned:
            return returned.value
        waits += 1
        log.append(waits)
        if waits == step:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        try:
            yield waiting_for
            error = None
        except BaseException as thrown:
            error = thrown


SCENES = pytest.mark.parametrize(
    ("read_only", "asked", "limited"),
    [
        (read_only, asked, limited)
        for read_only in (True, False)
        for asked in (True, False)
        for limited in (True, False)
    ],
)


@SCENES
async def test_a_caller_may_be_cancelled_wherever_it_waits(read_only: bool, asked: bool, limited: bool) -> None:
    for step in range(1, 100):
        scene = Scene(read_only=read_only, asked=asked, limited=limited)
        if asked:
            assert code_of(await scene.run()) == "approval_required"
            await scene.approve()
        log: list[int] = []

        async def stepped(scene: Scene = scene, step: int = step, log: list[int] = log) -> ToolResult:
            return await cancelled_at(step, scene.run(), log)

        task = asyncio.create_task(stepped())
        await asyncio.wait([task])
        if len(log) < step:
            assert task.result().output == "done 1"
            assert step > (3 if read_only else 1)
            return
        assert task.cancelled()
        await scene.over()
        await check_once(scene, read_only=read_only, asked=asked)
    pytest.fail("it waits for ever")


@SCENES
async def test_a_caller_may_be_cancelled_at_every_step_of_a_call(read_only: bool, asked: bool, limited: bool) -> None:
    for ticks in range(60):
        scene = Scene(read_only=read_only, asked=asked, limited=limited)
        if asked:
            await scene.run()
            await scene.approve()
        task = asyncio.create_task(scene.run())
        for _ in range(ticks):
            await asyncio.sleep(0)
        if task.done():
            assert ticks > 3
            return
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        await scene.over()
        await check_once(scene, read_only=read_only, asked=asked)
    pytest.fail("it never ends")


async def check_once(scene: Scene, *, read_only: bool, asked: bool) -> None:
    """Nothing ran twice, nothing that ran is forgotten, and the call can be made again."""
    ran = [item for item in scene.began if item != "other"]
    assert len(ran) <= 1
    if not read_only:
        assert [item for item in scene.ended if item != "other"] == ran  # What has begun is finished.
        state = await scene.book.state()
        assert state == "committed" if ran else state in (None, "failed")
    result = await scene.run("again")
    if asked and not result.ok:
        assert code_of(result) == "approval_required"
        await scene.approve()
        result = await scene.run("again")
    assert result.ok
    if not read_only:
        assert len([item for item in scene.began if item != "other"]) == 1


async def test_a_cancelled_caller_inside_a_task_group_takes_its_siblings_along_and_no_effect() -> None:
    slow = Held()

    @tool(concurrency_safe=True)
    async def act() -> str:
        """Act."""
        return await slow()

    async def fail() -> None:
        await slow.begun.wait()
        raise ValueError("sibling")

    book = Book()
    executor = Executor([act], policy=ALLOWED, ledger=book)

    async def both() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(executor.run(call("act"), at()))
            group.create_task(fail())

    with pytest.raises(ExceptionGroup):
        await both()
    assert await book.state() == "running"
    slow.go.set()
    assert (await executor.run(call("act"), at())).output == "done"
    assert (slow.runs, await book.state()) == (1, "committed")


@pytest.mark.parametrize("read_only", [True, False])
async def test_a_timeout_around_a_call_is_the_callers_own(read_only: bool) -> None:
    slow = Held()

    @tool(read_only=read_only)
    async def act() -> str:
        """Act."""
        return await slow()

    executor = Executor([act], policy=ALLOWED)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await executor.run(call("act"), at())
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()
    slow.go.set()
    assert (await executor.run(call("act"), at())).output == "done"
    assert slow.runs == (2 if read_only else 1)


async def test_a_deadline_and_a_cancellation_in_the_same_moment_are_both_reported() -> None:
    @tool(read_only=True)
    async def hang() -> None:
        """Hang."""
        await asyncio.Event().wait()

    heard = Heard()
    executor = Executor([hang], listeners=[heard])
    task = asyncio.create_task(executor.run(call("hang"), at()))
    while not executor.running_calls("s-1"):
        await asyncio.sleep(0)
    executor.cancel("c-1", session_id="s-1")
    task.cancel()
    await asyncio.wait([task])

    assert task.cancelled()
    assert heard.names[-1] == "CallFinished"


async def test_a_gather_of_calls_that_is_cancelled_leaves_nothing_running_but_effects() -> None:
    slow = Held()

    @tool(concurrency_safe=True)
    async def act() -> str:
        """Act."""
        return await slow()

    @tool(read_only=True, concurrency_safe=True)
    async def look() -> str:
        """Look."""
        await asyncio.Event().wait()
        return ""

    executor = Executor([act, look], policy=ALLOWED)
    task = asyncio.create_task(executor.run_all([call("look", "c-1"), call("act", "c-2"), call("look", "c-3")], at()))
    await slow.begun.wait()
    task.cancel()
    await asyncio.wait([task])
    await quiet()

    assert [item.id for item in executor.running_calls("s-1")] == ["c-2"]
    slow.go.set()
    assert (await executor.run(call("act", "c-2"), at())).output == "done"


def test_a_loop_that_ends_leaves_an_executor_that_still_works() -> None:
    slow: list[Held] = []

    @tool
    async def act(n: int) -> str:
        """Act."""
        return await slow[0]() if n else "quick"

    book = Book()
    executor = Executor([act], policy=ALLOWED, ledger=book)

    async def leave() -> None:
        slow[:] = [Held()]
        task = asyncio.create_task(executor.run(call("act", "c-1", n=1), at()))
        await slow[0].begun.wait()
        asyncio.create_task(executor.run(call("act", "c-2", n=2), at()))  # noqa: RUF006  # it never takes its turn
        await asyncio.sleep(0)
        del task

    asyncio.run(leave())
    assert asyncio.run(book.state("c-1")) == "unknown"
    assert asyncio.run(book.state("c-2")) is None
    assert not executor.running_calls("s-1")
    assert asyncio.run(executor.run(call("act", "c-3", n=0), at())).output == "quick"


def test_another_thread_goes_to_the_loop_that_uses_the_executor_and_another_loop_is_refused() -> None:
    @tool(read_only=True, concurrency_safe=True)
    async def look() -> str:
        """Look."""
        await asyncio.sleep(0)
        return "seen"

    executor = Executor([look, Later().hang])
    answers: list[ToolResult] = []

    async def first() -> None:
        slow = Later.slow = Held()
        task = asyncio.create_task(executor.run(call("hang"), at()))
        await slow.begun.wait()
        answers.append(await asyncio.to_thread(executor.run_sync, call("look", "c-2"), at("s-2")))
        with pytest.raises(ConfigError, match="another event loop"):
            await asyncio.to_thread(asyncio.run, executor.run(call("look", "c-3"), at("s-3")))
        slow.go.set()
        answers.append(await task)

    asyncio.run(first())
    assert [answer.output for answer in answers] == ["seen", "done"]
    assert asyncio.run(executor.run(call("look", "c-4"), at("s-4"))).output == "seen"  # The first loop is over.


class Later:
    slow: Held

    @tool(read_only=True, concurrency_safe=True)
    async def hang(self) -> str:
        """Hang."""
        return await self.slow()


async def test_calls_start_in_their_order_however_long_a_hook_takes_about_each() -> None:
    ran: list[int] = []

    class Slow:
        async def before(self, call: Any, tool: Any, context: Any) -> None:
            for _ in range(20 if call.id == "c-1" else 1):
                await asyncio.sleep(0)

    @tool
    async def act(n: int) -> int:
        """Act."""
        ran.append(n)
        return n

    executor = Executor([act], policy=ALLOWED, hooks=[Slow()])
    results = await executor.run_all([call("act", f"c-{n}", n=n) for n in (1, 2, 3)], at())

    assert ([result.output for result in results], ran) == ([1, 2, 3], [1, 2, 3])


@pytest.mark.parametrize("is_fast", [True, False])
async def test_a_task_that_outlives_the_read_that_started_it_waits_as_any_other_call_does(is_fast: bool) -> None:
    held, later, tasks, ran = Held(), asyncio.Event(), list[Any](), list[str]()

    async def act_later(context: Any) -> None:
        await later.wait()
        await executor.run(call("act", "c-3"), context)

    @tool(read_only=True, concurrency_safe=True, cache_for=None if is_fast else 60)
    async def look(context: ToolContext[Any]) -> str:
        """Look."""
        tasks.append(asyncio.create_task(act_later(context)))
        return "seen"

    @tool
    async def act() -> str:
        """Act."""
        ran.append("act")
        return "done"

    @tool
    async def hold() -> str:
        """Hold."""
        return await held()

    executor = Executor([look, act, hold], policy=ALLOWED)
    assert (await executor.run(call("look", "c-1"), at())).ok
    holding = asyncio.create_task(executor.run(call("hold", "c-2"), at()))
    await held.begun.wait()
    later.set()
    await quiet()
    assert ran == []
    held.go.set()
    await asyncio.gather(holding, *tasks)
    assert ran == ["act"]

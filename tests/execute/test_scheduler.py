"""Neighbours that are safe together run together, every other call runs alone in its session, in order."""

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handrail import Executor, ToolContext, ToolResult, tool
from handrail.execute import Timeouts
from handrail.execute.scheduler import Scheduler
from tests.execute.helpers import ALLOWED, Held, at, call, code_of, quiet

Kind = Literal["together", "alone", "locked"]


class World:
    """Handlers that begin, wait until the test lets them end, and note both."""

    def __init__(self) -> None:
        self.running: list[int] = []
        self.began: list[int] = []
        self.gates: dict[int, asyncio.Event] = {}
        tools: list[Any] = []
        for reads in (True, False):
            prefix = "read" if reads else "write"
            tools += [
                tool(name=f"{prefix}_together", read_only=reads, concurrency_safe=True)(self.plain),
                tool(name=f"{prefix}_alone", read_only=reads)(self.plain),
                tool(name=f"{prefix}_locked", read_only=reads, lock_key="lock")(self.locked),
            ]
        self.executor = Executor(tools, policy=ALLOWED)

    async def plain(self, number: int) -> int:
        """Work."""
        return await self.work(number)

    async def locked(self, number: int, lock: str) -> int:
        """Work under a lock."""
        return await self.work(number)

    async def work(self, number: int) -> int:
        gate = self.gates[number] = asyncio.Event()
        self.began.append(number)
        self.running.append(number)
        await gate.wait()
        self.running.remove(number)
        return number


class Wanted:
    """One call of a generated run."""

    def __init__(self, number: int, session: str, kind: Kind, lock: str, reads: bool) -> None:
        self.number, self.session, self.kind, self.lock, self.reads = number, session, kind, lock, reads

    def __repr__(self) -> str:
        return f"{self.number}:{self.session} {'read' if self.reads else 'write'} {self.kind} {self.lock}"


@st.composite
def runs(draw: st.DrawFn, kinds: tuple[Kind, ...]) -> list[Wanted]:
    many = draw(
        st.lists(
            st.tuples(
                st.sampled_from(["s-1", "s-2"]), st.sampled_from(kinds), st.sampled_from(["x", "y"]), st.booleans()
            ),
            min_size=1,
            max_size=9,
        )
    )
    return [Wanted(number, *one) for number, one in enumerate(many)]


def may_run(wanted: list[Wanted], over: set[int]) -> list[int]:
    """The schedule in its own words, without locks: nobody before me is in my way."""
    free: list[int] = []
    for item in wanted:
        before = [
            other for other in wanted[: item.number] if other.session == item.session and other.number not in over
        ]
        blocked = any(other.kind == "alone" for other in before) or (item.kind == "alone" and before)
        if item.number not in over and not blocked:
            free.append(item.number)
    return free


async def play(
    wanted: list[Wanted], choose: Callable[[list[int]], int], check: Callable[[World, set[int]], None]
) -> None:
    world = World()
    tasks: list[asyncio.Task[ToolResult]] = []
    for item in wanted:
        prefix = "read" if item.reads else "write"
        arguments: dict[str, Any] = {"number": item.number}
        if item.kind == "locked":
            arguments["lock"] = item.lock
        sent = call(f"{prefix}_{item.kind}", f"c-{item.number}", **arguments)
        tasks.append(asyncio.create_task(world.executor.run(sent, at(item.session))))
    over: set[int] = set()
    while len(over) < len(wanted):
        await quiet(lambda: list(world.began))
        check(world, over)
        assert world.running, "somebody is left, and nobody runs"
        chosen = choose(sorted(world.running))
        world.gates[chosen].set()
        await quiet(lambda: list(world.running))
        over.add(chosen)
    results = [await task for task in tasks]
    assert [result.output for result in results] == [item.number for item in wanted]
    assert [result.call_id for result in results] == [f"c-{item.number}" for item in wanted]
    assert not world.executor.running_calls("s-1")
    assert not world.executor.running_calls("s-2")


@pytest.mark.proves("HC-08", "HC-D5")
@given(st.data(), runs(("together", "alone")))
def test_exactly_those_run_that_are_in_nobodys_way(data: st.DataObject, wanted: list[Wanted]) -> None:
    def check(world: World, over: set[int]) -> None:
        assert sorted(world.running) == may_run(wanted, over)

    asyncio.run(play(wanted, lambda running: data.draw(st.sampled_from(running)), check))


@given(st.data(), runs(("together", "alone", "locked")))
def test_equal_lock_keys_never_overlap_and_nobody_starves(data: st.DataObject, wanted: list[Wanted]) -> None:
    by_number = {item.number: item for item in wanted}

    def check(world: World, over: set[int]) -> None:
        running = [by_number[number] for number in world.running]
        locks = [item.lock for item in running if item.kind == "locked"]
        assert len(locks) == len(set(locks))
        for item in running:
            if item.kind == "alone":
                assert [other for other in running if other.session == item.session] == [item]
        admitted = [number for number in may_run(wanted, over) if number not in world.running]
        # Whoever may run and does not, waits for somebody with its lock.
        assert all(by_number[number].kind == "locked" and by_number[number].lock in locks for number in admitted)
        for session in ("s-1", "s-2"):
            for lock in ("x", "y"):
                began = [n for n in world.began if by_number[n].session == session and by_number[n].lock == lock]
                of_lock = [n for n in began if by_number[n].kind == "locked"]
                assert of_lock == sorted(of_lock)

    asyncio.run(play(wanted, lambda running: data.draw(st.sampled_from(running)), check))


async def test_one_sessions_slow_tool_holds_no_other_session() -> None:
    slow = Held()

    @tool
    async def hang() -> str:
        """Hang."""
        return await slow()

    @tool
    async def act() -> str:
        """Act."""
        return "acted"

    executor = Executor([hang, act], policy=ALLOWED)
    running = asyncio.create_task(executor.run(call("hang"), at("s-1")))
    await slow.begun.wait()
    assert (await executor.run(call("act"), at("s-2"))).output == "acted"
    slow.go.set()
    assert (await running).output == "done"


@pytest.mark.proves("HC-D5")
async def test_a_tool_that_is_merely_read_only_runs_alone() -> None:
    together: list[int] = []
    most: list[int] = []

    @tool(read_only=True)
    async def look(n: int) -> int:
        """Look."""
        together.append(n)
        most.append(len(together))
        await asyncio.sleep(0)
        together.remove(n)
        return n

    await Executor([look]).run_all([call("look", f"c-{n}", n=n) for n in range(5)], at())

    assert most == [1, 1, 1, 1, 1]


# Calls from inside a call


def nesting(
    outer_alone: bool, inner_alone: bool, outer_reads: bool, inner_reads: bool, how: str
) -> tuple[Any, list[str]]:
    order: list[str] = []

    @tool(read_only=inner_reads, concurrency_safe=not inner_alone)
    async def inner(n: int) -> str:
        """Inner."""
        order.append(f"+{n}")
        await asyncio.sleep(0)
        order.append(f"-{n}")
        return f"inner {n}"

    @tool(read_only=outer_reads, concurrency_safe=not outer_alone)
    async def outer(context: ToolContext[Any]) -> str:
        """Outer."""
        calls = [call("inner", f"i-{n}", n=n) for n in range(2)]
        if how == "gather":
            results = await asyncio.gather(*(executor.run(item, context) for item in calls))
        elif how == "tasks first":
            tasks = [asyncio.create_task(executor.run(item, context)) for item in calls]
            await asyncio.sleep(0)
            results = [await task for task in tasks]
        else:
            results = [await executor.run(item, context) for item in calls]
        return ", ".join(str(result.output) for result in results)

    executor = Executor([inner, outer], policy=ALLOWED, timeouts=Timeouts(call=20))
    return executor, order


@pytest.mark.parametrize("how", ["gather", "tasks first", "one by one"])
@pytest.mark.parametrize("outer_alone", [True, False])
@pytest.mark.parametrize("inner_alone", [True, False])
@pytest.mark.parametrize("outer_reads", [True, False])
@pytest.mark.parametrize("inner_reads", [True, False])
async def test_a_call_from_inside_a_call_does_not_wait_for_it(
    outer_alone: bool, inner_alone: bool, outer_reads: bool, inner_reads: bool, how: str
) -> None:
    executor, order = nesting(outer_alone, inner_alone, outer_reads, inner_reads, how)
    # Somebody who wants to be alone waits behind it, and must not come between it and what it calls.
    behind = executor.registry.get("inner").name
    first = asyncio.create_task(executor.run(call("outer"), at()))
    second = asyncio.create_task(executor.run(call(behind, "c-2", n=9), at()))

    assert (await first).output == "inner 0, inner 1"
    assert (await second).output == "inner 9"
    inside = [item for item in order if "9" not in item]
    overlap = inside[:2] == ["+0", "+1"]
    assert overlap is (how != "one by one" and not inner_alone)
    if outer_alone:
        assert order[-2:] == ["+9", "-9"]


async def test_calls_inside_calls_inside_calls_come_to_an_end() -> None:
    @tool
    async def deeper(path: str, context: ToolContext[Any]) -> int:
        """Deeper."""
        if len(path) == 4:
            return 0
        calls = [call("deeper", path + item, path=path + item) for item in "ab"]
        return 1 + max([result.output for result in await executor.run_all(calls, context)])

    executor = Executor([deeper], policy=ALLOWED, timeouts=Timeouts(call=20))

    assert (await executor.run(call("deeper", path=""), at())).output == 4


async def test_a_call_inside_takes_its_own_lock_again() -> None:
    @tool(lock_key="account")
    async def outer(account: str, context: ToolContext[Any]) -> str:
        """Outer."""
        return f"outer {(await executor.run(call('inner', 'i', account=account), context)).output}"

    @tool(lock_key="account")
    async def inner(account: str) -> str:
        """Inner."""
        await asyncio.sleep(0)
        return f"inner {account}"

    executor = Executor([outer, inner], policy=ALLOWED, timeouts=Timeouts(call=20))
    results = await asyncio.gather(*(executor.run(call("outer", account="a"), at(f"s-{n}")) for n in range(3)))

    assert [result.output for result in results] == ["outer inner a"] * 3


async def test_what_waits_behind_another_session_does_not_slip_past_a_lock_that_is_held_around_it() -> None:
    """The lock is held by the first session, whose handler calls into a second one."""
    held: list[str] = []
    most: list[int] = []
    begun, queued, over, go = (asyncio.Event() for _ in range(4))

    @tool(lock_key="key")
    async def outer(key: str, context: ToolContext[Any]) -> str:
        """Holds the lock."""
        held.append("outer")
        most.append(len(held))
        await executor.run(call("alone", "x"), at("s-2"))
        over.set()
        await go.wait()
        held.remove("outer")
        return "outer"

    @tool
    async def alone() -> str:
        """Runs alone in the second session."""
        begun.set()
        await queued.wait()
        return "alone"

    @tool(lock_key="key")
    async def locked(key: str) -> str:
        """Wants the lock."""
        held.append("locked")
        most.append(len(held))
        held.remove("locked")
        return "locked"

    executor = Executor([outer, alone, locked], policy=ALLOWED, timeouts=Timeouts(call=20))
    first = asyncio.create_task(executor.run(call("outer", key="k"), at("s-1")))
    await begun.wait()
    second = asyncio.create_task(executor.run(call("locked", "y", key="k"), at("s-2")))
    await quiet()
    queued.set()
    await over.wait()
    await quiet()
    go.set()

    assert (await first).output == "outer"
    assert (await second).output == "locked"
    assert most == [1, 1]


async def test_what_a_handler_leaves_behind_is_not_inside_it_any_more() -> None:
    left: list[asyncio.Task[ToolResult]] = []
    later = asyncio.Event()
    slow = Held()

    @tool
    async def leaves() -> str:
        """Leaves something behind."""

        async def later_on() -> ToolResult:
            await later.wait()
            return await executor.run(call("act", "c-3"), at())

        left.append(asyncio.create_task(later_on()))
        return "left"

    @tool
    async def hang() -> str:
        """Runs alone."""
        return await slow()

    @tool
    async def act() -> str:
        """Runs alone too."""
        assert slow.ended
        return "acted"

    executor = Executor([leaves, hang, act], policy=ALLOWED)
    assert (await executor.run(call("leaves"), at())).output == "left"
    running = asyncio.create_task(executor.run(call("hang", "c-2"), at()))
    await slow.begun.wait()
    later.set()
    await quiet()
    slow.go.set()
    await running

    assert (await left[0]).output == "acted"


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("same", ["id", "effect"])
async def test_a_call_cannot_wait_for_itself(read_only: bool, same: str) -> None:
    @tool(read_only=read_only)
    async def act(context: ToolContext[Any]) -> str:
        """Call itself."""
        await asyncio.sleep(0)
        if context.call is not None and context.call.id == "c-1":
            again = context.call if same == "id" else call("act", "c-2")
            result = await executor.run(again, context)
            return result.error.code if result.error else result.output
        return "inside"

    executor = Executor([act], policy=ALLOWED, timeouts=Timeouts(call=20))
    result = await executor.run(call("act"), at())

    assert result.output == ("inside" if read_only and same == "effect" else "in_progress")


def test_no_queue_is_left_when_every_call_is_over() -> None:
    scheduler = Scheduler()
    entries = [
        scheduler.enqueue("s", way, lock_key=lock)
        for way, lock in (("exclusive", None), ("shared", "k"), ("exclusive", None))
    ]
    entries[2].release()
    entries[1].release()
    assert scheduler.sessions
    entries[0].release()

    assert not scheduler.sessions
    assert not scheduler.locks


@given(st.data(), st.lists(st.sampled_from(["shared", "exclusive", "locked x", "locked y"]), max_size=8))
def test_no_queue_is_left_in_whatever_order_calls_come_to_their_end(data: st.DataObject, kinds: list[str]) -> None:
    scheduler = Scheduler()
    entries = [
        scheduler.enqueue(
            "s",
            "exclusive" if kind == "exclusive" else "shared",
            lock_key=kind[7:] if kind.startswith("locked") else None,
        )
        for kind in kinds
    ]
    for entry in data.draw(st.permutations(entries)):
        entry.release()
        entry.release()

    assert (scheduler.sessions, scheduler.locks) == ({}, {})


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("accounts", ["ab", "abc"])
async def test_calls_inside_others_whose_locks_cross_are_refused_at_once(accounts: str, read_only: bool) -> None:
    """Each has its own lock and wants the next one's: one of them is refused, so that the others can run."""
    everybody = asyncio.Barrier(len(accounts))

    @tool(lock_key="account")
    async def outer(account: str, other: str, context: ToolContext[Any]) -> str:
        """Outer."""
        await everybody.wait()
        inside = await executor.run(call("inner", f"inner-{account}", account=other), context)
        return code_of(inside) or inside.output

    @tool(lock_key="account", read_only=read_only)
    async def inner(account: str) -> str:
        """Inner."""
        return "moved"

    executor = Executor([outer, inner], policy=ALLOWED, timeouts=Timeouts(call=600))
    circle = zip(accounts, accounts[1:] + accounts[0], strict=True)
    async with asyncio.timeout(60):
        results = await asyncio.gather(
            *(
                executor.run(call("outer", f"c-{mine}", account=mine, other=other), at(f"s-{mine}"))
                for mine, other in circle
            )
        )

    assert sorted(result.output for result in results) == [*["moved"] * (len(accounts) - 1), "unavailable"]
    again = await executor.run(call("inner", "again", account="a"), at("s-0"))  # Nothing of it is left.
    assert again.output == "moved"


async def test_a_call_inside_another_waits_for_a_lock_that_does_not_cross() -> None:
    slow = Held()

    @tool(lock_key="account")
    async def outer(account: str, other: str, context: ToolContext[Any]) -> str:
        """Outer."""
        return (await executor.run(call("inner", "i", account=other), context)).output

    @tool(lock_key="account")
    async def inner(account: str) -> str:
        """Inner."""
        return "moved"

    @tool(lock_key="account")
    async def holds(account: str) -> str:
        """Holds the lock for a while."""
        return await slow()

    executor = Executor([outer, inner, holds], policy=ALLOWED, timeouts=Timeouts(call=600))
    first = asyncio.create_task(executor.run(call("holds", account="b"), at("s-1")))
    await slow.begun.wait()
    second = asyncio.create_task(executor.run(call("outer", account="a", other="b"), at("s-2")))
    await quiet()
    slow.go.set()

    assert ((await first).output, (await second).output) == ("done", "moved")


async def test_a_call_that_waits_for_the_one_around_does_not_make_the_waits_of_that_one_cross() -> None:
    """Somebody waits for the lock of a call that itself waits for a third one: that is a queue, and no circle."""
    slow, inside = Held(), asyncio.Event()

    @tool(lock_key="account")
    async def outer(account: str, other: str, context: ToolContext[Any]) -> str:
        """Outer."""
        if account == "a":
            await inside.wait()
        result = await executor.run(call("inner", f"inner-{account}", account=other), context)
        return code_of(result) or result.output

    @tool(lock_key="account")
    async def inner(account: str) -> str:
        """Inner."""
        return "moved"

    @tool(lock_key="account")
    async def holds(account: str) -> str:
        """Holds the lock for a while."""
        return await slow()

    executor = Executor([outer, inner, holds], policy=ALLOWED, timeouts=Timeouts(call=600))
    holding = asyncio.create_task(executor.run(call("holds", "h", account="b"), at("s-0")))
    await slow.begun.wait()
    first = asyncio.create_task(executor.run(call("outer", "c-1", account="a", other="b"), at("s-1")))
    await quiet()
    second = asyncio.create_task(executor.run(call("outer", "c-2", account="c", other="a"), at("s-2")))
    await quiet()  # It waits for the first one, which now waits for who holds.
    inside.set()
    await quiet()
    slow.go.set()

    results = await asyncio.wait_for(asyncio.gather(first, second, holding), 60)
    assert [item.output for item in results] == ["moved", "moved", "done"]


@pytest.mark.parametrize("read_only", [False, True])
async def test_locks_that_cross_only_after_a_wait_for_the_session_are_noticed_too(read_only: bool) -> None:
    """The inner call of the first waits in a third session; when it is its turn there, the locks cross."""
    slow, first_waits, second_waits = Held(), asyncio.Event(), asyncio.Event()

    @tool(lock_key="account")
    async def outer(account: str, other: str, context: ToolContext[Any]) -> str:
        """Outer."""
        if account == "b":
            await first_waits.wait()
        inside = asyncio.create_task(
            executor.run(call("inner", f"inner-{account}", account=other), at("s-3") if account == "a" else context)
        )
        await quiet()
        (first_waits if account == "a" else second_waits).set()
        result = await inside
        return code_of(result) or result.output

    @tool(lock_key="account", read_only=read_only)
    async def inner(account: str) -> str:
        """Inner."""
        return "moved"

    @tool
    async def alone() -> str:
        """Runs alone in the third session."""
        return await slow()

    executor = Executor([outer, inner, alone], policy=ALLOWED, timeouts=Timeouts(call=600))
    holding = asyncio.create_task(executor.run(call("alone", "h"), at("s-3")))
    await slow.begun.wait()
    first = asyncio.create_task(executor.run(call("outer", "c-1", account="a", other="b"), at("s-1")))
    second = asyncio.create_task(executor.run(call("outer", "c-2", account="b", other="a"), at("s-2")))
    await second_waits.wait()
    slow.go.set()

    results = await asyncio.wait_for(asyncio.gather(first, second, holding), 60)
    assert [item.output for item in results] == ["unavailable", "moved", "done"]


async def test_a_wait_for_a_lock_that_was_given_up_crosses_with_nothing() -> None:
    """The first waits inside for the lock of the second, and gives up; then the second waits for the first."""
    slow, go = Held(), asyncio.Event()

    @tool(lock_key="account")
    async def outer(account: str, other: str, context: ToolContext[Any]) -> str:
        """Outer."""
        if account == "b":
            await go.wait()
        inside = await executor.run(call("inner", f"inner-{account}", account=other), context)
        return (code_of(inside) or inside.output) if account == "b" else await slow()

    @tool(lock_key="account")
    async def inner(account: str) -> str:
        """Inner."""
        return "moved"

    executor = Executor([outer, inner], policy=ALLOWED, timeouts=Timeouts(call=600))
    second = asyncio.create_task(executor.run(call("outer", "c-2", account="b", other="a"), at("s-2")))
    await quiet()
    first = asyncio.create_task(executor.run(call("outer", "c-1", account="a", other="b"), at("s-1")))
    await quiet()
    assert executor.cancel("inner-a", session_id="s-1")
    await slow.begun.wait()
    go.set()
    await quiet()
    assert not second.done()
    slow.go.set()

    assert [(await item).output for item in (first, second)] == ["done", "moved"]


@pytest.mark.parametrize("options", [{}, {"lock_key": "what"}])
async def test_what_a_caller_does_after_a_read_is_not_inside_it(options: dict[str, Any]) -> None:
    slow = Held()

    @tool(read_only=True, **options)
    async def look(what: str) -> str:
        """Look."""
        return what

    @tool
    async def hang() -> str:
        """Runs alone."""
        return await slow()

    @tool
    async def act() -> str:
        """Runs alone too."""
        return "acted"

    executor = Executor([look, hang, act], policy=ALLOWED)
    await executor.run(call("look", "l", what="x"), at())
    hanging = asyncio.create_task(executor.run(call("hang", "h"), at()), context=Context())
    await slow.begun.wait()
    acting = asyncio.create_task(executor.run(call("act", "a"), at()))
    await quiet()
    assert not acting.done()
    slow.go.set()

    assert [(await item).output for item in (hanging, acting)] == ["done", "acted"]

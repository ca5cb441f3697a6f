"""Limits: how many run at once, how often a tool may be called, and when it has to rest."""

import asyncio
from fnmatch import fnmatchcase
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handrail import Executor, Policy, Rule, ToolContext, ToolError, ToolFlags, ToolResult, tool
from handrail.core import CallFinished, CallStarted, CircuitBreakerChanged, selectors
from handrail.errors import CallPausedError
from handrail.execute import CircuitBreaker, Entry, Limits, RateLimit, Timeouts
from handrail.execute.limits import ConcurrencyLimit
from tests.execute.helpers import ALLOWED, Book, Heard, Held, at, call, code_of, quiet
from tests.warped import warped


class Crowd:
    """Counts how many handlers run at the same time, in all and in each session."""

    def __init__(self, *, read_only: bool = True, **limits: Any) -> None:
        self.now: list[tuple[str, str]] = []
        self.most: dict[str, int] = {}
        names = ("one", "two")
        tools = [tool(name=name, read_only=read_only, concurrency_safe=True)(self.handler(name)) for name in names]
        self.executor = Executor(tools, policy=ALLOWED, limits=Limits(**limits))

    def handler(self, name: str) -> Any:
        async def handler(n: int, context: ToolContext[Any]) -> int:
            me = (name, context.session_id)
            self.now.append(me)
            for what, count in (
                ("all", len(self.now)),
                (name, sum(item[0] == name for item in self.now)),
                (context.session_id, sum(item[1] == context.session_id for item in self.now)),
            ):
                self.most[what] = max(self.most.get(what, 0), count)
            for _ in range(3):
                await asyncio.sleep(0)
            self.now.remove(me)
            return n

        return handler

    async def rush(self) -> list[ToolResult]:
        sent = [(name, session, n) for n in range(4) for name in ("one", "two") for session in ("s-1", "s-2")]
        return await asyncio.gather(
            *(self.executor.run(call(name, f"{name}-{n}", n=n), at(session)) for name, session, n in sent)
        )


@pytest.mark.proves("PH-D14")
@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize(
    ("limits", "what", "most"),
    [
        ({}, "all", 16),
        ({"max_concurrent": 3}, "all", 3),
        ({"max_concurrent_per_session": 2}, "s-1", 2),
        ({"max_concurrent_per_tool": {"one": 1}}, "one", 1),
        ({"max_concurrent_per_tool": {"*": 5}}, "all", 5),
        ({"max_concurrent": 2, "max_concurrent_per_session": 1, "max_concurrent_per_tool": {"t*": 1}}, "all", 2),
    ],
)
async def test_never_more_run_at_once_than_allowed_and_all_of_them_run(
    read_only: bool, limits: dict[str, Any], what: str, most: int
) -> None:
    crowd = Crowd(read_only=read_only, **limits)
    results = await crowd.rush()

    assert all(result.ok for result in results)
    assert crowd.most[what] == most
    if limits.get("max_concurrent_per_tool") == {"one": 1}:
        assert crowd.most["two"] == 8
    assert not crowd.executor._reads._admission._sessions  # pyright: ignore[reportPrivateUsage]


async def test_a_call_inside_a_call_needs_no_place_of_its_own() -> None:
    @tool
    async def outer(context: ToolContext[Any]) -> str:
        """Outer."""
        results = await executor.run_all([call("inner", "i-1", n=1), call("inner", "i-2", n=2)], context)
        return ", ".join(result.output for result in results)

    @tool(read_only=True)
    async def inner(n: int) -> str:
        """Inner."""
        await asyncio.sleep(0)
        return f"inner {n}"

    executor = Executor(
        [outer, inner],
        policy=ALLOWED,
        limits=Limits(max_concurrent=1, max_concurrent_per_session=1, max_concurrent_per_tool={"*": 1}),
        timeouts=Timeouts(call=20),
    )

    assert (await executor.run(call("outer"), at())).output == "inner 1, inner 2"


@given(st.integers(1, 3), st.lists(st.sampled_from(["enter", "leave", "cancel"]), max_size=30))
def test_a_concurrency_limit_is_never_exceeded_and_nobody_is_forgotten(places: int, moves: list[str]) -> None:
    async def play() -> None:
        limit = ConcurrencyLimit(places)
        inside: list[int] = []
        waiting: dict[int, asyncio.Task[None]] = {}

        async def come(n: int) -> None:
            await limit.acquire()
            inside.append(n)

        for n, move in enumerate(moves):
            if move == "enter":
                waiting[n] = asyncio.create_task(come(n))
            elif move == "leave" and inside:
                inside.pop(0)
                limit.release()
                if waiting and n % 2:  # In the same moment in which the place is given.
                    next(iter(waiting.values())).cancel()
            elif move == "cancel" and waiting:
                next(iter(waiting.values())).cancel()
            await quiet()
            waiting = {one: task for one, task in waiting.items() if not task.done()}
            assert len(inside) <= places
            assert len(inside) == places or not waiting
            assert limit.users == len(inside) + len(waiting)
            assert len(limit._waiting) == len(waiting)  # pyright: ignore[reportPrivateUsage]

    asyncio.run(play())


# Rate limits


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize(
    ("per", "let_through"),
    [
        ("tool", [True, True, False, False, False]),
        ("session", [True, True, False, True, True]),
        ("tenant", [True, True, False, False, True]),
    ],
)
async def test_a_tool_that_is_called_too_often_is_refused_and_the_model_reads_when_to_try_again(
    per: Any, let_through: list[bool], read_only: bool
) -> None:
    @tool(read_only=read_only, concurrency_safe=True)
    async def act(n: int) -> int:
        """Act."""
        return n

    @tool(read_only=True)
    async def free() -> str:
        """Not limited."""
        return "free"

    heard = Heard()
    executor = Executor(
        [act, free],
        policy=ALLOWED,
        limits=Limits(rate_limits=[RateLimit(max_calls=2, period=600, tools=("act",), per=per)]),
        listeners=[heard],
    )
    where = [at("s-1", tenant_id="a")] * 3 + [at("s-2", tenant_id="a"), at("s-3", tenant_id="b")]
    results = [await executor.run(call("act", f"c-{n}", n=n), one) for n, one in enumerate(where)]

    assert [result.ok for result in results] == let_through
    refused = [result for result in results if not result.ok]
    assert {code_of(item) for item in refused} == {"rate_limited"}
    assert all(item.error and item.error.retryable and "Try again in" in item.error.message for item in refused)
    assert len(heard.of(CallStarted)) == sum(let_through)
    assert len(heard.of(CallFinished)) == 5
    assert (await executor.run(call("free", "f"), at())).output == "free"


async def test_a_refused_call_uses_up_nothing() -> None:
    from handrail import Policy, Rule

    @tool
    async def act(n: int) -> int:
        """Act."""
        return n

    executor = Executor(
        [act],
        policy=Policy([Rule.ask("act", by="operator")]),
        limits=Limits(rate_limits=[RateLimit(max_calls=1, period=0.05)]),
    )
    for n in (1, 2):
        asked = await executor.run(call("act", f"c-{n}", n=n), at())
        await executor.approvals.approve(asked.approval.token, by="operator", who="ann")
    assert (await executor.run(call("act", "c-1", n=1), at())).output == 1
    assert code_of(await executor.run(call("act", "c-2", n=2), at())) == "rate_limited"
    await asyncio.sleep(0.06)
    assert (await executor.run(call("act", "c-2", n=2), at())).output == 2  # The approval is still good.


class ReluctantBook(Book):
    """A ledger that says once that a call cannot be claimed, as if another process had changed it meanwhile."""

    refuses = 1

    async def claim(self, entry: Entry, **given: Any) -> bool:
        self.refuses -= 1
        return False if self.refuses >= 0 else await super().claim(entry, **given)


async def test_a_call_that_has_to_be_claimed_again_counts_once() -> None:
    @tool
    async def act() -> str:
        """Act."""
        return "done"

    executor = Executor(
        [act],
        policy=ALLOWED,
        ledger=ReluctantBook(),
        limits=Limits(rate_limits=[RateLimit(max_calls=1, period=600)], max_concurrent=1),
        timeouts=Timeouts(call=20),
    )

    assert (await executor.run(call("act"), at())).output == "done"


# The breaker


class HeldBook(Book):
    """A ledger that keeps who settles waiting until it is told to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.settling, self.go = asyncio.Event(), asyncio.Event()

    async def settle(self, entry: Entry, **given: Any) -> None:
        if entry.call_id == "c-1":
            self.settling.set()
            await self.go.wait()
        await super().settle(entry, **given)


async def test_the_end_of_a_call_that_was_reported_before_does_not_end_the_try_of_another_one() -> None:
    ledger, slow, runs = HeldBook(), Held(), list[int]()

    @tool(concurrency_safe=True)
    async def act(n: int) -> str:
        """Act."""
        runs.append(n)
        if n == 1:
            raise ConnectionError("down")
        return await slow()

    breaker = CircuitBreaker(max_failures=1, reset_timeout=0.02)
    timeouts = Timeouts(overhead=1_000, call=1_000)
    executor = Executor([act], policy=ALLOWED, ledger=ledger, limits=Limits(circuit_breaker=breaker), timeouts=timeouts)
    first = asyncio.create_task(executor.run(call("act", "c-1", n=1), at("s-1")))
    await ledger.settling.wait()
    await asyncio.sleep(0.03)
    trying = asyncio.create_task(executor.run(call("act", "c-2", n=2), at("s-2")))
    await slow.begun.wait()
    ledger.go.set()
    await first

    assert code_of(await executor.run(call("act", "c-3", n=3), at("s-3"))) == "unavailable"
    slow.go.set()
    await trying
    assert runs == [1, 2]


def broken(read_only: bool = True, circuit_breaker: CircuitBreaker | None = None) -> tuple[Executor, list[str], Heard]:
    state = ["down"]
    heard = Heard()

    @tool(read_only=read_only, concurrency_safe=True)
    async def act(n: int) -> str:
        """Act."""
        if state[0] == "down":
            raise ConnectionError("down")
        if state[0] == "refuses":
            raise ToolError("Not you.")
        return "up"

    @tool(read_only=True)
    async def other() -> str:
        """Another tool."""
        return "other"

    executor = Executor(
        [act, other],
        policy=ALLOWED,
        limits=Limits(circuit_breaker=circuit_breaker or CircuitBreaker(max_failures=3, reset_timeout=0.05)),
        listeners=[heard],
    )
    return executor, state, heard


@pytest.mark.parametrize("read_only", [True, False])
async def test_a_tool_that_keeps_failing_rests_and_then_one_call_tries(read_only: bool) -> None:
    executor, state, heard = broken(read_only)
    failed = "tool_execution_failed" if read_only else "outcome_unknown"

    async def run(n: int) -> str | None:
        return code_of(await executor.run(call("act", f"c-{n}", n=n), at()))

    assert [await run(n) for n in range(5)] == [failed, failed, failed, "unavailable", "unavailable"]
    assert (await executor.run(call("other", "o"), at())).output == "other"
    await asyncio.sleep(0.06)
    assert [await run(n) for n in (10, 11)] == [failed, "unavailable"]  # It tried once, and rests again.
    await asyncio.sleep(0.06)
    state[0] = "up"
    assert [await run(n) for n in (20, 21)] == [None, None]

    told = [(event.tool_name, event.state) for event in heard.of(CircuitBreakerChanged)]
    assert told == [("act", item) for item in ("open", "half_open", "open", "half_open", "closed")]


async def test_errors_for_the_model_and_cancellations_say_nothing_against_a_tool() -> None:
    executor, state, heard = broken(circuit_breaker=CircuitBreaker(max_failures=2, reset_timeout=60))
    state[0] = "refuses"
    for n in range(5):
        assert code_of(await executor.run(call("act", f"c-{n}", n=n), at())) == "tool_execution_failed"

    assert not heard.of(CircuitBreakerChanged)


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("how", ["call", "caller"])
async def test_a_try_that_is_cancelled_lets_the_next_one_try(read_only: bool, how: str) -> None:
    slow = Held()
    fails = [True]

    @tool(read_only=read_only, on_interrupt="cancel")
    async def act(n: int) -> str:
        """Act."""
        if fails:
            raise ConnectionError("down")
        return await slow()

    executor = Executor(
        [act], policy=ALLOWED, limits=Limits(circuit_breaker=CircuitBreaker(max_failures=1, reset_timeout=0.02))
    )
    await executor.run(call("act", "c-1", n=1), at())
    fails.clear()
    await asyncio.sleep(0.03)
    trying = asyncio.create_task(executor.run(call("act", "c-2", n=2), at()))
    await slow.begun.wait()
    for id in ("c-3", "c-3b"):  # Who is refused while another one tries does not end its try.
        assert code_of(await executor.run(call("act", id, n=3), at("s-2"))) == "unavailable"
    if how == "call":
        executor.cancel("c-2", session_id="s-1")
    else:
        trying.cancel()
    await asyncio.wait([trying])
    await quiet()
    slow.go.set()

    assert (await executor.run(call("act", "c-4", n=4), at("s-2"))).output == "done"


async def test_a_try_that_waits_for_its_turn_and_is_cancelled_lets_the_next_one_try() -> None:
    slow = Held()
    fails = [True]

    @tool
    async def act(n: int) -> str:
        """Act."""
        if fails:
            raise ConnectionError("down")
        return "up"

    @tool
    async def hold() -> str:
        """Holds the session."""
        return await slow()

    executor = Executor(
        [act, hold], policy=ALLOWED, limits=Limits(circuit_breaker=CircuitBreaker(max_failures=1, reset_timeout=0.02))
    )
    await executor.run(call("act", "c-1", n=1), at())
    fails.clear()
    await asyncio.sleep(0.03)
    holding = asyncio.create_task(executor.run(call("hold", "h"), at()))
    await slow.begun.wait()
    waiting = asyncio.create_task(executor.run(call("act", "c-2", n=2), at()))
    await quiet()
    executor.cancel("c-2", session_id="s-1")
    await waiting
    slow.go.set()
    await holding

    assert (await executor.run(call("act", "c-3", n=3), at())).output == "up"


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize(
    ("ends", "health"),
    [
        ("a text", "good"),
        ("a value", "good"),
        ("a result", "good"),
        ("a failure", "good"),
        ("an error for the model", "good"),
        ("a pause", "good"),
        ("an exception", "bad"),
        ("an unusable output", "bad"),
        ("a timeout", "bad"),
        ("a timeout of what it returned", "bad"),
        ("a cancellation", "unknown"),
    ],
)
@warped
async def test_what_the_end_of_a_call_says_about_the_health_of_its_tool(
    ends: str, health: str, read_only: bool
) -> None:
    never = asyncio.Event()

    @tool(read_only=read_only, timeout=5)
    async def act(n: int, ends: str) -> Any:
        """Act."""
        match ends:
            case "a text":
                return "up"
            case "a value":
                return {"up": True}
            case "a result":
                return ToolResult(output="up")
            case "a failure":
                return ToolResult(error="no")
            case "an error for the model":
                raise ToolError("no")
            case "a pause":
                raise CallPausedError("later")
            case "an unusable output":
                return object()
            case "a timeout of what it returned":
                return never.wait()
            case "an exception":
                raise ConnectionError("down")
            case _:
                await never.wait()

    heard = Heard()
    limits = Limits(circuit_breaker=CircuitBreaker(max_failures=2, reset_timeout=1e6))
    executor = Executor([act], policy=ALLOWED, limits=limits, listeners=[heard])
    opened: list[bool] = []
    for n, each in enumerate(("an exception", ends, "an exception")):
        running = asyncio.create_task(executor.run(call("act", f"c-{n}", n=n, ends=each), at()))
        if each == "a cancellation":
            await quiet()
            assert executor.cancel(f"c-{n}", session_id="s-1")
        await running
        opened.append(bool(heard.of(CircuitBreakerChanged)))

    assert opened == [False, health == "bad", health != "good"]


# What limits and rules cost.


@pytest.mark.parametrize("size", [3, 60])
async def test_no_call_tests_a_pattern(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tested: list[str] = []

    def counted(text: str, pattern: str) -> bool:
        tested.append(pattern)
        return fnmatchcase(text, pattern)

    monkeypatch.setattr(selectors, "fnmatchcase", counted)

    @tool(read_only=True)
    async def look(what: str) -> str:
        """Look."""
        return what

    @tool
    async def pay(amount: int) -> str:
        """Pay."""
        return "paid"

    where = {"amount": {"above": 100}}
    rules = [Rule.deny(f"p*{number}") for number in range(size)] + [Rule.ask("p*", by="operator", where=where)] * size
    executor = Executor(
        [look, pay],
        policy=Policy([*rules, Rule.allow("pay")]),
        declared={f"p{number}": ToolFlags() for number in range(size)},
        mode={f"l*{number}": "observe" for number in range(size)},
        limits=Limits(
            rate_limits=[RateLimit(max_calls=100, period=60, tools=("l*", f"x*{number}")) for number in range(size)],
            max_concurrent_per_tool={"l*": 1, **{f"l*{number}": 1 for number in range(size)}},
        ),
    )
    before = len(tested)
    assert [code_of(await executor.run(call("look", id, what="a"), at())) for id in ("c-1", "c-2")] == [None, None]
    assert code_of(await executor.run(call("pay", "c-3", amount=500), at())) == "approval_required"
    first = len(tested)
    for number in range(10):
        assert code_of(await executor.run(call("look", f"d-{number}", what="a"), at())) is None
        assert code_of(await executor.run(call("pay", f"e-{number}", amount=500 + number), at())) is not None

    assert before > 0
    assert first - before <= 6 * size + 2  # Limits are resolved with the first call of a tool.
    assert len(tested) == first

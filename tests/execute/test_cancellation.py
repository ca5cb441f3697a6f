"""Calls are cancelled one by one, by response, or with their session; each result tells the truth."""

import asyncio
from typing import Any

import pytest

from handrail import Executor, Policy, Rule, ToolContext, ToolResult, tool
from handrail.core import CallCancelled, CallFinished, Cancellation, Cancelling, Redactor
from handrail.execute import Entry, Limits, MemoryLedger, Recalled, Timeouts
from tests.execute.helpers import ALLOWED, Book, Heard, Held, Stubborn, at, call, code_of, quiet
from tests.warped import warped


class Stage:
    """An executor with one tool of each kind, all of which wait until they are told."""

    def __init__(self, **options: Any) -> None:
        self.held: dict[str, Held] = {}
        self.heard = Heard()
        self.book = Book()
        kinds: dict[str, dict[str, Any]] = {
            "look": {"read_only": True},
            "look_to_the_end": {"read_only": True, "on_interrupt": "finish"},
            "act": {},
            "drop": {"on_interrupt": "cancel"},
            "quietly": {"on_interrupt": "finish_silently"},
            "must": {"on_interrupt": "uninterruptible"},
        }
        tools = [tool(name=name, concurrency_safe=True, **more)(self.handler(name)) for name, more in kinds.items()]

        @tool
        async def alone() -> str:
            """Waits for its turn behind the others."""
            return await self.held.setdefault("alone", Held())()

        @tool(on_interrupt="uninterruptible")
        async def must_alone() -> str:
            """Waits for its turn, and is not to be dropped."""
            return "acted"

        self.executor = Executor(
            [*tools, alone, must_alone], policy=ALLOWED, listeners=[self.heard], ledger=self.book, **options
        )
        self.tasks: list[asyncio.Task[ToolResult]] = []

    def handler(self, name: str) -> Any:
        async def handler() -> str:
            return await self.held[name]()

        return handler

    async def start(
        self, name: str, id: str | None = None, response_id: str | None = None, session: str = "s-1"
    ) -> None:
        held = self.held.setdefault(name, Held())
        before = held.runs
        self.tasks.append(
            asyncio.create_task(self.executor.run(call(name, id or name, response_id=response_id), at(session)))
        )
        while name not in ("alone", "must_alone") and held.runs == before:
            await asyncio.sleep(0)
        await quiet()

    async def results(self) -> list[ToolResult]:
        return [await task for task in self.tasks]


# One call


@pytest.mark.parametrize(
    ("name", "cancelled", "code"),
    [
        ("look", True, "cancelled"),
        ("act", True, "outcome_unknown"),
        ("drop", True, "outcome_unknown"),
        ("must", False, None),
    ],
)
async def test_one_call_is_cancelled_unless_it_cannot_be(name: str, cancelled: bool, code: str | None) -> None:
    stage = Stage()
    await stage.start(name)

    assert stage.executor.cancel(name, session_id="s-2") is False
    assert stage.executor.cancel("other", session_id="s-1") is False
    assert stage.executor.cancel(name, session_id="s-1") is cancelled
    stage.held[name].go.set()
    (result,) = await stage.results()

    assert code_of(result) == code
    assert len(stage.heard.of(CallCancelled)) == cancelled
    assert stage.executor.cancel(name, session_id="s-1") is False


async def test_what_has_not_begun_never_begins_and_says_so() -> None:
    stage = Stage()
    await stage.start("act")
    await stage.start("alone")
    assert [item.id for item in stage.executor.running_calls("s-1")] == ["act", "alone"]
    stage.executor.cancel("alone", session_id="s-1")
    assert code_of(await stage.tasks[1]) == "cancelled"
    assert "Nothing was done" in ((await stage.tasks[1]).error or pytest.fail("no error")).message
    assert await stage.book.state("alone") is None
    stage.held["act"].go.set()

    assert (await stage.tasks[0]).output == "done"
    assert stage.held["alone"].runs == 0


async def test_a_call_that_waits_for_a_place_or_for_its_twin_can_be_cancelled() -> None:
    stage = Stage(limits=Limits(max_concurrent_per_tool={"act": 1}))
    await stage.start("act", "first")
    held = stage.held["act"]
    waiting = asyncio.create_task(stage.executor.run(call("act", "place"), at("s-2", customer_id="another")))
    twin = asyncio.create_task(stage.executor.run(call("act", "twin"), at("s-1")))
    await quiet()
    assert stage.executor.cancel("place", session_id="s-2")
    assert stage.executor.cancel("twin", session_id="s-1")

    assert code_of(await waiting) == "cancelled"
    joined = await twin
    assert code_of(joined) == "cancelled"
    assert "still runs" in (joined.error.message if joined.error else "")
    held.go.set()
    assert (await stage.tasks[0]).output == "done"
    assert held.runs == 1


# By response


async def test_a_call_that_is_cancelled_again_before_it_has_ended_is_reported_once() -> None:
    stage = Stage()
    await stage.start("look", response_id="r-1")
    for _ in range(2):
        assert stage.executor.cancel("look", session_id="s-1")
        assert stage.executor.cancel_tools_for_response("r-1", session_id="s-1") == 1
    done = await stage.executor.cancel_all("s-1")
    await stage.results()

    assert done.remaining == 0
    assert [event.call.id for event in stage.heard.of(CallCancelled)] == ["look"]


@pytest.mark.proves("PH-69", "PH-70")
async def test_the_calls_of_a_response_are_cancelled_each_as_its_tool_wants_it_and_no_other() -> None:
    stage = Stage()
    for name in ("look", "act", "drop", "quietly", "must", "look_to_the_end"):
        await stage.start(name, response_id="r-1")
    await stage.start("look", "other response", response_id="r-2")
    await stage.start("look", "other session", response_id="r-1", session="s-2")

    cancelled = stage.executor.cancel_tools_for_response("r-1", session_id="s-1")
    for held in stage.held.values():
        held.go.set()
    results = {result.call_id: result for result in await stage.results()}

    assert cancelled == 2
    told = stage.heard.of(CallCancelled)
    assert [(event.call.id, event.call.response_id, event.session_id) for event in told] == [
        ("look", "r-1", "s-1"),
        ("drop", "r-1", "s-1"),
    ]
    assert {id: code_of(one) for id, one in results.items() if not one.ok} == {
        "look": "cancelled",
        "drop": "outcome_unknown",
    }
    assert [id for id, one in results.items() if one.silent] == ["quietly"]
    (end,) = stage.heard.of(Cancellation)
    assert (end.scope, end.response_id, end.cancelled, end.remaining) == ("response", "r-1", 2, 4)


async def test_what_waits_for_its_turn_is_dropped_with_its_response_unless_it_must_run() -> None:
    stage = Stage()
    await stage.start("act", response_id="r-1")
    await stage.start("alone", response_id="r-1")
    await stage.start("must_alone", response_id="r-1")
    assert stage.executor.cancel_tools_for_response("r-1", session_id="s-1") == 1
    stage.held["act"].go.set()

    assert [code_of(result) for result in await stage.results()] == [None, "cancelled", None]


@pytest.mark.proves("PH-71")
async def test_a_cancellation_without_a_response_id_does_nothing_and_is_reported() -> None:
    stage = Stage()
    await stage.start("look")
    assert stage.executor.cancel_tools_for_response("", session_id="s-1") == 0
    (told,) = stage.heard.of(Cancellation)
    assert (told.reason, told.cancelled) == ("missing_response_id", 0)
    stage.held["look"].go.set()

    assert (await stage.results())[0].ok


# A whole session


@pytest.mark.proves("PH-72")
async def test_the_end_of_a_session_drops_reads_and_finishes_effects() -> None:
    stage = Stage()
    for name in ("look", "act", "drop", "quietly", "must", "alone"):
        await stage.start(name)
    await stage.start("look", "theirs", session="s-2")
    ending = asyncio.create_task(stage.executor.cancel_all("s-1", grace=30))
    await quiet()
    (begin,) = stage.heard.of(Cancelling)
    assert (begin.tracked, begin.cancellable) == (6, 3)
    assert not stage.heard.of(Cancellation)
    for held in stage.held.values():
        held.go.set()
    done = await ending

    assert (done.cancelled, done.remaining) == (3, 0)
    assert stage.executor.running_calls("s-1") == ()
    (end,) = stage.heard.of(Cancellation)
    assert (end.scope, end.cancelled, end.remaining, end.pending) == ("session", 3, 0, 0)
    codes = {result.call_id: code_of(result) for result in await stage.results()}
    assert codes == {
        "look": "cancelled",
        "act": None,
        "drop": "outcome_unknown",
        "quietly": None,
        "must": None,
        "alone": "cancelled",
        "theirs": None,
    }
    assert [await stage.book.state(name) for name in ("act", "drop", "must", "alone")] == [
        "committed",
        "unknown",
        "committed",
        None,
    ]


@pytest.mark.proves("PH-72")
async def test_what_does_not_finish_within_the_grace_is_cut_off_as_unknown() -> None:
    stage = Stage()
    await stage.start("act")
    await stage.start("must")
    done = await stage.executor.cancel_all("s-1", grace=0.02)

    assert (done.cancelled, done.remaining) == (2, 0)
    assert [code_of(result) for result in await stage.results()] == ["outcome_unknown", "outcome_unknown"]
    assert [await stage.book.state(name) for name in ("act", "must")] == ["unknown", "unknown"]
    assert stage.executor.running_calls("s-1") == ()


@warped
async def test_what_does_not_stop_at_all_is_reported_as_remaining() -> None:
    go = asyncio.Event()
    begun = asyncio.Event()

    @tool
    async def stuck() -> None:
        """Never stops."""
        while not go.is_set():
            try:
                begun.set()
                await go.wait()
            except asyncio.CancelledError:
                continue

    heard = Heard()
    executor = Executor([stuck], policy=ALLOWED, listeners=[heard])
    task = asyncio.create_task(executor.run(call("stuck"), at()))
    await begun.wait()
    done = await executor.cancel_all("s-1", grace=0.02)

    assert (done.cancelled, done.remaining) == (1, 1)
    assert code_of(await task) == "outcome_unknown"
    assert heard.of(Cancellation)[0].remaining == 1
    assert len(heard.of(CallFinished)) == 1
    go.set()
    await quiet()


async def test_a_session_without_calls_ends_at_once() -> None:
    stage = Stage()
    done = await stage.executor.cancel_all("nobody")

    assert (done.cancelled, done.remaining) == (0, 0)
    assert stage.heard.names == ["Cancelling", "Cancellation"]


async def test_a_call_may_end_its_own_session() -> None:
    """A tool that hangs up does not wait for itself."""
    slow = Held()

    @tool(concurrency_safe=True, read_only=True)
    async def look() -> str:
        """Look."""
        return await slow()

    @tool(concurrency_safe=True)
    async def hang_up(context: ToolContext[Any]) -> str:
        """Hang up."""
        done = await executor.cancel_all(context.session_id, grace=30)
        return f"{done.cancelled} dropped"

    executor = Executor([look, hang_up], policy=ALLOWED, timeouts=Timeouts(call=30))
    looking = asyncio.create_task(executor.run(call("look"), at()))
    await slow.begun.wait()
    result = await executor.run(call("hang_up", "c-2"), at())

    assert result.output == "1 dropped"
    assert code_of(await looking) == "cancelled"


async def test_leaving_an_executor_ends_every_session() -> None:
    async with Executor([Stage().executor.registry.get("look")]) as empty:
        assert empty.running_calls("s-1") == ()
    stage = Stage()
    async with stage.executor:
        await stage.start("look")
        await stage.start("act", session="s-2")
        stage.held["act"].go.set()

    assert [code_of(result) for result in await stage.results()] == ["cancelled", None]


async def test_a_call_that_is_cancelled_while_it_is_looked_up_asks_nobody() -> None:
    looking, go = asyncio.Event(), asyncio.Event()

    class Slow(Book):
        async def recall(self, **given: Any) -> tuple[Entry | None, Entry | None]:
            looking.set()
            await go.wait()
            return await super().recall(**given)

    @tool
    async def act() -> None:
        """Act."""

    executor = Executor([act], policy=Policy([Rule.ask("*", by="operator")]), ledger=Slow())
    task = asyncio.create_task(executor.run(call("act"), at()))
    await looking.wait()
    executor.cancel("c-1", session_id="s-1")
    go.set()

    assert code_of(await task) == "cancelled"
    assert await executor.approvals.pending() == []


async def test_two_that_wait_for_one_read_get_a_truthful_result_when_the_first_one_leaves() -> None:
    stage = Stage()
    await stage.start("look")
    second = asyncio.create_task(stage.executor.run(call("look", "look"), at()))
    await quiet()
    stage.tasks[0].cancel()
    result = await second

    assert code_of(result) == "cancelled"
    assert result.call_id == "look"


# What a cancellation costs.


class ComparedId(str):
    """A session id that counts how often it is compared with another."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        ComparedId.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


@pytest.mark.parametrize("others", [10, 400])
async def test_ending_a_session_looks_at_no_call_of_another_session(others: int) -> None:
    @tool(read_only=True)
    async def wait() -> str:
        """Wait."""
        await asyncio.sleep(3600)
        return "done"

    executor = Executor([wait])
    sessions = [ComparedId(f"s-{number}") for number in range(others + 1)]
    tasks = [asyncio.create_task(executor.run(call("wait"), at(session))) for session in sessions]
    await quiet()
    ComparedId.compared = 0

    assert (await executor.cancel_all("s-0")).cancelled == 1
    assert ComparedId.compared < 30
    assert code_of(await tasks[0]) == "cancelled"
    assert len(executor.running_calls("s-1")) == 1

    ComparedId.compared = 0
    await executor.aclose()
    assert ComparedId.compared < 30 * others  # Each session once, not each with each.
    assert [code_of(await task) for task in tasks] == ["cancelled"] * len(tasks)


class Slow:
    """Every place before and after a handler in which a call can wait, and wait for ever."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.reached = asyncio.Event()
        self.reads = 0

    async def wait_at(self, place: str) -> None:
        if place == self.place:
            self.reached.set()
            await asyncio.get_running_loop().create_future()

    async def check(self, arguments: Any, context: Any) -> bool:
        await self.wait_at("check")
        return True

    async def authorised(self, call: Any, tool: Any, decision: Any, context: Any) -> None:
        await self.wait_at("hook")

    async def verify(self, arguments: Any, context: Any) -> None:
        await self.wait_at("verify")


class SlowBook(MemoryLedger):
    """A ledger that does not answer at its second look."""

    is_immediate = False

    def __init__(self, slow: Slow) -> None:
        super().__init__()
        self.slow, self.reads = slow, 0

    async def recall(self, **given: Any) -> Recalled:
        self.reads += 1
        if self.reads == 2:
            await self.slow.wait_at("second look")
        return await super().recall(**given)


@pytest.mark.parametrize(
    ("place", "read_only", "code"),
    [
        ("check", False, "cancelled"),
        ("check", True, "cancelled"),
        ("hook", False, "cancelled"),
        ("hook", True, "cancelled"),
        ("second look", False, "cancelled"),
        ("verify", False, "outcome_unknown"),
    ],
)
async def test_a_cancellation_reaches_a_call_wherever_it_waits(place: str, read_only: bool, code: str) -> None:
    slow = Slow(place)

    @tool(read_only=read_only, permission_check=slow.check, **({} if read_only else {"verify": slow.verify}))
    async def act() -> str:
        """Act."""
        raise RuntimeError("boom")

    policy = Policy([Rule.ask("act", by="operator")]) if place == "second look" else ALLOWED
    executor = Executor(
        [act], policy=policy, hooks=[slow], ledger=SlowBook(slow), timeouts=Timeouts(overhead=600, call=600)
    )
    task = asyncio.create_task(executor.run(call("act", "c-1"), at()))

    async with asyncio.timeout(60):  # It would wait for ten minutes.
        await slow.reached.wait()
        assert executor.cancel("c-1", session_id="s-1")
        result = await task

    assert code_of(result) == code


async def test_a_cancellation_reaches_a_call_that_asks_verify_about_an_earlier_one() -> None:
    slow, book = Slow("nowhere"), MemoryLedger()

    @tool(verify=slow.verify)
    async def act() -> str:
        """Act."""
        raise RuntimeError("boom")

    executor = Executor([act], policy=ALLOWED, ledger=book, timeouts=Timeouts(overhead=600))
    assert code_of(await executor.run(call("act", "c-1"), at())) == "outcome_unknown"
    slow.place = "verify"
    task = asyncio.create_task(executor.run(call("act", "c-2"), at()))

    async with asyncio.timeout(60):
        await slow.reached.wait()
        assert executor.cancel("c-2", session_id="s-1")
        assert code_of(await task) == "outcome_unknown"


async def test_a_check_that_fails_does_not_say_that_nothing_was_done_about_what_was_done() -> None:
    is_slow = False

    async def check(arguments: Any, context: Any) -> bool:
        if is_slow:
            await asyncio.get_running_loop().create_future()
        return True

    @tool(permission_check=check)
    async def act() -> str:
        """Act."""
        return "acted"

    executor = Executor([act], policy=ALLOWED, timeouts=Timeouts(overhead=0.05))
    assert (await executor.run(call("act", "c-1"), at())).ok
    is_slow = True

    result = await executor.run(call("act", "c-2"), at())

    assert code_of(result) == "unavailable"
    assert "Nothing was done" not in result.for_model()


@pytest.mark.parametrize("read_only", [True, False])
async def test_a_call_whose_hook_swallows_its_cancellation_does_not_run_all_the_same(read_only: bool) -> None:
    hook, ran, book = Stubborn(), list[str](), Book()

    @tool(read_only=read_only)
    async def act() -> str:
        """Act."""
        ran.append("acted")
        return "acted"

    executor = Executor([act], policy=ALLOWED, hooks=[hook], ledger=book, timeouts=Timeouts(overhead=600))
    task = asyncio.create_task(executor.run(call("act"), at()))
    async with asyncio.timeout(60):
        await hook.reached.wait()
        assert executor.cancel("c-1", session_id="s-1")
        result = await task

    assert (code_of(result), ran, await book.state()) == ("cancelled", [], None)


async def test_a_call_that_is_cancelled_while_it_is_written_down_is_not_claimed() -> None:
    class Written(Book):
        is_written = True

    class Cancelling(Redactor):
        def arguments(self, arguments: Any, **given: Any) -> Any:
            executor.cancel("c-1", session_id="s-1")
            return super().arguments(arguments, **given)

    ran: list[str] = []

    @tool
    async def act(amount: int) -> str:
        """Act."""
        ran.append("acted")
        return "acted"

    book = Written()
    executor = Executor([act], policy=ALLOWED, ledger=book, redactor=Cancelling(), scope="session")

    result = await executor.run(call("act", amount=5), at())
    assert (code_of(result), ran, await book.state()) == ("cancelled", [], None)


@pytest.mark.parametrize(
    ("on_interrupt", "is_running", "state"),
    [
        (None, False, None),
        ("cancel", False, None),
        (None, True, "committed"),
        ("cancel", True, "unknown"),
    ],
)
async def test_a_call_whose_caller_leaves_does_not_begin_and_one_that_has_begun_does_what_its_tool_says(
    on_interrupt: Any, is_running: bool, state: str | None
) -> None:
    slow, book, ran = Held(), Book(), list[str]()

    @tool
    async def hold() -> str:
        """Hold the session."""
        return await slow()

    @tool(on_interrupt=on_interrupt)
    async def act() -> str:
        """Act."""
        ran.append("acted")
        return await slow() if is_running else "acted"

    executor = Executor([hold, act], policy=ALLOWED, ledger=book)
    holding = None if is_running else asyncio.create_task(executor.run(call("hold", "h"), at()))
    acting = asyncio.create_task(executor.run(call("act"), at()))
    await slow.begun.wait()
    await quiet()
    acting.cancel()
    await asyncio.wait([acting])
    slow.go.set()
    if holding is not None:
        await holding
    await quiet()

    assert (ran, await book.state()) == (["acted"] * is_running, state)

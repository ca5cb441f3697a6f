"""Calls without consequences: remembered by id, cached where the tool says so, never mixed up."""

import asyncio
import time
import weakref
from collections.abc import AsyncIterator
from contextvars import ContextVar
from typing import Any

import pytest
from pydantic import SecretStr

from handrail import ConfigError, Executor, Policy, ToolCall, ToolContext, ToolError, ToolResult, tool
from handrail.core import CallFinished, CallIgnored
from handrail.errors import PermissionDeniedError
from handrail.execute import Limits
from handrail.execute.reads import MAX_REMEMBERED, BoundedStore
from tests.execute.helpers import Heard, Held, at, call, code_of, quiet
from tests.warped import warped


class Counted:
    """A read that counts how often it really ran."""

    def __init__(self, **options: Any) -> None:
        self.runs = 0

        async def look(text: str, context: ToolContext[Any]) -> str:
            """Look."""
            self.runs += 1
            return f"{text} {self.runs}"

        self.heard = Heard()
        self.executor = Executor([tool(name="look", read_only=True, **options)(look)], listeners=[self.heard])

    async def ask(self, text: str, id: str = "c-1", **where: Any) -> ToolResult:
        return await self.executor.run(call("look", id, text=text), at(**where))


@pytest.mark.proves("PH-33")
async def test_a_call_that_arrives_again_has_the_same_result_and_is_reported_as_ignored() -> None:
    look = Counted()
    first, again = await look.ask("a"), await look.ask("a")

    assert (first.output, again.output, look.runs) == ("a 1", "a 1", 1)
    assert again.origin == "replayed"
    (ignored,) = look.heard.of(CallIgnored)
    assert (ignored.reason, ignored.call.id, ignored.session_id) == ("already_executed", "c-1", "s-1")
    assert len(look.heard.of(CallFinished)) == 1


async def test_calls_without_an_id_are_all_calls_of_their_own() -> None:
    look = Counted()
    answers = [await look.ask("a", id) for id in ("c-1", "", "", "")]

    assert [(answer.output, answer.origin) for answer in answers] == [(f"a {n}", "run") for n in (1, 2, 3, 4)]


@pytest.mark.proves("PH-32")
async def test_a_call_that_arrives_while_it_runs_waits_for_the_same_result() -> None:
    slow = Held()

    @tool(read_only=True)
    async def look() -> str:
        """Look."""
        return await slow()

    heard = Heard()
    executor = Executor([look], listeners=[heard])
    both = [asyncio.create_task(executor.run(call("look", response_id="r-1"), at())) for _ in range(2)]
    await slow.begun.wait()
    await quiet()
    slow.go.set()

    assert [(await item).output for item in both] == ["done", "done"]
    assert slow.runs == 1
    (ignored,) = heard.of(CallIgnored)
    assert (ignored.reason, ignored.call.id, ignored.call.response_id) == ("already_pending", "c-1", "r-1")


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_who_waits_for_a_read_gets_its_result_or_hears_that_it_was_cancelled(is_cancelled: bool) -> None:
    slow, errors = Held(), list[Any]()

    @tool(read_only=True)
    async def look() -> str:
        """Look."""
        return await slow()

    executor = Executor([look])
    asyncio.get_running_loop().set_exception_handler(lambda loop, error: errors.append(error))
    first, second = (asyncio.create_task(executor.run(call("look"), at())) for _ in range(2))
    await slow.begun.wait()
    await quiet()
    if is_cancelled:
        first.cancel()
    slow.go.set()
    again = await second

    assert (code_of(again), again.origin) == ("cancelled" if is_cancelled else None, "replayed")
    await asyncio.wait([first])
    await quiet()
    assert errors == []


async def test_the_same_id_with_other_arguments_or_another_tool_is_a_clash() -> None:
    look = Counted()

    @tool(read_only=True)
    async def other(text: str) -> str:
        """Another tool."""
        return "other"

    executor = Executor([look.executor.registry.get("look"), other])
    await executor.run(call("look", text="a"), at())

    assert code_of(await executor.run(call("look", text="b"), at())) == "duplicate_call"
    assert code_of(await executor.run(call("other", text="a"), at())) == "duplicate_call"
    assert (await executor.run(call("other", text="a"), at("s-2"))).output == "other"


async def test_the_same_id_of_a_read_and_of_an_effect_is_a_clash_while_both_run() -> None:
    slow = Held()

    @tool(read_only=True, concurrency_safe=True)
    async def look() -> str:
        """Look."""
        return await slow()

    @tool(concurrency_safe=True)
    async def act() -> str:
        """Act."""
        return "acted"

    from tests.execute.helpers import ALLOWED

    executor = Executor([look, act], policy=ALLOWED)
    looking = asyncio.create_task(executor.run(call("look"), at()))
    await slow.begun.wait()

    assert code_of(await executor.run(call("act"), at())) == "duplicate_call"
    slow.go.set()
    assert (await looking).output == "done"


async def test_a_failure_is_not_remembered() -> None:
    tries: list[int] = []

    @tool(read_only=True)
    async def look() -> str:
        """Look."""
        tries.append(1)
        if len(tries) == 1:
            raise ToolError("Not yet.")
        return "seen"

    executor = Executor([look])
    assert [(await executor.run(call("look"), at())).ok for _ in range(2)] == [False, True]


@pytest.mark.proves("PH-D17")
async def test_what_is_remembered_is_bounded() -> None:
    look = Counted()
    for n in range(MAX_REMEMBERED + 1):
        await look.ask("a", f"c-{n}")
    await look.ask("a", f"c-{MAX_REMEMBERED}")
    assert look.runs == MAX_REMEMBERED + 1
    await look.ask("a", "c-0")  # The oldest one is forgotten.

    assert look.runs == MAX_REMEMBERED + 2


async def test_what_is_remembered_has_a_limit_in_bytes() -> None:
    texts = {"long": "x" * 10_000, "short": "y"}
    runs: list[str] = []

    @tool(read_only=True)
    async def look(what: str) -> Any:
        """Look."""
        runs.append(what)
        return texts.get(what, {"rows": ["z" * 100] * 10})

    executor = Executor([look], limits=Limits(max_remembered_bytes=60_000))
    for number in range(10):
        await executor.run(call("look", f"long-{number}", what="long"), at())
        await executor.run(call("look", f"rows-{number}", what="rows"), at())
    before = len(runs)
    first, last = [await executor.run(call("look", f"long-{n}", what="long"), at()) for n in (0, 9)]

    assert before == 20
    assert (first.origin, last.origin) == ("run", "replayed")

    await executor.run(call("look", "short", what="short"), at())
    for number in range(4):  # A result that is larger than the whole limit is not kept, and the next one is.
        texts["long"] = "x" * 90_000
        await executor.run(call("look", f"longer-{number}", what="long"), at())
    assert (await executor.run(call("look", "longer-3", what="long"), at())).origin == "run"
    await executor.run(call("look", "after", what="short"), at())
    assert (await executor.run(call("look", "after", what="short"), at())).origin == "replayed"

    with pytest.raises(ConfigError, match="max_remembered_bytes must be 0 or more, got -1"):
        Executor([look], limits=Limits(max_remembered_bytes=-1))


async def test_texts_alone_come_to_the_limit_in_bytes_too() -> None:
    runs: list[int] = []

    @tool(read_only=True)
    async def look() -> str:
        """Look."""
        runs.append(1)
        return "x" * 10_000

    executor = Executor([look], limits=Limits(max_remembered_bytes=60_000))
    for number in range(10):
        await executor.run(call("look", f"c-{number}"), at())
    first, last = [await executor.run(call("look", f"c-{n}"), at()) for n in (0, 9)]

    assert (len(runs), first.origin, last.origin) == (11, "run", "replayed")


async def test_the_end_of_a_session_forgets_its_results_and_no_others() -> None:
    look = Counted(cache_for=60)
    await look.ask("a", session_id="s-1")
    await look.ask("a", session_id="s-2")
    await look.ask("b", "c-2", session_id="s-2", customer_id="ann")
    await look.executor.cancel_all("s-1")

    assert (await look.ask("a", session_id="s-1")).origin == "run"
    assert (await look.ask("a", session_id="s-2")).origin == "replayed"
    assert (await look.ask("a", "c-3", session_id="s-2")).origin == "cached"
    await look.executor.cancel_all("s-2")
    assert (await look.ask("b", "c-4", session_id="s-3", customer_id="ann")).origin == "cached"  # It is the customer's.


# The cache


@pytest.mark.proves("PH-81")
async def test_the_same_question_gets_its_result_again_without_running() -> None:
    look = Counted(cache_for=60)
    answers = [await look.ask("a", f"c-{n}") for n in range(3)]

    assert [answer.output for answer in answers] == ["a 1"] * 3
    assert [answer.origin for answer in answers] == ["run", "cached", "cached"]
    assert [answer.call_id for answer in answers] == ["c-0", "c-1", "c-2"]
    assert look.runs == 1


@pytest.mark.proves("PH-81")
async def test_another_question_and_another_tenant_are_asked_anew() -> None:
    look = Counted(cache_for=60, cache_public=True)
    await look.ask("a", "c-1", tenant_id="acme")
    await look.ask("b", "c-2", tenant_id="acme")
    await look.ask("a", "c-3", tenant_id="globex")
    await look.ask("a", "c-4", tenant_id=None)
    assert look.runs == 4
    await look.ask("a", "c-5", session_id="s-2", tenant_id="acme")
    assert look.runs == 4


@pytest.mark.parametrize("how", ["replaced", "another pool"])
async def test_a_cached_result_is_no_answer_of_another_tool_of_the_same_name(how: str) -> None:
    first, second = Counted(cache_for=60, cache_public=True), Counted(cache_for=60, cache_public=True)
    executor, tools = first.executor, list(second.executor.registry)
    await first.ask("a", "c-1")
    if how == "replaced":
        executor.replace_tools(tools)
    else:
        executor = executor.with_tools(tools, policy=Policy())
    answers = [await executor.run(call("look", f"c-{n}", text="a"), at()) for n in (2, 3)]

    assert [answer.origin for answer in answers] == ["run", "cached"]
    assert (first.runs, second.runs) == (1, 1)


async def test_the_order_and_the_spaces_of_arguments_make_no_other_question() -> None:
    runs: list[int] = []

    @tool(read_only=True, cache_for=60)
    async def look(a: int, b: int = 2) -> str:
        """Look."""
        runs.append(1)
        return "seen"

    executor = Executor([look])
    for n, text in enumerate(('{"a":1,"b":2}', '{ "b": 2, "a": 1 }', '{"a":1}')):
        await executor.run(ToolCall(id=f"c-{n}", name="look", arguments_json=text), at())

    assert len(runs) == 1


async def test_two_secrets_are_two_questions() -> None:
    @tool(read_only=True, cache_for=60)
    async def balance(pin: SecretStr) -> str:
        """The balance behind a pin."""
        return f"of {pin.get_secret_value()}"

    executor = Executor([balance])
    outputs = [(await executor.run(call("balance", f"c-{pin}", pin=pin), at())).output for pin in ("1111", "2222")]

    assert outputs == ["of 1111", "of 2222"]


async def test_a_cached_result_grows_old_and_a_failure_is_never_cached() -> None:
    look = Counted(cache_for=0.02)
    await look.ask("a", "c-1")
    await asyncio.sleep(0.03)
    await look.ask("a", "c-2")
    assert look.runs == 2

    tries: list[int] = []

    @tool(read_only=True, cache_for=60)
    async def fail() -> None:
        """Fail."""
        tries.append(1)
        raise ToolError("No.")

    executor = Executor([fail])
    for n in range(2):
        await executor.run(call("fail", f"c-{n}"), at())
    assert len(tries) == 2


async def test_a_lock_key_that_cannot_be_made_is_a_failed_result() -> None:
    def lock(arguments: Any) -> str:
        raise KeyError("nothing")

    @tool(read_only=True, lock_key=lock)
    async def look() -> str:
        """Look."""
        return "never"

    executor = Executor([look])
    assert code_of(await executor.run(call("look"), at())) == "tool_execution_failed"
    assert not executor.running_calls("s-1")


@pytest.mark.parametrize("waits", [False, True])
async def test_the_context_variables_that_an_async_read_sets_stay_in_it(waits: bool) -> None:
    variable: ContextVar[str] = ContextVar("variable", default="the caller's")
    seen: list[str] = []

    @tool(read_only=True)
    async def look() -> str:
        """Look."""
        variable.set("the read's")
        if waits:
            await asyncio.sleep(0)
        seen.append(variable.get())
        return "seen"

    for executor in (Executor([look]), Executor([look], listeners=[print], limits=Limits(max_concurrent=3))):
        assert (await executor.run(call("look", f"c-{len(seen)}"), at())).ok

    assert seen == ["the read's"] * 2
    assert variable.get() == "the caller's"


async def test_reads_that_fail_wait_and_call_each_other_leave_the_next_ones_as_they_are() -> None:
    @tool(read_only=True, concurrency_safe=True)
    async def look(way: str, depth: int = 0) -> str:
        """Look."""
        if way == "fail":
            raise ToolError("no", code="no")
        if way == "cancel":
            raise asyncio.CancelledError
        if way == "wait":
            await asyncio.sleep(0)
        if depth:
            inner = await executor.run(call("look", f"{way}-{depth}", way=way, depth=depth - 1), at())
            return f"{way} {inner.output}"
        return way

    executor = Executor([look])
    seen: list[Any] = []
    for number, way in enumerate(("plain", "fail", "plain", "cancel", "wait", "plain")):
        result = await executor.run(call("look", f"c-{number}", way=way, depth=2), at())
        seen.append(result.output if result.ok else code_of(result))

    assert seen == [
        *("plain plain plain", "no", "plain plain plain", "tool_execution_failed"),
        *("wait wait wait", "plain plain plain"),
    ]
    assert executor.running_calls("s-1") == ()


# What is kept of results.


@pytest.mark.parametrize("waits", [False, True])
async def test_nothing_of_a_result_is_kept_beyond_its_session(waits: bool) -> None:
    class Report:
        """For the caller's own code."""

    seen: list[weakref.ref[Report]] = []

    @tool(read_only=True, concurrency_safe=True)
    async def look() -> ToolResult:
        """Look."""
        report = Report()
        seen.append(weakref.ref(report))
        if waits:
            await asyncio.sleep(0)
        return ToolResult(output="seen", context=report)

    executor = Executor([look])
    assert isinstance((await executor.run(call("look"), at())).context, Report)
    await executor.cancel_all("s-1")

    assert [report() for report in seen] == [None]


def test_the_newest_values_are_kept_by_number_and_by_bytes_and_a_session_is_forgotten_whole() -> None:
    store: BoundedStore[int] = BoundedStore(max_entries=4, max_bytes=200)

    def kept(*keys: str, session: str = "s-1") -> list[str]:
        return [key for key in keys if store.get(session, key) is not None]

    for number, key in enumerate("abcde"):
        store.put(("s-1", key), number, 1)
    assert kept(*"abcde") == ["c", "d", "e"]  # Two halves of two: the older half is dropped as a whole.
    store.put(("s-2", "a"), 7, 1)
    assert (store.get("s-2", "a"), store.get("s-1", "e"), store.get("s-1", "a")) == (7, 4, None)
    store.forget_session("s-1")
    assert kept(*"abcde") == []
    assert kept("a", session="s-2") == ["a"]

    store = BoundedStore(max_entries=100, max_bytes=200)
    store.put(("s-1", "a"), 1, 50)
    store.put(("s-1", "b"), 2, 50)
    assert kept("a", "b") == ["a", "b"]
    store.put(("s-1", "c"), 3, 100)
    assert kept("a", "b", "c") == ["a", "b", "c"]
    store.put(("s-1", "d"), 4, 1)
    assert kept("a", "b", "c", "d") == ["c", "d"]
    store.put(("s-1", "e"), 5, 101)  # More than half of everything: it is not kept.
    assert kept("d", "e") == ["d"]
    store.forget_session("s-1")
    assert kept("c", "d") == []


@warped
async def test_a_cached_result_is_good_until_its_time_is_over() -> None:
    asked: list[int] = []

    @tool(read_only=True, cache_for=60)
    async def look() -> int:
        """Look."""
        asked.append(1)
        return len(asked)

    executor = Executor([look])

    async def run(id: str) -> tuple[int, str]:
        result = await executor.run(call("look", id), at())
        return result.output, result.origin

    assert await run("c-1") == (1, "run")
    await asyncio.sleep(59)
    assert await run("c-2") == (1, "cached")
    await asyncio.sleep(1)
    assert await run("c-3") == (2, "run")
    await executor.cancel_all("s-1")
    assert await run("c-4") == (3, "run")


@pytest.mark.parametrize(("later", "origin"), [(59.0, "cached"), (60.0, "run")])
async def test_a_cached_result_is_good_for_exactly_so_long(
    later: float, origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1_000.0]

    @tool(read_only=True, cache_for=60)
    async def look() -> str:
        """Look."""
        return "seen"

    executor = Executor([look])
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    await executor.run(call("look", "c-1"), at())
    now[0] += later
    again = await executor.run(call("look", "c-2"), at())
    monkeypatch.undo()

    assert again.origin == origin


async def test_the_result_of_a_read_is_not_handed_to_an_agent_that_may_not_read_it() -> None:
    def check(arguments: Any, context: ToolContext[Any]) -> None:
        if context.agent_id == "stranger":
            raise PermissionDeniedError("not you")

    @tool(read_only=True, permission_check=check)
    async def look() -> str:
        """Look."""
        return "seen"

    executor = Executor([look])
    assert (await executor.run(call("look"), at(agent_id="ours"))).output == "seen"

    assert code_of(await executor.run(call("look"), at(agent_id="stranger"))) == "permission_denied"
    assert (await executor.run(call("look"), at(agent_id="another"))).output == "seen"
    assert code_of(await executor.run(call("look"), at(customer_id="eve"))) == "duplicate_call"


@pytest.mark.parametrize("options", [{"cache_for": 60}, {"lock_key": "what"}])
async def test_a_read_that_may_have_to_wait_is_reported_from_its_arrival_to_its_end(options: dict[str, Any]) -> None:
    @tool(read_only=True, **options)
    async def look(what: str = "x") -> str:
        """Look."""
        return "seen"

    heard = Heard()
    await Executor([look], listeners=[heard]).run(call("look"), at())

    assert [name for name in heard.names if name.startswith("Call")] == ["CallAccepted", "CallStarted", "CallFinished"]


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize(
    ("what", "is_kept"), [("a text", True), ("a value", False), ("metadata", False), ("a long text", False)]
)
async def test_a_value_takes_more_memory_than_its_text(what: str, is_kept: bool, cached: bool) -> None:
    results = {
        "a text": "x" * 3_500,
        "a value": ["x" * 3_500],
        "metadata": ToolResult(output="x", metadata={"note": "x" * 3_500}),
        "a long text": "x" * 30_000,
    }

    @tool(read_only=True, cache_for=60 if cached else None)
    async def look() -> Any:
        """Look."""
        return results[what]

    executor = Executor([look], limits=Limits(max_remembered_bytes=60_000))  # Of which a half is for the newest.
    await executor.run(call("look"), at())
    again = await executor.run(call("look", "c-2" if cached else "c-1"), at())

    assert again.origin == (("cached" if cached else "replayed") if is_kept else "run")


@pytest.mark.parametrize(("is_public", "runs"), [(False, 2), (True, 1)])
async def test_a_cached_result_is_its_customers_unless_it_is_public(is_public: bool, runs: int) -> None:
    look = Counted(cache_for=60, cache_public=is_public)
    outputs = [
        (await look.ask("a", f"c-{number}", session_id=f"s-{number}", customer_id=customer)).output
        for number, customer in enumerate(("ann", "bob", "ann", "bob"))
    ]

    assert look.runs == runs
    assert outputs == (["a 1"] * 4 if is_public else ["a 1", "a 2"] * 2)


class Stream:
    """A handler that returns an async generator, at once or after a wait, which goes on when it is told."""

    def __init__(self, *, waits: bool) -> None:
        self.waits = waits
        self.begun = asyncio.Event()
        self.go = asyncio.Event()
        self.runs = 0

    async def read(self) -> Any:
        self.runs += 1
        if self.waits:
            await asyncio.sleep(0)
        return self._stream()

    async def _stream(self) -> AsyncIterator[str]:
        yield "first"
        self.begun.set()
        await self.go.wait()
        yield "last"


waits = pytest.mark.parametrize("waits", [False, True])


@waits
async def test_a_read_runs_until_its_stream_has_ended_and_a_second_delivery_waits_for_it(waits: bool) -> None:
    stream = Stream(waits=waits)
    executor = Executor([tool(name="look", read_only=True)(stream.read)])
    first = asyncio.create_task(executor.run(call("look"), at()))
    await stream.begun.wait()
    assert [running.id for running in executor.running_calls("s-1")] == ["c-1"]

    second = asyncio.create_task(executor.run(call("look"), at()))
    await quiet()
    stream.go.set()

    assert [(result.output, result.origin) for result in (await first, await second)] == [
        (["first", "last"], "run"),
        (["first", "last"], "replayed"),
    ]
    assert stream.runs == 1
    assert not executor.running_calls("s-1")


@waits
async def test_a_read_is_cancelled_while_its_stream_is_collected(waits: bool) -> None:
    stream = Stream(waits=waits)
    executor = Executor([tool(name="look", read_only=True)(stream.read)])
    running = asyncio.create_task(executor.run(call("look"), at()))
    await stream.begun.wait()

    assert executor.cancel("c-1", session_id="s-1")
    assert code_of(await running) == "cancelled"


@waits
async def test_the_stream_of_a_read_may_make_calls_in_its_own_session(waits: bool) -> None:
    @tool(read_only=True)
    async def inner() -> str:
        """Look."""
        await asyncio.sleep(0)
        return "seen"

    async def list_all() -> AsyncIterator[Any]:
        yield (await executor.run(call("inner", "c-2"), at())).output

    async def outer() -> Any:
        if waits:
            await asyncio.sleep(0)
        return list_all()

    executor = Executor([inner, tool(name="look", read_only=True)(outer)])

    assert (await executor.run(call("look"), at())).output == ["seen"]

"""What a handler may do, and what it may not: whatever comes of it is an answer."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator

from handrail import ConfigError, Decision, Executor, Policy, Rule, ToolContext, ToolError, ToolResult, tool
from handrail.core import Approval, CallFinished
from handrail.errors import CallPausedError
from handrail.execute import RetryPolicy, Timeouts
from tests.execute.helpers import ALLOWED, Book, Heard, at, call, code_of, quiet
from tests.warped import warped


async def outcome(handler: Callable[..., Any], **options: Any) -> ToolResult:
    made = tool(name="act", **options)(handler)
    return await Executor([made], policy=ALLOWED).run(call("act"), at())


# What it returns


@pytest.mark.proves("PH-48")
@pytest.mark.parametrize("value", [None, "text", 7, 1.5, True, [1, "a"], {"a": {"b": None}}, "", {}])
@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("kind", ["async", "sync", "inline"])
async def test_a_plain_value_is_the_output(value: Any, read_only: bool, kind: str) -> None:
    async def later() -> Any:
        return value

    def now() -> Any:
        return value

    handler = later if kind == "async" else now
    result = await outcome(handler, read_only=read_only, inline=kind == "inline")

    assert result.ok
    assert result.output == value


class Hostile:
    @property
    def __dict__(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        raise RuntimeError("do not look")

    def __iter__(self) -> Iterator[int]:
        raise RuntimeError("do not look")


def deep() -> Any:
    value: list[Any] = []
    for _ in range(5_000):
        value = [value]
    return value


@pytest.mark.proves("PH-48")
@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (object, "object"),
        (Hostile, "Hostile"),
        (lambda: {1, object()}, "set"),
        (lambda: b"\xff\xfe", "bytes"),
        (deep, "list"),
        (lambda: ToolResult(output=object()), "object"),
    ],
)
async def test_a_return_of_the_wrong_type_names_the_tool_and_the_type(
    make: Callable[[], Any], says: str, read_only: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler() -> Any:
        return make()

    book = Book()
    executor = Executor([tool(name="act", read_only=read_only)(handler)], policy=ALLOWED, ledger=book)
    with caplog.at_level(logging.ERROR, "handrail"):
        result = await executor.run(call("act"), at())

    assert result.error is not None
    assert result.error.code == "tool_execution_failed"
    assert "`act` ran" in result.error.message
    assert says in result.error.message
    assert says in caplog.text
    assert await book.state() == (None if read_only else "committed")  # It ran: it must not run again.


async def test_a_result_that_says_it_failed_means_that_nothing_happened() -> None:
    book = Book()

    @tool
    async def act() -> ToolResult:
        """Act."""
        return ToolResult(error="Not today.")

    result = await Executor([act], policy=ALLOWED, ledger=book).run(call("act"), at())

    assert (code_of(result), await book.state()) == ("tool_execution_failed", "failed")


@pytest.mark.parametrize("read_only", [False, True])
async def test_what_only_the_executor_may_say_of_a_call_is_dropped_when_a_handler_says_it(read_only: bool) -> None:
    forged = Approval(
        token="apr_forged", tool="act", digest="", session_id="s-1", by="customer", turn=0, arguments={},
        created_at=0.0, expires_at=1.0,
    )  # fmt: skip

    @tool(read_only=read_only)
    async def act() -> ToolResult:
        """Act."""
        return ToolResult(
            output="x",
            metadata={"decision": "mine", "note": 1},
            decision=Decision(action="deny"),
            approval=forged,
            origin="replayed",
            recorded=False,
            silent=True,
        )

    heard = Heard()
    result = await Executor([act], policy=ALLOWED, listeners=[heard]).run(call("act"), at())

    assert result.decision is not None
    assert result.decision.action == "allow"
    assert (result.approval, result.origin, result.recorded, result.silent) == (None, "run", True, False)
    assert result.metadata == {"decision": "mine", "note": 1}
    alone = await act.execute({}, at())
    assert (alone.decision, alone.approval, alone.origin, alone.recorded) == (None, None, "run", True)
    assert heard.names[-1] == "CallFinished"


async def test_metadata_that_cannot_be_looked_at_does_not_lose_the_effect() -> None:
    book = Book()

    @tool
    async def act() -> ToolResult:
        """Act."""
        return ToolResult(output="done", metadata={"odd": Hostile()})

    executor = Executor([act], policy=ALLOWED, ledger=book)
    assert (await executor.run(call("act"), at())).output == "done"
    assert await book.state() == "committed"
    assert (await executor.run(call("act"), at())).output == "done"


# What it raises

ANYTHING = [
    ValueError("v"),
    RuntimeError("r"),
    SystemExit(3),
    GeneratorExit(),
    ExceptionGroup("many", [ValueError("a"), KeyError("b")]),
    BaseExceptionGroup("worse", [SystemExit(1), ValueError("a")]),
    StopIteration(1),
    StopAsyncIteration(),
    asyncio.CancelledError(),
    TimeoutError(),
    RecursionError(),
    MemoryError(),
    Exception(),
]


@pytest.mark.proves("PH-49", "PH-39")
@pytest.mark.parametrize("kind", ["async", "async after a wait", "sync", "inline"])
@pytest.mark.parametrize("error", ANYTHING, ids=lambda error: type(error).__name__)
async def test_whatever_a_handler_raises_is_a_result_with_a_fixed_text(
    error: BaseException, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def later() -> None:
        if kind == "async after a wait":
            await asyncio.sleep(0)
        raise error

    def now() -> None:
        raise error

    handler = later if kind.startswith("async") else now
    heard, book = Heard(), Book()
    reads = tool(name="look", read_only=True, inline=kind == "inline")(handler)
    acts = tool(name="act", inline=kind == "inline")(handler)
    executor = Executor([reads, acts], policy=ALLOWED, listeners=[heard], ledger=book)
    with caplog.at_level(logging.ERROR, "handrail"):
        looked = await executor.run(call("look", "c-1"), at())
        acted = await executor.run(call("act", "c-2"), at())

    assert (code_of(looked), code_of(acted)) == ("tool_execution_failed", "outcome_unknown")
    assert looked.error is not None
    assert looked.error.message == "`look` failed."
    assert await book.state("c-2") == "unknown"
    assert [event.result for event in heard.of(CallFinished)] == [looked, acted]
    assert "look failed" in caplog.text
    assert not executor.running_calls("s-1")
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()
    await asyncio.sleep(0)  # The caller's own task is as it was: nothing is left that would cancel it.


@pytest.mark.proves("PH-49")
def test_an_interrupt_of_the_program_is_recorded_and_passes_on() -> None:
    for read_only in (True, False):
        heard, book = Heard(), Book()

        @tool(read_only=read_only)
        async def act() -> None:
            """Act."""
            await asyncio.sleep(0)
            raise KeyboardInterrupt

        executor = Executor([act], policy=ALLOWED, listeners=[heard], ledger=book)
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(executor.run(call("act"), at()))

        assert heard.names[-1] == "CallFinished"
        assert asyncio.run(book.state()) == (None if read_only else "unknown")
        assert not executor.running_calls("s-1")


async def test_a_handler_that_cancels_its_own_task_leaves_an_effect_unknown_with_a_result() -> None:
    book = Book()

    @tool
    async def act() -> None:
        """Act."""
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    executor = Executor([act], policy=ALLOWED, ledger=book)
    result = await executor.run(call("act"), at())

    assert (code_of(result), await book.state()) == ("outcome_unknown", "unknown")
    assert not executor.running_calls("s-1")
    assert code_of(await executor.run(call("act", "c-2"), at(turn=2))) == "outcome_unknown"


async def test_a_read_that_cancels_its_own_task_cancels_its_caller_and_is_reported_as_over() -> None:
    heard = Heard()

    @tool(read_only=True)
    async def look() -> None:
        """Look."""
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    executor = Executor([look], listeners=[heard])
    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(executor.run(call("look"), at()))

    assert heard.names == ["CallStarted", "CallFinished"]
    assert not executor.running_calls("s-1")


@pytest.mark.proves("PH-49")
async def test_the_model_never_reads_what_an_exception_says(caplog: pytest.LogCaptureFixture) -> None:
    async def handler() -> None:
        raise ValueError("the password is hunter2")

    with caplog.at_level(logging.ERROR, "handrail"):
        result = await outcome(handler, read_only=True)

    assert "hunter2" not in result.for_model()
    assert "ValueError" in caplog.text


# Retries


def flaky(failures: int, error: Callable[[], BaseException] = lambda: ValueError("not yet")) -> Any:
    tries: list[int] = []

    async def act(context: ToolContext[Any]) -> str:
        tries.append(1)
        keys.append(context.idempotency_key)
        if len(tries) <= failures:
            raise error()
        return f"after {len(tries)}"

    keys: list[str | None] = []
    return act, tries, keys


AT_ONCE = RetryPolicy(max_attempts=3, initial_delay=0)


@pytest.mark.parametrize(
    ("options", "tries"),
    [({"read_only": True}, 3), ({"idempotent": True}, 3), ({}, 1)],
    ids=["read", "idempotent", "neither"],
)
async def test_only_what_is_safe_to_repeat_is_tried_again(options: dict[str, Any], tries: int) -> None:
    handler, tried, keys = flaky(2)
    executor = Executor([tool(name="act", **options)(handler)], policy=ALLOWED, retry=AT_ONCE)
    result = await executor.run(call("act"), at())

    assert len(tried) == tries
    assert result.output == ("after 3" if tries == 3 else None)
    assert len(set(keys)) == 1  # Downstream, every try is the same request.


async def test_a_retry_ends_after_its_attempts_and_what_is_not_retryable_is_not_retried() -> None:
    handler, tried, _ = flaky(9)
    executor = Executor([tool(name="act", read_only=True)(handler)], retry=AT_ONCE)
    assert code_of(await executor.run(call("act"), at())) == "tool_execution_failed"
    assert len(tried) == 3

    handler, tried, _ = flaky(9, lambda: ToolError("no"))
    executor = Executor([tool(name="act", read_only=True)(handler)], retry=AT_ONCE)
    assert code_of(await executor.run(call("act"), at())) == "tool_execution_failed"
    assert len(tried) == 1

    handler, tried, _ = flaky(1, lambda: ToolError("busy", retryable=True))
    executor = Executor([tool(name="act", read_only=True)(handler)], retry=AT_ONCE)
    assert (await executor.run(call("act"), at())).output == "after 2"


@pytest.mark.parametrize(
    ("options", "code"), [({"read_only": True}, "cancelled"), ({"idempotent": True}, "outcome_unknown")]
)
async def test_a_call_that_waits_for_its_next_try_can_be_cancelled(options: dict[str, Any], code: str) -> None:
    handler, tried, _ = flaky(9)
    executor = Executor(
        [tool(name="act", **options)(handler)],
        policy=ALLOWED,
        retry=RetryPolicy(max_attempts=3, initial_delay=60, max_delay=60),
    )
    running = asyncio.create_task(executor.run(call("act"), at()))
    while not tried:
        await asyncio.sleep(0)
    await quiet()
    assert executor.cancel("c-1", session_id="s-1")

    assert code_of(await running) == code
    assert len(tried) == 1


async def test_what_a_stopped_handler_says_is_not_tried_again() -> None:
    tries: list[int] = []

    @tool(read_only=True, timeout=0.01)
    async def act() -> None:
        """Act."""
        tries.append(1)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ToolError("It was busy.", code="busy", retryable=True) from None

    result = await Executor([act], retry=AT_ONCE).run(call("act"), at())

    assert (code_of(result), len(tries)) == ("busy", 1)


@pytest.mark.parametrize(
    ("options", "tries", "state"), [({"read_only": True}, 1, None), ({"idempotent": True}, 2, "committed")]
)
async def test_an_effect_whose_handler_does_not_know_what_happened_is_tried_again(
    options: dict[str, Any], tries: int, state: str | None
) -> None:
    handler, tried, _ = flaky(1, lambda: ToolError("Nobody knows.", code="outcome_unknown"))
    book = Book()
    executor = Executor([tool(name="act", **options)(handler)], policy=ALLOWED, retry=AT_ONCE, ledger=book)
    await executor.run(call("act"), at())

    assert (len(tried), await book.state()) == (tries, state)


@pytest.mark.parametrize("last", [ToolError("The account is closed."), CallPausedError("Wait.")])
async def test_a_retry_that_fails_does_not_say_that_the_first_attempt_did_nothing(last: ToolError) -> None:
    sent: list[str] = []

    @tool(idempotent=True)
    async def pay(invoice: str) -> str:
        """Pay."""
        if sent:
            raise last
        sent.append(invoice)
        raise ConnectionError("the answer was lost")

    book = Book()
    executor = Executor([pay], policy=ALLOWED, retry=AT_ONCE, ledger=book)
    result = await executor.run(call("pay", invoice="R-1"), at())

    assert (code_of(result), await book.state(), sent) == ("outcome_unknown", "unknown", ["R-1"])


async def test_a_retry_that_outlives_its_timeout_in_a_thread_does_not_say_that_the_first_attempt_did_nothing() -> None:
    tries: list[int] = []
    go = threading.Event()

    @tool(idempotent=True, timeout=0.05)
    def pay() -> str:
        """Pay."""
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("the answer was lost")
        go.wait()
        raise ToolError("The account is closed.")

    book = Book()
    executor = Executor([pay], policy=ALLOWED, retry=AT_ONCE, ledger=book)
    result = await executor.run(call("pay"), at())
    go.set()
    while (state := await book.state()) == "running":
        await asyncio.sleep(0)

    assert (code_of(result), state, len(tries)) == ("outcome_unknown", "unknown", 2)


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("options", [{"read_only": True}, {"idempotent": True}])
async def test_every_attempt_has_the_arguments_that_were_authorised(options: dict[str, Any], is_async: bool) -> None:
    given: list[list[str]] = []

    def act(invoices: list[str]) -> str:
        given.append(list(invoices))
        while invoices:
            invoices.pop()
        if len(given) < 3:
            raise ConnectionError("away")
        return "paid"

    async def act_async(invoices: list[str]) -> str:
        return act(invoices)

    executor = Executor([tool(name="act", **options)(act_async if is_async else act)], policy=ALLOWED, retry=AT_ONCE)
    result = await executor.run(call("act", invoices=["R-1", "R-2"]), at())

    assert (result.output, given) == ("paid", [["R-1", "R-2"]] * 3)


async def test_arguments_that_cannot_be_copied_are_not_tried_again() -> None:
    class Account(str):
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("not this one")

    tries: list[str] = []

    @tool(idempotent=True)
    async def act(account: Annotated[str, AfterValidator(Account)]) -> None:
        """Act."""
        tries.append(account)
        raise ConnectionError("away")

    result = await Executor([act], policy=ALLOWED, retry=AT_ONCE).run(call("act", account="a"), at())

    assert (code_of(result), tries) == ("outcome_unknown", ["a"])


def test_delays_double_up_to_a_maximum() -> None:
    retry = RetryPolicy(max_attempts=9, initial_delay=1, max_delay=5)
    assert [retry.delay_after(attempt) for attempt in (1, 2, 3, 4, 5)] == [1, 2, 4, 5, 5]


@pytest.mark.parametrize("wrong", [{"max_attempts": 0}, {"initial_delay": -1}, {"initial_delay": 2, "max_delay": 1}])
def test_a_retry_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        RetryPolicy(**wrong)


@warped
async def test_a_failure_that_says_when_to_try_again_is_waited_for_unless_that_is_too_long() -> None:
    tries: list[float] = []

    @tool(read_only=True)
    async def look(after: float) -> str:
        """Look."""
        tries.append(asyncio.get_running_loop().time())
        if len(tries) == 1:
            raise ToolError("Not now.", retryable=True, after=after)
        return "seen"

    executor = Executor(
        [look], retry=RetryPolicy(max_attempts=3, initial_delay=1, max_delay=30), timeouts=Timeouts(call=100)
    )

    async def run(after: float) -> tuple[bool, int, bool]:
        tries.clear()
        result = await executor.run(call("look", f"c-{after}", after=after), at())
        return result.ok, len(tries), len(tries) > 1 and tries[1] - tries[0] >= after

    assert await run(30) == (True, 2, True)
    assert await run(31) == (False, 1, False)
    assert await run(0.1) == (True, 2, True)


@pytest.mark.parametrize("refusal", ["", "closed today"])
async def test_a_hook_that_refuses_without_a_word_says_that_it_failed(refusal: str) -> None:
    class Closed:
        def before(self, call: Any, tool: Any, context: Any) -> None:
            raise ToolError(refusal) if refusal else ValueError

    @tool(read_only=True)
    async def look() -> str:
        """Look."""
        return "seen"

    result = await Executor([look], hooks=[Closed()]).run(call("look"), at())
    assert result.error is not None
    assert result.error.code == "refused_by_hook"
    assert result.error.message
    assert (refusal or "hook") in result.error.message


# What it waits for


@pytest.mark.parametrize("kind", ["inline", "sync", "async"])
async def test_a_call_that_is_cancelled_between_its_claim_and_its_handler_did_nothing(kind: str) -> None:
    ran: list[str] = []

    class Claiming(Book):
        """A ledger in which a claim takes its time."""

        is_immediate = False

        async def claim(self, entry: Any, **given: Any) -> bool:
            is_claimed = await super().claim(entry, **given)
            assert executor.cancel("c-1", session_id="s-1")
            return is_claimed

    def now() -> None:
        ran.append(kind)

    async def later() -> None:
        ran.append(kind)

    book = Claiming()
    made = tool(name="act", inline=kind == "inline")(later if kind == "async" else now)
    executor = Executor([made], policy=ALLOWED, ledger=book)

    assert code_of(await executor.run(call("act"), at())) == "cancelled"
    assert (ran, await book.state()) == ([], "failed")


@warped
async def test_a_handler_that_returns_what_never_comes_has_its_deadline() -> None:
    @tool(read_only=True, timeout=5)
    async def look() -> Any:
        """Look."""
        return asyncio.get_running_loop().create_future()

    @tool(timeout=5)
    async def act() -> Any:
        """Act."""
        return {"later": asyncio.get_running_loop().create_future()}

    executor = Executor([look, act], policy=ALLOWED)

    assert code_of(await executor.run(call("look"), at())) == "tool_timeout"
    assert code_of(await executor.run(call("act", "c-2"), at())) == "outcome_unknown"


@pytest.mark.parametrize("read_only", [True, False])
async def test_a_handler_that_waits_for_something_else_has_done_nothing_yet(read_only: bool) -> None:
    paused = [True]

    @tool(read_only=read_only)
    async def act() -> str:
        """Act."""
        if paused:
            raise CallPausedError("later")
        return "acted"

    book = Book()
    executor = Executor([act], policy=Policy([Rule.ask("act", by="operator")]), ledger=book)
    asked = await executor.run(call("act"), at())
    assert asked.approval is not None
    await executor.approvals.approve(asked.approval.token, by="operator", who="bo")
    assert code_of(await executor.run(call("act"), at())) == "in_progress"
    assert await book.state() == (None if read_only else "failed")
    paused.clear()

    result = await executor.run(call("act", "c-2"), at())
    assert (result.output or code_of(result)) == ("approval_required" if read_only else "acted")


@pytest.mark.parametrize("read_only", [True, False])
async def test_a_text_that_is_no_unicode_is_the_output_as_any_other(read_only: bool) -> None:
    async def handler() -> ToolResult:
        return ToolResult(output="a \ud800 b")

    result = await outcome(handler, read_only=read_only)

    assert (result.ok, result.output) == (True, "a \ud800 b")

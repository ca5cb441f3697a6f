"""What became of a call: `verify` is asked for the truth, and what cannot be written down may not happen."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from handrail import Executor, Policy, Rule, ToolContext, ToolError, ToolResult, tool
from handrail.core import CallFinished, CallStarted, Redactor
from handrail.execute import Entry, MemoryLedger, Timeouts
from handrail.store import open_store
from tests.execute.helpers import ALLOWED, Book, Heard, at, call, code_of
from tests.warped import warped

asked: list[tuple[dict[str, Any], str | None]] = []


@pytest.fixture(autouse=True)
def nothing_was_asked() -> None:
    asked.clear()


def act_with(truth: Any, *, is_async: bool = False, raises: Callable[[], BaseException] | None = None) -> Any:
    """An effect whose connection is lost, and whose `verify` says what it is told to."""

    def verify(arguments: dict[str, Any], context: ToolContext[Any]) -> Any:
        asked.append((arguments, context.idempotency_key))
        if isinstance(truth, BaseException):
            raise truth
        return truth

    async def verify_later(arguments: dict[str, Any], context: ToolContext[Any]) -> Any:
        await asyncio.sleep(0)
        return verify(arguments, context)

    @tool(verify=verify_later if is_async else verify, timeout=5)
    async def act(n: int) -> str:
        """Act."""
        if n:
            raise raises() if raises else ConnectionError("lost")
        return "acted"

    return act


both = pytest.mark.parametrize("is_async", [True, False])


@both
@pytest.mark.parametrize(
    ("truth", "output", "code", "state"),
    [
        (True, "`act` took effect.", None, "committed"),
        ("receipt 7", "receipt 7", None, "committed"),
        ({"receipt": 7}, {"receipt": 7}, None, "committed"),
        (0, 0, None, "committed"),
        ("", "", None, "committed"),
        (ToolResult(output="as a result"), "as a result", None, "committed"),
        (False, None, "tool_execution_failed", "failed"),
        (None, None, "outcome_unknown", "unknown"),
        (ValueError("cannot tell"), None, "outcome_unknown", "unknown"),
        (SystemExit(), None, "outcome_unknown", "unknown"),
        (asyncio.CancelledError(), None, "outcome_unknown", "unknown"),
    ],
)
async def test_verify_says_what_happened(truth: Any, output: Any, code: str | None, state: str, is_async: bool) -> None:
    book = Book()
    executor = Executor([act_with(truth, is_async=is_async)], policy=ALLOWED, ledger=book)
    result = await executor.run(call("act", n=1), at())

    assert (result.output, code_of(result), await book.state()) == (output, code, state)
    entry = await book.entry()
    assert entry is not None
    assert asked == [({"n": 1}, entry.idempotency_key)]


async def test_verify_is_not_asked_when_the_outcome_is_known() -> None:
    executor = Executor([act_with(True, raises=lambda: ToolError("No."))], policy=ALLOWED)
    await executor.run(call("act", "c-1", n=0), at())
    await executor.run(call("act", "c-2", n=1), at())

    assert not asked


@warped
async def test_verify_that_hangs_leaves_the_outcome_unknown() -> None:
    async def verify(arguments: dict[str, Any], context: ToolContext[Any]) -> None:
        await asyncio.Event().wait()

    @tool(verify=verify, timeout=0.02)
    async def act() -> None:
        """Act."""
        raise ConnectionError("lost")

    assert code_of(await Executor([act], policy=ALLOWED).run(call("act"), at())) == "outcome_unknown"


@both
@pytest.mark.parametrize(
    ("truth", "same_id", "code", "runs"),
    [
        (True, True, None, 1),
        (True, False, None, 1),
        (False, True, None, 2),
        (False, False, None, 2),
        (None, True, "outcome_unknown", 1),
        (None, False, "outcome_unknown", 1),
    ],
)
async def test_a_later_call_asks_what_became_of_the_earlier_one(
    truth: Any, same_id: bool, code: str | None, runs: int, is_async: bool
) -> None:
    told: list[Any] = [None]
    tries: list[int] = []

    def now(arguments: dict[str, Any], context: ToolContext[Any]) -> Any:
        return told[0]

    async def later(arguments: dict[str, Any], context: ToolContext[Any]) -> Any:
        return told[0]

    @tool(verify=later if is_async else now)
    async def act() -> str:
        """Act."""
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("lost")
        return "acted"

    book = Book()
    executor = Executor([act], policy=ALLOWED, ledger=book)
    assert code_of(await executor.run(call("act"), at())) == "outcome_unknown"
    told[0] = truth
    result = await executor.run(call("act", "c-1" if same_id else "c-2"), at(turn=2))

    assert (code_of(result), len(tries)) == (code, runs)
    assert result.origin == ("verified" if truth is True else "run")
    state = {True: "committed", False: "committed", None: "unknown"}[truth]
    assert await book.state("c-1") == state


async def test_many_later_calls_ask_together_and_one_of_them_runs() -> None:
    told: list[Any] = [None]
    tries: list[int] = []

    async def verify(arguments: dict[str, Any], context: ToolContext[Any]) -> Any:
        await asyncio.sleep(0)
        return told[0]

    @tool(verify=verify, concurrency_safe=True)
    async def act() -> str:
        """Act."""
        tries.append(1)
        await asyncio.sleep(0)
        if len(tries) == 1:
            raise ConnectionError("lost")
        return "acted"

    executor = Executor([act], policy=ALLOWED)
    await executor.run(call("act"), at())
    told[0] = False
    results = await executor.run_all([call("act", f"c-{n}") for n in range(2, 7)], at(turn=2))

    assert len(tries) == 2
    assert all("acted" in result.output for result in results)


# A ledger that is away


async def act_once(book: Book, id: str = "c-1", **options: Any) -> tuple[ToolResult, list[str], Heard]:
    ran: list[str] = []

    @tool
    async def act() -> str:
        """Act."""
        ran.append(id)
        return "acted"

    heard = Heard()
    executor = Executor([act], policy=ALLOWED, ledger=book, listeners=[heard], **options)
    return await executor.run(call("act", id), at()), ran, heard


@pytest.mark.parametrize("what", ["recall", "claim"])
async def test_what_cannot_be_written_down_does_not_happen(what: str) -> None:
    book = Book(can_claim_new=what == "claim")
    book.away = {what: -1}
    result, ran, heard = await act_once(book)

    assert result.error is not None
    assert (result.error.code, result.error.retryable, ran) == ("unavailable", True, [])
    assert ("Nothing was done" in result.error.message) is (what == "claim")  # Not read, it may have been done before.
    assert not heard.of(CallStarted)
    assert len(heard.of(CallFinished)) == 1
    book.away = {}
    result, ran, _ = await act_once(book, "c-2")
    assert (result.output, ran) == ("acted", ["c-2"])


async def test_a_claim_that_was_written_although_its_response_was_lost_is_taken_back() -> None:
    book = Book()
    book.away, book.forgets = {"claim": 1}, True
    result, ran, _ = await act_once(book)
    assert (code_of(result), ran, await book.state()) == ("unavailable", [], "failed")
    book.forgets = False
    again, ran, _ = await act_once(book, "c-2")

    assert (again.output, ran) == ("acted", ["c-2"])


async def test_a_record_is_tried_again_until_the_ledger_is_back() -> None:
    book = Book()
    book.away = {"settle": 2}
    result, ran, _ = await act_once(book)

    assert (result.output, ran, await book.state()) == ("acted", ["c-1"], "committed")
    assert result.recorded is True


@warped
async def test_an_effect_whose_record_cannot_be_written_is_reported_and_never_run_again() -> None:
    book = Book()
    book.away = {"settle": -1}
    started = asyncio.get_running_loop().time()
    result, ran, _ = await act_once(book)

    assert asyncio.get_running_loop().time() - started == pytest.approx(1.25)  # It was tried four times.
    assert (result.output, result.recorded, ran) == ("acted", False, ["c-1"])
    assert await book.state() == "running"
    book.away = {}
    again, ran, _ = await act_once(
        book, "c-2", timeouts=Timeouts(in_progress=0)
    )  # Another executor, as after a restart.
    assert (code_of(again), ran) == ("in_progress", [])


async def test_a_truth_that_cannot_be_written_down_is_not_acted_on() -> None:
    told: list[Any] = [None]
    tries: list[int] = []

    @tool(verify=lambda arguments, context: told[0])
    async def act() -> None:
        """Act."""
        tries.append(1)
        raise ConnectionError("lost")

    book = Book()
    executor = Executor([act], policy=ALLOWED, ledger=book)
    await executor.run(call("act"), at())
    told[0], book.away = False, {"take_over": -1}

    assert code_of(await executor.run(call("act", "c-2"), at(turn=2))) == "outcome_unknown"
    assert len(tries) == 1


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("what", ["ask", "consume"])
async def test_approvals_that_are_away_mean_that_nothing_runs(what: str, read_only: bool) -> None:
    from handrail.authorize import MemoryApprovals

    class Away(MemoryApprovals):
        away = False

        async def ask(self, approval: Any) -> Any:
            if self.away and what == "ask":
                raise ConnectionError("away")
            return await super().ask(approval)

        async def consume(self, token: str, *, now: float, call_id: str | None = None) -> bool:
            if self.away and what == "consume":
                raise ConnectionError("away")
            return await super().consume(token, now=now, call_id=call_id)

    ran: list[int] = []

    @tool(read_only=read_only)
    async def act() -> str:
        """Act."""
        ran.append(1)
        return "acted"

    approvals = Away()
    executor = Executor([act], policy=Policy([Rule.ask("act", by="operator")]), approvals=approvals)
    question = await executor.run(call("act"), at())
    await approvals.approve(question.approval.token, by="operator", who="ann")
    approvals.away = True
    assert code_of(await executor.run(call("act"), at())) == "unavailable"
    assert not ran
    approvals.away = False
    assert (await executor.run(call("act", "c-2"), at())).output == "acted"


async def test_a_claim_that_always_fails_without_a_reason_comes_to_an_end() -> None:
    class Odd(Book):
        async def claim(self, entry: Any, **given: Any) -> bool:
            return False

    result, ran, _ = await act_once(Odd())
    assert (code_of(result), ran) == ("unavailable", [])


@pytest.mark.parametrize("written", [True, False])
async def test_a_record_holds_what_the_model_read_and_what_is_written_is_redacted(
    written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryLedger, "is_written", written)
    book = Book()

    @tool
    async def act() -> ToolResult:
        """Act."""
        return ToolResult(
            output={"token": "sk-secret", "n": 1}, context="mine", metadata={"password": "hunter2", "n": 2}
        )

    executor = Executor([act], policy=ALLOWED, ledger=book)
    first = await executor.run(call("act"), at())
    again = await executor.run(call("act"), at())
    entry = await book.entry()

    assert first.output == {"token": "sk-secret", "n": 1}
    assert entry is not None
    assert ("sk-secret" in repr(entry)) is not written
    assert (again.for_model() == first.for_model()) is not written
    assert "hunter2" not in repr(entry)
    assert "mine" not in repr(entry)
    assert (again.context, again.metadata["n"]) == (None, 2)


@pytest.mark.parametrize("size", [100, 50_000])
async def test_a_long_output_is_redacted_in_a_thread_so_that_the_loop_goes_on(size: int, tmp_path: Path) -> None:
    threads: list[int] = []

    class Watched(Redactor):
        def output(self, output: Any) -> str:
            threads.append(threading.get_ident())
            return super().output(output)

        def arguments(self, arguments: Any) -> Any:
            threads.append(threading.get_ident())
            return super().arguments(arguments)

    @tool(max_output_chars=100_000)
    async def act(text: str) -> str:
        """Act."""
        return text

    async with open_store(f"sqlite:///{tmp_path}/a.db") as store:
        executor = Executor([act], policy=ALLOWED, store=store, redactor=Watched(), scope="session")
        result = await executor.run(call("act", text="4 " * (size // 2)), at())
        again = await executor.run(call("act", text="4 " * (size // 2)), at())

    assert (result.ok, again.origin, again.output) == (True, "replayed", result.output)
    assert len(threads) == 3  # Its arguments, its output, and the arguments of the call that came again.
    assert (threading.get_ident() in threads) == (size < 10_000)


async def test_what_verify_said_is_recorded_when_it_is_something_new() -> None:
    class Counting(Book):
        """A ledger that keeps what it is told about doubts."""

        def __init__(self) -> None:
            super().__init__()
            self.answers: list[Any] = []

        async def record_answer(self, entry: Any, answer: Any) -> None:
            self.answers.append(answer)
            await super().record_answer(entry, answer)

    says: list[Any] = [None]

    def verify(arguments: dict[str, Any], context: ToolContext[Any]) -> None:
        if says[0] is not None:
            raise says[0]

    @tool(verify=verify)
    async def act() -> None:
        """Act."""
        raise ConnectionError("lost")

    book = Counting()
    executor = Executor([act], policy=ALLOWED, ledger=book)
    for error in (None, None, ValueError("away"), ValueError("away"), None):
        says[0] = error
        assert code_of(await executor.run(call("act"), at())) == "outcome_unknown"

    assert book.answers == ["failed", "cannot_tell"]  # The first one was settled with its answer.


@pytest.mark.parametrize("ends", ["never", "with an error", "with a value"])
@warped
async def test_what_verify_returns_is_collected_and_what_cannot_be_leaves_the_outcome_unknown(ends: str) -> None:
    async def find() -> str:
        if ends == "never":
            await asyncio.get_running_loop().create_future()
        if ends == "with an error":
            raise ConnectionError("away")
        return "7"

    @tool(verify=lambda arguments, context: {"receipts": (find() for _ in range(1))}, timeout=5)
    async def act() -> None:
        """Act."""
        raise ConnectionError("lost")

    book = Book()
    executor = Executor([act], policy=ALLOWED, ledger=book)
    result = await executor.run(call("act"), at())

    if ends == "with a value":
        assert (result.output, await book.state()) == ({"receipts": ["7"]}, "committed")
    else:
        assert (code_of(result), await book.state()) == ("outcome_unknown", "unknown")


@pytest.mark.parametrize("size", [100, 50_000])
async def test_long_metadata_is_redacted_in_a_thread_so_that_the_loop_goes_on(size: int) -> None:
    threads: list[int] = []

    class Watched(Redactor):
        def value(self, value: Any, **given: Any) -> Any:
            if "note" in value:
                threads.append(threading.get_ident())
            return super().value(value, **given)

    @tool
    async def act() -> ToolResult:
        """Act."""
        return ToolResult(output="acted", metadata={"note": "4 " * (size // 2)})

    class Written(Book):
        is_written = True

    executor = Executor([act], policy=ALLOWED, ledger=Written(), redactor=Watched(), scope="session")
    assert (await executor.run(call("act"), at())).ok

    assert [thread == threading.get_ident() for thread in threads] == [size < 10_000]


async def test_a_doubt_says_until_when_its_handler_may_still_run() -> None:
    @tool(timeout=100)
    async def act() -> None:
        """Act."""
        raise ConnectionError("lost")

    book = Book()
    executor = Executor([act], policy=ALLOWED, ledger=book, timeouts=Timeouts(lease_grace=11))
    await executor.run(call("act"), at())
    [ended] = await executor.doubts()
    entry = await book.entry()
    assert entry is not None
    book.rewrite(structs.replace(entry, state="running", lease_until=1.0))
    [may_run] = await executor.doubts()

    assert ended.run_until == ended.claimed_at
    assert may_run.run_until == pytest.approx(ended.claimed_at + 111)


@pytest.mark.parametrize("is_immediate", [False, True])
async def test_a_ledger_that_raises_a_cancellation_of_its_own_when_it_settles_hides_no_result(
    is_immediate: bool,
) -> None:
    class Cancelling(Book):
        async def settle(self, entry: Entry, **given: Any) -> None:
            raise asyncio.CancelledError

    book = Cancelling()
    book.is_immediate = is_immediate  # type: ignore[misc]
    executor = Executor([act_with(None)], policy=ALLOWED, ledger=book, timeouts=Timeouts(overhead=0.2))

    result = await executor.run(call("act", n=0), at())

    assert (result.output, result.recorded) == ("acted", False)
    assert not executor.running_calls("s-1")


@pytest.mark.parametrize("truth", [True, False, ValueError("cannot tell")], ids=["yes", "no", "failed"])
@pytest.mark.parametrize("how", ["run", "look_up"])
@warped
async def test_a_doubt_that_cannot_be_written_down_delays_its_answer_no_longer_than_anything_else(
    how: str, truth: Any
) -> None:
    class Hanging(Book):
        is_immediate = False
        hangs = False

        async def settle(self, entry: Entry, **given: Any) -> None:
            if self.hangs:
                await asyncio.Event().wait()
            await super().settle(entry, **given)

        async def record_answer(self, entry: Entry, answer: Any) -> None:
            await asyncio.Event().wait()

    def verify(arguments: dict[str, Any], context: ToolContext[Any]) -> Any:
        if not book.hangs:
            return None
        if isinstance(truth, Exception):
            raise truth
        return truth

    @tool(verify=verify)
    async def act() -> str:
        """Act."""
        raise ConnectionError("lost")

    book = Hanging()
    executor = Executor([act], policy=ALLOWED, ledger=book, timeouts=Timeouts(overhead=5))
    assert code_of(await executor.run(call("act"), at())) == "outcome_unknown"
    book.hangs = True
    result = await asyncio.wait_for(getattr(executor, how)(call("act"), at()), 60)

    if truth is True:
        assert (result.output, result.recorded) == ("`act` took effect.", False)
    else:  # Nothing happened, and another attempt failed, too: or nobody knows.
        assert code_of(result) == ("tool_execution_failed" if (truth, how) == (False, "run") else "outcome_unknown")

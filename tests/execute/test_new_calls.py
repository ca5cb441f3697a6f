"""A call that nobody has to be asked about is claimed without being looked up; what is known is found all the same."""

import asyncio
from typing import Any

import pytest

from handrail import Decision, Executor, Policy, Rule, ToolError, ToolResult, tool
from handrail.core import CallStarted, DecisionMade
from handrail.execute import Entry, Limits, Recalled, Timeouts
from tests.execute.helpers import ALLOWED, Book, Heard, at, call, code_of, quiet
from tests.warped import warped


class NotedBook(Book):
    """Notes how it was asked."""

    def __init__(self, *, can_claim_new: bool = True) -> None:
        super().__init__(can_claim_new=can_claim_new)
        self.asked: list[str] = []

    async def recall(self, **given: Any) -> Recalled:
        self.asked.append("recall")
        return await super().recall(**given)

    async def claim(self, entry: Entry, **given: Any) -> bool:
        self.asked.append("claim new" if given.get("is_new") else "claim")
        return await super().claim(entry, **given)


class Desk:
    """A tool that notes its runs, and does what it is told to."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.raises: Exception | None = None

        @tool(key=("invoice",))
        async def pay(invoice: str, amount: int = 1) -> str:
            """Pay."""
            self.runs.append(invoice)
            if self.raises is not None:
                raise self.raises
            return f"paid {invoice}"

        self.pay = pay

    def executor(self, book: Book, **options: Any) -> Executor:
        return Executor([self.pay], **{"policy": ALLOWED, **options}, ledger=book)


async def test_a_new_call_is_one_step_of_the_ledger_before_it_runs() -> None:
    desk, book = Desk(), NotedBook()
    assert (await desk.executor(book).run(call("pay", invoice="R-1"), at())).ok
    assert (book.asked, desk.runs) == (["claim new"], ["R-1"])


async def test_a_ledger_that_cannot_claim_new_calls_is_asked_about_each_first() -> None:
    desk, book = Desk(), NotedBook(can_claim_new=False)
    assert (await desk.executor(book).run(call("pay", invoice="R-1"), at())).ok
    assert (book.asked, desk.runs) == (["recall", "claim"], ["R-1"])


class Waves:
    """A hook that sees what will run."""

    def authorised(self, call: Any, tool: Any, decision: Decision, context: Any) -> None: ...


@pytest.mark.parametrize(
    "options",
    [
        {"policy": Policy([Rule.allow("pay", where={"invoice": {"from": ["customer"]}})]), "mode": "observe"},
        {"hooks": [Waves()]},
        {"limits": Limits(max_concurrent=5)},
        {"policy": Policy([Rule.deny("pay")]), "mode": "observe"},
    ],
    ids=["an origin", "a hook", "a limit", "observed"],
)
async def test_a_call_that_something_else_has_a_say_in_is_looked_up_first(options: dict[str, Any]) -> None:
    desk, book = Desk(), NotedBook()
    assert (await desk.executor(book, **options).run(call("pay", invoice="R-1"), at())).ok
    assert (book.asked, desk.runs) == (["recall", "claim"], ["R-1"])


async def test_what_is_known_is_answered_as_if_it_had_been_looked_up_first() -> None:
    desk, heard = Desk(), Heard()
    executor = desk.executor(Book(), listeners=[heard])
    first = await executor.run(call("pay", "c-1", invoice="R-1"), at())

    again = await executor.run(call("pay", "c-1", invoice="R-1"), at())
    other_id = await executor.run(call("pay", "c-2", invoice="R-1"), at())
    other_arguments = await executor.run(call("pay", "c-3", invoice="R-1", amount=2), at())
    same_id = await executor.run(call("pay", "c-1", invoice="R-2"), at())
    later = await executor.run(call("pay", "c-4", invoice="R-1"), at(turn=2))

    assert [item.origin for item in (first, again, other_id)] == ["run", "replayed", "replayed"]
    assert (again.decision, other_id.decision) == (None, None)
    assert [code_of(item) for item in (other_arguments, same_id, later)] == [
        "duplicate_call",
        "duplicate_call",
        "approval_required",
    ]
    assert desk.runs == ["R-1"]
    assert len(heard.of(CallStarted)) == 1
    assert len(heard.of(DecisionMade)) <= 1


async def test_what_failed_before_is_tried_again_and_counted() -> None:
    desk, book = Desk(), Book()
    executor = desk.executor(book)
    desk.raises = ToolError("closed")
    await executor.run(call("pay", "c-1", invoice="R-1"), at())
    desk.raises = None

    assert (await executor.run(call("pay", "c-2", invoice="R-1"), at())).ok
    entry = await book.entry("c-2")
    assert entry is not None
    assert (entry.number, entry.full_number) == (1, 1)


async def test_of_two_calls_of_one_effect_at_once_one_runs_and_the_other_joins() -> None:
    desk, book = Desk(), Book()
    executors = [desk.executor(book) for _ in range(2)]
    results = await asyncio.gather(
        *(one.run(call("pay", f"c-{n}", invoice="R-1"), at()) for n, one in enumerate(executors))
    )
    assert (len(desk.runs), [result.ok for result in results]) == (1, [True, True])


class RemoteBook(Book):
    """A ledger whose claims are undone after the call has its result."""

    is_immediate = False


# The ledger fails.


async def test_what_was_done_is_told_while_nothing_can_be_written() -> None:
    desk, book = Desk(), Book()
    executor = desk.executor(book)
    await executor.run(call("pay", "c-1", invoice="R-1"), at())
    book.away = {"claim": -1}

    again = await executor.run(call("pay", "c-1", invoice="R-1"), at())
    other_id = await executor.run(call("pay", "c-2", invoice="R-1"), at())
    new = await executor.run(call("pay", "c-3", invoice="R-3"), at())
    later = await executor.run(call("pay", "c-4", invoice="R-1"), at(turn=2))

    assert [item.origin for item in (again, other_id)] == ["replayed", "replayed"]
    assert [code_of(item) for item in (new, later)] == ["unavailable", "unavailable"]
    assert desk.runs == ["R-1"]


async def test_it_is_not_said_that_nothing_was_done_if_nobody_could_look() -> None:
    desk, book = Desk(), Book()
    executor = desk.executor(book)
    await executor.run(call("pay", "c-1", invoice="R-1"), at())
    book.away = {"claim": -1, "recall": -1}

    again = await executor.run(call("pay", "c-1", invoice="R-1"), at())
    assert code_of(again) == "unavailable"
    assert "Nothing was done" not in again.for_model()


async def test_a_claim_that_was_written_although_its_answer_was_lost_is_undone() -> None:
    desk, book = Desk(), Book()
    executor = desk.executor(book)
    book.away, book.forgets = {"claim": 1}, True
    lost = await executor.run(call("pay", "c-1", invoice="R-1"), at())
    book.forgets = False

    assert (code_of(lost), await book.state(), desk.runs) == ("unavailable", "failed", [])
    assert "Nothing was done" in lost.for_model()
    assert (await executor.run(call("pay", "c-2", invoice="R-1"), at())).ok


async def test_a_doubt_stays_one_when_its_call_comes_again_and_cannot_be_claimed() -> None:
    desk, book = Desk(), Book()
    executor = desk.executor(book)
    desk.raises = ConnectionError("the bank hung up")
    unknown = await executor.run(call("pay", "c-1", invoice="R-1"), at())
    book.away = {"claim": -1}

    again = await executor.run(call("pay", "c-1", invoice="R-1"), at())
    assert [code_of(item) for item in (unknown, again)] == ["outcome_unknown", "outcome_unknown"]
    assert (await book.state(), desk.runs) == ("unknown", ["R-1"])


@warped
async def test_what_runs_stays_running_when_its_call_comes_again_and_cannot_be_claimed() -> None:
    desk, book = Desk(), Book()
    executor = desk.executor(book, timeouts=Timeouts(overhead=0.05))
    book.away = {"settle": -1}  # Nobody hears how it ended.
    ended = await executor.run(call("pay", "c-1", invoice="R-1"), at())
    assert (ended.ok, ended.recorded, await book.state()) == (True, False, "running")
    book.away = {"claim": -1}

    again = await executor.run(call("pay", "c-1", invoice="R-1"), at())
    await quiet()
    assert (again.ok, await book.state(), desk.runs) == (False, "running", ["R-1"])


async def test_a_call_that_was_taken_over_is_looked_up_when_it_comes_again() -> None:
    book, runs = Book(), list[int]()

    @tool(idempotent=True)
    async def pay(invoice: str) -> ToolResult | str:
        """Pay."""
        runs.append(1)
        raise ConnectionError("the bank hung up")

    first, second = (Executor([pay], policy=ALLOWED, ledger=book) for _ in range(2))
    await first.run(call("pay", "c-1", invoice="R-1"), at())
    await second.run(call("pay", "c-2", invoice="R-1"), at())  # It takes the entry of c-1 over.
    assert ((await book.entry("c-1")), await book.entry("c-2")) != (None, None)
    book.away = {"claim": -1}

    assert code_of(await second.run(call("pay", "c-1", invoice="R-1"), at())) == "outcome_unknown"
    assert await book.state("c-1") == "unknown"


@warped
@pytest.mark.parametrize("is_written", [True, False])
async def test_a_call_whose_claim_is_being_undone_waits_until_that_is_over(is_written: bool) -> None:
    desk, book = Desk(), RemoteBook()
    executor = desk.executor(book, timeouts=Timeouts(overhead=60, in_progress=0.01))
    book.away, book.forgets = {"claim": 1, "settle": 2}, is_written
    lost = await executor.run(call("pay", "c-1", invoice="R-1"), at())
    assert (code_of(lost), await book.state()) == ("unavailable", "running" if is_written else None)
    book.forgets = False

    again = await executor.run(call("pay", "c-1", invoice="R-1"), at())
    if is_written:  # It may still run, for all that was read.
        assert (code_of(again), desk.runs) == ("in_progress", [])
        await asyncio.sleep(10)
        again = await executor.run(call("pay", "c-2", invoice="R-1"), at())
    assert (again.ok, desk.runs, await book.state(again.call_id)) == (True, ["R-1"], "committed")


@warped
async def test_a_call_whose_claim_cannot_be_undone_in_time_is_unavailable() -> None:
    desk, book = Desk(), RemoteBook()
    executor = desk.executor(book, timeouts=Timeouts(overhead=0.1))
    book.away = {"claim": 1, "settle": 3}
    results = [await executor.run(call("pay", "c-1", invoice="R-1"), at()) for _ in range(2)]
    assert ([code_of(result) for result in results], desk.runs) == (["unavailable"] * 2, [])

    await asyncio.sleep(10)
    assert (await executor.run(call("pay", "c-1", invoice="R-1"), at())).ok


@warped
async def test_a_call_whose_claim_is_being_undone_is_not_taken_over_meanwhile() -> None:
    book, runs = RemoteBook(), list[int]()

    @tool(idempotent=True)
    async def pay(invoice: str) -> str:
        """Pay."""
        runs.append(1)
        raise ConnectionError("the bank hung up")

    first, second = (Executor([pay], policy=ALLOWED, ledger=book) for _ in range(2))
    await first.run(call("pay", "c-1", invoice="R-1"), at())
    book.away = {"claim": 1, "settle": 2}
    await second.run(call("pay", "c-1", invoice="R-1"), at())
    assert code_of(await second.run(call("pay", "c-2", invoice="R-1"), at())) == "outcome_unknown"
    assert (len(runs), await book.state("c-1")) == (1, "unknown")

    await asyncio.sleep(10)
    await second.run(call("pay", "c-2", invoice="R-1"), at())
    assert (len(runs), await book.state("c-1")) == (2, "unknown")

"""At most once, in memory: every row of the state table, in both directions."""

import asyncio
import math
import time
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr

from handrail import Executor, Policy, Rule, Tool, ToolCall, ToolContext, ToolError, ToolResult, tool
from handrail.authorize import MemoryApprovals
from handrail.core import CallFinished, CallIgnored, CallStarted
from handrail.core.failure_results import format_time
from handrail.execute import Limits, Timeouts
from tests.execute.helpers import ALLOWED, Book, Heard, Held, at, call, code_of, quiet
from tests.tools import pay
from tests.warped import warped


class Bank:
    """Pays, and notes every payment with the key that it was handed."""

    def __init__(self, **options: Any) -> None:
        self.paid: list[tuple[str, int]] = []
        self.keys: list[str | None] = []
        self.tries = 0
        self.fails: Callable[[], BaseException] | None = None
        self.slow: Held | None = None
        self.heard, self.book = Heard(), Book()
        executor = {name: options.pop(name) for name in ("policy", "timeouts") if name in options}

        async def pay(invoice: str, amount: int, context: ToolContext[Any], note: str = "") -> str:
            """Pay an invoice."""
            self.tries += 1
            self.keys.append(context.idempotency_key)
            if self.slow is not None:
                await self.slow()
            if self.fails is not None:
                raise self.fails()
            self.paid.append((invoice, amount))
            return f"Paid {amount}."

        made: Tool[..., Any] = tool(name="pay", **{"key": "invoice", **options})(pay)
        self.executor = Executor([made], ledger=self.book, listeners=[self.heard], **{"policy": ALLOWED, **executor})

    async def pay(self, id: str, invoice: str = "i-1", amount: int = 5, turn: int = 1, **where: Any) -> ToolResult:
        return await self.executor.run(call("pay", id, invoice=invoice, amount=amount), at(turn=turn, **where))


# The same id


async def test_a_call_runs_and_its_record_says_so() -> None:
    bank = Bank()
    result = await bank.pay("c-1")

    assert (result.output, bank.paid) == ("Paid 5.", [("i-1", 5)])
    entry = await bank.book.entry()
    assert entry is not None
    assert (entry.state, entry.tool, entry.turn, entry.repeat) == ("committed", "pay", 1, 0)
    assert bank.keys == [entry.idempotency_key]
    assert "i-1" not in f"{entry.key} {entry.identity}"


class Day(BaseModel, frozen=True):
    number: int
    rooms: frozenset[int] = frozenset({1})


@pytest.mark.parametrize("key", [None, "days"])
@pytest.mark.parametrize(
    ("kind", "days"),
    [
        (set[int], [3, 11]),
        (set[Day], [{"number": 3, "rooms": [3, 11]}, {"number": 11}]),
        (list[set[Day]], [[{"number": 3}, {"number": 11}]]),
        (dict[str, frozenset[Day]], {"a": [{"number": 3}, {"number": 11}]}),
    ],
)
async def test_the_same_set_is_the_same_effect_however_python_orders_it(kind: Any, days: Any, key: str | None) -> None:
    """3 and 11 collide in a small set, so that they stay in the order of insertion, as text does with a hash seed."""
    booked: list[Any] = []

    async def book(days: kind) -> str:  # pyright: ignore[reportInvalidTypeForm]
        """Book rooms."""
        booked.append(days)
        return "Booked."

    executor = Executor([tool(key=key)(book)], policy=ALLOWED)
    for id, sent in (("c-1", days), ("c-2", turn_lists(days)), ("c-3", days)):
        await executor.run(call("book", id, days=sent), at())

    assert len(booked) == 1


def turn_lists(value: Any) -> Any:
    """A JSON value with all of its lists in the opposite order."""
    if isinstance(value, dict):
        return {name: turn_lists(child) for name, child in value.items()}
    return [turn_lists(child) for child in value[::-1]] if isinstance(value, list) else value


@pytest.mark.proves("PH-33")
@pytest.mark.parametrize("turn", [1, 2, 9])
async def test_the_same_call_again_has_the_recorded_result(turn: int) -> None:
    bank = Bank()
    await bank.pay("c-1")
    again = await bank.pay("c-1", turn=turn)

    assert (again.output, again.origin) == ("Paid 5.", "replayed")
    assert len(bank.paid) == 1
    (ignored,) = bank.heard.of(CallIgnored)
    assert (ignored.reason, ignored.call.id) == ("already_executed", "c-1")
    assert len(bank.heard.of(CallFinished)) == 1


async def test_a_recorded_failure_is_the_result_of_the_same_call() -> None:
    bank = Bank()
    bank.fails = lambda: ToolError("Closed.", code="closed")
    assert code_of(await bank.pay("c-1")) == "closed"
    bank.fails = None
    again = await bank.pay("c-1")

    assert (code_of(again), again.origin, bank.paid) == ("closed", "replayed", [])


@pytest.mark.proves("PH-32")
async def test_the_same_call_joins_the_one_that_runs() -> None:
    bank = Bank()
    slow = bank.slow = Held()
    both = [asyncio.create_task(bank.pay("c-1")) for _ in range(3)]
    await slow.begun.wait()
    await quiet()
    slow.go.set()

    assert [(await item).output for item in both] == ["Paid 5."] * 3
    assert len(bank.paid) == 1
    assert [event.reason for event in bank.heard.of(CallIgnored)] == ["already_pending"] * 2


@pytest.mark.parametrize("state", ["committed", "failed", "running", "unknown"])
async def test_an_id_that_was_another_call_is_refused_whatever_became_of_it(state: str) -> None:
    bank = Bank()
    slow = Held()
    if state == "running":
        bank.slow = slow
    bank.fails = {"failed": lambda: ToolError("No."), "unknown": lambda: ValueError("?")}.get(state)
    first = asyncio.create_task(bank.pay("c-1"))
    await (slow.begun.wait() if state == "running" else asyncio.wait([first]))
    bank.fails = None
    tries = bank.tries

    assert code_of(await bank.pay("c-1", amount=6)) == "duplicate_call"
    assert code_of(await bank.pay("c-1", invoice="i-2")) == "duplicate_call"
    assert bank.tries == tries
    slow.go.set()
    await first


# A new id, the same effect


async def test_the_same_effect_in_the_same_turn_is_done_once_and_says_so() -> None:
    bank = Bank()
    await bank.pay("c-1")
    again = await bank.pay("c-2")

    assert again.output == "Paid 5."
    assert again.for_model().startswith("[Already done at ")
    assert again.for_model().endswith("\nPaid 5.")
    assert (again.call_id, again.origin, len(bank.paid)) == ("c-2", "replayed", 1)


async def test_the_same_effect_while_it_runs_is_joined() -> None:
    bank = Bank(concurrency_safe=True)
    slow = bank.slow = Held()
    first = asyncio.create_task(bank.pay("c-1"))
    await slow.begun.wait()
    second = asyncio.create_task(bank.pay("c-2", turn=2))
    await quiet()
    slow.go.set()

    assert [((await item).output, (await item).call_id) for item in (first, second)] == [
        ("Paid 5.", "c-1"),
        ("Paid 5.", "c-2"),
    ]
    joined = await second
    assert (joined.origin, joined.metadata["joined"]) == ("joined", "c-1")
    assert len(bank.paid) == 1


async def test_no_intended_second_payment_is_swallowed() -> None:
    """The other direction: what is wanted twice happens twice, each time as a request of its own."""
    bank = Bank()
    await bank.pay("c-1", turn=1)
    asked = await bank.pay("c-2", turn=2, customer_id=None)
    assert code_of(asked) == "approval_required"
    assert "already done at" in (asked.error.message if asked.error else "")
    await bank.executor.approvals.approve(asked.approval.token, by="customer", who="c")
    assert code_of(await bank.pay("c-2", turn=2)) == "approval_required"  # Not in the same turn.
    done = await bank.pay("c-2", turn=3)

    assert done.output == "Paid 5."
    assert len(bank.paid) == 2
    assert len(set(bank.keys)) == 2
    asked = await bank.pay("c-3", turn=4)
    await bank.executor.approvals.approve(asked.approval.token, by="customer", who="c")
    assert (await bank.pay("c-3", turn=5)).output == "Paid 5."
    assert len(set(bank.keys)) == 3


@pytest.mark.parametrize(
    "other",
    [{"invoice": "i-2"}, {"tenant_id": "globex"}, {"customer_id": "c-9"}, {"session_id": "s-2"}],
    ids=lambda other: next(iter(other)),
)
async def test_another_effect_is_another_effect(other: dict[str, Any]) -> None:
    bank = Bank()
    await bank.pay("c-1")
    second = await bank.pay("c-2", **other)

    assert (second.output, len(bank.paid), len(set(bank.keys))) == ("Paid 5.", 2, 2)


async def test_a_customers_effect_is_the_same_in_all_of_their_sessions() -> None:
    bank = Bank()
    await bank.pay("c-1", session_id="s-1", customer_id="ann")
    again = await bank.pay("c-1", session_id="s-2", customer_id="ann")

    assert (code_of(again), len(bank.paid)) == ("approval_required", 1)


@pytest.mark.parametrize(
    ("key", "second", "runs"),
    [
        (None, {"amount": 6}, 2),
        (None, {}, 1),
        ("invoice", {"amount": 6}, 1),
        (("invoice", "amount"), {"amount": 6}, 2),
        (lambda arguments: arguments["invoice"].lower(), {"invoice": "I-1"}, 1),
        (lambda arguments: {"b": arguments["amount"], "a": None}, {"invoice": "i-9"}, 1),
    ],
)
async def test_the_key_says_what_the_same_effect_is(key: Any, second: dict[str, Any], runs: int) -> None:
    bank = Bank(key=key)
    await bank.pay("c-1")
    await bank.pay("c-2", **second)

    assert len(bank.paid) == runs


@pytest.mark.parametrize(
    ("call_id", "text"),
    [("c-1", '{ "amount": 5.0, "invoice": "i-1"}'), ("c-2", '{"note": "", "amount": 5, "invoice": "i-1"}')],
)
async def test_defaults_spelling_and_the_order_of_arguments_make_no_difference(call_id: str, text: str) -> None:
    bank = Bank(key=None)
    await bank.pay("c-1")

    again = await bank.executor.run(ToolCall(id=call_id, name="pay", arguments_json=text), at())

    assert (again.origin, len(bank.paid)) == ("replayed", 1)


@pytest.mark.parametrize("key", [None, "card"])
async def test_two_secrets_are_two_effects(key: str | None) -> None:
    charged: list[str] = []

    @tool(key=key)
    async def charge(card: SecretStr) -> str:
        """Charge a card."""
        charged.append(card.get_secret_value())
        return "charged"

    executor = Executor([charge], policy=ALLOWED)
    for n, card in enumerate(("4111", "4222")):
        await executor.run(call("charge", f"c-{n}", card=card), at())
    assert charged == ["4111", "4222"]
    await executor.run(call("charge", "c-9", card="4111"), at())
    assert len(charged) == 2


def broken_key(arguments: Any) -> object:
    raise KeyError("nothing")


@pytest.mark.parametrize("option", ["key", "lock_key"])
@pytest.mark.parametrize("key", [broken_key, lambda arguments: object()])
async def test_a_key_that_cannot_be_made_means_that_nothing_runs(option: str, key: Any) -> None:
    bank = Bank(**{"key": None, option: key})
    result = await bank.pay("c-1")

    assert (code_of(result), bank.tries) == ("tool_execution_failed", 0)
    assert "Nothing was done" in (result.error.message if result.error else "")


# What failed, and what nobody knows


@pytest.mark.parametrize("turn", [1, 2])
async def test_an_error_for_the_model_means_that_nothing_happened_and_it_may_be_tried_again(turn: int) -> None:
    bank = Bank()
    bank.fails = lambda: ToolError("Closed.")
    await bank.pay("c-1")
    bank.fails = None
    again = await bank.pay("c-2", turn=turn)

    assert (again.output, len(bank.paid)) == ("Paid 5.", 1)
    assert len(set(bank.keys)) == 1  # It is the same effect, tried again.


async def test_a_repetition_that_failed_is_not_a_first_time() -> None:
    bank = Bank()
    await bank.pay("c-1", turn=1)
    asked = await bank.pay("c-2", turn=2)
    await bank.executor.approvals.approve(asked.approval.token, by="customer", who="c")
    bank.fails = lambda: ToolError("Closed.")
    await bank.pay("c-2", turn=3)
    bank.fails = None
    again = await bank.pay("c-3", turn=9)

    assert (code_of(again), len(bank.paid)) == ("approval_required", 1)


@pytest.mark.parametrize("turn", [1, 2])
async def test_what_nobody_knows_is_never_run_again_by_itself(turn: int) -> None:
    bank = Bank()
    bank.fails = lambda: ConnectionError("lost")
    assert code_of(await bank.pay("c-1")) == "outcome_unknown"
    bank.fails = None

    assert code_of(await bank.pay("c-1", turn=turn)) == "outcome_unknown"
    assert code_of(await bank.pay("c-2", turn=turn)) == "outcome_unknown"
    assert bank.tries == 1


async def test_an_idempotent_tool_may_be_run_again_after_an_unknown_outcome() -> None:
    bank = Bank(idempotent=True)
    bank.fails = lambda: ConnectionError("lost")
    await bank.pay("c-1")
    bank.fails = None

    assert (await bank.pay("c-2", turn=2)).output == "Paid 5."
    assert len(set(bank.keys)) == 1  # Downstream it is the same request.


async def test_an_effect_that_was_done_long_ago_may_be_done_again() -> None:
    bank = Bank(timeouts=Timeouts(repeat_window=0.02))
    await bank.pay("c-1", turn=1)
    await asyncio.sleep(0.03)
    again = await bank.pay("c-2", turn=2)

    assert (again.output, len(bank.paid), len(set(bank.keys))) == ("Paid 5.", 2, 2)


async def test_a_refused_call_never_enters_the_ledger() -> None:
    bank = Bank(policy=Policy([Rule.deny("pay", where={"amount": {"above": 10}}), Rule.ask("pay", by="operator")]))
    await bank.pay("c-1", amount=11)
    await bank.pay("c-2")

    assert [await bank.book.state(id) for id in ("c-1", "c-2")] == [None, None]
    assert not bank.heard.of(CallStarted)


# The clock


@pytest.mark.parametrize("jump", [-1e9, -3600.0, 3600.0, 1e9])
async def test_a_clock_that_jumps_while_a_call_runs_makes_nothing_run_twice(
    jump: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def verify(arguments: dict[str, Any], context: ToolContext[Any]) -> bool:
        return False  # It looks too early: the handler is still on its way.

    bank = Bank(concurrency_safe=True, verify=verify)
    slow = bank.slow = Held()
    first = asyncio.create_task(bank.pay("c-1"))
    await slow.begun.wait()
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump)
    second = asyncio.create_task(bank.pay("c-2", turn=2))
    await quiet()
    slow.go.set()

    assert [(await item).output for item in (first, second)] == ["Paid 5.", "Paid 5."]
    assert len(bank.paid) == 1


@pytest.mark.parametrize(("jump", "code"), [(-3600.0, "approval_required"), (3600.0, "approval_required"), (1e6, None)])
async def test_a_clock_that_jumps_afterwards_asks_rather_than_repeats(
    jump: float, code: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank = Bank()
    await bank.pay("c-1")
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump)

    assert code_of(await bank.pay("c-2", turn=2)) == code
    assert (await bank.pay("c-1", turn=2)).origin == "replayed"


# The task of the call


@pytest.mark.proves("PH-37")
async def test_the_task_of_a_call_is_named_after_its_session_and_its_call() -> None:
    names: list[str] = []

    def note() -> None:
        task = asyncio.current_task()
        assert task is not None
        names.append(task.get_name())

    @tool
    async def act() -> None:
        """Act."""
        note()

    @tool(read_only=True)
    async def look() -> None:
        """Look."""
        note()

    executor = Executor([act, look], policy=ALLOWED)
    await executor.run(call("act", "c-7"), at("s-9"))
    await executor.run_all([call("look", "c-8"), call("look", "c-9")], at("s-9"))

    assert names == ["handrail:s-9:c-7", "handrail:s-9:c-8", "handrail:s-9:c-9"]


async def test_a_call_that_joins_another_one_holds_up_nobody() -> None:
    held = Held()

    @tool(key="invoice")
    async def pay(invoice: str) -> str:
        """Pay."""
        return await held()

    @tool
    async def note() -> str:
        """Note."""
        return "noted"

    executor = Executor([pay, note], policy=ALLOWED, limits=Limits(max_concurrent_per_session=1))
    first = asyncio.create_task(executor.run(call("pay", "c-1", invoice="R-1"), at("s-1", customer_id="ann")))
    await held.begun.wait()
    second = asyncio.create_task(executor.run(call("pay", "c-2", invoice="R-1"), at("s-2", customer_id="ann")))
    await quiet()

    noted = await asyncio.wait_for(executor.run(call("note", "c-3"), at("s-2", customer_id="ann")), 30)
    assert (noted.output, second.done()) == ("noted", False)
    held.go.set()
    assert [(result.output, result.origin) for result in await asyncio.gather(first, second)] == [
        ("done", "run"),
        ("done", "joined"),
    ]


async def test_who_is_asked_again_reads_with_which_other_arguments_it_was_done() -> None:
    @tool(key="invoice")
    async def pay(invoice: str, amount: int) -> str:
        """Pay."""
        return "paid"

    executor = Executor([pay], policy=ALLOWED)
    await executor.run(call("pay", "c-1", invoice="R-1", amount=77), at(customer_id="ann"))
    same = await executor.run(call("pay", "c-2", invoice="R-1", amount=77), at(turn=2, customer_id="ann"))
    other = await executor.run(call("pay", "c-3", invoice="R-1", amount=5), at(turn=2, customer_id="ann"))

    assert [code_of(item) for item in (same, other)] == ["approval_required", "approval_required"]
    assert "with other arguments" not in same.for_model()
    assert "with other arguments" in other.for_model()
    assert "77" in other.for_model()


@pytest.mark.parametrize(("fails", "code"), [(False, "in_progress"), (True, "outcome_unknown")])
async def test_what_the_model_reads_about_a_call_of_the_same_key_does_not_mix_up_the_arguments(
    fails: bool, code: str
) -> None:
    bank = Bank()
    bank.slow = slow = Held()
    bank.fails = (lambda: RuntimeError("lost")) if fails else None
    first = asyncio.create_task(bank.pay("c-1", amount=5))
    await slow.begun.wait()
    if fails:
        slow.go.set()
        await first
    other = await bank.pay("c-2", amount=9)
    found = await bank.executor.look_up(call("pay", "c-3", invoice="i-1", amount=9), at())
    slow.go.set()
    await first

    for result in (other, found):
        assert code_of(result) == code
        assert "for the same key, with other arguments. Nothing was done with these arguments." in result.for_model()


class SlowBook(Book):
    """A ledger of other processes, which answers when it is told to."""

    is_immediate = False

    def __init__(self, slow: str) -> None:
        super().__init__(can_claim_new=slow != "recall")
        self.slow, self.reached, self.go = slow, asyncio.Event(), asyncio.Event()

    async def _wait(self, what: str) -> None:
        if what == self.slow:
            self.reached.set()
            await self.go.wait()

    async def recall(self, **given: Any) -> Any:
        await self._wait("recall")
        return await super().recall(**given)

    async def claim(self, entry: Any, **given: Any) -> bool:
        await self._wait("claim")
        return await super().claim(entry, **given)

    async def settle(self, entry: Any, **given: Any) -> None:
        await self._wait("settle")
        await super().settle(entry, **given)


async def pay_slowly(slow: str, runs: list[int]) -> tuple[Executor, SlowBook]:
    @tool(on_interrupt="cancel")
    async def pay() -> str:
        """Pay."""
        runs.append(1)
        return "paid"

    ledger = SlowBook(slow)
    return Executor([pay], policy=ALLOWED, ledger=ledger, timeouts=Timeouts(overhead=60, lease=600)), ledger


async def test_a_call_that_is_cancelled_before_it_was_looked_up_says_so() -> None:
    runs: list[int] = []
    executor, ledger = await pay_slowly("recall", runs)
    running = asyncio.create_task(executor.run(call("pay"), at()))
    await ledger.reached.wait()
    executor.cancel("c-1", session_id="s-1")

    result = await running
    assert (code_of(result), runs) == ("cancelled", [])
    assert "not looked up" in result.for_model()


@warped
async def test_a_claim_that_is_not_answered_in_time_is_taken_back_when_it_was_written_after_all() -> None:
    runs: list[int] = []
    executor, ledger = await pay_slowly("claim", runs)
    result = await executor.run(call("pay"), at())
    assert (result.ok, runs, await ledger.state()) == (False, [], None)

    ledger.go.set()
    await quiet()
    assert await ledger.state() == "failed"
    assert (await executor.run(call("pay", "c-2"), at())).ok
    assert runs == [1]


@warped
async def test_an_outcome_that_cannot_be_written_in_time_is_written_later_and_is_not_said_to_be_recorded() -> None:
    runs: list[int] = []
    executor, ledger = await pay_slowly("settle", runs)
    result = await executor.run(call("pay"), at())

    assert (result.output, result.recorded, await ledger.state()) == ("paid", False, "running")
    ledger.go.set()
    await quiet()
    assert await ledger.state() == "committed"
    again = await executor.run(call("pay"), at())
    assert (again.output, again.origin, runs) == ("paid", "replayed", [1])


@pytest.mark.parametrize(
    ("returned", "replayed"),
    [
        ((1, 2), [1, 2]),
        ({"a": (1,)}, {"a": [1]}),
        (1.5, 1.5),
        (None, None),
        (ToolResult(output={"left": 3}, error="boom"), {"left": 3}),
        (ToolResult(error="boom"), None),
        (ToolResult(output=None), None),
    ],
)
async def test_a_result_that_is_replayed_is_what_the_first_one_was(returned: Any, replayed: Any) -> None:
    @tool
    async def act() -> Any:
        """Act."""
        return returned

    executor = Executor([act], policy=ALLOWED)
    first, again = await executor.run(call("act"), at()), await executor.run(call("act"), at())

    assert (again.output, again.error) == (replayed, first.error)
    assert first.for_model() == again.for_model()


@pytest.mark.parametrize("value", [date(2026, 1, 31), Decimal("1.50"), math.inf])
async def test_a_value_that_json_has_only_as_a_text_is_that_text_the_first_time_too(value: Any) -> None:
    @tool
    async def act() -> Any:
        """Act."""
        return value

    executor = Executor([act], policy=ALLOWED)
    first, again = [(await executor.run(call("act"), at())).output for _ in range(2)]

    assert (type(first), first) == (str, again)


async def test_the_result_of_a_call_that_runs_is_not_handed_to_an_agent_that_may_not_make_it() -> None:
    held = Held()

    def check(arguments: Any, context: ToolContext[Any]) -> None:
        if context.agent_id == "stranger":
            raise ToolError("not you")

    @tool(permission_check=check)
    async def pay() -> str:
        """Pay."""
        return await held()

    executor = Executor([pay], policy=ALLOWED)
    running = asyncio.create_task(executor.run(call("pay"), at(agent_id="ours")))
    await held.begun.wait()
    stranger = asyncio.create_task(executor.run(call("pay"), at(agent_id="stranger")))
    another = asyncio.create_task(executor.run(call("pay"), at(agent_id="another")))
    await quiet()
    held.go.set()
    await running

    assert not (await stranger).ok
    assert "done" not in (await stranger).for_model()
    assert (await another).output == "done"
    assert held.runs == 1


@warped
async def test_what_was_done_is_said_to_be_done_when_it_was_settled() -> None:
    @tool(key="invoice")
    async def pay(invoice: str, amount: int) -> str:
        """Pay."""
        await asyncio.sleep(20)
        return "paid"

    executor = Executor([pay], policy=ALLOWED)
    await executor.run(call("pay", "c-1", invoice="R-1", amount=5), at())
    done_at = format_time(time.time())
    await asyncio.sleep(60)
    replayed = await executor.run(call("pay", "c-2", invoice="R-1", amount=5), at())
    duplicate = await executor.run(call("pay", "c-3", invoice="R-1", amount=6), at())
    asked = await executor.run(call("pay", "c-4", invoice="R-1", amount=5), at(turn=2))

    assert [code_of(item) for item in (replayed, duplicate, asked)] == [None, "duplicate_call", "approval_required"]
    assert replayed.metadata["done_at"] == done_at
    assert [done_at in item.for_model() for item in (replayed, duplicate, asked)] == [True] * 3


async def test_a_call_that_needs_nobody_any_more_withdraws_its_question() -> None:
    executor = Bank(policy=Policy([Rule.ask("pay", by="operator")])).executor
    for id in ("c-1", "c-2"):
        assert code_of(await executor.run(call("pay", id, invoice=id, amount=5), at())) == "approval_required"
    executor.replace_policy(ALLOWED)
    assert (await executor.run(call("pay", "c-1", invoice="c-1", amount=5), at())).ok

    assert [question.arguments["invoice"] for question in await executor.approvals.pending()] == ["c-2"]


async def test_a_hook_that_refuses_is_reported_with_what_was_decided_before() -> None:
    class Closed:
        def authorised(self, call: Any, tool: Any, decision: Any, context: Any) -> None:
            raise ToolError("closed")

    heard = Heard()

    @tool
    async def pay() -> str:
        """Pay."""
        return "paid"

    result = await Executor([pay], policy=ALLOWED, hooks=[Closed()], listeners=[heard]).run(call("pay"), at())

    assert code_of(result) == "refused_by_hook"
    [finished] = heard.of(CallFinished)
    assert finished.decision is not None
    assert (finished.decision.action, finished.result.decision) == ("allow", finished.decision)


@pytest.mark.parametrize("is_written", [True, False])
@warped
async def test_a_claim_that_fails_after_its_call_was_given_up_is_taken_back_if_it_was_written(is_written: bool) -> None:
    class Torn(SlowBook):
        """A ledger whose connection breaks when it has claimed, or before."""

        async def claim(self, entry: Any, **given: Any) -> bool:
            await self._wait("claim")
            if is_written:
                await Book.claim(self, entry, **given)
            raise ConnectionError("broken")

    runs: list[int] = []

    @tool
    async def pay() -> str:
        """Pay."""
        runs.append(1)
        return "paid"

    ledger = Torn("claim")
    executor = Executor([pay], policy=ALLOWED, ledger=ledger, timeouts=Timeouts(overhead=60, lease=600))
    assert code_of(await executor.run(call("pay"), at())) == "unavailable"
    ledger.go.set()
    await quiet()

    assert (await ledger.state(), runs) == ("failed" if is_written else None, [])


@pytest.mark.parametrize("what", ["a hook", "approvals"])
@warped
async def test_what_takes_too_long_to_decide_about_a_call_means_that_it_does_not_run(what: str) -> None:
    async def hang() -> Any:
        await asyncio.get_running_loop().create_future()

    class Hook:
        async def authorised(self, call: Any, tool: Any, decision: Any, context: Any) -> None:
            await hang()

    class Away(MemoryApprovals):
        is_immediate = False

        async def ask(self, approval: Any) -> Any:
            return await hang()

    @tool
    async def pay() -> str:
        """Pay."""
        raise AssertionError("nobody has agreed")

    options: dict[str, Any] = {"hooks": [Hook()], "policy": ALLOWED} if what == "a hook" else {"approvals": Away()}
    executor = Executor([pay], timeouts=Timeouts(overhead=7), **options)
    result = await asyncio.wait_for(executor.run(call("pay"), at()), 600)

    assert (result.ok, executor.running_calls("s-1")) == (False, ())


@pytest.mark.parametrize("is_immediate", [False, True])
@pytest.mark.parametrize("step", ["recall", "claim", "ask"])
async def test_a_store_that_raises_a_cancellation_of_its_own_is_unavailable_and_nobody_was_cancelled(
    step: str, is_immediate: bool
) -> None:
    def fail(*given: Any, **more: Any) -> Any:
        raise asyncio.CancelledError

    book, approvals = Book(can_claim_new=False), MemoryApprovals()
    for store in (book, approvals):
        store.is_immediate = is_immediate  # type: ignore[misc]
        if hasattr(store, step):
            setattr(store, step, fail)
    policy = Policy([Rule.ask("pay", by="operator")]) if step == "ask" else ALLOWED
    executor = Executor([pay], policy=policy, ledger=book, approvals=approvals)

    result = await executor.run(call("pay", amount=5), at())

    assert result.error is not None
    assert (result.error.code, result.error.retryable) == ("unavailable", True)
    assert not executor.running_calls("s-1")


@pytest.mark.parametrize("is_immediate", [False, True])
async def test_a_ledger_that_raises_a_cancellation_of_its_own_cannot_be_read(is_immediate: bool) -> None:
    class Cancelling(Book):
        async def recall(self, **given: Any) -> Any:
            raise asyncio.CancelledError

    book = Cancelling(can_claim_new=False)
    book.is_immediate = is_immediate  # type: ignore[misc]
    executor = Executor([pay], policy=ALLOWED, ledger=book)

    found = await executor.look_up(call("pay", amount=5), at())
    assert found is not None
    assert code_of(found) == "outcome_unknown"
    for name in ("pay", "gone"):
        assert code_of(await executor.run(call(name, amount=5), at())) == "unavailable"

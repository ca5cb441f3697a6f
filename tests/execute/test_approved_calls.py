"""Calls that somebody approved: with other arguments, while a twin runs, and cancelled before their handler."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from handrail import Executor, Policy, Rule, ToolContext, ToolResult, tool
from handrail.authorize import MemoryApprovals
from handrail.core import CallFinished, CallStarted
from handrail.execute import Entry, MemoryLedger
from tests.execute.helpers import Book, Heard, Held, at, call, code_of, list_unawaited, quiet

OPERATOR = Policy([Rule.ask("pay", by="operator", where={"amount": {"above": 100}}), Rule.allow("pay")])


class Bank:
    """Payments above 100 need an operator."""

    def __init__(self, *, ledger: MemoryLedger | None = None, approvals: Any = None, **options: Any) -> None:
        self.paid: list[tuple[str, int]] = []
        self.keys: list[str | None] = []
        self.heard = Heard()
        self.held: Held | None = None

        @tool(**{"key": ("invoice",), **options})
        async def pay(invoice: str, amount: int, context: ToolContext[Any]) -> str:
            """Pay an invoice."""
            self.paid.append((invoice, amount))
            self.keys.append(context.idempotency_key)
            if self.held is not None:
                await self.held()
            if invoice == "lost":
                raise ConnectionError("lost")
            return f"paid {amount}"

        self.ledger = ledger or Book()
        self.executor = Executor(
            [pay], policy=OPERATOR, ledger=self.ledger, approvals=approvals or MemoryApprovals(), listeners=[self.heard]
        )

    async def pay(self, invoice: str = "i-1", amount: int = 500, id: str = "c-1", turn: int = 1) -> ToolResult:
        return await self.executor.run(call("pay", id, invoice=invoice, amount=amount), at(turn=turn))

    async def approve(self, result: ToolResult, **arguments: Any) -> None:
        assert code_of(result) == "approval_required"
        await self.executor.approvals.approve(
            result.approval.token, by="operator", who="bo", arguments=arguments or None
        )


async def test_what_an_approver_changed_is_what_runs_is_keyed_and_is_recorded() -> None:
    bank = Bank()
    await bank.approve(await bank.pay(), invoice="i-1", amount=300)
    result = await bank.pay()

    assert (result.output, bank.paid) == ("paid 300", [("i-1", 300)])
    assert "changed its arguments" in result.for_model()
    assert '"amount":300' in result.for_model().replace(" ", "")
    assert isinstance(bank.ledger, Book)
    entry = await bank.ledger.entry()
    assert entry is not None
    assert entry.sent_key == entry.key  # The key is the invoice.
    assert '"amount":300' in entry.arguments.replace(" ", "")
    finished = bank.heard.of(CallFinished)[-1]
    assert '"amount":300' in finished.call.arguments_json.replace(" ", "")
    assert (await bank.pay()).origin == "replayed"
    other = await bank.pay(amount=300, id="c-2")  # With the approver's arguments: those of this call were not changed.
    assert other.origin == "replayed"
    assert "approved the call that was made changed its arguments" in other.for_model()
    assert len(bank.paid) == 1


@pytest.mark.parametrize(
    ("state", "turn", "code", "output"),
    [
        ("done", 1, None, "paid 50"),  # In the same turn it is the answer.
        ("done", 2, "duplicate_call", None),  # Later, the approver was not told that it was done.
        ("failed", 1, None, "paid 50"),
        ("unknown", 1, "outcome_unknown", None),
        ("running", 1, "in_progress", None),
    ],
)
async def test_arguments_of_an_approver_that_are_another_effect_get_what_is_known_of_that(
    state: str, turn: int, code: str | None, output: str | None
) -> None:
    bank = Bank(key=("invoice", "amount"))
    held = Held()
    running = None
    invoice = "lost" if state == "unknown" else "i-1"
    if state == "running":
        bank.held = held
        running = asyncio.create_task(bank.pay(invoice, 50, "c-0"))
        await held.begun.wait()
        bank.held = None
    elif state != "failed":
        await bank.pay(invoice, 50, "c-0")
    before = len(bank.paid)
    asked = await bank.pay("i-1", 500, "c-1", turn)
    await bank.approve(asked, invoice=invoice, amount=50)
    result = await bank.pay("i-1", 500, "c-1", turn)
    held.go.set()
    if running is not None:
        await running

    assert (code_of(result), result.output) == (code, output)
    assert len(bank.paid) == before + (state == "failed")


async def test_a_changed_lock_key_waits_for_the_lock_of_the_new_arguments() -> None:
    bank, held = Bank(lock_key=("invoice",), concurrency_safe=True), Held()
    bank.held = held
    first = asyncio.create_task(bank.pay("i-2", 50, "c-0"))
    await held.begun.wait()
    bank.held = None
    await bank.approve(await bank.pay("i-1", 500, "c-1"), invoice="i-2", amount=40)
    second = asyncio.create_task(bank.pay("i-1", 500, "c-1"))
    await quiet()
    assert len(bank.paid) == 1
    held.go.set()
    await first
    result = await second

    assert code_of(result) in (None, "duplicate_call", "in_progress")
    assert [invoice for invoice, _ in bank.paid] == ["i-2"]  # It is the same effect: paid once.


async def test_a_changed_lock_key_moves_a_call_behind_who_has_the_lock_and_frees_the_lock_it_had() -> None:
    bank, held = Bank(key=("invoice", "amount"), lock_key=("invoice",)), Held()
    bank.held = held
    first = asyncio.create_task(bank.pay("i-2", 50, "c-0"))
    await held.begun.wait()
    bank.held = None
    await bank.approve(await bank.pay("i-1", 500, "c-1"), invoice="i-2", amount=40)
    second = asyncio.create_task(bank.pay("i-1", 500, "c-1"))
    await quiet()
    assert bank.paid == [("i-2", 50)]
    assert (await bank.pay("i-1", 20, "c-2")).output == "paid 20"
    held.go.set()

    assert [(await item).output for item in (first, second)] == ["paid 50", "paid 40"]
    assert bank.paid == [("i-2", 50), ("i-1", 20), ("i-2", 40)]


class SlowClaims(Book):
    """A ledger whose claim takes its time."""

    is_immediate = False

    def __init__(self) -> None:
        super().__init__()
        self.claimed, self.go = asyncio.Event(), asyncio.Event()

    async def claim(self, entry: Entry, **given: Any) -> bool:
        is_claimed = await super().claim(entry, **given)
        self.claimed.set()
        await self.go.wait()
        return is_claimed


async def test_an_approval_of_a_call_that_was_cancelled_between_claim_and_handler_can_be_used_again(
    recwarn: pytest.WarningsRecorder,
) -> None:
    bank = Bank(ledger=SlowClaims())
    ledger = bank.ledger
    assert isinstance(ledger, SlowClaims)
    await bank.approve(await bank.pay(), invoice="i-1", amount=300)
    paying = asyncio.create_task(bank.pay())
    await ledger.claimed.wait()
    bank.executor.cancel("c-1", session_id="s-1")
    ledger.go.set()

    result = await paying
    assert code_of(result) == "cancelled"
    assert result.notice == ""  # Nothing was made with the changed arguments.
    assert (await ledger.state(), bank.paid) == ("failed", [])
    again = await bank.pay(id="c-2")
    assert (again.output, bank.paid) == ("paid 300", [("i-1", 300)])
    assert list_unawaited(recwarn) == []  # Its coroutine was closed.


@pytest.mark.parametrize("invoice", ["lost", "i-1"])
async def test_a_call_that_ran_has_used_its_approval_whatever_became_of_it(invoice: str) -> None:
    approvals = MemoryApprovals()
    bank = Bank(approvals=approvals)
    asked = await bank.pay(invoice)
    await bank.approve(asked)
    assert asked.approval is not None
    assert (await bank.pay(invoice)).ok is (invoice != "lost")

    used = await approvals.get(asked.approval.token)
    assert used is not None
    assert (used.state, await approvals.pending()) == ("used", [])
    again = await bank.pay(invoice, id="c-2", turn=2)
    assert code_of(again) == ("outcome_unknown" if invoice == "lost" else "approval_required")
    assert len(bank.paid) == 1


class Racing(MemoryApprovals):
    """While one call asks, something else happens."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], Any] | None = None
        self.withdrawn: list[str] = []
        self.is_away = False

    async def ask(self, approval: Any) -> Any:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        return await super().ask(approval)

    async def withdraw(self, token: str) -> None:
        self.withdrawn.append(token)
        if self.is_away:
            raise ConnectionError("away")
        await super().withdraw(token)


@pytest.mark.parametrize("is_away", [False, True])
async def test_a_question_about_a_call_whose_twin_ran_meanwhile_is_withdrawn_and_its_result_is_the_answer(
    is_away: bool,
) -> None:
    approvals, ledger = Racing(), MemoryLedger()
    one, two = Bank(ledger=ledger, approvals=approvals), Bank(ledger=ledger, approvals=approvals)

    async def pay_elsewhere() -> None:
        await two.approve(await two.pay(id="c-2"))
        assert (await two.pay(id="c-2")).ok
        approvals.is_away = is_away

    approvals.meanwhile = pay_elsewhere
    result = await one.pay(id="c-1")

    assert (result.output, result.origin) == ("paid 500", "replayed")
    assert (len(one.paid), len(two.paid)) == (0, 1)
    assert len(approvals.withdrawn) == 1
    assert len(await approvals.pending()) == is_away


async def test_a_yes_that_does_not_count_yet_is_not_withdrawn_because_a_twin_ran_meanwhile() -> None:
    @tool
    async def pay() -> str:
        """Pay."""
        return "paid"

    approvals, ledger = Racing(), MemoryLedger()
    asking, allowed = (
        Executor([pay], policy=Policy([rule]), ledger=ledger, approvals=approvals)
        for rule in (Rule.ask("pay", by="customer"), Rule.allow("pay"))
    )
    asked = await asking.run(call("pay", "c-1"), at(customer_id="ann"))
    assert asked.approval is not None
    await approvals.approve(asked.approval.token, by="customer", who="ann")
    approvals.meanwhile = lambda: allowed.run(call("pay", "c-2"), at("s-2", customer_id="ann"))
    result = await asking.run(call("pay", "c-1"), at(customer_id="ann"))

    assert approvals.meanwhile is None
    assert (code_of(result), approvals.withdrawn) == ("approval_required", [])


async def test_a_question_stays_open_when_nothing_happened_meanwhile() -> None:
    approvals = Racing()
    bank = Bank(approvals=approvals)
    assert code_of(await bank.pay()) == "approval_required"

    assert (approvals.withdrawn, len(await approvals.pending())) == ([], 1)


async def test_a_refused_call_reports_its_decision_and_starts_nothing() -> None:
    bank = Bank()
    result = await bank.pay()

    assert result.decision.action == "ask"
    assert bank.heard.of(CallStarted) == []
    [finished] = bank.heard.of(CallFinished)
    assert finished.decision is not None
    assert finished.decision.action == "ask"


async def test_a_read_whose_arguments_were_changed_waits_for_the_lock_of_the_new_ones() -> None:
    held, seen = Held(), list[str]()

    @tool(read_only=True, concurrency_safe=True, lock_key=("account",))
    async def read(account: str, note: str = "") -> str:
        """Read."""
        seen.append(account)
        return await held() if note == "hold" else account

    policy = Policy([Rule.ask("read", by="operator", where={"note": "ask"}), Rule.allow("read")])
    executor = Executor([read], policy=policy)
    holding = asyncio.create_task(executor.run(call("read", "c-0", account="b", note="hold"), at()))
    await held.begun.wait()
    sent = [call("read", f"c-{number}", account="a", note="ask") for number in (1, 2)]
    changed, same = [await executor.run(one, at(f"s-{number}")) for number, one in enumerate(sent, 1)]
    for asked, arguments in ((changed, {"account": "b"}), (same, None)):
        assert asked.approval is not None
        await executor.approvals.approve(asked.approval.token, by="operator", who="bo", arguments=arguments)
    waiting = asyncio.create_task(executor.run(sent[0], at("s-1")))
    unchanged = await executor.run(sent[1], at("s-2"))
    assert (unchanged.output, unchanged.notice) == ("a", "")  # Its lock is free.
    await quiet()
    assert seen == ["b", "a"]
    held.go.set()
    await holding

    result = await waiting
    assert result.output == "b"
    assert "changed its arguments" in result.for_model()


async def test_a_ledger_that_fails_after_a_question_was_asked_leaves_the_question() -> None:
    class Failing(Book):
        """A ledger that can be read once."""

        reads = 0

        async def recall(self, **given: Any) -> Any:
            self.reads += 1
            if self.reads > 1:
                raise ConnectionError("away")
            return await super().recall(**given)

    bank = Bank(ledger=Failing())

    assert code_of(await bank.pay()) == "approval_required"
    assert len(await bank.executor.approvals.pending()) == 1


async def test_verify_is_asked_about_the_arguments_that_ran() -> None:
    asked: list[dict[str, Any]] = []

    def verify(arguments: dict[str, Any], context: ToolContext[Any]) -> bool | None:
        asked.append(arguments)
        return True if len(asked) > 1 else None

    bank = Bank(verify=verify)
    await bank.approve(await bank.pay(), invoice="lost", amount=300)
    assert code_of(await bank.pay()) == "outcome_unknown"
    result = await bank.pay()

    assert (result.ok, result.origin, bank.paid) == (True, "verified", [("lost", 300)])
    assert asked == [{"invoice": "lost", "amount": 300}] * 2
    assert "changed its arguments" in result.for_model()

"""Durable calls, in memory and in both databases: stored, run by a worker, waited for, parked, cancelled, drained."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from sqlalchemy import select, update

from handrail import (
    ConfigError,
    Executor,
    Policy,
    Provenance,
    Rule,
    ToolContext,
    ToolDefinitionError,
    ToolFlags,
    ToolResult,
    as_tool,
    build_tool,
    tool,
)
from handrail.authorize import MemoryApprovals
from handrail.core import CallFinished, CallQueued, failure_results
from handrail.execute import Limits, MemoryLedger, MemoryWork, Timeouts, Worker, WorkItem
from handrail.execute.stored_calls import build_work_id, parse_work_id
from handrail.store import open_store
from handrail.store.tables import work as table
from tests.execute.helpers import ALLOWED, Heard, Held, at, call, code_of
from tests.postgres import DATABASES, new_database
from tests.postgres import postgres as postgres

PATIENCE = 60.0
"""Seconds that only a fault takes."""
PAYMENT = call("pay", "c-1", invoice="R-1")
ANN = at(customer_id="ann")


class Bank:
    """Pays, and keeps what it paid with which key."""

    def __init__(self, **stores: Any) -> None:
        self.paid: list[tuple[str, str | None]] = []
        self.hold: Held | None = None
        self.stores = stores
        self.work: Any = stores["store"].work if "store" in stores else stores["work"]

    async def list_rows(self) -> list[Any]:
        """Every row, in the order of its id: its state, its attempts, and whether it has arguments."""
        if "work" in self.stores:
            return [(item.state, item.attempts, item.call is not None) for item in self.work.list_items()]
        query = select(table.c.state, table.c.attempts, table.c.calls).order_by(table.c.call_id)
        database = self.work._database
        return [(state, attempts, calls is not None) for state, attempts, calls in await database.fetch(query)]

    async def list_states(self) -> list[str]:
        return [row[0] for row in await self.list_rows()]

    def start(self, policy: Policy = ALLOWED, **options: Any) -> Executor:
        @tool(durable=True, key="invoice")
        async def pay(invoice: str, context: ToolContext[Any]) -> str:
            """Pay."""
            if self.hold is not None:
                await self.hold()
            self.paid.append((invoice, context.idempotency_key))
            return f"paid {invoice} for {context.deps}"

        return Executor([pay], policy=policy, **self.stores, **options)


@pytest.fixture(params=["memory", *DATABASES])
async def bank(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Bank]:
    """A bank whose calls are stored in memory, or in a database of each kind."""
    if request.param == "memory":
        yield Bank(ledger=MemoryLedger(), work=MemoryWork(), approvals=MemoryApprovals())
        return
    async with open_store(new_database(request.param, tmp_path, request), audit_interval=0.01) as store:
        yield Bank(store=store)


@asynccontextmanager
async def working(executor: Executor, **options: Any) -> AsyncGenerator[Worker]:
    async with Worker(executor, **options) as worker:
        task = asyncio.create_task(worker.run())
        yield worker
    await asyncio.wait_for(task, PATIENCE)


async def wait_until_tried(executor: Executor) -> ToolResult:
    """What is said of the call once a worker has done with it what it can."""
    async with asyncio.timeout(PATIENCE):
        while code_of(result := await executor.wait(session_id="s-1", call_id="c-1", timeout=0.1)) == "in_progress":
            pass
    return result


async def test_a_submitted_call_is_run_by_a_worker_and_waited_for(bank: Bank) -> None:
    heard = Heard()
    executor = bank.start(listeners=[heard])
    made: list[WorkItem] = []

    def make_context(item: WorkItem) -> ToolContext[Any]:
        made.append(item)
        return ToolContext(session_id="whatever", deps="the bank", turn=99)

    assert await executor.submit(PAYMENT, ANN, priority=3) is None
    assert bank.paid == []
    async with working(executor, context=make_context):
        result = await executor.wait(session_id="s-1", call_id="c-1", timeout=PATIENCE)

    assert (result.output, result.call_id, result.tool_name) == ("paid R-1 for the bank", "c-1", "pay")
    assert len(bank.paid) == 1
    assert [(item.session_id, item.customer_id, item.turn, item.priority) for item in made] == [("s-1", "ann", 1, 3)]
    assert [event.priority for event in heard.of(CallQueued)] == [3]
    assert await bank.list_rows() == [("done", 1, False)]


async def test_a_run_stores_its_row_and_ends_it(bank: Bank) -> None:
    bank.hold = Held()
    executor = bank.start()

    running = asyncio.create_task(executor.run(PAYMENT, ANN))
    await bank.hold.begun.wait()
    row = await bank.work.get(session_id="s-1", call_id="c-1")
    assert (row.state, row.owner, row.call) == ("running", executor.owner, PAYMENT)
    bank.hold.go.set()
    result = await running

    assert result.output == "paid R-1 for None"
    assert await bank.list_states() == ["done"]
    assert (await executor.wait(session_id="s-1", call_id="c-1", timeout=0)).output == result.output


async def test_a_caller_that_leaves_loses_nothing(bank: Bank) -> None:
    bank.hold = Held()
    executor = bank.start()

    running = asyncio.create_task(executor.run(PAYMENT, ANN))
    await bank.hold.begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    bank.hold.go.set()

    assert (await executor.wait(session_id="s-1", call_id="c-1", timeout=PATIENCE)).ok
    assert len(bank.paid) == 1


async def test_what_is_refused_at_once_is_not_stored(bank: Bank) -> None:
    executor = bank.start(policy=Policy([Rule.deny("pay", reason="closed")]))

    denied = await executor.submit(PAYMENT, ANN)
    invalid = await executor.submit(call("pay", "c-2", amount=5), ANN)
    unknown = await executor.submit(call("sell", "c-3"), ANN)
    nameless = await executor.submit(call("pay", "", invoice="R-1"), ANN)

    assert [code_of(result) for result in (denied, invalid, unknown, nameless) if result is not None] == [
        "permission_denied",
        "invalid_arguments",
        "tool_not_found",
        "invalid_arguments",
    ]
    assert await bank.list_rows() == []


@pytest.mark.proves("DU-06")
async def test_an_operator_approves_a_parked_call_and_a_worker_runs_it(bank: Bank) -> None:
    executor = bank.start(policy=Policy([Rule.ask("pay", by="operator")]))

    asked = await executor.submit(PAYMENT, ANN)
    assert asked is not None
    assert asked.approval is not None
    assert code_of(asked) == "approval_required"
    async with working(executor) as worker:
        assert code_of(await executor.wait(session_id="s-1", call_id="c-1", timeout=0.05)) == "approval_required"
        assert worker.running == 0
        await executor.approvals.approve(asked.approval.token, by="operator", who="bo")
        result = await executor.wait(session_id="s-1", call_id="c-1", timeout=PATIENCE)

    assert result.ok
    assert len(bank.paid) == 1
    used = await executor.approvals.get(asked.approval.token)
    assert used is not None
    assert used.state == "used"


async def test_a_run_that_needs_an_operator_is_parked_too(bank: Bank) -> None:
    executor = bank.start(policy=Policy([Rule.ask("pay", by="operator")]))

    asked = await executor.run(PAYMENT, ANN)
    assert asked.approval is not None
    assert await bank.list_states() == ["parked"]
    await executor.approvals.approve(asked.approval.token, by="operator", who="bo", arguments={"invoice": "R-2"})
    async with working(executor):
        result = await executor.wait(session_id="s-1", call_id="c-1", timeout=PATIENCE)

    assert [invoice for invoice, _ in bank.paid] == ["R-2"]
    assert "R-2" in result.for_model()


@pytest.mark.proves("DU-06")
async def test_a_denied_call_ends(bank: Bank) -> None:
    executor = bank.start(policy=Policy([Rule.ask("pay", by="operator")]))

    asked = await executor.submit(PAYMENT, ANN)
    assert asked is not None
    assert asked.approval is not None
    async with working(executor):
        await executor.approvals.deny(asked.approval.token, by="operator", who="bo", reason="too much")
        result = await executor.wait(session_id="s-1", call_id="c-1", timeout=PATIENCE)

    assert code_of(result) == "permission_denied"
    assert "too much" in result.for_model()
    assert bank.paid == []


async def test_the_yes_of_a_customer_counts_in_a_later_turn_only(bank: Bank) -> None:
    executor = bank.start(policy=Policy([Rule.ask("pay", by="customer")]))

    asked = await executor.submit(PAYMENT, ANN)
    assert asked is not None
    assert asked.approval is not None
    async with working(executor):
        await executor.approvals.approve(asked.approval.token, by="customer", who="ann")
        assert code_of(await wait_until_tried(executor)) == "approval_required"
        again = await executor.submit(PAYMENT, ANN)
        assert again is not None
        assert code_of(again) == "approval_required"
        assert await executor.submit(PAYMENT, at(customer_id="ann", turn=2)) is None
        assert (await executor.wait(session_id="s-1", call_id="c-1", timeout=PATIENCE)).ok

    assert len(bank.paid) == 1


async def test_an_approval_that_expires_ends_its_call(bank: Bank) -> None:
    timeouts = Timeouts(approval=0.1, lease=0.3)
    executor = bank.start(policy=Policy([Rule.ask("pay", by="operator")]), timeouts=timeouts)

    await executor.submit(PAYMENT, ANN)
    async with working(executor):
        result = await executor.wait(session_id="s-1", call_id="c-1", timeout=PATIENCE)

    assert (code_of(result), result.approval) == ("approval_required", None)
    assert "expired" in result.for_model()


@pytest.mark.proves("DU-07")
async def test_what_is_denied_when_it_is_delivered_does_not_run(bank: Bank) -> None:
    assert await bank.start().submit(PAYMENT, ANN) is None
    closed = bank.start(policy=Policy([Rule.deny("pay", reason="closed")]))

    async with working(closed):
        result = await closed.wait(session_id="s-1", call_id="c-1", timeout=PATIENCE)

    assert (code_of(result), bank.paid) == ("permission_denied", [])


@pytest.mark.proves("DU-07")
async def test_a_worker_asks_nobody_again(bank: Bank) -> None:
    assert await bank.start().submit(PAYMENT, ANN) is None
    asking = bank.start(policy=Policy([Rule.ask("pay", by="operator")]))

    async with working(asking):
        assert (await asking.wait(session_id="s-1", call_id="c-1", timeout=PATIENCE)).ok

    assert await asking.approvals.pending() == []


async def test_an_effect_that_was_done_meanwhile_is_asked_about(bank: Bank) -> None:
    executor = bank.start()
    assert await executor.submit(PAYMENT, ANN) is None
    assert (await executor.run(call("pay", "c-2", invoice="R-1"), at(customer_id="ann", session_id="s-2"))).ok

    async with working(executor):
        result = await wait_until_tried(executor)

    assert (code_of(result), len(bank.paid)) == ("approval_required", 1)


async def test_a_call_that_was_done_is_not_stored_again(bank: Bank) -> None:
    executor = bank.start()
    await executor.run(PAYMENT, ANN)

    again = await executor.submit(PAYMENT, ANN)

    assert again is not None
    assert (again.origin, again.ok) == ("replayed", True)


async def test_what_is_known_of_a_call_is_its_answer_when_it_is_submitted(bank: Bank) -> None:
    executor = bank.start()
    await executor.run(PAYMENT, ANN)

    same_effect = await executor.submit(call("pay", "c-2", invoice="R-1"), ANN)
    same_id = await executor.submit(call("pay", "c-1", invoice="R-2"), ANN)
    later = await executor.submit(call("pay", "c-3", invoice="R-1"), at(customer_id="ann", turn=2))

    assert same_effect is not None
    assert (same_effect.origin, same_effect.ok) == ("replayed", True)
    assert [code_of(item) for item in (same_id, later)] == ["duplicate_call", "approval_required"]
    async with working(executor):
        assert (await executor.wait(session_id="s-1", call_id="c-1", timeout=PATIENCE)).ok
    assert [name for name, _ in bank.paid] == ["R-1"]


async def test_a_call_that_runs_is_not_queued_when_it_is_submitted_again(bank: Bank) -> None:
    bank.hold = Held()
    executor = bank.start()
    running = asyncio.create_task(executor.run(PAYMENT, ANN))
    await bank.hold.begun.wait()

    assert await executor.submit(PAYMENT, ANN) is None
    other = await executor.submit(call("pay", "c-2", invoice="R-1"), ANN)
    assert code_of(other) == "in_progress"
    assert await bank.list_states() == ["running"]
    bank.hold.go.set()
    assert (await running).ok
    assert len(bank.paid) == 1


@pytest.mark.proves("DU-05")
async def test_a_row_that_was_changed_by_hand_is_refused(bank: Bank) -> None:
    executor = bank.start()
    assert await executor.submit(PAYMENT, ANN) is None
    forged = call("pay", "c-1", invoice="R-666")
    if "store" in bank.stores:
        changed = bank.work.to_values(
            structs.replace(await bank.work.get(session_id="s-1", call_id="c-1"), call=forged)
        )
        await bank.work._database.write(update(table).values(calls=changed["work_calls"]), {})
    else:
        (row,) = bank.work.list_items()
        bank.work._items[row.ref] = structs.replace(row, call=forged)

    async with working(executor):
        result = await executor.wait(session_id="s-1", call_id="c-1", timeout=PATIENCE)

    assert (code_of(result), bank.paid) == ("permission_denied", [])


@pytest.mark.proves("DU-04")
async def test_one_id_sent_a_hundred_times_runs_once(bank: Bank) -> None:
    heard = Heard()
    executor = bank.start(listeners=[heard])
    assert await executor.submit(PAYMENT, ANN) is None

    async with working(executor):
        for _ in range(100):
            await bank.work.delivery.send(build_work_id("s-1", "c-1"), tenant=None, priority=0)
            await asyncio.sleep(0)
        assert (await executor.wait(session_id="s-1", call_id="c-1", timeout=PATIENCE)).ok

    assert len(bank.paid) == 1
    assert len(heard.of(CallFinished)) == 1


@pytest.mark.proves("DU-04")
async def test_an_id_without_a_row_is_dropped(bank: Bank) -> None:
    executor = bank.start()
    async with working(executor):
        await bank.work.delivery.send("nobody/knows", tenant=None, priority=0)
        assert await executor.submit(PAYMENT, ANN) is None
        assert (await executor.wait(session_id="s-1", call_id="c-1", timeout=PATIENCE)).ok
    with pytest.raises(ConfigError, match="there is no stored call 'knows' in session 'nobody'"):
        await executor.wait(session_id="nobody", call_id="knows", timeout=0)


async def test_a_queued_call_that_is_cancelled_ends_at_once(bank: Bank) -> None:
    executor = bank.start()
    assert await executor.submit(PAYMENT, ANN) is None

    assert await executor.cancel_stored("c-1", session_id="s-1")
    result = await executor.wait(session_id="s-1", call_id="c-1", timeout=0)

    assert code_of(result) == "cancelled"
    assert not await executor.cancel_stored("c-1", session_id="s-1")
    assert not await executor.cancel_stored("c-2", session_id="s-1")


async def test_a_running_call_is_cancelled_by_whoever_has_it(bank: Bank) -> None:
    bank.hold = Held()
    executor = bank.start(timeouts=Timeouts(lease=0.3))
    other = bank.start()
    assert await other.submit(PAYMENT, ANN) is None

    async with working(executor):
        await bank.hold.begun.wait()
        assert await other.cancel_stored("c-1", session_id="s-1")
        result = await wait_until_tried(other)

    assert (code_of(result), bank.paid) == ("outcome_unknown", [])


async def test_a_doubt_waits_for_an_operator(bank: Bank) -> None:
    executor = bank.start(timeouts=Timeouts(lease=0.3))

    @tool(durable=True)
    async def pay(invoice: str) -> str:
        """Pay."""
        raise RuntimeError("boom")

    failing = Executor([pay], policy=ALLOWED, **bank.stores)
    assert await failing.submit(PAYMENT, ANN) is None
    async with working(failing):
        assert code_of(await wait_until_tried(executor)) == "outcome_unknown"
        (doubt,) = await failing.doubts()
        assert (doubt.owner, doubt.attempts >= 1) == (failing.owner, True)
        await failing.resolve(session_id="s-1", call_id="c-1", happened=True, who="bo")
        result = await executor.wait(session_id="s-1", call_id="c-1", timeout=PATIENCE)

    assert result.ok
    assert await bank.list_states() == ["done"]


async def test_a_doubt_whose_next_attempt_is_cancelled_stays_a_doubt(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    @tool(durable=True)
    async def pay(invoice: str) -> str:
        """Pay."""
        raise RuntimeError("boom")

    executor = Executor([pay], policy=ALLOWED, timeouts=Timeouts(lease=0.1), **bank.stores)
    run_stored, again = executor.run_stored, asyncio.Event()

    async def cancelled(stored: Any, context: Any) -> Any:  # As if it were cancelled while the ledger is read.
        if stored.item.attempts == 1:
            return await run_stored(stored, context)
        if stored.item.attempts > 2:
            again.set()
        return failure_results.cancelled_unread("pay")

    monkeypatch.setattr(executor, "run_stored", cancelled)
    assert await executor.submit(PAYMENT, ANN) is None
    async with working(executor):
        await asyncio.wait_for(again.wait(), PATIENCE)
        result = await executor.wait(session_id="s-1", call_id="c-1", timeout=0)

    assert code_of(result) in ("outcome_unknown", "in_progress")
    assert len(await executor.doubts()) == 1


async def test_a_full_queue_refuses_and_says_when_to_try_again(bank: Bank) -> None:
    executor = bank.start(limits=Limits(max_queued_per_tenant=2))
    for number in range(2):
        assert await executor.submit(call("pay", f"c-{number}", invoice=f"R-{number}"), ANN) is None

    refused = await executor.submit(call("pay", "c-9", invoice="R-9"), ANN)
    other = await executor.submit(call("pay", "c-10", invoice="R-10"), at(customer_id="ann", tenant_id="t-2"))

    assert refused is not None
    assert (code_of(refused), refused.metadata["retry_after"]) == ("unavailable", 5.0)
    assert other is None


@pytest.mark.proves("DU-08")
async def test_tenants_take_turns(bank: Bank) -> None:
    executor = bank.start()
    for number in range(20):
        await executor.submit(call("pay", f"c-{number}", invoice=f"big-{number}"), at(tenant_id="big", customer_id="a"))
    await executor.submit(
        call("pay", "c-99", invoice="small"), at(session_id="s-2", tenant_id="small", customer_id="b")
    )

    async with working(executor, max_running=1):
        await executor.wait(session_id="s-2", call_id="c-99", timeout=PATIENCE)

    assert [invoice for invoice, _ in bank.paid].index("small") <= 1


@pytest.mark.proves("DU-09")
async def test_a_worker_without_the_definition_leaves_the_call_and_says_so(bank: Bank) -> None:
    timeouts = Timeouts(unserved_after=0.05)
    executor = bank.start(timeouts=timeouts)
    assert await executor.submit(PAYMENT, ANN) is None

    @tool(durable=True)
    async def pay(invoice: str, note: str = "") -> str:
        """Pay, as another release does it."""
        return "never"

    other = Executor([pay], policy=ALLOWED, **bank.stores, timeouts=timeouts)
    async with working(other):
        result = await executor.wait(session_id="s-1", call_id="c-1", timeout=0.2)
    assert code_of(result) == "unavailable"
    assert executor.registry.get("pay").definition_digest[:16] in result.for_model()

    async with working(executor):
        assert (await executor.wait(session_id="s-1", call_id="c-1", timeout=PATIENCE)).ok


async def test_a_drained_worker_gives_back_what_has_not_begun(bank: Bank) -> None:
    bank.hold = Held()
    executor = bank.start()
    for number in range(3):  # One session: they run one after the other.
        assert await executor.submit(call("pay", f"c-{number}", invoice=f"R-{number}"), ANN) is None

    async with Worker(executor) as worker:
        task = asyncio.create_task(worker.run())
        await bank.hold.begun.wait()
        draining = asyncio.create_task(worker.drain())
        await asyncio.sleep(0.05)
        bank.hold.go.set()
        await draining
        await task

    assert await bank.list_rows() == [("done", 1, False), ("queued", 0, True), ("queued", 0, True)]
    assert len(bank.paid) == 1


async def test_a_context_that_cannot_be_made_is_tried_again(bank: Bank) -> None:
    executor = bank.start(timeouts=Timeouts(lease=0.2))
    attempts: list[int] = []

    async def make_context(item: WorkItem) -> ToolContext[Any]:
        attempts.append(item.attempts)
        if len(attempts) < 3:
            raise ConnectionError("no database for the bank")
        return ToolContext(session_id="x", deps="bank")

    assert await executor.submit(PAYMENT, ANN) is None
    async with working(executor, context=make_context):
        assert (await executor.wait(session_id="s-1", call_id="c-1", timeout=PATIENCE)).ok

    # A lease that is over at once on a busy machine is an attempt, too.
    assert len(set(attempts)) == 3
    assert attempts == sorted(attempts)


def test_a_durable_tool_needs_a_store() -> None:
    @tool(durable=True)
    async def pay(invoice: str) -> str:
        """Pay."""
        return "paid"

    with pytest.raises(ConfigError, match="`pay` is durable, and this executor has no store"):
        Executor([pay])
    with pytest.raises(ConfigError, match="no store for durable calls"):
        Worker(Executor([]))


def test_a_read_only_tool_cannot_be_durable() -> None:
    with pytest.raises(ToolDefinitionError, match="durable is for consequential tools"):

        @tool(durable=True, read_only=True)
        async def look(invoice: str) -> str:
            """Look."""
            return ""


def test_every_door_takes_durable() -> None:
    async def pay(invoice: str) -> str:
        """Pay."""
        return "paid"

    async def execute(payload: Any, context: Any) -> str:
        return "paid"

    assert as_tool(pay, durable=True).durable
    assert tool(durable=True)(pay).durable
    assert build_tool({"name": "pay", "input_schema": {}, "execute": execute, "durable": True}).durable
    assert ToolFlags(durable=True).to_options() == {"durable": True}


@pytest.mark.parametrize("ref", [("s-1", "c-1"), ("a/b", "c%2Fd"), ("%25", "/"), ("", "ü/ü")])
def test_an_id_says_which_call_it_is(ref: tuple[str, str]) -> None:
    assert parse_work_id(build_work_id(*ref)) == ref


async def test_a_worker_does_not_ask_again_where_a_value_came_from(bank: Bank) -> None:
    policy = Policy(
        [
            Rule.deny("pay", where={"not": {"invoice": {"from": ["customer"]}}}),
            Rule.allow("pay", where={"invoice": {"from": ["customer"]}}),
        ]
    )
    provenance = Provenance()
    provenance.add_customer("Pay invoice R-100, please.")
    context = structs.replace(ANN, provenance=provenance)
    executor = bank.start(policy)
    await executor.submit(call("pay", "c-1", invoice="R-100"), context)
    refused = await executor.run(call("pay", "c-2", invoice="R-666"), context)
    assert code_of(refused) == "permission_denied"

    async with working(bank.start(policy)):  # It has the rules, and not the conversation.
        done = await executor.wait(session_id=context.session_id, call_id="c-1", timeout=10)

    assert done.ok
    assert [invoice for invoice, _ in bank.paid] == ["R-100"]

"""What is stored of a call, what is not stored again, and what is said about it, with everything in memory."""

import asyncio
from typing import Any

import pytest
from msgspec import structs

from handrail import ConfigError, Decision, Executor, Policy, Rule, ToolError, ToolResult, tool
from handrail.authorize import MemoryApprovals
from handrail.execute import MemoryLedger, MemoryWork, Timeouts, Worker, WorkItem
from tests.execute.helpers import ALLOWED, Book, Held, at, call, code_of, quiet
from tests.warped import warped

CARD = "4111 1111 1111 1111"
ANN = at(customer_id="ann")


class Shop:
    """Processes that share their stores. Invoice `lost` fails without a trace, `wrong` with an error for the model."""

    def __init__(self, ledger: MemoryLedger | None = None) -> None:
        self.work = MemoryWork()
        self.stores: dict[str, Any] = {
            "ledger": ledger or Book(),
            "work": self.work,
            "approvals": MemoryApprovals(),
        }
        self.hold: Held | None = None
        self.paid: list[str] = []

    def start(self, policy: Policy = ALLOWED, **options: Any) -> Executor:
        @tool(durable=True, key="invoice")
        async def pay(invoice: str) -> str:
            """Pay."""
            if self.hold is not None:
                await self.hold()
            if invoice == "lost":
                raise ConnectionError("lost")
            if invoice == "wrong":
                raise ToolError("There is no such invoice.")
            self.paid.append(invoice)
            return f"paid {invoice}"

        return Executor([pay], policy=policy, **self.stores, **options)

    @property
    def rows(self) -> dict[str, str]:
        return {item.call_id: item.state for item in self.work.list_items()}

    async def row(self, call_id: str = "c-1") -> WorkItem:
        item = await self.work.get(session_id="s-1", call_id=call_id)
        assert item is not None
        return item


async def work_off(executor: Executor, **options: Any) -> None:
    """Run a worker until it has nothing to do."""
    async with Worker(executor, **options) as worker:
        task = asyncio.create_task(worker.run())
        await quiet()
    await task


@pytest.mark.parametrize(
    ("rule", "is_kept"),
    [
        (Rule.ask("pay", by="operator", reason=f"the card {CARD}"), False),
        (Rule.allow("pay", reason=f"the card {CARD}"), True),
    ],
)
async def test_the_reason_of_a_question_is_stored_redacted_and_that_of_a_permission_as_it_is(
    rule: Rule, is_kept: bool
) -> None:
    shop = Shop()
    await shop.start(Policy([rule])).submit(call("pay", invoice="R-1"), ANN)

    decision = (await shop.row()).decision
    assert isinstance(decision, Decision)
    assert decision.reason.startswith("the card")
    assert (CARD in decision.reason) is is_kept


async def test_the_effect_of_another_call_that_has_no_result_is_not_stored_a_second_time() -> None:
    shop = Shop()
    executor, other = shop.start(), shop.start()
    await executor.run(call("pay", "c-1", invoice="lost"), ANN)
    shop.hold = Held()
    running = asyncio.create_task(executor.run(call("pay", "c-2", invoice="R-2"), ANN))
    await shop.hold.begun.wait()

    unknown = await other.submit(call("pay", "c-3", invoice="lost"), ANN)
    in_progress = await other.submit(call("pay", "c-4", invoice="R-2"), ANN)
    shop.hold.go.set()
    await running

    assert unknown is not None
    assert in_progress is not None
    assert [code_of(unknown), code_of(in_progress)] == ["outcome_unknown", "in_progress"]
    assert set(shop.rows) == {"c-1", "c-2"}


async def test_a_call_in_doubt_that_is_submitted_again_waits_for_somebody_who_knows() -> None:
    shop = Shop()
    executor = shop.start()
    await executor.run(call("pay", invoice="lost"), ANN)

    assert await executor.submit(call("pay", invoice="lost"), ANN) is None
    await work_off(executor)

    assert code_of(await executor.wait(session_id="s-1", call_id="c-1", timeout=0)) == "outcome_unknown"
    await executor.resolve(session_id="s-1", call_id="c-1", happened=False, who="bo")
    assert not (await executor.wait(session_id="s-1", call_id="c-1", timeout=0)).ok
    assert shop.paid == []


async def test_who_may_not_make_a_call_does_not_learn_what_another_session_did() -> None:
    shop = Shop()
    await shop.start().run(call("pay", invoice="R-1"), ANN)
    closed = shop.start(Policy([Rule.deny("pay")]))

    theirs = await closed.submit(call("pay", "c-2", invoice="R-1"), at("s-2", customer_id="ann"))
    own = await closed.submit(call("pay", "c-1", invoice="R-1"), ANN)
    other = await closed.submit(call("pay", "c-2", invoice="R-1"), ANN)

    assert theirs is not None
    assert own is not None
    assert other is not None
    assert [code_of(theirs), code_of(other)] == ["permission_denied"] * 2
    assert (own.output, own.origin) == ("paid R-1", "replayed")


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (call("pay", "c-1", invoice="R-9"), "duplicate_call"),  # The id of another call.
        (call("pay", "c-1", amount=1), "duplicate_call"),  # The same, and its arguments cannot be read.
        (call("pay", "c-9", amount=1), "invalid_arguments"),
    ],
)
async def test_a_submitted_call_that_cannot_be_stored_has_its_result_at_once(sent: Any, code: str) -> None:
    shop = Shop()
    executor = shop.start()
    await executor.run(call("pay", invoice="R-1"), ANN)

    refused = await executor.submit(sent, ANN)

    assert refused is not None
    assert (code_of(refused), refused.call_id) == (code, sent.id)
    assert shop.rows == {"c-1": "done"}


async def test_a_store_that_is_away_stores_nothing_and_says_so() -> None:
    ledger = Book()
    shop = Shop(ledger)
    executor = shop.start()
    ledger.away["recall"] = -1

    refused = await executor.submit(call("pay", invoice="R-1"), ANN)

    assert refused is not None
    assert (code_of(refused), shop.rows) == ("unavailable", {})


async def test_a_tool_that_is_not_durable_is_not_stored() -> None:
    @tool
    async def act() -> str:
        """Act."""
        return "done"

    shop = Shop()
    executor = Executor([act], policy=ALLOWED, **shop.stores)

    refused = await executor.submit(call("act"), ANN)
    nameless = await executor.submit(call("act", ""), ANN)

    assert refused is not None
    assert nameless is not None
    assert [refused.ok, nameless.ok] == [False, False]
    assert "durable" in refused.for_model()
    assert "durable" not in nameless.for_model()
    with pytest.raises(ConfigError):
        await executor.wait(session_id="s-1", call_id="c-1", timeout=0)


class AwayWork(MemoryWork):
    """A store of calls that fails as often as it is told to."""

    away = 0

    async def get(self, **which: Any) -> Any:
        if self.away:
            self.away -= 1
            raise ConnectionError("away")
        return await super().get(**which)


@warped
async def test_who_waits_for_a_store_that_is_away_waits_on_and_is_told_when_the_time_is_over() -> None:
    shop = Shop()
    shop.work = shop.stores["work"] = work = AwayWork()
    executor = shop.start()
    await executor.run(call("pay", invoice="R-1"), ANN)

    work.away = 3
    found = await executor.wait(session_id="s-1", call_id="c-1", timeout=30)
    work.away = 10_000
    lost = await executor.wait(session_id="s-1", call_id="c-1", timeout=30)

    assert (found.output, found.tool_name) == ("paid R-1", "pay")
    assert (lost.ok, code_of(lost)) == (False, "unavailable")


@warped
async def test_what_is_said_about_a_call_without_a_result_is_how_far_it_is() -> None:
    shop = Shop()
    executor = shop.start(timeouts=Timeouts(unserved_after=60))

    async def wait(call_id: str = "c-1", timeout: float = 0) -> ToolResult:
        return await executor.wait(session_id="s-1", call_id=call_id, timeout=timeout)

    await executor.submit(call("pay", invoice="R-1"), ANN)
    assert code_of(await wait()) == "in_progress"
    assert code_of(await wait(timeout=59)) == "in_progress"
    assert code_of(await wait(timeout=2)) == "unavailable"  # No worker took it.
    await work_off(executor)
    assert (await wait()).output == "paid R-1"

    await executor.submit(call("pay", "c-2", invoice="wrong"), ANN)
    await work_off(executor)
    assert code_of(await wait("c-2")) == "tool_execution_failed"


async def test_a_decision_that_is_known_wakes_its_call_and_others_do_not() -> None:
    shop = Shop()
    executor = shop.start(Policy([Rule.ask("pay", by="operator")]))
    asked = [await executor.submit(call("pay", f"c-{n}", invoice=f"R-{n}"), ANN) for n in (1, 2)]
    tokens = [item.approval.token for item in asked if item is not None and item.approval is not None]
    assert shop.rows == {"c-1": "parked", "c-2": "parked"}

    await executor.approvals.approve(tokens[1], by="operator", who="bo")
    await quiet()

    assert shop.rows == {"c-1": "parked", "c-2": "queued"}
    assert not executor.durable._sending  # pyright: ignore[reportPrivateUsage]  # Nothing of it is kept.
    assert code_of(await executor.wait(session_id="s-1", call_id="c-1", timeout=0)) == "approval_required"
    await work_off(executor)
    assert (shop.rows, shop.paid) == ({"c-1": "parked", "c-2": "done"}, ["R-2"])


async def test_a_call_whose_question_is_answered_before_it_is_parked_is_run_at_once() -> None:
    shop = Shop()

    class Answered(MemoryWork):
        """An operator is faster than the store."""

        async def park(self, item: WorkItem, **given: Any) -> Any:
            assert item.approval is not None
            await executor.approvals.approve(item.approval, by="operator", who="bo")
            return await super().park(item, **given)

    shop.work = shop.stores["work"] = Answered()
    executor = shop.start(Policy([Rule.ask("pay", by="operator")]))
    asked = await executor.submit(call("pay", invoice="R-1"), ANN)
    assert asked is not None
    assert (code_of(asked), shop.rows) == ("approval_required", {"c-1": "queued"})

    await work_off(executor)
    assert (shop.rows, shop.paid) == ({"c-1": "done"}, ["R-1"])


async def test_a_question_that_nobody_can_find_any_more_leaves_a_call_in_progress() -> None:
    shop = Shop()
    executor = shop.start(Policy([Rule.ask("pay", by="operator")]))
    await executor.submit(call("pay", invoice="R-1"), ANN)
    elsewhere = Executor(policy=ALLOWED, ledger=shop.stores["ledger"], work=shop.work, approvals=MemoryApprovals())

    assert code_of(await elsewhere.wait(session_id="s-1", call_id="c-1", timeout=0)) == "in_progress"


async def test_what_has_begun_is_not_cancelled_as_if_nothing_had_happened() -> None:
    shop = Shop()
    shop.hold = Held()
    executor, other = shop.start(), shop.start()
    running = asyncio.create_task(executor.run(call("pay", invoice="R-1"), ANN))
    await shop.hold.begun.wait()

    assert await other.cancel_stored("c-1", session_id="s-1")
    assert (await shop.row()).recorded is None
    assert code_of(await other.wait(session_id="s-1", call_id="c-1", timeout=0)) == "in_progress"
    shop.hold.go.set()
    await running


async def test_a_call_that_cannot_be_parked_has_its_question_and_no_row() -> None:
    class Away(MemoryWork):
        async def park(self, item: WorkItem, **given: Any) -> Any:
            raise ConnectionError("away")

    shop = Shop()
    shop.work = shop.stores["work"] = Away()
    executor = shop.start(Policy([Rule.ask("pay", by="operator")]))
    for number, asked in enumerate(
        (
            await executor.submit(call("pay", "c-1", invoice="R-1"), ANN),
            await executor.run(call("pay", "c-2", invoice="R-2"), ANN),
        ),
        start=1,
    ):
        assert asked is not None
        assert (code_of(asked), len(await executor.approvals.pending())) == ("approval_required", 2), number
    assert shop.rows == {}


@pytest.mark.parametrize("is_away", [False, True])
async def test_a_stored_call_that_would_repeat_what_was_done_meanwhile_is_asked_about(is_away: bool) -> None:
    class Away(MemoryWork):
        async def park(self, item: WorkItem, **given: Any) -> Any:
            if is_away:
                raise ConnectionError("away")
            return await super().park(item, **given)

    shop = Shop()
    shop.work = shop.stores["work"] = Away()
    executor = shop.start()
    assert await executor.submit(call("pay", invoice="R-1"), ANN, priority=7) is None
    assert (await executor.run(call("pay", "c-2", invoice="R-1"), at("s-2", customer_id="ann"))).ok
    assert await Worker(executor).handle("s-1/c-1") is None

    result = await executor.wait(session_id="s-1", call_id="c-1", timeout=0)
    assert (code_of(result), shop.paid) == ("approval_required", ["R-1"])
    row = await shop.row()
    assert (row.state, row.priority, row.owner) == ("done" if is_away else "parked", 7, None)


async def test_a_stored_call_that_is_verified_by_who_looks_it_up_has_ended() -> None:
    said: list[bool | None] = [None]

    @tool(durable=True, verify=lambda arguments, context: said[0])
    async def pay(invoice: str) -> str:
        """Pay."""
        raise ConnectionError("lost")

    shop = Shop()
    executor = Executor([pay], policy=ALLOWED, **shop.stores)
    assert code_of(await executor.run(call("pay", invoice="R-1"), ANN)) == "outcome_unknown"
    assert shop.rows == {"c-1": "running"}
    said[0] = True
    found = await executor.look_up(call("pay", invoice="R-1"), ANN)

    assert found is not None
    assert (found.ok, shop.rows) == (True, {"c-1": "done"})


@pytest.mark.parametrize(
    "forged",
    [
        {"tenant_id": "t-2"},
        {"tenant_id": None},
        {"session_id": "s-2"},
        {"call_id": "c-2"},
        {"tool": "sell"},
        {"definition": "another"},
        {"customer_id": "eve"},
        {"agent_id": "another"},
        {"turn": 9},
        {"wakes": 9},
        {"call": call("pay", invoice="R-666")},
        {"sent_call": call("pay", invoice="R-666")},
        {"decision": Decision(action="ask")},
        {"approval": "apr_forged"},
        {"repeat": 1},
    ],
    ids=lambda forged: next(iter(forged)),
)
async def test_a_row_is_sealed_with_everything_that_was_decided_about(forged: dict[str, Any]) -> None:
    shop = Shop()
    executor = shop.start()
    await executor.submit(call("pay", invoice="R-1"), at(customer_id="ann", tenant_id="t-1", agent_id="bot"))
    row = await shop.row()

    assert executor.durable.is_sealed(row)
    assert executor.durable.is_sealed(structs.replace(row, attempts=3, owner="w", state="running", priority=5))
    assert not executor.durable.is_sealed(structs.replace(row, **forged))


@warped
async def test_who_waits_for_a_store_that_goes_away_is_not_told_what_was_known_before() -> None:
    shop = Shop()
    shop.work = shop.stores["work"] = work = AwayWork()
    executor = shop.start()
    await executor.submit(call("pay", invoice="R-1"), ANN)
    waiting = asyncio.create_task(executor.wait(session_id="s-1", call_id="c-1", timeout=30))
    await asyncio.sleep(10)
    work.away = 10_000
    result = await waiting

    assert (code_of(result), result.tool_name) == ("unavailable", "pay")
    assert 9_800 < work.away < 9_950  # It is asked again five times a second.


@pytest.mark.parametrize(("on_interrupt", "ran"), [(None, ["R-1", "R-2"]), ("cancel", ["R-1"])])
async def test_a_durable_call_that_waits_for_its_turn_outlives_its_caller_unless_its_tool_says_otherwise(
    on_interrupt: Any, ran: list[str]
) -> None:
    paid, slow = list[str](), Held()

    @tool(durable=True, key="invoice", on_interrupt=on_interrupt)
    async def pay(invoice: str) -> str:
        """Pay."""
        paid.append(invoice)
        return await slow()

    executor = Executor([pay], policy=ALLOWED, **Shop().stores)
    first, second = (
        asyncio.create_task(executor.run(call("pay", f"c-{number}", invoice=f"R-{number}"), ANN)) for number in (1, 2)
    )
    await slow.begun.wait()
    await quiet()
    second.cancel()
    await asyncio.wait([second])
    slow.go.set()
    await first
    await quiet()

    assert paid == ran

"""Looking a call up: what the ledger knows about it, and nothing begins."""

import asyncio
from typing import Any

import pytest
from msgspec import structs

from handrail import Executor, Policy, Provenance, Rule, ToolError, tool
from handrail.core import ApprovalDecided, CallFinished
from handrail.execute import MemoryLedger, Timeouts
from tests.execute.helpers import ALLOWED, Book, Heard, Held, at, call, code_of, list_unawaited


class Shop:
    """A tool that pays, and ends as it is told."""

    def __init__(self, says: bool | None = None) -> None:
        self.runs, self.says, self.held = 0, says, Held()
        self.ends = "paid"

        @tool(name="pay", key="invoice", verify=lambda arguments, context: self.says)
        async def pay(invoice: str, amount: int = 1) -> str:
            """Pay."""
            self.runs += 1
            match self.ends:
                case "refused":
                    raise ToolError("No.")
                case "lost":
                    raise ConnectionError("lost")
                case "held":
                    return await self.held()
                case text:
                    return text

        self.pay: Any = pay


async def test_a_call_has_what_was_recorded_and_one_that_was_never_made_has_nothing() -> None:
    shop = Shop()
    executor = Executor([shop.pay], policy=ALLOWED)
    first = call("pay", "c-1", invoice="R-1")
    assert await executor.look_up(first, at()) is None
    await executor.run(first, at())
    found = await executor.look_up(first, at(turn=9))
    assert found is not None
    assert (found.output, found.origin, found.call_id, shop.runs) == ("paid", "replayed", "c-1", 1)


async def test_another_call_of_the_effect_gets_its_outcome() -> None:
    shop = Shop()
    executor = Executor([shop.pay], policy=ALLOWED)
    await executor.run(call("pay", "c-1", invoice="R-1"), at())
    other, different = call("pay", "c-2", invoice="R-1"), call("pay", "c-3", invoice="R-1", amount=9)
    found = [await executor.look_up(item, at(turn=2)) for item in (other, different)]
    assert [code_of(item) for item in found if item] == [None, "duplicate_call"]
    assert "Already done" in found[0].for_model() if found[0] else False
    assert await executor.look_up(other, at(turn=2), by_key=False) is None

    shop.ends = "refused"
    await executor.run(call("pay", "c-4", invoice="R-2"), at())
    never = await executor.look_up(call("pay", "c-5", invoice="R-2"), at())
    assert never is not None
    assert (code_of(never), "was not run" in never.for_model(), shop.runs) == ("cancelled", True, 2)


@pytest.mark.parametrize(("says", "code"), [(None, "outcome_unknown"), (True, None), (False, "tool_execution_failed")])
async def test_a_doubt_is_verified_and_the_answer_is_kept(says: bool | None, code: str | None) -> None:
    shop, heard = Shop(), Heard()
    shop.ends = "lost"
    executor = Executor([shop.pay], policy=ALLOWED, listeners=[heard])
    lost = call("pay", "c-1", invoice="R-1")
    assert code_of(await executor.run(lost, at())) == "outcome_unknown"
    shop.says = says
    found = [await executor.look_up(lost, at()) for _ in range(2)]
    assert [code_of(item) for item in found if item] == [code, code]
    assert [item.origin for item in found if item][1] == ("run" if says is None else "replayed")
    assert (len(await executor.doubts()), shop.runs) == (1 if says is None else 0, 1)
    assert len(heard.of(CallFinished)) == (1 if says is None else 2)  # Only what is new is an event.


async def test_a_tool_that_is_gone_and_a_caller_who_is_denied() -> None:
    shop, ledger = Shop(), MemoryLedger()
    policy = Policy([Rule.deny("pay", agent="intern"), Rule.allow("pay")])
    executor = Executor([shop.pay], policy=policy, ledger=ledger)
    first = call("pay", "c-1", invoice="R-1")
    await executor.run(first, at(agent_id="boss"))

    gone = await Executor([], ledger=ledger).look_up(first, at(agent_id="boss"))
    assert gone is not None
    assert gone.output == "paid"
    other = await Executor([], ledger=ledger).look_up(first, at(agent_id="intern"))
    assert other is not None
    assert (code_of(other), other.output) == ("duplicate_call", None)
    assert await Executor([], ledger=ledger).look_up(call("pay", "c-2", invoice="R-1"), at()) is None
    denied = await executor.look_up(first, at(agent_id="intern"))
    assert denied is not None
    assert code_of(denied) == "permission_denied"


async def test_a_call_that_still_runs_is_not_waited_for() -> None:
    shop = Shop()
    shop.ends = "held"
    executor = Executor([shop.pay], policy=ALLOWED)
    running = asyncio.create_task(executor.run(call("pay", "c-1", invoice="R-1"), at()))
    await asyncio.wait_for(shop.held.begun.wait(), 20)
    found = await executor.look_up(call("pay", "c-1", invoice="R-1"), at())
    assert found is not None
    assert code_of(found) == "in_progress"
    shop.held.go.set()
    assert (await running).output == "done"


async def test_a_wait_for_another_process_that_is_cancelled_does_not_say_that_nothing_was_done(
    recwarn: pytest.WarningsRecorder,
) -> None:
    shop, ledger, heard = Shop(), MemoryLedger(), Heard()
    shop.ends = "held"
    one, two = (Executor([shop.pay], policy=ALLOWED, ledger=ledger, listeners=[heard]) for _ in range(2))
    running = asyncio.create_task(one.run(call("pay", "c-1", invoice="R-1"), at()))
    await asyncio.wait_for(shop.held.begun.wait(), 20)
    waiting = asyncio.create_task(two.run(call("pay", "c-2", invoice="R-1"), at()))
    while not two.running_calls("s-1"):
        await asyncio.sleep(0)
    two.cancel("c-2", session_id="s-1")
    assert code_of(await asyncio.wait_for(waiting, 20)) == "in_progress"
    shop.held.go.set()
    assert ((await running).output, shop.runs) == ("done", 1)
    assert list_unawaited(recwarn) == []  # What it would have waited for is closed.


class SharedLedger(MemoryLedger):
    """A ledger that other processes see, too."""

    is_immediate, needs_lease = False, True


async def test_a_call_that_another_process_runs_is_in_progress_and_nobody_verifies_it() -> None:
    shop, ledger = Shop(says=True), SharedLedger()
    shop.ends = "held"
    owner, other = (Executor([shop.pay], policy=ALLOWED, ledger=ledger) for _ in range(2))
    paying = asyncio.create_task(owner.run(call("pay", "c-1", invoice="R-1"), at()))
    await shop.held.begun.wait()
    found = [await other.look_up(call("pay", id, invoice="R-1"), at()) for id in ("c-1", "c-2")]
    shop.held.go.set()

    assert [code_of(item) for item in found if item] == ["in_progress", "in_progress"]
    assert (await paying).output == "done"


async def test_a_look_up_is_reported_unless_it_only_finds_what_its_own_call_had() -> None:
    shop, heard = Shop(), Heard()
    executor = Executor([shop.pay], policy=ALLOWED, listeners=[heard])
    first, other = call("pay", "c-1", invoice="R-1"), call("pay", "c-2", invoice="R-1")
    await executor.run(first, at())

    async def look_up(sent: Any, by_key: bool) -> int:
        before = len(heard)
        await executor.look_up(sent, at(turn=2), by_key=by_key)
        return len(heard) - before

    assert await look_up(first, by_key=False) == 0
    assert await look_up(first, by_key=True) == 1
    assert await look_up(other, by_key=True) == 1
    assert await look_up(other, by_key=False) == 0


async def test_what_somebody_decides_about_a_question_is_heard_by_who_listens_to_the_executor() -> None:
    shop, heard = Shop(), Heard()
    executor = Executor([shop.pay], policy=Policy([Rule.ask("pay", by="operator")]), listeners=[heard])
    asked = await executor.run(call("pay", invoice="R-1"), at())
    assert asked.approval is not None
    await executor.approvals.approve(asked.approval.token, by="operator", who="bo")

    assert [(event.token, event.outcome) for event in heard.of(ApprovalDecided)] == [(asked.approval.token, "approved")]


class RemoteLedger(MemoryLedger):
    """A ledger of a user's own, whose connection hangs for longer than a call waits for it."""

    is_immediate = False

    def __init__(self) -> None:
        super().__init__()
        self.ended = asyncio.Event()

    async def recall(self, **of: Any) -> Any:
        try:
            async with asyncio.timeout(0.1):
                try:
                    await asyncio.get_running_loop().create_future()
                except asyncio.CancelledError:  # It closes its connection, which hangs, too.
                    await asyncio.sleep(0.15)
        finally:
            self.ended.set()


async def test_a_ledger_that_hangs_in_a_timeout_of_its_own_never_cancels_the_caller_later() -> None:
    ledger = RemoteLedger()
    executor = Executor([Shop().pay], policy=ALLOWED, ledger=ledger, timeouts=Timeouts(overhead=0.02))

    result = await executor.look_up(call("pay", invoice="R-1"), at())
    assert result is not None
    assert result.error is not None
    assert result.error.code == "outcome_unknown"
    await ledger.ended.wait()
    await asyncio.sleep(0.01)  # A cancellation would arrive here.
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await executor.aclose()


@pytest.mark.parametrize(("ends", "text"), [("paid", "`pay` was done at"), ("refused", "`pay` failed at")])
async def test_of_what_was_erased_it_is_still_known_whether_it_was_done(ends: str, text: str) -> None:
    shop, book = Shop(), Book()
    shop.ends = ends
    executor = Executor([shop.pay], policy=ALLOWED, ledger=book)
    await executor.run(call("pay", "c-1", invoice="R-1", amount=77), at())
    entry = await book.entry()
    assert entry is not None
    book.rewrite(structs.replace(entry, erased_at=1.0))

    again = await executor.run(call("pay", "c-1", invoice="R-1", amount=77), at())
    assert (again.origin, again.ok, shop.runs) == ("replayed", ends == "paid", 1)
    assert text in again.for_model()
    assert again.output != "paid"
    if ends == "paid":
        other = await executor.run(call("pay", "c-2", invoice="R-1", amount=5), at())
        assert (code_of(other), "77" in other.for_model(), "erased" in other.for_model()) == (
            "duplicate_call",
            False,
            True,
        )


@pytest.mark.parametrize(("ends", "code"), [("held", "in_progress"), ("lost", "outcome_unknown"), ("paid", None)])
async def test_a_call_of_a_tool_that_is_gone_has_what_is_known_of_it(ends: str, code: str | None) -> None:
    shop, ledger = Shop(), MemoryLedger()
    shop.ends = ends
    running = asyncio.create_task(
        Executor([shop.pay], policy=ALLOWED, ledger=ledger).run(call("pay", "c-1", invoice="R-1"), at())
    )
    await (shop.held.begun.wait() if ends == "held" else asyncio.wait([running]))

    found = await Executor([], ledger=ledger).run(call("pay", "c-1", invoice="R-1"), at())
    never = await Executor([], ledger=ledger).run(call("pay", "c-2", invoice="R-2"), at())
    shop.held.go.set()
    await running

    assert (code_of(found), code_of(never)) == (code, "tool_not_found")


async def test_a_value_of_a_result_that_was_looked_up_is_known_to_the_conversation() -> None:
    shop = Shop()
    policy = Policy([Rule.allow("pay", where={"invoice": {"from": ["customer", "tool:pay"]}})])
    executor = Executor([shop.pay], policy=policy)
    shop.ends = "R-7777"
    first, again = Provenance(), Provenance()
    for provenance in (first, again):
        provenance.add_customer("Pay R-1000")
    await executor.run(call("pay", "c-1", invoice="R-1000"), at(provenance=first))
    assert (
        code_of(await executor.run(call("pay", "c-2", invoice="R-7777"), at(provenance=again))) == "approval_required"
    )
    await executor.look_up(call("pay", "c-1", invoice="R-1000"), at(provenance=again))

    assert (await executor.run(call("pay", "c-3", invoice="R-7777"), at(provenance=again))).ok


async def test_only_calls_that_are_in_the_ledger_are_looked_up() -> None:
    @tool(read_only=True)
    async def look() -> str:
        """Look."""
        return "seen"

    shop, ledger = Shop(), MemoryLedger()
    policy = Policy([Rule.allow("pay", where={"invoice": {"from": ["customer"]}}), Rule.allow("pay")])
    executor = Executor([shop.pay, look], policy=policy, ledger=ledger)
    context = at(provenance=Provenance())
    await executor.run(call("look"), context)

    assert await executor.look_up(call("look"), context) is None
    assert await executor.look_up(call("pay", "c-2", invoice="R-1"), context) is None
    assert await executor.look_up(call("pay", "c-\ud800", invoice="R-1"), context) is None
    await executor.run(call("pay", "c-3", invoice="R-1"), context)
    assert await executor.look_up(call("look", "c-3"), context) is None
    executor.replace_tools([look])
    found = await executor.look_up(call("pay", "c-3", invoice="R-1"), context)
    assert found is not None
    assert found.output == "paid"


async def test_a_hook_that_refuses_today_does_not_hide_what_this_very_call_did() -> None:
    class Closed:
        is_closed = False

        def before(self, call: Any, tool: Any, context: Any) -> None:
            if self.is_closed:
                raise ToolError("closed")

    shop, hook = Shop(), Closed()
    executor = Executor([shop.pay], policy=ALLOWED, hooks=[hook])
    await executor.run(call("pay", "c-1", invoice="R-1"), at())
    hook.is_closed = True
    own = await executor.look_up(call("pay", "c-1", invoice="R-1"), at())
    other = await executor.look_up(call("pay", "c-2", invoice="R-1"), at())

    assert own is not None
    assert (own.output, other) == ("paid", None)

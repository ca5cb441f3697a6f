"""The straight line, from end to end: one executor, real tools, what the world saw and what was answered."""

import asyncio
from typing import Any

import pytest

from handrail import Executor, Policy, Rule, ToolCall, ToolContext, ToolError, ToolFlags, ToolResult, tool
from handrail.core import Approval, CallFinished, CallIgnored, CallStarted, DecisionMade
from handrail.core.text import compact_json
from handrail.errors import ApprovalError

paid: list[tuple[str, str | None]] = []


@pytest.fixture(autouse=True)
def nothing_is_paid() -> None:
    paid.clear()


@tool(read_only=True, concurrency_safe=True)
async def look(place: str) -> str:
    """Look somewhere."""
    return f"seen {place}"


@tool(key="invoice", timeout=5)
async def pay(invoice: str, amount: int, context: ToolContext) -> str:
    """Pay an invoice."""
    paid.append((invoice, context.idempotency_key))
    match invoice:
        case "closed":
            paid.pop()
            raise ToolError("The account is closed.")
        case "crash":
            raise SystemExit
        case "hang":
            await asyncio.Event().wait()
        case _:
            return f"paid {amount}"
    raise AssertionError


def call(call_id: str, name: str, **arguments: Any) -> ToolCall:
    return ToolCall(id=call_id, name=name, arguments_json=compact_json(arguments))


def at(turn: int = 1, session: str = "s") -> ToolContext:
    return ToolContext(session_id=session, customer_id="c", turn=turn)


def rail_with(*rules: Rule, **options: Any) -> tuple[Executor, list[Any]]:
    heard: list[Any] = []
    return Executor([look, pay], policy=Policy(rules), listeners=[heard.append], **options), heard


async def test_a_read_only_tool_runs_and_both_ends_are_reported() -> None:
    executor, heard = rail_with()

    result = await executor.run(call("1", "look", place="here"), at())

    assert (result.ok, result.output, result.call_id, result.tool_name) == (True, "seen here", "1", "look")
    assert [type(event) for event in heard] == [CallStarted, CallFinished]
    assert heard[1].decision.action == "allow"


async def test_a_tool_that_says_nothing_of_itself_asks_the_customer_and_names_what_would_allow_it() -> None:
    executor, heard = rail_with()

    result = await executor.run(call("1", "pay", invoice="a", amount=1), at())

    assert result.error is not None
    assert result.error.code == "approval_required"
    assert "Rule.allow" in result.decision.reason
    assert not paid
    assert [event.decision.by for event in heard if isinstance(event, DecisionMade)] == ["customer"]


async def test_the_same_call_runs_once_and_gets_the_same_result() -> None:
    executor, heard = rail_with(Rule.allow("pay"))
    same = call("1", "pay", invoice="a", amount=1)

    first, second = await executor.run(same, at()), await executor.run(same, at())

    assert (first.output, second.output) == ("paid 1", "paid 1")
    assert second.origin == "replayed"
    assert len(paid) == 1
    assert [event.reason for event in heard if isinstance(event, CallIgnored)] == ["already_executed"]


async def test_calls_that_arrive_together_join_the_one_that_runs() -> None:
    executor, _ = rail_with(Rule.allow("pay"))
    same = call("1", "pay", invoice="a", amount=1)

    results = await executor.run_all([same, same, call("2", "pay", invoice="a", amount=1)], at())

    assert [result.call_id for result in results] == ["1", "1", "2"]
    assert all(result.ok for result in results)
    assert len(paid) == 1


async def test_an_id_that_was_another_call_is_refused() -> None:
    executor, _ = rail_with(Rule.allow("pay"))
    await executor.run(call("1", "pay", invoice="a", amount=1), at())

    result = await executor.run(call("1", "pay", invoice="b", amount=1), at())

    assert result.error is not None
    assert result.error.code == "duplicate_call"
    assert len(paid) == 1


async def test_an_intended_second_payment_is_asked_about_and_then_made_under_its_own_key() -> None:
    executor, _ = rail_with(Rule.allow("pay"))
    await executor.run(call("1", "pay", invoice="a", amount=1), at(turn=1))
    again = call("2", "pay", invoice="a", amount=1)

    asked = await executor.run(again, at(turn=2))
    assert asked.error is not None
    assert asked.error.code == "approval_required"
    await executor.approvals.approve(asked.approval.token, by="customer", who="c")
    done = await executor.run(again, at(turn=3))

    assert done.output == "paid 1"
    assert len(paid) == 2
    assert len({key for _, key in paid}) == 2


async def test_a_refusal_of_the_handler_means_that_nothing_happened_and_may_be_tried_again() -> None:
    executor, _ = rail_with(Rule.allow("pay"))

    results = [await executor.run(call(item, "pay", invoice="closed", amount=1), at()) for item in ("1", "2")]

    assert [result.error.message for result in results if result.error] == ["The account is closed."] * 2


@pytest.mark.parametrize("invoice", ["crash", "hang"])
async def test_what_nobody_can_know_is_unknown_and_is_never_run_again_by_itself(invoice: str) -> None:
    executor, _ = rail_with(Rule.allow("pay"))
    first = asyncio.create_task(executor.run(call("1", "pay", invoice=invoice, amount=1), at()))
    while not paid:
        await asyncio.sleep(0)
    executor.cancel("1", session_id="s")

    codes = [(await first).error, (await executor.run(call("2", "pay", invoice=invoice, amount=1), at(turn=2))).error]

    assert [error.code for error in codes if error] == ["outcome_unknown", "outcome_unknown"]
    assert len(paid) == 1


async def test_an_effect_outlives_its_caller_and_is_recorded() -> None:
    gate = asyncio.Event()
    done: list[str] = []

    @tool
    async def ship(order: str) -> str:
        """Ship an order."""
        await gate.wait()
        done.append(order)
        return "shipped"

    executor = Executor([ship], policy=Policy([Rule.allow("*")]))
    caller = asyncio.create_task(executor.run(call("1", "ship", order="a"), at()))
    while not executor.running_calls("s"):
        await asyncio.sleep(0)
    for _ in range(5):
        await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    gate.set()

    result = await executor.run(call("1", "ship", order="a"), at())

    assert (result.output, done) == ("shipped", ["a"])


async def approval_of(executor: Executor, **arguments: Any) -> tuple[ToolCall, Approval]:
    asked = call("1", "pay", **arguments)
    await executor.run(asked, at())
    return asked, (await executor.approvals.pending())[0]


async def test_an_operators_approval_lets_exactly_this_call_run_once() -> None:
    executor, _ = rail_with(Rule.ask("pay", by="operator"))
    asked, approval = await approval_of(executor, invoice="a", amount=1)
    await executor.approvals.approve(approval.token, by="operator", who="ann")

    other = await executor.run(call("2", "pay", invoice="a", amount=2), at())
    results = [await executor.run(asked, at()) for _ in range(2)]

    assert other.error is not None
    assert other.error.code == "approval_required"
    assert [result.output for result in results] == ["paid 1", "paid 1"]
    assert len(paid) == 1


async def test_an_approval_of_the_customer_counts_from_a_later_turn_on() -> None:
    executor, _ = rail_with(Rule.ask("pay", by="customer"))
    asked, approval = await approval_of(executor, invoice="a", amount=1)
    await executor.approvals.approve(approval.token, by="customer", who="c")

    now, later = await executor.run(asked, at(turn=1)), await executor.run(asked, at(turn=2))

    assert now.error is not None
    assert (now.error.code, later.output, len(paid)) == ("approval_required", "paid 1", 1)


@pytest.mark.parametrize(
    ("token", "by", "who"),
    [("apr_forged", "customer", "c"), (None, "operator", "c"), (None, "customer", "somebody else")],
)
async def test_an_approval_that_is_forged_or_of_the_wrong_person_is_refused(
    token: str | None, by: Any, who: str
) -> None:
    executor, _ = rail_with(Rule.ask("pay", by="customer"))
    asked, approval = await approval_of(executor, invoice="a", amount=1)

    with pytest.raises(ApprovalError):
        await executor.approvals.approve(token or approval.token, by=by, who=who)

    assert not (await executor.run(asked, at(turn=2))).ok
    assert not paid


async def test_a_denied_call_is_refused_with_the_reason() -> None:
    executor, _ = rail_with(Rule.ask("pay", by="operator"))
    asked, approval = await approval_of(executor, invoice="a", amount=1)
    await executor.approvals.deny(approval.token, by="operator", who="ann", reason="not this month")

    result = await executor.run(asked, at())

    assert result.error is not None
    assert result.error.code == "permission_denied"
    assert "not this month" in result.error.message


async def test_another_frameworks_handler_goes_the_same_way() -> None:
    executor, _ = rail_with(Rule.allow("remote"), declared={"remote": ToolFlags()})
    ran: list[int] = []

    async def proceed() -> ToolResult:
        ran.append(1)
        return ToolResult(output="done elsewhere")

    results = [await executor.guard(call("1", "remote", a=1), at(), proceed) for _ in range(2)]

    assert [result.output for result in results] == ["done elsewhere", "done elsewhere"]
    assert ran == [1]


async def test_a_listener_that_raises_never_breaks_a_call() -> None:
    def broken(event: Any) -> None:
        raise RuntimeError("no ears")

    executor = Executor([look], listeners=[broken])

    assert (await executor.run(call("1", "look", place="here"), at())).output == "seen here"

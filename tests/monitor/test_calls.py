"""Which calls are on their way: counted once each, and forgotten when they are over."""

import pytest

from handrail import Executor, Policy, Rule, ToolCall, ToolContext, ToolResult, tool
from handrail.core import CallAccepted, CallFinished, CallIgnored, CallStarted, Event
from handrail.monitor.calls import CallCounter
from tests.monitor.conftest import call


def accepted(one: ToolCall, session: str = "s") -> CallAccepted:
    return CallAccepted(at=0.0, session_id=session, call=one)


def started(one: ToolCall, session: str = "s") -> CallStarted:
    return CallStarted(at=0.0, session_id=session, call=one)


def finished(one: ToolCall, session: str = "s") -> CallFinished:
    return CallFinished(at=0.0, session_id=session, call=one, result=ToolResult(output="x"))


def ignored(one: ToolCall, reason: str) -> CallIgnored:
    return CallIgnored(at=0.0, session_id="s", call=one, reason=reason)


def test_a_call_is_pending_from_its_acceptance_and_active_from_its_start() -> None:
    counts, one = CallCounter(), call("look")
    seen: list[tuple[int, int]] = []

    for event in (accepted(one), started(one), started(one), finished(one), finished(one)):
        counts.count(event)
        seen.append(counts.get("s"))

    assert seen == [(1, 0), (1, 1), (1, 1), (0, 0), (0, 0)]


def test_two_calls_of_one_id_are_two_and_one_call_in_two_sessions_too() -> None:
    counts, one, same = CallCounter(), call("look"), call("look")
    for event in (started(one), started(same), started(one, "s-2")):
        counts.count(event)

    assert (counts.get("s"), counts.get("s-2")) == ((2, 2), (1, 1))
    counts.count(finished(one))
    assert (counts.get("s"), counts.get("s-2")) == ((1, 1), (1, 1))


@pytest.mark.parametrize(("reason", "left"), [("already_pending", 1), ("already_executed", 0)])
def test_a_call_that_was_found_in_the_ledger_is_over(reason: str, left: int) -> None:
    counts, one = CallCounter(), call("look")
    counts.count(accepted(one))

    counts.count(ignored(one, reason))

    assert counts.get("s") == (left, 0)


def test_nothing_is_kept_of_a_session_whose_calls_are_over() -> None:
    counts = CallCounter()
    for number in range(100):
        one = call("look")
        counts.count(accepted(one, f"s-{number}"))
        counts.count(started(one, f"s-{number}"))
        counts.count(finished(one, f"s-{number}"))
        counts.get(f"s-{number}")

    assert len(counts) == 0


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("read_only", [False, True])
async def test_a_call_whose_approver_changed_its_arguments_is_one_call(read_only: bool, is_done: bool) -> None:
    @tool(read_only=read_only)
    async def pay(amount: int) -> int:
        """Pay."""
        return amount

    async def run(id: str, amount: int, approved: int) -> ToolResult:
        sent = ToolCall(id=id, name="pay", arguments_json=f'{{"amount": {amount}}}')
        asked = await executor.run(sent, context)
        assert asked.approval is not None
        changed = {"amount": approved}
        await executor.approvals.approve(asked.approval.token, by="operator", who="ada", arguments=changed)
        return await executor.run(sent, context)

    counts, seen = CallCounter(), list[tuple[int, int]]()

    def count(event: Event) -> None:
        counts.count(event)
        seen.append(counts.get("s"))

    policy, context = Policy([Rule.ask("pay", by="operator")]), ToolContext(session_id="s")
    executor = Executor([pay], policy=policy, listeners=[count])
    if is_done:  # The same effect, so that the changed call is refused, and never starts.
        await run("c-1", 2, 2)
    await run("c-2", 1, 2)

    assert (len(counts), max(seen)) == (0, (1, 1))

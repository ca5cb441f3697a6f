"""Who approved refund X: every request, decision and use of an approval is a fact, and can be found again."""

import asyncio
import logging
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from handrail import Executor, Policy, Rule, ToolCall, ToolContext, tool
from handrail.authorize import MemoryApprovals
from handrail.core import ApprovalDecided, ApprovalRequested, ApprovalUsed
from handrail.errors import ApprovalError
from handrail.monitor import Metrics
from handrail.store import open_store
from tests.execute.helpers import Heard

OPERATOR = Policy([Rule.ask("refund", by="operator")])
CONTEXT = ToolContext(session_id="s-1", customer_id="c-1", tenant_id="acme", turn=1)


@tool
async def refund(order_id: str, amount: int) -> str:
    """Refund an order."""
    return f"refunded {amount}"


def call(id: str = "call-1", amount: int = 5) -> ToolCall:
    return ToolCall(id=id, name="refund", arguments_json=f'{{"order_id": "X", "amount": {amount}}}')


async def test_request_decision_and_use_are_one_fact_each_with_who_why_and_for_whom(tmp_path: Any) -> None:
    async with open_store(f"sqlite+aiosqlite:///{tmp_path}/a.db") as store:
        options: Any = {"policy": OPERATOR, "store": store}
        executor = Executor([refund], **options)
        token = (await executor.run(call(), CONTEXT)).approval.token
        await executor.run(call(), CONTEXT)  # Sent again: the same request.
        async with open_store(f"sqlite+aiosqlite:///{tmp_path}/a.db") as elsewhere:  # An operator's own process.
            await elsewhere.approvals.approve(token, by="operator", who="ann", reason="checked")
        assert (await executor.run(call(), CONTEXT)).output == "refunded 5"
        await store.audit.flush()
        facts = [fact for fact in await store.audit.query(session_id="s-1") if fact.kind.startswith("approval_")]
        (found,) = await store.approvals.history(customer_id="c-1", tool="refund", who="ann")

    assert [fact.kind for fact in facts] == ["approval_requested", "approval_decided", "approval_used"]
    assert {fact.detail["token"] for fact in facts} == {token}
    assert {fact.customer_id for fact in facts} == {"c-1"}
    assert len({fact.detail["arguments_digest"] for fact in facts}) == 1
    assert {(fact.tool, fact.by, fact.tenant_id) for fact in facts} == {("refund", "operator", "acme")}
    decided, used = facts[1:]
    assert (decided.detail["who"], decided.detail["outcome"], decided.reason) == ("ann", "approved", "checked")
    assert (used.detail["who"], used.call_id) == ("ann", "call-1")
    assert (found.token, found.who, found.reason, found.state) == (token, "ann", "checked", "used")
    assert found.decided_at is not None


async def test_listeners_of_an_executor_in_memory_get_the_same_events_and_metrics_count_them() -> None:
    heard: list[Any] = []
    metrics = Metrics(CollectorRegistry())
    read = metrics.registry.get_sample_value
    executor = Executor([refund], policy=OPERATOR, listeners=[heard.append, metrics])
    token = (await executor.run(call(), CONTEXT)).approval.token
    other = (await executor.run(call("call-2", amount=6), CONTEXT)).approval.token
    assert read("handrail_approvals_waiting") == 2
    await executor.approvals.approve(token, by="operator", who="ann")
    await executor.approvals.deny(other, by="operator", who="bob", reason="no")
    await executor.run(call(), CONTEXT)

    kinds = [type(event) for event in heard if isinstance(event, ApprovalRequested | ApprovalDecided | ApprovalUsed)]
    assert kinds == [ApprovalRequested, ApprovalRequested, ApprovalDecided, ApprovalDecided, ApprovalUsed]
    assert read("handrail_approvals_waiting") == 0
    for outcome in ("approved", "denied"):
        assert read("handrail_approval_decision_seconds_count", {"outcome": outcome}) == 1
    assert [approval.state for approval in await executor.approvals.history(session_id="s-1")] == ["used", "denied"]
    assert [approval.token for approval in await executor.approvals.history(limit=1)] == [other]
    assert await executor.approvals.history(customer_id="c-2") == []


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("kind", ["memory", "sql", "a ledger in memory with approvals in sql"])
async def test_the_use_of_an_approval_says_which_call_used_it(kind: str, read_only: bool, tmp_path: Any) -> None:
    @tool(read_only=read_only)
    async def look() -> str:
        """Look."""
        return "seen"

    heard = Heard()
    options: Any = {"policy": Policy([Rule.ask("look", by="operator")]), "listeners": [heard]}
    async with open_store(f"sqlite+aiosqlite:///{tmp_path}/a.db") as store:
        stores: Any = {"memory": {}, "sql": {"store": store}}.get(kind, {"approvals": store.approvals})
        executor = Executor([look], **options, **stores)
        asked = await executor.run(ToolCall(id="call-1", name="look"), CONTEXT)
        await executor.approvals.approve(asked.approval.token, by="operator", who="ann")
        assert (
            await executor.run(ToolCall(id="call-2", name="look"), CONTEXT)
        ).ok  # An equal call, which was not asked about.

    assert [(used.token, used.call_id) for used in heard.of(ApprovalUsed)] == [(asked.approval.token, "call-2")]


@pytest.mark.parametrize("kind", ["memory", "sql"])
async def test_a_decision_can_be_waited_for(kind: str, tmp_path: Any) -> None:
    async with open_store(f"sqlite+aiosqlite:///{tmp_path}/a.db") as store:
        approvals: Any = store.approvals if kind == "sql" else MemoryApprovals()
        executor = Executor([refund], policy=OPERATOR, approvals=approvals)
        token = (await executor.run(call(), CONTEXT)).approval.token
        with pytest.raises(TimeoutError):
            await approvals.wait(token, timeout=0.01)
        waiting = asyncio.create_task(approvals.wait(token, timeout=20))
        await approvals.deny(token, by="operator", who="ann", reason="no")
        decided = await waiting

        assert (decided.state, decided.who, decided.reason) == ("denied", "ann", "no")
        with pytest.raises(ApprovalError):
            await approvals.wait("apr_unknown", timeout=1)


async def test_a_customers_approval_without_turns_says_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    executor = Executor([refund])
    context = ToolContext(session_id="s-1", customer_id="c-1")
    token = (await executor.run(call(), context)).approval.token
    await executor.approvals.approve(token, by="customer", who="c-1")
    again = await executor.run(call(), context)

    assert again.error is not None
    assert again.error.code == "approval_required"
    assert "in turn 0 and is used in turn 0: raise ToolContext(turn=…)" in caplog.text
    assert logging.WARNING in {record.levelno for record in caplog.records}


async def test_an_executor_that_is_gone_is_not_kept_by_its_approvals() -> None:
    approvals = MemoryApprovals()
    for _ in range(3):
        await Executor([refund], policy=OPERATOR, approvals=approvals).run(call(), CONTEXT)
    import gc

    gc.collect()
    assert len(approvals.events._buses) == 0  # pyright: ignore[reportPrivateUsage]

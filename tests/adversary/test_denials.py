"""A denial is the answer to its call, whatever happened meanwhile, and to no other."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from handrail import Executor, ToolResult, tool
from handrail.store import open_store
from tests.execute.helpers import at, call, code_of
from tests.postgres import DATABASES, new_database
from tests.postgres import postgres as postgres  # a fixture


@pytest.fixture(params=["memory", *DATABASES])
async def kept(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[dict[str, Any]]:
    """The ledger and the approvals of an executor, in each form."""
    if request.param == "memory":
        yield {}
        return
    async with open_store(new_database(request.param, tmp_path, request)) as store:
        yield {"store": store}


@tool(key=lambda arguments: arguments["invoice"])
async def pay(invoice: str) -> str:
    """Pay."""
    return f"paid {invoice}"


async def deny(executor: Executor, asked: ToolResult) -> None:
    assert asked.approval is not None
    await executor.approvals.deny(asked.approval.token, by="customer", who="ann", reason="too much")


async def agree(executor: Executor, asked: ToolResult) -> None:
    assert asked.approval is not None
    await executor.approvals.approve(asked.approval.token, by="customer", who="ann")


async def test_a_customer_who_said_no_and_asks_again_later_is_asked_again(kept: dict[str, Any]) -> None:
    executor = Executor([pay], **kept)
    first = await executor.run(call("pay", invoice="R-1"), at(customer_id="ann"))
    await deny(executor, first)
    assert code_of(await executor.run(call("pay", invoice="R-1"), at(turn=2, customer_id="ann"))) == "permission_denied"

    again = await executor.run(call("pay", "c-2", invoice="R-1"), at(turn=3, customer_id="ann"))

    assert code_of(again) == "approval_required"
    await agree(executor, again)
    assert (await executor.run(call("pay", "c-2", invoice="R-1"), at(turn=4, customer_id="ann"))).output == "paid R-1"
    late = await executor.run(call("pay", invoice="R-1"), at(turn=5, customer_id="ann"))
    assert code_of(late) == "permission_denied"
    assert "too much" in late.for_model()
    assert await executor.approvals.pending() == []


@pytest.mark.parametrize("ran_at", [1, 2])
async def test_a_denial_stays_the_answer_when_another_session_does_the_same(kept: dict[str, Any], ran_at: int) -> None:
    executor = Executor([pay], **kept)
    mine, theirs = at("s-1", customer_id="ann"), at("s-2", turn=ran_at, customer_id="ann")
    await deny(executor, await executor.run(call("pay", invoice="R-1"), mine))
    await agree(executor, await executor.run(call("pay", "c-9", invoice="R-1"), theirs))
    other = at("s-2", turn=ran_at + 1, customer_id="ann")
    assert (await executor.run(call("pay", "c-9", invoice="R-1"), other)).ok

    result = await executor.run(call("pay", invoice="R-1"), at("s-1", turn=2, customer_id="ann"))

    assert code_of(result) == "permission_denied"
    assert "too much" in result.for_model()

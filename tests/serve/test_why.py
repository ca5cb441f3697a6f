"""Ten calls that went wrong, each planted: `why` names the reason, on one screen."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from handrail import Executor, Policy, ToolCall, ToolContext, tool
from handrail.authorize import load_policy
from handrail.core import TurnPlanned
from handrail.execute import CircuitBreaker, Limits, Timeouts
from handrail.serve.call_report import explain_past_call
from handrail.store import SqlStore, open_store
from handrail.store.tables import approvals

SCREEN = 40
"""Lines."""
POLICY = """
rules:
  - deny: pay*
    where: {amount: {above: 100}}
    reason: over the limit of this desk
  - ask: pay
    by: operator
  - allow: ship
"""


class Shop:
    """Tools that go wrong on request, under a policy from a file, with everything audited."""

    def __init__(self, store: SqlStore, directory: Path, **options: Any) -> None:
        self.store = store
        file = directory / "policy.yaml"
        file.write_text(POLICY)

        @tool
        async def pay(to: str, amount: int) -> str:
            """Pay."""
            return f"paid {amount} to {to}"

        @tool(timeout=0.01)
        async def ship(order: int) -> str:
            """Ship."""
            await asyncio.sleep(60)
            return "shipped"

        @tool(read_only=True, timeout=0.01)
        async def look(order: int) -> str:
            """Look."""
            await asyncio.sleep(60)
            return "seen"

        @tool(read_only=True)
        async def fail() -> str:
            """Fail."""
            raise RuntimeError("broken")

        self.executor = Executor(
            [pay, ship, look, fail], policy=load_policy(file), store=store, **{"timeouts": Timeouts(), **options}
        )

    async def send(self, id: str, name: str, arguments: str, *, customer: str = "ann", **call: Any) -> Any:
        context = ToolContext(session_id="s", customer_id=customer, turn=1)
        return await self.executor.run(ToolCall(id=id, name=name, arguments_json=arguments, **call), context)

    async def approve_all(self) -> None:
        for approval in await self.store.approvals.pending():
            await self.store.approvals.approve(approval.token, by="operator", who="bob", reason="checked")

    async def find_executor(self, tenant_id: str | None) -> Executor:
        return self.executor

    async def explain(self, id: str) -> Mapping[str, str]:
        """The sections of the report; it fits on one screen."""
        await self.store.audit.flush(timeout=60)
        report = await explain_past_call(self.store, session_id="s", call_id=id, find_executor=self.find_executor)
        assert report is not None
        assert len(str(report).splitlines()) <= SCREEN, str(report)
        return {"outcome": report.outcome, **{section.title: "\n".join(section.lines) for section in report.sections}}


@pytest.fixture
def shop(store: SqlStore, tmp_path: Path) -> Shop:
    return Shop(store, tmp_path)


@pytest.mark.proves("GW-17")
async def test_a_rule_that_is_too_wide(shop: Shop) -> None:
    await shop.send("c", "pay", '{"to": "x", "amount": 500}')
    told = await shop.explain("c")
    assert told["outcome"] == "permission_denied"
    assert "policy.yaml:3): over the limit of this desk" in told["Rule"]
    assert "never claimed" in told["Attempts"]


async def test_an_approval_that_came_too_late(shop: Shop) -> None:
    await shop.send("c", "pay", '{"to": "x", "amount": 5}')
    await shop.approve_all()
    await shop.store._database.write(update(approvals).values(expires_at=1.0), {})  # As if much time had passed.
    told = await shop.explain("c")
    assert told["outcome"] == "approval_required"
    assert "approved by bob" in told["Approval"]
    assert "it expired at" in told["Approval"]


async def test_an_approval_of_another_customer(shop: Shop) -> None:
    await shop.send("c-1", "pay", '{"to": "x", "amount": 5}', customer="ann")
    await shop.approve_all()
    await shop.send("c-2", "pay", '{"to": "x", "amount": 5}', customer="eve")
    told = await shop.explain("c-2")
    assert "customer eve" in told["Asked by"]
    assert "it is waiting" in told["Approval"]
    assert "bob" not in told["Approval"]


async def test_arguments_that_the_model_swapped(shop: Shop) -> None:
    await shop.send("c", "pay", '{"to": "100", "amount": 17}')
    await shop.approve_all()
    await shop.send("c", "pay", '{"to": "100", "amount": 17}')
    told = await shop.explain("c")
    assert 'sent: {"to":"100","amount":17}' in told["Arguments"]
    assert "ran with: " in told["Arguments"]
    assert "approved by bob" in told["Approval"]
    assert told["The model read"] == "paid 17 to 100"


async def test_a_call_that_was_answered_from_the_ledger(shop: Shop) -> None:
    for id in ("c-1", "c-1", "c-1", "c-2"):
        await shop.send(id, "pay", '{"to": "x", "amount": 5}')
        await shop.approve_all()
    told = await shop.explain("c-2")
    assert "was done before, and its recorded result is the answer" in told["Result"]
    assert told["outcome"] == "not run again"
    assert "never claimed" in told["Attempts"]


async def test_a_read_that_took_too_long(shop: Shop) -> None:
    await shop.send("c", "look", '{"order": 7}')
    told = await shop.explain("c")
    assert told["outcome"] == "tool_timeout"
    assert "tool_timeout after" in told["Result"]


async def test_an_effect_that_nobody_knows_the_outcome_of_and_who_resolved_it(shop: Shop) -> None:
    await shop.send("c", "ship", '{"order": 7}')
    told = await shop.explain("c")
    assert told["outcome"] == "in doubt"
    assert "nobody knows the outcome" in told["Attempts"]
    (doubt,) = await shop.executor.doubts()
    assert doubt.idempotency_key in told["Attempts"]
    await shop.executor.resolve(session_id="s", call_id="c", happened=True, who="bob", reason="the depot says so")
    told = await shop.explain("c")
    assert told["outcome"] == "done"
    assert "bob said that it happened: the depot says so" in told["Result"]


async def test_a_tool_that_is_held_because_its_definition_changed(shop: Shop) -> None:
    shop.executor.replace_tools([item for item in shop.executor.registry if item.name != "ship"])
    await shop.send("c", "ship", '{"order": 7}')
    told = await shop.explain("c")
    assert told["outcome"] == "tool_not_found"
    assert "no tool named `ship`" in told["The model read"]


async def test_a_guideline_that_led_to_the_call(shop: Shop) -> None:
    await shop.send("c", "pay", '{"to": "x", "amount": 5}', guideline_ids=("pay-fast",))
    planned = TurnPlanned(
        at=1.0, session_id="s", turn=1, guideline_ids=("pay-fast",), call_ids=("c",), trace=("pay-fast: matched",)
    )
    shop.executor.emit(planned)
    told = await shop.explain("c")
    assert "led to by pay-fast" in told["Guidelines"]
    assert "pay-fast: matched" in told["Guidelines"]


@pytest.mark.parametrize("has_values", [True, False])
async def test_a_circuit_breaker_that_is_open(has_values: bool, tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path}/breaker.db", audit_values=has_values) as store:
        shop = Shop(store, tmp_path, limits=Limits(circuit_breaker=CircuitBreaker(max_failures=2)))
        for number in range(3):
            await shop.send(f"c-{number}", "fail", "{}")
        told = await shop.explain("c-2")
    assert told["outcome"] == "unavailable"
    assert "the circuit breaker of the tool is open" in told["Result"]
    if not has_values:
        assert "the values are not stored" in told["The model read"]


@pytest.mark.proves("GW-17")
async def test_nothing_is_told_about_another_tenants_call(store: SqlStore) -> None:
    executor = Executor([], policy=Policy(), store=store)
    await executor.run(ToolCall(id="c", name="x"), ToolContext(session_id="s", tenant_id="acme"))
    await store.audit.flush(timeout=60)
    assert await explain_past_call(store, session_id="s", call_id="c", tenant_id="other") is None
    assert await explain_past_call(store, session_id="s", call_id="c", tenant_id="acme") is not None

"""A call that was stored runs with the approval it was stored with: given for exactly it, still good, or not at all."""

import time
from typing import Any

import pytest
from msgspec import structs

from handrail import Decision, Policy, Rule, ToolContext, tool
from handrail.authorize import MemoryApprovals
from handrail.authorize.authorizer import Authorization, Authorizer, Refusal
from handrail.authorize.effect_keys import CallDigests
from handrail.authorize.hooks import CallbackRunner
from handrail.core import Approval, DecisionMade
from tests.execute.helpers import Heard, at, call

ASKED = Decision(action="ask", by="customer", rule="payments", source="policy", reason="a yes is needed")
POLICY = Policy([Rule.deny("pay", where={"amount": {"above": 100}}), Rule.ask("pay", by="customer")])


@tool
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


class Desk:
    """An authorizer, and the approval that a call of `pay(5)` was stored with."""

    def __init__(self) -> None:
        self.heard = Heard()
        self.approvals = MemoryApprovals()
        self.digests = CallDigests(lambda: b"k" * 32)

        async def run_in_thread(function: Any, owner: str) -> Any:
            raise AssertionError("nothing blocks here")

        self.authorizer = Authorizer(
            approvals=self.approvals,
            hooks=(),
            digests=self.digests,
            emit=self.heard,
            callbacks=CallbackRunner(run_in_thread),
        )

    async def store(self, **values: Any) -> str:
        sent, now = call("pay", amount=5), time.time()
        digest = self.digests.digest_for_approval(pay, sent, pay.parse(sent.arguments_json), {"amount": 5}, at())
        kept = Approval(
            token="apr_1",
            tool="pay",
            digest=digest,
            session_id="s-1",
            by="customer",
            turn=1,
            arguments={"amount": 5},
            created_at=now,
            expires_at=now + 900,
        )
        await self.approvals.ask(structs.replace(kept, **values))
        return kept.token

    async def use(self, token: str, context: ToolContext[Any] | None = None, amount: int = 5) -> Authorization:
        sent = call("pay", amount=amount)
        value = pay.parse(sent.arguments_json)
        return await self.authorizer.use_approval(
            POLICY.compile(pay), ASKED, token, sent, value, lambda: {"amount": amount}, context or at(turn=2)
        )


async def test_an_approved_call_may_run_as_it_was_sent() -> None:
    desk = Desk()
    await desk.store(state="approved")

    used = await desk.use("apr_1")

    assert (used.call, used.decision) == (call("pay", amount=5), ASKED)
    assert used.approval is not None
    assert used.approval.token == "apr_1"
    assert desk.heard == []


@pytest.mark.parametrize(
    ("values", "code", "says"),
    [
        ({"digest": "of another call", "state": "approved"}, "approval_required", "expired"),
        ({"state": "denied", "reason": "no more"}, "permission_denied", "the customer said no: no more"),
        ({"state": "pending"}, "approval_required", "a yes is needed"),
        ({"state": "approved", "turn": 2}, "approval_required", "expired"),
        ({"state": "approved", "expires_at": 1.0}, "approval_required", "expired"),
        ({"state": "used"}, "approval_required", "expired"),
        ({"state": "withdrawn"}, "approval_required", "expired"),
        ({"state": "approved", "changed_arguments": {"amount": 500}}, "permission_denied", "not allowed"),
        ({"state": "approved", "changed_arguments": {"amount": "many"}}, "invalid_arguments", ""),
    ],
)
async def test_any_other_is_refused_and_nobody_is_asked_again(values: dict[str, Any], code: str, says: str) -> None:
    desk = Desk()
    await desk.store(**values)

    with pytest.raises(Refusal) as refused:
        await desk.use("apr_1")

    assert refused.value.result.error is not None
    assert refused.value.result.error.code == code
    assert says in refused.value.result.error.message
    assert (refused.value.result.approval is not None) is (values["state"] == "pending")
    assert [event.decision.action for event in desk.heard.of(DecisionMade)] == ["deny"] * (values["state"] == "denied")
    assert len(await desk.approvals.history()) == 1


async def test_an_approval_that_is_gone_or_was_given_for_other_arguments_is_none() -> None:
    desk = Desk()
    await desk.store(state="approved")

    for token, amount in (("apr_2", 5), ("apr_1", 6)):
        with pytest.raises(Refusal, match="expired"):
            await desk.use(token, amount=amount)


async def test_arguments_that_the_approver_wrote_instead_are_those_that_run() -> None:
    desk = Desk()
    await desk.store(state="approved", changed_arguments={"amount": 4})

    used = await desk.use("apr_1")

    assert (used.call.arguments_json, pay.dump(used.value)) == ('{"amount":4}', {"amount": 4})

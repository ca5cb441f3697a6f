"""Approvals as data: of exactly one call, by the right person, in time, and used once."""

import asyncio
import time
from typing import Any

import pytest

from handrail import Executor, Policy, Rule, ToolContext, ToolResult, tool
from handrail.authorize import MemoryApprovals
from handrail.authorize.approvals import new_token
from handrail.core import Approval, ApprovalDecided, ApprovalUsed, CallFinished, CallStarted, DecisionMade
from handrail.errors import ApprovalError, ConfigError
from handrail.execute import Timeouts
from tests.execute.helpers import Heard, at, call, code_of

OPERATOR = Policy([Rule.ask("*", by="operator", reason="a person looks at it")])
CUSTOMER = Policy([Rule.ask("*", by="customer")])


class Desk:
    """A tool that needs an approval, and a note of every time it really ran."""

    def __init__(self, policy: Policy = OPERATOR, *, read_only: bool = False, **options: Any) -> None:
        self.ran: list[tuple[str, int]] = []
        self.heard = Heard()

        @tool(read_only=read_only, concurrency_safe=True)
        async def pay(invoice: str, amount: int, context: ToolContext[Any]) -> str:
            """Pay."""
            await asyncio.sleep(0)
            self.ran.append((invoice, amount))
            return f"Paid {amount}."

        self.executor = Executor([pay], policy=policy, listeners=[self.heard], **options)

    async def pay(self, id: str = "c-1", turn: int = 1, amount: int = 5, **where: Any) -> ToolResult:
        sent = call("pay", id, invoice="i-1", amount=amount)
        return await self.executor.run(sent, at(turn=turn, **{"customer_id": "ann", **where}))

    async def asked(self, **where: Any) -> str:
        result = await self.pay(**where)
        assert code_of(result) == "approval_required"
        return result.approval.token

    async def approve(self, token: str, **more: Any) -> Approval:
        return await self.executor.approvals.approve(token, **{"by": "operator", "who": "bo", **more})


both = pytest.mark.parametrize("read_only", [True, False])


# Asking


@both
async def test_a_question_names_the_call_and_nothing_runs(read_only: bool) -> None:
    desk = Desk(read_only=read_only)
    result = await desk.pay(tenant_id="acme")

    assert result.error is not None
    assert (result.error.code, result.error.retryable) == ("approval_required", True)
    assert "operator" in result.error.message
    assert "a person looks at it" in result.error.message
    (pending,) = await desk.executor.approvals.pending()
    assert (pending.token, pending.tool, pending.by, pending.state) == (
        result.approval.token,
        "pay",
        "operator",
        "pending",
    )
    assert (pending.session_id, pending.tenant_id, pending.customer_id, pending.turn) == ("s-1", "acme", "ann", 1)
    assert dict(pending.arguments) == {"invoice": "i-1", "amount": 5}
    assert pending.question == "a person looks at it"
    assert not desk.ran
    assert [event.decision.action for event in desk.heard.of(DecisionMade)] == ["ask"]


async def test_arguments_are_validated_before_anybody_is_asked() -> None:
    desk = Desk()
    result = await desk.executor.run(call("pay", invoice="i-1", amount="many"), at())

    assert code_of(result) == "invalid_arguments"
    assert await desk.executor.approvals.pending() == []


async def test_who_decides_sees_the_whole_arguments_and_nobody_else_does() -> None:
    heard = Heard()

    @tool
    async def login(user: str, password: str) -> None:
        """Log in."""

    executor = Executor([login], policy=OPERATOR, listeners=[heard])
    result = await executor.run(call("login", user="ann", password="hunter2"), at())
    (pending,) = await executor.approvals.pending()

    assert pending.arguments == {"user": "ann", "password": "hunter2"}
    assert result.approval == pending == await executor.approvals.get(pending.token)
    assert "hunter2" not in repr(pending)
    [finished] = heard.of(CallFinished)
    assert finished.result.approval is not None
    assert finished.result.approval.arguments == {"user": "ann", "password": "[redacted]"}
    with pytest.raises(ApprovalError, match="redacted"):
        await executor.approvals.approve(
            pending.token, by="operator", who="bo", arguments={"user": "ann", "password": ["x", "[redacted]"]}
        )


async def test_the_same_call_again_is_the_same_question() -> None:
    desk = Desk()
    assert await desk.asked() == await desk.asked(turn=2) == await desk.asked(id="c-2")
    assert len(await desk.executor.approvals.pending()) == 1


async def test_pending_questions_can_be_listed_by_session_and_tenant() -> None:
    desk = Desk()
    await desk.asked(session_id="s-1", tenant_id="acme")
    await desk.asked(session_id="s-2", tenant_id="acme")
    await desk.asked(session_id="s-3", tenant_id="globex")
    pending = desk.executor.approvals.pending

    assert [approval.session_id for approval in await pending()] == ["s-1", "s-2", "s-3"]
    assert [approval.session_id for approval in await pending(tenant_id="acme")] == ["s-1", "s-2"]
    assert [approval.session_id for approval in await pending(session_id="s-3")] == ["s-3"]
    assert await pending(session_id="s-3", tenant_id="acme") == []


# Who may say yes


@both
async def test_an_approved_call_runs_once(read_only: bool) -> None:
    desk = Desk(read_only=read_only)
    given = await desk.approve(await desk.asked(), reason="checked")
    assert (given.state, given.who, given.reason) == ("approved", "bo", "checked")

    assert (await desk.pay()).output == "Paid 5."
    assert desk.ran == [("i-1", 5)]
    assert await desk.executor.approvals.pending() == []
    assert (await desk.pay()).origin == "replayed"
    # Used up: the same arguments under another id have to be asked about again.
    assert code_of(await desk.pay(id="c-2", turn=2)) == "approval_required"
    assert len(desk.ran) == 1


@pytest.mark.proves("GC-D5")
@pytest.mark.parametrize(
    ("policy", "by", "who", "says"),
    [
        (CUSTOMER, "operator", "bo", "for the customer to decide"),
        (OPERATOR, "customer", "ann", "for the operator to decide"),
        (CUSTOMER, "customer", "somebody", "nobody else"),
        (OPERATOR, "operator", "", "who decides"),
        (CUSTOMER, "customer", "", "who decides"),
    ],
)
async def test_the_wrong_person_can_neither_approve_nor_deny(policy: Policy, by: Any, who: str, says: str) -> None:
    desk = Desk(policy)
    token = await desk.asked()
    with pytest.raises(ApprovalError, match=says):
        await desk.executor.approvals.approve(token, by=by, who=who)
    with pytest.raises(ApprovalError, match=says):
        await desk.executor.approvals.deny(token, by=by, who=who)

    assert code_of(await desk.pay(turn=2)) == "approval_required"
    assert not desk.ran


async def test_a_forged_token_approves_nothing() -> None:
    desk = Desk()
    await desk.asked()
    for token in ("", "apr_forged", new_token()):
        with pytest.raises(ApprovalError, match="no such approval"):
            await desk.approve(token)

    assert code_of(await desk.pay()) == "approval_required"


def test_tokens_cannot_be_guessed() -> None:
    assert len({new_token() for _ in range(1_000)}) == 1_000
    assert all(len(new_token()) >= 28 for _ in range(10))


@pytest.mark.parametrize("second", ["approve", "deny"])
@pytest.mark.parametrize("first", ["approve", "deny", "approve and use"])
async def test_an_answer_is_given_once(first: str, second: str) -> None:
    desk = Desk()
    token = await desk.asked()
    await getattr(desk.executor.approvals, first.split()[0])(token, by="operator", who="bo")
    if "use" in first:
        await desk.pay()
    again = getattr(desk.executor.approvals, second)(token, by="operator", who="al")
    if first.startswith(second):  # Two who say the same are no error: the first decision stands.
        assert (await again).who == "bo"
        return
    with pytest.raises(ApprovalError, match="not open any more"):
        await again


@pytest.mark.parametrize(
    "other",
    [{"amount": 6}, {"session_id": "s-2"}, {"tenant_id": "acme"}],
    ids=["arguments", "session", "tenant"],
)
@both
async def test_an_approval_is_of_exactly_one_call(other: dict[str, Any], read_only: bool) -> None:
    desk = Desk(read_only=read_only)
    await desk.approve(await desk.asked())

    assert code_of(await desk.pay(id="c-2", **other)) == "approval_required"
    assert not desk.ran


async def test_an_approval_of_one_tool_is_not_one_of_another() -> None:
    ran: list[str] = []

    @tool
    async def pay(n: int) -> None:
        """Pay."""
        ran.append("pay")

    @tool
    async def sell(n: int) -> None:
        """Sell."""
        ran.append("sell")

    executor = Executor([pay, sell], policy=OPERATOR)
    asked = await executor.run(call("pay", n=1), at())
    await executor.approvals.approve(asked.approval.token, by="operator", who="bo")

    assert code_of(await executor.run(call("sell", "c-2", n=1), at())) == "approval_required"
    assert not ran


# When


@pytest.mark.proves("GC-40", "GC-D5")
@both
async def test_the_customers_yes_counts_from_a_later_turn_on(read_only: bool) -> None:
    desk = Desk(CUSTOMER, read_only=read_only)
    token = await desk.asked(turn=3)
    await desk.executor.approvals.approve(token, by="customer", who="ann")
    now = await desk.pay(turn=3)
    earlier = await desk.pay(turn=2)

    assert [code_of(now), code_of(earlier)] == ["approval_required"] * 2
    assert "next one" in (now.error.message if now.error else "")
    assert not desk.ran
    assert (await desk.pay(turn=4)).output == "Paid 5."


@both
async def test_the_customers_yes_counts_after_a_framework_was_resumed_in_the_same_turn(read_only: bool) -> None:
    desk = Desk(CUSTOMER, read_only=read_only)
    token = await desk.asked(turn=3, wakes=1)
    await desk.executor.approvals.approve(token, by="customer", who="ann")

    assert code_of(await desk.pay(turn=3, wakes=1)) == "approval_required"
    assert code_of(await desk.pay(turn=2, wakes=5)) == "approval_required"
    assert (await desk.pay(turn=3, wakes=2)).output == "Paid 5."


async def test_an_operators_yes_counts_at_once() -> None:
    desk = Desk()
    await desk.approve(await desk.asked())
    assert (await desk.pay(turn=1)).ok


async def test_an_approval_expires_before_and_after_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(timeouts=Timeouts(approval=60))
    real, later = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + later[0])
    token = await desk.asked()
    later[0] = 61
    with pytest.raises(ApprovalError, match="expired"):
        await desk.approve(token)
    assert await desk.executor.approvals.pending() == []
    fresh = await desk.asked()
    assert fresh != token
    await desk.approve(fresh)
    later[0] = 200
    assert code_of(await desk.pay()) == "approval_required"
    assert not desk.ran


async def test_what_is_expired_is_forgotten_when_there_is_too_much_of_it() -> None:
    approvals = MemoryApprovals()
    for n in range(10_500):
        await approvals.ask(
            Approval(
                token=f"t-{n}",
                tool="pay",
                digest=f"{n}",
                session_id=f"s-{min(n, 400)}" if n else "s-400",
                by="operator",
                turn=1,
                arguments={},
                created_at=n,
                expires_at=n + 10,
            )
        )
    assert len(approvals._approvals) <= 10_001  # pyright: ignore[reportPrivateUsage]
    assert len(approvals._open) <= 10_001  # pyright: ignore[reportPrivateUsage]
    assert list(approvals.by_session) == ["s-400"]
    assert (await approvals.history(session_id="s-400", limit=1))[0].token == "t-10499"


# No


async def test_a_no_is_reported_with_its_reason_and_stays() -> None:
    desk = Desk()
    await desk.executor.approvals.deny(await desk.asked(), by="operator", who="bo", reason="not this month")
    result = await desk.pay()

    assert result.error is not None
    assert result.error.code == "permission_denied"
    assert "the operator said no: not this month" in result.error.message
    assert result.decision.action == "deny"
    assert desk.heard.of(DecisionMade)[-1].decision.reason == "the operator said no: not this month"
    assert not desk.ran


# Once


@pytest.mark.parametrize("ids", ["one id", "many ids"])
async def test_of_many_runs_of_one_approved_effect_one_runs(ids: str) -> None:
    desk = Desk()
    await desk.approve(await desk.asked())
    results = await asyncio.gather(*(desk.pay(id="c-1" if ids == "one id" else f"c-{n}") for n in range(10)))

    assert desk.ran == [("i-1", 5)]
    assert all("Paid 5." in result.output for result in results)


async def test_of_many_runs_of_one_approved_read_one_runs_and_the_others_are_asked() -> None:
    desk = Desk(read_only=True)
    await desk.approve(await desk.asked())
    results = await asyncio.gather(*(desk.pay(id=f"c-{n}") for n in range(5)))

    assert sorted(str(code_of(result)) for result in results) == ["None", *["approval_required"] * 4]
    assert len(desk.ran) == 1


@both
async def test_the_use_of_an_approval_names_the_call_that_used_it(read_only: bool) -> None:
    desk = Desk(read_only=read_only)
    await desk.approve(await desk.asked())
    result = await desk.pay(id="another")

    assert result.ok
    assert [event.call_id for event in desk.heard.of(ApprovalUsed)] == ["another"]


async def test_an_approval_is_used_by_one_of_many() -> None:
    desk = Desk()
    token = await desk.asked()
    await desk.approve(token)
    used = await asyncio.gather(*(desk.executor.approvals.consume(token, now=time.time()) for _ in range(10)))

    assert sorted(used) == [False] * 9 + [True]
    await desk.executor.approvals.restore(token)
    assert await desk.executor.approvals.consume(token, now=time.time())
    await desk.executor.approvals.restore("apr_nobody")


async def test_a_call_that_was_approved_and_failed_has_to_be_asked_about_again() -> None:
    from handrail import ToolError

    @tool
    async def pay(n: int) -> None:
        """Pay."""
        raise ToolError("Closed.")

    executor = Executor([pay], policy=OPERATOR)
    asked = await executor.run(call("pay", n=1), at())
    await executor.approvals.approve(asked.approval.token, by="operator", who="bo")
    assert code_of(await executor.run(call("pay", n=1), at())) == "tool_execution_failed"

    assert code_of(await executor.run(call("pay", "c-2", n=1), at())) == "approval_required"


# Other arguments


@both
async def test_an_approver_may_want_other_arguments(read_only: bool) -> None:
    desk = Desk(read_only=read_only)
    await desk.approve(await desk.asked(), arguments={"invoice": "i-1", "amount": 3})
    result = await desk.pay()

    assert (result.output, desk.ran) == ("Paid 3.", [("i-1", 3)])
    assert (await desk.pay()).origin == "replayed"


@both
@pytest.mark.parametrize("wrong", [{"invoice": "i-1"}, {"invoice": "i-1", "amount": "many"}, {"amount": object()}, {}])
async def test_other_arguments_are_validated_again(wrong: dict[str, Any], read_only: bool) -> None:
    desk = Desk(read_only=read_only)
    await desk.approve(await desk.asked(), arguments=wrong)
    result = await desk.pay()

    assert code_of(result) == "invalid_arguments"
    assert "Nothing was done" in (result.error.message if result.error else "")
    assert not desk.ran
    assert not desk.heard.of(CallStarted)


@both
@pytest.mark.parametrize(
    ("rule", "says"),
    [
        (Rule.deny("pay", where={"amount": {"above": 100}}, reason="too much"), "too much"),
        (Rule.ask("pay", by="customer", where={"amount": {"above": 100}}), "the customer has to agree"),
    ],
)
async def test_an_approver_cannot_allow_what_is_not_theirs_to_allow(rule: Rule, says: str, read_only: bool) -> None:
    desk = Desk(Policy([rule, Rule.ask("pay", by="operator")]), read_only=read_only)
    await desk.approve(await desk.asked(), arguments={"invoice": "i-1", "amount": 101})
    result = await desk.pay()

    assert code_of(result) == "permission_denied"
    assert says in (result.error.message if result.error else "")
    assert not desk.ran


@pytest.mark.parametrize("answer", ["approve", "deny"])
async def test_what_a_person_writes_is_redacted_in_memory_too(answer: str) -> None:
    desk = Desk()
    token = await desk.asked()
    decide = getattr(desk.executor.approvals, answer)

    decided = await decide(token, by="operator", who="bo", reason="her password=hunter22 was wrong")
    result = await desk.pay()

    (event,) = desk.heard.of(ApprovalDecided)
    stored = await desk.executor.approvals.get(token)
    assert stored is not None
    for text in (decided.reason, stored.reason, event.reason):
        assert text == "her password=[redacted] was wrong"
    assert "hunter22" not in result.for_model()


# Looking at them


async def test_the_history_is_read_page_by_page_from_its_end() -> None:
    desk = Desk()
    for number in range(5):
        await desk.asked(id=f"c-{number}", session_id=f"s-{number}")
    approvals = desk.executor.approvals

    newest = await approvals.history(limit=2)
    older = await approvals.history(limit=2, before=newest[0])
    oldest = await approvals.history(limit=2, before=older[0])

    assert [[row.session_id for row in page] for page in (newest, older, oldest)] == [
        ["s-3", "s-4"],
        ["s-1", "s-2"],
        ["s-0"],
    ]


async def test_a_page_has_at_least_one_place() -> None:
    approvals = MemoryApprovals()
    for listing in (approvals.pending(limit=0), approvals.history(limit=-1)):
        with pytest.raises(ConfigError, match="limit must be at least 1"):
            await listing


async def test_a_question_whose_reason_is_gone_is_withdrawn() -> None:
    desk = Desk()
    token = await desk.asked()
    desk.executor.replace_policy(Policy([Rule.allow("*")]))

    assert (await desk.pay()).ok
    assert await desk.executor.approvals.pending() == []
    known = await desk.executor.approvals.get(token)
    assert known is not None
    assert known.state == "withdrawn"


@pytest.mark.parametrize("changed", [None, {"invoice": "i-1", "amount": 3}])
async def test_listeners_hear_whether_an_approver_changed_the_arguments(changed: dict[str, Any] | None) -> None:
    desk = Desk()
    await desk.approve(await desk.asked(), arguments=changed)

    (decided,) = desk.heard.of(ApprovalDecided)
    assert decided.has_changed_arguments is (changed is not None)

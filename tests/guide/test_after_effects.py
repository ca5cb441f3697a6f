"""What happened is told, whatever fails after it, and a turn that was stopped goes on where it stopped."""

from pathlib import Path
from typing import Any

import pytest

from handrail import Control, Policy, Rule, ToolContext, ToolResult, tool
from handrail.chat import ChatSession, FileSessionStore
from handrail.core import Approval
from handrail.errors import ProviderError
from handrail.guide import GuidedTurnResult, Plan, PlanRequest, ReplyRequest, ScriptedJudge
from tests.chat.bank import at, chat
from tests.guide.kit import SEND_500, Bank, agent_with, get_balance, needs, open_session, plan, scripted, transfer_money

ALLOW = Policy([Rule.allow("*")])
SENT = "transfer money: Transferred 500 EUR to Sophie."


class Away(ProviderError):
    """The provider does not answer."""

    code = "provider_unavailable"


class Killed(BaseException):
    """The process ends."""


def fail(request: Any) -> Any:
    raise Away("It is away.")


async def bank_agent(judge: Any, **more: Any) -> Any:
    agent = agent_with(judge, policy=more.pop("policy", ALLOW), **more)
    await agent.create_guideline("Customer wants to transfer money", tools=[transfer_money, get_balance])
    return agent


def plan_once(request: PlanRequest) -> Plan:
    """The judge wants the transfer whenever it is asked."""
    return plan(["g1"], needs("transfer_money", SEND_500))


async def test_a_provider_that_fails_before_the_reply_does_not_hide_what_was_done() -> None:
    bank = Bank()
    agent = await bank_agent(ScriptedJudge(plan_once, [fail]))
    result = await open_session(agent, bank).send("Send 500 to Sophie")

    assert (result.text, result.stop_reason, bank.sent) == (SENT, "completed", [("Sophie", 500)])
    assert result.trace.reply.replaced


async def test_a_provider_that_fails_between_two_plans_does_not_hide_what_was_done() -> None:
    bank = Bank()
    agent = await bank_agent(ScriptedJudge([plan_once, fail], [fail]))
    result = await open_session(agent, bank).send("Send 500 to Sophie")

    assert (result.text, bank.sent) == (SENT, [("Sophie", 500)])


async def test_a_provider_that_fails_without_an_effect_is_raised_and_the_turn_resumes() -> None:
    judge = ScriptedJudge([plan(["g1"], needs("get_balance", {"account": "a"})), plan(["g1"]), plan([])], [fail, "Ok."])
    session = open_session(await bank_agent(judge))
    with pytest.raises(Away):
        await session.send("What do I have?")
    assert (await session.resume()).text == "Ok."


async def stop_after_effect(path: Path, bank: Bank) -> Any:
    """A session of another process in which a transfer was done and the process ended before the reply."""

    def crash(request: Any) -> Any:
        raise Killed

    agent = await bank_agent(ScriptedJudge(plan_once, [crash]))
    sessions = FileSessionStore(path)
    session = open_session(agent, bank, sessions=sessions, allow_memory_ledger=True)
    with pytest.raises(Killed):
        await session.send("Send 500 to Sophie")
    assert bank.sent == [("Sophie", 500)]
    return sessions


@pytest.mark.parametrize("how", ["send", "resume"])
async def test_after_a_crash_the_customer_is_told_and_not_asked_again(tmp_path: Path, how: str) -> None:
    bank = Bank()
    sessions = await stop_after_effect(tmp_path, bank)
    judge = ScriptedJudge(plan_once if how == "resume" else (lambda request: plan([])), ["How can I help?"] * 2)
    agent = await bank_agent(judge, policy=None)
    session = await agent.load_session("s-1", sessions=sessions, customer_id="c-1", deps=bank, allow_memory_ledger=True)
    result = await (session.send("Hello?") if how == "send" else session.resume())

    assert result.text == f"{SENT}\n\nHow can I help?"
    assert (bank.sent, result.approvals, session.conversation.pending) == ([("Sophie", 500)], (), ())
    assert [item.call_id for item in judge.reply_requests[0].results] == ["guided_1_1_1"]
    again = await session.send("Thanks") if how == "send" else result
    assert how == "resume" or again.text == "How can I help?"  # It is told once.


async def test_judges_see_what_a_model_may_see() -> None:
    @tool(read_only=True)
    async def look(what: str) -> ToolResult:
        """Look something up."""
        return ToolResult(output={"found": what}, metadata={"internal": "margin 40%"}, context={"row": object()})

    judge = scripted([plan(["g1"], needs("look", {"what": "x"}))], ["Ok."])
    agent = agent_with(judge, [look])
    await agent.create_guideline("Customer asks", tools=[look])
    result = await open_session(agent).send("Look for x")

    seen: list[PlanRequest | ReplyRequest] = [*judge.plan_requests, *judge.reply_requests]
    assert "margin" not in str(seen)
    assert [(item.output, item.metadata, item.context) for item in judge.reply_requests[0].results] == [
        ('{"found":"x"}', {}, None)
    ]
    assert result.results[0].metadata == {"internal": "margin 40%"}


async def test_an_output_for_one_response_leaves_the_history_also_when_no_response_came() -> None:
    @tool(read_only=True)
    async def code() -> ToolResult:
        """Read a code."""
        return ToolResult(output="4711", control=Control(lifespan="response"))

    judge = ScriptedJudge(lambda request: plan(["g1"]), [fail, "Ok."])
    agent = agent_with(judge, [code])
    await agent.create_guideline("Customer asks", tools=[code])
    session = open_session(agent)
    with pytest.raises(Away):
        await session.send("Go")
    assert "4711" in str(session.conversation)
    await session.send("And now?")
    assert "4711" not in str(session.conversation.messages[:3])
    assert session.conversation.transient == ()


async def test_after_a_hand_off_a_message_gets_a_guided_result_with_a_reason() -> None:
    @tool(read_only=True)
    async def hand_over() -> ToolResult:
        """Get a person."""
        return ToolResult(output="ok", control=Control(mode="manual"))

    agent = agent_with(ScriptedJudge(lambda request: plan(["g1"]), ["A person comes."]), [hand_over])
    await agent.create_guideline("Customer wants a person", tools=[hand_over])
    session = open_session(agent)
    await session.send("A person, please")
    result = await session.send("Hello?")

    assert isinstance(result, GuidedTurnResult)
    assert (result.stop_reason, result.text, result.trace.session_id) == ("handed_off", "", "s-1")


async def test_approvals_of_another_tenant_with_the_same_session_id_are_not_shown() -> None:
    session = chat([])
    mine = await session.executor.approvals.ask(_question("acme"))
    await session.executor.approvals.ask(_question("other"))
    own = ChatSession(
        session.provider, session.executor, context=ToolContext(session_id="s-1", tenant_id="acme", customer_id="c-1")
    )
    assert [approval.token for approval in await own.approvals()] == [mine.token]
    assert await ChatSession(session.provider, session.executor, context=at(None)).approvals() == []


def _question(tenant_id: str) -> Approval:
    return Approval(
        token=f"apr_{tenant_id}",
        tool="pay",
        digest=tenant_id,
        session_id="s-1",
        tenant_id=tenant_id,
        customer_id="c-1",
        by="customer",
        turn=1,
        arguments={},
        created_at=0,
        expires_at=9e9,
    )

"""The trace says what happened to every call, and why."""

from pathlib import Path
from typing import Any

import pytest

from handrail import Policy, Rule
from handrail.chat import FileSessionStore
from handrail.guide import ScriptedJudge
from tests.guide.kit import SEND_500, Bank, agent_with, get_balance, needs, open_session, plan, scripted, transfer_money

CALL = "guided_1_1_1"


async def bank_session(judge: Any, policy: Policy | None, **more: Any) -> Any:
    agent = agent_with(judge, policy=policy)
    await agent.create_guideline("Customer wants to transfer money", tools=[transfer_money])
    await agent.create_guideline("Customer asks for the balance", tools=[get_balance])
    return open_session(agent, more.pop("bank", Bank()), **more)


async def test_why_a_call_was_denied_by_a_rule() -> None:
    policy = Policy([Rule.deny("transfer_money", where={"amount": {"above": 100}}, reason="over the limit")])
    session = await bank_session(scripted([plan(["g1"], needs("transfer_money", SEND_500))], ["Sorry."]), policy)
    result = await session.send("Send 500 to Sophie")

    why = result.trace.why(CALL)
    assert "because of g1" in why
    assert "policy: deny by " in why
    assert "permission_denied" in why


async def test_why_a_call_waits_and_why_the_customer_s_no_ended_it() -> None:
    no = needs("transfer_money", SEND_500, confirmation="no")
    judge = scripted([plan(["g1"], needs("transfer_money", SEND_500)), plan(["g1"], no)], ["Ok."] * 2)
    session = await bank_session(judge, None)
    first = await session.send("Send 500 to Sophie")
    assert "policy: ask customer by default" in first.trace.why(CALL)
    assert first.trace.why(CALL).endswith("result: waits for an approval")
    second = await session.send("No.")
    assert f"transfer_money ({CALL}) will not run: the customer rejected it" in second.trace.tree()


async def test_why_a_confirmed_call_ran() -> None:
    yes = needs("transfer_money", SEND_500, confirmation="yes")
    judge = scripted([plan(["g1"], needs("transfer_money", SEND_500)), plan(["g1"], yes)], ["Ok."] * 2)
    session = await bank_session(judge, None)
    await session.send("Send 500 to Sophie")
    result = await session.send("Yes.")

    why = result.trace.why(CALL)
    assert "the customer agreed in words" in why
    assert why.endswith("result: Transferred 500 EUR to Sophie.")
    assert "confirmation: yes" in result.trace.tree()


class Killed(BaseException):
    """The process ends."""


class DyingStore(FileSessionStore):
    """Ends the process after a number of saves."""

    saves = 0

    async def save(self, *arguments: Any, **more: Any) -> None:
        await super().save(*arguments, **more)
        self.saves += 1
        if self.saves == 2:
            raise Killed


async def test_why_a_call_that_a_crash_left_was_looked_at_again(tmp_path: Path) -> None:
    bank, sessions = Bank(), FileSessionStore(tmp_path)
    judge = ScriptedJudge([plan(["g1"], needs("transfer_money", SEND_500))], [])
    allow = Policy([Rule.allow("*")])
    session = await bank_session(judge, allow, bank=bank, sessions=DyingStore(tmp_path), allow_memory_ledger=True)
    with pytest.raises(Killed):  # The call is saved, and has not run.
        await session.send("Send 500 to Sophie")
    assert [call.id for call in (await sessions.load("s-1")).open_calls] == [CALL]

    agent = agent_with(scripted([plan([])], ["Done."]), policy=allow)
    await agent.create_guideline("Customer wants to transfer money", tools=[transfer_money])
    again = await agent.load_session("s-1", sessions=sessions, customer_id="c-1", deps=bank, allow_memory_ledger=True)
    result = await again.resume()
    assert "an earlier turn left it without a result" in result.trace.why(CALL)
    assert "confirmation" not in result.trace.tree()
    assert bank.sent == [("Sophie", 500)]


async def test_why_a_guideline_was_suppressed() -> None:
    judge = scripted([plan(["g1", "g2"])], ["Ok."])
    agent = agent_with(judge)
    await agent.create_guideline("Customer wants to transfer money", tools=[transfer_money])
    await agent.create_guideline("Customer asks for the balance")
    await agent.create_relationship("g2", "takes_priority_over", "g1")
    result = await open_session(agent).send("Hi")

    assert "guideline g1 does not apply (Customer wants to transfer money): g2 takes priority" in result.trace.tree()
    assert "1 g1 does not apply" in result.trace.summary()
    assert result.trace.why("guided_9_9_9") == "guided_9_9_9: no call of this turn"

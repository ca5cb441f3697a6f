"""A judge is somebody's code: each wrong value of its plan is named, and it is asked again."""

from collections.abc import Mapping
from typing import Any

import pytest

from handrail.errors import ConfigError
from handrail.guide import GuidelineMatch, Plan, ScriptedJudge, ToolVerdict
from tests.guide.kit import Bank, agent_with, get_balance, needs, open_session, plan, scripted, transfer_money


class Unreadable(dict[str, Any]):
    """Raises when somebody looks inside."""

    def items(self) -> Any:
        raise RuntimeError("no")


def match(**wrong: Any) -> Plan:
    values: Mapping[str, Any] = {"guideline_id": "g1", "applies": True, "reason": "it fits", **wrong}
    return Plan((GuidelineMatch(**values),), ())


def verdict(**wrong: Any) -> Plan:
    values: Mapping[str, Any] = {"tool": "transfer_money", "state": "needs_to_run", **wrong}
    return Plan((), (ToolVerdict(**values),))


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("a plan", "The response must be a Plan, got str"),
        (Plan(5, ()), "matches must be a tuple, got int"),  # pyright: ignore[reportArgumentType]
        (Plan((), "none"), "verdicts must be a tuple, got str"),  # pyright: ignore[reportArgumentType]
        (Plan(("g1",), ()), "matches[0] must be a GuidelineMatch, got str"),  # pyright: ignore[reportArgumentType]
        (Plan((), ("pay",)), "verdicts[0] must be a ToolVerdict, got str"),  # pyright: ignore[reportArgumentType]
        (match(guideline_id=5), "matches[0].guideline_id"),
        (match(applies="yes"), "matches[0].applies"),
        (match(reason=None), "matches[0].reason"),
        (verdict(tool=5), "verdicts[0].tool"),
        (verdict(reason=5), "verdicts[0].reason"),
        (verdict(state="perhaps"), "verdicts[0].state 'perhaps' is no state; one of needs_to_run, "),
        (verdict(confirmation="maybe"), "verdicts[0].confirmation must be 'yes', 'no' or None"),
        (verdict(arguments=[1]), "verdicts[0].arguments"),
        (verdict(evidence="said so"), "verdicts[0].evidence"),
        (verdict(arguments=Unreadable(amount=5)), "verdicts[0].arguments cannot be read: RuntimeError"),
    ],
)
async def test_a_wrong_value_of_a_plan_is_named_and_the_judge_is_asked_again(answer: Any, problem: str) -> None:
    judge = scripted([answer, plan([])], ["Hello."])
    agent = agent_with(judge, [transfer_money])
    await agent.create_guideline("Customer wants to pay", tools=[transfer_money])
    bank = Bank()

    result = await open_session(agent, bank).send("Pay Ann 5.")

    first, second = judge.plan_requests
    assert (first.error, bank.sent, result.text) == ("", [], "Hello.")
    assert problem in second.error


async def test_what_is_missing_and_what_is_wrong_are_named_in_the_reason() -> None:
    judge = scripted([plan(["g1"], needs("transfer_money", {"amount": "plenty"}))] * 3, ["Whom?"])
    agent = agent_with(judge, [transfer_money])
    await agent.create_guideline("Customer wants to pay", tools=[transfer_money], id="g1")

    result = await open_session(agent).send("Pay plenty.")

    (evaluation,) = result.insights.evaluations
    assert "missing: recipient_name" in evaluation.reason
    assert "invalid: amount" in evaluation.reason


async def test_a_verdict_about_a_call_that_waits_is_not_a_second_call() -> None:
    wanted = needs("transfer_money", {"recipient_name": "Ann", "amount": 5})
    judge = scripted([plan(["g1"], wanted)] * 2, ["Shall I?"] * 2)
    agent = agent_with(judge, [transfer_money])
    await agent.create_guideline("Customer wants to pay", tools=[transfer_money], id="g1")
    session = open_session(agent)

    first = await session.send("Pay Ann 5.")
    second = await session.send("How long will it take?")

    assert [evaluation.state for evaluation in first.insights.evaluations] == ["needs_to_run"]
    assert (len(session.conversation.pending), second.insights.evaluations) == (1, ())


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (verdict(state="run"), "'run' is no state; one of needs_to_run"),
        (plan(["gg"], needs("get_balance", {"account": "A"})), "'gg' is no guideline; one of g1"),
    ],
)
async def test_a_script_that_runs_out_says_what_was_wrong_with_its_last_plan(wrong: Plan, told: str) -> None:
    agent = agent_with(judge := ScriptedJudge([wrong], ["?"] * 2))
    await agent.create_guideline("Customer asks for their balance", tools=[get_balance])
    session = open_session(agent)

    async def send_twice() -> None:
        await session.send("What is on account A?")
        await session.send("And now?")

    with pytest.raises(ConfigError, match="the script has no plan number 2") as raised:
        await send_twice()
    assert told in str(raised.value)
    assert len(judge.plan_requests) == 2


async def test_a_scripted_judge_knows_which_steps_are_left() -> None:
    judge = ScriptedJudge([Plan()], ["One.", "Two."])
    agent = agent_with(judge)
    await agent.create_guideline("Customer asks for their balance", tools=[get_balance])
    with pytest.raises(AssertionError, match="1 scripted plans were not used"):
        judge.finish()
    await open_session(agent).send("Hi")
    with pytest.raises(AssertionError, match=r"1 scripted replies were not used: .*Two"):
        judge.finish()
    ScriptedJudge(lambda request: Plan(), lambda request: "Hi").finish()

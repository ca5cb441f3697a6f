"""Conditions in code, priorities, retrievers and descriptions; and rules of relationships that build on each other."""

import logging
import threading
from typing import Annotated, Any

import pytest

from handrail import Agent, ConfigError, Guideline, Policy, Rule, ToolContext, tool
from handrail.authorize import blocking
from handrail.guide import GuidelineMatch, ParameterOptions, Plan, ScriptedJudge
from handrail.guide.judges.provider import render_reply_request
from tests.guide.kit import SEND_500, Bank, agent_with, get_balance, needs, open_session, plan, scripted, transfer_money

ALLOW = Policy([Rule.allow("*")])


@tool(read_only=True)
async def block_card(context: ToolContext[Bank]) -> str:
    """Show how the card is blocked."""
    context.deps.reads.append("block")
    return "blocked"


def coded(matches: Any, judge: Any, **more: Any) -> Agent:
    guidelines = [
        Guideline(id="fraud", matches=matches, action="Stop everything", tools=("block_card",), **more),
        Guideline(id="send", condition="Customer wants to transfer money", tools=("transfer_money",)),
    ]
    return Agent(judge=judge, tools=[block_card, transfer_money], policy=ALLOW, guidelines=guidelines)


async def flagged(context: ToolContext[Bank]) -> bool:
    return context.deps.balance == 0


@pytest.mark.parametrize("matches", [flagged, lambda context: context.deps.balance == 0])
@pytest.mark.parametrize("balance", [0, 5])
async def test_a_condition_in_code_decides_and_a_judge_cannot_change_it(matches: Any, balance: int) -> None:
    bank = Bank(balance=balance)
    opposite = Plan((GuidelineMatch("fraud", balance != 0, "I know better"),))
    judge = scripted([opposite] * 2, ["Ok."])
    result = await open_session(coded(matches, judge), bank).send("Hello")

    assert bank.reads == (["block"] if balance == 0 else [])
    assert [guideline.id for guideline in judge.plan_requests[0].guidelines] == (
        ["fraud", "send"] if balance == 0 else ["send"]
    )
    assert ("guideline fraud applies" in result.trace.tree()) == (balance == 0)


async def test_conditions_in_code_alone_ask_no_model_to_plan() -> None:
    bank = Bank(balance=0)
    judge = scripted([], ["It is blocked."])
    agent = Agent(
        judge=judge, tools=[block_card], guidelines=[Guideline(id="f", matches=flagged, tools=("block_card",))]
    )
    result = await open_session(agent, bank).send("Hello")
    assert (bank.reads, judge.plan_requests, result.trace.model_calls) == (["block"], [], 1)


async def test_a_condition_that_fails_does_not_apply(caplog: pytest.LogCaptureFixture) -> None:
    bank = Bank()

    def broken(context: Any) -> bool:
        raise RuntimeError("no database")

    with caplog.at_level(logging.ERROR, logger="handrail"):
        await open_session(coded(broken, scripted([plan([])], ["Ok."])), bank).send("Hello")
    assert bank.reads == []
    assert "the condition of the guideline fraud failed" in caplog.text
    with pytest.raises(ConfigError, match="matches must be a function"):
        coded(flagged, scripted(), always=True)


async def test_of_guidelines_that_apply_the_highest_priority_is_active_and_withdraws_what_waits() -> None:
    bank = Bank(balance=9_000)
    judge = scripted(
        [
            plan(["send"], needs("transfer_money", SEND_500)),
            plan(["send"], needs("transfer_money", SEND_500, confirmation="yes")),
        ],
        ["Ok."] * 2,
    )
    agent = coded(flagged, judge, priority=10)
    agent = Agent(judge=judge, tools=[block_card, transfer_money], guidelines=agent.guidelines)
    session = open_session(agent, bank)
    assert (await session.send("Send 500 to Sophie")).stop_reason == "approval_required"
    bank.balance = 0
    result = await session.send("Yes.")

    assert (bank.sent, bank.reads, session.conversation.pending) == ([], ["block"], ())
    assert [guideline.id for guideline in judge.reply_requests[-1].guidelines] == ["fraud"]
    assert "a guideline with a higher priority applies" in result.trace.tree()


async def test_retrievers_find_text_for_the_reply_and_may_fail() -> None:
    judge = scripted([plan([])], ["We close at six."])
    agent = agent_with(judge)
    await agent.create_guideline("Customer asks")

    @agent.retriever
    async def opening_hours(context: ToolContext[Bank]) -> str:
        return f"9 to 18 for {context.customer_id}"

    @agent.retriever
    def broken(context: ToolContext[Bank]) -> str:
        raise RuntimeError

    await open_session(agent).send("When do you close?")
    request = judge.reply_requests[0]
    assert request.retrieved == {"opening_hours": "9 to 18 for c-1"}
    assert "Known:\nopening_hours: 9 to 18 for c-1" in render_reply_request(request)
    assert "9 to 18" not in str(judge.plan_requests)
    with pytest.raises(ConfigError, match="two retrievers are called 'opening_hours'"):
        agent.retriever(opening_hours)


async def test_a_description_of_a_parameter_is_what_the_judge_reads() -> None:
    @tool(read_only=True)
    async def find(what: Annotated[str, ParameterOptions(description="a seat such as 12A")]) -> str:
        """Find something."""
        return what

    judge = scripted([plan([])], ["Ok."])
    agent = agent_with(judge, [find])
    await agent.create_guideline("Customer asks", tools=[find])
    await open_session(agent).send("Hi")
    assert judge.plan_requests[0].tools[0].schema["properties"]["what"]["description"] == "a seat such as 12A"


# Relationships.


async def follow(relations: list[tuple[str, Any, str]], matched: list[str]) -> list[str]:
    judge = scripted([plan(matched)], ["Ok."])
    agent = Agent(
        judge=judge,
        guidelines=[Guideline(id=item, condition=f"{item} is asked for") for item in "abcd"],
        relationships=relations,
    )
    await open_session(agent).send("Hi")
    return [guideline.id for guideline in judge.reply_requests[0].guidelines]


@pytest.mark.parametrize(
    ("matched", "active"), [(["a", "b", "c"], ["a", "b", "c"]), (["a", "b"], []), (["a", "c"], ["c"])]
)
async def test_a_dependency_reaches_over_two_steps(matched: list[str], active: list[str]) -> None:
    assert await follow([("a", "depends_on", "b"), ("b", "depends_on", "c")], matched) == active


async def test_a_suppressed_guideline_entails_nothing() -> None:
    relations: list[tuple[str, Any, str]] = [("a", "takes_priority_over", "b"), ("b", "entails", "c")]
    assert await follow(relations, ["a", "b"]) == ["a"]
    assert await follow(relations, ["b"]) == ["b", "c"]


async def test_a_suppressed_guideline_suppresses_nothing() -> None:
    relations: list[tuple[str, Any, str]] = [("a", "takes_priority_over", "b"), ("b", "takes_priority_over", "c")]
    assert await follow(relations, ["a", "b", "c"]) == ["a", "c"]


async def test_a_verdict_about_a_tool_that_was_not_shown_runs_nothing() -> None:
    bank = Bank()
    first = plan(["g1"], needs("transfer_money", SEND_500), needs("get_balance", {"account": "a"}))
    judge = ScriptedJudge([first, first], ["Ok."])
    agent = agent_with(judge, [get_balance, transfer_money], policy=ALLOW)
    await agent.create_guideline("Customer asks", tools=[get_balance])
    result = await open_session(agent, bank).send("Send 500 to Sophie")

    assert (bank.sent, bank.reads) == ([], ["a"])
    assert ("transfer_money", "cannot_run", "it is not a candidate") in [
        (evaluation.tool, evaluation.state, evaluation.reason) for evaluation in result.insights.evaluations
    ]


async def test_a_function_that_is_marked_as_blocking_runs_in_a_thread_while_the_turn_plans() -> None:
    planned, waited = threading.Event(), list[bool]()

    class Judge(ScriptedJudge):
        async def plan(self, request: Any) -> Plan:
            planned.set()
            return await super().plan(request)

    agent = agent_with(Judge([plan([])], ["We close at six."]))
    await agent.create_guideline("Customer asks")

    @agent.retriever
    @blocking
    def opening_hours(context: ToolContext[Bank]) -> str:
        waited.append(planned.wait(5))
        return "9 to 18"

    await open_session(agent).send("When do you close?")
    assert waited == [True]

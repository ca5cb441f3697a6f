"""A guided turn: which tools are considered, what runs, and what is said."""

from typing import Any

import pytest

from handrail.core import CallFinished, CallStarted, TurnPlanned
from handrail.guide import ToolVerdict
from handrail.providers import AssistantMessage, ToolMessage, UserMessage
from tests.guide.kit import Bank, agent_with, get_balance, needs, open_session, plan, scripted, transfer_money


@pytest.mark.proves("GC-02", "GC-03", "GC-07", "GC-12", "GC-13", "GC-36", "GC-D3")
async def test_a_guideline_that_applies_makes_its_tool_run_and_the_reply_is_written_from_the_result() -> None:
    bank, heard = Bank(), list[Any]()
    judge = scripted(
        [plan(["g1"], needs("get_balance", {"account": "current"}, reason="they ask for it"))], ["You have 20000 EUR."]
    )
    agent = agent_with(judge, listeners=[heard.append])
    balance = await agent.create_guideline(
        condition="Customer asks about their account balance",
        action="Look up their balance and tell them",
        tools=["get_balance"],
        criticality="medium",
    )
    session = open_session(agent, bank)
    result = await session.send("How much do I have?")

    assert (result.text, result.stop_reason) == ("You have 20000 EUR.", "completed")
    assert (balance.id, bank.reads) == ("g1", ["current"])
    assert [item.output for item in result.results] == ["20000 EUR"]
    assert [item.output for item in judge.reply_requests[0].results] == ["20000 EUR"]
    assert [guideline.id for guideline in judge.reply_requests[0].guidelines] == ["g1"]
    (question,) = judge.plan_requests
    assert [tool.name for tool in question.tools] == ["get_balance"]  # The other tool belongs to no guideline.
    (call,) = next(message for message in session.conversation.messages if isinstance(message, AssistantMessage)).calls
    assert call.guideline_ids == ("g1",)
    kinds = [type(item) for item in session.conversation.messages]
    assert kinds == [UserMessage, AssistantMessage, ToolMessage, AssistantMessage]
    started, finished, planned = [
        event for event in heard if isinstance(event, CallStarted | CallFinished | TurnPlanned)
    ]
    assert started.call.guideline_ids == finished.call.guideline_ids == planned.guideline_ids == ("g1",)
    assert (planned.model_calls, planned.call_ids) == (2, (call.id,))


@pytest.mark.proves("GC-49", "GC-51", "GC-50")
async def test_the_trace_leads_from_the_iteration_to_the_reply() -> None:
    judge = scripted(
        [plan(["g1"], needs("get_balance", {"account": "current"}, reason="they ask for it"))], ["You have 20000 EUR."]
    )
    agent = agent_with(judge)
    await agent.create_guideline("Customer asks for the balance", tools=[get_balance])
    result = await open_session(agent).send("How much do I have?")

    (iteration,) = result.trace.iterations
    (guideline,), (candidate,) = iteration.guidelines, iteration.candidates
    assert (guideline.id, guideline.applies, guideline.reason) == ("g1", True, "g1 fits")
    assert (candidate.tool, candidate.state, candidate.guideline_ids) == ("get_balance", "needs_to_run", ("g1",))
    assert candidate.call is not None
    assert candidate.call.decision is not None
    assert (candidate.call.decision.action, candidate.call.ok, candidate.call.output) == ("allow", True, "20000 EUR")
    assert (result.trace.reply.text, result.trace.model_calls) == ("You have 20000 EUR.", 2)
    why = result.trace.why(candidate.call.id)
    assert "\n" not in why
    for part in ("get_balance", "iteration 1", "g1", "Customer asks for the balance", "they ask for it", "allow"):
        assert part in why
    tree = result.trace.tree()
    order = [
        tree.index(item)
        for item in ("iteration 1", "guideline g1", "needs_to_run", "call ", "decision", "result", "reply")
    ]
    assert order == sorted(order)
    assert '"tool":"get_balance"' in result.trace.to_json()
    assert result.trace.why("nobody") == "nobody: no call of this turn"


@pytest.mark.proves("GC-07")
async def test_a_guideline_that_does_not_apply_never_makes_its_tools_run_whatever_the_judge_says() -> None:
    bank = Bank()
    judge = scripted(
        [
            plan(
                [], needs("get_balance", {"account": "a"}), ToolVerdict("get_balance", "needs_to_run", {"account": "b"})
            )
        ],
        ["Hello."],
    )
    agent = agent_with(judge)
    await agent.create_guideline("Customer asks for the balance", tools=["get_balance"])
    await agent.create_guideline("Customer wants to transfer", tools=[transfer_money])
    result = await open_session(agent, bank).send("Hi.")

    assert (bank.reads, result.results, result.text) == ([], (), "Hello.")
    assert {(evaluation.tool, evaluation.state) for evaluation in result.insights.evaluations} == {
        ("get_balance", "not_applicable")
    }

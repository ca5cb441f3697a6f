"""Journeys: states with conditions, tools and transitions, as guidelines underneath; and agents from a file."""

from typing import Any

import pytest

from handrail import Agent, ConfigError, ToolContext, tool
from handrail.guide import ToolVerdict
from tests.guide.kit import Bank, agent_with, needs, open_session, plan, scripted


@tool(read_only=True)
async def check_credit(name: str, context: ToolContext[Bank]) -> str:
    """Check the credit of a person."""
    context.deps.reads.append(name)
    return "good"


@tool(read_only=True)
async def list_accounts(context: ToolContext[Bank]) -> list[str]:
    """List the accounts that can be opened."""
    context.deps.reads.append("accounts")
    return ["basic", "gold"]


async def opening(judge: Any) -> tuple[Agent, Any]:
    agent = agent_with(judge, [check_credit, list_accounts])
    journey = await agent.create_journey("Open an account", "Customer wants to open an account", id="open")
    ask = await journey.add_state("ask", action="Ask for the name")
    check = await journey.add_state("check", action="Check the credit", tools=[check_credit])
    offer = await journey.add_state("offer", action="Offer the accounts", tools=[list_accounts])
    thank = await journey.add_state("thank", action="Thank them")
    await journey.add_transition(ask, check, condition="the customer has said their name")
    await journey.add_transition(check, offer)
    await journey.add_transition("offer", "thank", condition="the customer has chosen")
    assert [item.id for item in (ask, check, offer, thank)] == ["open.ask", "open.check", "open.offer", "open.thank"]
    return agent, journey


def active(request: Any) -> list[str]:
    return [guideline.id for guideline in request.guidelines]


async def test_a_journey_leads_from_state_to_state_and_passes_tool_states_whose_result_is_there() -> None:
    bank = Bank()
    judge = scripted(
        [
            plan(["open", "open.ask"]),
            # Both states match; the later one counts, and the state behind its tool cannot be reached before it.
            plan(["open", "open.ask", "open.check", "open.offer"], needs("check_credit", {"name": "Ann"})),
            plan(["open", "open.check"]),
            plan(["open", "open.thank"]),
        ],
        ["What is your name?", "Basic or gold?", "Basic or gold?", "Thank you!"],
    )
    agent, _ = await opening(judge)
    session = open_session(agent, bank)

    await session.send("I want an account")
    assert active(judge.reply_requests[0]) == ["open", "open.ask"]
    second = await session.send("I am Ann")
    assert bank.reads == ["Ann", "accounts"]  # The check leads to the offer, whose tool needs no arguments.
    assert active(judge.reply_requests[1]) == ["open", "open.offer"]
    assert len(judge.plan_requests) == 2
    reasons = {
        guideline.id: guideline.reason for guideline in second.trace.iterations[0].guidelines if not guideline.applies
    }
    assert reasons["open.offer"] == "a tool before it has no result yet"
    assert "takes priority" in reasons["open.ask"]
    await session.send("Hm?")
    assert bank.reads == ["Ann", "accounts"]  # Both results are there.
    await session.send("Basic.")
    assert active(judge.reply_requests[3]) == ["open", "open.thank"]


async def test_a_tool_state_waits_for_its_data() -> None:
    bank = Bank()
    judge = scripted([plan(["open", "open.check"], ToolVerdict("check_credit", "cannot_run"))], ["What is your name?"])
    agent, _ = await opening(judge)
    result = await open_session(agent, bank).send("I want an account")

    assert (bank.reads, [missing.parameter for missing in result.insights.missing_data]) == ([], ["name"])
    assert active(judge.reply_requests[0]) == ["open", "open.check"]


async def test_a_state_applies_only_while_its_journey_does() -> None:
    bank = Bank()
    judge = scripted([plan(["open.check"], needs("check_credit", {"name": "Ann"}))], ["Hello."])
    agent, _ = await opening(judge)
    await open_session(agent, bank).send("Hi")

    assert bank.reads == []


async def test_conditions_of_states_say_how_they_are_reached() -> None:
    agent, journey = await opening(scripted())
    by_id = {guideline.id: guideline.condition for guideline in agent.guidelines}

    assert by_id["open.ask"] == by_id["open"] == "Customer wants to open an account"
    assert by_id["open.check"] == "In the journey 'Open an account': ask was done and the customer has said their name"
    assert by_id["open.offer"] == "In the journey 'Open an account': check was done"
    assert [state.id for state in journey.states] == ["open.ask", "open.check", "open.offer", "open.thank"]
    with pytest.raises(
        ConfigError, match="unknown state 'nowhere' of the journey 'Open an account'; its states are: ask,"
    ):
        await journey.add_transition("ask", "nowhere")
    with pytest.raises(ConfigError, match="must lead to another state"):
        await journey.add_transition("ask", "ask")
    await journey.add_transition("thank", "ask", condition="they want another one")  # A journey may go round.


async def test_a_tool_state_is_met_by_its_own_call_each_time_through_a_loop() -> None:
    done: list[str] = []

    @tool(read_only=True)
    async def draw() -> str:
        """Draw a card."""
        done.append("draw")
        return "seven"

    @tool(read_only=True)
    async def score() -> str:
        """Count the points."""
        done.append("score")
        return "points"

    judge = scripted([plan(["other"]), *[plan(["game", "game.draw"]), plan(["game", "game.again"])] * 2], ["Ok."] * 9)
    agent = agent_with(judge, [draw, score])
    await agent.create_guideline("Customer tries a card", tools=[draw], id="other")
    journey = await agent.create_journey("a game", "Customer plays", id="game")
    first = await journey.add_state("draw", tools=[draw])
    second = await journey.add_state("score", tools=[score])
    await journey.add_transition(first, second)
    again = await journey.add_state("again", action="Ask whether to go on")
    await journey.add_transition(second, again)
    await journey.add_transition(second, first, condition="they want to go on")
    session = open_session(agent)
    await session.send("Just one card")  # Not a call of the journey.
    assert done == ["draw"]
    for _ in range(2):
        await session.send("Play")
        assert done[-2:] == ["draw", "score"]
        await session.send("Hm")
    assert done == ["draw", "draw", "score", "draw", "score"]

"""Options of guidelines beyond a condition: tracked actions, `on_match`, alternatives, results with guidelines."""

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from handrail import Agent, ConfigError, Guideline, Policy, Rule, ToolContext, ToolResult, tool
from handrail.chat import FileSessionStore
from handrail.errors import RefusalError
from handrail.guide import Plan, ScriptedJudge
from handrail.providers import UserMessage
from tests.guide.kit import SEND_500, Bank, agent_with, get_balance, needs, open_session, plan, scripted, transfer_money

ALLOW = Policy([Rule.allow("*")])


def list_ids(judge: ScriptedJudge) -> list[list[str]]:
    return [[guideline.id for guideline in request.guidelines] for request in judge.reply_requests]


# Tracking.


async def test_a_tracked_action_is_taken_once_until_its_condition_arises_anew(tmp_path: Path) -> None:
    judge = scripted([plan(["angry"]), plan(["angry"]), plan([]), plan(["angry"])], ["Ok."] * 4)
    agent = Agent(judge=judge, guidelines=[Guideline(id="angry", condition="is angry", action="Apologise", track=True)])
    sessions = FileSessionStore(tmp_path)
    session = open_session(agent, sessions=sessions)
    await session.send("This is bad!")
    again = await agent.load_session("s-1", customer_id="c-1", deps=Bank(), sessions=sessions)
    second = await again.send("Really bad!")
    await again.send("What time is it?")
    await again.send("This is bad again!")

    assert list_ids(judge) == [["angry"], [], [], ["angry"]]
    assert "its action was already taken" in second.trace.tree()


async def test_a_tracked_action_with_a_tool_is_taken_once_its_call_has_succeeded() -> None:
    bank = Bank()
    prepared = plan(["send"], needs("transfer_money", SEND_500))
    confirmed = plan(["send"], needs("transfer_money", SEND_500, confirmation="yes"))
    judge = scripted(
        [prepared, confirmed, plan(["send"], needs("transfer_money", {**SEND_500, "amount": 7}))], ["Ok."] * 3
    )
    agent = agent_with(
        judge,
        guidelines=[Guideline(id="send", condition="wants to send money", tools=("transfer_money",), track=True)],
    )
    session = open_session(agent, bank)
    await session.send("Send 500 to Sophie")
    await session.send("Yes.")
    last = await session.send("Send 7 to Sophie")

    assert (bank.sent, last.stop_reason) == ([("Sophie", 500)], "completed")


async def test_a_tracked_guideline_still_suppresses_what_it_takes_priority_over() -> None:
    bank = Bank()
    judge = scripted([plan(["send"], needs("transfer_money", SEND_500))] * 2, ["Ok."] * 2)
    agent = Agent(
        judge=judge,
        tools=[transfer_money],
        policy=ALLOW,
        guidelines=[
            Guideline(id="fraud", matches=lambda context: True, action="Stop everything", priority=10, track=True),
            Guideline(id="send", condition="wants to send money", tools=("transfer_money",)),
        ],
    )
    session = open_session(agent, bank)
    await session.send("Send 500 to Sophie")
    await session.send("Send 500 to Sophie")

    assert (bank.sent, list_ids(judge)) == ([], [["fraud"], []])


# on_match.


async def test_on_match_is_called_once_in_each_turn_in_which_a_guideline_is_active(
    caplog: pytest.LogCaptureFixture,
) -> None:
    called: list[str] = []

    async def note(context: ToolContext[Bank]) -> None:
        called.append(f"{context.session_id} {context.deps.reads}")

    def fail(context: ToolContext[Bank]) -> None:
        raise RuntimeError("no")

    judge = scripted([plan(["a", "b"], needs("get_balance", {"account": "x"})), plan([])], ["Ok."] * 2)
    agent = agent_with(
        judge,
        guidelines=[
            Guideline(id="a", condition="asks", tools=("get_balance",), on_match=note),
            Guideline(id="b", condition="asks", on_match=fail),
            Guideline(id="c", condition="is away", on_match=note),
        ],
    )
    session = open_session(agent)
    with caplog.at_level(logging.ERROR, logger="handrail"):
        result = await session.send("How much?")
    await session.send("Thanks.")

    assert called == ["s-1 []"]  # Before its tool ran, and not for a guideline that does not apply.
    assert (len(result.results), "on_match of the guideline b failed" in caplog.text) == (1, True)
    with pytest.raises(ConfigError, match="on_match must be a function"):
        agent.add_guideline(Guideline(condition="x", on_match=5))  # pyright: ignore[reportArgumentType]


# Relationships.


@pytest.mark.parametrize(("matched", "active"), [(["a"], []), (["a", "b"], ["a", "b"]), (["a", "c"], ["a", "c"])])
async def test_depends_on_any_needs_one_of_several(matched: list[str], active: list[str]) -> None:
    judge = scripted([plan(matched)], ["Ok."])
    agent = Agent(
        judge=judge,
        guidelines=[Guideline(id=item, condition=f"{item} is asked for") for item in "abc"],
        relationships=[("a", "depends_on_any", "b"), ("a", "depends_on_any", "c")],
    )
    await open_session(agent).send("Hi")
    assert list_ids(judge) == [active]


async def test_an_ambiguous_request_runs_nothing_and_asks_which_one_is_meant() -> None:
    bank = Bank()
    verdicts = [needs("get_balance", {"account": "x"}), needs("transfer_money", SEND_500)]
    judge = scripted([plan(["unclear", "read", "send"], *verdicts), plan(["read"], verdicts[0])], ["Which one?", "Ok."])
    agent = agent_with(
        judge,
        policy=ALLOW,
        guidelines=[
            Guideline(id="unclear", condition="It is not clear what the customer wants with 500"),
            Guideline(id="read", condition="wants the balance", tools=("get_balance",)),
            Guideline(id="send", condition="wants to send money", tools=("transfer_money",)),
        ],
        relationships=[("unclear", "disambiguates", "read"), ("unclear", "disambiguates", "send")],
    )
    session = open_session(agent, bank)
    first = await session.send("The 500 of Sophie, x")
    assert (bank.reads, bank.sent) == ([], [])
    (followed,) = judge.reply_requests[0].guidelines
    assert "which of these is meant: wants the balance; wants to send money" in followed.action
    assert "the customer is asked which one is meant" in first.trace.tree()
    await session.send("The balance of x")
    assert bank.reads == ["x"]


async def test_a_guideline_of_a_journey_applies_only_in_it() -> None:
    judge = scripted([plan(["tip"]), plan(["j1", "tip"])], ["Ok."] * 2)
    agent = agent_with(judge)
    journey = await agent.create_journey("Open an account", "Customer wants to open an account")
    await journey.create_guideline("Customer asks for help", "Explain the form", id="tip")
    session = open_session(agent)
    await session.send("Help!")
    await session.send("Help me to open an account!")

    assert list_ids(judge) == [[], ["j1", "tip"]]


# Results with guidelines.


@tool(read_only=True)
async def check_status() -> ToolResult:
    """Check the status of the customer."""
    wrong: Any = (5, Guideline(action=" "))
    return ToolResult(output="gold", guidelines=("Thank them for their loyalty", Guideline(action="Be brief"), *wrong))


@pytest.mark.parametrize("source", ["local", "mcp:shop", "openapi:shop"])
async def test_guidelines_of_a_result_are_for_this_turn_and_only_from_local_handlers(source: str) -> None:
    judge = scripted([plan(["g1"]), plan([])], ["Ok."] * 2)
    agent = agent_with(judge, [replace(check_status, source=source)])
    await agent.create_guideline("Customer says hello", tools=["check_status"])
    session = open_session(agent)
    await session.send("Hello")
    await session.send("Bye")

    actions = [
        [guideline.action for guideline in request.guidelines if guideline.id != "g1"]
        for request in judge.reply_requests
    ]
    assert actions == [["Thank them for their loyalty", "Be brief"] if source == "local" else [], []]
    assert "loyalty" not in str(session.conversation)


@pytest.mark.parametrize("returned", [None, "Be brief", 5])
async def test_guidelines_of_a_result_that_are_no_tuple_are_ignored(returned: Any) -> None:
    @tool(read_only=True)
    async def check() -> ToolResult:
        """Check."""
        return ToolResult(output="gold", guidelines=returned)

    judge = scripted([plan(["g1"])], ["Ok."])
    agent = agent_with(judge, [check])
    await agent.create_guideline("Customer says hello", tools=["check"])
    result = await open_session(agent).send("Hello")
    assert (result.results[0].output, list_ids(judge)) == ("gold", [["g1"]])


# Tools of equal names.


async def test_tools_of_equal_names_are_told_apart_by_their_source() -> None:
    def build(source: str) -> Any:
        @tool(read_only=True)
        async def search(query: str) -> str:
            """Search."""
            return f"{source}: {query}"

        return replace(search, source=source)

    judge = scripted([plan(["g1"], needs("crm__search", {"query": "x"}))] * 2, ["Ok."])
    agent = agent_with(judge, [build("plugin:crm"), build("plugin:shop"), get_balance])
    await agent.create_guideline("Customer asks", tools=["crm__search", "shop__search"])
    result = await open_session(agent).send("Search x")
    assert [item.output for item in result.results] == ["plugin:crm: x"]
    with pytest.raises(ConfigError, match="unknown tool 'search'"):
        await agent.create_guideline("Customer asks", tools=["search"])
    with pytest.raises(ConfigError, match="two tools are called 'search'"):
        agent_with(judge, [build("plugin:crm"), build("plugin:crm")])


# Retrievers.


async def test_retrievers_run_beside_the_plan() -> None:
    planned = asyncio.Event()

    def respond(request: Any) -> Plan:
        planned.set()
        return plan([])

    judge = ScriptedJudge(respond, ["Ok."])
    agent = agent_with(judge)
    await agent.create_guideline("Customer asks")

    @agent.retriever
    async def hours(context: Any) -> str:
        await asyncio.wait_for(planned.wait(), 5)  # It would wait in vain if the plan came after it.
        return "9 to 18"

    await open_session(agent).send("When?")
    assert judge.reply_requests[0].retrieved == {"hours": "9 to 18"}


# A message that the provider refuses.


class Refusing(ScriptedJudge):
    """Refuses whatever contains a bad word, as a content filter does."""

    def _check(self, request: Any) -> None:
        if any(isinstance(message, UserMessage) and "poison" in message.text for message in request.messages):
            raise RefusalError("refused by a filter")

    async def plan(self, request: Any) -> Plan:
        self._check(request)
        return await super().plan(request)

    async def reply(self, request: Any) -> Any:
        self._check(request)
        return await super().reply(request)


@pytest.mark.parametrize(("locale", "told"), [("en", "I cannot respond to this message."), ("fr", "Je ne peux pas")])
async def test_a_refused_message_is_answered_and_does_not_poison_later_turns(locale: str, told: str) -> None:
    bank = Bank()
    judge = Refusing([plan(["g1"], needs("get_balance", {"account": "a"}))], ["20000 EUR."])
    agent = agent_with(judge, locale=locale)
    await agent.create_guideline("Customer asks for the balance", tools=[get_balance])
    session = open_session(agent, bank)
    refused = await session.send("poison")
    assert (refused.text.startswith(told), bank.reads) == (True, [])
    assert "refused the customer's message" in refused.trace.tree()
    after = await session.send("How much is in a?")

    assert (after.text, bank.reads) == ("20000 EUR.", ["a"])
    assert "poison" not in str(session.conversation)


async def test_a_refused_message_leaves_what_waits_as_it_was() -> None:
    bank = Bank()
    prepared = plan(["g1"], needs("transfer_money", SEND_500))
    confirmed = plan(["g1"], needs("transfer_money", SEND_500, confirmation="yes"))
    agent = agent_with(Refusing([prepared, confirmed], ["Ok.", "It was sent."]))
    await agent.create_guideline("Customer wants to send money", tools=[transfer_money])
    session = open_session(agent, bank)
    await session.send("Send 500 to Sophie")
    refused = await session.send("yes, poison")
    assert (bank.sent, refused.stop_reason, "Shall I go ahead?" in refused.text) == ([], "approval_required", True)
    await session.send("Yes.")
    assert bank.sent == [("Sophie", 500)]


async def test_an_effect_is_told_even_if_the_reply_is_refused() -> None:
    class Late(ScriptedJudge):
        async def reply(self, request: Any) -> Any:
            raise RefusalError("refused by a filter")

    bank = Bank()
    agent = agent_with(Late([plan(["g1"], needs("transfer_money", SEND_500))]), policy=ALLOW)
    await agent.create_guideline("Customer wants to send money", tools=[transfer_money])
    session = open_session(agent, bank)
    result = await session.send("Send 500 to Sophie")

    assert (bank.sent, result.text) == ([("Sophie", 500)], "transfer money: Transferred 500 EUR to Sophie.")
    assert "Send 500 to Sophie" not in str(session.conversation.messages)


# What is withdrawn.


@pytest.mark.parametrize(
    ("second", "locale", "told"),
    [
        (plan([]), "en", "This will not be done: transfer money (recipient name: Sophie; amount: 500)."),
        (plan([]), "de", "Dies wird nicht ausgeführt: transfer money (recipient name: Sophie; amount: 500)."),
        (plan(["g1"], needs("transfer_money", {**SEND_500, "amount": 400})), "en", "This will not be done: "),
        (plan(["g1"], needs("transfer_money", SEND_500, confirmation="no")), "en", "This will not be done: "),
    ],
)
async def test_a_call_that_is_withdrawn_is_told_to_the_customer(second: Plan, locale: str, told: str) -> None:
    judge = scripted([plan(["g1"], needs("transfer_money", SEND_500)), second], ["Well.", "Well."])
    agent = agent_with(judge, locale=locale)
    await agent.create_guideline("Customer wants to send money", tools=[transfer_money])
    session = open_session(agent)
    await session.send("Send 500 to Sophie")
    result = await session.send("No, make it 400 to Sophie")

    assert told in result.text
    assert judge.reply_requests[-1].withdrawn == ("transfer money (recipient name: Sophie; amount: 500)",)

"""The judge over real adapters: structured output through the official SDKs, against strict servers."""

import json
from pathlib import Path
from typing import Any

import pytest

from handrail import Agent, Executor, ToolContext
from handrail.chat import ChatSession, FileSessionStore
from handrail.errors import ProviderDownError
from handrail.guide import CheckingJudge, GuidelineMatch
from handrail.providers import AssistantMessage, ToolMessage
from handrail.testing import ScriptedProvider
from handrail.testing.servers import text, tool_calls
from tests.guide.kit import READ_BACK, SEND_500, Bank, get_balance, transfer_money
from tests.providers.kit import Subject, every_adapter


def said(*ids: str, **verdict: Any) -> Any:
    """What a model answers to the question of a plan; without `evidence` if none of its tools changes anything."""
    quotes = verdict.pop("evidence", True)
    arguments = [
        {"name": key, "value": value, **({"evidence": f"{value}"} if quotes else {})}
        for key, value in verdict.pop("arguments", {}).items()
    ]
    verdicts = [{"reason": "wanted", "state": "needs_to_run", **verdict, "arguments": arguments}] if verdict else []
    matches = [{"guideline_id": item, "reason": "it fits"} for item in ids]
    return text(json.dumps({"matches": matches, "verdicts": verdicts}))


def wrote(words: str, *new: str, claims: tuple[str, ...] | None = ()) -> Any:
    """What a model answers to the question of a reply; without `claims` if the agent can change nothing."""
    claimed = {} if claims is None else {"claims": [{"tool": claim, "arguments": "{}"} for claim in claims]}
    return text(json.dumps({"text": words, "new_matches": list(new), **claimed}))


async def an_agent(provider: Any, **more: Any) -> Agent:
    agent = Agent(provider=provider, tools=[get_balance, transfer_money], instructions="You are at a bank.", **more)
    await agent.create_guideline("Customer asks for their balance", "Tell them", tools=[get_balance])
    await agent.create_guideline("Customer wants to transfer money", tools=[transfer_money])
    return agent


@every_adapter
@pytest.mark.proves("GC-02")
async def test_one_saved_session_goes_from_plain_to_guided_and_back_on_every_server(
    subject: Subject, tmp_path: Path
) -> None:
    bank, store = Bank(), FileSessionStore(tmp_path)
    context = ToolContext(session_id="s-1", customer_id="c-1", deps=bank)
    script = [
        tool_calls(("get_balance", {"account": "current"})),
        text("You have 20000 EUR."),
        said("g1", tool="get_balance", arguments={"account": "savings"}),
        wrote("Your savings are 20000 EUR."),
        said("g2", tool="transfer_money", arguments=SEND_500),
        wrote("I can do that."),
        said("g2", tool="transfer_money", pending="guided_3_1_1", confirmation="yes"),
        wrote("It was sent.", claims=("transfer_money",)),
        tool_calls(("get_balance", {"account": "current"})),
        text("Bye."),
    ]
    with subject.server(script) as server:
        async with subject.at(server) as provider:
            plain = ChatSession(
                provider,
                Executor([get_balance, transfer_money]),
                context=context,
                sessions=store,
                allow_memory_ledger=True,
            )
            await plain.send("How much do I have?")

            agent = await an_agent(provider)
            options: dict[str, Any] = {
                "customer_id": "c-1",
                "deps": bank,
                "sessions": store,
                "allow_memory_ledger": True,
            }
            guided = await agent.load_session("s-1", **options)
            balance = await guided.send("And my savings?")
            asked = await guided.send("Send 500 to Sophie.")
            loaded = await agent.load_session("s-1", **options)
            done = await loaded.send("Yes.")

            executor = Executor([get_balance, transfer_money])
            back = await ChatSession.load(
                provider, executor, context=context, sessions=store, instructions="", allow_memory_ledger=True
            )
            bye = await back.send("Check again, and bye.")

    assert (balance.text, balance.results[0].output) == ("Your savings are 20000 EUR.", "20000 EUR")
    assert (asked.stop_reason, asked.text) == ("approval_required", f"I can do that.\n\n{READ_BACK}")
    assert (done.stop_reason, done.text, bank.sent) == ("completed", "It was sent.", [("Sophie", 500)])
    assert (bye.text, bank.reads) == ("Bye.", ["current", "savings", "current"])
    assert balance.usage.input > 0
    assert back.conversation.usage.input >= balance.usage.input + asked.usage.input + done.usage.input
    answered = [message for message in back.conversation.messages if isinstance(message, ToolMessage)]
    made = [
        message.calls
        for message in back.conversation.messages
        if isinstance(message, AssistantMessage) and message.calls
    ]
    assert [len(item.results) for item in answered] == [len(item) for item in made] == [1, 1, 1, 1]


@every_adapter
async def test_a_response_that_does_not_fit_is_asked_for_again_with_what_is_wrong(subject: Subject) -> None:
    bank = Bank()
    script = [
        text("Sure, I will look!"),
        text(json.dumps({"matches": "g1"})),
        said("g1", tool="get_balance", arguments={"account": "current"}),
        wrote("You have 20000 EUR."),
    ]
    with subject.server(script) as server:
        async with subject.at(server) as provider:
            agent = await an_agent(provider)
            result = await agent.session("s-1", deps=bank).send("How much?")
            requests = list(server.requests)

    assert (bank.reads, result.text, result.trace.model_calls) == (["current"], "You have 20000 EUR.", 4)
    assert "could not be used" in str(requests[1])


async def test_numbers_booleans_and_lists_come_back_as_the_schema_wants_them() -> None:
    from handrail import tool

    @tool(read_only=True)
    async def search(words: list[str], limit: int, exact: bool, note: str) -> list[Any]:
        """Search."""
        return [words, limit, exact, note]

    given = {"words": '["a", "b"]', "limit": "3", "exact": "true", "note": "[1]"}
    provider = ScriptedProvider(
        [said("g1", tool="search", arguments=given, evidence=False), wrote("Found.", claims=None)]
    )
    agent = Agent(provider=provider, tools=[search])
    await agent.create_guideline("Customer searches", tools=[search])
    result = await agent.session("s-1").send("Search a and b.")

    assert result.results[0].output == [["a", "b"], 3, True, "[1]"]


async def test_the_model_reads_guidelines_tools_variables_terms_and_what_is_pending() -> None:
    provider = ScriptedProvider(
        [
            said("g2", tool="transfer_money", arguments=SEND_500),
            wrote("500 to Sophie?"),
            said(),
            wrote("Hello."),
        ]
    )
    agent = await an_agent(provider)
    await agent.create_variable("account_name", value="Jerry Seinfeld")
    await agent.create_term("carrot", "a kind of fruit")
    session = agent.session("s-1", deps=Bank())
    await session.send("Send 500 to Sophie.")
    await session.send("What is a carrot?")
    plan, reply, second, last = [(request.messages[0].text, request.instructions) for request in provider.requests]

    for part in ("g1: Customer asks for their balance -> Tell them", "amount: integer) for g2 CHANGES THINGS: "):
        assert part in plan[0]
    for part in (
        "account_name: Jerry Seinfeld",
        "carrot: a kind of fruit",
        "You are at a bank.",
        '["customer","Send 500 to Sophie."]',
    ):
        assert part in plan[0]
        assert part in reply[0]
    assert "Never guess" in plan[1]
    assert '["guided_1_1_1","transfer_money",{"recipient_name":"Sophie","amount":500}]' in second[0]
    assert '"waits for","customer"]' in reply[0]
    assert all("Now: " in item[0] for item in (plan, reply, second, last))
    assert "Pending" not in last[0]
    assert all(not request.tools for request in provider.requests)  # The provider's own tool calling is not used.


async def test_a_claim_that_the_model_admits_is_rejected() -> None:
    provider = ScriptedProvider(
        [
            said("g2", tool="transfer_money", state="cannot_run", arguments={"amount": 500}),
            wrote("Your friend is 500 EUR richer.", claims=("transfer_money",)),
            wrote("Who is it for?"),
        ]
    )
    agent = await an_agent(provider)
    result = await agent.session("s-1", deps=Bank()).send("Send 500 to my friend.")

    assert (result.text, [missing.parameter for missing in result.insights.missing_data]) == (
        "Who is it for?",
        ["recipient_name"],
    )


async def test_a_checking_judge_asks_once_more() -> None:
    provider = ScriptedProvider(
        [
            said("g2", tool="transfer_money", state="cannot_run", arguments={"amount": 500}),
            wrote("Your friend is 500 EUR richer."),
            text(json.dumps({"claimed": ["transfer_money"]})),
            wrote("Who is it for?"),
            text(json.dumps({"claimed": []})),
        ]
    )
    agent = await an_agent(None, judge=CheckingJudge(provider))
    result = await agent.session("s-1", deps=Bank()).send("Send 500 to my friend.")

    assert (result.text, result.trace.model_calls) == ("Who is it for?", 5)


async def test_a_provider_that_fails_in_the_middle_leaves_a_turn_that_can_be_resumed() -> None:
    bank = Bank()
    provider = ScriptedProvider(
        [
            said("g1", tool="get_balance", arguments={"account": "a"}),
            ProviderDownError("down"),
            said("g1"),
            wrote("You have 20000 EUR."),
        ]
    )
    agent = await an_agent(provider)
    session = agent.session("s-1", deps=bank)
    with pytest.raises(ProviderDownError):
        await session.send("How much?")
    result = await session.resume()

    assert (bank.reads, result.text) == (["a"], "You have 20000 EUR.")


def test_a_match_is_positional_or_named() -> None:
    assert GuidelineMatch("g1", True, "x") == GuidelineMatch(guideline_id="g1", applies=True, reason="x")

"""The judge for the embedded model: code decides what can be decided without a model."""

from collections.abc import Sequence
from typing import Any

import pytest

from handrail.guide import EmbeddedJudge, GuideSettings
from handrail.testing import ScriptedProvider
from handrail.testing.servers import tool_calls
from tests.guide.kit import (
    SEND_500,
    Bank,
    agent_with,
    get_balance,
    get_investment_options,
    open_session,
    transfer_money,
)


class WordEmbedder:
    """Texts with words in common are close."""

    is_available = True

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        vocabulary = ["balance", "transfer", "money", "hello", "greeting"]
        return [[float(word in text.casefold()) + 0.01 for word in vocabulary] for text in texts]


async def a_session(script: list[Any], bank: Bank, **more: Any) -> Any:
    judge = EmbeddedJudge(ScriptedProvider(script), embedding=WordEmbedder())
    agent = agent_with(judge, **more)
    await agent.create_guideline("Customer asks for the balance", tools=[get_balance])
    await agent.create_guideline("Customer wants to transfer money", tools=[transfer_money])
    return open_session(agent, bank)


async def test_one_call_is_picked_and_the_reply_is_a_template() -> None:
    bank = Bank()
    session = await a_session([tool_calls(("get_balance", {"account": "current"}))], bank)
    result = await session.send("What is my balance?")

    assert (bank.reads, result.text, result.trace.model_calls) == (["current"], "get balance: 20000 EUR", 1)
    assert [guideline.id for guideline in result.trace.iterations[0].guidelines if guideline.applies] == ["g1"]


@pytest.mark.parametrize(
    ("answer", "sent"),
    [("Yes, please.", True), ("ok", True), ("No, thanks.", False), ("Yes, but make it 100", False), ("yes?", False)],
)
async def test_a_call_is_confirmed_by_plain_words_only(answer: str, sent: bool) -> None:
    bank = Bank()
    session = await a_session([tool_calls(("transfer_money", SEND_500)), "Hm."], bank)
    asked = await session.send("Transfer 500 to Sophie, money")

    assert asked.stop_reason == "approval_required"
    assert "recipient name: Sophie; amount: 500" in asked.text
    await session.send(answer)
    assert bank.sent == ([("Sophie", 500)] if sent else [])


async def test_small_talk_calls_nothing_and_a_missing_value_is_asked_for() -> None:
    bank = Bank()
    session = await a_session(["Hello!", "I need the amount."], bank)
    hello = await session.send("Hello!")
    asked = await session.send("I want to transfer money")

    assert (hello.results, hello.insights.missing_data) == ((), ())
    assert [missing.parameter for missing in asked.insights.missing_data] == ["recipient_name", "amount"]
    assert "recipient name" in asked.text


async def test_a_read_without_parameters_runs_although_the_model_only_replied() -> None:
    bank = Bank()
    judge = EmbeddedJudge(ScriptedProvider(["Which account?"]), embedding=WordEmbedder())
    agent = agent_with(judge, [get_investment_options])
    await agent.create_guideline("Customer asks for investments", tools=[get_investment_options])
    result = await open_session(agent, bank).send("Where should my balance go?")

    assert (bank.reads, result.text) == (["investments"], 'get investment options: ["bonds","funds"]')


async def test_guidelines_are_matched_by_the_embedding_where_they_are_matched_first() -> None:
    bank = Bank()
    session = await a_session(
        [tool_calls(("get_balance", {"account": "a"}))], bank, settings=GuideSettings(match_first="always")
    )
    await session.send("My balance?")
    await session.send("hello, greeting")

    assert bank.reads == ["a"]

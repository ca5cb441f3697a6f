"""A consequential call runs with values that somebody gave: the words are quoted, and contain the value."""

from typing import Annotated, Any

import pytest

from handrail import Policy, Rule, tool
from handrail.guide import ParameterOptions, ToolVerdict
from tests.guide.kit import Bank, agent_with, get_balance, needs, open_session, plan, scripted, transfer_money

ALLOW = Policy([Rule.allow("*")])


async def transfer(arguments: dict[str, Any], evidence: dict[str, str], text: str) -> tuple[Any, Bank]:
    bank = Bank(balance=1_000_000)
    verdict = ToolVerdict("transfer_money", "needs_to_run", arguments, evidence)
    agent = agent_with(scripted([plan(["g1"], verdict)], ["Ok."]), policy=ALLOW)
    await agent.create_guideline("Customer wants to transfer money", tools=[transfer_money])
    return await open_session(agent, bank).send(text), bank


@pytest.mark.parametrize(
    ("arguments", "evidence", "reason"),
    [
        ({"amount": 99999}, {"amount": "my"}, "the words that were quoted for it do not contain the value"),
        ({"amount": 5000}, {"amount": "500"}, "the words that were quoted for it do not contain the value"),
        ({"amount": 400}, {"amount": "send 400"}, "the words that were quoted for it are not in the conversation"),
        ({"amount": 500}, {"amount": " "}, "nothing in the conversation supports a value for it"),
        ({"amount": 500}, {}, "nothing in the conversation supports a value for it"),
        ({"amount": 500}, {"amount": "..."}, "the words that were quoted for it are not in the conversation"),
    ],
)
async def test_evidence_is_compared_with_the_conversation_and_with_the_value(
    arguments: dict[str, Any], evidence: dict[str, str], reason: str
) -> None:
    given = {"recipient_name": "Sophie", **arguments}
    result, bank = await transfer(given, {"recipient_name": "Sophie", **evidence}, "Send 500 from my account to Sophie")

    assert bank.sent == []
    assert [(missing.parameter, missing.reason) for missing in result.insights.missing_data] == [("amount", reason)]


@pytest.mark.parametrize(
    ("text", "quote"),
    [
        ("Send five hundred to Sophie", "five hundred"),
        ("Send 500,00 to Sophie", "send 500,00"),
        ("SEND $500 TO SOPHIE!", "Send $500 … Sophie"),
    ],
)
async def test_numbers_and_names_are_compared_as_people_write_them(text: str, quote: str) -> None:
    _, bank = await transfer(
        {"recipient_name": "Sophie", "amount": 500}, {"recipient_name": "to sophie", "amount": quote}, text
    )
    assert bank.sent == [("Sophie", 500)]


@pytest.mark.parametrize("is_hidden", [False, True])
async def test_a_truth_value_of_the_program_supports_no_number(is_hidden: bool) -> None:
    given: list[int] = []

    @tool
    async def refund(percent: Annotated[int, ParameterOptions(hidden=is_hidden)] = 100) -> str:
        """Refund."""
        given.append(percent)
        return "refunded"

    verdict = ToolVerdict("refund", "needs_to_run", {"percent": 1})
    judge = scripted([plan(["g1"], verdict)], ["Ok."])
    agent = agent_with(judge, [refund], policy=ALLOW, variables={"is_regular": True})
    await agent.create_guideline("Customer wants a refund", tools=[refund])
    result = await open_session(agent).send("I want my money back")

    assert given == []
    assert [approval.by for approval in result.approvals] == (["operator"] if is_hidden else [])
    assert [missing.parameter for missing in result.insights.missing_data] == ([] if is_hidden else ["percent"])


async def test_a_value_may_come_from_a_result_a_variable_a_default_and_a_list_of_choices() -> None:
    done: list[dict[str, Any]] = []

    @tool
    async def settle(
        amount: str,
        account: str,
        speed: Annotated[str, ParameterOptions(choices=["sepa_instant", "sepa"])],
        note: Annotated[str, ParameterOptions(source="model")],
        copies: int = 1,
    ) -> str:
        """Settle a bill."""
        done.append({"amount": amount, "account": account, "speed": speed, "note": note, "copies": copies})
        return "settled"

    given = {"amount": "20000", "account": "DE02 1203", "speed": "sepa_instant", "note": "As agreed.", "copies": 1}
    verdict = ToolVerdict("settle", "needs_to_run", given, {"amount": "20000 EUR", "speed": "right now"})
    plans = [plan(["g1"], needs("get_balance", {"account": "a"})), plan(["g1"]), plan(["g1"], verdict), plan(["g1"])]
    agent = agent_with(
        scripted(plans, ["Ok."] * 2), [get_balance, settle], policy=ALLOW, variables={"iban": "DE02 1203"}
    )
    await agent.create_guideline("Customer settles", tools=[get_balance, settle])
    session = open_session(agent)
    await session.send("What do I have?")
    result = await session.send("Pay all of it right now")

    assert (done, result.insights.missing_data) == ([given], ())


async def test_a_hidden_value_that_a_model_filled_makes_the_call_the_operators() -> None:
    ran: list[int] = []

    @tool
    async def lend(amount: int, score: Annotated[int, ParameterOptions(hidden=True, display_name="merit")]) -> str:
        """Lend money."""
        ran.append(score)
        return "lent"

    judge = scripted(
        [plan(["g1"], needs("lend", {"amount": 50, "score": 7788}, reason="their score is fine"))],
        ["Your score allows it.", "With merit 7788 it works.", "An operator looks at it."],
    )
    agent = agent_with(judge, [lend], policy=ALLOW)
    await agent.create_guideline("Customer wants a loan", tools=[lend])
    session = open_session(agent)
    result = await session.send("Lend me 50")

    assert ([approval.by for approval in result.approvals], ran) == (["operator"], [])
    assert "a model set score" in result.approvals[0].question
    told = [result.text, str(result.insights), *(str(request) for request in judge.reply_requests)]
    for text in told:
        assert "7788" not in text
        assert "merit" not in text.casefold()
    assert "score" not in result.text
    await agent.executor.approvals.approve(result.approvals[0].token, by="operator", who="ann")
    await session.resume()
    assert ran == [7788]

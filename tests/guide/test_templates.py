"""Approved wording: templates are filled from results and checked; in strict mode nothing else is sent."""

import json
from typing import Any

import pytest

from handrail import Agent, ConfigError, Policy, Rule, ToolContext, tool
from handrail.guide import Draft, GuideSettings, ProviderJudge, ScriptedJudge, Template, Term
from handrail.testing import ScriptedProvider
from tests.guide.kit import SEND_500, Bank, agent_with, needs, open_session, plan, scripted, transfer_money


@tool(read_only=True)
async def get_balance(account: str, context: ToolContext[Bank]) -> dict[str, Any]:
    """Look up the balance of an account."""
    return {"amount": context.deps.balance, "owner": {"names": ["Ann", "Bo"]}, "note": None, "is_open": True}


BALANCE = Template("Your balance is {get_balance.amount} EUR.", id="balance")
READ = plan(["g1"], needs("get_balance", {"account": "a"}))


async def ask(judge: Any, *replies: Template | str, plans: int = 1, **more: Any) -> Any:
    agent = Agent(judge=judge, tools=[get_balance, transfer_money], replies=replies, **more)
    await agent.create_guideline("Customer asks", tools=["get_balance", "transfer_money"])
    return await open_session(agent).send("How much is in a? Send 500 to Sophie")


@pytest.mark.parametrize("mode", ["strict", "fluid"])
async def test_a_selected_template_is_sent_instead_of_the_judges_text(mode: Any) -> None:
    judge = scripted([READ, READ], [Draft("You are rich!", template="balance")])
    result = await ask(judge, BALANCE, "Hello.", replies_mode=mode)

    assert (result.text, result.trace.reply.template) == ("Your balance is 20000 EUR.", "balance")
    assert [(template.id, template.text) for template in judge.reply_requests[0].templates] == [
        ("balance", "Your balance is 20000 EUR."),
        ("t2", "Hello."),
    ]


async def test_strict_sends_no_word_of_a_judge() -> None:
    judge = scripted([READ, READ], ["You are rich!", Draft("Rich!", template="nobody")])
    result = await ask(judge, BALANCE, replies_mode="strict")
    assert "rich" not in result.text.lower()
    assert result.text.startswith("get balance: ")
    assert "must be the id of an approved text" in result.trace.reply.rejected[0]


async def test_fluid_sends_the_judges_text_if_it_selects_none() -> None:
    assert (await ask(scripted([READ, READ], ["20000, I think."]), BALANCE)).text == "20000, I think."


@pytest.mark.parametrize(
    "text",
    [
        "{get_balance.nothing}",
        "{get_balance.note}",
        "{get_balance.owner}",
        "{get_balance.is_open}",
        "{get_balance.owner.names.7}",
        "{get_balance}",
        "{transfer_money}",
        "{unread}",
    ],
)
async def test_a_template_with_a_field_without_a_value_is_never_sent(text: str) -> None:
    judge = scripted([READ, READ], [Draft("?", template="t1")] * 2)
    result = await ask(judge, f"It is {text}.", variables={"unread": None})
    assert judge.reply_requests[0].templates == ()
    assert "It is" not in result.text


async def test_fields_are_values_of_outputs_lists_and_variables() -> None:
    judge = scripted([READ, READ], [Draft("", template="t1")])
    result = await ask(
        judge,
        "{{{name}}}: {get_balance.owner.names} ({get_balance.owner.names.1}) have {get_balance.amount}.",
        variables={"name": "Jerry"},
        replies_mode="strict",
    )
    assert result.text == "{Jerry}: Ann, Bo (Bo) have 20000."


async def test_two_results_with_different_values_fill_no_field() -> None:
    @tool(read_only=True)
    async def get_rate(currency: str) -> str:
        """Look up a rate."""
        return f"rate of {currency}"

    both = plan(["g1"], needs("get_rate", {"currency": "EUR"}), needs("get_rate", {"currency": "USD"}))
    judge = scripted([both], ["Two rates."])
    agent = Agent(judge=judge, tools=[get_rate], replies=["{get_rate}"])
    await agent.create_guideline("Customer asks", tools=["get_rate"])
    await open_session(agent).send("EUR and USD?")
    assert judge.reply_requests[0].templates == ()


async def test_a_template_that_claims_what_did_not_happen_is_not_sent() -> None:
    judge = scripted([plan(["g1"], needs("transfer_money", SEND_500))], [Draft("", template="t1")] * 2)
    result = await ask(judge, "The transfer was made.", policy=Policy([Rule.ask("transfer_money", by="customer")]))
    assert ("The transfer was made." in result.text, result.stop_reason) == (False, "approval_required")


async def test_a_model_selects_a_template_from_an_enum() -> None:
    argument = {"name": "account", "value": "a", "evidence": "a"}
    verdict = {"tool": "get_balance", "reason": "", "arguments": [argument], "state": "needs_to_run"}
    answer = json.dumps({"matches": [{"guideline_id": "g1", "reason": ""}], "verdicts": [verdict]})
    select = json.dumps({"template": "balance", "text": "", "new_matches": [], "claims": []})
    provider = ScriptedProvider([answer, answer, select])
    result = await ask(ProviderJudge(provider), BALANCE, "Hello.")

    assert result.text == "Your balance is 20000 EUR."
    schema = provider.requests[-1].schema
    assert schema is not None
    assert schema["properties"]["template"]["enum"] == ["balance", "t2", "none"]
    assert "balance: Your balance is 20000 EUR." in str(provider.requests[-1].messages)


@pytest.mark.parametrize(
    ("replies", "told"),
    [
        (["a {"], "a field must be a tool"),
        (["{get_balance.__class__!r}"], "a field must be a tool"),
        ([Template("a", id="x"), Template("b", id="x")], "must be unique"),
        ([" "], "must have a text"),
        ([5], "must be Template values or texts"),
    ],
)
def test_a_template_that_cannot_be_read_is_refused(replies: list[Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Agent(judge=scripted(), tools=[get_balance], replies=replies)


async def test_a_field_that_is_no_tool_is_an_error_with_what_was_probably_meant() -> None:
    with pytest.raises(ConfigError, match=r"unknown field 'get_balanse.x'; did you mean 'get_balance'"):
        await ask(scripted([READ]), "{get_balanse.x}")
    with pytest.raises(ConfigError, match="replies_mode must be 'strict' or 'fluid', got 'loose'"):
        Agent(judge=scripted(), replies_mode="loose")  # pyright: ignore[reportArgumentType]


async def test_synonyms_of_a_term_reach_the_judge_and_the_prefilter() -> None:
    judge = ScriptedJudge([plan([])], ["Ok."])
    agent = agent_with(
        judge,
        terms={"nest egg": Term("the savings account", synonyms=("piggy bank",)), "IBAN": "a number"},
        settings=GuideSettings(prefilter_above=1, prefilter_limit=1),
    )
    await agent.create_guideline("Customer asks about loans")
    await agent.create_guideline("Customer asks about the nest egg")
    await agent.create_term("card", "a debit card", synonyms=["plastic"])
    await open_session(agent).send("How full is my piggy bank?")

    (request,) = judge.plan_requests
    assert request.terms["nest egg"] == "the savings account (also called piggy bank)"
    assert (request.terms["IBAN"], [guideline.id for guideline in request.guidelines]) == ("a number", ["g2"])


@pytest.mark.parametrize(
    "value",
    [10**5_000, -(10**5_000), float("nan"), float("inf"), [1, 10**5_000]],
    ids=["long", "negative", "nan", "inf", "list"],
)
async def test_a_number_that_no_customer_can_read_fills_no_field_and_the_turn_goes_on(value: Any) -> None:
    judge = scripted([READ, READ], ["Hello."])
    result = await ask(judge, "There are {places} places.", "Hello.", variables={"places": lambda context: value})

    assert result.text == "Hello."
    assert [template.id for template in judge.reply_requests[0].templates] == ["t2"]

"""The reply never says that something happened which has no committed result."""

from typing import Annotated, Any

import pytest
from pydantic import SecretStr

from handrail import ConfigError, Policy, Rule, tool
from handrail.guide import CandidateTool, Claim, Draft, ParameterOptions, ScriptedJudge, ToolVerdict
from tests.guide.kit import (
    READ_BACK,
    SEND_500,
    Bank,
    agent_with,
    get_balance,
    needs,
    open_session,
    plan,
    scripted,
    transfer_money,
)

MISSING = ToolVerdict("transfer_money", "cannot_run", {"amount": 500}, {"amount": "$500"}, "the recipient is not known")


async def reply_to(
    judge: Any, text: str = "Transfer $500 to my friend Sophie or Bob, and 5 to Ann", policy: Policy | None = None
) -> Any:
    agent = agent_with(judge, policy=policy)
    await agent.create_guideline("Customer wants to transfer money", tools=[transfer_money])
    await agent.create_guideline("Customer asks for the balance", tools=[get_balance])
    return await open_session(agent, Bank()).send(text)


@pytest.mark.proves("GC-35", "GC-44", "GC-D16")
async def test_a_draft_that_claims_a_transfer_is_written_again() -> None:
    judge = scripted([plan(["g1"], MISSING)], ["I've transferred $500.", "Who would you like to send it to?"])
    result = await reply_to(judge)

    assert result.text == "Who would you like to send it to?"
    first, second = judge.reply_requests
    assert (first.error, "I've transferred $500." in second.error) == ("", True)
    assert result.trace.reply.drafts == 2
    assert [missing.parameter for missing in second.insights.missing_data] == ["recipient_name"]


@pytest.mark.proves("GC-D16")
async def test_a_draft_that_still_claims_too_much_is_replaced_by_a_plain_text() -> None:
    judge = scripted([plan(["g1"], MISSING)], ["I've transferred $500.", "Done!"])
    result = await reply_to(judge)

    assert result.text == "To go on I still need: recipient name."
    assert (result.trace.reply.replaced, len(judge.reply_requests)) == (True, 2)


async def test_an_effect_that_was_not_even_considered_is_not_claimed_either() -> None:
    judge = scripted([plan([])], ["I have transferred the money.", "What can I do for you?"])
    assert (await reply_to(judge, "Please transfer it")).text == "What can I do for you?"


async def test_a_failed_effect_is_no_effect() -> None:
    too_much = {"recipient_name": "Ann", "amount": 1_000_000}
    judge = scripted([plan(["g1"], needs("transfer_money", too_much))], ["I sent it.", "There is not enough money."])
    result = await reply_to(judge, "Send 1,000,000 to Ann", policy=Policy([Rule.allow("*")]))

    assert (result.text, result.results[0].ok) == ("There is not enough money.", False)


async def test_a_committed_effect_may_be_claimed() -> None:
    judge = scripted([plan(["g1"], needs("transfer_money", SEND_500))], ["I've transferred $500 to Sophie."])
    assert (await reply_to(judge, policy=Policy([Rule.allow("*")]))).text == "I've transferred $500 to Sophie."


@pytest.mark.parametrize(
    ("draft", "is_true"),
    [
        ("I transferred 5 to Ann. Shall I transfer 500 to Bob?", True),
        ("I transferred 5 to Ann and 500 to Bob.", False),
        ("I transferred both.", False),
        ("I transferred 500.", False),
    ],
)
async def test_a_transfer_that_waits_may_not_be_claimed_with_one_that_was_made(draft: str, is_true: bool) -> None:
    asks = Rule.ask("transfer_money", by="customer", where={"amount": {"above": 100}})
    small, big = {"recipient_name": "Ann", "amount": 5}, {"recipient_name": "Bob", "amount": 500}
    judge = scripted([plan(["g1"], needs("transfer_money", small), needs("transfer_money", big))], [draft, draft])
    result = await reply_to(judge, policy=Policy([asks, Rule.allow("transfer_money")]))

    assert (len(result.results), len(result.approvals), result.trace.reply.replaced) == (1, 1, not is_true)
    if not is_true:
        assert "Transferred 5 EUR to Ann." in result.text
        assert "amount: 500" in result.text


@pytest.mark.proves("GC-44")
async def test_a_judge_may_be_asked_whether_a_text_claims_an_effect() -> None:
    asked: list[Any] = []

    class Checking(ScriptedJudge):
        async def check(self, text: str, effects: tuple[str, ...]) -> tuple[str, ...]:
            asked.append((text, effects))
            return effects if "friend is rich" in text else ()

    judge = Checking([plan(["g1"], MISSING)], ["Your friend is rich now.", "Who is it for?"])
    result = await reply_to(judge)

    assert result.text == "Who is it for?"
    assert asked == [("Your friend is rich now.", ("transfer_money",)), ("Who is it for?", ("transfer_money",))]
    assert result.trace.model_calls == 5


async def test_a_check_that_fails_leaves_the_lexical_rule() -> None:
    class Broken(ScriptedJudge):
        async def check(self, text: str, effects: tuple[str, ...]) -> Any:
            return "perhaps"

    judge = Broken([plan(["g1"], MISSING)], ["Done!", "Who is it for?"])
    assert (await reply_to(judge)).text == "Who is it for?"


async def test_a_read_only_turn_is_not_checked_by_the_judge() -> None:
    class Checking(ScriptedJudge):
        async def check(self, text: str, effects: tuple[str, ...]) -> Any:
            raise AssertionError

    judge = Checking([plan(["g2"], needs("get_balance", {"account": "a"}))], ["It is all done: you have 20000 EUR."])
    assert (await reply_to(judge, "How much?")).text == "It is all done: you have 20000 EUR."


@pytest.mark.parametrize(
    "draft",
    [
        "Ok.",
        "Shall I send 500 EUR to Sophie?",
        "I cannot send 500. Shall I send 50 to Sophie?",
        "Please confirm: transfer money (recipient name: Sophie; amount: 5). Shall I go ahead?",
    ],
)
async def test_the_read_back_is_ours_whatever_the_draft_says(draft: str) -> None:
    judge = scripted([plan(["g1"], needs("transfer_money", SEND_500))], [draft])
    result = await reply_to(judge)

    assert result.text == f"{draft}\n\n{READ_BACK}"


async def ask_to_confirm(function: Any, arguments: dict[str, Any], **more: Any) -> str:
    made = tool(function)
    judge = scripted([plan(["g1"], needs(made.name, arguments))], ["Ok."])
    agent = agent_with(judge, [made], **more)
    await agent.create_guideline("Customer pays", tools=[made])
    said = " ".join(map(str, arguments.values()))
    return (await open_session(agent).send(f"Do it: {said}")).text


async def test_every_value_that_will_run_is_shown_whole_also_a_sensitive_one_and_a_default() -> None:
    async def wire(iban: str, to_account: str, from_account: str, urgent: bool = True, note: str | None = None) -> str:
        """Send money."""
        return "sent"

    arguments = {"iban": "DE89370400440532013000", "to_account": "savings", "from_account": "current"}
    assert await ask_to_confirm(wire, arguments) == (
        "Ok.\n\nPlease confirm: wire (iban: DE89370400440532013000; to account: savings; from account: current; "
        "urgent: yes; note: nothing). Shall I go ahead?"
    )


async def test_a_masked_value_and_a_secret_type_show_their_last_characters() -> None:
    async def charge(card: Annotated[str, ParameterOptions(display="masked")], code: SecretStr) -> str:
        """Charge a card."""
        return "charged"

    text = await ask_to_confirm(charge, {"card": "4000123412344242", "code": "123"})
    assert text == "Ok.\n\nPlease confirm: charge (card: •••• 4242; code: ••••). Shall I go ahead?"


async def test_a_value_cannot_pretend_to_be_another_one() -> None:
    async def send(recipient: str, amount: int) -> str:
        """Send money."""
        return "sent"

    text = await ask_to_confirm(send, {"recipient": "Sophie; amount: 5", "amount": 500})
    assert text.endswith('send (recipient: "Sophie; amount: 5"; amount: 500). Shall I go ahead?')


async def test_the_question_is_asked_in_the_language_of_the_agent_and_of_the_tenant() -> None:
    async def send(amount: int, urgent: bool = False) -> str:
        """Send money."""
        return "sent"

    text = await ask_to_confirm(send, {"amount": 500}, locale="fr-CH")
    assert text == "Ok.\n\nVeuillez confirmer : send (amount : 500; urgent : non). Dois-je continuer ?"
    with pytest.raises(ConfigError, match="locale must be one of en, fr"):
        agent_with(scripted(), locale="tlh")


async def test_a_tool_of_a_source_that_is_down_is_a_result_that_the_reply_reads() -> None:
    from handrail import ToolError

    @tool(read_only=True)
    async def remote(what: str) -> str:
        """Ask a server."""
        raise ToolError("The server cannot be reached.", code="unavailable")

    judge = scripted([plan(["g1"], needs("remote", {"what": "x"}))], ["It is down."])
    agent = agent_with(judge, [remote])
    await agent.create_guideline("Customer asks", tools=[remote])
    result = await open_session(agent).send("Go.")

    assert "cannot be reached" in judge.reply_requests[0].results[0].for_model()
    assert result.text == "It is down."


def test_a_candidate_is_consequential_unless_it_says_otherwise() -> None:
    assert CandidateTool(name="x").consequential


async def two_turns(*drafts: Draft | str) -> Any:
    """500 were sent to Sophie in the first turn; the second asks for nothing."""
    judge = scripted(
        [plan(["g1"], needs("transfer_money", SEND_500)), plan([])], ["It was sent.", *drafts, "Anything else?"]
    )
    agent = agent_with(judge, policy=Policy([Rule.allow("*")]))
    await agent.create_guideline("Customer wants to transfer money", tools=[transfer_money])
    session = open_session(agent, Bank())
    await session.send("Send 500 to Sophie")
    return await session.send("And?")


@pytest.mark.parametrize(
    ("draft", "is_true"),
    [
        ("I have transferred 500 to Sophie.", True),
        ("I have transferred 900 to Tom.", False),
        (Draft("All good.", claims=(Claim("transfer_money", {"amount": "500"}),)), True),
        (Draft("All good.", claims=(Claim("transfer_money", {"amount": 500, "recipient_name": "Sophie"}),)), True),
        (Draft("All good.", claims=(Claim("transfer_money", {"amount": 900}),)), False),
        (Draft("All good.", claims=(Claim("transfer_money", {"recipient_name": "Tom"}),)), False),
        (Draft("All good.", claims=("transfer_money",)), True),
    ],
)
async def test_an_earlier_success_does_not_excuse_a_claim_about_another_effect(draft: Any, is_true: bool) -> None:
    result = await two_turns(draft)
    assert result.text == ((draft if isinstance(draft, str) else draft.text) if is_true else "Anything else?")


DENY = Policy([Rule.deny("transfer_money", reason="not today")])
OPERATOR = Policy([Rule.ask("transfer_money", by="operator")])
WANTED = needs("transfer_money", SEND_500)
NOT_DONE = "Not done so far: transfer money."


@pytest.mark.parametrize(
    ("verdict", "policy", "draft", "is_told"),
    [
        (MISSING, None, "Sophie is a lucky person.", True),  # A claim that no pattern knows.
        (MISSING, None, "Sure. Who would you like to send it to?", False),
        (MISSING, None, "I need the recipient's name.", False),
        (WANTED, DENY, "Sophie is a lucky person.", True),
        (WANTED, DENY, "I'm sorry, that could not be done.", False),
        (WANTED, OPERATOR, "Sophie is a lucky person.", True),
        (WANTED, Policy([Rule.allow("*")]), "Sophie is a lucky person.", False),  # It happened.
        (WANTED, None, "Sophie is a lucky person.", False),  # The question tells it.
        (ToolVerdict("transfer_money", "not_applicable"), None, "Sophie is a lucky person.", False),
    ],
)
async def test_what_was_wanted_and_did_not_happen_is_said_if_the_judge_leaves_it_open(
    verdict: ToolVerdict, policy: Policy | None, draft: str, is_told: bool
) -> None:
    result = await reply_to(scripted([plan(["g1"], verdict)], [draft]), "Transfer 500 to Sophie, $500", policy)
    assert (result.text.startswith(draft), NOT_DONE in result.text) == (True, is_told)


async def test_what_did_not_happen_is_said_in_the_language_of_the_session() -> None:
    agent = agent_with(scripted([plan(["g1"], MISSING)], ["Sophie a de la chance."]), locale="fr")
    await agent.create_guideline("Customer wants to transfer money", tools=[transfer_money])
    assert (await open_session(agent).send("$500")).text.endswith("\n\nPas encore fait : transfer money.")

"""A pending call runs only if the customer's own words agree to it, in the world of the turn in which they do."""

from typing import Any

import pytest

from handrail import Policy, Rule
from handrail.guide import GuidedSession, GuidelineMatch, Plan, ToolVerdict
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

YES = needs("transfer_money", SEND_500, confirmation="yes")
SEND_20 = {"recipient_name": "Tom", "amount": 20}


async def prepare(
    *plans: Plan, relations: tuple[Any, ...] = (), policy: Policy | None = None, first: tuple[Any, ...] = (SEND_500,)
) -> tuple[GuidedSession, Bank]:
    """A session whose first turn left a transfer pending; the judge goes on with these plans."""
    bank = Bank()
    prepared = plan(["g1", "g3"], *(needs("transfer_money", arguments) for arguments in first))
    agent = agent_with(scripted([prepared, *plans], ["Ok."] * 9), policy=policy)
    await agent.create_guideline("Customer wants to transfer money", tools=[transfer_money])
    await agent.create_guideline("Customer reports fraud", "Block everything", tools=[get_balance])
    await agent.create_guideline("Customer is identified")
    for source, kind, target in relations:
        await agent.create_relationship(source, kind, target)
    session = open_session(agent, bank)
    await session.send("Send 500 to Sophie, and 20 to Tom")
    return session, bank


@pytest.mark.parametrize(
    "words",
    [
        "No, stop, do not pay that!",
        "What would that cost?",
        "My card was stolen",
        "Yes, but make it 400",
        "Yes, send 400",
        "Is it going to rain tomorrow",
        "hm",
        "Nein",
    ],
)
async def test_a_yes_of_the_judge_is_checked_with_the_customers_words(words: str) -> None:
    session, bank = await prepare(plan(["g1"], YES))
    result = await session.send(words)

    assert (bank.sent, result.stop_reason) == ([], "approval_required")
    assert result.text.endswith(READ_BACK)  # It is asked again.


@pytest.mark.parametrize(
    "words", ["Yes.", "Go ahead, please", "Oui, allez-y", "はい、お願いします", "Yes, 500 to Sophie"]
)
async def test_a_clear_yes_runs_the_call_once(words: str) -> None:
    session, bank = await prepare(plan(["g1"], YES))
    assert (await session.send(words)).stop_reason == "completed"
    assert bank.sent == [("Sophie", 500)]


async def test_a_refusal_that_came_before_the_yes_still_counts() -> None:
    session, bank = await prepare(plan(["g1"], needs("transfer_money", SEND_500)), plan(["g1"], YES))
    await session.send("No!")
    result = await session.send("Yes.")

    assert (bank.sent, result.stop_reason) == ([], "approval_required")


async def test_fraud_in_the_same_breath_as_yes_withdraws_the_call() -> None:
    session, bank = await prepare(plan(["g1", "g2"], YES), relations=(("g2", "takes_priority_over", "g1"),))
    result = await session.send("Yes.")

    assert (bank.sent, result.stop_reason, session.conversation.pending) == ([], "completed", ())
    assert "will not run: its guideline does not apply any more: g2 takes priority" in result.trace.tree()
    assert await session.approvals() == []


async def test_a_dependency_that_no_longer_holds_withdraws_the_call() -> None:
    relations = (("g1", "depends_on", "g3"),)
    session, bank = await prepare(plan(["g1"], YES), relations=relations)
    result = await session.send("Yes.")
    assert (bank.sent, session.conversation.pending) == ([], ())
    assert "depends on g3" in result.trace.tree()

    session, bank = await prepare(plan(["g3"], YES), relations=relations)
    await session.send("Yes.")
    assert bank.sent == [("Sophie", 500)]


async def test_a_yes_counts_although_the_judge_left_its_guideline_out() -> None:
    session, bank = await prepare(plan([], YES))
    assert (await session.send("Yes.")).stop_reason == "completed"
    assert bank.sent == [("Sophie", 500)]


async def test_a_guideline_that_the_judge_rejects_confirms_nothing() -> None:
    session, bank = await prepare(Plan((GuidelineMatch("g1", False, "they changed the subject"),), (YES,)))
    await session.send("Yes.")
    assert bank.sent == []


OPERATOR = Policy([Rule.ask("transfer_money", by="operator")])


@pytest.mark.parametrize(
    ("verdict", "waiting"),
    [
        (needs("transfer_money", {"recipient_name": "Sophie", "amount": 400}), [400]),
        (needs("transfer_money", SEND_20), [500, 20]),
        (ToolVerdict("transfer_money", "not_applicable"), [500]),
    ],
)
async def test_other_values_withdraw_what_an_operator_was_asked(verdict: ToolVerdict, waiting: list[int]) -> None:
    session, bank = await prepare(plan(["g1"], verdict), policy=OPERATOR)
    await session.send("Make it 400 to Sophie, or 20 to Tom")

    assert [approval.call.arguments_json for approval in session.conversation.pending] != []
    assert [approval.approval.arguments["amount"] for approval in session.conversation.pending] == waiting
    assert [approval.arguments["amount"] for approval in await session.approvals()] == waiting
    assert bank.sent == []


BOTH = (SEND_500, SEND_20)
BOTH_YES = (YES, needs("transfer_money", SEND_20, confirmation="yes"))


@pytest.mark.parametrize(
    ("words", "sent"),
    [
        ("Yes.", [("Sophie", 500), ("Tom", 20)]),
        ("Yes, both of them: 500 to Sophie and 20 to Tom", [("Sophie", 500), ("Tom", 20)]),
        ("Yes, 500 to Sophie", [("Sophie", 500)]),
        ("Yes, 20 to Tom", [("Tom", 20)]),
        ("Yes, 500 to Tom and 20 to Sophie, but not now", []),
    ],
)
async def test_a_yes_names_one_of_two_calls_or_both_after_a_question_that_names_both(
    words: str, sent: list[tuple[str, int]]
) -> None:
    session, bank = await prepare(plan(["g1"], *BOTH_YES), first=BOTH)
    assert session.conversation.messages[-1].text.endswith(
        "Please confirm each of these:\n- transfer money (recipient name: Sophie; amount: 500)\n"
        "- transfer money (recipient name: Tom; amount: 20)\nShall I go ahead with both?"
    )
    await session.send(words)
    assert bank.sent == sent

"""An adapter turns what the customer says into what runs; the customer sees what they said."""

import json
from pathlib import Path
from typing import Annotated, Any

import pytest

from handrail import ConfigError, Policy, Rule, ToolContext, ToolError, tool
from handrail.chat import FileSessionStore
from handrail.guide import ParameterOptions, ProviderJudge, ToolVerdict
from handrail.testing import ScriptedProvider
from tests.guide.kit import Bank, agent_with, needs, open_session, plan, scripted

PEOPLE = {"Sophie": 17, "Mark": 4}


async def find_person(name: Any, context: ToolContext[Bank]) -> int:
    context.deps.reads.append(name)
    if name == "Nobody":
        raise RuntimeError("no database")
    if name not in PEOPLE:
        raise ToolError("there is nobody of this name")
    return PEOPLE[name]


@tool
async def send_gift(
    person_id: Annotated[int, ParameterOptions(display_name="recipient", adapter=find_person)],
    context: ToolContext[Bank],
) -> str:
    """Send a gift to somebody."""
    context.deps.sent.append(("gift", person_id))
    return f"sent to {person_id}"


PREPARE = plan(["g1"], needs("send_gift", {"person_id": "Sophie"}))


async def make(judge: Any, **more: Any) -> Any:
    agent = agent_with(judge, [send_gift], **more)
    await agent.create_guideline("Customer wants to send a gift", tools=[send_gift])
    return agent


@pytest.mark.parametrize("repeats", ["Sophie", 17])  # A judge repeats what was said, or copies the pending call.
async def test_the_adapted_value_runs_and_the_customer_sees_what_they_said(repeats: Any, tmp_path: Path) -> None:
    bank = Bank()
    judge = scripted(
        [PREPARE, plan(["g1"], needs("send_gift", {"person_id": repeats}, confirmation="yes"))], ["Ok."] * 2
    )
    agent = await make(judge)
    sessions = FileSessionStore(tmp_path)
    asked = await open_session(agent, bank, sessions=sessions, allow_memory_ledger=True).send("A gift to Sophie")
    assert asked.text == "Ok.\n\nPlease confirm: send gift (recipient: Sophie). Shall I go ahead?"
    assert asked.approvals[0].arguments == {"person_id": 17}  # What policy and operators see is what runs.
    session = await agent.load_session("s-1", customer_id="c-1", deps=bank, sessions=sessions, allow_memory_ledger=True)
    await session.send("Yes, to Sophie.")

    assert bank.sent == [("gift", 17)]
    assert "type" not in judge.plan_requests[0].tools[0].schema["properties"]["person_id"]


@pytest.mark.parametrize(
    ("said", "reason"), [("Xaver", "there is nobody of this name"), ("Nobody", "it could not be looked up")]
)
async def test_a_value_that_cannot_be_adapted_is_invalid_with_its_reason(said: str, reason: str) -> None:
    bank = Bank()
    judge = scripted([plan(["g1"], needs("send_gift", {"person_id": said}))] * 2, ["Who is that?"] * 2)
    result = await open_session(await make(judge, policy=Policy([Rule.allow("*")])), bank).send(f"A gift to {said}")

    assert bank.sent == []
    assert [(invalid.display_name, invalid.value, invalid.reason) for invalid in result.insights.invalid_data] == [
        ("recipient", said, reason)
    ]


async def test_evidence_is_for_what_was_said() -> None:
    bank = Bank()
    judge = scripted([plan(["g1"], needs("send_gift", {"person_id": "Sophie"}))], ["Who?"])
    result = await open_session(await make(judge, policy=Policy([Rule.allow("*")])), bank).send("A gift to my friend")
    assert (bank.sent, [missing.parameter for missing in result.insights.missing_data]) == ([], ["person_id"])


async def test_the_reply_prompt_shows_what_the_customer_said() -> None:
    argument = {"name": "person_id", "value": "Sophie", "evidence": "to Sophie"}
    verdict = {"tool": "send_gift", "reason": "", "arguments": [argument], "state": "needs_to_run"}
    answer = {"matches": [{"guideline_id": "g1", "reason": ""}], "verdicts": [verdict]}
    provider = ScriptedProvider([json.dumps(answer), '{"text":"Ok.","new_matches":[],"claims":[]}'])
    await open_session(await make(ProviderJudge(provider))).send("A gift to Sophie")
    prompt = str(provider.requests[1].messages)
    assert ('"person_id":17' in prompt, '"person id":"Sophie"' in prompt) == (False, True)


def test_an_adapter_must_be_a_function() -> None:
    with pytest.raises(ConfigError, match="adapter must be a function"):
        ParameterOptions(adapter=5)  # pyright: ignore[reportArgumentType]


async def test_an_adapter_is_not_called_for_a_tool_whose_guideline_does_not_apply() -> None:
    bank = Bank()
    verdict = needs("send_gift", {"person_id": "Sophie"})
    not_wanted = ToolVerdict("send_gift", "not_applicable", {"person_id": "Sophie"})
    session = open_session(await make(scripted([plan([], verdict), plan(["g1"], not_wanted)], ["Ok."] * 2)), bank)
    await session.send("A gift to Sophie")
    await session.send("A gift to Sophie, or not")
    assert (bank.reads, bank.sent) == ([], [])

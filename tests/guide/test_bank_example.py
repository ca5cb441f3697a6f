"""The bank of the docs, in Python and in YAML: the same agent, a whole conversation, saved and loaded on the way."""

import runpy
from pathlib import Path
from typing import Any

import pytest

from handrail import Agent
from handrail.chat import FileSessionStore
from handrail.guide import Draft
from handrail.store import open_store
from tests.guide.kit import needs, plan, scripted

ROOT = Path(__file__).parents[2]
EXAMPLE = runpy.run_path(str(ROOT / "examples" / "guided_bank.py"))
SOPHIE = {"recipient_name": "Sophie", "amount": 200}


def test_the_yaml_of_the_docs_is_the_example_and_the_same_agent() -> None:
    text = (ROOT / "examples" / "guided_bank.yaml").read_text()
    assert f"```yaml\n{text}```" in (ROOT / "docs" / "guided.md").read_text()
    python, yaml = EXAMPLE["build_agent"](judge=scripted()).guide(), EXAMPLE["load_agent"](judge=scripted()).guide()
    for name in ("guidelines", "instructions", "agent_id", "terms", "variables", "candidates"):
        assert getattr(python, name) == getattr(yaml, name), name
    assert python.tools["transfer_money"].options == yaml.tools["transfer_money"].options
    assert len(python.guidelines) == 8


@pytest.mark.parametrize("build", ["build_agent", "load_agent"])
async def test_a_conversation_with_the_bank(build: str, tmp_path: Path) -> None:
    bank = EXAMPLE["Bank"]()
    sessions = FileSessionStore(tmp_path / "sessions")
    judge = scripted(
        [
            plan(["balance"]),
            plan(["transfer"], needs("transfer_money", SOPHIE)),
            plan(["transfer"], needs("transfer_money", SOPHIE, confirmation="yes")),
            plan(["transfer"], needs("transfer_money", {**SOPHIE, "amount": 2_000})),
            plan(["transfer"], needs("transfer_money", {**SOPHIE, "amount": 300})),
            plan(["transfer", "stolen"], needs("block_card", {"card": "debit"})),
            plan(["stolen"], needs("block_card", {"card": "debit"}, confirmation="yes")),
            plan(["person"]),
        ],
        [
            Draft("You have 12400 EUR.", ("invest",)),
            "Hello Jerry, you have 12400 EUR, which could be invested.",
            "I can do that.",
            "It is done.",
            "A colleague has to agree.",
            "It was sent.",
            "I can do that.",
            "I am sorry to hear that.",
            "It is blocked.",
        ],
    )
    async with open_store(f"sqlite:///{tmp_path}/bank.db") as store:
        agent: Agent = EXAMPLE[build](judge=judge, store=store)

        async def send(text: str) -> Any:  # Every turn loads the session, as a web server does.
            session = await agent.load_session("s-1", customer_id="jerry", deps=bank, sessions=sessions, create=True)
            return session, await session.send(text)

        _, told = await send("How much do I have?")
        assert [result.tool_name for result in told.results] == ["get_balance", "get_investment_options"]
        _, asked = await send("Send 200 to Sophie")
        assert "(the recipient's full name: Sophie; the amount in euros: 200). Shall I go ahead?" in asked.text
        await send("Yes, please.")
        assert (bank.sent, bank.balance) == (["200 EUR to Sophie"], 12_200)

        session, large = await send("Send 2000 to Sophie")
        assert [approval.by for approval in large.approvals] == ["operator"]
        await agent.executor.approvals.approve(large.approvals[0].token, by="operator", who="ann", reason="checked")
        assert (await session.resume()).text == "It was sent."
        assert (bank.sent[-1], bank.balance) == ("2000 EUR to Sophie", 10_200)

        await send("And 300 to Sophie")
        _, stolen = await send("Wait! My debit card was stolen!")
        assert "This will not be done: transfer money" in stolen.text
        assert "Please confirm: block card (your card: debit)." in stolen.text
        await send("Yes.")
        assert (bank.cards["debit"], len(bank.sent)) == ("blocked", 2)

        session, person = await send("I want to speak to a person!")
        assert (person.stop_reason, session.handed_off) == ("handed_off", True)
        _, silent = await send("Hello?")
        assert (silent.stop_reason, silent.text) == ("handed_off", "")
        await agent.aclose()
    greeted = [any(guideline.id == "greeting" for guideline in request.guidelines) for request in judge.reply_requests]
    assert greeted == [True, True, *[False] * 7]

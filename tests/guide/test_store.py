"""What a guided turn leaves in a store: the ledger and the audit name the guidelines."""

from pathlib import Path

from handrail import Policy, Rule
from handrail.store import open_store
from tests.guide.kit import SEND_500, Bank, agent_with, needs, open_session, plan, scripted, transfer_money


async def test_the_ledger_and_the_audit_name_the_guidelines_of_a_call(tmp_path: Path) -> None:
    bank = Bank()
    async with open_store(f"sqlite+aiosqlite:///{tmp_path}/handrail.db") as store:
        judge = scripted(
            [
                plan(["g1"], needs("transfer_money", SEND_500)),
                plan(["g1"], needs("transfer_money", SEND_500, confirmation="yes")),
            ],
            ["500 to Sophie?", "I sent it."],
        )
        agent = agent_with(
            judge,
            policy=Policy([Rule.ask("transfer_money", by="customer")]),
            store=store,
        )
        await agent.create_guideline("Customer wants to transfer money", tools=[transfer_money])
        session = open_session(agent, bank, sessions=store.sessions)
        await session.send("Send 500 to Sophie")
        result = await session.send("Yes.")
        entry = (await store.ledger.recall(session_id="s-1", call_id=result.results[0].call_id)).by_id
        await store.audit.flush()
        facts = await store.audit.query(session_id="s-1")

    assert bank.sent == [("Sophie", 500)]
    assert entry is not None
    assert (entry.state, entry.guideline_ids) == ("committed", ("g1",))
    assert {fact.guideline_ids for fact in facts if fact.kind in ("call_started", "call_finished")} == {("g1",)}
    first, second = [fact for fact in facts if fact.kind == "turn_planned"]
    assert first.guideline_ids == second.guideline_ids == ("g1",)
    assert first.detail["model_calls"] == 2
    assert second.detail["trace"][1] == f"1 transfer_money needs_to_run g1 {entry.call_id} ask ok"
    assert "Sophie" not in str(facts)

"""Whole conversations through the official SDKs: the strict servers take every history that a session makes."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from handrail import Executor, Policy, Rule, tool
from handrail.chat import ChatSession, FileSessionStore
from handrail.errors import ProviderDownError
from handrail.providers import TextDelta
from handrail.testing.servers import text, text_and_calls, tool_calls, truncated
from tests.chat.bank import Bank, at, balance, pay, yes
from tests.execute.helpers import Held, code_of
from tests.providers.kit import ALL, Subject, every_adapter


@every_adapter
async def test_a_conversation_with_a_question_a_mistake_and_two_calls_at_once(subject: Subject) -> None:
    bank = Bank()
    script = [
        text_and_calls("One moment.", ("balance", {}), ("pay", {"amount": "lots"})),
        tool_calls(("pay", {"amount": 5}), ("balance", {})),
        text("Paid."),
        truncated("I was about to"),
        text("Bye."),
    ]
    with subject.server(script) as server:
        async with subject.at(server) as provider:
            session = ChatSession(provider, Executor([balance, pay]), context=at(bank), instructions="Be brief.")
            asked = await session.send("Pay 5.")
            done = await yes(session, asked)
            cut = await session.send("And now?")
            bye = await session.send("Bye.")

    assert [code_of(result) for result in asked.results] == [None, "invalid_arguments", None]
    assert (done.text, bank.paid) == ("Paid.", [5])
    assert (cut.text, cut.finish_reason) == ("I was about to", "length")
    assert (bye.text, bye.stop_reason) == ("Bye.", "completed")


@every_adapter
async def test_a_conversation_that_was_interrupted_and_one_that_broke_off_continue(subject: Subject) -> None:
    held = Held()

    @tool(on_interrupt="cancel")
    async def work() -> str:
        """Work."""
        return await held()

    script = [
        tool_calls(("work", {})),
        text("A long answer that nobody hears.", cut_after=3),
        text("Here I am."),
    ]
    executor = Executor([work], policy=Policy([Rule.allow("*")]))
    with subject.server(script) as server:
        async with subject.at(server) as provider:
            session = ChatSession(provider, executor, context=at(Bank()))
            sending = asyncio.create_task(session.send("Work."))
            await asyncio.wait_for(held.begun.wait(), 20)
            session.interrupt()
            interrupted = await sending
            with pytest.raises(ProviderDownError):
                await session.send("Are you there?")
            back = await session.resume()

    assert (interrupted.stop_reason, code_of(interrupted.results[0])) == ("interrupted", "outcome_unknown")
    assert back.text == "Here I am."


@every_adapter
@pytest.mark.parametrize("after", ALL, ids=lambda subject: subject.name)
async def test_a_conversation_continues_with_another_provider_after_a_restart(
    subject: Subject, after: Subject, tmp_path: Path
) -> None:
    bank, sessions = Bank(), FileSessionStore(tmp_path)
    with subject.server([tool_calls(("balance", {}), ("pay", {"amount": 5}))]) as server:
        async with subject.at(server) as provider:
            session = ChatSession(
                provider, Executor([balance, pay]), context=at(bank), sessions=sessions, allow_memory_ledger=True
            )
            await session.send("Pay 5.")
    with after.server([text("Paid."), text("Bye.")]) as server:
        async with after.at(server) as provider:
            session = await ChatSession.load(
                provider, Executor([balance, pay]), context=at(bank), sessions=sessions, allow_memory_ledger=True
            )
            (question,) = await session.approvals()
            await session.approve(question.token)
            paid = await session.resume()
            events: list[Any] = [event async for event in session.stream("Thanks.")]

    assert (paid.text, bank.paid, bank.reads) == ("Paid.", [5], 1)
    assert "".join(item.text for item in events if isinstance(item, TextDelta)) == "Bye."

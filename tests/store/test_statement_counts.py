"""Counts that stand for cost: what is sent to the database for a call, a turn, an event, however much is stored."""

import asyncio
from typing import Any

import pytest

from handrail import Executor, Policy, Rule, ToolCall, ToolContext, tool
from handrail.chat import ChatSession, Conversation
from handrail.core import CircuitBreakerChanged
from handrail.execute import Worker
from handrail.providers import AssistantMessage, UserMessage
from handrail.store import SqlStore
from handrail.testing import ScriptedProvider
from handrail.testing.servers import tool_calls
from tests.clocks import eventually, stopped_clock
from tests.statements import counted
from tests.tools import pay


@tool(read_only=True)
async def look(amount: int) -> str:
    """Look."""
    return f"Seen {amount}."


def a_call(name: str, number: int) -> ToolCall:
    return ToolCall(id=f"c-{number}", name=name, arguments_json=f'{{"amount": {number}}}')


def kinds(statements: Any) -> list[str]:
    return [sent.split()[0] for sent, _ in statements.sent]


async def test_a_consequential_call_is_two_statements_and_a_read_is_none(store: SqlStore) -> None:
    executor = Executor([pay, look], policy=Policy([Rule.allow("*")]), ledger=store.ledger, approvals=store.approvals)
    context = ToolContext[Any](session_id="s")
    for number in range(50):  # What is stored does not count.
        await executor.run(a_call("pay", number), context)

    with counted(store) as statements:
        assert (await executor.run(a_call("pay", 50), context)).ok
    assert kinds(statements) == ["INSERT", "UPDATE"]
    assert statements.rows_written == 2

    with counted(store) as statements:
        assert (await executor.run(a_call("pay", 50), context)).origin == "replayed"
    assert kinds(statements) == ["INSERT", "SELECT"]  # It is not new, so that it is looked up.

    with counted(store) as statements:
        assert (await executor.run(a_call("look", 51), context)).ok
    assert statements.count == 0
    await executor.aclose()


async def test_a_durable_call_that_is_new_is_stored_in_one_statement(store: SqlStore) -> None:
    @tool(durable=True)
    async def transfer(amount: int) -> str:
        """Transfer."""
        return f"Transferred {amount}."

    executor = Executor([transfer], policy=Policy([Rule.allow("*")]), store=store)
    context = ToolContext[Any](session_id="s")
    assert await executor.submit(a_call("transfer", 1), context) is None

    with counted(store) as statements:
        assert await executor.submit(a_call("transfer", 2), context) is None
    assert kinds(statements) == ["INSERT"]
    await executor.aclose()


async def test_who_waits_where_a_durable_call_runs_does_not_read_its_result(store: SqlStore) -> None:
    begun, goes_on = asyncio.Event(), asyncio.Event()

    @tool(durable=True)
    async def transfer(amount: int) -> str:
        """Transfer."""
        begun.set()
        await goes_on.wait()
        return f"Transferred {amount}."

    executor = Executor([transfer], policy=Policy([Rule.allow("*")]), store=store)
    call = a_call("transfer", 1)
    running = asyncio.create_task(executor.run(call, ToolContext[Any](session_id="s")))
    await begun.wait()
    with stopped_clock():  # It does not look again after a while.
        waiting = asyncio.create_task(executor.wait(session_id="s", call_id=call.id, timeout=600))
        await eventually(
            lambda: any(item.signal.is_awaited for some in store.work.signals._waiters.values() for item in some)
        )
        with counted(store) as statements:
            goes_on.set()
            result = await waiting
    assert result.output == "Transferred 1."
    assert "SELECT" not in kinds(statements)
    await running
    await executor.aclose()


async def test_who_waits_for_a_call_that_was_queued_here_looks_for_nothing(store: SqlStore) -> None:
    @tool(durable=True)
    async def transfer(amount: int) -> str:
        """Transfer."""
        return f"Transferred {amount}."

    executor = Executor([transfer], policy=Policy([Rule.allow("*")]), store=store)
    call = a_call("transfer", 1)
    async with Worker(executor) as worker:
        working = asyncio.create_task(worker.run())
        await eventually(lambda: any(signal.is_awaited for signal in store.work.signals._workers))
        with stopped_clock(), counted(store) as statements:
            assert await executor.submit(call, ToolContext[Any](session_id="s")) is None
            result = await executor.wait(session_id="s", call_id=call.id, timeout=600)
    assert (result.output, result.tool_name) == ("Transferred 1.", "transfer")
    assert "SELECT" not in kinds(statements)
    await working
    await executor.aclose()


async def test_a_list_of_approvals_is_one_statement_however_many_there_are(store: SqlStore) -> None:
    executor = Executor([pay], ledger=store.ledger, approvals=store.approvals)
    for number in range(30):
        await executor.run(a_call("pay", number), ToolContext(session_id=f"s-{number % 3}", customer_id="c"))
    await store.audit.flush()

    for query, filters, expected in (
        (store.approvals.pending, {"limit": 7}, 7),
        (store.approvals.pending, {"session_id": "s-1"}, 10),
        (store.approvals.history, {"customer_id": "c"}, 30),
    ):
        with counted(store) as statements:
            assert len(await query(**filters)) == expected
        assert kinds(statements) == ["SELECT"]
    await executor.aclose()


async def test_events_are_written_to_the_audit_in_one_statement_for_a_batch(store: SqlStore) -> None:
    with counted(store) as statements:
        for number in range(90):
            store.audit(CircuitBreakerChanged(at=float(number), session_id="s", tool_name="pay", state="open"))
        await store.audit.flush()

    assert [(sent.split()[0], rows) for sent, rows in statements.sent if not sent.startswith("BEGIN")] == [
        ("INSERT", 90)
    ]


@pytest.mark.parametrize("length", [0, 400])
async def test_a_turn_with_a_call_writes_as_many_rows_in_a_long_conversation_as_in_a_new_one(
    store: SqlStore, length: int
) -> None:
    messages = tuple(
        UserMessage(text=f"{number}") if number % 2 == 0 else AssistantMessage(text=f"{number}")
        for number in range(length)
    )
    await store.sessions.save(Conversation(session_id="s", messages=messages, revision=1))
    executor = Executor([pay], policy=Policy([Rule.allow("*")]), ledger=store.ledger, approvals=store.approvals)
    provider = ScriptedProvider([tool_calls(("pay", {"amount": 3})), "Paid."])
    context = ToolContext[Any](session_id="s")
    session = await ChatSession.load(provider, executor, context=context, sessions=store.sessions)

    with counted(store) as statements:
        await session.send("Pay 3.")

    by_table = {
        table: sum(rows for sent, rows in statements.sent if sent.startswith(("INSERT", "UPDATE")) and table in sent)
        for table in ("handrail_sessions", "handrail_messages", "handrail_ledger")
    }
    # Four messages; the state is saved with each of them.
    assert by_table == {"handrail_sessions": 4, "handrail_messages": 4, "handrail_ledger": 2}
    await executor.aclose()

"""Deleting what is old: in batches that nobody has to wait for, and never more than was asked for."""

import asyncio
import threading
from typing import Any

import pytest
from sqlalchemy import insert, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from handrail import Executor, Policy, Rule, ToolCall, ToolContext, tool
from handrail.chat import Conversation
from handrail.core import CircuitBreakerChanged
from handrail.errors import StoreError
from handrail.providers import UserMessage
from handrail.store import SqlStore, open_store
from handrail.store.tables import ledger, messages
from tests.statements import counted
from tests.store.samples import an_entry


async def settle_many(store: SqlStore, count: int) -> None:
    """Write settled calls of long ago."""
    rows = [rows_of_call(number) for number in range(count)]
    await store._database.run(lambda transaction: transaction.execute_many(insert(ledger), rows))


def rows_of_call(number: int) -> dict[str, Any]:
    values = {"identity": "i", "arguments_digest": "d", "arguments": "{}", "number": 0, "repeat": 0, "turn": 1}
    times = dict.fromkeys(("claimed_at", "lease_until", "run_until", "repeat_until", "settled_at"), 1.0)
    keys = {"call_id": f"c-{number}", "full_number": 0}
    keys |= dict.fromkeys(("key", "full_key", "sent_key"), f"k-{number}")
    return {**values, **times, **keys, "session_id": "s", "tool": "pay", "owner": "me", "state": "committed"}


async def test_old_rows_are_deleted_in_batches_that_are_transactions_of_their_own(store: SqlStore) -> None:
    await settle_many(store, 2_500)

    with counted(store) as statements:
        assert await store.purge(before=2.0) == 2_500

    deletes = [sent for sent, _ in statements.sent if sent.startswith("DELETE FROM handrail_ledger")]
    assert len(deletes) == 3
    assert not [sent for sent, _ in statements.sent if sent.startswith("BEGIN")]


async def test_a_call_is_claimed_between_two_batches(tmp_path: Any) -> None:
    async with open_store(f"sqlite+aiosqlite:///{tmp_path}/a.db") as store:
        await settle_many(store, 3_000)

        with counted(store) as statements:
            claim = store.ledger.claim(an_entry(), approval=None, approvals=store.approvals)
            assert await asyncio.gather(store.purge(before=2.0), claim) == [3_000, True]

    order = [sent.split()[0] for sent, _ in statements.sent if "handrail_ledger" in sent]
    assert order.index("INSERT") < len(order) - 2


async def test_a_conversation_goes_with_its_messages_and_a_newer_one_stays(store: SqlStore) -> None:
    for number in range(45):
        history = (UserMessage(text="hello"), UserMessage(text=f"{number}"))
        await store.sessions.save(Conversation(session_id=f"s-{number}", revision=1, messages=history))
    await store._database.write(text("UPDATE handrail_sessions SET saved_at = 1.0 WHERE session_id <> 's-7'"), {})

    assert await store.purge(before=2.0) == 44

    assert await store.sessions.load("s-1") is None
    assert await store.sessions.load("s-7") is not None
    left = await store._database.fetch(messages.select())
    assert {row[0] for row in left} == {"s-7"}


# The audit.


async def test_old_rows_of_the_audit_are_deleted_on_request_only_and_the_audit_says_so(
    store: SqlStore, url: str
) -> None:
    for at in (1.0, 2.0, 3.0):
        store.audit(CircuitBreakerChanged(at=at, session_id="s", tool_name="pay", state="open"))
    await store.audit.flush()

    assert await store.purge(before=1e9) == 0
    assert await store.purge(before=0.0, audit_before=3.0) == 2
    await store.audit.flush()

    kept, purged = await store.audit.query()
    assert kept.at == 3.0
    assert (purged.kind, purged.detail) == ("audit_purged", {"before": 3.0, "count": 2})
    engine = create_async_engine(url)
    with pytest.raises(DBAPIError, match="append-only"):  # What is not old enough is still protected.
        async with engine.begin() as connection:
            await connection.execute(text("DELETE FROM handrail_audit"))
    await engine.dispose()


async def test_the_audit_is_read_page_by_page(store: SqlStore) -> None:
    for number in range(7):  # Some at the same time.
        store.audit(CircuitBreakerChanged(at=float(number // 3), session_id="s", tool_name=f"t-{number}", state="open"))
    await store.audit.flush()

    pages = [await store.audit.query(limit=3)]
    while page := await store.audit.query(limit=3, before=pages[-1][0]):
        pages.append(page)

    assert [[one.tool for one in page] for page in pages] == [["t-4", "t-5", "t-6"], ["t-1", "t-2", "t-3"], ["t-0"]]


# The lock of this process.


async def test_a_write_that_waits_too_long_for_other_writes_of_this_process_fails_and_its_call_does_not_run(
    tmp_path: Any,
) -> None:
    ran: list[str] = []

    @tool
    async def pay() -> None:
        """Pay."""
        ran.append("pay")

    async with open_store(f"sqlite+aiosqlite:///{tmp_path}/a.db", timeout=0.2) as store:
        executor = Executor([pay], policy=Policy([Rule.allow("*")]), ledger=store.ledger)
        begun, goes_on = threading.Event(), threading.Event()
        writing = asyncio.create_task(store._database.run(lambda _: begun.set() or goes_on.wait()))
        await asyncio.to_thread(begun.wait)
        with pytest.raises(StoreError, match=r"other statements of this process kept it busy for 0\.2 seconds"):
            await store.ledger.claim(an_entry(), approval=None, approvals=store.approvals)
        result = await executor.run(ToolCall(id="c-1", name="pay"), ToolContext(session_id="s"))
        assert result.error is not None
        assert result.error.code == "unavailable"
        goes_on.set()
        await writing
        assert await store.ledger.claim(an_entry(), approval=None, approvals=store.approvals)
        await executor.aclose()
    assert ran == []

"""Deleting what is old: in batches that nobody has to wait for, and never more than was asked for."""

import asyncio
import threading
import time
from typing import Any

import pytest
from sqlalchemy import Table, func, insert, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from handrail import Executor, Policy, Rule, ToolCall, ToolContext, tool
from handrail.chat import Conversation
from handrail.core import CircuitBreakerChanged
from handrail.errors import StoreError
from handrail.providers import UserMessage
from handrail.store import SqlStore, open_store
from handrail.store.tables import approvals, audit, ledger, messages, sessions, work
from tests.clocks import stopped_clock
from tests.execute.helpers import quiet
from tests.statements import counted
from tests.store.samples import an_approval, an_entry, an_item


async def settle_many(store: SqlStore, count: int) -> None:
    """Write settled calls of long ago."""
    rows = [rows_of_call(number) for number in range(count)]
    await store._database.run(lambda transaction: transaction.execute_many(insert(ledger), rows))


async def count(store: SqlStore, table: Table) -> int:
    return (await store._database.fetch(select(func.count()).select_from(table)))[0][0]


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


@pytest.mark.parametrize("table", [ledger, sessions])
async def test_the_lock_of_sqlite_is_left_to_others_between_two_batches(store: SqlStore, table: Table) -> None:
    if table is ledger:
        await settle_many(store, 1_001)
    else:
        await store.sessions.save(Conversation(session_id="s", revision=1))
    rows = await count(store, table)
    with stopped_clock() as clock:
        purging = asyncio.create_task(store.purge(before=1e12))
        if store._database.is_sqlite:
            while await count(store, table) == rows:
                assert not purging.done()
            await quiet()
            assert not purging.done()
            while not purging.done():  # It waits once the loop has heard of its first batch.
                clock.now += 0.01
                await asyncio.to_thread(time.sleep, 0.002)
        assert await purging == rows


async def test_a_conversation_goes_with_its_messages_and_a_newer_one_stays(store: SqlStore) -> None:
    for number in range(45):
        history = (UserMessage(text="hello"), UserMessage(text=f"{number}"))
        await store.sessions.save(Conversation(session_id=f"s-{number}", revision=1, messages=history))
    await store._database.write(text("UPDATE handrail_sessions SET saved_at = 1.0 WHERE session_id <> 's-7'"), {})

    assert await store.purge(before=1.0) == 0
    assert await store.purge(before=2.0) == 44

    assert await store.sessions.load("s-1") is None
    assert await store.sessions.load("s-7") is not None
    left = await store._database.fetch(messages.select())
    assert {row[0] for row in left} == {"s-7"}


async def test_what_could_still_be_a_repetition_stays(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time() + 1000
    rows = [rows_of_call(n) | {"repeat_until": until} for n, until in enumerate((now - 1, now, now + 1))]
    await store._database.run(lambda transaction: transaction.execute_many(insert(ledger), rows))

    assert await store.purge(before=2.0) == 0
    monkeypatch.setattr(time, "time", lambda: now)
    if store._database.is_sqlite:  # Postgres has a clock of its own.
        assert await store.purge(before=2.0) == 1
        assert await store._database.fetch(select(ledger.c.call_id).order_by("call_id")) == [("c-1",), ("c-2",)]


async def test_of_one_tenant_only_what_is_its_own_is_deleted(store: SqlStore) -> None:
    tenants: tuple[str | None, ...] = ("a", "b", None)
    rows = [rows_of_call(n) | {"tenant_id": tenant} for n, tenant in enumerate(tenants)]
    await store._database.run(lambda transaction: transaction.execute_many(insert(ledger), rows))
    for number, tenant in enumerate(tenants):
        await store.approvals.ask(an_approval(tenant_id=tenant, created_at=0.0, expires_at=1.0))
        await store.sessions.save(Conversation(session_id=f"s-{number}", revision=1, tenant_id=tenant))
        for state in ("done", "queued"):
            await store.work.put(item := an_item(tenant_id=tenant))
            if state == "done":
                await store.work.end(session_id=item.session_id, call_id=item.call_id)
        store.audit(CircuitBreakerChanged(at=1.0, session_id="s", tenant_id=tenant, tool_name="pay", state="open"))
    await store.received_results.add("s", "c", after=0)
    await store.audit.flush()

    assert await store.purge(before=1e12, audit_before=2.0, tenant_id="b") == 5

    of_tenants = {
        table: await store._database.fetch(select(table.c.tenant_id)) for table in (ledger, approvals, sessions)
    }
    assert [{tenant for (tenant,) in rows} for rows in of_tenants.values()] == [{"a", None}] * 3
    left = await store._database.fetch(select(audit.c.tenant_id).where(audit.c.kind == "circuit_breaker_changed"))
    assert {tenant for (tenant,) in left} == {"a", None}
    assert sorted(await store._database.fetch(select(work.c.tenant_id, work.c.state))) == [
        ("", "done"),
        ("", "queued"),
        ("a", "done"),
        ("a", "queued"),
        ("b", "queued"),
    ]
    assert await store.received_results.count("s", "c") == 1
    assert await store.purge(before=1e12) == 9


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


async def test_the_audit_says_what_was_deleted_of_all_and_of_a_tenant_if_there_was_something(store: SqlStore) -> None:
    store.audit(CircuitBreakerChanged(at=1.0, session_id="s", tenant_id="a", tool_name="pay", state="open"))
    await store.audit.flush()
    for tenant_id in ("b", None, "a"):
        await store.purge(before=0, audit_before=0.5 if tenant_id is None else 2.0, tenant_id=tenant_id)
    await store.audit.flush()

    rows = await store.audit.query(kind="audit_purged")
    assert [(row.tenant_id, row.detail["count"]) for row in rows] == [(None, 0), ("a", 1)]


async def test_what_two_tenants_do_not_keep_is_deleted_at_the_same_time(url: str) -> None:
    async with open_store(url) as one, open_store(url) as other:
        for _ in range(2_500):
            one.audit(CircuitBreakerChanged(at=2.0, session_id="s", tenant_id="a", tool_name="pay", state="open"))
        await one.audit.flush(timeout=60)

        deleting = asyncio.create_task(one.purge(before=0, audit_before=3.0, tenant_id="a"))
        while not deleting.done():  # In another process, a tenant that keeps its rows longer.
            await other.purge(before=0, audit_before=1.0, tenant_id="b")
        assert await deleting == 2_500


async def test_a_deletion_that_is_cut_off_says_in_the_audit_what_it_has_deleted(store: SqlStore) -> None:
    for _ in range(2_500):
        store.audit(CircuitBreakerChanged(at=1.0, session_id="s", tool_name="pay", state="open"))
    await store.audit.flush(timeout=60)

    deleting = asyncio.create_task(store.purge(before=0, audit_before=2.0))
    while await count(store, audit) == 2_500:
        assert not deleting.done()
    deleting.cancel()
    await asyncio.gather(deleting, return_exceptions=True)
    await store.audit.flush(timeout=60)
    (purged,) = await store.audit.query(kind="audit_purged")
    assert purged.detail["count"] == 2_500 - (await count(store, audit) - 1)


async def test_the_audit_is_read_page_by_page(store: SqlStore) -> None:
    for number in range(7):  # Some at the same time.
        store.audit(CircuitBreakerChanged(at=float(number // 3), session_id="s", tool_name=f"t-{number}", state="open"))
    await store.audit.flush()

    pages = [await store.audit.query(limit=3)]
    while page := await store.audit.query(limit=3, before=pages[-1][0]):
        pages.append(page)

    assert [[row.tool for row in page] for page in pages] == [["t-4", "t-5", "t-6"], ["t-1", "t-2", "t-3"], ["t-0"]]


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

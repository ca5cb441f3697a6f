"""The row of a durable call is written and ended with its entry, wherever each of the two is kept."""

import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select

from handrail import ToolCall
from handrail.authorize import MemoryApprovals
from handrail.core import ApprovalUsed
from handrail.errors import CallTakenOverError, ConfigError, StoreError
from handrail.execute import Entry, MemoryLedger, MemoryWork, WorkItem
from handrail.store import SqlDelivery, SqlStore, open_store
from handrail.store.tables import settings
from tests.statements import counted
from tests.store.samples import an_approval, an_entry, done

SENT = ToolCall(id="c-1", name="pay", arguments_json="{}")
PLACES = ["the same", "another"]


def stored(entry: Entry, **values: Any) -> WorkItem:
    given = {"state": "running", "owner": entry.owner, "call": SENT, "sent_call": SENT, "definition": "d-1"}
    return WorkItem(session_id=entry.session_id, call_id=entry.call_id, tool="pay", **{**given, **values})


async def state_of(work: Any, entry: Entry) -> str | None:
    found = await work.get(session_id=entry.session_id, call_id=entry.call_id)
    return found and found.state


async def approve(approvals: Any) -> Any:
    asked = await approvals.ask(an_approval())
    return await approvals.approve(asked.token, by="operator", who="bo")


@pytest.mark.parametrize("is_approved", [True, False])
@pytest.mark.parametrize("of_approvals", PLACES)
@pytest.mark.parametrize("of_work", PLACES)
async def test_a_claim_stores_its_row_and_an_outcome_ends_it(
    store: SqlStore, of_work: str, of_approvals: str, is_approved: bool
) -> None:
    work: Any = store.work if of_work == "the same" else MemoryWork()
    approvals: Any = store.approvals if of_approvals == "the same" else MemoryApprovals()
    approval = await approve(approvals) if is_approved else None
    entry = an_entry(lease_until=time.time() + 600)
    item = stored(entry)

    assert await store.ledger.claim(entry, approval=approval, approvals=approvals, item=item, work=work)
    row = await work.get(session_id=entry.session_id, call_id=entry.call_id)
    assert (row.state, row.owner, row.call) == ("running", entry.owner, SENT)
    assert row.due_at - row.read_at == pytest.approx(600, abs=60)
    lost = an_entry(key=entry.key)
    assert not await store.ledger.claim(lost, approval=None, approvals=approvals, item=stored(lost), work=work)
    assert await state_of(work, lost) is None

    await store.ledger.settle(done(entry, "unknown"), work=work)
    assert await state_of(work, entry) == "running"
    await store.ledger.settle(done(entry), work=work)
    assert await state_of(work, entry) == "done"


@pytest.mark.parametrize("of_work", PLACES)
async def test_an_outcome_of_another_owner_ends_no_row(store: SqlStore, of_work: str) -> None:
    work: Any = store.work if of_work == "the same" else MemoryWork()
    entry = an_entry()
    await store.ledger.claim(entry, approval=None, approvals=store.approvals, item=stored(entry), work=work)

    await store.ledger.settle(done(an_entry(call_id=entry.call_id, owner="another"), "failed"), work=work)
    with pytest.raises(CallTakenOverError):
        await store.ledger.settle(done(an_entry(call_id=entry.call_id, owner="another")), work=work)

    assert await state_of(work, entry) == "running"


@pytest.mark.parametrize("of_work", PLACES)
async def test_an_outcome_ends_the_row_of_its_own_call_only(store: SqlStore, of_work: str) -> None:
    work: Any = store.work if of_work == "the same" else MemoryWork()
    entries = [an_entry(session_id=session_id, call_id=id) for session_id, id in (("a", "1"), ("a", "2"), ("b", "1"))]
    for entry in entries:
        await store.ledger.claim(entry, approval=None, approvals=store.approvals, item=stored(entry), work=work)

    await store.ledger.settle(done(entries[0]), work=work)

    assert [await state_of(work, entry) for entry in entries] == ["done", "running", "running"]


@pytest.mark.parametrize("of_approvals", PLACES)
@pytest.mark.parametrize("given", ["item", "work"])
async def test_a_claim_without_a_row_or_without_a_place_for_it_stores_none(
    store: SqlStore, of_approvals: str, given: str
) -> None:
    approvals: Any = store.approvals if of_approvals == "the same" else MemoryApprovals()
    entry = an_entry()
    options: dict[str, Any] = {"item": stored(entry)} if given == "item" else {"work": store.work}

    assert await store.ledger.claim(entry, approval=None, approvals=approvals, **options)

    assert await state_of(store.work, entry) is None


async def test_a_doubt_that_is_resolved_ends_its_row(store: SqlStore) -> None:
    entry = an_entry(lease_until=time.time() - 1)
    await store.ledger.claim(entry, approval=None, approvals=store.approvals, item=stored(entry), work=store.work)

    assert await store.ledger.resolve(done(entry), work=store.work)

    assert await state_of(store.work, entry) == "done"
    assert not await store.ledger.resolve(done(entry), work=store.work)


async def test_two_stores_of_one_database_keep_calls_in_one_place(url: str) -> None:
    async with open_store(url) as ours, open_store(url) as theirs:
        entry = an_entry()
        assert await ours.ledger.claim(
            entry, approval=None, approvals=theirs.approvals, item=stored(entry), work=theirs.work
        )
        assert await state_of(ours.work, entry) == "running"
        await ours.ledger.settle(done(entry), work=theirs.work)
        assert await state_of(theirs.work, entry) == "done"


async def test_two_stores_of_one_database_claim_in_one_transaction_as_one_store_does(url: str) -> None:
    sent: list[Any] = []
    tokens: list[str] = []
    async with open_store(url, audit_interval=60) as ours, open_store(url, audit_interval=60) as theirs:
        for other in (ours, theirs):
            approval = await approve(other.approvals)
            entry = an_entry(approval=approval.token)
            with counted(ours) as statements:
                assert await ours.ledger.claim(
                    entry, approval=approval, approvals=other.approvals, item=stored(entry), work=other.work
                )
            sent.append([sql for sql, _ in statements.sent if not sql.startswith("INSERT INTO handrail_audit")])
            tokens.append(approval.token)
        for store in (ours, theirs):
            await store.audit.flush()
        used = await ours.audit.query(kind=ApprovalUsed)
        assert [row.detail["token"] for row in used] == tokens
        assert len({row.writer for row in used}) == 2  # Each by the store that has the approval.
    assert len(sent[0]) == len(sent[1])
    for written in ("handrail_ledger", "handrail_approvals", "handrail_work"):
        assert all(any(written in sql for sql in texts) for texts in sent)


async def test_approvals_and_rows_in_another_database_are_kept_there(store: SqlStore, tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path}/other.db") as other:
        for approvals in (store.approvals, other.approvals):
            approval = await approve(approvals)
            entry = an_entry()
            assert await store.ledger.claim(
                entry, approval=approval, approvals=approvals, item=stored(entry), work=other.work
            )
            assert await state_of(store.work, entry) is None
            assert await state_of(other.work, entry) == "running"
            used = await approvals.get(approval.token)
            assert used is not None
            assert used.state == "used"
            await store.ledger.settle(done(entry), work=other.work)
            assert await state_of(other.work, entry) == "done"


# Queueing.


class Beside:
    """A delivery in the same database: what it is sent within the transaction is there exactly if the call is."""

    def __init__(self) -> None:
        self.is_away = False

    def send_within(self, transaction: Any, id: str, *, tenant: str | None, priority: int) -> None:
        transaction.execute(insert(settings), {"name": f"{tenant}/{priority}/{id}", "value": b""})
        if self.is_away:
            raise ConnectionError("away")

    async def send(self, id: str, *, tenant: str | None, priority: int) -> None:
        raise AssertionError("it was sent within the transaction")

    async def serve(self, handle: Any, *, max_running: int, stopping: Any) -> None:
        await stopping.wait()


async def test_a_delivery_in_the_same_database_is_handed_a_call_if_and_only_if_it_is_stored(url: str) -> None:
    delivery: Any = Beside()
    async with open_store(url, delivery=delivery) as store:
        first, lost = (stored(an_entry(), state="queued", owner=None, tenant_id="acme", priority=3) for _ in range(2))
        running = stored(an_entry())
        await store.work.hold(running, lease=60)
        assert await store.work.put(first)
        assert await store.work.put(running)  # It is there already, and runs.
        delivery.is_away = True
        with pytest.raises(StoreError):
            await store.work.put(lost)

        sent = await store._database.fetch(select(settings.c.name).where(settings.c.name.contains("acme/")))
        assert sent == [(f"acme/3/{first.id}",)]
        assert await store.work.get(session_id=lost.session_id, call_id=lost.call_id) is None


async def test_a_tenant_has_as_many_queued_calls_as_it_may(store: SqlStore) -> None:
    items = [stored(an_entry(), state="queued", owner=None, tenant_id="acme") for _ in range(3)]
    other = stored(an_entry(), state="queued", owner=None, tenant_id="other")

    assert [await store.work.put(item, max_queued=2) for item in items] == [True, True, False]
    assert await store.work.put(items[0], max_queued=2)
    assert await store.work.put(other, max_queued=2)
    assert await store.work.put(items[2])


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_and_a_delivery_for_two_stores_are_refused(limit: int) -> None:
    with pytest.raises(ConfigError, match="max_running_per_tenant must be at least 1"):
        SqlDelivery(max_running_per_tenant=limit)
    one = SqlDelivery(max_running_per_tenant=1)
    open_store("sqlite:///a.db", delivery=one)
    with pytest.raises(ConfigError, match="of its own for each store"):
        open_store("sqlite:///b.db", delivery=one)


async def test_a_call_is_cancelled_once_and_its_owner_finds_it(store: SqlStore) -> None:
    entry = an_entry()
    await store.work.hold(stored(entry), lease=60)
    ref = {"session_id": entry.session_id, "call_id": entry.call_id}

    assert await store.work.find_cancelled(owner="me") == []
    assert await store.work.cancel(**ref, recorded=None)
    assert await store.work.find_cancelled(owner="me") == [(entry.session_id, entry.call_id)]
    assert await store.work.find_cancelled(owner="another") == []
    await store.work.end(**ref)
    assert not await store.work.cancel(**ref, recorded=None)


async def test_a_ledger_in_memory_keeps_the_row_in_a_database(store: SqlStore) -> None:
    entry = an_entry()

    assert await MemoryLedger().claim(
        entry, approval=None, approvals=MemoryApprovals(), item=stored(entry), work=store.work
    )

    assert await state_of(store.work, entry) == "running"

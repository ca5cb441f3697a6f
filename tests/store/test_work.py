"""The rows of durable calls in both databases, one rule at a time; `test_work_machine` tries them in any order."""

import asyncio
import time
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import create_async_engine

from handrail.execute import MemoryWork, WorkItem
from handrail.execute.stored_calls import ObservedLease
from handrail.store import SqlStore, open_store
from handrail.store.tables import work as table
from tests.postgres import BLOCKED, PostgresServer
from tests.store.samples import a_recorded, an_approval, an_entry, an_item, done


def ref(item: WorkItem) -> dict[str, str]:
    return {"session_id": item.session_id, "call_id": item.call_id}


async def state_of(store: SqlStore, item: WorkItem) -> str:
    found = await store.work.get(**ref(item))
    assert found is not None
    return found.state


async def move(store: SqlStore, item: WorkItem, seconds: float) -> None:
    """Let a row be due so much later."""
    moved = text("UPDATE handrail_work SET due_at = due_at + :seconds WHERE call_id = :id")
    await store._database.write(moved, {"seconds": seconds, "id": item.call_id})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The clock of this process, which stands still unless the test moves it: that of the rows in SQLite."""
    clock = SimpleNamespace(now=time.time())
    monkeypatch.setattr(time, "time", lambda: clock.now)
    return clock


@pytest.fixture
async def file(tmp_path: Path) -> AsyncGenerator[SqlStore]:
    async with open_store(f"sqlite:///{tmp_path}/a.db") as opened:
        yield opened


# Taking.


async def test_a_call_is_due_at_its_moment(file: SqlStore, clock: Any) -> None:
    await file.work.hold(item := an_item(owner="ann"), lease=10)
    clock.now += 9.5
    assert not await file.work.is_due()
    assert await file.work.take(**ref(item), owner="bob", lease=10) is None
    clock.now += 0.5
    assert await file.work.is_due()
    assert await file.work.take(**ref(item), owner="bob", lease=10) is not None

    waiting = structs.replace(item, owner="bob")
    assert await file.work.release(waiting, state="waiting", delay=5)
    clock.now += 4.5
    await file.work.find(resend_after=60)
    assert await state_of(file, item) == "waiting"
    clock.now += 0.5
    await file.work.find(resend_after=60)
    assert await state_of(file, item) == "queued"


async def test_a_queued_call_whose_time_is_more_than_a_minute_away_was_queued_before_a_clock_jumped_back(
    file: SqlStore, clock: Any
) -> None:
    await file.work.put(item := an_item())
    clock.now -= 60
    assert not await file.work.is_due()
    assert await file.work.take(**ref(item), owner="ann", lease=10) is None
    clock.now -= 0.5
    assert await file.work.is_due()
    assert await file.work.take(**ref(item), owner="ann", lease=10) is not None


async def test_a_call_that_runs_is_its_owners_however_long_the_lease_is(store: SqlStore) -> None:
    await store.work.hold(item := an_item(owner="ann"), lease=600)

    assert await store.work.take(**ref(item), owner="bob", lease=10) is None
    assert await store.work.take(**ref(item), owner="ann", lease=10) is not None
    await store.work.end(**ref(item))
    assert await store.work.take(**ref(item), owner="ann", lease=10) is None


@pytest.mark.parametrize(
    "known",
    [
        {"session_id": "s-1", "call_id": "c-1"},
        {"key": "key", "full_key": "other"},
        {"key": "other", "full_key": "full"},
        {"key": "other", "full_key": "another", "sent_key": "key"},
    ],
    ids=["id", "key", "full key", "sent key"],
)
async def test_a_call_that_was_not_looked_up_is_queued_only_if_nothing_is_known_about_it(
    store: SqlStore, known: dict[str, Any]
) -> None:
    item, new = an_item(call_id="c-1"), an_item()
    entry = an_entry(**known)
    assert await store.ledger.claim(entry, approval=None, approvals=store.approvals)
    put = partial(store.ledger.queue_new, key="key", full_key="full", work=store.work)

    for _ in range(2):
        assert not await put(item)
        assert await store.work.get(**ref(item)) is None
        await store.ledger.settle(done(entry))

    queue_new = partial(store.ledger.queue_new, key="new", full_key="new", work=store.work)
    assert [await queue_new(new) for _ in range(2)] == [True, True]  # The same call again is the same row.
    assert not await queue_new(an_item(), max_queued=1)
    assert await state_of(store, new) == "queued"


async def test_a_call_that_is_stored_elsewhere_is_looked_up_first(store: SqlStore) -> None:
    assert not await store.ledger.queue_new(an_item(), key="new", full_key="new", work=MemoryWork())


async def test_what_is_over_stays_as_it_ended(store: SqlStore) -> None:
    await store.work.put(item := an_item())
    ended: list[Any] = []
    for _ in range(2):
        await store.work.end(**ref(item))
        ended += await store._database.fetch(select(table.c.ended_at, table.c.owner, table.c.calls))
        await store.work.renew([item.ref], owner="ann", lease=5)

    assert ended[0] == ended[1]
    await store.ledger.end_renewals()


# What a delivery of another kind has to send again.


class Elsewhere:
    """A delivery that is not in the database, and keeps what it is sent."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    async def send(self, id: str, *, tenant: str | None, priority: int) -> None:
        self.sent.append(id)

    async def serve(self, handle: Any, *, max_running: int, stopping: asyncio.Event) -> None:
        await stopping.wait()


async def test_what_no_worker_has_is_found_the_oldest_first(url: str) -> None:
    async with open_store(url, delivery=Elsewhere()) as store:
        new, old, tried, later, lost, running, left, parked, over = (an_item() for _ in range(9))
        for item in (new, old, tried, later, lost, over):
            await store.work.put(item)
        for item in (tried, later):
            await store.work.take(**ref(item), owner="ann", lease=60)
            assert await store.work.release(structs.replace(item, owner="ann"), state="queued", delay=0)
        for item in (running, left):
            await store.work.hold(structs.replace(item, owner="ann"), lease=5)
        await store.work.park(parked, expires_in=5, approvals=store.approvals)
        await store.work.end(**ref(over))
        for item, seconds in (
            (new, -29), (old, -40), (tried, -2), (later, 50), (lost, 70), (left, -25), (parked, -8), (over, -99)
        ):  # fmt: skip
            await move(store, item, seconds)

        found = [item.id for item in await store.work.find(resend_after=30)]

        assert found == [parked.id, old.id, left.id, tried.id, lost.id]
        assert [await state_of(store, item) for item in (parked, left, running)] == ["queued", "running", "running"]
        assert [item.id for item in await store.work.find(resend_after=30, limit=2)] == [old.id, left.id]


async def test_an_answer_that_wakes_a_call_is_brought_to_its_delivery(url: str) -> None:
    delivery = Elsewhere()
    async with open_store(url, delivery=delivery) as store:
        asked = [await store.approvals.ask(an_approval()) for _ in range(2)]
        items = [an_item(approval=call.token) for call in asked]
        for item in items:
            assert await store.work.park(item, expires_in=60, approvals=store.approvals) == "parked"

        await store.approvals.deny(asked[0].token, by="operator", who="bo")

        assert delivery.sent == [items[0].id]
        assert [await state_of(store, item) for item in items] == ["queued", "parked"]


# Waiting for an answer.


@pytest.mark.parametrize(
    ("by", "answer", "state"),
    [
        ("operator", "pending", "parked"),
        ("operator", "approved", "queued"),
        ("operator", "denied", "queued"),
        ("operator", "used", "parked"),
        ("customer", "denied", "queued"),
        ("customer", "approved", "parked"),  # It counts from a later turn on.
        ("nobody", "approved", "parked"),
    ],
)
async def test_a_call_whose_question_was_answered_meanwhile_is_queued(
    store: SqlStore, by: Any, answer: str, state: str
) -> None:
    asked = await store.approvals.ask(an_approval(by="operator" if by == "nobody" else by))
    if answer != "pending":
        decide = store.approvals.deny if answer == "denied" else store.approvals.approve
        await decide(asked.token, by=asked.by, who="bo")
    if answer == "used":
        assert await store.approvals.consume(asked.token, now=time.time())
    item = an_item(approval=None if by == "nobody" else asked.token)

    assert await store.work.park(item, expires_in=60, approvals=store.approvals) == state
    found = await store.work.get(**ref(item))
    assert found is not None
    assert (found.state, found.queued_at is not None) == (state, state == "queued")
    assert found.due_at - found.read_at == pytest.approx(60 if state == "parked" else 0, abs=5)


@pytest.mark.postgres
async def test_an_answer_that_is_being_written_is_waited_for(postgres: PostgresServer) -> None:
    async with open_store(url := postgres.new_database()) as store:
        asked = await store.approvals.ask(an_approval())
        engine = create_async_engine(url)
        async with engine.begin() as other:
            await other.execute(text("UPDATE handrail_approvals SET state = 'approved'"))
            item = an_item(approval=asked.token)
            parking = asyncio.create_task(store.work.park(item, expires_in=60, approvals=store.approvals))
            while not await store._database.fetch(BLOCKED):
                assert not parking.done()
        assert await parking == "queued"
        await engine.dispose()


async def test_a_call_that_somebody_has_is_not_parked(store: SqlStore) -> None:
    await store.work.hold(item := an_item(owner="ann"), lease=60)

    for owner, state in (("bob", "running"), (None, "running"), ("ann", "parked")):
        parked = structs.replace(item, owner=owner)
        assert await store.work.park(parked, expires_in=60, approvals=store.approvals) == state


async def test_an_answer_wakes_the_calls_that_wait_for_it_and_no_others(store: SqlStore) -> None:
    waiting = [an_item(approval=token) for token in ("t-1", "t-2", "t-1")]
    for item in waiting:
        await store.work.park(item, expires_in=60, approvals=store.approvals)
    await store.work.put(an_item(approval="t-1"))

    assert sorted(item.id for item in await store.work.wake("t-1")) == sorted((waiting[0].id, waiting[2].id))
    assert await store.work.wake("t-1") == []
    assert await state_of(store, waiting[1]) == "parked"


# Cancelling, and looking at others.


async def bring(kept: Any, item: WorkItem, state: str) -> WorkItem:
    """Store a call, and bring it into a state; one that was `queued again` was begun before."""
    if state == "parked":
        asked = await kept.approvals.ask(an_approval(session_id=item.session_id, call_id=item.call_id))
        item = structs.replace(item, approval=asked.token)
        assert await kept.work.park(item, expires_in=60, approvals=kept.approvals) == "parked"
        return item
    await kept.work.put(item)
    if state != "queued":
        taken = await kept.work.take(**ref(item), owner="ann", lease=10)
        assert taken is not None
        if state != "running":
            is_begun = state == "queued again"
            assert await kept.work.release(taken, state=state.split()[0], delay=0, is_begun=is_begun)
    return item


@pytest.mark.parametrize(
    ("before", "is_recorded", "after"),
    [
        ("queued", True, "done"),
        ("parked", True, "done"),
        ("queued", False, "queued"),
        ("queued again", True, "queued"),
        ("waiting", True, "waiting"),
        ("running", True, "running"),
    ],
)
async def test_a_call_that_is_cancelled_ends_at_once_only_if_nobody_took_it(
    kept: Any, before: str, is_recorded: bool, after: str
) -> None:
    recorded = a_recorded(text="cancelled")
    item = an_item()
    assert not await kept.work.cancel(**ref(item), recorded=recorded)
    item = await bring(kept, item, before)
    await bring(kept, an_item(), "running")  # Another one, which nobody cancels.

    assert await kept.work.cancel(**ref(item), recorded=recorded if is_recorded else None)

    found = await kept.work.get(**ref(item))
    assert found is not None
    assert (found.state, found.recorded) == (after, recorded if after == "done" else None)
    assert (found.call is None, found.cancelled_at is None) == (after == "done", False)
    assert await kept.work.find_cancelled(owner="ann") == ([item.ref] if before == "running" else [])
    assert await kept.work.find_cancelled(owner="bob") == []
    assert await kept.work.cancel(**ref(item), recorded=recorded) is (after != "done")


async def test_the_leases_of_others_that_run_are_observed(store: SqlStore) -> None:
    entries = [an_entry(owner=owner) for owner in ("me", "ann", "bob", "cleo", "dora")]
    for entry in entries:
        item = an_item(session_id=entry.session_id, call_id=entry.call_id, owner=entry.owner)
        await store.ledger.claim(entry, approval=None, approvals=store.approvals, item=item, work=store.work)
    await store.ledger.claim(an_entry(owner="eve"), approval=None, approvals=store.approvals)  # Without a row.
    await store.ledger.settle(done(entries[2], "unknown"))
    await store.work.release(
        an_item(session_id="s-1", call_id=entries[3].call_id, owner="cleo"), state="queued", delay=0
    )

    observed = await store.work.observe(owner="me")

    assert {(item.call_id, item.owner) for item in observed} == {(entries[n].call_id, entries[n].owner) for n in (1, 4)}
    assert len(observed) == 2
    assert isinstance(observed[0], ObservedLease)

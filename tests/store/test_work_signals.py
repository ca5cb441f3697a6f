"""Workers are told of calls, and callers of their ends: in this process, through Postgres, and by looking."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from msgspec import structs
from sqlalchemy import text

from handrail.errors import CallTakenOverError
from handrail.execute import Entry, WorkItem
from handrail.execute.ledger import State
from handrail.execute.recorded_result import RecordedResult
from handrail.execute.stored_calls import CallNotice
from handrail.store import SqlStore, open_store
from tests.clocks import eventually, stopped_clock
from tests.execute.helpers import quiet
from tests.postgres import PostgresServer
from tests.statements import counted
from tests.store.samples import an_approval, an_entry, an_item, done

CANCELLED = RecordedResult(text="cancelled")


def ref(item: WorkItem) -> dict[str, str]:
    return {"session_id": item.session_id, "call_id": item.call_id}


# Who waits is told.


async def put(store: SqlStore, item: WorkItem) -> None:
    await store.work.put(item)


async def park_what_was_approved(store: SqlStore, item: WorkItem) -> None:
    asked = await store.approvals.ask(an_approval())
    await store.approvals.approve(asked.token, by="operator", who="bo")
    parked = an_item(approval=asked.token)
    assert await store.work.park(parked, expires_in=60, approvals=store.approvals) == "queued"


async def wake(store: SqlStore, item: WorkItem) -> None:
    await store.work.wake("nobody's")


async def send_woken(store: SqlStore, item: WorkItem) -> None:
    await store.work.send_woken([])


async def give_back(store: SqlStore, item: WorkItem) -> None:
    held = structs.replace(item, owner="ann")
    await store.work.hold(held, lease=60)
    assert await store.work.release(held, state="queued", delay=0.0, is_begun=False)


async def find_what_is_due(store: SqlStore, item: WorkItem) -> None:
    await store.work.park(item, expires_in=0, approvals=store.approvals)
    assert await store.work.find(resend_after=60) == []


@pytest.mark.parametrize("how", [put, park_what_was_approved, wake, send_woken, give_back, find_what_is_due])
async def test_who_waits_for_calls_is_told_of_one(
    store: SqlStore, how: Callable[[SqlStore, WorkItem], Awaitable[None]]
) -> None:
    async with store.work.signals.watch_queue(60) as wait:
        with stopped_clock():
            waiting = asyncio.create_task(wait(set()))
            await quiet()
            await how(store, an_item())
            await quiet()
            assert waiting.done()
            assert await waiting


async def finish(store: SqlStore, item: WorkItem) -> None:
    assert await store.work.finish(item, CANCELLED)


async def end(store: SqlStore, item: WorkItem) -> None:
    await store.work.end(**ref(item))


async def cancel(store: SqlStore, item: WorkItem) -> None:
    assert await store.work.cancel(**ref(item), recorded=None)


async def settle(store: SqlStore, item: WorkItem) -> None:
    entry = an_entry(**ref(item), owner=item.owner)
    await store.ledger.claim(entry, approval=None, approvals=store.approvals)
    await store.ledger.settle(done(entry), work=store.work)


@pytest.mark.parametrize("how", [finish, end, cancel, settle])
async def test_who_waits_for_the_end_of_a_call_is_told_of_it(
    store: SqlStore, how: Callable[[SqlStore, WorkItem], Awaitable[None]]
) -> None:
    item = an_item(state="running", owner="ann")
    await store.work.hold(item, lease=60)
    async with store.work.watch_end(**ref(item)) as wait:
        with stopped_clock():
            waiting = asyncio.create_task(wait(60))
            await quiet()
            await how(store, item)
            await quiet()
            assert waiting.done()


async def claim_stored(store: SqlStore) -> Entry:
    """The entry of a durable call that runs here."""
    item = an_item(state="running", owner="ann")
    entry = an_entry(**ref(item), owner=item.owner, is_durable=True)
    assert await store.ledger.claim(
        entry, approval=None, approvals=store.approvals, item=item, work=store.work, is_new=True
    )
    return entry


@pytest.mark.parametrize("state", ["committed", "failed"])
async def test_who_waits_for_a_call_that_is_settled_here_gets_its_entry_as_the_ledger_has_it(
    store: SqlStore, state: State
) -> None:
    entry = await claim_stored(store)
    of_call = {"session_id": entry.session_id, "call_id": entry.call_id}
    outcome = done(entry, state, metadata={"a": {1, 2}, "b": 3})  # A set cannot be written.
    async with store.work.watch_end(**of_call) as wait, store.work.watch_end(**of_call) as other:
        await store.ledger.settle(outcome, work=store.work)
        settled = await wait(60)

        assert isinstance(settled, Entry)
        known = (await store.ledger.recall(**of_call)).by_id
        assert known is not None
        assert (settled.state, settled.owner, settled.recorded) == (known.state, known.owner, known.recorded)
        assert settled.settled_at == known.settled_at
        assert await other(60) == settled
        store.work.signals.wake_waiters((entry.session_id, entry.call_id))
        assert await wait(60) is True  # What is said later is read.


async def test_who_waits_for_a_call_whose_values_were_erased_meanwhile_reads_it(store: SqlStore) -> None:
    entry = await claim_stored(store)
    of_call = {"session_id": entry.session_id, "call_id": entry.call_id}
    erasing = text("UPDATE handrail_ledger SET erased_at = 1.0 WHERE call_id = :call_id")
    await store._database.write(erasing, {"call_id": entry.call_id})
    async with store.work.watch_end(**of_call) as wait:
        await store.ledger.settle(done(entry), work=store.work)
        assert await wait(60) is True
    known = (await store.ledger.recall(**of_call)).by_id
    assert known is not None
    assert (known.state, known.recorded) == ("committed", None)


async def test_who_waits_for_a_call_that_another_owner_has_settled_reads_it(store: SqlStore) -> None:
    entry = await claim_stored(store)
    of_call = {"session_id": entry.session_id, "call_id": entry.call_id}
    async with store.work.watch_end(**of_call) as wait:
        with pytest.raises(CallTakenOverError):
            await store.ledger.settle(done(structs.replace(entry, owner="bob")), work=store.work)
        assert await wait(60) is True
    known = (await store.ledger.recall(**of_call)).by_id
    assert known is not None
    assert known.state == "running"


@pytest.mark.parametrize(("lease", "of_sqlite", "of_postgres"), [(60, 0.02, 1.0), (3, 0.02, 0.5), (0.06, 0.01, 0.01)])
async def test_who_waits_for_calls_looks_again_after_a_while(
    store: SqlStore, lease: float, of_sqlite: float, of_postgres: float
) -> None:
    interval = of_sqlite if store.work.signals.is_polled else of_postgres
    async with store.work.signals.watch_queue(lease) as wait:
        before = asyncio.all_tasks()
        with stopped_clock() as clock:
            waiting = asyncio.create_task(wait(set()))
            await quiet()
            clock.now += interval * 0.9
            await quiet()
            assert not waiting.done()
            clock.now += interval * 0.2
            await quiet()
            assert waiting.done()
            assert not await waiting
            assert asyncio.all_tasks() == before


async def test_who_waits_for_the_end_of_a_call_looks_again_after_a_while(store: SqlStore) -> None:
    interval = 0.02 if store.work.signals.is_polled else 0.5
    async with store.work.watch_end(session_id="s-1", call_id="c-1") as wait:
        for timeout in (60, interval / 2):
            with stopped_clock() as clock:
                waiting = asyncio.create_task(wait(timeout))
                await quiet()
                clock.now += min(interval, timeout) * 0.9
                await quiet()
                assert not waiting.done()
                clock.now += min(interval, timeout) * 0.2
                await quiet()
                assert waiting.done()


async def test_who_was_told_once_waits_again_and_leaves_nothing_behind(store: SqlStore) -> None:
    signals, other = store.work.signals, asyncio.get_running_loop().create_future()
    with stopped_clock():
        async with signals.watch_queue(60) as wait_for_calls, signals.watch_end(("s-1", "c-1")) as wait_for_end:
            signals.wake_workers()
            signals.wake_waiters(("s-1", "c-1"))
            assert await wait_for_calls({other})
            await wait_for_end(60)
            waiting = asyncio.create_task(wait_for_calls({other}))
            ending = asyncio.create_task(wait_for_end(60))
            await quiet()
            assert not waiting.done()
            assert not ending.done()
            signals.wake_waiters(("s-1", "c-2"))
            other.set_result(None)
            await quiet()
            assert not ending.done()
            assert waiting.done()
            assert not await waiting  # Something else happened: nobody told of a call.
            ending.cancel()
            await quiet()
    assert not signals._workers
    assert not signals._waiters


# Through Postgres.

LISTENERS = text(
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN %notices%'"
)
"""The sessions that listen: the channel of the notices is the last one."""


def count_listening_tasks() -> int:
    return [task.get_name() for task in asyncio.all_tasks()].count("handrail:listen")


@pytest.mark.postgres
async def test_another_process_is_told_of_calls_and_of_their_ends_and_nothing_else(postgres: PostgresServer) -> None:
    url = postgres.new_database()
    async with open_store(url) as ours, open_store(url) as theirs:
        first, other = an_item(), an_item()
        with stopped_clock():
            async with theirs.work.signals.watch_queue(60) as wait, theirs.work.watch_end(**ref(first)) as wait_for_end:
                ending = asyncio.create_task(wait_for_end(60))
                for item in (first, other):
                    await ours.work.put(item)
                    assert await wait(set())
                waiting = asyncio.create_task(wait(set()))
                await ours.work.end(**ref(other))
                await ours.work.end(**ref(first))
                await eventually(ending.done)
                await quiet()
                assert not waiting.done()
                waiting.cancel()


@pytest.mark.postgres
async def test_a_worker_is_told_once_of_what_its_own_process_queues(postgres: PostgresServer) -> None:
    url = postgres.new_database()
    async with open_store(url) as ours, open_store(url) as theirs:
        item = an_item()
        with stopped_clock():
            async with ours.work.signals.watch_queue(60) as wait, ours.work.watch_end(**ref(item)) as wait_for_end:
                await ours.work.put(item)
                assert await wait(set())
                ending = asyncio.create_task(wait_for_end(60))
                await theirs.work.end(**ref(item))
                await eventually(ending.done)  # What Postgres said before has come, too.
                waiting = asyncio.create_task(wait(set()))
                await quiet()
                assert not waiting.done()
                await theirs.work.put(an_item())
                await eventually(waiting.done)
                assert await waiting


@pytest.mark.postgres
async def test_a_connection_that_listens_is_opened_again_when_it_was_lost(postgres: PostgresServer) -> None:
    url = postgres.new_database()
    async with open_store(url) as ours, open_store(url) as theirs:
        with stopped_clock() as clock:
            async with theirs.work.signals.watch_queue(60) as wait:
                waiting = asyncio.create_task(wait(set()))
                ((pid,),) = await ours._database.fetch(LISTENERS)
                assert not waiting.done()
                await ours._database.fetch(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
                await eventually(waiting.done)
                assert await waiting  # Somebody may have told of a call meanwhile.
                await quiet()
                assert await ours._database.fetch(LISTENERS) == []
                clock.now += 1.01
                while not (found := await ours._database.fetch(LISTENERS)) or found == [(pid,)]:
                    await quiet()
                waiting = asyncio.create_task(wait(set()))
                await ours.work.put(an_item())
                await eventually(waiting.done)
                assert await waiting


@pytest.mark.postgres
async def test_a_store_listens_once_until_it_is_closed(postgres: PostgresServer) -> None:
    before = asyncio.all_tasks()
    async with open_store(postgres.new_database()) as store:
        with stopped_clock():
            for _ in range(2):
                async with store.work.signals.watch_queue(60), store.work.watch_end(session_id="s", call_id="c"):
                    assert count_listening_tasks() == 1
    assert count_listening_tasks() == 0
    assert asyncio.all_tasks() <= before


@pytest.mark.postgres
def test_a_store_listens_again_in_the_next_event_loop(postgres: PostgresServer) -> None:
    url = postgres.new_database()
    store = open_store(url)

    async def be_told() -> bool:
        async with store.work.signals.watch_queue(60) as wait, open_store(url) as other:
            with stopped_clock():
                await other._database.fetch(text("SELECT pg_notify('handrail_work', '')"))
                return await wait(set())

    assert asyncio.run(be_told())
    assert asyncio.run(be_told())
    asyncio.run(store.aclose())


async def test_a_database_that_is_away_is_waited_for_and_leaves_nothing_behind() -> None:
    before = asyncio.all_tasks()
    store = open_store("postgresql://ann@127.0.0.1:9/shop")
    with stopped_clock() as clock:
        subscribing = asyncio.create_task(store.work.subscribe(print))
        await quiet()
        assert not subscribing.done()
        clock.now += 1.01
        await subscribing
        await quiet()
        assert {task.get_name() for task in asyncio.all_tasks() - before} == {"handrail:listen"}
        await store.aclose()
    assert asyncio.all_tasks() <= before


# Notices.


def a_notice(**values: Any) -> CallNotice:
    return CallNotice(**{"session_id": "s-1", "call_id": "c-1", "worker": "w", "kind": "progress", "at": 1.0, **values})


@pytest.mark.postgres
async def test_a_notice_loses_its_message_when_it_is_longer_than_postgres_takes(postgres: PostgresServer) -> None:
    room = 7_900 - len(msgspec.json.encode(a_notice(message=""))) - len(',"message":""')
    async with open_store(postgres.new_database()) as ours:
        heard: list[CallNotice] = []
        await ours.work.subscribe(receiver := heard.append)
        fits, cut = a_notice(message="x" * room), a_notice(message="x" * (room + 1))
        with counted(ours) as statements:
            await ours.work.publish([a_notice(session_id="s" * 7_900)])
            await ours.work.publish([])
            assert statements.count == 0
            await ours.work.publish([fits, cut])
            assert statements.count == 1
        await eventually(lambda: len(heard) == 2)
    assert receiver
    assert heard == [fits, structs.replace(cut, message="")]

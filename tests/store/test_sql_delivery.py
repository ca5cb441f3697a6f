"""What the database itself delivers: who takes how much when, how often it looks, and what it leaves behind."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from handrail.execute import WorkItem
from handrail.execute.stored_calls import parse_work_id
from handrail.store import SqlDelivery, SqlStore, open_store
from tests.clocks import eventually, stopped_clock
from tests.execute.helpers import quiet
from tests.statements import counted
from tests.store.samples import an_item


class Handler:
    """A worker that notes what it gets, and holds it until it may end it."""

    owner, lease, definitions = "w-1", 60.0, frozenset(("d-1",))

    def __init__(self, store: SqlStore, *, is_held: bool = False) -> None:
        self._store = store
        self.ids: list[str] = []
        self.ended = 0
        self.may_end = asyncio.Event()
        if not is_held:
            self.may_end.set()

    async def __call__(self, id: str) -> float | None:
        self.ids.append(id)
        await self.may_end.wait()
        session_id, call_id = parse_work_id(id)
        await self._store.work.end(session_id=session_id, call_id=call_id)
        self.ended += 1
        return None


@asynccontextmanager
async def serving(
    store: SqlStore, handler: Handler, *, max_running: int = 1
) -> AsyncGenerator[tuple[asyncio.Event, "asyncio.Task[None]"]]:
    """Serve a worker until it is stopped here; nothing of it is left after that."""
    async with store.work.signals.watch_queue(60):  # It listens, and goes on to until it is closed.
        pass
    before = asyncio.all_tasks()
    stopping = asyncio.Event()
    task = asyncio.create_task(store.work.delivery.serve(handler, max_running=max_running, stopping=stopping))
    yield stopping, task
    stopping.set()
    handler.may_end.set()
    await asyncio.wait([task])
    await quiet()
    assert asyncio.all_tasks() == before


def is_waiting(store: SqlStore) -> bool:
    """Whether a worker waits for calls."""
    return any(signal.is_awaited for signal in store.work.signals._workers)


def words(statements: Any) -> list[str]:
    return [sql.split()[0] for sql, _ in statements.sent]


async def put(store: SqlStore, count: int, **values: Any) -> list[WorkItem]:
    items = [an_item(**values) for _ in range(count)]
    for item in items:
        assert await store.work.put(item)
    return items


@pytest.fixture
async def file(tmp_path: Path) -> AsyncGenerator[SqlStore]:
    async with open_store(f"sqlite:///{tmp_path}/a.db") as opened:
        yield opened


async def test_a_worker_of_a_file_looks_before_it_asks_for_the_lock(file: SqlStore) -> None:
    with stopped_clock() as clock, counted(file) as statements:
        async with serving(file, Handler(file)):

            def has_looked() -> bool:
                clock.now += 0.021
                return statements.count >= 4

            await eventually(has_looked)
    assert set(words(statements)) == {"SELECT"}


async def test_a_worker_that_is_told_of_a_call_takes_it_at_once_and_does_not_look_for_another(file: SqlStore) -> None:
    with stopped_clock():
        handler = Handler(file, is_held=True)
        async with serving(file, handler, max_running=2):
            await eventually(lambda: is_waiting(file))
            with counted(file) as statements:
                (item,) = await put(file, 1)
                await eventually(lambda: handler.ids and is_waiting(file))
                assert words(statements) == ["INSERT", "WITH"]
    assert handler.ids == [item.id]


async def test_a_worker_that_has_as_much_as_it_may_asks_for_nothing_until_it_has_room(store: SqlStore) -> None:
    items = await put(store, 2)
    with stopped_clock() as clock:
        handler = Handler(store, is_held=True)
        async with serving(store, handler):
            await eventually(lambda: handler.ids and is_waiting(store))
            with counted(store) as statements:
                for _ in range(5):
                    clock.now += 1.0
                    await quiet()
                    await eventually(lambda: is_waiting(store))
                assert statements.count == 0
            handler.may_end.set()
            await eventually(lambda: handler.ended == 2)  # No time has passed.
    assert handler.ids == [item.id for item in items]


async def test_all_calls_of_one_tenant_that_wait_are_taken_at_once(store: SqlStore) -> None:
    items = await put(store, 7)
    with stopped_clock():
        handler = Handler(store, is_held=True)
        async with serving(store, handler, max_running=5):
            await eventually(lambda: len(handler.ids) == 5)  # No time has passed: nobody waits for the next look.
            handler.may_end.set()
            await eventually(lambda: handler.ended == 7)
    assert sorted(handler.ids) == sorted(item.id for item in items)


@pytest.mark.parametrize("limit", [1, 2])
async def test_the_end_of_a_call_makes_room_for_the_next_one_of_a_tenant_with_a_limit(url: str, limit: int) -> None:
    async with open_store(url, delivery=SqlDelivery(max_running_per_tenant=limit)) as store:
        await put(store, 6)
        with stopped_clock():
            handler = Handler(store)
            async with serving(store, handler, max_running=5):
                await eventually(lambda: handler.ended == 6)  # No time has passed.


async def test_a_worker_that_is_stopped_ends_what_it_has_and_takes_nothing_more(store: SqlStore) -> None:
    await put(store, 2)
    handler = Handler(store, is_held=True)
    async with serving(store, handler) as (stopping, task):
        await eventually(lambda: handler.ids)
        stopping.set()
        await quiet()
        assert not task.done()
        handler.may_end.set()
        await asyncio.wait([task])
        assert (task.exception(), len(handler.ids), handler.ended) == (None, 1, 1)


async def test_a_worker_that_is_cancelled_leaves_nothing_that_waits(store: SqlStore) -> None:
    async with serving(store, Handler(store)) as (_, task):
        await eventually(lambda: is_waiting(store))
        task.cancel()


async def test_a_worker_whose_database_fails_asks_it_once_a_second(file: SqlStore) -> None:
    await file._database.write(text("ALTER TABLE handrail_work RENAME TO away"), {})
    with stopped_clock() as clock, counted(file) as statements:
        async with serving(file, Handler(file)) as (_, task):
            await eventually(lambda: statements.count)
            for _ in range(9):
                await quiet()
                await asyncio.to_thread(lambda: None)
                clock.now += 0.1
            assert statements.count == 1

            def has_asked_again() -> bool:
                clock.now += 0.1
                return statements.count >= 2

            await eventually(has_asked_again)
            task.cancel()


async def take(store: SqlStore, count: int) -> set[str | None]:
    """Take so many calls, and end them; of which tenants they are."""
    delivery: Any = store.work.delivery
    taken = (await delivery._take(store.work, Handler(store), count, is_woken=True)).items
    for item in taken:
        await store.work.end(session_id=item.session_id, call_id=item.call_id)
    return {item.tenant_id for item in taken}


@pytest.mark.parametrize("limit", [None, 5])
async def test_tenants_take_turns_however_many_calls_are_taken_together(url: str, limit: int | None) -> None:
    async with open_store(url, delivery=SqlDelivery(max_running_per_tenant=limit)) as store:
        for tenant in ("b", None):
            await put(store, 5, tenant_id=tenant)
        assert [await take(store, count) for count in (1, 2, 1)] == [{"b"}, {None, "b"}, {None}]
        for tenant in ("a", "c"):
            await put(store, 5, tenant_id=tenant)
        assert [await take(store, 2) for _ in range(4)] == [{"a", "b"}, {"c", None}] * 2


async def test_a_call_that_was_taken_is_its_owners_and_no_other_workers_of_the_process(store: SqlStore) -> None:
    (item,) = await put(store, 1)
    options: Any = {"max_rows": 5, "max_running_per_tenant": None, "last_tenant": ""}
    assert [item.id for item in (await store.work.take_many(Handler(store), **options)).items] == [item.id]
    ref = {"session_id": item.session_id, "call_id": item.call_id, "lease": 60.0}

    assert await store.work.take(**ref, owner="w-2") is None
    again = await store.work.take(**ref, owner="w-1")
    assert again is not None
    assert again.call == item.call


@pytest.mark.parametrize("limit", [1, 2])
async def test_a_tenant_has_as_many_running_calls_as_it_may(store: SqlStore, limit: int) -> None:
    for tenant in ("a", "b"):
        await put(store, 3, tenant_id=tenant)
    options: Any = {"max_rows": 5, "max_running_per_tenant": limit, "last_tenant": ""}

    taken = [(await store.work.take_many(Handler(store), **options)).items for _ in range(4)]

    tenants = [item.tenant_id for items in taken for item in items]
    assert sorted(map(str, tenants)) == ["a"] * limit + ["b"] * limit
    (first, *_) = taken[0]
    await store.work.end(session_id=first.session_id, call_id=first.call_id)
    assert [item.tenant_id for item in (await store.work.take_many(Handler(store), **options)).items] == [
        first.tenant_id
    ]


async def test_a_row_that_cannot_be_read_keeps_nobody_from_the_others(store: SqlStore) -> None:
    (item, broken) = [(await put(store, 1, tenant_id=tenant))[0] for tenant in ("a", "b")]
    await store._database.write(
        text("UPDATE handrail_work SET calls = 'nonsense' WHERE call_id = :id"), {"id": broken.call_id}
    )
    options: Any = {"max_rows": 5, "max_running_per_tenant": None, "last_tenant": ""}

    assert [item.id for item in (await store.work.take_many(Handler(store), **options)).items] == [item.id]

"""Turns of conversations, in both databases: one process runs each, any can interrupt it, and a dead one loses it."""

import asyncio
import time
from pathlib import Path

import pytest
from sqlalchemy import func, select

from handrail.store import SqlStore, open_store
from handrail.store.tables import turns
from tests.statements import counted


async def test_of_several_processes_one_gets_the_turn_of_a_conversation(url: str) -> None:
    async with open_store(url) as first, open_store(url) as second:
        taken = await asyncio.gather(
            *(store.turns.acquire("s", owner=f"{n}", lease=60) for n, store in enumerate((first, second) * 5))
        )
        assert sum(taken) == 1
        owner = str(taken.index(True))
        assert await second.turns.is_running("s")
        assert not await second.turns.is_running("other")
        await second.turns.release("s", owner="somebody else")
        assert await first.turns.is_running("s")
        await second.turns.release("s", owner=owner)
        assert not await first.turns.is_running("s")
        assert await second.turns.acquire("s", owner="next", lease=60)


async def test_a_turn_is_interrupted_from_any_process(url: str) -> None:
    async with open_store(url) as first, open_store(url) as second:
        assert not await second.turns.interrupt("s")
        await first.turns.acquire("s", owner="a", lease=60)
        assert await first.turns.renew("s", owner="a", lease=60) == "held"
        assert await second.turns.interrupt("s")
        assert await first.turns.renew("s", owner="a", lease=60) == "interrupted"
        await first.turns.release("s", owner="a")
        await second.turns.acquire("s", owner="b", lease=60)
        assert await second.turns.renew("s", owner="b", lease=60) == "held"


async def test_a_lease_that_is_over_can_be_taken_and_is_lost_to_its_owner(store: SqlStore) -> None:
    assert await store.turns.acquire("s", owner="dead", lease=-1)
    assert not await store.turns.is_running("s")
    assert not await store.turns.interrupt("s")
    assert await store.turns.acquire("s", owner="b", lease=60)
    assert await store.turns.renew("s", owner="dead", lease=60) == "lost"
    await store.turns.release("s", owner="dead")
    assert await store.turns.is_running("s")


async def test_leases_of_dead_processes_are_deleted(store: SqlStore) -> None:
    with counted(store) as statements:
        for number in range(101):
            await store.turns.acquire(f"s-{number}", owner="dead", lease=-1)
    assert (await store._database.fetch(select(func.count()).select_from(turns)))[0][0] < 10
    assert [sql.split()[0] for sql, _ in statements.sent].count("DELETE") == 2


async def test_a_lease_ends_at_its_moment_and_an_interruption_with_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    async with open_store(f"sqlite:///{tmp_path}/a.db") as store, open_store(f"sqlite:///{tmp_path}/a.db") as other:
        for session_id in ("s", "left"):
            await store.turns.acquire(session_id, owner="a", lease=10)
        assert await store.turns.interrupt("s")
        now += 9.5
        assert await store.turns.is_running("s")
        assert not await store.turns.acquire("s", owner="b", lease=10)
        now += 0.5
        assert not await store.turns.is_running("s")
        assert not await store.turns.interrupt("s")
        assert await store.turns.acquire("s", owner="b", lease=10)
        assert await store.turns.renew("s", owner="b", lease=10) == "held"
        await other.turns.acquire("new", owner="c", lease=10)  # The first turn of a process cleans up.
        assert await other._database.fetch(select(turns.c.session_id).order_by("session_id")) == [("new",), ("s",)]

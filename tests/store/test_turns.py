"""Turns of conversations, in both databases: one process runs each, any can interrupt it, and a dead one loses it."""

import asyncio

from sqlalchemy import func, select

from handrail.store import SqlStore, open_store
from handrail.store.tables import turns


async def test_of_several_processes_one_gets_the_turn_of_a_conversation(url: str) -> None:
    async with open_store(url) as first, open_store(url) as second:
        taken = await asyncio.gather(
            *(store.turns.acquire("s", owner=f"{n}", seconds=60) for n, store in enumerate((first, second) * 5))
        )
        assert sum(taken) == 1
        owner = str(taken.index(True))
        assert await second.turns.is_running("s")
        assert not await second.turns.is_running("other")
        await second.turns.release("s", owner="somebody else")
        assert await first.turns.is_running("s")
        await second.turns.release("s", owner=owner)
        assert not await first.turns.is_running("s")
        assert await second.turns.acquire("s", owner="next", seconds=60)


async def test_a_turn_is_interrupted_from_any_process(url: str) -> None:
    async with open_store(url) as first, open_store(url) as second:
        assert not await second.turns.interrupt("s")
        await first.turns.acquire("s", owner="a", seconds=60)
        assert await first.turns.renew("s", owner="a", seconds=60) == "held"
        assert await second.turns.interrupt("s")
        assert await first.turns.renew("s", owner="a", seconds=60) == "interrupted"
        await first.turns.release("s", owner="a")
        await second.turns.acquire("s", owner="b", seconds=60)
        assert await second.turns.renew("s", owner="b", seconds=60) == "held"


async def test_a_lease_that_is_over_can_be_taken_and_is_lost_to_its_owner(store: SqlStore) -> None:
    assert await store.turns.acquire("s", owner="dead", seconds=-1)
    assert not await store.turns.is_running("s")
    assert not await store.turns.interrupt("s")
    assert await store.turns.acquire("s", owner="b", seconds=60)
    assert await store.turns.renew("s", owner="dead", seconds=60) == "lost"
    await store.turns.release("s", owner="dead")
    assert await store.turns.is_running("s")


async def test_leases_of_dead_processes_are_deleted(store: SqlStore) -> None:
    for number in range(101):
        await store.turns.acquire(f"s-{number}", owner="dead", seconds=-1)
    assert (await store._database.fetch(select(func.count()).select_from(turns)))[0][0] < 10

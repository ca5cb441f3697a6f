"""Webhooks that were taken, in both databases: one process gets each, and what has expired is forgotten."""

import asyncio
import time

import pytest
from sqlalchemy import func, select

from handrail.store import SqlStore, open_store
from handrail.store.tables import webhooks
from tests.statements import counted


async def count(store: SqlStore) -> int:
    return (await store._database.fetch(select(func.count()).select_from(webhooks)))[0][0]


async def test_of_several_processes_one_gets_a_webhook(url: str) -> None:
    async with open_store(url) as first, open_store(url) as second:
        claims = [
            store.webhooks.claim([f"id:{n}", f"call:{n}"], window=60) for n in range(10) for store in (first, second)
        ]
        taken = await asyncio.gather(*claims)

    assert [a + b for a, b in zip(taken[::2], taken[1::2], strict=True)] == [1] * 10


async def test_a_second_webhook_of_the_same_call_is_a_duplicate(store: SqlStore) -> None:
    assert await store.webhooks.claim(["id:1", "call:a"], window=60)
    assert not await store.webhooks.claim(["id:2", "call:a"], window=60)
    assert not await store.webhooks.claim(["id:1", "call:b"], window=60)
    assert await store.webhooks.claim(["id:3", "call:c"], window=60)


async def test_what_has_expired_can_be_claimed_again_and_is_deleted(store: SqlStore) -> None:
    for number in range(3):
        assert await store.webhooks.claim(["id:1"], window=-1), number
    with counted(store) as statements:
        for number in range(100):
            await store.webhooks.claim([f"id:{number}"], window=-1)

        assert await store.webhooks.claim(["id:new"], window=60)
    assert await count(store) < 100
    assert [sql.split()[0] for sql, _ in statements.sent].count("DELETE") == 1


async def test_a_claim_expires_at_its_moment(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    assert await store.webhooks.claim(["id:1"], window=10)
    now += 9.5
    assert not await store.webhooks.claim(["id:1"], window=10)
    now += 0.5
    assert await store.webhooks.claim(["id:1"], window=10)


@pytest.mark.parametrize("id", ["a\0b", "\ud800", "x" * 5_000])
async def test_an_id_is_any_text(id: str, store: SqlStore) -> None:
    assert await store.webhooks.claim([id], window=60)
    assert not await store.webhooks.claim([id], window=60)

"""Keys of people and clients, and what was delivered to them, in both databases."""

import asyncio

import pytest
from sqlalchemy import select

from handrail.errors import ConfigError
from handrail.store import SqlStore
from handrail.store.api_keys import ROLES
from handrail.store.tables import keys
from tests.statements import counted


async def test_a_key_is_found_by_its_secret_which_is_not_in_the_database(store: SqlStore) -> None:
    key, secret = await store.keys.create(role="operator", who="ann", tenant_id="acme")

    assert await store.keys.find(secret) == key
    assert (key.role, key.who, key.tenant_id) == ("operator", "ann", "acme")
    assert len(secret) > 43  # 32 bytes in base64, and the prefix
    assert secret not in str(await store._database.fetch(select(keys)))
    for wrong in ("", "hrk_", secret[:-1], secret + "x", secret.upper(), "x" * 1_000_000, "\ud800"):
        assert await store.keys.find(wrong) is None


async def test_a_revoked_key_is_not_found_and_is_revoked_once(store: SqlStore) -> None:
    key, secret = await store.keys.create(role="caller", who="bot")
    first = await store.keys.revoke(key.id)
    await store.audit.flush(timeout=60)
    assert [row.kind for row in await store.audit.query()] == ["key_created", "key_revoked"]
    second = await store.keys.revoke(key.id)

    assert await store.keys.find(secret) is None
    assert first.revoked_at is not None
    assert second == first == await store.keys.get(key.id)
    await store.audit.flush(timeout=60)
    assert len(await store.audit.query()) == 2
    with pytest.raises(ConfigError, match="there is no key 'nobody'"):
        await store.keys.revoke("nobody")


async def test_what_cannot_be_a_secret_is_not_looked_up(store: SqlStore) -> None:
    with counted(store) as statements:
        for wrong in ("", "x" * 43, "hrk_" + "x" * 197):
            assert await store.keys.find(wrong) is None
        assert statements.count == 0
        assert await store.keys.find("hrk_" + "x" * 196) is None
        assert statements.count == 1


async def test_the_keys_of_one_tenant_are_listed_without_those_of_others(store: SqlStore) -> None:
    made = [(await store.keys.create(role=role, who=f"{role}-{n}", tenant_id=n))[0] for n in "ab" for role in ROLES]

    assert await store.keys.list() == made
    assert await store.keys.list(tenant_id="b") == made[len(ROLES) :]


@pytest.mark.parametrize("who", ["", "a\nb", "x" * 201])
async def test_who_holds_a_key_is_a_printable_name(who: str, store: SqlStore) -> None:
    with pytest.raises(ConfigError, match="who must be 1 to 200 printable"):
        await store.keys.create(role="viewer", who=who)
    with pytest.raises(ConfigError, match="role must be one of admin, operator, viewer, caller"):
        await store.keys.create(role="root", who="ann")  # pyright: ignore[reportArgumentType]


async def test_one_result_that_is_delivered_several_times_counts_once(store: SqlStore) -> None:
    received = store.received_results
    assert await received.count("s", "call") == 0
    await asyncio.gather(*(received.add("s", "call", after=0) for _ in range(5)))
    assert await received.count("s", "call") == 1
    await asyncio.gather(*(received.add("s", "call", after=1) for _ in range(5)))
    await received.add("s", "call", after=0)

    assert await received.count("s", "call") == 2
    assert await received.count("s", "other") == await received.count("other", "call") == 0
    assert await store.purge(before=9_000_000_000) == 1
    assert await received.count("s", "call") == 0

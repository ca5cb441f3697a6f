"""Tenants in SQL: saved by one process, found by the next call of another."""

import asyncio

import pytest
from sqlalchemy import insert, update
from sqlalchemy.ext.asyncio import create_async_engine

from handrail.errors import ConfigError, StoreError
from handrail.store import SqlStore, open_store
from handrail.store.tables import tenants
from tests.postgres import BLOCKED, PostgresServer
from tests.tenants.samples import acme


async def test_a_tenant_is_found_by_its_number_as_it_was_saved(store: SqlStore) -> None:
    cfg = acme(locale="fr", secrets={"crm": "env:CRM"})
    assert await store.tenants.put(cfg, who="ann") == 1

    found = await store.tenants.find("+33 1 00 00 00 00")

    assert found == cfg
    assert found is not None
    assert found.version == cfg.version
    assert found.model_fields_set == cfg.model_fields_set  # What was not said is the default of the day.
    assert await store.tenants.list() == [cfg]
    assert await store.tenants.find("+33999999999") is None
    assert await store.tenants.find("anonymous") is None


@pytest.mark.proves("PH-89")
async def test_every_revision_is_kept_and_the_newest_counts(store: SqlStore) -> None:
    first, second = acme(), acme(enabled=False, numbers=["+33200000000"])
    await store.tenants.put(first, who="ann")
    await store.tenants.put(second, who="bob", revision=1)

    assert await store.tenants.find("+33100000000") is None
    assert await store.tenants.find("+33200000000") == second
    assert await store.tenants.get("acme-corp", revision=1) == first
    assert [
        (revision.revision, revision.version, revision.who) for revision in await store.tenants.history("acme-corp")
    ] == [
        (2, second.version, "bob"),
        (1, first.version, "ann"),
    ]


async def test_a_change_of_an_older_revision_is_refused(store: SqlStore) -> None:
    await store.tenants.put(acme())
    await store.tenants.put(acme(greeting="Bonjour"), revision=1)

    with pytest.raises(StoreError, match="at revision 2, not at 1"):
        await store.tenants.put(acme(greeting="Hello"), revision=1)

    found = await store.tenants.get("acme-corp")
    assert found is not None
    assert found.greeting == "Bonjour"


async def test_one_number_means_one_tenant(store: SqlStore) -> None:
    await store.tenants.put(acme())

    with pytest.raises(ConfigError, match=r"\+33100000000 belongs to 'acme-corp'"):
        await store.tenants.put(acme(tenant_id="other"))

    assert await store.tenants.get("other") is None


async def test_a_tenant_that_was_removed_answers_no_call_and_can_come_back(store: SqlStore) -> None:
    await store.tenants.put(acme())

    assert not await store.tenants.is_removed("acme-corp")
    assert await store.tenants.remove("acme-corp", who="ann")
    assert not await store.tenants.remove("acme-corp")
    assert await store.tenants.is_removed("acme-corp")
    assert not await store.tenants.is_removed("another")
    assert await store.tenants.find("+33100000000") is None
    assert await store.tenants.list() == []
    assert [revision.removed for revision in await store.tenants.history("acme-corp")] == [True, False]

    assert await store.tenants.put(acme()) == 3
    assert not await store.tenants.is_removed("acme-corp")
    assert await store.tenants.find("+33100000000") == acme()
    await store.tenants.remove("acme-corp")
    assert await store.tenants.put(acme(tenant_id="other")) == 1  # Its number is free.


async def test_a_saved_tenant_that_is_not_valid_any_more_is_named_and_keeps_no_other_from_being_listed(
    store: SqlStore, caplog: pytest.LogCaptureFixture
) -> None:
    await store.tenants.put(acme())
    await store._database.write(update(tenants).values(config=b'{"tenant_id": ""}'), {})
    await store.tenants.put(other := acme(tenant_id="other", numbers=["+33200000000"]))

    for question in (store.tenants.get("acme-corp"), store.tenants.find("+33100000000")):
        with pytest.raises(ConfigError, match="of the tenant 'acme-corp' is not valid"):
            await question
    assert await store.tenants.list() == [other]  # A phone gateway begins with it, and a console.
    assert "the tenant acme-corp is left out" in caplog.text
    assert "of the tenant 'acme-corp' is not valid" in store.tenants.problems["acme-corp"]

    assert await store.tenants.remove("acme-corp", who="ann")
    assert await store.tenants.is_removed("acme-corp")
    assert (await store.tenants.list(), store.tenants.problems) == ([other], {})


@pytest.mark.postgres
async def test_of_two_changes_at_once_one_is_refused(postgres: PostgresServer) -> None:
    async with open_store(url := postgres.new_database()) as store:
        await store.tenants.put(acme())
        engine = create_async_engine(url)
        async with engine.begin() as other:
            theirs = {"tenant_id": "acme-corp", "revision": 2, "version": "", "saved_at": 1.0, "who": "ann"}
            await other.execute(insert(tenants), theirs)
            changing = asyncio.create_task(store.tenants.put(acme(locale="fr")))
            while not await store._database.fetch(BLOCKED):
                assert not changing.done()
        with pytest.raises(StoreError, match="'acme-corp' was changed by somebody else meanwhile"):
            await changing
        await engine.dispose()


@pytest.mark.postgres
async def test_a_tenant_that_is_saved_while_it_is_turned_off_is_turned_off(postgres: PostgresServer) -> None:
    async with open_store(url := postgres.new_database()) as store:
        await store.tenants.put(acme())
        engine = create_async_engine(url)
        async with engine.begin() as other:
            config = acme().model_dump_json().encode()
            theirs = {"tenant_id": "acme-corp", "revision": 2, "version": "", "saved_at": 1.0, "who": "ann"}
            await other.execute(insert(tenants), {**theirs, "config": config})
            removing = asyncio.create_task(store.tenants.remove("acme-corp", who="bob"))
            while not await store._database.fetch(BLOCKED):
                assert not removing.done()
        assert await removing
        assert [revision.removed for revision in await store.tenants.history("acme-corp")] == [True, False, False]
        await engine.dispose()

"""Tenants in SQL: saved by one process, found by the next call of another."""

import pytest

from handrail.errors import ConfigError, StoreError
from handrail.store import SqlStore
from tests.tenants.samples import acme


async def test_a_tenant_is_found_by_its_number_as_it_was_saved(store: SqlStore) -> None:
    cfg = acme(locale="fr", secrets={"crm": "env:CRM"})
    assert await store.tenants.put(cfg, who="ann") == 1

    found = await store.tenants.find("+33 1 00 00 00 00")

    assert found == cfg
    assert found is not None
    assert found.version == cfg.version
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
    assert [(one.revision, one.version, one.who) for one in await store.tenants.history("acme-corp")] == [
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

    assert await store.tenants.remove("acme-corp", who="ann")
    assert not await store.tenants.remove("acme-corp")
    assert await store.tenants.find("+33100000000") is None
    assert await store.tenants.list() == []
    assert [one.removed for one in await store.tenants.history("acme-corp")] == [True, False]

    assert await store.tenants.put(acme()) == 3
    assert await store.tenants.find("+33100000000") == acme()

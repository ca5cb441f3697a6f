"""Rows for `handrail verify`: in the same database, unknown to its audit, and removed without a trace."""

from pathlib import Path

import pytest
from cryptography.fernet import Fernet
from sqlalchemy import func, select

from handrail.errors import ConfigError, StoreError
from handrail.store import SqlStore, open_store
from handrail.store.tables import approvals, audit, ledger
from tests.store.samples import an_approval, an_entry

PREFIX = "verify_%s_abcdef:"
"""As long as one may be, and with characters that a pattern would take for any other."""
OTHER = "verify-1s-abcdef:1"


async def count_rows(store: SqlStore) -> list[int]:
    return [(await store._database.fetch(select(func.count()).select_from(item)))[0][0] for item in (ledger, approvals)]


async def test_what_was_written_for_a_trial_is_removed_and_nothing_else_is(store: SqlStore) -> None:
    scratch = store.build_scratch()
    await scratch.open()
    assert scratch.ledger.digest_key == store.ledger.digest_key
    for session_id in (f"{PREFIX}1", f"{PREFIX}2", OTHER):
        asked = await scratch.approvals.ask(an_approval(session_id=session_id))
        approval = await scratch.approvals.approve(asked.token, by="operator", who="bo")
        entry = an_entry(session_id=session_id)
        assert await scratch.ledger.claim(entry, approval=approval, approvals=scratch.approvals)

    assert await scratch.remove(PREFIX) == 4
    assert await scratch.remove(PREFIX) == 0
    await scratch.aclose()

    assert not scratch._database.is_open
    assert await count_rows(store) == [1, 1]
    await store.audit.flush()
    assert await store._database.fetch(select(audit.c.kind)) == []


@pytest.mark.parametrize(("prefix", "is_long"), [("x" * 16, True), ("x" * 15, False), ("", False)])
async def test_a_prefix_that_could_be_anybodys_removes_nothing(store: SqlStore, prefix: str, is_long: bool) -> None:
    scratch = store.build_scratch()
    await scratch.open()
    try:
        if is_long:
            assert await scratch.remove(prefix) == 0
        else:
            with pytest.raises(ValueError, match="at least 16 characters"):
                await scratch.remove(prefix)
    finally:
        await scratch.aclose()


async def test_a_trial_makes_no_tables_and_needs_the_key_of_the_database(empty_url: str) -> None:
    with pytest.raises((ConfigError, StoreError), match=r"there is no database|migrate=True"):
        await open_store(empty_url).build_scratch().open()
    async with open_store(empty_url, encryption_key=Fernet.generate_key()) as store:
        assert store.is_encrypted
    with pytest.raises(StoreError, match="encryption_key is not the one"):
        await open_store(empty_url, encryption_key=Fernet.generate_key()).build_scratch().open()


async def test_a_database_that_was_replaced_is_not_tried_on(tmp_path: Path) -> None:
    file = tmp_path / "handrail.db"
    async with open_store(f"sqlite:///{file}") as store:
        assert not store.is_encrypted
        scratch = store.build_scratch()
        await scratch.open()
        other = tmp_path / "other.db"
        async with open_store(f"sqlite:///{other}"):
            pass
        other.replace(file)
        with pytest.raises(StoreError, match="replaced"):
            await scratch.ledger.recall(session_id="s-1", call_id="c-1")
        await scratch.aclose()


def test_the_password_of_the_database_goes_along() -> None:
    scratch = open_store("postgresql://ann:hunter2@127.0.0.1:9/shop").build_scratch()

    assert scratch._database.url.password == "hunter2"

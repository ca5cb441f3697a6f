"""The tables are those of the metadata, whichever way a database got there."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, inspect, text
from sqlalchemy.ext.asyncio import create_async_engine

from handrail.errors import ConfigError, StoreError
from handrail.store import open_store
from handrail.store.migration import downgrade, load_scripts, upgrade
from handrail.store.tables import NEWEST, VERSION_TABLE, metadata
from tests.clocks import eventually
from tests.store.programs import OPEN_AT_ONCE, run_program


@pytest.fixture
def url(empty_url: str) -> str:
    """The address of a database without tables."""
    return empty_url


async def on(url: str, work: Callable[[Connection], Any]) -> Any:
    """Do something on a plain connection, in a transaction."""
    engine = create_async_engine(url)
    try:
        async with engine.begin() as connection:
            return await connection.run_sync(work)
    finally:
        await engine.dispose()


def differences(connection: Connection) -> list[Any]:
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    return compare_metadata(context, metadata)


def tables(connection: Connection) -> set[str]:
    return set(inspect(connection).get_table_names())


def test_the_newest_revision_is_the_last_migration() -> None:
    assert load_scripts().get_current_head() == NEWEST


async def test_an_empty_database_gets_the_tables_of_the_metadata(url: str) -> None:
    async with open_store(url):
        pass

    assert await on(url, differences) == []
    assert await on(url, tables) == {*metadata.tables, VERSION_TABLE}


async def test_a_difference_between_tables_and_metadata_would_be_noticed(url: str) -> None:
    async with open_store(url):
        pass
    await on(url, lambda c: c.execute(text("ALTER TABLE handrail_ledger ADD COLUMN extra TEXT")))

    assert [change[0] for change in await on(url, differences)] == ["remove_column"]


async def test_the_migrations_can_be_taken_back_and_run_again(url: str) -> None:
    await on(url, upgrade)
    await on(url, lambda connection: downgrade(connection, "base"))

    assert await on(url, tables) == {VERSION_TABLE}

    await on(url, upgrade)

    assert await on(url, differences) == []


async def test_a_database_that_is_up_to_date_is_opened_without_migrating(url: str) -> None:
    async with open_store(url) as first:
        key = first.ledger.digest_key
    async with open_store(url, migrate=False) as second:
        assert second.ledger.digest_key == key


async def test_a_database_without_the_tables_is_refused_when_it_must_not_be_migrated(url: str) -> None:
    await on(url, lambda c: c.execute(text("CREATE TABLE other (number INTEGER)")))  # SQLite: else there is no file.
    with pytest.raises(ConfigError, match=rf"revision None, expected {NEWEST}.*migrate=True"):
        async with open_store(url, migrate=False):
            pass


@pytest.mark.parametrize("migrate", [True, False])
async def test_a_database_of_a_newer_version_is_refused(url: str, migrate: bool) -> None:
    async with open_store(url):
        pass
    await on(url, lambda c: c.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")))

    with pytest.raises(ConfigError, match=r"revision 9999.*made by a newer version"):
        async with open_store(url, migrate=migrate):
            pass


async def test_a_migration_that_fails_leaves_nothing_behind(url: str) -> None:
    # A table that is in the way of the last one that the migration makes.
    await on(url, lambda c: c.execute(text("CREATE TABLE handrail_audit (x INTEGER)")))

    with pytest.raises(StoreError, match="handrail_audit"):
        async with open_store(url):
            pass

    assert await on(url, tables) <= {"handrail_audit", VERSION_TABLE}


async def test_tables_of_an_application_in_the_same_database_are_left_alone(url: str) -> None:
    await on(url, lambda c: c.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32))")))
    await on(url, lambda c: c.execute(text("INSERT INTO alembic_version VALUES ('theirs')")))

    async with open_store(url):
        pass

    found = await on(url, lambda c: c.execute(text("SELECT version_num FROM alembic_version")).scalar_one())
    assert found == "theirs"


async def test_a_new_file_that_another_process_is_making_is_waited_for(tmp_path: Path) -> None:
    """SQLite itself does not wait for this lock."""
    other = sqlite3.connect(tmp_path / "executor.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    async def opened() -> bytes:
        async with open_store(f"sqlite+aiosqlite:///{tmp_path}/executor.db") as store:
            return store.ledger.digest_key

    opening = asyncio.create_task(opened())
    ended, _ = await asyncio.wait([opening], timeout=0.3)
    other.execute("ROLLBACK")
    other.close()

    assert not ended
    assert len(await opening) == 32


async def test_a_file_that_cannot_be_opened_is_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="unable to open"):
        async with asyncio.timeout(10), open_store(f"sqlite:///{tmp_path}"):
            pass
    # The driver's thread tells the event loop that it ends, and nobody waits for that.
    await eventually(lambda: not any("connection_worker" in thread.name for thread in threading.enumerate()))


async def test_without_migrations_a_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"there is no database .*executor\.db"):
        async with open_store(f"sqlite:///{tmp_path}/executor.db", migrate=False):
            pass
    assert list(tmp_path.iterdir()) == []


async def test_tasks_that_open_a_new_database_at_once_all_get_the_same_one(url: str) -> None:
    async def opened() -> bytes:
        async with open_store(url) as store:
            return store.ledger.digest_key

    keys = await asyncio.gather(*(opened() for _ in range(5)))

    assert len(set(keys)) == 1
    assert len(keys[0]) == 32


async def test_processes_that_open_a_new_database_at_once_all_get_the_same_one(url: str) -> None:
    said = await asyncio.gather(*(run_program(OPEN_AT_ONCE, url) for _ in range(3)))

    assert len(set(said)) == 1
    assert len(said[0]) == 64
    assert await on(url, differences) == []

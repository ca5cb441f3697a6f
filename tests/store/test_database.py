"""How a database is named, opened and reached, and what is done when it is not the one that it was."""

import asyncio
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from handrail.errors import ConfigError, StoreError
from handrail.store import open_store
from handrail.store.database import Database, build_engine, parse_url
from tests.execute.helpers import Held, quiet
from tests.postgres import PostgresServer
from tests.store.samples import an_approval, an_entry, done

# Addresses.


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("postgresql+asyncpg://u:p@h:1/d", "postgresql+asyncpg://u:p@h:1/d"),
        ("postgresql://u:p@h/d", "postgresql+asyncpg://u:p@h/d"),
        ("postgres://u:p@h/d?application_name=x", "postgresql+asyncpg://u:p@h/d?application_name=x"),
        ("sqlite+aiosqlite:////tmp/x.db", "sqlite+aiosqlite:////tmp/x.db"),
        ("sqlite:////tmp/x.db", "sqlite+aiosqlite:////tmp/x.db"),
    ],
)
def test_an_address_is_given_the_driver_that_works_here(given: str, used: str) -> None:
    assert parse_url(given).render_as_string(hide_password=False) == used


def test_a_file_is_the_same_however_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)

    names = ["executor.db", f"{tmp_path}/executor.db", "./executor.db", "link/executor.db"]

    assert len({parse_url(f"sqlite+aiosqlite:///{name}") for name in names}) == 1


def test_a_store_knows_its_address_however_it_is_written(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/executor.db")

    assert store.is_at(f"sqlite+aiosqlite:///{tmp_path}/./executor.db")
    assert not store.is_at(f"sqlite:///{tmp_path}/other.db")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (
            "executor.db",
            "must be a database URL, such as sqlite:///handrail.db or postgresql://user:password@host/name.",
        ),
        ("", "must be a database URL"),
        ("mysql://u:hunter2@h/d", "url must start with sqlite:/// or postgresql://, got mysql."),
        ("postgresql+psycopg://u:hunter2@h/d", "got postgresql[+]psycopg"),
        ("sqlite+aiosqlite://", "must name a file"),
        ("sqlite+aiosqlite:///:memory:", "must name a file"),
        ("sqlite+aiosqlite:///file:x?mode=memory&uri=true", "must name a file"),
        ("sqlite+aiosqlite:////nowhere/at/all/executor.db", "directory of the database must exist"),
    ],
)
async def test_an_address_that_cannot_be_used_is_refused_and_says_what_would_be_right(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        async with open_store(url):
            pass
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("wrong", [{"pool_size": 0}, {"timeout": 0}])
async def test_a_store_has_a_connection_and_some_patience(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        async with open_store(f"sqlite+aiosqlite:///{tmp_path}/executor.db", **wrong):
            pass


# Settings.


async def test_sqlite_is_in_wal_mode_and_a_claim_is_on_the_disk_before_it_counts(tmp_path: Path) -> None:
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/executor.db", pool_size=1, timeout=10.0)
    names = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
    found = await database.run(
        lambda transaction: [transaction.fetch(text(f"PRAGMA {name}"))[0][0] for name in names],
    )
    await database.close()

    full = 2
    assert found == ["wal", full, 1, 10_000]


async def test_an_engine_for_a_file_has_the_same_settings(tmp_path: Path) -> None:
    engine = build_engine(parse_url(f"sqlite:///{tmp_path}/executor.db"), connect_timeout=10.0)
    async with engine.connect() as connection:
        names = ("journal_mode", "synchronous", "secure_delete")
        found = [(await connection.execute(text(f"PRAGMA {name}"))).scalar() for name in names]
    assert found == ["wal", 2, 1]


async def test_many_calls_at_once_wait_for_a_connection(url: str) -> None:
    async with open_store(url, pool_size=2) as store:
        entries = [an_entry() for _ in range(40)]

        async def life(entry: Any) -> None:
            assert await store.ledger.claim(entry, approval=None, approvals=store.approvals)
            await store.ledger.settle(done(entry))

        await asyncio.gather(*(life(entry) for entry in entries))

        for entry in entries:
            found = (await store.ledger.recall(session_id=entry.session_id, call_id=entry.call_id)).by_id
            assert found is not None
            assert found.state == "committed"


async def test_an_exception_of_the_database_shows_no_value(store: Any) -> None:
    entry = an_entry(tool="secret words")
    await store.ledger.claim(entry, approval=None, approvals=store.approvals)

    with pytest.raises(Exception, match=r"constraint|CHECK") as caught:
        await store.ledger.settle(done(entry, "made-up", metadata={"note": "secret words"}))  # type: ignore[arg-type]

    assert "secret words" not in str(caught.value)


# A file that is not the one that was opened.


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_file_that_was_deleted_is_not_written_any_more(tmp_path: Path, replaced: bool) -> None:
    """SQLite would go on with the deleted file, while the next process starts with an empty one."""
    path = tmp_path / "executor.db"
    async with open_store(f"sqlite+aiosqlite:///{path}") as store:
        await store.ledger.claim(an_entry(), approval=None, approvals=store.approvals)
        for file in tmp_path.glob("executor.db*"):
            file.unlink()
        if replaced:
            sqlite3.connect(path).close()
            path.touch()

        with pytest.raises(StoreError):
            await store.ledger.claim(an_entry(), approval=None, approvals=store.approvals)
        with pytest.raises(StoreError):
            await store.ledger.recall(session_id="s", call_id="c", key="k")
        with pytest.raises(StoreError):
            await store.purge(before=0)
        with pytest.raises(StoreError):
            await store.approvals.ask(an_approval())

        assert path.exists() == replaced


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_deleted_write_ahead_log_is_noticed_before_the_next_claim(tmp_path: Path, replaced: bool) -> None:
    """SQLite would go on with the deleted log, which no other process sees."""
    path = tmp_path / "executor.db"
    async with open_store(f"sqlite+aiosqlite:///{path}", timeout=1) as store:
        entry = an_entry()
        assert await store.ledger.claim(entry, approval=None, approvals=store.approvals)
        (tmp_path / "executor.db-wal").unlink()
        if replaced:
            (tmp_path / "executor.db-wal").touch()

        with pytest.raises(StoreError, match=r"executor\.db-wal was deleted or replaced"):
            await store.ledger.claim(an_entry(), approval=None, approvals=store.approvals)
        with pytest.raises(StoreError, match=r"executor\.db-wal was deleted or replaced"):
            await store.ledger.recall(session_id="s", call_id="c", key="k")

    for again in (store, open_store(f"sqlite+aiosqlite:///{path}")):
        async with again:
            known = await again.ledger.recall(session_id=entry.session_id, call_id=entry.call_id)
            assert replaced or known.by_id == entry


async def test_a_write_ahead_log_that_sqlite_itself_deletes_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "executor.db"
    async with open_store(f"sqlite+aiosqlite:///{path}") as store:
        entry = an_entry()
        await store.ledger.claim(entry, approval=None, approvals=store.approvals)
        await store.audit.flush()
        await store._database.close_idle()  # pyright: ignore[reportPrivateUsage]  # as when an event loop ends
        assert not (tmp_path / "executor.db-wal").exists()

        assert not await store.ledger.claim(entry, approval=None, approvals=store.approvals)


# A server that was restarted.


@pytest.mark.postgres
async def test_connections_that_died_while_they_were_idle_are_replaced(postgres: PostgresServer) -> None:
    async with open_store(postgres.new_database(), pool_size=5) as store:
        await asyncio.gather(*(store.approvals.pending() for _ in range(5)))
        postgres.stop()
        postgres.start()

        assert await store.approvals.pending() == []
        assert await store.ledger.claim(an_entry(), approval=None, approvals=store.approvals)


# Opening and closing.


async def test_a_database_that_could_not_be_prepared_is_closed_and_tried_again(tmp_path: Path) -> None:
    async def prepare() -> None:
        nonlocal is_right
        await database.fetch(text("SELECT 1"))
        if not is_right:
            raise ConfigError("not this one")

    is_right = False
    database = Database(f"sqlite:///{tmp_path}/a.db", pool_size=1, timeout=10.0, prepare=prepare)
    with pytest.raises(ConfigError, match="not this one"):
        await database.open()
    assert not database.is_open
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("handrail:sqlite")]
    is_right = True
    assert await database.fetch(text("SELECT 1")) == [(1,)]
    await database.close()


async def test_a_database_that_is_closed_while_it_is_opened_is_not_opened(tmp_path: Path) -> None:
    hold = Held()
    database = Database(f"sqlite:///{tmp_path}/a.db", pool_size=1, timeout=10.0, prepare=hold)
    opening = asyncio.create_task(database.open())
    async with asyncio.timeout(10):
        await hold.begun.wait()
        await database.close()
    await quiet()
    assert opening.cancelled()
    assert (hold.ended, database.is_open) == (0, False)


LAST_UPDATES = text(
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'UPDATE handrail_ledger%'"
)


@pytest.mark.postgres
async def test_a_connection_that_renews_leases_is_replaced_when_it_was_lost(postgres: PostgresServer) -> None:
    async with open_store(postgres.new_database()) as store:
        entry = an_entry()
        await store.ledger.claim(entry, approval=None, approvals=store.approvals)
        await store.ledger.renew([entry], lease_until=entry.lease_until)
        ((pid,),) = await store._database.fetch(LAST_UPDATES)
        await store._database.fetch(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
        while await store._database.fetch(LAST_UPDATES):
            await quiet()

        await store.ledger.renew([entry], lease_until=entry.lease_until + 1_000)

        found = (await store.ledger.recall(session_id=entry.session_id, call_id=entry.call_id)).by_id
        assert found is not None
        assert found.lease_until > entry.lease_until + 500
        await store.ledger.end_renewals()


# Errors of the driver.


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql+asyncpg://ann:hunter2@127.0.0.1:9/shop", r"cannot open the database .*ann:\*\*\*@.*Connect"),
        ("sqlite+aiosqlite:///{folder}/text.db", "cannot open the database .*not a database"),
    ],
    ids=["a server that is down", "a file that is no database"],
)
async def test_a_database_that_cannot_be_opened_is_a_store_error_without_the_password(
    url: str, says: str, tmp_path: Path
) -> None:
    (tmp_path / "text.db").write_text("Dear diary, " * 100)
    with pytest.raises(StoreError, match=says) as caught:
        async with open_store(url.format(folder=tmp_path)):
            raise AssertionError("it was opened")
    assert "hunter2" not in str(caught.value)


async def test_a_file_that_is_no_database_is_a_store_error_when_it_is_used(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("Dear diary, " * 100)
    database = Database(f"sqlite:///{tmp_path}/text.db", pool_size=1, timeout=1.0)
    with pytest.raises(StoreError, match=r"cannot read from .*text\.db \(DatabaseError\)"):
        await database.fetch(text("SELECT 1"))
    await database.close()


async def test_an_error_of_the_driver_while_in_use_is_a_store_error_without_values(tmp_path: Path) -> None:
    async with open_store(f"sqlite+aiosqlite:///{tmp_path}/a.db") as store:
        other = sqlite3.connect(tmp_path / "a.db")
        other.execute("DROP TABLE handrail_approvals")
        other.commit()
        other.close()
        for question in (store.approvals.pending(), store.approvals.ask(an_approval()), store.purge(before=0)):
            with pytest.raises(StoreError, match=r"cannot (read from|write to) .*OperationalError") as caught:
                await question
            assert "i-1" not in str(caught.value)


QUOTES = """
CREATE FUNCTION quote() RETURNS trigger AS $$ BEGIN RAISE EXCEPTION 'not %', NEW.arguments; END; $$ LANGUAGE plpgsql
"""


@pytest.mark.postgres
async def test_a_store_error_does_not_quote_the_values_that_the_database_quotes(postgres: PostgresServer) -> None:
    async with open_store(postgres.new_database()) as store:
        trigger = "CREATE TRIGGER quotes BEFORE INSERT ON handrail_ledger FOR EACH ROW EXECUTE FUNCTION quote()"
        await store._database.run(lambda transaction: [transaction.execute(text(item)) for item in (QUOTES, trigger)])
        with pytest.raises(StoreError) as caught:
            await store.ledger.claim(an_entry(arguments="kestrel"), approval=None, approvals=store.approvals)

    assert "not kestrel" in repr(caught.value.__cause__)  # The database does.
    assert "kestrel" not in str(caught.value)

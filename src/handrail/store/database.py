"""One database behind one address: how it is reached, read and written, and what is different between the two kinds."""

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Executable, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from handrail.core.text import compact_json, encodable
from handrail.errors import ConfigError, StoreError

_DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "postgres": "postgresql+asyncpg",
    "postgresql": "postgresql+asyncpg",
}
"""Addresses without a driver are given the one that works here."""


class Database:
    """One pool of connections. Single statements commit by themselves; several go through `transaction`."""

    def __init__(self, url: str, *, pool_size: int, timeout: float) -> None:
        if pool_size < 1 or timeout <= 0:
            raise ConfigError("A store has at least 1 connection, and waits more than 0 seconds.")
        self.url = address(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self._engine = engine(self.url, connecting=timeout, statement=timeout, pool_size=pool_size)
        self._several = self._engine.execution_options(isolation_level="READ COMMITTED")  # of Postgres
        # SQLite has one writer at a time. In this process it is whoever holds this lock; a writer in another process is
        # waited for by SQLite itself, which looks again in growing intervals and so is slower to notice.
        self._writing = asyncio.Lock() if self.is_sqlite else None
        self._file: tuple[int, int] | None = None

    async def fetch(self, statement: Executable, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """The rows of a query, in one round trip. A connection that has died while it was idle is replaced once."""
        self._look()
        try:
            return await self._fetch(statement, values)
        except DBAPIError as error:
            if not error.connection_invalidated:
                raise
            return await self._fetch(statement, values)

    async def _fetch(self, statement: Executable, values: Mapping[str, Any] | None) -> list[tuple[Any, ...]]:
        async with self._engine.connect() as connection:
            return [tuple(row) for row in await connection.execute(statement, values)]

    async def write(self, statement: Executable, values: Mapping[str, Any]) -> int:
        """Write one statement, in one round trip; how many rows it touched."""
        self._look()
        if self._writing is None:
            return await self._write(statement, values)
        async with self._writing:
            return await self._write(statement, values)

    async def _write(self, statement: Executable, values: Mapping[str, Any]) -> int:
        async with self._engine.connect() as connection:
            return (await connection.execute(statement, values)).rowcount

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[AsyncConnection]:
        """Several statements, all or none."""
        self._look()
        if self._writing is None:
            async with self._several.begin() as connection:
                yield connection
            return
        async with self._writing, begun(self._engine) as connection:
            yield connection

    def remember_file(self) -> None:
        """From now on this very file is the database."""
        if self.is_sqlite:
            self._file = _identity(self.url)

    def _look(self) -> None:
        """SQLite goes on writing to a file that was deleted, while the next process starts with an empty one."""
        if self._file is not None and _identity(self.url) != self._file:
            raise StoreError(f"The database {self.url.database} was deleted or replaced while it was in use.")

    async def close(self) -> None:
        """Give all connections back."""
        await self._engine.dispose()


def address(url: str) -> URL:
    """The address of a database that can be used here, or `ConfigError`."""
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        # The text itself is not in the message: it may hold a password.
        right = "sqlite+aiosqlite:///rail.db, or postgresql+asyncpg://user:password@host/name"
        raise ConfigError(f"A database is named by an address: {right}.") from error
    parsed = parsed.set(drivername=_DRIVERS.get(parsed.drivername, parsed.drivername))
    if parsed.drivername not in _DRIVERS.values():
        known = " or ".join(sorted(set(_DRIVERS.values())))
        raise ConfigError(f"A store is opened by {known}, not by {parsed.drivername}.")
    if parsed.get_backend_name() == "sqlite":
        return _in_a_file(parsed)
    return parsed


def _in_a_file(url: URL) -> URL:
    if not url.database or ":memory:" in url.database or url.database.startswith("file:"):
        raise ConfigError(
            "A store is a file: sqlite+aiosqlite:///rail.db. "
            "Without a store an executor already keeps everything in memory."
        )
    path = Path(url.database).expanduser().resolve()
    if not path.parent.is_dir():
        raise ConfigError(f"The directory of the database does not exist: {path.parent}")
    return url.set(database=str(path))


def engine(url: URL, *, connecting: float, statement: float | None = None, pool_size: int = 0) -> AsyncEngine:
    """An engine whose statements commit by themselves. It waits so many seconds for a connection (SQLite: for a lock),
    and for a statement; without a pool, each use has a connection of its own."""
    pool: dict[str, Any] = {"poolclass": NullPool}
    if pool_size:
        pool = {"pool_size": pool_size, "max_overflow": 0, "pool_timeout": connecting}
    is_sqlite = url.get_backend_name() == "sqlite"
    made = create_async_engine(
        url,
        isolation_level="AUTOCOMMIT",
        connect_args={"timeout": connecting} | ({} if is_sqlite else {"command_timeout": statement}),
        json_serializer=compact_json,
        hide_parameters=True,  # In an exception they would reach a log.
        **pool,
    )
    if is_sqlite:
        event.listen(made.sync_engine, "connect", _prepare_sqlite)
    return made


def _prepare_sqlite(connection: Any, record: object) -> None:
    cursor = connection.cursor()
    # FULL: a claim survives a power cut, because an effect whose claim is lost could run again.
    for setting in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
        cursor.execute(f"PRAGMA {setting}")
    cursor.close()


@asynccontextmanager
async def begun(of: AsyncEngine) -> AsyncGenerator[AsyncConnection]:
    """A transaction of SQLite that is a writer from its beginning, so that it never fails half-way for a lock."""
    async with of.connect() as connection:
        await connection.exec_driver_sql("BEGIN IMMEDIATE")
        try:
            yield connection
        except BaseException:
            await connection.rollback()
            raise
        await connection.commit()


def storable(text: str) -> str:
    """A text that both databases can hold: neither knows lone surrogates, and Postgres no zero character."""
    return encodable(text).replace("\0", "\N{REPLACEMENT CHARACTER}")


def _identity(url: URL) -> tuple[int, int] | None:
    try:
        found = os.stat(url.database or "")
    except OSError:
        return None
    return found.st_dev, found.st_ino

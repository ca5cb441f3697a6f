"""Connections to SQLite and Postgres: single statements, transactions, and driver errors as `StoreError`."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

from sqlalchemy import URL, Connection, Executable, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool
from sqlalchemy.util import greenlet_spawn

from handrail.core.log import quiet_library
from handrail.core.text import compact_json, encodable
from handrail.errors import ConfigError, StoreError
from handrail.store.sqlite_files import SqliteFiles
from handrail.store.sqlite_plans import SqlitePlans
from handrail.store.sqlite_threads import SqliteConnections, SqliteWriter, prepare_sqlite
from handrail.store.transactions import PostgresTransaction, StoreStep, Values

T = TypeVar("T")

_DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "postgres": "postgresql+asyncpg",
    "postgresql": "postgresql+asyncpg",
}
"""The driver of each URL scheme."""


class Database:
    """`fetch` reads, `write` runs one statement and commits it, `run` runs several in one transaction.

    The first of them opens it, for the event loop in which it runs; `prepare` is what has to be done before any other
    statement. Postgres is reached over a pool of SQLAlchemy, a file of SQLite by threads that own a connection.
    """

    def __init__(
        self, url: str, *, pool_size: int, timeout: float, prepare: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        if pool_size < 1:
            raise ConfigError(f"pool_size must be at least 1, got {pool_size}.")
        if timeout <= 0:
            raise ConfigError(f"timeout must be more than 0 seconds, got {timeout}.")
        self.url = parse_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self._pool_size = pool_size
        self._timeout = timeout
        self._prepare = prepare
        self._loop: asyncio.AbstractEventLoop | None = None
        """Where it is open."""
        self._opening: asyncio.Task[None] | None = None
        self._sqlite: SqliteConnections | None = None
        if self.is_sqlite:
            readers = max(1, pool_size - 1)
            self._sqlite = SqliteConnections(self.url.database or "", readers=readers, timeout=timeout)
        else:
            self._make_engine()

    def _make_engine(self) -> None:
        self._postgres = build_engine(
            self.url, connect_timeout=self._timeout, statement_timeout=self._timeout, pool_size=self._pool_size
        )
        self._transactional = self._postgres.execution_options(isolation_level="READ COMMITTED")
        self.backends: set[int] = set()
        """The ids by which Postgres names the connections of this pool, where it says who has notified."""
        event.listen(self._postgres.sync_engine, "connect", self._add_backend)
        event.listen(self._postgres.sync_engine, "close", self._remove_backend)

    def _add_backend(self, connection: Any, record: Any) -> None:
        record.info["backend"] = backend = connection.driver_connection.get_server_pid()
        self.backends.add(backend)

    def _remove_backend(self, connection: Any, record: Any) -> None:
        self.backends.discard(record.info.get("backend"))

    @property
    def is_open(self) -> bool:
        """Whether it was opened, in an event loop that still exists."""
        return self._loop is not None and not self._loop.is_closed()

    async def open(self) -> None:
        """Open it, if it is not open. Several callers open it once; one that is cancelled does not stop the others."""
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self.is_open:
            raise StoreError("this store is open in another event loop: close it there first, or open one for each.")
        opening = self._opening
        if opening is None or opening.done() or opening.get_loop() is not loop:
            opening = self._opening = loop.create_task(self._open(), name="handrail:open-store")
        elif opening is asyncio.current_task():  # `prepare` reads and writes.
            return
        await asyncio.shield(opening)

    async def _open(self) -> None:
        self._forget_ended_loop()
        try:
            if self._prepare is not None:
                await self._prepare()
        except BaseException:
            await self._dispose()
            raise
        self._loop = asyncio.get_running_loop()

    def _forget_ended_loop(self) -> None:
        """Drop connections that nobody can close any more, because their event loop has ended."""
        if self._loop is not None and self._loop.is_closed():
            if self._sqlite is not None:
                self._sqlite.stop()
            else:
                self._postgres.sync_engine.dispose(close=False)
                self._make_engine()
            self._loop = None

    async def fetch(self, statement: Executable, values: Values | None = None) -> list[tuple[Any, ...]]:
        """Run a query; return its rows. A connection that died while idle is replaced once."""
        if self._loop is not asyncio.get_running_loop():
            await self.open()
        with DriverErrors(self.url, action="read from"):
            if self._sqlite is not None:
                return await self._sqlite.read(lambda reading: reading.fetch(statement, values))
            try:
                return await self._fetch(statement, values)
            except DBAPIError as error:
                if not error.connection_invalidated:
                    raise
                return await self._fetch(statement, values)

    async def _fetch(self, statement: Executable, values: Values | None) -> list[tuple[Any, ...]]:
        return await self._run_alone(lambda connection: [tuple(row) for row in connection.execute(statement, values)])

    async def write(self, statement: Executable, values: Values) -> int:
        """Run and commit one statement; return how many rows it changed."""
        if self._loop is not asyncio.get_running_loop():
            await self.open()
        with DriverErrors(self.url, action="write to"):
            if self._sqlite is not None:
                return await self._sqlite.write(
                    lambda transaction: transaction.execute(statement, values), is_statement=True
                )
            return await self._run_alone(lambda connection: connection.execute(statement, values).rowcount)

    async def change(self, statement: Executable, values: Values) -> list[tuple[Any, ...]]:
        """Run and commit one statement that returns the rows that it changed; return them."""
        if self._sqlite is None:
            return await self.fetch(statement, values)
        if self._loop is not asyncio.get_running_loop():
            await self.open()
        with DriverErrors(self.url, action="write to"):
            return await self._sqlite.write(lambda writing: writing.fetch(statement, values), is_statement=True)

    async def _run_alone(self, run: Callable[[Connection], T]) -> T:
        """Run one statement, which is committed with it, on a connection of the pool.

        In one greenlet: with `AsyncEngine.connect`, which takes four and a task for each statement, a consequential
        call costs 950 µs of CPU instead of 800.
        """

        def run_on_connection() -> T:
            with self._postgres.sync_engine.connect() as connection:
                return run(connection)

        return await greenlet_spawn(run_on_connection)

    async def run(self, step: StoreStep[T]) -> T:
        """Run a step in a transaction of its own; return what it returns."""
        if self._loop is not asyncio.get_running_loop():
            await self.open()
        with DriverErrors(self.url, action="write to"):
            if self._sqlite is not None:
                return await self._sqlite.write(step)
            async with self._transactional.begin() as connection:
                return await connection.run_sync(lambda opened: step(PostgresTransaction(opened)))

    def pin_file(self) -> None:
        """Remember which SQLite file it is, to notice when it is replaced."""
        if self._sqlite is not None:
            self._sqlite.files.pin()

    async def close(self) -> None:
        """Close all connections; the next statement opens new ones."""
        self._forget_ended_loop()
        opening = self._opening
        if opening is not None and not opening.done() and opening.get_loop() is asyncio.get_running_loop():
            opening.cancel()
            await asyncio.wait([opening])
        await self._dispose()

    async def close_idle(self) -> None:
        """Close the connections that nobody uses: those of an event loop that is about to end."""
        if self._sqlite is not None:
            await self._sqlite.close()
        else:
            await self._postgres.dispose()

    async def _dispose(self) -> None:
        self._loop = None
        await self.close_idle()
        if self._sqlite is not None:
            self._sqlite.files.forget()


class LastingConnection:
    """One connection that stays open, for an event loop of its own; if it was lost, it is opened again."""

    def __init__(self, url: URL, *, timeout: float) -> None:
        self._sqlite: SqliteWriter | None = None
        if url.get_backend_name() == "sqlite":
            # A thread finishes what its caller has stopped waiting for, the opening of the connection among it.
            files = SqliteFiles(url.database or "")
            self._sqlite = SqliteWriter(files, SqlitePlans(), timeout=timeout, name="handrail:sqlite-renewals")
        else:
            self._postgres = build_engine(url, connect_timeout=timeout, statement_timeout=timeout, pool_size=1)

    async def execute(self, statement: Executable, values: Mapping[str, Any]) -> None:
        """Run and commit one statement; again on a new connection if the old one was lost."""
        if self._sqlite is not None:
            await self._sqlite.run(lambda transaction: transaction.execute(statement, values))
            return
        try:
            await self._execute(statement, values)
        except DBAPIError as error:
            if not error.connection_invalidated:
                raise
            await self._execute(statement, values)

    async def _execute(self, statement: Executable, values: Mapping[str, Any]) -> None:
        async with self._postgres.connect() as connection:
            await connection.execute(statement, values)

    async def close(self) -> None:
        """Close it."""
        if self._sqlite is not None:
            await self._sqlite.close()
        else:
            await self._postgres.dispose()


class DriverErrors:
    """Raises errors of the driver, inside `with`, as `StoreError`. Constraint violations pass: callers expect them."""

    __slots__ = ("_action", "_url")

    def __init__(self, url: URL, *, action: Literal["open", "read from", "write to"]) -> None:
        self._url = url
        self._action = action

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, IntegrityError) or not _is_driver_error(error):
            return
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        # The error of a statement may quote a value; errors while opening cannot.
        detail = f": {cause}" if self._action == "open" or not isinstance(error, SQLAlchemyError) else ""
        if isinstance(error, DBAPIError) and error.connection_invalidated:
            detail = ": the connection was lost"
        name = self._url.render_as_string(hide_password=True)
        raise StoreError(f"cannot {self._action} the database {name} ({type(cause).__name__}{detail}).") from error


def _is_driver_error(error: Exception) -> bool:
    # asyncpg's own errors reach us while it connects, before SQLAlchemy wraps them.
    return isinstance(error, SQLAlchemyError | OSError) or type(error).__module__.partition(".")[0] == "asyncpg"


def parse_url(url: str) -> URL:
    """Parse the URL of a database; raise `ConfigError` if it is not SQLite in a file or Postgres."""
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        # Without the value: it may contain a password.
        example = "sqlite:///handrail.db or postgresql://user:password@host/name"
        raise ConfigError(f"url must be a database URL, such as {example}.") from error
    parsed = parsed.set(drivername=_DRIVERS.get(parsed.drivername, parsed.drivername))
    if parsed.drivername not in _DRIVERS.values():
        raise ConfigError(f"url must start with sqlite:/// or postgresql://, got {parsed.drivername}.")
    if parsed.get_backend_name() == "sqlite":
        return _resolve_file(parsed)
    return parsed


def _resolve_file(url: URL) -> URL:
    if not url.database or ":memory:" in url.database or url.database.startswith("file:"):
        raise ConfigError(
            "url must name a file, such as sqlite:///handrail.db. "
            "An executor without a store keeps everything in memory."
        )
    path = Path(url.database).expanduser().resolve()
    if not path.parent.is_dir():
        raise ConfigError(f"the directory of the database must exist: {path.parent}")
    return url.set(database=str(path))


def build_engine(
    url: URL, *, connect_timeout: float, statement_timeout: float | None = None, pool_size: int = 0
) -> AsyncEngine:
    """Build an engine in autocommit mode; without a `pool_size`, every use opens a connection.

    For SQLite, `connect_timeout` is the time to wait for a lock.
    """
    quiet_library("aiosqlite")  # At DEBUG it logs every statement with its values.
    pool: dict[str, Any] = {"poolclass": NullPool}
    if pool_size:
        pool = {"pool_size": pool_size, "max_overflow": 0, "pool_timeout": connect_timeout}
    is_sqlite = url.get_backend_name() == "sqlite"
    engine = create_async_engine(
        url,
        isolation_level="AUTOCOMMIT",
        connect_args={"timeout": connect_timeout} | ({} if is_sqlite else {"command_timeout": statement_timeout}),
        json_serializer=compact_json,
        hide_parameters=True,  # An exception may be logged.
        **pool,
    )
    if is_sqlite:
        event.listen(engine.sync_engine, "connect", prepare_sqlite)
    return engine


@asynccontextmanager
async def begin_immediate(engine: AsyncEngine) -> AsyncGenerator[AsyncConnection]:
    """Begin an SQLite transaction that holds the write lock from its start, so that it cannot fail half-way."""
    async with engine.connect() as connection:
        await connection.exec_driver_sql("BEGIN IMMEDIATE")
        try:
            yield connection
        except BaseException:
            await connection.rollback()
            raise
        await connection.commit()


def to_storable(text: str) -> str:
    """Replace what the databases cannot store: lone surrogates, and, in Postgres, the zero character."""
    return encodable(text).replace("\0", "\N{REPLACEMENT CHARACTER}")

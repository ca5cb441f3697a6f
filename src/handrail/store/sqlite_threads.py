"""Threads that own a connection to SQLite: what the event loop asks for at the same time is done in one go."""

import asyncio
import os
import sqlite3
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final, TypeVar

from sqlalchemy import Executable
from sqlalchemy.exc import DBAPIError

from handrail.errors import StoreError
from handrail.store.sqlite_files import SqliteFiles
from handrail.store.sqlite_plans import SqlitePlans
from handrail.store.transactions import StoreStep, Values

T = TypeVar("T")

_MAX_GROUP: Final = 500
"""Steps of one commit: the first of them is reported when the last one is on the disk."""
_STATEMENTS: Final = 256
"""Prepared statements that a connection keeps."""


class SqliteTransaction:
    """Runs statements on a connection of `sqlite3`."""

    __slots__ = ("_connection", "_plans")

    def __init__(self, connection: sqlite3.Connection, plans: SqlitePlans) -> None:
        self._connection = connection
        self._plans = plans

    def execute(self, statement: Executable, values: Values | None = None) -> int:
        """Run a statement; return how many rows it changed."""
        plan = self._plans.get(statement, values or {})
        return self._run(plan.sql, plan.bind(values or {})).rowcount

    def execute_many(self, statement: Executable, rows: Sequence[Values]) -> None:
        """Run a statement for each of several rows of values."""
        plan = self._plans.get(statement, rows[0])
        self._run_many(plan.sql, [plan.bind(row) for row in rows])

    def fetch(self, statement: Executable, values: Values | None = None) -> list[tuple[Any, ...]]:
        """Run a query, or a statement that returns what it changed; return its rows."""
        plan = self._plans.get(statement, values or {})
        cursor = self._run(plan.sql, plan.bind(values or {}))
        try:  # What changes rows by itself is committed with the last of them.
            return plan.read(cursor.fetchall())
        except sqlite3.Error as error:
            raise _wrap(error, plan.sql) from error

    def _run(self, sql: str, values: Values) -> sqlite3.Cursor:
        try:
            return self._connection.execute(sql, values)
        except sqlite3.Error as error:
            raise _wrap(error, sql) from error

    def _run_many(self, sql: str, rows: Sequence[Values]) -> None:
        try:
            self._connection.executemany(sql, rows)
        except sqlite3.Error as error:
            raise _wrap(error, sql) from error


def _wrap(error: sqlite3.Error, sql: str) -> BaseException:
    """The error as SQLAlchemy's, which callers know from both databases. It shows no value."""
    return DBAPIError.instance(sql, None, error, sqlite3.Error, hide_parameters=True)


class _Job:
    """A step that somebody waits for, and what became of it."""

    __slots__ = ("_taken", "answers", "ends", "error", "future", "is_statement", "result", "step")

    def __init__(
        self,
        step: StoreStep[Any],
        future: asyncio.Future[Any],
        answers: "_Answers",
        ends: float,
        *,
        is_statement: bool,
    ) -> None:
        self.step = step
        self.answers = answers
        self.is_statement = is_statement
        """Whether it is one statement, which SQLite itself commits, or undoes if it fails."""
        self.future = future
        self.ends = ends
        """When it is too late to begin it, by the clock of the event loop."""
        self.result: Any = None
        self.error: BaseException | None = None
        self._taken = threading.Lock()

    def take(self) -> bool:
        """Take it to run it, or so that it is not run any more; True for the first who does."""
        return self._taken.acquire(blocking=False)


class _Answers:
    """Hands to an event loop what a thread has done.

    Over an eventfd, where there is one: `call_soon_threadsafe` writes to a socket, with which a call that is stored in
    SQLite takes 12 µs of CPU more, of 230 (Python 3.12). It is closed when nobody can write to it any more: steps and
    the event loop hold it.
    """

    __slots__ = ("_eventfd", "_given", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._given: deque[Sequence[_Job]] = deque()
        self._eventfd: int | None = None
        if hasattr(os, "eventfd"):
            self._eventfd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            try:
                loop.add_reader(self._eventfd, self._read, self._eventfd)
            except NotImplementedError:  # An event loop of another kind.
                os.close(self._eventfd)
                self._eventfd = None

    def __del__(self) -> None:
        if self._eventfd is not None:
            os.close(self._eventfd)

    def give(self, jobs: Sequence[_Job]) -> None:
        """Say in the thread that steps are done."""
        if self._eventfd is not None:
            self._given.append(jobs)
            os.eventfd_write(self._eventfd, 1)
            return
        with suppress(RuntimeError):  # The event loop has ended: nobody waits.
            self.loop.call_soon_threadsafe(_resolve, jobs)

    def _read(self, eventfd: int) -> None:
        os.eventfd_read(eventfd)
        while self._given:
            _resolve(self._given.popleft())

    def end(self) -> None:
        """The thread has ended: nothing more is given."""
        if self._eventfd is not None and not self.loop.is_closed():
            self.loop.remove_reader(self._eventfd)
            while self._given:
                _resolve(self._given.popleft())


class SqliteThread:
    """One connection and the thread that owns it. It starts with the first step, and `close` ends it.

    Steps that are given in one pass of the event loop are done in one go.
    """

    def __init__(self, files: SqliteFiles, plans: SqlitePlans, *, timeout: float, name: str) -> None:
        self._files = files
        self._plans = plans
        self._timeout = timeout
        self._name = name
        self._arriving: list[_Job] = []
        """Steps of this pass of the event loop."""
        self._queue: SimpleQueue[list[_Job] | None] | None = None
        """What the thread has to do, None at last; None before it is started."""
        self._thread: threading.Thread | None = None
        self._answers: _Answers | None = None
        self._waiting: dict[_Job, None] = {}
        """Steps that are not done, the oldest first."""
        self._timer: asyncio.TimerHandle | None = None
        """One for all steps: it is set again when it fires, and not for each of them."""

    @property
    def waiting(self) -> int:
        """How many steps are not done."""
        return len(self._waiting)

    async def run(self, step: StoreStep[T], *, is_statement: bool = False) -> T:
        """Run a step in the thread, which may be a single statement. Who stops waiting before it has begun takes it
        back."""
        loop = asyncio.get_running_loop()
        answers = self._answers
        if answers is None or answers.loop is not loop:
            answers = self._answers = _Answers(loop)
        job = _Job(step, loop.create_future(), answers, loop.time() + self._timeout, is_statement=is_statement)
        self._waiting[job] = None
        if self._timer is None:
            self._timer = loop.call_at(job.ends, self._expire, loop)
        if not self._arriving:
            loop.call_soon(self._send)
        self._arriving.append(job)
        try:
            return await job.future
        except asyncio.CancelledError:
            job.take()
            raise
        finally:
            del self._waiting[job]

    def _send(self) -> None:
        jobs, self._arriving = self._arriving, []
        if not jobs:
            return
        if self._queue is None:
            self._queue = SimpleQueue()
            self._thread = threading.Thread(target=self._serve, args=(self._queue,), name=self._name, daemon=True)
            self._thread.start()
        self._queue.put(jobs)

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time()
        for job in self._waiting:
            if job.ends > now:
                self._timer = loop.call_at(job.ends, self._expire, loop)
                break
            if job.take() and not job.future.done():
                busy = f"other statements of this process kept it busy for {self._timeout:g} seconds"
                job.future.set_exception(StoreError(f"cannot use the database {self._files.path}: {busy}."))

    @property
    def is_gathering(self) -> bool:
        """Whether it has steps of this pass of the event loop: one more is done in the same go."""
        return bool(self._arriving)

    async def close(self) -> None:
        """End the thread when it has done what it was given, and close its connection."""
        self._send()
        answers = self._answers
        if (thread := self.stop()) is not None:
            await asyncio.to_thread(thread.join)
        if answers is not None:
            answers.end()

    def stop(self) -> threading.Thread | None:
        """Let the thread end when it has done what it was given; the next step starts another."""
        queue, thread = self._queue, self._thread
        self._arriving, self._queue, self._thread, self._answers = [], None, None, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if queue is not None:
            queue.put(None)
        return thread

    # In the thread.

    def _serve(self, queue: "SimpleQueue[list[_Job] | None]") -> None:
        connection: sqlite3.Connection | None = None
        jobs: list[_Job] | None = []
        while jobs is not None:
            jobs = queue.get()
            group = [job for job in jobs or () if job.take()]
            while jobs is not None and len(group) < _MAX_GROUP and not queue.empty():
                jobs = queue.get()
                group += [job for job in jobs or () if job.take()]
            if not group:
                continue
            try:
                if connection is None:
                    connection = self._connect()
                    self._files.add(connection)
                self._files.require_same()
                self._run_group(connection, group)
            except Exception as error:  # noqa: BLE001  # whoever waits raises it
                for job in group:
                    job.error = error
            _deliver(group)
        if connection is not None:
            connection.close()
            self._files.remove(connection)

    def _connect(self) -> sqlite3.Connection:
        try:
            return connect_sqlite(self._files.path, timeout=self._timeout)
        except sqlite3.Error as error:
            raise _wrap(error, "") from error

    def _run_group(self, connection: sqlite3.Connection, group: Sequence[_Job]) -> None:
        transaction = SqliteTransaction(connection, self._plans)
        for job in group:
            try:
                job.result = job.step(transaction)
            except Exception as error:  # noqa: BLE001
                job.error = error


class SqliteReader(SqliteThread):
    """Reads. It cannot write."""

    def _connect(self) -> sqlite3.Connection:
        connection = super()._connect()
        connection.execute("PRAGMA query_only = ON")
        return connection


class SqliteWriter(SqliteThread):
    """Writes: the only connection of this process that does, but for those that renew leases.

    Steps that are given together share a commit. One that fails is undone alone; if their commit fails, each is tried
    alone. Nobody hears of a step before it is committed.
    """

    def _run_group(self, connection: sqlite3.Connection, group: Sequence[_Job]) -> None:
        transaction = SqliteTransaction(connection, self._plans)
        if len(group) > 1:
            if _run_together(connection, transaction, group):
                return
        elif group[0].is_statement:  # A transaction of its own is begun and committed with it.
            _run_statement(transaction, group[0])
            return
        for position, job in enumerate(group):
            try:
                _command(connection, _BEGIN)
            except DBAPIError as error:  # Another process has the lock: the others would wait as long for it.
                for other in group[position:]:
                    other.error = error
                return
            _run_alone(connection, transaction, job)


_BEGIN: Final = "BEGIN IMMEDIATE"
"""Holds the write lock from the start, so that a transaction cannot fail half-way."""


def _run_together(connection: sqlite3.Connection, transaction: SqliteTransaction, group: Sequence[_Job]) -> bool:
    """Run steps in one transaction; False if it was undone as a whole."""
    _command(connection, _BEGIN)
    try:
        for job in group:
            if job.is_statement:
                _run_statement(transaction, job)
            else:
                _run_in_savepoint(connection, transaction, job)
            if not connection.in_transaction:  # A full disk undoes everything.
                return False
        _command(connection, "COMMIT")
    except DBAPIError:
        return False
    finally:
        _undo(connection)
    return True


def _run_statement(transaction: SqliteTransaction, job: _Job) -> None:
    """Run a step that is one statement: if it fails, nothing of it is left."""
    try:
        job.result, job.error = job.step(transaction), None
    except Exception as error:  # noqa: BLE001
        job.error = error


def _run_in_savepoint(connection: sqlite3.Connection, transaction: SqliteTransaction, job: _Job) -> None:
    """Run a step inside a transaction, and undo it alone if it fails."""
    _command(connection, "SAVEPOINT step")
    try:
        job.result, job.error = job.step(transaction), None
    except Exception as error:  # noqa: BLE001
        if not connection.in_transaction:
            return
        job.error = error
        _command(connection, "ROLLBACK TO step")
    _command(connection, "RELEASE step")


def _run_alone(connection: sqlite3.Connection, transaction: SqliteTransaction, job: _Job) -> None:
    try:
        job.result, job.error = job.step(transaction), None
        _command(connection, "COMMIT")
    except Exception as error:  # noqa: BLE001
        job.error = error
    finally:
        _undo(connection)


def connect_sqlite(path: str, *, timeout: float) -> sqlite3.Connection:
    """Connect to a file; `timeout` is the time to wait for the lock of another process."""
    connection = sqlite3.connect(path, timeout=timeout, isolation_level=None, cached_statements=_STATEMENTS)
    try:
        prepare_sqlite(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def prepare_sqlite(connection: Any, record: object = None) -> None:
    """Set what every connection needs."""
    cursor = connection.cursor()
    # FULL: a claim must survive a power failure, or its call could run twice.
    # secure_delete: what is erased is overwritten, and does not stay in the file.
    for setting in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON", "secure_delete = ON"):
        cursor.execute(f"PRAGMA {setting}")
    cursor.close()


def _command(connection: sqlite3.Connection, sql: str) -> None:
    try:
        connection.execute(sql)
    except sqlite3.Error as error:
        raise _wrap(error, sql) from error


def _undo(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        connection.rollback()


def _deliver(group: Sequence[_Job]) -> None:
    given: dict[_Answers, list[_Job]] = {}
    for job in group:
        given.setdefault(job.answers, []).append(job)
    for answers, jobs in given.items():
        answers.give(jobs)


def _resolve(jobs: Sequence[_Job]) -> None:
    for job in jobs:
        if job.future.done():  # Its caller was cancelled.
            continue
        if job.error is None:
            job.future.set_result(job.result)
        else:
            job.future.set_exception(job.error)


class SqliteConnections:
    """The connections of this process to a file: one that writes, and some that read."""

    def __init__(self, path: str, *, readers: int, timeout: float) -> None:
        self.files = SqliteFiles(path)
        self._plans = SqlitePlans()
        self._timeout = timeout
        self._max_readers = readers
        self._readers: list[SqliteReader] = []
        self._writer = SqliteWriter(self.files, self._plans, timeout=timeout, name="handrail:sqlite-writer")

    async def write(self, step: StoreStep[T], *, is_statement: bool = False) -> T:
        """Run a step in a transaction that is committed when this returns; `is_statement` if it is a single one."""
        return await self._writer.run(step, is_statement=is_statement)

    async def read(self, step: StoreStep[T]) -> T:
        """Run a step that reads."""
        return await self._choose_reader().run(step)

    def _choose_reader(self) -> SqliteReader:
        for reader in self._readers:
            if reader.is_gathering or not reader.waiting:
                return reader
        if len(self._readers) >= self._max_readers:
            return min(self._readers, key=lambda thread: thread.waiting)
        name = f"handrail:sqlite-reader-{len(self._readers)}"
        reader = SqliteReader(self.files, self._plans, timeout=self._timeout, name=name)
        self._readers.append(reader)
        return reader

    async def close(self) -> None:
        """Close all connections when what they were given is done; the next step opens new ones."""
        for thread in (self._writer, *self._readers):
            await thread.close()

    def stop(self) -> None:
        """Close them without waiting: the event loop that used them has ended."""
        for thread in (self._writer, *self._readers):
            thread.stop()

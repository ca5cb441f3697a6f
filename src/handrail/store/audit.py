"""The audit in SQL: a listener that never waits, and behind it a writer that does."""

import asyncio
import itertools
import secrets
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, StatementError

from handrail.core.events import Event
from handrail.core.log import log
from handrail.errors import ConfigError
from handrail.store.database import Database
from handrail.store.facts import Fact, Facts, kind_of
from handrail.store.tables import audit as table

DROPPED = "events_dropped"
"""The kind of a row that stands for events that are missing before it; its detail has their count."""
_PAUSES = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds between two tries to reach a database that is away; the last one again and again."""


class Audit:
    """Everything that happened, one row for each event, in a table that only grows.

    It is a listener: `Executor(…, listeners=[store.audit])`. While the database is away rows wait in memory, up to a
    bound; what has to be dropped is counted, logged, and noted in the audit itself.
    """

    def __init__(self, database: Database, *, facts: Facts, batch: int, seconds: float, waiting: int) -> None:
        if batch < 1 or seconds < 0 or waiting < batch:
            raise ConfigError("The audit writes batches of at least 1 row, and holds at least one batch.")
        self._database = database
        self._facts = facts
        self._batch = batch
        self._seconds = seconds
        self._most = waiting
        self._insert = (sqlite if database.is_sqlite else postgresql).insert(table).on_conflict_do_nothing()
        self._writer = secrets.token_hex(8)
        self._numbers = itertools.count()
        self._queue: deque[dict[str, Any]] = deque()
        self._adding = threading.Lock()  # Handlers tell their progress from worker threads.
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._arrived = asyncio.Event()
        self._hurry = asyncio.Event()
        self._moved = asyncio.Condition()
        self._accepted = self._done = self._wanted = self._untold = 0
        self._closed = False
        self._task = asyncio.create_task(self._write_on(), name="handrail:audit")
        self.written = 0
        """Rows that are in the database."""
        self.dropped = 0
        """Events that have no row, because the database was away for too long or refused it."""

    @property
    def waiting(self) -> int:
        """Rows that are not in the database yet."""
        return self._accepted - self._done

    def __call__(self, event: Event) -> None:
        """Take note of an event. It is in the database a moment later; `flush` waits for that."""
        row = self._facts.of(event)
        with self._adding:
            row |= {"writer": self._writer, "number": next(self._numbers)}
            if self._closed or self.waiting >= self._most:
                self._drop(1)
                return
            self._queue.append(row)
            self._accepted += 1
        if threading.get_ident() == self._thread:
            self._wake()
        else:
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._arrived.set()
        if len(self._queue) >= self._batch:
            self._hurry.set()

    def _drop(self, count: int) -> None:
        if not self._untold:
            log.error("the audit drops events: %d rows wait for the database", self.waiting)
        self.dropped += count
        self._untold += count

    async def flush(self, *, timeout: float | None = None) -> None:
        """Wait until everything that was noted so far is in the database; `TimeoutError` if that takes too long."""
        noted = self._wanted = self._accepted
        self._hurry.set()
        async with asyncio.timeout(timeout), self._moved:
            await self._moved.wait_for(lambda: self._done >= noted)

    async def close(self, *, timeout: float) -> None:
        """Write what is left, within a bound."""
        try:
            await self.flush(timeout=timeout)
        except TimeoutError:
            log.error("the audit is closed, and %d rows could not be written", self.waiting)
        with self._adding:
            self._closed = True
            self.dropped += self.waiting
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def query(
        self,
        *,
        session_id: str | None = None,
        tenant_id: str | None = None,
        call_id: str | None = None,
        tool: str | None = None,
        kind: str | type[Event] | None = None,
        ok: bool | None = None,
        since: float | None = None,
        until: float | None = None,
        limit: int = 100,
    ) -> list[Fact]:
        """The newest rows that fit, at most `limit`, in the order of their time."""
        equal = {
            "session_id": session_id,
            "tenant_id": tenant_id,
            "call_id": call_id,
            "tool": tool,
            "kind": kind_of(kind) if isinstance(kind, type) else kind,
            "ok": ok,
        }
        found = select(table).where(*(table.c[name] == value for name, value in equal.items() if value is not None))
        if since is not None:
            found = found.where(table.c.at >= since)
        if until is not None:
            found = found.where(table.c.at < until)
        newest = found.order_by(table.c.at.desc(), table.c.writer, table.c.number.desc()).limit(limit)
        return [_fact(row) for row in reversed(await self._database.fetch(newest))]

    # The writer.

    async def _write_on(self) -> None:
        while True:
            await self._arrived.wait()
            try:
                async with asyncio.timeout(self._seconds):
                    await self._hurry.wait()
            except TimeoutError:
                pass
            rows = self._take()
            if rows:
                await self._write(rows)
            async with self._moved:
                self._moved.notify_all()

    def _take(self) -> list[dict[str, Any]]:
        with self._adding:
            rows = [self._queue.popleft() for _ in range(min(self._batch, len(self._queue)))]
            if len(self._queue) < self._batch and self._done + len(rows) >= self._wanted:
                self._hurry.clear()
            if not self._queue:
                self._arrived.clear()
            if rows and self._untold:
                rows.append(self._gap())
        return rows

    def _gap(self) -> dict[str, Any]:
        row = self._facts.of(Event(at=time.time(), session_id=""))
        row |= {"kind": DROPPED, "detail": {"count": self._untold}}
        row |= {"writer": self._writer, "number": next(self._numbers)}
        self._accepted += 1
        self._untold = 0
        return row

    async def _write(self, rows: Sequence[dict[str, Any]]) -> None:
        """Write a batch, however long the database is away; a batch that it refuses is written row by row."""
        for pause in itertools.chain(_PAUSES, itertools.repeat(_PAUSES[-1])):
            try:
                async with self._database.transaction() as connection:
                    await connection.execute(self._insert, rows)
            except Exception as error:
                if _refused(error):
                    await self._write_apart(rows, error)
                    return
                if pause == _PAUSES[0]:
                    log.exception("the audit cannot be written; it will be tried again")
            else:
                self.written += len(rows)
                self._done += len(rows)
                return
            await asyncio.sleep(pause)

    async def _write_apart(self, rows: Sequence[dict[str, Any]], error: Exception) -> None:
        if len(rows) > 1:
            for row in rows:
                await self._write([row])
            return
        log.error("the audit cannot hold an event of kind %s", rows[0]["kind"], exc_info=error)
        with self._adding:
            self._done += 1
            self._drop(1)


def _refused(error: Exception) -> bool:
    """Whether the database was there, and would not have these rows."""
    if isinstance(error, DataError | IntegrityError):
        return True
    if not isinstance(error, DBAPIError):
        return isinstance(error, StatementError | ValueError | OverflowError)
    # Postgres: "data exception", and "program limit exceeded".
    return str(getattr(error.orig, "sqlstate", None) or "")[:2] in ("22", "54")


def _fact(row: tuple[Any, ...]) -> Fact:
    values = dict(zip(table.columns.keys(), row, strict=True))
    values["guideline_ids"] = tuple(values["guideline_ids"] or ())
    values["argument_keys"] = None if values["argument_keys"] is None else tuple(values["argument_keys"])
    values["detail"] = values["detail"] or {}
    return Fact(**values)

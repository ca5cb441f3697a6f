"""The audit in SQL: a listener that queues rows, and a task that writes them."""

import asyncio
import itertools
import secrets
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, Self

from sqlalchemy import literal, literal_column, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, StatementError

from handrail.authorize.approvals import check_limit
from handrail.core.events import ApprovalDecided, ApprovalRequested, ApprovalUsed, CallStarted, Event
from handrail.core.log import log
from handrail.errors import ConfigError, StoreError
from handrail.store.audit_rows import AuditRow, AuditRowBuilder, SparseRow, fill_row, find_kind
from handrail.store.database import Database, to_storable
from handrail.store.erasure import ERASED
from handrail.store.tables import audit as table
from handrail.store.transactions import Transaction

DROPPED = "events_dropped"
"""The kind of a row that replaces missing events; its detail has their count."""
NOT_BEGUN = "claim_failed"
"""The kind of a row that replaces that of a call whose claim failed: it is in the place of the one that would say that
the call was started, unless that one was written."""
PURGED = "audit_purged"
"""The kind of a row that says that older rows were deleted; its detail has their count."""
_PAUSES = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds between attempts to reach the database; the last one repeats."""
_LAST_TIMEOUT = 5.0
"""Seconds to write the rows that wait when the event loop ends before the store was closed."""
_MAX_KNOWN = 10_000
"""Events that a claim wrote and that are not emitted yet; they are emitted right after it."""


_APPROVAL_EVENTS = (ApprovalRequested, ApprovalDecided, ApprovalUsed)


class ReservedRows:
    """Numbered rows of the audit that another transaction writes, and whether it did: see `Audit.reserve`.

    As a generator it would take 4.7 µs of a claim that has no rows, in place of 0.6.
    """

    __slots__ = ("_audit", "events", "is_written", "rows")

    def __init__(self, audit: "Audit", events: Sequence[Event]) -> None:
        self._audit = audit
        self.events = events
        self.rows: list[dict[str, Any]] = []
        self.is_written = False

    async def __aenter__(self) -> Self:
        if self.events:
            self.rows = await self._audit.number_rows(self.events)
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if not self.events:
            return
        if error is not None:
            self._audit.note_doubt(self)
        elif self.is_written:
            self._audit.note_written(self)
        else:
            self._audit.free_numbers(self)


class Audit:
    """A listener that writes one row for each event to an append-only table; `Executor(…, store=store)` adds it.

    While the database is unreachable, rows wait in memory, up to a limit. Dropped events are counted, logged, and noted
    in the audit itself.
    """

    def __init__(
        self, database: Database, *, row_builder: AuditRowBuilder, batch_size: int, interval: float, max_waiting: int
    ) -> None:
        if batch_size < 1:
            raise ConfigError(f"audit_batch_size must be at least 1, got {batch_size}.")
        if interval < 0:
            raise ConfigError(f"audit_interval must be at least 0 seconds, got {interval}.")
        if max_waiting < batch_size:
            raise ConfigError(f"audit_max_waiting must be at least audit_batch_size, {batch_size}, got {max_waiting}.")
        self._database = database
        self._row_builder = row_builder
        self._batch_size = batch_size
        self._interval = interval
        self._max_waiting = max_waiting
        self._insert = (sqlite if database.is_sqlite else postgresql).insert(table).on_conflict_do_nothing()
        self._writer = secrets.token_hex(8)
        self._numbers = itertools.count()
        self._free_numbers: list[int] = []
        """Numbers of rows that were not written after all: the next rows have them, so that there are no gaps."""
        self._queue: deque[SparseRow] = deque()
        self._lock = threading.Lock()  # Handlers emit progress from worker threads.
        self._loop: asyncio.AbstractEventLoop | None = None
        """Where the writer runs; None before the store is opened, while rows wait."""
        self._thread = 0
        self._has_rows = asyncio.Event()
        self._flush_now = asyncio.Event()
        self._progressed = asyncio.Condition()
        self._accepted = self._done = self._flush_target = self._unreported = 0
        self._approval_events: deque[Event] = deque(maxlen=100)
        self._claimed_events: dict[int, Event] = {}
        """What claims wrote, by `id`, until it is emitted."""
        self._closed = False
        self._task: asyncio.Task[None] | None = None
        self.written = 0
        """Rows that are in the database."""
        self.dropped = 0
        """Events without a row, because the database was unreachable for too long or refused them."""

    def start(self) -> None:
        """Start to write, in the running event loop: when the store is opened."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        # Those of an earlier event loop cannot be used again.
        self._has_rows, self._flush_now, self._progressed = asyncio.Event(), asyncio.Event(), asyncio.Condition()
        with self._lock:
            self._closed = False
            if self._queue:
                self._wake()
        self._task = self._loop.create_task(self._run_writer(), name="handrail:audit")

    @property
    def waiting(self) -> int:
        """Rows that are not in the database yet."""
        return self._accepted - self._done

    def record_approval(self, event: Event) -> None:
        """Queue an event of the store's own approvals; an executor that listens may pass it on again."""
        if not self._is_known_approval(event):
            self._approval_events.append(event)
            self._add(event)

    def __call__(self, event: Event) -> None:
        """Queue an event. `flush` waits until it is in the database."""
        if self._claimed_events and self._claimed_events.pop(id(event), None) is not None:
            return
        if not self._is_known_approval(event):
            self._add(event)

    def _is_known_approval(self, event: Event) -> bool:
        return isinstance(event, _APPROVAL_EVENTS) and any(event is known for known in self._approval_events)

    def reserve(self, *events: Event | None) -> "ReservedRows":
        """Number the rows of events that another transaction writes, inside an `async with` block whose value they are;
        it sets `is_written` when it has.

        The events are not written again when they are emitted. If it was not written, its numbers are given to others;
        if it failed, and nobody knows whether it was written, a row that says so is sent after it.
        """
        return ReservedRows(self, [event for event in events if event is not None])

    async def number_rows(self, events: Sequence[Event]) -> list[dict[str, Any]]:
        """The rows of events that another transaction writes."""
        rows = [fill_row(self._row_builder.build(event)) for event in events]
        await self._row_builder.redact_long_values(rows)
        with self._lock:
            for row in rows:
                row["writer"], row["number"] = self._writer, self._find_number()
        return rows

    def note_written(self, reserved: "ReservedRows") -> None:
        """Another transaction has written rows: their events are not written again."""
        self.written += len(reserved.rows)
        for event in reserved.events:
            if not isinstance(event, CallStarted):
                self._approval_events.append(event)
            elif len(self._claimed_events) < _MAX_KNOWN:
                self._claimed_events[id(event)] = event

    def free_numbers(self, reserved: "ReservedRows") -> None:
        """Rows were not written: others have their numbers."""
        with self._lock:
            self._free_numbers.extend(row["number"] for row in reserved.rows)

    def note_doubt(self, reserved: "ReservedRows") -> None:
        """Nobody knows whether rows were written: send others that say so."""
        for row in reserved.rows:
            kept = {name: row[name] for name in ("at", "session_id", "tenant_id", "customer_id", "call_id", "tool")}
            self._add_row((self._build_own_row(NOT_BEGUN, {}) | kept,), number=row["number"])

    def _find_number(self) -> int:
        return self._free_numbers.pop() if self._free_numbers else next(self._numbers)

    def record_purge(self, *, before: float, count: int, tenant_id: str | None = None) -> None:
        """Queue a row that says that rows older than `before` were deleted, of every tenant or of one."""
        row = self._build_own_row(PURGED, {"before": before, "count": count})
        self._add_row((row | {"tenant_id": tenant_id},))

    def record_erasure(self, *, tenant_id: str | None, who: str, detail: dict[str, Any]) -> None:
        """Queue a row that says that the values of a customer were erased, and by whom."""
        row = self._build_own_row(ERASED, {"who": to_storable(who), **detail})
        self._add_row((row | {"tenant_id": tenant_id},))

    def _add(self, event: Event) -> None:
        self._add_row(self._row_builder.build(event))

    def _add_row(self, parts: tuple[Mapping[str, Any], ...], *, number: int | None = None) -> None:
        with self._lock:
            row = SparseRow(self._writer, self._find_number() if number is None else number, parts)
            if self._closed or self._accepted - self._done >= self._max_waiting:
                self._drop(1)
                return
            self._queue.append(row)
            self._accepted += 1
        if self._loop is None or self._loop.is_closed():
            return
        if threading.get_ident() == self._thread:
            self._wake()
        else:
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if not self._has_rows.is_set():
            self._has_rows.set()
        if len(self._queue) >= self._batch_size:
            self._flush_now.set()

    def _drop(self, count: int) -> None:
        if not self._unreported:
            log.error("the audit drops events: %d rows wait for the database", self.waiting)
        self.dropped += count
        self._unreported += count

    async def flush(self, *, timeout: float | None = None) -> None:
        """Wait until all events so far are in the database; raise `TimeoutError` after `timeout` seconds."""
        target = self._flush_target = self._accepted
        async with asyncio.timeout(timeout):
            await self._database.open()
            self._flush_now.set()
            async with self._progressed:
                await self._progressed.wait_for(lambda: self._done >= target)

    async def close(self, *, timeout: float) -> None:
        """Write the remaining rows, within `timeout` seconds."""
        try:
            await self.flush(timeout=timeout)
        except TimeoutError:
            log.error("the audit was closed with %d rows not written", self.waiting)
        with self._lock:
            self._closed = True
            self.dropped += self.waiting
            self._queue.clear()
            self._done = self._accepted
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def query(
        self,
        *,
        session_id: str | None = None,
        tenant_id: str | None = None,
        customer_id: str | None = None,
        call_id: str | None = None,
        tool: str | None = None,
        outcome: str | None = None,
        kind: str | type[Event] | None = None,
        ok: bool | None = None,
        since: float | None = None,
        until: float | None = None,
        limit: int = 100,
        before: AuditRow | None = None,
    ) -> list[AuditRow]:
        """Return the newest matching rows, at most `limit`, oldest first.

        `outcome` is `ok` or an error code. `before` is the first row of a page: the page of older ones is returned.
        """
        equal = {  # The first that is given finds the fewest rows, as a rule.
            "call_id": call_id,
            "session_id": session_id,
            "customer_id": customer_id,
            "tenant_id": tenant_id,
            "error": None if outcome == "ok" else outcome,
            "tool": tool,
            "kind": find_kind(kind) if isinstance(kind, type) else kind,
        }
        query = select(table)
        for number, (name, value) in enumerate((name, value) for name, value in equal.items() if value is not None):
            # SQLite does not know that few rows are of one tenant and many of one kind: it may search the index of one
            # column only. Postgres counts them.
            is_searched = number == 0 or not self._database.is_sqlite
            query = query.where((table.c[name] if is_searched else _NOT_SEARCHED[name]) == literal(value))
        for wanted in {ok, True if outcome == "ok" else None} - {None}:
            query = query.where(table.c.ok.is_(wanted))  # A constant, no parameter: each has an index of its own.
        if since is not None:
            query = query.where(table.c.at >= since)
        if until is not None:
            query = query.where(table.c.at < until)
        if before is not None:
            position = tuple_(table.c.at, table.c.writer, table.c.number)
            query = query.where(position < tuple_(literal(before.at), literal(before.writer), literal(before.number)))
        newest = query.order_by(table.c.at.desc(), table.c.writer.desc(), table.c.number.desc())
        return [_build_row(row) for row in reversed(await self._database.fetch(newest.limit(check_limit(limit))))]

    # The writer.

    async def _run_writer(self) -> None:
        rows: list[dict[str, Any]] = []
        try:
            while True:
                await self._has_rows.wait()
                try:
                    async with asyncio.timeout(self._interval):
                        await self._flush_now.wait()
                except TimeoutError:
                    pass
                rows = self._pop_batch()
                if rows:
                    await self._write(rows)
                    rows = []
                async with self._progressed:
                    self._progressed.notify_all()
        except asyncio.CancelledError:
            if not self._closed:
                await self._write_last(rows)
                await self._database.close_idle()
            raise

    async def _write_last(self, rows: list[dict[str, Any]]) -> None:
        """Write what waits before the event loop ends: `asyncio.run` cancels its tasks if nobody closed the store."""
        with self._lock:
            rows = [*rows, *(row.fill() for row in self._queue)]  # A row that was written already is not written again.
            self._queue.clear()
        if not rows:
            return
        try:
            await self._row_builder.redact_long_values(rows)
            async with asyncio.timeout(_LAST_TIMEOUT):
                await self._database.run(partial(self._insert_rows, rows=rows))
        except Exception:
            log.exception(
                "the event loop ended with %d rows of the audit not written; close the store first", len(rows)
            )
            self.dropped += len(rows)
        else:
            self.written += len(rows)
        self._done = self._accepted

    def _pop_batch(self) -> list[dict[str, Any]]:
        with self._lock:
            rows = [self._queue.popleft().fill() for _ in range(min(self._batch_size, len(self._queue)))]
            if len(self._queue) < self._batch_size and self._done + len(rows) >= self._flush_target:
                self._flush_now.clear()
            if not self._queue:
                self._has_rows.clear()
            if rows and self._unreported:
                rows.append(self._build_dropped_row())
        return rows

    def _build_dropped_row(self) -> dict[str, Any]:
        row = self._build_own_row(DROPPED, {"count": self._unreported})
        row["writer"], row["number"] = self._writer, self._find_number()
        self._accepted += 1
        self._unreported = 0
        return row

    def _build_own_row(self, kind: str, detail: dict[str, Any]) -> dict[str, Any]:
        return fill_row(self._row_builder.build(Event(at=time.time(), session_id=""))) | {
            "kind": kind,
            "detail": detail,
        }

    async def _write(self, rows: Sequence[dict[str, Any]]) -> None:
        """Write a batch, and retry while the database is unreachable; write row by row if it refuses the batch."""
        await self._row_builder.redact_long_values(rows)
        for pause in itertools.chain(_PAUSES, itertools.repeat(_PAUSES[-1])):
            try:
                await self._database.run(partial(self._insert_rows, rows=rows))
            except Exception as error:
                if _is_refusal(error):
                    await self._write_single(rows, error)
                    return
                if pause == _PAUSES[0]:
                    log.exception("the audit cannot be written; retrying")
            else:
                self.written += len(rows)
                self._done += len(rows)
                return
            await asyncio.sleep(pause)

    def _insert_rows(self, transaction: Transaction, *, rows: Sequence[dict[str, Any]]) -> None:
        transaction.execute_many(self._insert, rows)

    async def _write_single(self, rows: Sequence[dict[str, Any]], error: Exception) -> None:
        if len(rows) > 1:
            for row in rows:
                await self._write([row])
            return
        log.error("the database refused an audit row of kind %s", rows[0]["kind"], exc_info=error)
        with self._lock:
            self._done += 1
            self._drop(1)


_NOT_SEARCHED: Final = {
    column.name: literal_column(f"+{table.name}.{column.name}", column.type) for column in table.columns
}
"""The columns as values for which SQLite uses no index."""


def _is_refusal(error: BaseException) -> bool:
    """Whether the database was reachable and refused these rows."""
    if isinstance(error, StoreError) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, DataError | IntegrityError):
        return True
    if not isinstance(error, DBAPIError):
        return isinstance(error, StatementError | ValueError | OverflowError)
    # Postgres: "data exception", and "program limit exceeded".
    return str(getattr(error.orig, "sqlstate", None) or "")[:2] in ("22", "54")


def _build_row(row: tuple[Any, ...]) -> AuditRow:
    values = dict(zip(table.columns.keys(), row, strict=True))
    values["guideline_ids"] = tuple(values["guideline_ids"] or ())
    values["argument_keys"] = None if values["argument_keys"] is None else tuple(values["argument_keys"])
    values["detail"] = values["detail"] or {}
    return AuditRow(**values)

"""Deletes what is old, in batches: no other write waits for more than one of them."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from sqlalchemy import ColumnElement, Delete, Table, delete, literal, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.dml import ReturningDelete

from handrail.store.database import Database
from handrail.store.tables import (
    AUDIT_PURGED,
    approvals,
    audit,
    deliveries,
    get_clock,
    ledger,
    messages,
    sessions,
    settings,
    work,
)
from handrail.store.transactions import Transaction

_ROWS: Final = 1_000
"""Rows of one batch, which is a transaction of its own."""
_SESSIONS: Final = 20
"""Conversations of one batch: a conversation goes with all of its messages, or not at all."""


async def purge_settled(database: Database, *, before: float, tenant_id: str | None = None) -> int:
    """Delete calls that were settled before this time, of every tenant or of one; return how many."""
    is_settled = ledger.c.state.in_(("committed", "failed"))
    # The number of a repetition never restarts while an equal call would be one.
    clock = literal(time.time()) if database.is_sqlite else get_clock(is_sqlite=False)
    conditions = (is_settled, ledger.c.repeat_until < clock, *_is_of(ledger, tenant_id))
    return await _purge_rows(database, ledger, ledger.c.settled_at, before, *conditions)


async def purge_approvals(database: Database, *, before: float, tenant_id: str | None = None) -> int:
    """Delete approvals that expired before this time, whatever was decided; return how many."""
    return await _purge_rows(database, approvals, approvals.c.expires_at, before, *_is_of(approvals, tenant_id))


async def purge_audit(
    database: Database, *, before: float, tenant_id: str | None = None, on_delete: Callable[[int], None]
) -> None:
    """Delete rows of the audit that are older than this time; `on_delete` gets how many, batch by batch."""
    # The triggers of the audit refuse to delete any row that is not older than this setting. It is set with each batch:
    # another process may be deleting what another tenant does not keep.
    new = (sqlite if database.is_sqlite else postgresql).insert(settings)
    allow = new.on_conflict_do_update(index_elements=[settings.c.name], set_={"value": new.excluded.value})
    allow = allow.values(name=AUDIT_PURGED, value=repr(before).encode())
    statement = _build_delete(audit, audit.c.at, before, *_is_of(audit, tenant_id))

    def delete_batch(transaction: Transaction) -> int:
        transaction.execute(allow)
        return transaction.execute(statement)

    await _delete_in_batches(database, partial(database.run, delete_batch), on_delete)


async def purge_received_results(database: Database, *, before: float) -> int:
    """Forget what clients received before this time; return of how many calls."""
    return await _purge_rows(database, deliveries, deliveries.c.at, before)


async def purge_work(database: Database, *, before: float, tenant_id: str | None = None) -> int:
    """Delete the rows of durable calls that ended before this time; return how many."""
    return await _purge_rows(database, work, work.c.ended_at, before, work.c.state == "done", *_is_of(work, tenant_id))


async def purge_sessions(database: Database, *, before: float, tenant_id: str | None = None) -> int:
    """Delete conversations that were last saved before this time, with their messages; return how many."""
    is_old = sessions.c.saved_at < before
    whose = _is_of(sessions, tenant_id)
    oldest = select(sessions.c.session_id).where(is_old, *whose).order_by(sessions.c.saved_at).limit(_SESSIONS)
    deleted = 0
    while ids := [row[0] for row in await database.fetch(oldest)]:
        begun = time.monotonic()
        # One that was saved in between is not old any more.
        still_old = delete(sessions).where(sessions.c.session_id.in_(ids), is_old).returning(sessions.c.session_id)
        deleted += await database.run(partial(_delete_sessions, statement=still_old))
        await _yield_lock(database, time.monotonic() - begun)
    return deleted


def _is_of(table: Table, tenant_id: str | None) -> tuple[ColumnElement[bool], ...]:
    return () if tenant_id is None else (table.c.tenant_id == tenant_id,)


def _delete_sessions(transaction: Transaction, *, statement: ReturningDelete[tuple[str]]) -> int:
    gone = [row[0] for row in transaction.fetch(statement)]
    transaction.execute(delete(messages).where(messages.c.session_id.in_(gone)))
    return len(gone)


async def _purge_rows(
    database: Database, table: Table, column: ColumnElement[float], before: float, *conditions: ColumnElement[bool]
) -> int:
    statement, deleted = _build_delete(table, column, before, *conditions), list[int]()
    await _delete_in_batches(database, partial(database.write, statement, {}), deleted.append)
    return sum(deleted)


def _build_delete(
    table: Table, column: ColumnElement[float], before: float, *conditions: ColumnElement[bool]
) -> Delete:
    """Delete the oldest rows, as many as one batch has."""
    keys = list(table.primary_key.columns)
    oldest = select(*keys).where(column < before, *conditions).order_by(column).limit(_ROWS)
    return delete(table).where((keys[0] if len(keys) == 1 else tuple_(*keys)).in_(oldest))


async def _delete_in_batches(
    database: Database, delete_batch: Callable[[], Coroutine[Any, Any, int]], on_delete: Callable[[int], None]
) -> None:
    while True:
        begun = time.monotonic()
        batch = asyncio.ensure_future(delete_batch())
        try:
            count = await asyncio.shield(batch)
        except asyncio.CancelledError:  # What was begun is committed, and counted.
            await asyncio.wait([batch])
            if not batch.cancelled() and batch.exception() is None:
                on_delete(batch.result())
            raise
        on_delete(count)
        if count < _ROWS:
            return
        await _yield_lock(database, time.monotonic() - begun)


async def _yield_lock(database: Database, seconds: float) -> None:
    """Leave SQLite's lock free for as long as it was held: other processes ask for it at intervals."""
    await asyncio.sleep(min(seconds, 1.0) if database.is_sqlite else 0)

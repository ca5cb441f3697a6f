"""An open database, with everything that is kept in it."""

import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from sqlalchemy import delete, select
from sqlalchemy.dialects import postgresql, sqlite

from handrail.core.redact import Redactor
from handrail.store.approvals import SqlApprovals
from handrail.store.audit import Audit
from handrail.store.database import Database
from handrail.store.facts import Facts
from handrail.store.ledger import SqlLedger
from handrail.store.prepare import prepare
from handrail.store.sessions import SqlSessionStore
from handrail.store.tables import approvals, ledger, messages, sessions, settings
from handrail.store.tenants import SqlTenants


class Store:
    """What an executor is given: `Executor(…, ledger=store.ledger, approvals=store.approvals,
    listeners=[store.audit])`; and a conversation: `ChatSession(…, sessions=store.sessions)`."""

    def __init__(self, database: Database, *, digest_key: bytes, redactor: Redactor, audit: Audit) -> None:
        self._database = database
        self.ledger = SqlLedger(database, digest_key=digest_key)
        self.approvals = SqlApprovals(database, redactor=redactor)
        self.sessions = SqlSessionStore(database)
        self.tenants = SqlTenants(database)
        self.audit = audit

    async def forget(self, *, before: float) -> int:
        """Delete what was settled, could be answered, or was last said before a moment; how many rows that were.

        What runs, and what nobody knows the outcome of, stays. The moment must lie further back than an effect should
        be recognised: what is forgotten can be done again without a question. The audit forgets nothing.
        """
        gone = 0
        async with self._database.transaction() as connection:
            for statement in (
                delete(ledger).where(ledger.c.state.in_(("committed", "failed")), ledger.c.settled_at < before),
                delete(approvals).where(approvals.c.expires_at < before),
                delete(sessions).where(sessions.c.saved_at < before),
            ):
                gone += (await connection.execute(statement)).rowcount
            left = select(sessions.c.session_id).where(sessions.c.session_id == messages.c.session_id).exists()
            await connection.execute(delete(messages).where(~left))
        return gone


@asynccontextmanager
async def opened(
    url: str,
    *,
    migrate: bool,
    pool_size: int,
    timeout: float,
    redactor: Redactor,
    audit_values: bool,
    audit_batch: int,
    audit_seconds: float,
    audit_waiting: int,
) -> AsyncGenerator[Store]:
    """Open a database; see `handrail.store.open_store`."""
    database = Database(url, pool_size=pool_size, timeout=timeout)
    try:
        await prepare(database.url, migrate=migrate)
        database.remember_file()
        digest_key = await _digest_key(database)
        audit = Audit(
            database,
            facts=Facts(redactor=redactor, values=audit_values),
            batch=audit_batch,
            seconds=audit_seconds,
            waiting=audit_waiting,
        )
        try:
            yield Store(database, digest_key=digest_key, redactor=redactor, audit=audit)
        finally:
            await audit.close(timeout=timeout)
    finally:
        await database.close()


async def _digest_key(database: Database) -> bytes:
    """The key of all digests: made by the first process that opens the database, and the same for all."""
    new = (sqlite if database.is_sqlite else postgresql).insert(settings).on_conflict_do_nothing()
    wanted = select(settings.c.value).where(settings.c.name == "digest_key")
    found = await database.fetch(wanted)
    if not found:
        await database.write(new, {"name": "digest_key", "value": secrets.token_bytes(32)})
        found = await database.fetch(wanted)
    return found[0][0]

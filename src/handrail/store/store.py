"""An open database with its ledger, approvals, sessions, tenants and audit."""

import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from sqlalchemy import delete, select
from sqlalchemy.dialects import postgresql, sqlite

from handrail.core.redact import Redactor
from handrail.store.approvals import SqlApprovals
from handrail.store.audit import Audit
from handrail.store.database import Database
from handrail.store.facts import FactBuilder
from handrail.store.ledger import SqlLedger
from handrail.store.schema_version import ensure_newest
from handrail.store.sessions import SqlSessionStore
from handrail.store.tables import approvals, ledger, messages, sessions, settings
from handrail.store.tenants import SqlTenants


class Store:
    """An open database: pass its parts to `Executor(…, ledger=store.ledger, approvals=store.approvals,
    listeners=[store.audit])` and `ChatSession(…, sessions=store.sessions)`."""

    def __init__(self, database: Database, *, digest_key: bytes, redactor: Redactor, audit: Audit) -> None:
        self._database = database
        self.ledger = SqlLedger(database, digest_key=digest_key)
        self.approvals = SqlApprovals(database, redactor=redactor)
        self.approvals.events.set_audit(audit.record_approval)
        self.sessions = SqlSessionStore(database)
        self.tenants = SqlTenants(database)
        self.audit = audit

    async def purge(self, *, before: float) -> int:
        """Delete settled calls, expired approvals and conversations older than `before`; return how many rows.

        Running calls and calls with an unknown outcome stay, and so does the audit. A repeat of a deleted call is not
        recognised any more, so choose a time further back than any repeat.
        """
        deleted = 0
        async with self._database.transaction() as connection:
            for statement in (
                delete(ledger).where(ledger.c.state.in_(("committed", "failed")), ledger.c.settled_at < before),
                delete(approvals).where(approvals.c.expires_at < before),
                delete(sessions).where(sessions.c.saved_at < before),
            ):
                deleted += (await connection.execute(statement)).rowcount
            left = select(sessions.c.session_id).where(sessions.c.session_id == messages.c.session_id).exists()
            await connection.execute(delete(messages).where(~left))
        return deleted


@asynccontextmanager
async def open_sql_store(
    url: str,
    *,
    migrate: bool,
    pool_size: int,
    timeout: float,
    redactor: Redactor,
    audit_values: bool,
    audit_batch_size: int,
    audit_interval: float,
    audit_max_waiting: int,
) -> AsyncGenerator[Store]:
    """Open a database; see `handrail.store.open_store`."""
    database = Database(url, pool_size=pool_size, timeout=timeout)
    try:
        await ensure_newest(database.url, migrate=migrate)
        database.pin_file()
        digest_key = await _load_digest_key(database)
        audit = Audit(
            database,
            facts=FactBuilder(redactor=redactor, values=audit_values),
            batch_size=audit_batch_size,
            interval=audit_interval,
            max_waiting=audit_max_waiting,
        )
        try:
            yield Store(database, digest_key=digest_key, redactor=redactor, audit=audit)
        finally:
            await audit.close(timeout=timeout)
    finally:
        await database.close()


async def _load_digest_key(database: Database) -> bytes:
    """Load the key of all digests; the first process that opens the database creates it."""
    new = (sqlite if database.is_sqlite else postgresql).insert(settings).on_conflict_do_nothing()
    query = select(settings.c.value).where(settings.c.name == "digest_key")
    found = await database.fetch(query)
    if not found:
        await database.write(new, {"name": "digest_key", "value": secrets.token_bytes(32)})
        found = await database.fetch(query)
    return found[0][0]

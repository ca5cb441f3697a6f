"""An open database with its ledger, approvals, sessions, tenants, webhooks and audit."""

import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite

from handrail.core.redact import Redactor
from handrail.store.approvals import SqlApprovals
from handrail.store.audit import Audit
from handrail.store.database import Database
from handrail.store.encryption import Cipher, EncryptionKey
from handrail.store.facts import FactBuilder
from handrail.store.ledger import SqlLedger
from handrail.store.retention import purge_approvals, purge_audit, purge_sessions, purge_settled
from handrail.store.schema_version import ensure_newest
from handrail.store.sessions import SqlSessionStore
from handrail.store.tables import settings
from handrail.store.tenants import SqlTenants
from handrail.store.webhooks import SqlWebhookClaims


class SqlStore:
    """An open database: pass it to `Executor(…, store=store)`, and its sessions to
    `ChatSession(…, sessions=store.sessions)`."""

    def __init__(
        self, database: Database, *, digest_key: bytes, redactor: Redactor, audit: Audit, cipher: Cipher
    ) -> None:
        self._database = database
        self.ledger = SqlLedger(database, digest_key=digest_key, cipher=cipher)
        self.approvals = SqlApprovals(database, redactor=redactor, cipher=cipher)
        self.approvals.events.set_audit(audit.record_approval)
        self.sessions = SqlSessionStore(database)
        self.tenants = SqlTenants(database)
        self.webhooks = SqlWebhookClaims(database)
        self.audit = audit

    async def purge(self, *, before: float, audit_before: float | None = None) -> int:
        """Delete settled calls, expired approvals and conversations older than `before`; return how many.

        Running calls and calls with an unknown outcome stay. A repeat of a deleted call is not recognised any more, so
        choose a time further back than any repeat. With `audit_before`, rows of the audit that are older than that are
        deleted, too, and a row of kind `audit_purged` says so. It deletes in small transactions: other writes do not
        wait for it, and what is deleted stays deleted if it is interrupted.
        """
        deleted = await purge_settled(self._database, before=before)
        deleted += await purge_approvals(self._database, before=before)
        deleted += await purge_sessions(self._database, before=before)
        if audit_before is not None:
            facts = await purge_audit(self._database, before=audit_before)
            self.audit.record_purge(before=audit_before, count=facts)
            deleted += facts
        return deleted


@asynccontextmanager
async def open_sql_store(
    url: str,
    *,
    migrate: bool,
    pool_size: int,
    timeout: float,
    redactor: Redactor,
    encryption_key: EncryptionKey | None,
    audit_values: bool,
    audit_batch_size: int,
    audit_interval: float,
    audit_max_waiting: int,
) -> AsyncGenerator[SqlStore]:
    """Open a database; see `handrail.store.open_store`."""
    cipher = Cipher(encryption_key)
    database = Database(url, pool_size=pool_size, timeout=timeout)
    try:
        await ensure_newest(database.url, migrate=migrate)
        database.pin_file()
        digest_key = await _load_digest_key(database)
        await cipher.check(database)
        audit = Audit(
            database,
            facts=FactBuilder(redactor=redactor, values=audit_values),
            batch_size=audit_batch_size,
            interval=audit_interval,
            max_waiting=audit_max_waiting,
        )
        try:
            yield SqlStore(database, digest_key=digest_key, redactor=redactor, audit=audit, cipher=cipher)
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

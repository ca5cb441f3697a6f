"""A database with its ledger, approvals, durable calls, sessions, turns, tenants, webhooks, keys and audit."""

from pathlib import Path
from typing import Final, Self

from msgspec import structs
from sqlalchemy import delete

from handrail.core.events import Event
from handrail.core.redact import Redactor
from handrail.execute.delivery import Delivery
from handrail.store.api_keys import SqlKeys
from handrail.store.approvals import SqlApprovals
from handrail.store.audit import Audit, ReservedRows
from handrail.store.audit_rows import AuditRowBuilder
from handrail.store.database import Database, parse_url
from handrail.store.encryption import Cipher, EncryptionKey
from handrail.store.erasure import Erasure, digest_customer, erase_customer
from handrail.store.ledger import SqlLedger, SqlReceivedResults
from handrail.store.purge import (
    purge_approvals,
    purge_audit,
    purge_received_results,
    purge_sessions,
    purge_settled,
    purge_work,
)
from handrail.store.schema_version import ensure_newest
from handrail.store.sessions import SqlSessionStore, SqlTurns
from handrail.store.stored_calls import SqlWork
from handrail.store.tables import approvals, ledger
from handrail.store.tenants import SqlTenants
from handrail.store.webhooks import SqlWebhookClaims

_FLUSH_TIMEOUT: Final = 30.0
"""Seconds that the audit may take to write what it has before and after an erasure."""


_MIN_PREFIX: Final = 16
"""Characters: a shorter one could be that of anybody's sessions."""


class _NoAudit(Audit):
    """Writes nothing: rows of the audit cannot be removed."""

    def reserve(self, *events: Event | None) -> ReservedRows:
        return ReservedRows(self, ())


class ScratchStore:
    """The ledger and the approvals of a database, for `handrail verify`: what it writes is removed by `remove`."""

    def __init__(self, url: str, *, cipher: Cipher) -> None:
        self._cipher = cipher
        self._database = database = Database(url, pool_size=4, timeout=10.0, prepare=self._prepare)
        audit = _NoAudit(
            database,
            row_builder=AuditRowBuilder(redactor=Redactor(), values=False),
            batch_size=1,
            interval=0.0,
            max_waiting=1,
        )
        self.ledger = SqlLedger(database, cipher=cipher, audit=audit)
        self.approvals = SqlApprovals(database, redactor=Redactor(), cipher=cipher)

    async def _prepare(self) -> None:
        await ensure_newest(self._database.url, migrate=False)
        self._database.pin_file()
        await self.ledger.load_digest_key()
        await self._cipher.check(self._database)

    async def open(self) -> None:
        """Open the database, which must have its tables."""
        await self._database.open()

    async def aclose(self) -> None:
        """Close it."""
        await self._database.close()

    async def remove(self, prefix: str) -> int:
        """Remove the calls and approvals of the sessions whose ids begin with this; return how many rows."""
        if len(prefix) < _MIN_PREFIX:
            raise ValueError(f"prefix must have at least {_MIN_PREFIX} characters, got {prefix!r}.")
        removed = 0
        for table in (ledger, approvals):
            is_scratch = table.c.session_id.startswith(prefix, autoescape=True)
            removed += await self._database.write(delete(table).where(is_scratch), {})
        return removed


class SqlStore:
    """A database: `Executor(…, store=store)`, and `ChatSession(…, sessions=store.sessions)`.

    It is opened by `async with`, or at its first use, and closed by `aclose()`; the next use opens it again. It serves
    one event loop at a time.
    """

    def __init__(
        self,
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
        delivery: Delivery | None = None,
    ) -> None:
        self._migrate = migrate
        self._timeout = timeout
        self._cipher = cipher = Cipher(encryption_key)
        self._database = database = Database(url, pool_size=pool_size, timeout=timeout, prepare=self._prepare)
        self.audit = Audit(
            database,
            row_builder=AuditRowBuilder(redactor=redactor, values=audit_values),
            batch_size=audit_batch_size,
            interval=audit_interval,
            max_waiting=audit_max_waiting,
        )
        self.ledger = SqlLedger(database, cipher=cipher, audit=self.audit)
        self.work = SqlWork(database, cipher=cipher, delivery=delivery, run_lasting=self.ledger.run_lasting)
        self.approvals = SqlApprovals(database, redactor=redactor, cipher=cipher, work=self.work)
        self.approvals.events.set_audit(self.audit.record_approval)
        self.sessions = SqlSessionStore(database)
        self.tenants = SqlTenants(database)
        self.webhooks = SqlWebhookClaims(database)
        self.keys = SqlKeys(database, on_event=self.audit)
        self.received_results = SqlReceivedResults(database)
        self.turns = SqlTurns(database)

    @property
    def is_open(self) -> bool:
        """Whether the database is open, in an event loop that still exists."""
        return self._database.is_open

    @property
    def url(self) -> str:
        """The URL of the database, with its password hidden."""
        url = self._database.url
        return url.set(drivername=url.get_backend_name()).render_as_string(hide_password=True)

    def is_at(self, url: str) -> bool:
        """Whether this is the store of a URL."""
        return self._database.url == parse_url(url)

    async def open(self) -> None:
        """Open the database, if it is not open: migrate its tables, and start the audit.

        Raises `StoreError` if it cannot be reached; the next use tries again.
        """
        await self._database.open()

    async def _prepare(self) -> None:
        await ensure_newest(self._database.url, migrate=self._migrate)
        self._database.pin_file()
        await self.ledger.load_digest_key()
        await self._cipher.check(self._database)
        self.audit.start()

    async def aclose(self) -> None:
        """Write what waits for the audit, and close all connections."""
        if self._database.is_open:
            await self.audit.close(timeout=self._timeout)
        await self.work.aclose()
        await self._database.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    @property
    def is_encrypted(self) -> bool:
        """Whether the arguments of open approvals are encrypted: it has an `encryption_key`."""
        return self._cipher.has_key

    def build_scratch(self) -> ScratchStore:
        """The same database, for rows that are removed again and not audited."""
        return ScratchStore(self._database.url.render_as_string(hide_password=False), cipher=self._cipher)

    async def purge(self, *, before: float, audit_before: float | None = None, tenant_id: str | None = None) -> int:
        """Delete settled calls, expired approvals and conversations older than `before`; return how many.

        Running calls and calls with an unknown outcome stay, and so do calls that could still be repeated by mistake
        (`Timeouts(repeat_window=…)`): a repeat of a deleted call is not recognised any more. With `audit_before`, rows
        of the audit that are older than that are deleted, too, and a row of kind `audit_purged` says so. With
        `tenant_id`, only what is that tenant's. It deletes in small transactions: other writes do not wait for it, and
        what is deleted stays deleted if it is interrupted.
        """
        deleted = await purge_settled(self._database, before=before, tenant_id=tenant_id)
        deleted += await purge_approvals(self._database, before=before, tenant_id=tenant_id)
        deleted += await purge_sessions(self._database, before=before, tenant_id=tenant_id)
        deleted += await purge_work(self._database, before=before, tenant_id=tenant_id)
        if tenant_id is None:
            deleted += await purge_received_results(self._database, before=before)
        if audit_before is not None:
            rows, is_whole = list[int](), False
            try:
                await purge_audit(self._database, before=audit_before, tenant_id=tenant_id, on_delete=rows.append)
                is_whole = True
            finally:  # What is deleted stays deleted if it is interrupted.
                if sum(rows) or (is_whole and tenant_id is None):
                    self.audit.record_purge(before=audit_before, count=sum(rows), tenant_id=tenant_id)
            deleted += sum(rows)
        return deleted

    async def erase(
        self, *, customer_id: str, tenant_id: str | None, who: str, recordings: str | Path | None = None
    ) -> Erasure:
        """Erase the values of one customer of a tenant; `tenant_id=None` means the rows without a tenant.

        Arguments, results, questions, reasons, the conversation and the customer's id leave the ledger, the approvals,
        the conversations and the audit; the phone recordings of their sessions are deleted from `recordings`. Digests,
        times and outcomes stay, so that nothing runs twice, and a row of kind `customer_erased` says who erased.
        Pending questions are withdrawn. Calls that run or are in doubt keep their values until they are settled:
        `open_calls` counts them. Erase again then, for what was audited in between.
        """
        await self.audit.flush(timeout=_FLUSH_TIMEOUT)  # It opens the database.
        folder = Path(recordings) if recordings is not None else None
        done = await erase_customer(
            self._database, customer_id=customer_id, tenant_id=tenant_id, who=who, recordings=folder
        )
        digest = digest_customer(customer_id, key=self.ledger.digest_key)
        self.audit.record_erasure(
            tenant_id=tenant_id, who=who, detail={"customer_digest": digest, **structs.asdict(done)}
        )
        await self.audit.flush(timeout=_FLUSH_TIMEOUT)
        return done

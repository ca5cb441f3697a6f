"""Calls and approvals in a database that are removed again, and that its audit knows nothing about."""

from typing import Final

from sqlalchemy import delete

from handrail.core.events import Event
from handrail.core.redact import Redactor
from handrail.store.approvals import SqlApprovals
from handrail.store.audit import Audit, ReservedRows
from handrail.store.audit_rows import AuditRowBuilder
from handrail.store.database import Database
from handrail.store.encryption import Cipher
from handrail.store.ledger import SqlLedger
from handrail.store.schema_version import ensure_newest
from handrail.store.tables import approvals, ledger

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

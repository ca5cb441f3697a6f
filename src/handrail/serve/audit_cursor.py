"""Where a page of the audit begins, without the number of a row: that would say how many rows others have."""

import hashlib
import hmac
import math
from typing import Final

from handrail.store import SqlStore
from handrail.store.audit_rows import AuditRow

_MAX_SAME_MOMENT: Final = 1_000


def write_cursor(store: SqlStore, row: AuditRow) -> str:
    """The place of a row: a time, and a digest for rows of the same moment."""
    return f"{row.at!r}:{_digest(store, row)}"


async def read_cursor(store: SqlStore, text: str, tenant_id: str | None) -> AuditRow | None:
    """The row at a place, to ask for the page of older ones; None if the text is no place."""
    at, _, digest = text.partition(":")
    try:
        moment = float(at)
    except ValueError:
        return None
    if not 0 <= moment < 1e11:
        return None
    after = math.nextafter(moment, math.inf)
    rows = await store.audit.query(tenant_id=tenant_id, since=moment, until=after, limit=_MAX_SAME_MOMENT)
    for row in rows:
        if _digest(store, row) == digest:
            return row
    return AuditRow(writer="", number=0, at=moment, kind="", session_id="")


def _digest(store: SqlStore, row: AuditRow) -> str:
    message = f"audit row\n{row.writer}\n{row.number}".encode()
    return hmac.new(store.ledger.digest_key, message, hashlib.sha256).hexdigest()[:16]

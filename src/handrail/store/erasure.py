"""Erases the values of one customer everywhere in a database, and keeps what makes a call run at most once."""

import asyncio
import hmac
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from msgspec import Struct
from sqlalchemy import (
    Boolean,
    ColumnElement,
    String,
    Table,
    bindparam,
    case,
    delete,
    exists,
    func,
    literal_column,
    null,
    select,
    text,
    update,
)

from handrail.core.log import log
from handrail.errors import ConfigError
from handrail.store.database import Database, to_storable
from handrail.store.tables import OPEN, approvals, audit, ledger, messages, sessions, work
from handrail.store.transactions import Transaction, Values

ERASED: Final = "customer_erased"
"""The kind of the row of the audit that says that the values of a customer were erased, and who did it."""
_ROWS: Final = 500
"""Rows of the audit that one transaction erases."""
_KEPT_DETAILS: Final = frozenset(
    ("token", "outcome", "arguments_digest", "origin", "recorded", "silent", "happened", "has_changed_arguments")
)
"""Of the details of a row; numbers stay, too."""
_CHECKPOINT_ATTEMPTS: Final = 50


class Erasure(Struct, frozen=True, kw_only=True):
    """What `Store.erase` did: how many of each lost their values."""

    calls: int = 0
    """Entries of the ledger."""
    approvals: int = 0
    conversations: int = 0
    audit_rows: int = 0
    recordings: int = 0
    open_calls: int = 0
    """Calls that run, are in doubt or wait for a worker. They keep their values until they are settled, and lose them
    then."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing of the customer is left."""
        return not self.open_calls


def digest_customer(customer_id: str, *, key: bytes) -> str:
    """What the audit keeps of an erased customer: whoever knows the id can find the row, and nobody can read the id."""
    return hmac.digest(key, b"erased:" + customer_id.encode("utf-8", "replace"), "sha256").hex()[:32]


def _check(customer_id: str, who: str, recordings: Path | None) -> None:
    if not customer_id:
        raise ConfigError("customer_id must not be empty: rows without a customer belong to nobody.")
    if not who.strip():
        raise ConfigError("who must be the name of who erases.")
    if recordings is not None and not recordings.is_dir():
        raise ConfigError(f"recordings must be a directory that exists, got {str(recordings)!r}.")


async def erase_customer(
    database: Database, *, customer_id: str, tenant_id: str | None, who: str, recordings: Path | None
) -> Erasure:
    """Erase the values of a customer of a tenant, or of the rows without a tenant."""
    _check(customer_id, who, recordings)

    def is_theirs(table: Table) -> ColumnElement[bool]:
        tenant = table.c.tenant_id.is_(None) if tenant_id is None else table.c.tenant_id == tenant_id
        return (table.c.customer_id == customer_id) & tenant

    session_ids: set[str] = set()
    for table in (ledger, approvals, sessions, audit):
        session_ids.update(
            row[0] for row in await database.fetch(select(table.c.session_id).distinct().where(is_theirs(table)))
        )
    now, by = time.time(), to_storable(who)

    def erase(transaction: Transaction) -> dict[str, int]:
        transaction.execute(
            update(ledger).where(is_theirs(ledger), ledger.c.erased_at.is_(None)).values(erased_at=now, erased_by=by)
        )
        is_open = ledger.c.state.in_(("running", "unknown"))
        theirs = select(sessions.c.session_id).where(is_theirs(sessions))
        erased = {
            "open_calls": transaction.fetch(select(func.count()).where(is_theirs(ledger), is_open))[0][0],
            "calls": transaction.execute(update(ledger).where(is_theirs(ledger), ~is_open).values(**_ERASED_ENTRY)),
            "approvals": transaction.execute(_erase_approvals(is_theirs(approvals), now, by)),
        }
        transaction.execute(delete(messages).where(messages.c.session_id.in_(theirs)))
        # The ledger knows what was done; a parked call has lost its question.
        is_stored = (work.c.customer_id == customer_id) & (work.c.tenant_id == (tenant_id or ""))
        transaction.execute(delete(work).where(is_stored, work.c.state.in_(("done", "parked"))))
        is_same_call = (ledger.c.session_id == work.c.session_id) & (ledger.c.call_id == work.c.call_id)
        is_counted = exists().where(is_same_call, is_open)
        waiting = select(func.count()).select_from(work).where(is_stored, ~is_counted)
        erased["open_calls"] += transaction.fetch(waiting)[0][0]
        return erased | {"conversations": transaction.execute(delete(sessions).where(is_theirs(sessions)))}

    erased = await database.run(erase)
    rows = 0
    for condition in (is_theirs(audit), *map(_is_of_nobody, sorted(session_ids))):
        rows += await _erase_audit(database, condition, customer_id, now)
    removed = _remove_recordings(recordings, session_ids) if recordings is not None else 0
    await _empty_write_ahead_log(database)
    return Erasure(**erased, audit_rows=rows, recordings=removed)


_ERASED_ENTRY: Final[Mapping[str, Any]] = {
    "arguments": literal_column("'{}'"),
    "changed_arguments": null(),
    "recorded": null(),
    "customer_id": null(),
    "decision": null(),
}
"""What an entry loses; its digests, times and state stay, and so its call is still recognised."""


def withhold_erased(outcome: Mapping[str, Any]) -> Mapping[str, Any]:
    """The outcome of a call as it is written to its entry; `is_settled` says whether it is final.

    A call whose customer was erased while it ran or was in doubt keeps its values until then, and loses them now.
    """
    is_erased = ledger.c.erased_at.is_not(None) & bindparam("is_settled", type_=Boolean)
    return {
        **outcome,
        **{
            name: case((is_erased, value), else_=outcome.get(name, ledger.c[name]))
            for name, value in _ERASED_ENTRY.items()
        },
    }


def _erase_approvals(condition: ColumnElement[bool], now: float, by: str) -> Any:
    is_undecided = approvals.c.state.in_(("pending", "approved"))
    return (
        update(approvals)
        .where(condition)
        .values(
            arguments=cast(dict[str, Any], {}),
            changed_arguments=null(),
            seen=null(),
            question="",
            reason="",
            customer_id=null(),
            who=case((approvals.c.by == literal_column("'customer'"), null()), else_=approvals.c.who),
            state=case((is_undecided & OPEN, literal_column("'withdrawn'", String)), else_=approvals.c.state),
            closed_at=func.coalesce(approvals.c.closed_at, now),
            erased_at=now,
            erased_by=by,
        )
    )


def _is_of_nobody(session_id: str) -> ColumnElement[bool]:
    """Rows of a session of the customer that name no customer at all."""
    return (audit.c.session_id == session_id) & audit.c.customer_id.is_(None)


async def _erase_audit(database: Database, condition: ColumnElement[bool], customer_id: str, now: float) -> int:
    found = select(audit.c.writer, audit.c.number, audit.c.by, audit.c.detail).where(
        condition, audit.c.erased_at.is_(None), audit.c.kind != ERASED
    )
    erased = 0
    while rows := await database.fetch(found.limit(_ROWS)):
        values: list[Values] = [
            {"of_writer": writer, "of_number": number, "to_detail": _reduce(detail, customer_id, by=by), "now": now}
            for writer, number, by, detail in rows
        ]
        await database.run(partial(_erase_rows, values=values))
        erased += len(values)
    return erased


def _erase_rows(transaction: Transaction, *, values: Sequence[Values]) -> None:
    transaction.execute_many(_ERASE_ROW, values)


def _reduce(detail: Mapping[str, Any] | None, customer_id: str, *, by: str | None) -> dict[str, Any] | None:
    """What may stay of the details of a row: names of ours, numbers and flags, and the operator who decided."""
    kept = {
        name: value
        for name, value in (detail or {}).items()
        if name in _KEPT_DETAILS
        or isinstance(value, bool | int | float)
        or (name == "who" and by != "customer" and value != customer_id)
    }
    return kept or None


_ERASE_ROW: Final = (
    update(audit)
    .where(audit.c.writer == bindparam("of_writer"), audit.c.number == bindparam("of_number"))
    .values(
        customer_id=null(),
        argument_keys=null(),
        reason=null(),
        arguments=null(),
        output=null(),
        detail=bindparam("to_detail", type_=audit.c.detail.type),
        erased_at=bindparam("now"),
    )
)


def _remove_recordings(folder: Path, session_ids: Iterable[str]) -> int:
    """Delete the recordings of these phone calls; a session id that leads elsewhere names no recording."""
    removed = 0
    for session_id in session_ids:
        path = folder / f"{session_id}.jsonl"
        if path.parent != folder or not path.is_file():
            continue
        path.unlink()
        removed += 1
    return removed


async def _empty_write_ahead_log(database: Database) -> None:
    """SQLite overwrites what is deleted (`secure_delete`), but older pages stay in the log until it is emptied."""
    if not database.is_sqlite:
        return
    for _ in range(_CHECKPOINT_ATTEMPTS):
        ((is_busy, *_),) = await database.fetch(text("PRAGMA wal_checkpoint(TRUNCATE)"))
        if not is_busy:
            return
        await asyncio.sleep(0.1)
    log.warning("the write-ahead log still has pages with erased values: a connection reads an old state.")

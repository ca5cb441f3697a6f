"""Ledger, approvals and audit in a SQL database: SQLite in a file, or Postgres."""

from contextlib import AbstractAsyncContextManager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from handrail.core.redact import Redactor
from handrail.errors import MissingExtraError

if TYPE_CHECKING:
    from handrail.store.store import Store

__all__ = ["open_store"]


def open_store(
    url: str,
    *,
    migrate: bool = True,
    pool_size: int = 10,
    timeout: float = 10.0,
    redactor: Redactor | None = None,
    audit_values: bool = False,
    audit_batch: int = 100,
    audit_seconds: float = 0.2,
    audit_waiting: int = 10_000,
) -> "AbstractAsyncContextManager[Store]":
    """Open a database: `sqlite+aiosqlite:///rail.db`, or `postgresql+asyncpg://user:password@host/name`.

    - `migrate` makes or updates the tables, also when several processes open the database at once.
    - `pool_size` is the most connections of this process; `timeout`, in seconds, how long a connection, a statement or
      a lock is waited for before a call is refused as `unavailable`.
    - `audit_values` writes arguments and outputs to the audit too, redacted by `redactor`: by field and by pattern.
      What only a tool's types make secret, a `SecretStr` with a harmless name, has to be among the redactor's `fields`.
    - The audit writes batches of `audit_batch` rows, or what there is every `audit_seconds`, and holds `audit_waiting`
      rows for a database that is away.
    """
    for package in ("sqlalchemy", "greenlet", "alembic", "aiosqlite", "asyncpg"):
        if find_spec(package) is None:
            raise MissingExtraError(package, extra="sql")
    from handrail.store.store import opened  # noqa: PLC0415  # optional

    return opened(
        url,
        migrate=migrate,
        pool_size=pool_size,
        timeout=timeout,
        redactor=redactor or Redactor(),
        audit_values=audit_values,
        audit_batch=audit_batch,
        audit_seconds=audit_seconds,
        audit_waiting=audit_waiting,
    )

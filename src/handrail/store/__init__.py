"""Ledger, approvals, sessions, tenants and audit in a SQL database: SQLite or Postgres."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from handrail.core.lazy_loading import build_getattr
from handrail.core.redact import Redactor
from handrail.core.secrets import resolve_reference
from handrail.errors import MissingExtraError

if TYPE_CHECKING:
    from handrail.execute.delivery import Delivery
    from handrail.store.encryption import EncryptionKey
    from handrail.store.store import SqlStore
    from handrail.store.stored_calls import SqlDelivery, SqlWork

__all__ = ["SqlDelivery", "SqlStore", "SqlWork", "open_store"]

DEFAULT_STORE: Final = "sqlite:///handrail.db"
"""The database of a gateway and of the commands, where nothing names another."""

__getattr__ = build_getattr(
    __name__,
    {
        "SqlDelivery": "handrail.store.stored_calls",
        "SqlStore": "handrail.store.store",
        "SqlWork": "handrail.store.stored_calls",
    },
    extra="sql",
)


def place_store(text: str, directory: Path) -> str:
    """The URL of the store that a file names, or refers to: a relative path is one from the directory of that file."""
    url = resolve_reference(text, name="store") if text.startswith(("env:", "file:")) else text
    parts = re.fullmatch(r"(sqlite[^/]*:///)([^/:~].*)", url)
    return url if parts is None or parts[2].startswith("file:") else f"{parts[1]}{directory / parts[2]}"


def open_store(
    url: str,
    *,
    migrate: bool = True,
    pool_size: int = 10,
    timeout: float = 10.0,
    redactor: Redactor | None = None,
    encryption_key: "EncryptionKey | None" = None,
    audit_values: bool = False,
    audit_batch_size: int = 100,
    audit_interval: float = 0.2,
    audit_max_waiting: int = 10_000,
    delivery: "Delivery | None" = None,
) -> "SqlStore":
    """Open a database: `sqlite:///handrail.db` or `postgresql://user:password@host/name`.

    `async with open_store(url) as store` opens it at once and closes it at the end. Without `async with`, the store
    opens the database when it is first used, and `await store.aclose()` closes it.

    Args:
        url: `sqlite:///file.db`, or `postgresql://user:password@host/name`.
        migrate: Create or update the tables. Several processes can open the database at once.
        pool_size: The maximum number of connections of this process.
        timeout: Seconds to wait for a connection, a statement or a lock; after that a call is refused as `unavailable`.
        redactor: What is hidden in the audit and in the arguments of approvals that people are shown.
        encryption_key: Encrypts what would be in the database in full: the arguments of open approvals, and those that
            an approver changed. A key of `cryptography.fernet.Fernet.generate_key()`; or several, the newest first, to
            change it. Needs `handrail[encryption]`. Another key than the database's raises `StoreError`.
        audit_values: Also write arguments and outputs to the audit, redacted by field and pattern with `redactor`. A
            value that only its type marks as secret, such as a `SecretStr`, needs its name in the redactor's `fields`.
        audit_batch_size: The audit writes this many rows at once.
        audit_interval: It writes after this many seconds at the latest.
        audit_max_waiting: The maximum number of rows in memory while the database is unreachable.
        delivery: What brings durable calls to workers. By default a `SqlDelivery`: the database itself.

    Raises `StoreError` if the database cannot be reached, and `ConfigError` at once if an option is wrong.
    """
    for package in ("sqlalchemy", "greenlet", "alembic", "aiosqlite", "asyncpg"):
        if find_spec(package) is None:
            raise MissingExtraError(package, extra="sql")
    from handrail.store.store import SqlStore  # noqa: PLC0415  # optional

    return SqlStore(
        url,
        migrate=migrate,
        pool_size=pool_size,
        timeout=timeout,
        redactor=redactor or Redactor(),
        encryption_key=encryption_key,
        audit_values=audit_values,
        audit_batch_size=audit_batch_size,
        audit_interval=audit_interval,
        audit_max_waiting=audit_max_waiting,
        delivery=delivery,
    )

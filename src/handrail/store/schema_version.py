"""Checks, when a database is opened, that its tables are those of this version, and migrates them if they are not."""

import asyncio
from pathlib import Path
from typing import Final

from sqlalchemy import URL
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine

from handrail.errors import ConfigError, StoreError
from handrail.store.database import DriverErrors, build_engine
from handrail.store.tables import NEWEST, read_revision

_TIMEOUT: Final = 60.0
"""Seconds to wait for a connection, and for SQLite's lock while another process migrates."""


async def ensure_newest(url: URL, *, migrate: bool) -> None:
    """Migrate the tables if they are not at the newest revision; raise `ConfigError` if `migrate` is false.

    Without `migrate`, a SQLite file that does not exist is not created: it is a `StoreError`.
    """
    if (
        not migrate
        and url.get_backend_name() == "sqlite"
        and not await asyncio.to_thread(Path(url.database or "").exists)
    ):
        raise StoreError(f"there is no database {url.database}.")
    engine = build_engine(url, connect_timeout=_TIMEOUT)
    with DriverErrors(url, action="open"):
        revision = await _wait_for_revision(engine)
        if revision == NEWEST:
            return
        if not migrate and revision is not None and revision > NEWEST:
            raise ConfigError(
                f"the tables of this database are at revision {revision}, and this version of Handrail knows "
                f"{NEWEST}: they were made by a newer version. Install that version."
            )
        if not migrate:
            raise ConfigError(
                f"the tables of this database are at revision {revision}, expected {NEWEST}. "
                "Open it once with migrate=True."
            )
        from handrail.store.migration import migrate_tables  # noqa: PLC0415  # Alembic is slow to import

        await migrate_tables(engine)


async def _wait_for_revision(engine: AsyncEngine) -> str | None:
    deadline = asyncio.get_running_loop().time() + _TIMEOUT
    while True:
        try:
            async with engine.connect() as connection:
                return await connection.run_sync(read_revision)
        except OperationalError as error:
            # SQLite does not wait for its lock when two processes create the same file: try again.
            if "locked" not in str(error.orig) or asyncio.get_running_loop().time() > deadline:
                raise
        await asyncio.sleep(0.05)

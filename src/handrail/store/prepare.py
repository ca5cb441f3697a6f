"""Seeing to it, each time that a database is opened, that its tables are those of this version of Handrail."""

import asyncio
from typing import Final

from sqlalchemy import URL
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine

from handrail.errors import ConfigError
from handrail.store.database import engine
from handrail.store.version import NEWEST, revision

_PATIENCE: Final = 60.0
"""Seconds to wait for a connection, and for SQLite's lock while another process migrates."""


async def prepare(url: URL, *, migrate: bool) -> None:
    """Migrate the tables if they need it, or refuse to go on."""
    made = engine(url, connecting=_PATIENCE)
    try:
        found = await _revision_of(made)
        if found == NEWEST:
            return
        if not migrate:
            raise ConfigError(
                f"The tables of this database are at revision {found}, and this version of Handrail needs {NEWEST}. "
                f"Open it once with migrate=True."
            )
        from handrail.store.migrate import run  # noqa: PLC0415  # Alembic takes long to load, and is rarely needed

        await run(made)
    finally:
        await made.dispose()


async def _revision_of(made: AsyncEngine) -> str | None:
    deadline = asyncio.get_running_loop().time() + _PATIENCE
    while True:
        try:
            async with made.connect() as connection:
                return await connection.run_sync(revision)
        except OperationalError as error:
            # SQLite does not wait when two processes make one new file at once: look again.
            if "locked" not in str(error.orig) or asyncio.get_running_loop().time() > deadline:
                raise
        await asyncio.sleep(0.05)

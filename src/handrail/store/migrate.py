"""Bringing a database to the tables that this version of Handrail needs, once, however many processes open it."""

from typing import Final

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncEngine

from handrail.errors import ConfigError
from handrail.store.database import begun
from handrail.store.version import revision

_LOCK: Final = 0x68616E647261696C
"""The advisory lock of Postgres that a migration holds."""


async def run(made: AsyncEngine) -> None:
    """Bring a database to the newest revision. One process does it, the others wait; all of it is done, or nothing."""
    if made.dialect.name == "sqlite":
        async with begun(made) as connection:
            await connection.run_sync(upgrade)
        return
    async with made.execution_options(isolation_level="READ COMMITTED").begin() as connection:
        await connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK})"))
        await connection.run_sync(upgrade)


def upgrade(connection: Connection, to: str = "head") -> None:
    """Run the migrations that are missing, in the connection's transaction."""
    found = revision(connection)
    known = {script.revision for script in scripts().walk_revisions()}
    if found is not None and found not in known:
        raise ConfigError(
            f"The tables of this database are at revision {found}, which this version of Handrail does not know: "
            f"a newer one made them."
        )
    command.upgrade(_config(connection), to)


def downgrade(connection: Connection, to: str) -> None:
    """Take migrations back, in the connection's transaction."""
    command.downgrade(_config(connection), to)


def scripts() -> ScriptDirectory:
    """The migrations."""
    return ScriptDirectory.from_config(_config())


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", "handrail.store:migrations")
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config

"""Runs the Alembic migrations, in one process at a time."""

from typing import Final

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncEngine

from handrail.errors import ConfigError
from handrail.store.database import begin_immediate
from handrail.store.tables import read_revision

_LOCK: Final = 0x68616E647261696C
"""The key of the Postgres advisory lock that a migration holds."""


async def migrate_tables(engine: AsyncEngine) -> None:
    """Migrate to the newest revision, in one transaction. Other processes wait."""
    if engine.dialect.name == "sqlite":
        async with begin_immediate(engine) as connection:
            await connection.run_sync(upgrade)
        return
    async with engine.execution_options(isolation_level="READ COMMITTED").begin() as connection:
        await connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK})"))
        await connection.run_sync(upgrade)


def upgrade(connection: Connection, to: str = "head") -> None:
    """Run the missing migrations in the connection's transaction."""
    found = read_revision(connection)
    known = {script.revision for script in load_scripts().walk_revisions()}
    if found is not None and found not in known:
        raise ConfigError(
            f"the tables of this database are at revision {found}, which this version of Handrail does not know. "
            "They were made by a newer version."
        )
    command.upgrade(_build_config(connection), to)


def downgrade(connection: Connection, to: str) -> None:
    """Undo migrations in the connection's transaction."""
    command.downgrade(_build_config(connection), to)


def load_scripts() -> ScriptDirectory:
    """Load the migrations."""
    return ScriptDirectory.from_config(_build_config())


def _build_config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", "handrail.store:migrations")
    config.attributes["connection"] = connection
    return config

"""Which revision the tables of a database are at, and which one this version of Handrail needs."""

from typing import Final

from sqlalchemy import Connection, inspect, text

NEWEST: Final = "0003"
"""The revision that this version needs: the last file in `migrations/versions`."""
VERSION_TABLE: Final = "handrail_version"
"""Our own, so that an application with migrations of its own can share the database."""


def revision(connection: Connection) -> str | None:
    """The revision of a database; None if it is empty."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()

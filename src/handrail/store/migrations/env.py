"""Runs the migrations on the connection that `migration.py` passes."""

from alembic import context

from handrail.store.tables import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"], target_metadata=metadata, version_table=VERSION_TABLE
)
context.run_migrations()

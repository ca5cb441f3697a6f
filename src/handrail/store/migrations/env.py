"""How Alembic runs the migrations: on the connection, and in the transaction, that `migrate.py` gives it."""

from alembic import context

from handrail.store.tables import metadata
from handrail.store.version import VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"], target_metadata=metadata, version_table=VERSION_TABLE
)
context.run_migrations()

"""Durable calls say whether somebody listens to their events."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Add the column: rows that are there are not listened to."""
    op.add_column("handrail_work", sa.Column("is_heard", sa.Boolean))


def downgrade() -> None:
    """Drop the column."""
    op.drop_column("handrail_work", "is_heard")

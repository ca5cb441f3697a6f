"""Conversations."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "handrail_sessions",
        sa.Column("session_id", sa.String, primary_key=True),
        sa.Column("tenant_id", sa.String),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("saved_at", sa.Double, nullable=False),
        sa.Column("conversation", sa.LargeBinary, nullable=False),
    )
    op.create_index("handrail_sessions_saved", "handrail_sessions", ["saved_at"])


def downgrade() -> None:
    """Drop the table, and every conversation in it."""
    op.drop_table("handrail_sessions")

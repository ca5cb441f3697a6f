"""Conversations."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Create the tables and their indexes."""
    op.create_table(
        "handrail_sessions",
        sa.Column("session_id", sa.String, primary_key=True),
        sa.Column("tenant_id", sa.String),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("saved_at", sa.Double, nullable=False),
        sa.Column("state", sa.LargeBinary, nullable=False),
    )
    op.create_index("handrail_sessions_saved", "handrail_sessions", ["saved_at"])
    op.create_table(
        "handrail_messages",
        sa.Column("session_id", sa.String, primary_key=True),
        sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("message", sa.LargeBinary, nullable=False),
    )


def downgrade() -> None:
    """Drop the tables, and every conversation in it."""
    op.drop_table("handrail_messages")
    op.drop_table("handrail_sessions")

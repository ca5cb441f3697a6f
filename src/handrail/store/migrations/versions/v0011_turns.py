"""Turns of conversations: which process runs the turn of a conversation, and whether it shall stop."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

TURNS = "handrail_turns"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        TURNS,
        sa.Column("session_id", sa.String, primary_key=True),
        sa.Column("owner", sa.String, nullable=False),
        sa.Column("lease_until", sa.Double, nullable=False),
        sa.Column("interrupted", sa.Boolean, nullable=False),
    )
    op.create_index("handrail_turns_lease", TURNS, ["lease_until"])


def downgrade() -> None:
    """Drop the table: a turn that runs may be joined by another one of its conversation."""
    op.drop_table(TURNS)

"""An approval knows how often its framework had been resumed when it was asked for."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add the column: what was asked before had its wakes in its turn."""
    op.add_column("handrail_approvals", sa.Column("wakes", sa.BigInteger, nullable=False, server_default="0"))


def downgrade() -> None:
    """Remove the column."""
    op.drop_column("handrail_approvals", "wakes")

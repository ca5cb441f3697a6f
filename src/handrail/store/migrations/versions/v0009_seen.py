"""An approval says where values come from that a rule with `from` asks about."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Add the column: nobody asked where the values of older approvals came from."""
    op.add_column("handrail_approvals", sa.Column("seen", sa.JSON(none_as_null=True)))


def downgrade() -> None:
    """Remove the column."""
    op.drop_column("handrail_approvals", "seen")

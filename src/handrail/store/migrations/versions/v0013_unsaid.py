"""An approval names the arguments that a rule wants from the customer's own words, and that are not."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Add the column: older approvals only have sentences about it."""
    op.add_column("handrail_approvals", sa.Column("unsaid", sa.JSON(none_as_null=True)))


def downgrade() -> None:
    """Remove the column."""
    op.drop_column("handrail_approvals", "unsaid")

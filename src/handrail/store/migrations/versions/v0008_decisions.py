"""An entry of the ledger has the decision that let its call run, and the token of its approval."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

LEDGER = "handrail_ledger"


def upgrade() -> None:
    """Add the columns: what let older calls run is not known any more."""
    op.add_column(LEDGER, sa.Column("decision", sa.Text))
    op.add_column(LEDGER, sa.Column("approval", sa.String))


def downgrade() -> None:
    """Remove the columns."""
    for name in ("decision", "approval"):
        op.drop_column(LEDGER, name)

"""An effect has two keys, so that a later release recognises it, and is kept until it can be no repetition any more."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

LEDGER = "handrail_ledger"
DAY = 86_400.0
"""How long an effect could be a repetition, by default, before entries said so."""


def upgrade() -> None:
    """Add the columns: the only key that old entries have is both."""
    op.add_column(LEDGER, sa.Column("full_key", sa.String, nullable=False, server_default=""))
    op.add_column(LEDGER, sa.Column("full_number", sa.BigInteger, nullable=False, server_default="0"))
    op.add_column(LEDGER, sa.Column("repeat_until", sa.Double, nullable=False, server_default="0"))
    op.execute(f"UPDATE {LEDGER} SET full_key = key, full_number = number, repeat_until = run_until + {DAY}")
    op.create_index("handrail_ledger_full_effect", LEDGER, ["full_key", "full_number"], unique=True)


def downgrade() -> None:
    """Remove the columns."""
    op.drop_index("handrail_ledger_full_effect", LEDGER)
    for name in ("full_key", "full_number", "repeat_until"):
        op.drop_column(LEDGER, name)

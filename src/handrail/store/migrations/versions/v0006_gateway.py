"""The keys of people and clients, and which results of calls their clients have received."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "handrail_keys",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("digest", sa.String, nullable=False),
        sa.Column("role", sa.String, nullable=False),
        sa.Column("tenant_id", sa.String),
        sa.Column("who", sa.String, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("revoked_at", sa.Double),
        sa.CheckConstraint("role IN ('admin', 'operator', 'viewer', 'caller')", name="handrail_keys_role"),
    )
    op.create_index("handrail_keys_digest", "handrail_keys", ["digest"], unique=True)
    op.create_table(
        "handrail_deliveries",
        sa.Column("session_id", sa.String, primary_key=True),
        sa.Column("call_digest", sa.String, primary_key=True),
        sa.Column("count", sa.BigInteger, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
    )
    op.create_index("handrail_deliveries_at", "handrail_deliveries", ["at"])


def downgrade() -> None:
    """Drop the tables: every key has to be made anew."""
    op.drop_table("handrail_deliveries")
    op.drop_table("handrail_keys")

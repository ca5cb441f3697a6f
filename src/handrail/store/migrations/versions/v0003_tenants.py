"""Tenants, every version of each, the numbers that callers dial, and the webhooks that were taken."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Create the tables and their indexes."""
    op.create_table(
        "handrail_tenants",
        sa.Column("tenant_id", sa.String, primary_key=True),
        sa.Column("revision", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("version", sa.String, nullable=False),
        sa.Column("saved_at", sa.Double, nullable=False),
        sa.Column("who", sa.String, nullable=False),
        sa.Column("config", sa.LargeBinary),
    )
    op.create_table(
        "handrail_tenant_numbers",
        sa.Column("number", sa.String, primary_key=True),
        sa.Column("tenant_id", sa.String, nullable=False),
    )
    op.create_index("handrail_tenant_numbers_tenant", "handrail_tenant_numbers", ["tenant_id"])
    op.create_table(
        "handrail_webhooks",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("expires_at", sa.Double, nullable=False),
    )
    op.create_index("handrail_webhooks_expiry", "handrail_webhooks", ["expires_at"])


def downgrade() -> None:
    """Drop the tables, and every tenant in them."""
    op.drop_table("handrail_webhooks")
    op.drop_table("handrail_tenant_numbers")
    op.drop_table("handrail_tenants")

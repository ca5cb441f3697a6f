"""The conversations of a tenant are found without those of the others."""

from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Add the index."""
    op.create_index("handrail_sessions_tenant", "handrail_sessions", ["tenant_id", "saved_at", "session_id"])


def downgrade() -> None:
    """Remove the index."""
    op.drop_index("handrail_sessions_tenant", "handrail_sessions")

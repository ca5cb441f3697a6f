"""Settings, ledger, approvals and audit."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

REFUSAL = "the audit is append-only"
PURGED = "audit_purged_before"


def upgrade() -> None:
    """Create the tables and their indexes."""
    op.create_table(
        "handrail_settings",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("value", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "handrail_ledger",
        sa.Column("session_id", sa.String, primary_key=True),
        sa.Column("call_id", sa.String, primary_key=True),
        sa.Column("tool", sa.String, nullable=False),
        sa.Column("tenant_id", sa.String),
        sa.Column("identity", sa.String, nullable=False),
        sa.Column("key", sa.String, nullable=False),
        sa.Column("sent_key", sa.String, nullable=False),
        sa.Column("arguments_digest", sa.String, nullable=False),
        sa.Column("arguments", sa.Text, nullable=False),
        sa.Column("changed_arguments", sa.Text),
        sa.Column("customer_id", sa.String),
        sa.Column("agent_id", sa.String),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("repeat", sa.BigInteger, nullable=False),
        sa.Column("turn", sa.BigInteger, nullable=False),
        sa.Column("owner", sa.String, nullable=False),
        sa.Column("claimed_at", sa.Double, nullable=False),
        sa.Column("lease_until", sa.Double, nullable=False),
        sa.Column("run_until", sa.Double, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("settled_at", sa.Double),
        sa.Column("recorded", sa.Text),
        sa.Column("guideline_ids", sa.JSON),
        sa.UniqueConstraint("key", "number", name="handrail_ledger_effect"),
        sa.CheckConstraint("state IN ('running', 'committed', 'failed', 'unknown')", name="handrail_ledger_state"),
    )
    unsettled = sa.text("state IN ('running', 'unknown')")
    op.create_index(
        "handrail_ledger_unsettled",
        "handrail_ledger",
        ["claimed_at"],
        sqlite_where=unsettled,
        postgresql_where=unsettled,
    )
    op.create_index("handrail_ledger_settled", "handrail_ledger", ["settled_at"])
    is_changed = sa.text("sent_key <> key")
    op.create_index(
        "handrail_ledger_sent",
        "handrail_ledger",
        ["sent_key"],
        sqlite_where=is_changed,
        postgresql_where=is_changed,
    )
    op.create_table(
        "handrail_approvals",
        sa.Column("token", sa.String, primary_key=True),
        sa.Column("tool", sa.String, nullable=False),
        sa.Column("digest", sa.String, nullable=False),
        sa.Column("session_id", sa.String, nullable=False),
        sa.Column("tenant_id", sa.String),
        sa.Column("customer_id", sa.String),
        sa.Column("by", sa.String, nullable=False),
        sa.Column("turn", sa.BigInteger, nullable=False),
        sa.Column("arguments", sa.JSON, nullable=False),
        sa.Column("question", sa.Text, nullable=False),
        sa.Column("repeat", sa.BigInteger, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("who", sa.String),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("changed_arguments", sa.JSON),
        sa.Column("decided_at", sa.Double),
        sa.CheckConstraint("state IN ('pending', 'approved', 'denied', 'used')", name="handrail_approvals_state"),
    )
    still_open = sa.text("state <> 'used'")
    op.create_index(
        "handrail_approvals_question",
        "handrail_approvals",
        ["session_id", "tool", "digest", "by", "repeat"],
        unique=True,
        sqlite_where=still_open,
        postgresql_where=still_open,
    )
    pending = sa.text("state = 'pending'")
    for name, columns in (
        ("pending", ["expires_at", "token"]),
        ("pending_session", ["session_id", "expires_at", "token"]),
        ("pending_tenant", ["tenant_id", "expires_at", "token"]),
    ):
        op.create_index(
            f"handrail_approvals_{name}",
            "handrail_approvals",
            columns,
            sqlite_where=pending,
            postgresql_where=pending,
        )
    for name in ("session_id", "tenant_id", "customer_id", "tool", "who"):
        op.create_index(f"handrail_approvals_{name.removesuffix('_id')}", "handrail_approvals", [name, "created_at"])
    op.create_index("handrail_approvals_created", "handrail_approvals", ["created_at"])
    op.create_index("handrail_approvals_expiry", "handrail_approvals", ["expires_at"])
    op.create_table(
        "handrail_audit",
        sa.Column("writer", sa.String, primary_key=True),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("session_id", sa.String, nullable=False),
        sa.Column("tenant_id", sa.String),
        sa.Column("call_id", sa.String),
        sa.Column("tool", sa.String),
        sa.Column("response_id", sa.String),
        sa.Column("item_id", sa.String),
        sa.Column("guideline_ids", sa.JSON),
        sa.Column("argument_keys", sa.JSON),
        sa.Column("action", sa.String),
        sa.Column("by", sa.String),
        sa.Column("rule", sa.Text),
        sa.Column("source", sa.Text),
        sa.Column("reason", sa.Text),
        sa.Column("ok", sa.Boolean),
        sa.Column("error", sa.String),
        sa.Column("duration_ms", sa.Double),
        sa.Column("output_length", sa.BigInteger),
        sa.Column("detail", sa.JSON),
        sa.Column("arguments", sa.JSON),
        sa.Column("output", sa.Text),
    )
    for name in ("session_id", "tenant_id", "call_id", "tool", "kind"):
        op.create_index(f"handrail_audit_{name.removesuffix('_id')}", "handrail_audit", [name, "at"])
    op.create_index(
        "handrail_audit_failures",
        "handrail_audit",
        ["at"],
        sqlite_where=sa.text("ok IS 0"),
        postgresql_where=sa.text("ok IS false"),
    )
    op.create_index("handrail_audit_at", "handrail_audit", ["at"])
    _protect_the_audit()


def _protect_the_audit() -> None:
    if op.get_bind().dialect.name == "sqlite":
        purged = f"SELECT CAST(CAST(value AS TEXT) AS REAL) FROM handrail_settings WHERE name = '{PURGED}'"
        for change, condition in (("update", "TRUE"), ("delete", f"NOT coalesce(OLD.at < ({purged}), FALSE)")):
            op.execute(
                f"CREATE TRIGGER handrail_audit_no_{change} BEFORE {change.upper()} ON handrail_audit "
                f"WHEN {condition} BEGIN SELECT RAISE(ABORT, '{REFUSAL}'); END"
            )
        return
    op.execute(
        f"CREATE FUNCTION handrail_audit_refuse() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION '{REFUSAL}'; END $$"
    )
    purged = f"SELECT convert_from(value, 'UTF8')::double precision FROM handrail_settings WHERE name = '{PURGED}'"
    op.execute(
        f"CREATE FUNCTION handrail_audit_refuse_newer() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN IF OLD.at < ({purged}) THEN RETURN OLD; END IF; RAISE EXCEPTION '{REFUSAL}'; END $$"
    )
    op.execute(
        "CREATE TRIGGER handrail_audit_no_update BEFORE UPDATE ON handrail_audit "
        "FOR EACH ROW EXECUTE FUNCTION handrail_audit_refuse()"
    )
    op.execute(
        "CREATE TRIGGER handrail_audit_no_delete BEFORE DELETE ON handrail_audit "
        "FOR EACH ROW EXECUTE FUNCTION handrail_audit_refuse_newer()"
    )
    op.execute(
        "CREATE TRIGGER handrail_audit_no_truncate BEFORE TRUNCATE ON handrail_audit "
        "FOR EACH STATEMENT EXECUTE FUNCTION handrail_audit_refuse()"
    )


def downgrade() -> None:
    """Drop everything, the audit too."""
    for table in ("handrail_audit", "handrail_approvals", "handrail_ledger", "handrail_settings"):
        op.drop_table(table)
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION handrail_audit_refuse()")
        op.execute("DROP FUNCTION handrail_audit_refuse_newer()")

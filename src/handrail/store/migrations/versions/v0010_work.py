"""Durable calls: a row for each, until a worker has finished it."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"

WORK = "handrail_work"
CHANNEL = "handrail_work"


def upgrade() -> None:
    """Create the table; Postgres tells who listens of calls that are queued, and of those that were and are done."""
    op.create_table(
        WORK,
        sa.Column("session_id", sa.String, primary_key=True),
        sa.Column("call_id", sa.String, primary_key=True),
        sa.Column("tool", sa.String, nullable=False),
        sa.Column("definition", sa.String, nullable=False),
        sa.Column("tenant_id", sa.String, nullable=False),
        sa.Column("customer_id", sa.String),
        sa.Column("agent_id", sa.String),
        sa.Column("turn", sa.BigInteger, nullable=False),
        sa.Column("wakes", sa.BigInteger, nullable=False),
        sa.Column("priority", sa.BigInteger, nullable=False),
        sa.Column("calls", sa.Text),
        sa.Column("decision", sa.Text),
        sa.Column("approval", sa.String),
        sa.Column("repeat", sa.BigInteger, nullable=False),
        sa.Column("seal", sa.String, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("owner", sa.String),
        sa.Column("slot", sa.BigInteger),
        sa.Column("attempts", sa.BigInteger, nullable=False),
        sa.Column("queued_at", sa.Double),
        sa.Column("due_at", sa.Double, nullable=False),
        sa.Column("ended_at", sa.Double),
        sa.Column("cancelled_at", sa.Double),
        sa.Column("recorded", sa.Text),
        sa.CheckConstraint("state IN ('queued', 'running', 'parked', 'waiting', 'done')", name="handrail_work_state"),
    )
    _index("queued", ["tenant_id", sa.text("priority DESC"), "due_at"], "state = 'queued'")
    _index("due", ["due_at"], "state IN ('running', 'parked', 'waiting')")
    _index("running", ["tenant_id"], "state = 'running'")
    _index("slot", ["tenant_id", "slot"], "slot IS NOT NULL", unique=True)
    _index("parked", ["approval"], "state = 'parked'")
    _index("customer", ["customer_id"], "customer_id IS NOT NULL")
    op.create_index("handrail_work_ended", WORK, ["ended_at"])
    if op.get_bind().dialect.name == "sqlite":
        return
    op.execute(
        "CREATE FUNCTION handrail_work_notify() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"IF NEW.state = 'queued' THEN PERFORM pg_notify('{CHANNEL}', ''); "
        "ELSIF NEW.state = 'done' AND NEW.queued_at IS NOT NULL THEN "
        f"PERFORM pg_notify('{CHANNEL}', md5(NEW.session_id || '/' || NEW.call_id)); END IF; "
        "RETURN NULL; END $$"
    )
    op.execute(
        f"CREATE TRIGGER handrail_work_notify AFTER INSERT OR UPDATE OF state ON {WORK} "
        "FOR EACH ROW EXECUTE FUNCTION handrail_work_notify()"
    )


def _index(name: str, columns: "list[str | sa.TextClause]", where: str, *, unique: bool = False) -> None:
    op.create_index(
        f"handrail_work_{name}",
        WORK,
        columns,
        unique=unique,
        sqlite_where=sa.text(where),
        postgresql_where=sa.text(where),
    )


def downgrade() -> None:
    """Drop the table: calls that wait for a worker are lost."""
    op.drop_table(WORK)
    if op.get_bind().dialect.name != "sqlite":
        op.execute("DROP FUNCTION handrail_work_notify()")

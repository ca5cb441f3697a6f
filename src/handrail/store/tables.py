"""The tables that the migrations create. Their names have a prefix, so that they can share a database."""

from typing import Final

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ColumnElement,
    Connection,
    Double,
    Index,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    bindparam,
    func,
    inspect,
    literal_column,
    text,
)

metadata: Final = MetaData()

NEWEST: Final = "0014"
"""The revision that this version needs: the last file in `migrations/versions`."""
VERSION_TABLE: Final = "handrail_version"
"""Separate from Alembic's default, so that an application with its own migrations can share the database."""


settings: Final = Table(
    "handrail_settings",
    metadata,
    Column("name", String, primary_key=True),
    Column("value", LargeBinary, nullable=False),
)
"""Settings that all processes on this database share."""
AUDIT_PURGED: Final = "audit_purged_before"
"""The setting with the time, as text, up to which rows of the audit may be deleted: its triggers read it."""

ledger: Final = Table(
    "handrail_ledger",
    metadata,
    Column("session_id", String, primary_key=True),
    Column("call_id", String, primary_key=True),
    Column("tool", String, nullable=False),
    Column("tenant_id", String),
    Column("identity", String, nullable=False),
    Column("key", String, nullable=False),
    Column("sent_key", String, nullable=False),
    Column("arguments_digest", String, nullable=False),
    Column("arguments", Text, nullable=False),
    Column("changed_arguments", Text),
    Column("customer_id", String),
    Column("agent_id", String),
    Column("number", BigInteger, nullable=False),
    Column("repeat", BigInteger, nullable=False),
    Column("turn", BigInteger, nullable=False),
    Column("owner", String, nullable=False),
    Column("claimed_at", Double, nullable=False),
    Column("lease_until", Double, nullable=False),
    Column("run_until", Double, nullable=False),
    Column("state", String, nullable=False),
    Column("settled_at", Double),
    Column("recorded", Text),
    Column("guideline_ids", JSON(none_as_null=True)),
    Column("erased_at", Double),
    Column("erased_by", String),
    Column("full_key", String, nullable=False),
    Column("full_number", BigInteger, nullable=False),
    Column("repeat_until", Double, nullable=False),
    Column("decision", Text),
    Column("approval", String),
    UniqueConstraint("key", "number", name="handrail_ledger_effect"),
    CheckConstraint("state IN ('running', 'committed', 'failed', 'unknown')", name="handrail_ledger_state"),
    Index("handrail_ledger_settled", "settled_at"),
    Index("handrail_ledger_full_effect", "full_key", "full_number", unique=True),
)
UNSETTLED: Final = text("state IN ('running', 'unknown')")
Index("handrail_ledger_unsettled", ledger.c.claimed_at, sqlite_where=UNSETTLED, postgresql_where=UNSETTLED)
Index(
    "handrail_ledger_sent",
    ledger.c.sent_key,
    sqlite_where=text("sent_key <> key"),
    postgresql_where=text("sent_key <> key"),
)
HAS_CUSTOMER: Final = text("customer_id IS NOT NULL")
Index(
    "handrail_ledger_customer",
    ledger.c.customer_id,
    ledger.c.claimed_at,
    sqlite_where=HAS_CUSTOMER,
    postgresql_where=HAS_CUSTOMER,
)
"""One row for each claimed call. Its unique constraints are what makes a call run at most once. A trigger withdraws
the questions that are pending about a call when it is claimed."""

approvals: Final = Table(
    "handrail_approvals",
    metadata,
    Column("token", String, primary_key=True),
    Column("tool", String, nullable=False),
    Column("digest", String, nullable=False),
    Column("session_id", String, nullable=False),
    Column("tenant_id", String),
    Column("customer_id", String),
    Column("by", String, nullable=False),
    Column("turn", BigInteger, nullable=False),
    Column("arguments", JSON, nullable=False),
    Column("question", Text, nullable=False),
    Column("repeat", BigInteger, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("state", String, nullable=False),
    Column("who", String),
    Column("reason", Text, nullable=False),
    Column("changed_arguments", JSON(none_as_null=True)),
    Column("decided_at", Double),
    Column("call_id", String),
    Column("closed_at", Double),
    Column("erased_at", Double),
    Column("erased_by", String),
    Column("wakes", BigInteger, nullable=False),
    Column("seen", JSON(none_as_null=True)),
    Column("unsaid", JSON(none_as_null=True)),
    CheckConstraint("state IN ('pending', 'approved', 'denied', 'used', 'withdrawn')", name="handrail_approvals_state"),
)
OPEN: Final = text("closed_at IS NULL")
QUESTION: Final = ("session_id", "tool", "digest", "by", "repeat")
Index(
    "handrail_approvals_question",
    *(approvals.c[name] for name in QUESTION),
    unique=True,
    sqlite_where=OPEN,
    postgresql_where=OPEN,
)
"""At most one request is open for the same call; when it is closed, there can be another."""
PENDING: Final = text("state = 'pending'")
for _name, _columns in {
    "handrail_approvals_pending": ("expires_at", "token"),
    "handrail_approvals_pending_session": ("session_id", "expires_at", "token"),
    "handrail_approvals_pending_tenant": ("tenant_id", "expires_at", "token"),
}.items():
    Index(_name, *(approvals.c[column] for column in _columns), sqlite_where=PENDING, postgresql_where=PENDING)
Index(
    "handrail_approvals_pending_call",
    approvals.c.session_id,
    approvals.c.call_id,
    sqlite_where=PENDING,
    postgresql_where=PENDING,
)
for _name in ("session_id", "tenant_id", "customer_id", "tool", "who"):
    Index(f"handrail_approvals_{_name.removesuffix('_id')}", approvals.c[_name], approvals.c.created_at)
Index("handrail_approvals_created", approvals.c.created_at)
Index("handrail_approvals_expiry", approvals.c.expires_at)

audit: Final = Table(
    "handrail_audit",
    metadata,
    Column("writer", String, primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("at", Double, nullable=False),
    Column("kind", String, nullable=False),
    Column("session_id", String, nullable=False),
    Column("tenant_id", String),
    Column("call_id", String),
    Column("tool", String),
    Column("response_id", String),
    Column("item_id", String),
    Column("guideline_ids", JSON(none_as_null=True)),
    Column("argument_keys", JSON(none_as_null=True)),
    Column("action", String),
    Column("by", String),
    Column("rule", Text),
    Column("source", Text),
    Column("reason", Text),
    Column("ok", Boolean),
    Column("error", String),
    Column("duration_ms", Double),
    Column("output_length", BigInteger),
    Column("detail", JSON(none_as_null=True)),
    Column("arguments", JSON(none_as_null=True)),
    Column("output", Text),
    Column("customer_id", String),
    Column("erased_at", Double),
    Index("handrail_audit_customer", "customer_id", "at"),
    Index("handrail_audit_error", "error", "at"),
    Index("handrail_audit_successes", "at", sqlite_where=text("ok IS 1"), postgresql_where=text("ok IS true")),
    Index("handrail_audit_session", "session_id", "at"),
    Index("handrail_audit_tenant", "tenant_id", "at"),
    Index("handrail_audit_call", "call_id", "at"),
    Index("handrail_audit_tool", "tool", "at"),
    Index("handrail_audit_kind", "kind", "at"),
    Index("handrail_audit_failures", "at", sqlite_where=text("ok IS 0"), postgresql_where=text("ok IS false")),
    Index("handrail_audit_at", "at"),
)
"""One row for each event; triggers refuse to change or delete one, but for the erasure of its values. A writer numbers
its rows without gaps, so that a missing row is noticed, and a row that is sent twice is written once."""

sessions: Final = Table(
    "handrail_sessions",
    metadata,
    Column("session_id", String, primary_key=True),
    Column("tenant_id", String),
    Column("revision", BigInteger, nullable=False),
    Column("saved_at", Double, nullable=False),
    Column("state", LargeBinary, nullable=False),
    Column("customer_id", String),
    Index("handrail_sessions_customer", "customer_id", "saved_at"),
    Index("handrail_sessions_saved", "saved_at"),
    Index("handrail_sessions_tenant", "tenant_id", "saved_at", "session_id"),
)
"""One row for each conversation: all but its messages, as JSON in bytes, because it may hold what a text cannot."""

messages: Final = Table(
    "handrail_messages",
    metadata,
    Column("session_id", String, primary_key=True),
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    Column("message", LargeBinary, nullable=False),
)
"""One row for each message of each conversation, as JSON."""

tenants: Final = Table(
    "handrail_tenants",
    metadata,
    Column("tenant_id", String, primary_key=True),
    Column("revision", BigInteger, primary_key=True, autoincrement=False),
    Column("version", String, nullable=False),
    Column("saved_at", Double, nullable=False),
    Column("who", String, nullable=False),
    Column("config", LargeBinary),
)
"""One row for each revision of each tenant, as JSON; the newest counts, and one without a configuration is removed."""

tenant_numbers: Final = Table(
    "handrail_tenant_numbers",
    metadata,
    Column("number", String, primary_key=True),
    Column("tenant_id", String, nullable=False),
    Index("handrail_tenant_numbers_tenant", "tenant_id"),
)
"""The numbers of the newest revisions: one number means one tenant."""

webhooks: Final = Table(
    "handrail_webhooks",
    metadata,
    Column("id", String, primary_key=True),
    Column("expires_at", Double, nullable=False),
    Index("handrail_webhooks_expiry", "expires_at"),
)
"""The webhooks that some process has taken; one that is delivered again finds its row."""

keys: Final = Table(
    "handrail_keys",
    metadata,
    Column("id", String, primary_key=True),
    Column("digest", String, nullable=False),
    Column("role", String, nullable=False),
    Column("tenant_id", String),
    Column("who", String, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("revoked_at", Double),
    CheckConstraint("role IN ('admin', 'operator', 'viewer', 'caller')", name="handrail_keys_role"),
    Index("handrail_keys_digest", "digest", unique=True),
)
"""One row for each key of a person or a client; the key itself is not stored."""

deliveries: Final = Table(
    "handrail_deliveries",
    metadata,
    Column("session_id", String, primary_key=True),
    Column("call_digest", String, primary_key=True),
    Column("count", BigInteger, nullable=False),
    Column("at", Double, nullable=False),
    Index("handrail_deliveries_at", "at"),
)
"""How often a client without call ids has received the result of one call: what it sends next is a new call."""

turns: Final = Table(
    "handrail_turns",
    metadata,
    Column("session_id", String, primary_key=True),
    Column("owner", String, nullable=False),
    Column("lease_until", Double, nullable=False),
    Column("interrupted", Boolean, nullable=False),
    Index("handrail_turns_lease", "lease_until"),
)
"""The conversations whose turn some process runs now, until it ends or its lease does."""


work: Final = Table(
    "handrail_work",
    metadata,
    Column("session_id", String, primary_key=True),
    Column("call_id", String, primary_key=True),
    Column("tool", String, nullable=False),
    Column("definition", String, nullable=False),
    Column("tenant_id", String, nullable=False),
    Column("customer_id", String),
    Column("agent_id", String),
    Column("turn", BigInteger, nullable=False),
    Column("wakes", BigInteger, nullable=False),
    Column("priority", BigInteger, nullable=False),
    Column("calls", Text),
    Column("decision", Text),
    Column("approval", String),
    Column("repeat", BigInteger, nullable=False),
    Column("seal", String, nullable=False),
    Column("state", String, nullable=False),
    Column("owner", String),
    Column("slot", BigInteger),
    Column("attempts", BigInteger, nullable=False),
    Column("queued_at", Double),
    Column("due_at", Double, nullable=False),
    Column("ended_at", Double),
    Column("cancelled_at", Double),
    Column("recorded", Text),
    Column("is_heard", Boolean),
    CheckConstraint("state IN ('queued', 'running', 'parked', 'waiting', 'done')", name="handrail_work_state"),
)
"""One row for each durable call, with its arguments until it is settled. A tenant of '' is none."""
QUEUED: Final = text("state = 'queued'")
HELD: Final = text("state IN ('running', 'parked', 'waiting')")
Index(
    "handrail_work_queued",
    work.c.tenant_id,
    work.c.priority.desc(),
    work.c.due_at,
    sqlite_where=QUEUED,
    postgresql_where=QUEUED,
)
Index("handrail_work_due", work.c.due_at, sqlite_where=HELD, postgresql_where=HELD)
Index(
    "handrail_work_running",
    work.c.tenant_id,
    sqlite_where=text("state = 'running'"),
    postgresql_where=text("state = 'running'"),
)
Index(
    "handrail_work_slot",
    work.c.tenant_id,
    work.c.slot,
    unique=True,
    sqlite_where=text("slot IS NOT NULL"),
    postgresql_where=text("slot IS NOT NULL"),
)
Index(
    "handrail_work_parked",
    work.c.approval,
    sqlite_where=text("state = 'parked'"),
    postgresql_where=text("state = 'parked'"),
)
Index("handrail_work_ended", work.c.ended_at)
Index("handrail_work_customer", work.c.customer_id, sqlite_where=HAS_CUSTOMER, postgresql_where=HAS_CUSTOMER)


def read_revision(connection: Connection) -> str | None:
    """Read the revision of a database; None if it is empty."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()


HOST_CLOCK: Final[ColumnElement[float]] = bindparam("now", type_=Double())
"""The time of this process, which is given with every statement as `now`."""
_STATEMENT_CLOCK: Final = literal_column("extract(epoch FROM statement_timestamp())::double precision", Double)
"""The same for a whole statement, so that an index can be searched for it."""
DATABASE_CLOCK: Final[ColumnElement[float]] = literal_column(
    "extract(epoch FROM clock_timestamp())::double precision", Double
)


def get_clock(*, is_sqlite: bool) -> ColumnElement[float]:
    """The time that leases are measured by."""
    return HOST_CLOCK if is_sqlite else DATABASE_CLOCK


def get_skew(*, is_sqlite: bool) -> ColumnElement[float]:
    """How many whole seconds the clock of the database is ahead of this process's; SQLite has none of its own."""
    return literal_column("0.0", Double) if is_sqlite else func.round(_STATEMENT_CLOCK - HOST_CLOCK, type_=Double)

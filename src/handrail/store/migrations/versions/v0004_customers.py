"""Approvals are append-only and name their call; the data of one customer can be found, and erased."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

APPROVALS = "handrail_approvals"
AUDIT = "handrail_audit"
REFUSAL = "the audit is append-only"
QUESTION = ["session_id", "tool", "digest", "by", "repeat"]
OLD_STATES = "state IN ('pending', 'approved', 'denied', 'used')"
NEW_STATES = "state IN ('pending', 'approved', 'denied', 'used', 'withdrawn')"
ERASURE = ("erased_at", sa.Double), ("erased_by", sa.String)

KEPT = (
    *("writer", "number", "at", "kind", "session_id", "tenant_id", "call_id", "tool", "response_id", "item_id"),
    *("guideline_ids", "action", "by", "rule", "source", "ok", "error", "duration_ms", "output_length"),
)
"""The columns of the audit that an erasure leaves as they are."""
ERASED = ("customer_id", "argument_keys", "reason", "arguments", "output")
"""The columns of the audit that an erasure empties."""


def upgrade() -> None:
    """Add the columns, and replace what holds the old promises."""
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    _replace_approvals(OLD_STATES, NEW_STATES, is_sqlite=is_sqlite, adds=True)
    closed = "state = 'used' OR expires_at <= " + (
        "CAST(strftime('%s', 'now') AS REAL)" if is_sqlite else "extract(epoch from clock_timestamp())"
    )
    op.execute(f"UPDATE {APPROVALS} SET closed_at = coalesce(decided_at, expires_at) WHERE {closed}")
    _index_question("closed_at IS NULL")
    op.create_index(
        "handrail_approvals_pending_call",
        APPROVALS,
        ["session_id", "call_id"],
        sqlite_where=sa.text("state = 'pending'"),
        postgresql_where=sa.text("state = 'pending'"),
    )

    for name, kind in ERASURE:
        op.add_column("handrail_ledger", sa.Column(name, kind))
    has_customer = sa.text("customer_id IS NOT NULL")
    op.create_index(
        "handrail_ledger_customer",
        "handrail_ledger",
        ["customer_id", "claimed_at"],
        sqlite_where=has_customer,
        postgresql_where=has_customer,
    )
    _withdraw_on_claim(is_sqlite=is_sqlite)

    op.add_column("handrail_sessions", sa.Column("customer_id", sa.String))
    op.create_index("handrail_sessions_customer", "handrail_sessions", ["customer_id", "saved_at"])

    _drop_update_trigger(is_sqlite=is_sqlite)
    op.add_column(AUDIT, sa.Column("customer_id", sa.String))
    op.add_column(AUDIT, sa.Column("erased_at", sa.Double))
    customer = "json_extract(detail, '$.customer_id')" if is_sqlite else "detail->>'customer_id'"
    op.execute(f"UPDATE {AUDIT} SET customer_id = {customer} WHERE detail IS NOT NULL")
    op.create_index("handrail_audit_customer", AUDIT, ["customer_id", "at"])
    op.create_index("handrail_audit_error", AUDIT, ["error", "at"])
    op.create_index(
        "handrail_audit_successes",
        AUDIT,
        ["at"],
        sqlite_where=sa.text("ok IS 1"),
        postgresql_where=sa.text("ok IS true"),
    )
    _refuse_updates_but_erasure(is_sqlite=is_sqlite)


def _index_question(where: str) -> None:
    still_open = sa.text(where)
    op.create_index(
        "handrail_approvals_question",
        APPROVALS,
        QUESTION,
        unique=True,
        sqlite_where=still_open,
        postgresql_where=still_open,
    )


def _replace_approvals(old: str, new: str, *, is_sqlite: bool, adds: bool) -> None:
    """Change the constraint and the columns; SQLite cannot drop a constraint, so that its table is made again."""
    op.drop_index("handrail_approvals_question", APPROVALS)
    columns = (("call_id", sa.String), ("closed_at", sa.Double), *ERASURE)
    if not is_sqlite:
        op.drop_constraint("handrail_approvals_state", APPROVALS)
        if not adds:
            op.execute(f"UPDATE {APPROVALS} SET state = 'used' WHERE state = 'withdrawn'")
        op.create_check_constraint("handrail_approvals_state", APPROVALS, new)
        for name, kind in columns:
            op.add_column(APPROVALS, sa.Column(name, kind)) if adds else op.drop_column(APPROVALS, name)
        return
    for name, kind in columns if adds else ():
        op.add_column(APPROVALS, sa.Column(name, kind))
    for name, _ in () if adds else columns:
        op.drop_column(APPROVALS, name)
    connection = op.get_bind()
    indexes = connection.execute(
        sa.text(f"SELECT sql FROM sqlite_master WHERE tbl_name = '{APPROVALS}' AND type = 'index' AND sql IS NOT NULL")
    )
    remade = [row[0] for row in indexes]
    made: str = connection.execute(sa.text(f"SELECT sql FROM sqlite_master WHERE name = '{APPROVALS}'")).scalar_one()
    if old not in made:
        raise RuntimeError(f"{APPROVALS} has no constraint {old!r}.")
    other = f"{APPROVALS}_remade"
    op.execute(f"CREATE TABLE {other} " + made[made.index("(") :].replace(old, new))
    names = [row[1] for row in connection.execute(sa.text(f"PRAGMA table_info({APPROVALS})"))]
    quoted = ", ".join(f'"{name}"' for name in names)
    values = quoted if adds else quoted.replace('"state"', "CASE state WHEN 'withdrawn' THEN 'used' ELSE state END")
    op.execute(f"INSERT INTO {other} ({quoted}) SELECT {values} FROM {APPROVALS}")
    op.drop_table(APPROVALS)
    op.rename_table(other, APPROVALS)
    for statement in remade:
        op.execute(statement)


def _withdraw_on_claim(*, is_sqlite: bool) -> None:
    """A call that is claimed needs no answer any more to what was asked about it."""
    withdraw = (
        f"UPDATE {APPROVALS} SET state = 'withdrawn', closed_at = NEW.claimed_at WHERE session_id = NEW.session_id "
        "AND call_id = NEW.call_id AND state = 'pending'"
    )
    if is_sqlite:
        op.execute(f"CREATE TRIGGER handrail_ledger_withdraw AFTER INSERT ON handrail_ledger BEGIN {withdraw}; END")
        return
    op.execute(
        "CREATE FUNCTION handrail_ledger_withdraw() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN {withdraw}; RETURN NULL; END $$"
    )
    op.execute(
        "CREATE TRIGGER handrail_ledger_withdraw AFTER INSERT ON handrail_ledger "
        "FOR EACH ROW EXECUTE FUNCTION handrail_ledger_withdraw()"
    )


def _drop_update_trigger(*, is_sqlite: bool) -> None:
    op.execute("DROP TRIGGER handrail_audit_no_update" + ("" if is_sqlite else f" ON {AUDIT}"))


def _refuse_updates_but_erasure(*, is_sqlite: bool) -> None:
    """A row of the audit changes in one way only: its values are erased, and it says when."""
    if is_sqlite:
        kept = " AND ".join(f'OLD."{name}" IS NEW."{name}"' for name in KEPT)
    else:
        kept = " AND ".join(f'OLD."{name}"::text IS NOT DISTINCT FROM NEW."{name}"::text' for name in KEPT)
    erased = " AND ".join(f"NEW.{name} IS NULL" for name in ERASED)
    is_erasure = f"NEW.erased_at IS NOT NULL AND {erased} AND {kept}"
    if is_sqlite:
        op.execute(
            f"CREATE TRIGGER handrail_audit_no_update BEFORE UPDATE ON {AUDIT} WHEN NOT ({is_erasure}) "
            f"BEGIN SELECT RAISE(ABORT, '{REFUSAL}'); END"
        )
        return
    op.execute(
        "CREATE FUNCTION handrail_audit_refuse_change() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN IF {is_erasure} THEN RETURN NEW; END IF; RAISE EXCEPTION '{REFUSAL}'; END $$"
    )
    op.execute(
        f"CREATE TRIGGER handrail_audit_no_update BEFORE UPDATE ON {AUDIT} "
        "FOR EACH ROW EXECUTE FUNCTION handrail_audit_refuse_change()"
    )


def downgrade() -> None:
    """Remove the columns; what was withdrawn counts as used, as it did before."""
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    _drop_update_trigger(is_sqlite=is_sqlite)
    for name in ("customer", "error", "successes"):
        op.drop_index(f"handrail_audit_{name}", AUDIT)
    for name in ("customer_id", "erased_at"):
        op.drop_column(AUDIT, name)
    if is_sqlite:
        op.execute(
            f"CREATE TRIGGER handrail_audit_no_update BEFORE UPDATE ON {AUDIT} WHEN TRUE "
            f"BEGIN SELECT RAISE(ABORT, '{REFUSAL}'); END"
        )
        op.execute("DROP TRIGGER handrail_ledger_withdraw")
    else:
        op.execute("DROP FUNCTION handrail_audit_refuse_change()")
        op.execute(
            f"CREATE TRIGGER handrail_audit_no_update BEFORE UPDATE ON {AUDIT} "
            "FOR EACH ROW EXECUTE FUNCTION handrail_audit_refuse()"
        )
        op.execute("DROP TRIGGER handrail_ledger_withdraw ON handrail_ledger")
        op.execute("DROP FUNCTION handrail_ledger_withdraw()")
    op.drop_index("handrail_sessions_customer", "handrail_sessions")
    op.drop_column("handrail_sessions", "customer_id")
    op.drop_index("handrail_ledger_customer", "handrail_ledger")
    for name, _ in ERASURE:
        op.drop_column("handrail_ledger", name)
    op.drop_index("handrail_approvals_pending_call", APPROVALS)
    # Of several rows about one call, as there can be now, the newest counts.
    op.execute(f"DELETE FROM {APPROVALS} WHERE closed_at IS NOT NULL AND state NOT IN ('used', 'withdrawn')")
    _replace_approvals(NEW_STATES, OLD_STATES, is_sqlite=is_sqlite, adds=False)
    _index_question("state <> 'used'")

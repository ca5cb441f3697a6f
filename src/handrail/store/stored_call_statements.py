"""The statements of stored calls, for SQLite and for Postgres, which measures leases by its own clock."""

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from sqlalchemy import (
    CTE,
    ColumnElement,
    Executable,
    Table,
    TextClause,
    Update,
    and_,
    bindparam,
    case,
    exists,
    func,
    literal_column,
    null,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from handrail.store.tables import approvals, ledger
from handrail.store.tables import work as table

COLUMNS: Final = tuple(column.name for column in table.columns)
_LISTED: Final = ", ".join(f"handrail_work.{name}" for name in COLUMNS)
_OF_CALL: Final = (table.c.session_id == bindparam("of_session"), table.c.call_id == bindparam("of_call"))
_DOUBLE: Final[Any] = table.c.due_at.type
_ZERO: Final[Any] = literal_column("0", type_=table.c.turn.type)
_ONE: Final[Any] = literal_column("1", type_=table.c.turn.type)
_STATEMENT_CLOCK: Final = "extract(epoch FROM statement_timestamp())::double precision"
"""The clock of Postgres, the same for a whole statement: an index can be searched for it."""
_LONGEST_DELAY: Final = 60
"""Seconds: no queued call waits longer. One that seems to was queued before the clock jumped back, and is due."""
_MAX_TENANTS: Final = 200
"""Tenants that one take looks at."""


class WorkStatements:
    """The statements for one kind of database. Delays are seconds; `now` is the time here, and only SQLite uses it."""

    def __init__(self, *, is_sqlite: bool) -> None:
        self._is_sqlite = is_sqlite
        self._clock_text = ":now" if is_sqlite else _STATEMENT_CLOCK
        self._clock: Any = _seconds("now") if is_sqlite else literal_column(self._clock_text, type_=_DOUBLE)
        self._insert = (sqlite if is_sqlite else postgresql).insert
        self.get = self._select().where(*_OF_CALL)
        self.put = self.build_put()
        self.park = self._build_park()
        self.wake = self._queue(table.c.approval == bindparam("of_approval"), table.c.state == _as("parked"))
        self.wake_due = self._queue(table.c.state.in_((_as("parked"), _as("waiting"))), table.c.due_at <= self._clock)
        self.take_one = self._build_take_one()
        self.release = self._of_owner().values(
            state=bindparam("to_state"),
            owner=null(),
            slot=null(),
            due_at=self._clock + _seconds("delay"),
            attempts=table.c.attempts + bindparam("more"),
        )
        self.finish = self._of_owner().values(recorded=bindparam("to_recorded"), **build_closed(self._clock))
        self.end = update(table).where(*_OF_CALL, table.c.state != _as("done")).values(**build_closed(self._clock))
        self.cancel = self._build_cancel()
        self.find_cancelled = select(table.c.session_id, table.c.call_id).where(
            table.c.state == _as("running"), table.c.owner == bindparam("of_owner"), table.c.cancelled_at.is_not(None)
        )
        self.resend = (
            self._select()
            .where(
                or_(
                    (table.c.state == _as("queued"))
                    & or_(
                        table.c.due_at
                        <= self._clock - case((table.c.attempts == _ZERO, _seconds("resend_after")), else_=0.0),
                        self._is_stranded,
                    ),
                    (table.c.state == _as("running")) & (table.c.due_at <= self._clock),
                )
            )
            .order_by(table.c.due_at)
            .limit(bindparam("max_rows"))
        )
        self.observe = (
            select(ledger.c.session_id, ledger.c.call_id, ledger.c.owner, ledger.c.lease_until)
            .select_from(table)
            .join(ledger, (ledger.c.session_id == table.c.session_id) & (ledger.c.call_id == table.c.call_id))
            .where(
                table.c.state == _as("running"),
                ledger.c.state == _as("running"),
                ledger.c.owner != bindparam("of_owner"),
            )
            .limit(1_000)
        )
        self.renew = self._build_renew()
        self.count_attempts = text(
            "SELECT session_id, call_id, attempts FROM handrail_work "
            f"WHERE (session_id, call_id) IN ({self._given_refs})"
        )
        self.is_due = text(
            "SELECT 1 FROM handrail_work WHERE (state = 'queued' OR state = 'running') "
            f"AND (due_at <= {self._clock_text} OR (state = 'queued' AND {_build_stranded(self._clock_text)})) LIMIT 1"
        )

    @property
    def _is_stranded(self) -> Any:
        """Whether a queued call was queued before the clock jumped back."""
        return table.c.due_at > self._clock + literal_column(str(_LONGEST_DELAY), type_=_DOUBLE)

    def _select(self) -> Any:
        return select(table, self._clock.label("read_at"))

    def _of_owner(self) -> Update:
        return update(table).where(*_OF_CALL, table.c.state == _as("running"), table.c.owner == bindparam("of_owner"))

    def _queue(self, *conditions: Any) -> Executable:
        changed: Any = (
            update(table)
            .where(*conditions)
            .values(state=_as("queued"), due_at=self._clock, queued_at=self._clock, slot=null(), owner=null())
        )
        return changed.returning(*table.columns, self._clock.label("read_at"))

    # Storing.

    def _build_row(self, **columns: Any) -> dict[str, Any]:
        return {
            column.name: columns.get(column.name, bindparam(f"work_{column.name}", type_=column.type))
            for column in table.columns
        }

    def _select_new(self, **columns: Any) -> Any:
        return select(*self._build_row(**columns).values())

    def _upsert(self, selected: Any, condition: Any = None) -> Any:
        return self._replace_earlier(self._insert(table).from_select(list(COLUMNS), selected), condition)

    def _replace_earlier(self, new: Any, condition: Any = None) -> Any:
        """Store the call anew if there is a row; that keeps how often it was taken, and who cancelled it."""
        kept = ("session_id", "call_id", "attempts", "cancelled_at")
        changes: Mapping[str, Any] = {name: new.excluded[name] for name in COLUMNS if name not in kept}
        changes = {**changes, "queued_at": func.coalesce(new.excluded.queued_at, table.c.queued_at)}
        return new.on_conflict_do_update(
            index_elements=[table.c.session_id, table.c.call_id], set_=changes, where=condition
        )

    def build_put(self, *conditions: Any) -> Executable:
        """Queue a call, if its tenant has room for it, and under further conditions."""
        # At most as many rows are counted as are allowed.
        counted = (
            select(_ONE)
            .where(table.c.tenant_id == bindparam("work_tenant_id"), table.c.state == _as("queued"))
            .limit(bindparam("max_queued"))
        )
        has_room = (
            bindparam("max_queued", type_=table.c.turn.type)
            > select(func.count()).select_from(counted.subquery("queued")).scalar_subquery()
        )
        queued: dict[str, Any] = {"state": _as("queued"), "queued_at": self._clock, "due_at": self._clock}
        can_replace = table.c.state.not_in((_as("running"), _as("waiting")))
        if self._is_sqlite:
            new = build_row_insert(table, self._build_row(**queued), has_room, *conditions)
            return self._replace_earlier(new, can_replace)
        return self._upsert(self._select_new(**queued).where(has_room, *conditions), can_replace)

    def build_put_new(self, is_unknown: ColumnElement[bool]) -> Executable:
        """Queue a call that was not looked up, if the ledger knows neither its id nor its effect."""
        of_call = (ledger.c.session_id == bindparam("work_session_id"), ledger.c.call_id == bindparam("work_call_id"))
        return self.build_put(~exists(select(_ONE).select_from(ledger).where(*of_call)), is_unknown)

    def _build_park(self) -> Executable:
        asked = select(approvals.c.state, approvals.c.by).where(approvals.c.token == bindparam("of_token"))
        if not self._is_sqlite:  # A decision that is being made is waited for.
            asked = asked.with_for_update(read=True)
        decided = asked.cte("asked")
        is_decided = exists(
            select(_ONE)
            .select_from(decided)
            .where(
                or_(
                    decided.c.state == _as("denied"),
                    (decided.c.state == _as("approved")) & (decided.c.by == _as("operator")),
                )
            )
        )
        due = self._clock + _seconds("expires_in")
        selected = self._select_new(
            state=case((is_decided, _as("queued")), else_=_as("parked")),
            queued_at=case((is_decided, self._clock), else_=null()),
            due_at=case((is_decided, self._clock), else_=due),
            owner=null(),
        ).where(_ONE == _ONE)
        can_park = or_(
            table.c.state.not_in((_as("running"), _as("waiting"))),
            table.c.owner == bindparam("of_owner", type_=table.c.owner.type),
        )
        return self._upsert(selected, can_park).returning(table.c.state)

    def build_hold(self, claimed: CTE | None = None) -> Any:
        """Store a call that was claimed, for its owner; as a part of the statement that claims it, if that is given."""
        running: dict[str, Any] = {"state": _as("running"), "due_at": self._clock + _seconds("lease")}
        if claimed is None:
            return self._replace_earlier(self._insert(table).values(self._build_row(**running)).inline())
        return self._upsert(self._select_new(**running).select_from(claimed))

    # Taking.

    def _build_take_one(self) -> Executable:
        is_own = (table.c.state == _as("running")) & (table.c.owner == bindparam("of_owner"))
        changed: Any = (
            update(table)
            .where(
                *_OF_CALL,
                table.c.state != _as("done"),
                or_(table.c.due_at <= self._clock, is_own, (table.c.state == _as("queued")) & self._is_stranded),
            )
            .values(
                state=_as("running"),
                owner=bindparam("of_owner"),
                due_at=self._clock + _seconds("lease"),
                attempts=table.c.attempts + _ONE,
            )
        )
        return changed.returning(*table.columns, self._clock.label("read_at"))

    def build_take(self, *, is_limited: bool) -> TextClause:
        """Take, and take over, in one statement: of each tenant its first call, and what owners that are gone left.

        The tenants come from one probe of the index each, however many calls wait. The rows are picked before any is
        changed: Postgres could otherwise pick again for every row that it changes. With a limit, a call gets a free
        number of its tenant, which a unique index gives to one call only.
        """
        return _build_sqlite_take(is_limited) if self._is_sqlite else _build_postgres_take(is_limited)

    # Changing.

    def _build_cancel(self) -> Executable:
        ends = (
            bindparam("to_recorded", type_=table.c.recorded.type).is_not(None)
            & table.c.state.in_((_as("queued"), _as("parked")))
            & (table.c.attempts == _ZERO)
        )
        closed = {**build_closed(self._clock), "recorded": bindparam("to_recorded", type_=table.c.recorded.type)}
        changes = {name: case((ends, value), else_=table.c[name]) for name, value in closed.items()}
        return update(table).where(*_OF_CALL, table.c.state != _as("done")).values(cancelled_at=self._clock, **changes)

    @property
    def _given_refs(self) -> str:
        """The sessions and ids of the calls that are bound."""
        if self._is_sqlite:
            return "SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(:refs)"
        return "SELECT * FROM unnest(CAST(:sessions AS text[]), CAST(:calls AS text[]))"

    def _build_renew(self) -> TextClause:
        return text(
            f"UPDATE handrail_work SET due_at = {self._clock_text} + :lease "
            f"WHERE (session_id, call_id) IN ({self._given_refs}) AND owner = :of_owner AND state = 'running'"
        )


def build_row_insert(target: Table, row: Mapping[str, Any], *conditions: ColumnElement[bool]) -> Any:
    """Insert a row into a table of SQLite, under conditions: otherwise its session is null, and the row is ignored.

    Rows that are selected would be written into a table of their own first, and pages be kept to undo several of them:
    one of 100 claims that share a commit takes 42 µs of CPU with that, and 26 as a row of values.
    """
    session = case((and_(*conditions), row["session_id"]))
    return sqlite.insert(target).prefix_with("OR IGNORE").values({**row, "session_id": session}).inline()


def build_closed(clock: Any) -> dict[str, Any]:
    """What becomes of a row when its call has its result: it loses its arguments, its owner and its slot."""
    return {"state": _as("done"), "calls": null(), "owner": null(), "slot": null(), "ended_at": clock}


def _seconds(name: str) -> Any:
    return bindparam(name, type_=_DOUBLE)


def _as(word: str) -> Any:
    return literal_column(f"'{word}'", type_=table.c.state.type)


def _build_stranded(clock: str, name: str = "due_at") -> str:
    return f"{name} > {clock} + {_LONGEST_DELAY}"


_TENANTS: Final = """
WITH RECURSIVE tenants(tenant_id) AS (
    SELECT * FROM (SELECT tenant_id FROM handrail_work WHERE state = 'queued' ORDER BY tenant_id LIMIT 1) AS first
    UNION ALL
    SELECT (SELECT w.tenant_id FROM handrail_work w WHERE w.state = 'queued' AND w.tenant_id > t.tenant_id
            ORDER BY w.tenant_id LIMIT 1)
    FROM tenants t WHERE t.tenant_id IS NOT NULL
),
turns AS (
    SELECT t.tenant_id,
        (SELECT count(*) FROM handrail_work r WHERE r.tenant_id = t.tenant_id AND r.state = 'running') AS running
    FROM tenants t WHERE t.tenant_id IS NOT NULL
)
"""


_HAS_MORE: Final = (
    "EXISTS (SELECT 1 FROM handrail_work w WHERE w.state = 'queued' AND w.tenant_id = handrail_work.tenant_id "
    "AND (w.session_id, w.call_id) <> (handrail_work.session_id, handrail_work.call_id))"
)
"""Whether more calls of the tenant wait than the one that is taken."""
_TURN: Final = "running, tenant_id <= :last_tenant, tenant_id"
"""Tenants with the fewest running calls first, and among them in turn."""


@cache
def _build_postgres_take(is_limited: bool) -> TextClause:
    slot = "NULL::bigint"
    if is_limited:
        slot = (
            "(SELECT s.number FROM generate_series(1, CAST(:max_running_per_tenant AS bigint)) s(number) "
            "WHERE NOT EXISTS (SELECT 1 FROM handrail_work r WHERE r.tenant_id = t.tenant_id AND r.slot = s.number) "
            "ORDER BY random() LIMIT 1)"
        )
    has_slot = "WHERE slot IS NOT NULL" if is_limited else ""
    clock = _STATEMENT_CLOCK
    return text(
        f"""{_TENANTS},
slots AS MATERIALIZED (
    SELECT t.tenant_id, t.running, {slot} AS slot
    FROM (SELECT * FROM turns ORDER BY {_TURN} LIMIT {_MAX_TENANTS}) t
),
picked AS MATERIALIZED (
    SELECT q.session_id, q.call_id, t.slot
    FROM (SELECT * FROM slots {has_slot}) t
    CROSS JOIN LATERAL (
        SELECT w.session_id, w.call_id FROM handrail_work w
        WHERE w.state = 'queued' AND w.tenant_id = t.tenant_id
            AND (w.due_at <= {clock} OR {_build_stranded(clock, "w.due_at")})
            AND w.definition = ANY(CAST(:definitions AS text[]))
        ORDER BY w.priority DESC, w.due_at LIMIT 1 FOR UPDATE SKIP LOCKED
    ) q
    ORDER BY {_TURN} LIMIT :max_rows
),
left_over AS MATERIALIZED (
    SELECT session_id, call_id, slot FROM handrail_work
    WHERE state = 'running' AND due_at <= {clock} AND definition = ANY(CAST(:definitions AS text[]))
    ORDER BY due_at LIMIT :max_rows FOR UPDATE SKIP LOCKED
),
taken AS MATERIALIZED (SELECT * FROM left_over UNION ALL SELECT * FROM picked LIMIT :max_rows)
UPDATE handrail_work SET state = 'running', owner = :of_owner, slot = taken.slot, due_at = {clock} + :lease,
    attempts = attempts + 1
FROM taken WHERE handrail_work.session_id = taken.session_id AND handrail_work.call_id = taken.call_id
RETURNING {_LISTED}, {clock} AS read_at, {_HAS_MORE}"""
    )


@cache
def _build_sqlite_take(is_limited: bool) -> TextClause:
    free = (
        "(SELECT s.value FROM json_each(:slots) s WHERE NOT EXISTS (SELECT 1 FROM handrail_work r "
        "WHERE r.tenant_id = {tenant} AND r.slot = s.value) LIMIT 1)"
    )
    has_slot = f"AND {free.format(tenant='t.tenant_id')} IS NOT NULL" if is_limited else ""
    new_slot = free.format(tenant="handrail_work.tenant_id") if is_limited else "NULL"
    is_known = "definition IN (SELECT value FROM json_each(:definitions))"
    return text(
        f"""{_TENANTS},
picked(id, running, tenant_id) AS MATERIALIZED (
    SELECT (SELECT w.rowid FROM handrail_work w
            WHERE w.state = 'queued' AND w.tenant_id = t.tenant_id AND w.{is_known}
                AND (w.due_at <= :now OR {_build_stranded(":now", "w.due_at")})
            ORDER BY w.priority DESC, w.due_at LIMIT 1), t.running, t.tenant_id
    FROM (SELECT * FROM turns ORDER BY {_TURN} LIMIT {_MAX_TENANTS}) t WHERE 1 = 1 {has_slot}
),
taken(id) AS MATERIALIZED (
    SELECT * FROM (SELECT rowid FROM handrail_work WHERE state = 'running' AND due_at <= :now AND {is_known}
        ORDER BY due_at LIMIT :max_rows)
    UNION ALL
    SELECT * FROM (SELECT id FROM picked WHERE id IS NOT NULL ORDER BY {_TURN} LIMIT :max_rows)
)
UPDATE handrail_work SET state = 'running', owner = :of_owner, due_at = :now + :lease, attempts = attempts + 1,
    slot = CASE WHEN state = 'running' THEN slot ELSE {new_slot} END
WHERE rowid IN (SELECT id FROM taken LIMIT :max_rows)
RETURNING {", ".join(COLUMNS)}, :now AS read_at, {_HAS_MORE}"""
    )

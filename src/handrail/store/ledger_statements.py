"""The statements of the ledger, for SQLite and for Postgres, which compares leases by its own clock."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

from sqlalchemy import (
    CTE,
    BindParameter,
    Column,
    ColumnElement,
    Double,
    Executable,
    Insert,
    Select,
    String,
    Text,
    Update,
    and_,
    bindparam,
    exists,
    func,
    insert,
    literal_column,
    or_,
    select,
    text,
    tuple_,
    union_all,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from handrail.store.approval_statements import build_consume
from handrail.store.erasure import withhold_erased
from handrail.store.stored_call_statements import WorkStatements, build_closed
from handrail.store.tables import DATABASE_CLOCK, HOST_CLOCK, UNSETTLED, approvals, get_clock, work
from handrail.store.tables import audit as audit_table
from handrail.store.tables import ledger as table

Steps = list[tuple[Executable, Mapping[str, Any]]]
"""Statements of one transaction, with their values; each changes one row, or nothing is changed."""


class LedgerStatements:
    """The statements for one kind of database.

    Times are given by the clock of this process. SQLite stores them as they are. For Postgres they are moved to its own
    clock (`now` is the time here): what several hosts compare is measured by one clock.
    """

    def __init__(self, *, is_sqlite: bool) -> None:
        self._is_sqlite = is_sqlite
        self._clock = get_clock(is_sqlite=is_sqlite)
        # SQLite has no clock of its own: 0 is the clock of who reads.
        self._read_at = literal_column("0.0", Double) if is_sqlite else DATABASE_CLOCK
        self.recall_id = self._find("id").where(
            table.c.session_id == bindparam("id_session"), table.c.call_id == bindparam("id_call")
        )
        self.recall = self._build_recall()
        self.settle = self._build_settle()
        self.settle_durable = self._build_settle_durable()
        self.take_over = self._build_take_over()
        self.renew = self._build_renew()
        self.resolve = self._build_resolve()
        self.record_answer = (
            _OF_OWNER.where(*_IS_AS_READ, UNSETTLED)
            .where(table.c.erased_at.is_(None))
            .values(recorded=bindparam("to_recorded", type_=Text))
        )

    # Reading.

    def _find(self, found_by: str) -> Select[Any]:
        return select(literal_column(f"'{found_by}'", String).label("found_by"), table, self._read_at.label("read_at"))

    def _build_recall(self) -> Executable:
        key, full_key = bindparam("of_key", type_=String), bindparam("of_full_key", type_=String)
        by_key = (
            self._find_newest("key", table.c.number, table.c.key == key),
            self._find_newest("full", table.c.full_number, table.c.full_key == full_key),
            self._find_newest("sent", table.c.claimed_at, table.c.sent_key == key, table.c.sent_key != table.c.key),
        )
        return union_all(self.recall_id, *by_key)

    def _find_newest(self, found_by: str, order: Column[Any], *conditions: ColumnElement[bool]) -> Select[Any]:
        found = self._find(found_by).where(*conditions)
        return select(found.order_by(order.desc()).limit(literal_column("1")).subquery())

    def find_doubts(self, *, session_id: str | None, tenant_id: str | None, limit: int) -> Executable:
        """Find the entries whose outcome is not known, the oldest first."""
        wanted = self._find("id").where(UNSETTLED, self._is_in_doubt()).order_by(table.c.claimed_at)
        if session_id is not None:
            wanted = wanted.where(table.c.session_id == session_id)
        if tenant_id is not None:  # Few calls are not settled: those of all tenants are in one small index.
            wanted = wanted.where(table.c.tenant_id == tenant_id)
        return wanted.limit(limit)

    def _is_in_doubt(self) -> ColumnElement[bool]:
        return or_(table.c.state == literal_column("'unknown'"), table.c.lease_until <= self._clock)

    # Claiming.

    def build_claim(
        self,
        values: Mapping[str, Any],
        token: str | None,
        rows: Sequence[Mapping[str, Any]],
        stored: Mapping[str, Any] | None = None,
        *,
        is_new: bool = False,
    ) -> Steps:
        """Consume the approval, insert the entry, and audit both; `stored` is the row of a durable call.

        An entry that `is_new` is inserted only if no other has one of its keys.
        """
        consumed = {} if token is None else {"of_token": token, "now": values["new_claimed_at"]}
        if not self._is_sqlite:
            claim = _build_claim(
                is_approved=token is not None, rows=len(rows), is_durable=stored is not None, is_new=is_new
            )
            return [(claim, {**values, **consumed, **_bind(rows), **(stored or {})})]
        steps: Steps = [(build_consume(is_sqlite=True), consumed)] if token is not None else []
        held: Steps = [] if stored is None else [(_build_hold(), stored)]
        return [*steps, *self.build_plain_claim(values, rows, is_new=is_new), *held]

    def build_plain_claim(
        self, values: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], *, is_new: bool = False
    ) -> Steps:
        """Insert the entry and audit it, in statements of their own."""
        claim = _build_insert(is_sqlite=self._is_sqlite, is_new=is_new)
        return [(claim, values), *((_INSERT_AUDIT, row) for row in rows)]

    def build_take_over(self, values: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Steps:
        """Make an entry another owner's, and audit it."""
        if self._is_sqlite or not rows:
            return [(self.take_over, values), *((_INSERT_AUDIT, row) for row in rows)]
        taken = self.take_over.returning(table.c.call_id).cte("taken")
        return [(_build_audited(taken, len(rows)), {**values, **_bind(rows)})]

    # Changing an entry.

    def _move(self, name: str) -> ColumnElement[float]:
        """A time of this process's clock, by the clock that is stored."""
        given: ColumnElement[float] = bindparam(name, type_=Double())
        return given if self._is_sqlite else given - HOST_CLOCK + DATABASE_CLOCK

    def _build_settled(self) -> Mapping[str, Any]:
        return withhold_erased(
            {
                "state": bindparam("to_state"),
                "settled_at": bindparam("to_settled_at") if self._is_sqlite else DATABASE_CLOCK,
                "recorded": bindparam("to_recorded", type_=Text),
                "changed_arguments": bindparam("to_changed", type_=Text),
            }
        )

    def _build_settle(self) -> Update:
        return _OF_OWNER.where(table.c.state != literal_column("'committed'")).values(self._build_settled())

    def _build_settle_durable(self) -> Executable:
        """Settle the entry of a durable call, and return what the database has a say in; one statement for Postgres,
        which ends the row of the call, too."""
        decided = (table.c.settled_at, table.c.erased_at)
        if self._is_sqlite:
            return self._build_settle().returning(*decided)
        settled = self._build_settle().returning(table.c.session_id, table.c.call_id, *decided).cte("settled")
        is_settled = (work.c.session_id == settled.c.session_id) & (work.c.call_id == settled.c.call_id)
        ended = update(work).where(is_settled).values(**build_closed(self._clock))
        return ended.returning(settled.c.settled_at, settled.c.erased_at)

    def _build_resolve(self) -> Update:
        return _OF_OWNER.where(UNSETTLED, self._is_in_doubt()).values(self._build_settled())

    def _build_take_over(self) -> Update:
        return _OF_OWNER.where(*_IS_AS_READ, UNSETTLED, self._is_in_doubt()).values(
            owner=bindparam("to_owner"),
            state=literal_column("'running'"),
            lease_until=self._move("to_lease_until"),
            run_until=self._move("to_run_until"),
            repeat_until=func.max(table.c.repeat_until, self._move("to_run_until"))
            if self._is_sqlite
            else func.greatest(table.c.repeat_until, self._move("to_run_until")),
            settled_at=None,
            recorded=None,
        )

    def _build_renew(self) -> Update:
        """One statement for all entries, which are given as columns of their keys."""
        if self._is_sqlite:
            values = ", ".join(f"json_extract(value, '$[{position}]')" for position in range(3))
            given = text(f"SELECT {values} FROM json_each(:entries)")
        else:
            arrays = ", ".join(f"CAST(:{name} AS text[])" for name in ("sessions", "calls", "owners"))
            given = text(f"SELECT * FROM unnest({arrays})")
        columns = tuple_(table.c.session_id, table.c.call_id, table.c.owner)
        is_given = columns.in_(given.columns(table.c.session_id, table.c.call_id, table.c.owner))
        return (
            update(table)
            .where(is_given, table.c.state == literal_column("'running'"))
            .values(lease_until=self._move("to_lease_until"))
        )


_OF_OWNER: Final = update(table).where(
    table.c.session_id == bindparam("of_session"),
    table.c.call_id == bindparam("of_call"),
    table.c.owner == bindparam("of_owner"),
)
_IS_AS_READ: Final = table.c.state == bindparam("of_state"), table.c.lease_until == bindparam("of_lease")
_INSERT_AUDIT: Final = insert(audit_table)


def _new(name: str) -> BindParameter[Any]:
    return bindparam(f"new_{name}", type_=table.c[name].type)


def _select_new(*, is_sqlite: bool) -> Select[Any]:
    return select(
        *(
            _new(column.name) - _new("claimed_at") + DATABASE_CLOCK
            if column.name in _TIMES and not is_sqlite
            else _new(column.name)
            for column in table.columns
        )
    )


_TIMES: Final = ("claimed_at", "lease_until", "run_until", "repeat_until")


def _is_next_claim() -> ColumnElement[bool]:
    """Whether the entries with the numbers before are still there: otherwise a number would be given twice."""
    before = table.alias("before")
    checks = (
        or_(
            _new(number) == literal_column("0"),
            exists().where(before.c[key] == _new(key), before.c[number] == _new(number) - literal_column("1")),
        )
        for key, number in (("key", "number"), ("full_key", "full_number"))
    )
    return and_(*checks)


def build_unknown() -> ColumnElement[bool]:
    """Whether no entry has one of the keys, as `recall` looks for them; that none has the id is a constraint."""
    known = table.alias("known")
    is_key = known.c.key == _new("key")
    is_full_key = known.c.full_key == _new("full_key")
    is_sent_key = (known.c.sent_key == _new("key")) & (known.c.sent_key != known.c.key)
    return and_(*(~exists().where(condition) for condition in (is_key, is_full_key, is_sent_key)))


@cache
def _build_insert(*, is_sqlite: bool, is_new: bool = False) -> Any:
    new = (sqlite if is_sqlite else postgresql).insert(table)
    selected = _select_new(is_sqlite=is_sqlite).where(build_unknown() if is_new else _is_next_claim())
    return new.from_select(list(table.columns), selected).on_conflict_do_nothing()


@cache
def _build_hold() -> Executable:
    return WorkStatements(is_sqlite=True).build_hold()


@cache
def _build_claim(*, is_approved: bool, rows: int, is_durable: bool = False, is_new: bool = False) -> Executable:
    """Build one statement for Postgres that consumes the approval, inserts the entry, and audits both.

    Postgres rolls all back if one fails.
    """
    claim = _build_insert(is_sqlite=False, is_new=is_new)
    if is_approved:
        # The consumption is in force even if nothing is inserted, so that it has the condition; and an entry that
        # exists is an error, which undoes it.
        consumed = build_consume(is_sqlite=False).where(_is_next_claim()).returning(approvals.c.token).cte("consumed")
        selected = _select_new(is_sqlite=False).select_from(consumed)
        claim = postgresql.insert(table).from_select(list(table.columns), selected)
    if not rows and not is_durable:
        return claim
    claimed = claim.returning(table.c.call_id).cte("claimed")
    if not is_durable:
        return _build_audited(claimed, rows)
    hold = WorkStatements(is_sqlite=False).build_hold(claimed)
    return _build_audited(claimed, rows).add_cte(hold.returning(work.c.call_id).cte("held")) if rows else hold


def _build_audited(changed: CTE, rows: int) -> Insert:
    """Build a statement that inserts rows into the audit if another one in it changed a row of the ledger."""
    selected = (
        select(
            *(bindparam(f"row_{number}_{column.name}", type_=column.type) for column in audit_table.columns)
        ).select_from(changed)
        for number in range(rows)
    )
    return insert(audit_table).from_select(list(audit_table.columns), union_all(*selected))


def _bind(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {f"row_{number}_{name}": value for number, row in enumerate(rows) for name, value in row.items()}

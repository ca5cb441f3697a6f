"""The statements of the approvals, for SQLite and for Postgres, which measures their times by its own clock."""

from functools import cache
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Double,
    Select,
    String,
    Update,
    bindparam,
    case,
    literal_column,
    select,
    tuple_,
    union_all,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from handrail.authorize.approvals import ApprovalSubject
from handrail.store.tables import HOST_CLOCK, OPEN, PENDING, QUESTION, get_skew
from handrail.store.tables import approvals as table

TIMES: Final = ("created_at", "expires_at", "decided_at")
"""Times that are given and read by the clock of this process."""

_BY_TOKEN: Final = table.c.token == bindparam("of_token")
_SUBJECT: Final = [table.c[name] == bindparam(f"of_{name}") for name in QUESTION]
_USED: Final[ColumnElement[str]] = literal_column("'used'", String)
_WITHDRAWN: Final[ColumnElement[str]] = literal_column("'withdrawn'", String)


class ApprovalStatements:
    """The statements for one kind of database; all are given the time of this process as `now`.

    SQLite stores times as they are given. For Postgres they are moved by the whole seconds that its clock is ahead, and
    moved back when they are read: when an approval expires does not depend on who asked, who decides or who uses it.
    """

    def __init__(self, *, is_sqlite: bool) -> None:
        self._skew = get_skew(is_sqlite=is_sqlite)
        self._now = HOST_CLOCK + self._skew
        is_denied = table.c.state == literal_column("'denied'")
        is_fresh = table.c.expires_at > self._now
        self.insert = (
            (sqlite if is_sqlite else postgresql)
            .insert(table)
            .values(created_at=self._move("given_created_at"), expires_at=self._move("given_expires_at"))
            .on_conflict_do_nothing()
        )
        self.get = self._read().where(_BY_TOKEN)
        self.find = self._read().where(*_SUBJECT, OPEN, is_fresh)
        self.find_answer = union_all(
            self._read().where(
                *(table.c[name] == bindparam(f"of_{name}") for name in ("session_id", "tool", "digest")),
                table.c.call_id == bindparam("of_call"),
                table.c.call_id != literal_column("''"),
                is_denied,
            ),
            self.find,
        )
        """The denial of a call, and what is open about an equal one."""
        self.consume = build_consume(is_sqlite=is_sqlite)
        self.restore = (
            update(table)
            .where(_BY_TOKEN, table.c.state == _USED)
            .values(state=literal_column("'approved'"), closed_at=None)
        )
        self.withdraw = (
            update(table)
            .where(_BY_TOKEN, OPEN)
            .values(state=case((is_denied, table.c.state), else_=_WITHDRAWN), closed_at=self._now)
        )
        self.withdraw_pending = (
            update(table)
            .where(table.c.session_id == bindparam("of_session"), table.c.call_id == bindparam("of_call"), PENDING)
            .values(state=_WITHDRAWN, closed_at=self._now)
        )
        self.close_expired = (
            update(table).where(*_SUBJECT, OPEN, table.c.expires_at <= self._now).values(closed_at=self._now)
        )
        self.decide = (
            update(table)
            .where(_BY_TOKEN, table.c.state == literal_column("'pending'"), is_fresh)
            .values(
                state=bindparam("to_state"),
                who=bindparam("to_who"),
                reason=bindparam("to_reason"),
                changed_arguments=bindparam("to_arguments"),
                decided_at=self._now,
                arguments=bindparam("to_redacted"),
                seen=bindparam("to_seen"),
            )
        )

    def _read(self) -> Select[Any]:
        """Approvals, and after their columns by how much their times are moved."""
        return select(table, self._skew.label("skew"))

    def _move(self, name: str) -> ColumnElement[float]:
        """A time of this process's clock, by the clock that is stored."""
        given: ColumnElement[float] = bindparam(name, type_=Double())
        return given + self._skew

    def build_pending(self, *, is_after: bool) -> Select[Any]:
        """What is pending, those first that expire first; the last one before it is at `after_time`, `after_token`."""
        query = self._read().where(PENDING, table.c.expires_at > self._now)
        if is_after:
            position = tuple_(self._move("after_time"), bindparam("after_token"))
            query = query.where(tuple_(table.c.expires_at, table.c.token) > position)
        return query.order_by(table.c.expires_at, table.c.token)

    def build_history(self, *, is_before: bool) -> Select[Any]:
        """The newest approvals, the newest first; the first one after it is at `before_time`, `before_token`."""
        query = self._read()
        if is_before:
            position = tuple_(self._move("before_time"), bindparam("before_token"))
            query = query.where(tuple_(table.c.created_at, table.c.token) < position)
        return query.order_by(table.c.created_at.desc(), table.c.token.desc())


@cache
def build_consume(*, is_sqlite: bool) -> Update:
    """Build the statement that consumes the approval `of_token` if it can be used `now`: it changes one row or none."""
    now = HOST_CLOCK + get_skew(is_sqlite=is_sqlite)
    return (
        update(table)
        .where(_BY_TOKEN, table.c.state == literal_column("'approved'"), table.c.expires_at > now)
        .values(state=_USED, closed_at=now)
    )


def bind_subject(subject: ApprovalSubject) -> dict[str, Any]:
    """The values of a statement that finds what is asked about a call."""
    return {f"of_{name}": value for name, value in subject.items()}

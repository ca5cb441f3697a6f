"""The clock that times in the database are compared by: the host's for SQLite, the database's for Postgres."""

from typing import Final

from sqlalchemy import ColumnElement, Double, bindparam, func, literal_column

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

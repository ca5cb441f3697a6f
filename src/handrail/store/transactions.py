"""What runs inside one transaction: the same function for SQLite and for Postgres."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection, Executable

T = TypeVar("T")

Values = Mapping[str, Any]
"""The values of the parameters of a statement."""


class Transaction(Protocol):
    """Runs statements inside one transaction."""

    @abstractmethod
    def execute(self, statement: Executable, values: Values | None = None) -> int:
        """Run a statement; return how many rows it changed."""

    @abstractmethod
    def execute_many(self, statement: Executable, rows: Sequence[Values]) -> None:
        """Run a statement for each of several rows of values, which have the same names."""

    @abstractmethod
    def fetch(self, statement: Executable, values: Values | None = None) -> list[tuple[Any, ...]]:
        """Run a query, or a statement that returns what it changed; return its rows."""


StoreStep = Callable[[Transaction], T]
"""Runs statements in one transaction: `Database.run(step)` commits it when it returns, and if it raises nothing is
changed. For SQLite it runs in the thread that owns the writing connection, and may be run again if the transaction that
it shared with others could not be committed: it has no effects but those of its statements."""


class PostgresTransaction:
    """A transaction of SQLAlchemy."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def execute(self, statement: Executable, values: Values | None = None) -> int:
        """Run a statement; return how many rows it changed."""
        return self._connection.execute(statement, values).rowcount

    def execute_many(self, statement: Executable, rows: Sequence[Values]) -> None:
        """Run a statement for each of several rows of values."""
        self._connection.execute(statement, rows)

    def fetch(self, statement: Executable, values: Values | None = None) -> list[tuple[Any, ...]]:
        """Run a query."""
        return [tuple(row) for row in self._connection.execute(statement, values)]

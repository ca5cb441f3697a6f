"""Counts what a store sends to its database: counts stand for cost, times would be noise."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event

from handrail.store.sqlite_threads import SqliteTransaction

WRITES = ("INSERT", "UPDATE", "DELETE")


class Statements:
    """The statements of a `with` block, each with how many rows of parameters it had."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, int]] = []
        self.parameters: list[Any] = []
        """Of each statement, as the driver gets them."""

    @property
    def rows_written(self) -> int:
        """Rows of parameters of all writes."""
        return sum(rows for text, rows in self.sent if text.startswith(WRITES))

    @property
    def count(self) -> int:
        """How many statements there were."""
        return len(self.sent)


@contextmanager
def counted(store: Any) -> Generator[Statements]:
    """Count what `store` sends."""
    statements = Statements()

    def note(connection: Any, cursor: Any, text: str, parameters: Any, context: Any, executemany: bool) -> None:
        statements.sent.append((text.strip(), len(parameters) if executemany else 1))
        statements.parameters.append(parameters)

    if store._database.is_sqlite:
        with _noted_in_threads(note):
            yield statements
        return
    engine = store._database._postgres.sync_engine
    event.listen(engine, "before_cursor_execute", note)
    try:
        yield statements
    finally:
        event.remove(engine, "before_cursor_execute", note)


@contextmanager
def _noted_in_threads(note: Callable[..., None]) -> Generator[None]:
    run, run_many = SqliteTransaction._run, SqliteTransaction._run_many

    def note_one(self: SqliteTransaction, sql: str, values: Any) -> Any:
        note(None, None, sql, values, None, False)
        return run(self, sql, values)

    def note_many(self: SqliteTransaction, sql: str, rows: Any) -> None:
        note(None, None, sql, rows, None, True)
        run_many(self, sql, rows)

    SqliteTransaction._run, SqliteTransaction._run_many = note_one, note_many
    try:
        yield
    finally:
        SqliteTransaction._run, SqliteTransaction._run_many = run, run_many

"""Statements of SQLAlchemy as SQL for `sqlite3`: compiled once, with what converts their values and their rows."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, cast
from weakref import WeakKeyDictionary

from sqlalchemy import ColumnElement, Executable
from sqlalchemy.dialects import sqlite
from sqlalchemy.sql.elements import ClauseElement

from handrail.core.text import compact_json
from handrail.store.transactions import Values

_DIALECT: Final[Any] = sqlite.dialect(paramstyle="named", json_serializer=compact_json)  # pyright: ignore[reportUnknownMemberType]
_Convert = Callable[[Any], Any]


class SqlitePlan:
    """The SQL of one statement, and how its values are bound and its rows are read."""

    __slots__ = ("_decoders", "_encoders", "_fixed", "sql")

    def __init__(self, statement: Executable, names: Sequence[str]) -> None:
        clause = cast(ClauseElement, statement)
        compiled: Any = clause.compile(
            dialect=_DIALECT, column_keys=list(names) or None, compile_kwargs={"render_postcompile": True}
        )
        self.sql: str = str(compiled)
        self._encoders: list[tuple[str, _Convert]] = []
        given = frozenset(names)
        for name, parameter in compiled.binds.items():
            if parameter.required and name not in given:
                raise ValueError(f"a statement needs a value for {name!r}.")
            convert = parameter.type.dialect_impl(_DIALECT).bind_processor(_DIALECT)
            if convert is not None and name in compiled.params:
                self._encoders.append((name, convert))
        self._fixed: Values = {name: value for name, value in compiled.params.items() if name not in given}
        """Values that the statement itself has, of those that are not given."""
        columns: Iterable[ColumnElement[Any]] = getattr(statement, "exported_columns", ())
        decoders = [column.type.dialect_impl(_DIALECT).result_processor(_DIALECT, None) for column in columns]
        self._decoders: list[tuple[int, _Convert]] = [
            (position, convert) for position, convert in enumerate(decoders) if convert is not None
        ]

    def bind(self, values: Values) -> Values:
        """Convert values for `sqlite3`."""
        bound = {**self._fixed, **values}
        for name, convert in self._encoders:
            bound[name] = convert(bound[name])
        return bound

    def read(self, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Convert rows of `sqlite3`."""
        if not self._decoders:
            return rows
        read: list[tuple[Any, ...]] = []
        for row in rows:
            values = list(row)
            for position, convert in self._decoders:
                values[position] = convert(values[position])
            read.append(tuple(values))
        return read


class SqlitePlans:
    """The plans of statements that are used again: those that a module builds once, and not for each call."""

    def __init__(self) -> None:
        self._plans: WeakKeyDictionary[Executable, dict[tuple[str, ...], SqlitePlan]] = WeakKeyDictionary()

    def get(self, statement: Executable, values: Values) -> SqlitePlan:
        """The plan of a statement with values of these names: an insert has the columns that it is given."""
        names = tuple(values)
        plans = self._plans.get(statement)
        if plans is None:
            plans = self._plans[statement] = {}
        plan = plans.get(names)
        if plan is None:
            plan = plans[names] = SqlitePlan(statement, names)
        return plan

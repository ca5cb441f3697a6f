"""Conditions on arguments: a path into them, and what must hold there."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final, cast

from handrail.errors import ConfigError

Test = Callable[[Any], bool | None]
"""True, False, or None if the value is of a type that the condition cannot compare."""

ABSENT: Final = object()


def _to_number(value: Any) -> Decimal | None:
    """A number, also one that is written as a text, as amounts of money are. A truth value is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = Decimal(value) if isinstance(value, int) else Decimal(str(value).strip())
    except InvalidOperation:
        return None
    return None if number.is_nan() else number


def _is_equal(value: Any, wanted: Any) -> bool:
    """Whether two values are equal: a number equals the text of it, and a truth value only another one."""
    if isinstance(value, bool) or isinstance(wanted, bool):
        return value is wanted
    if isinstance(value, str) and isinstance(wanted, str):
        return value == wanted
    number = _to_number(wanted)
    return value == wanted if number is None else _to_number(value) == number


def _comparison(limit: Any, holds: Callable[[Any, Any], bool]) -> Test:
    wanted = _to_number(limit)
    if wanted is None and not isinstance(limit, str):
        raise ConfigError(f"A limit must be a number or a string, got {limit!r}.")

    def test(value: Any) -> bool | None:
        if wanted is not None:
            found = _to_number(value)
            return None if found is None else holds(found, wanted)
        return holds(value, limit) if isinstance(value, str) else None

    return test


def _pattern_test(pattern: Any) -> Test:
    if not isinstance(pattern, str):
        raise ConfigError(f"pattern must be a regular expression, got {pattern!r}.")
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"{pattern!r} is not a regular expression: {error}") from error
    return lambda value: compiled.fullmatch(value) is not None if isinstance(value, str) else None


def _one_of_test(values: Any) -> Test:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise ConfigError(f"one_of must be a list, got {values!r}.")
    listed = tuple(cast(Sequence[Any], values))
    return lambda value: any(_is_equal(value, wanted) for wanted in listed)


OPERATORS: Final[Mapping[str, Callable[[Any], Test]]] = {
    "equals": lambda wanted: lambda value: _is_equal(value, wanted),
    "not_equals": lambda wanted: lambda value: not _is_equal(value, wanted),
    "one_of": _one_of_test,
    "pattern": _pattern_test,
    "above": lambda limit: _comparison(limit, lambda found, wanted: found > wanted),
    "below": lambda limit: _comparison(limit, lambda found, wanted: found < wanted),
    "at_least": lambda limit: _comparison(limit, lambda found, wanted: found >= wanted),
    "at_most": lambda limit: _comparison(limit, lambda found, wanted: found <= wanted),
}


class Condition:
    """A condition on arguments, compiled once: `{"amount": {"above": 500}, "to.country": "CH"}`."""

    __slots__ = ("_tests",)

    def __init__(self, where: Mapping[str, Any]) -> None:
        if not isinstance(where, Mapping) or not where:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"where is a mapping from a path in the arguments to a condition, not {where!r}.")
        self._tests: list[tuple[list[str | int], Test]] = []
        for path, wanted in where.items():
            for name, operand in _parse_operators(path, wanted):
                self._tests.append((_parse_path(path), OPERATORS[name](operand)))

    def matches(self, arguments: Mapping[str, Any], *, in_doubt: bool, expected: Collection[object] = ()) -> bool:
        """Whether every part matches. A part that cannot be compared counts as `in_doubt` says.

        What is absent is in doubt too, if it is a part of an argument that the tool takes (`expected`). A tool that has
        no such argument at all is not what the condition is about.
        """
        for steps, test in self._tests:
            found = _look_up(arguments, steps)
            if found is not ABSENT:
                outcome = test(found)
            else:
                outcome = None if steps[0] in expected or steps[0] in arguments else False
            if not (in_doubt if outcome is None else outcome):
                return False
        return True


def _parse_operators(path: str, wanted: Any) -> list[tuple[str, Any]]:
    if not isinstance(wanted, Mapping):
        return [("equals", wanted)]
    given = cast(Mapping[str, Any], wanted)
    unknown = [name for name in given if name not in OPERATORS]
    if unknown or not given:
        raise ConfigError(f"where[{path!r}] has {unknown or 'nothing'}; it takes: {', '.join(OPERATORS)}.")
    return list(given.items())


def _parse_path(path: object) -> list[str | int]:
    if not isinstance(path, str) or not re.fullmatch(r"[^.\[\]]+(\[\d+\]|\.[^.\[\]]+)*", path):
        raise ConfigError(f"{path!r} is not a path into the arguments; write it like `items[0].price`.")
    return [int(index) if index else name for index, name in re.findall(r"\[(\d+)\]|([^.\[\]]+)", path)]


def _look_up(value: Any, steps: list[str | int]) -> Any:
    for step in steps:
        kind = list if isinstance(step, int) else Mapping
        if not isinstance(value, kind):
            return ABSENT
        try:
            value = cast(Any, value)[step]
        except (KeyError, IndexError):
            return ABSENT
    return value

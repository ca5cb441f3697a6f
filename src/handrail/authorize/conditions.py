"""Conditions on arguments: a path into them, and what must hold there."""

import os
import re
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import PurePath
from typing import Any, Final, Literal, cast

from handrail.authorize.schema_paths import find_nodes
from handrail.core.redact import HIDDEN
from handrail.core.suggestions import suggest
from handrail.errors import ConfigError, shorten
from handrail.schema.schema_nodes import get_fixed_values
from handrail.schema.validation_errors import format_path

Test = Callable[[Any, str | None], bool | None]
"""From a value and the working directory to True, False, or None if the condition cannot compare the value."""

ABSENT: Final = object()
_MAX_SHOWN: Final = 200
"""Characters of a value in an explanation."""


def _to_number(value: Any) -> Decimal | None:
    """A number, also one that is written as a text, as amounts of money are. A truth value is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = Decimal(value) if isinstance(value, int) else Decimal(str(value).strip())
    except InvalidOperation:
        return None
    return None if number.is_nan() else number


def _compare(value: Any, wanted: Any) -> bool | None:
    """Whether two values are equal; None if they are of types that cannot be compared.

    A number can be compared with the text of a number, and with nothing else; null equals null only.
    """
    if value is None or wanted is None:
        return value is wanted
    if isinstance(value, bool) and isinstance(wanted, bool):
        return value is wanted
    if isinstance(value, bool) or isinstance(wanted, bool):
        return None
    if isinstance(value, str) and isinstance(wanted, str):
        return value == wanted
    if isinstance(value, int | float | str) and isinstance(wanted, int | float | str):
        found, number = _to_number(value), _to_number(wanted)
        return None if found is None or number is None else found == number
    return value == wanted if type(value) is type(wanted) else None


def _build_comparison(limit: Any, holds: Callable[[Any, Any], bool]) -> Test:
    wanted = _to_number(limit)
    if wanted is None and not isinstance(limit, str):
        raise ConfigError(f"A limit must be a number or a string, got {limit!r}.")

    def test(value: Any, _: str | None) -> bool | None:
        if wanted is not None:
            found = _to_number(value)
            return None if found is None else holds(found, wanted)
        return holds(value, limit) if isinstance(value, str) else None

    return test


def _build_pattern_test(operator: str, find: Callable[[re.Pattern[str], str], object]) -> Callable[[Any], Test]:
    def build(pattern: Any) -> Test:
        if not isinstance(pattern, str):
            raise ConfigError(f"{operator} must be a regular expression, got {pattern!r}.")
        try:
            compiled = re.compile(pattern, re.DOTALL)
        except re.error as error:
            raise ConfigError(f"{operator} must be a regular expression, got {pattern!r}: {error}.") from error
        return lambda value, _: find(compiled, value) is not None if isinstance(value, str) else None

    return build


def _build_one_of(values: Any) -> Test:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise ConfigError(f"one_of must be a list, got {values!r}.")
    listed = tuple(cast(Sequence[Any], values))

    def test(value: Any, _: str | None) -> bool | None:
        outcomes = [_compare(value, wanted) for wanted in listed]
        return True if True in outcomes else None if None in outcomes else False

    return test


def _build_under(directory: Any) -> Test:
    if not isinstance(directory, str) or not directory:
        raise ConfigError(f"under must be the path of a directory, got {directory!r}.")

    def test(value: Any, working_directory: str | None) -> bool | None:
        if not isinstance(value, str) or not value:
            return None
        found, allowed = _resolve(value, working_directory), _resolve(directory, working_directory)
        return None if found is None or allowed is None else found.is_relative_to(allowed)

    return test


def _resolve(path: str, working_directory: str | None) -> PurePath | None:
    """The path without links and `..`, relative to the working directory; None if that cannot be found out."""
    if not os.path.isabs(path):
        if not working_directory or not os.path.isabs(working_directory):
            return None
        path = os.path.join(working_directory, path)
    try:
        return PurePath(os.path.realpath(path))
    except (OSError, ValueError, RecursionError):
        return None


def _normalize(value: Any) -> Any:
    """A text in its NFKC form, in which characters that look alike are equal; also each text of a list."""
    if isinstance(value, str):
        return unicodedata.normalize("NFKC", value)
    return [_normalize(item) for item in cast(list[Any], value)] if isinstance(value, list | tuple) else value


def _test_value(value: Any, test: Test, normalized_test: Test, working_directory: str | None) -> bool | None:
    """The outcome of a test; None also if a text and its NFKC form do not agree."""
    outcome = test(value, working_directory)
    if isinstance(value, str) and not value.isascii():
        normalized = normalized_test(_normalize(value), working_directory)
        outcome = outcome if outcome is normalized else None
    return outcome


def _negate(outcome: bool | None) -> bool | None:
    return None if outcome is None else not outcome


OPERATORS: Final[Mapping[str, Callable[[Any], Test]]] = {
    "equals": lambda wanted: lambda value, _: _compare(value, wanted),
    "not_equals": lambda wanted: lambda value, _: _negate(_compare(value, wanted)),
    "one_of": _build_one_of,
    "matches": _build_pattern_test("matches", lambda pattern, text: pattern.fullmatch(text)),
    "search": _build_pattern_test("search", lambda pattern, text: pattern.search(text)),
    "under": _build_under,
    "above": lambda limit: _build_comparison(limit, lambda found, wanted: found > wanted),
    "below": lambda limit: _build_comparison(limit, lambda found, wanted: found < wanted),
    "at_least": lambda limit: _build_comparison(limit, lambda found, wanted: found >= wanted),
    "at_most": lambda limit: _build_comparison(limit, lambda found, wanted: found <= wanted),
}

_FAILURES: Final[Mapping[str, str]] = {
    "equals": "not",
    "not_equals": "and must not be",
    "one_of": "not one of",
    "matches": "not a match of",
    "search": "without a match of",
    "under": "not under",
    "above": "not above",
    "below": "not below",
    "at_least": "not at least",
    "at_most": "not at most",
}
"""How an operator fails, before its operand."""
_NUMERIC: Final = frozenset({"above", "below", "at_least", "at_most"})
_TEXTUAL: Final = frozenset({"matches", "search", "under"})


class Condition:
    """A condition on arguments, compiled once: `{"amount": {"above": 500}, "to.country": "CH"}`.

    The parts are connected by "and"; `{"not": {…}}` negates a condition.
    """

    __slots__ = ("_negated", "_normalized_tests", "_tests")

    def __init__(self, where: Mapping[str, Any]) -> None:
        if not isinstance(where, Mapping) or not where:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"where must be a mapping from a path in the arguments to a condition, got {where!r}.")
        self._negated = Condition(where["not"]) if isinstance(where.get("not"), Mapping) else None
        self._tests: list[tuple[list[str | int], str, Any, Test]] = []
        self._normalized_tests: list[Test] = []
        """The same tests, for a text in its NFKC form."""
        for path, wanted in where.items():
            if path == "not" and self._negated is not None:
                continue
            for name, operand in _parse_operators(path, wanted):
                test = OPERATORS[name](operand)
                self._tests.append((_parse_path(path), name, operand, test))
                is_text = name in ("equals", "not_equals", "one_of")
                self._normalized_tests.append(OPERATORS[name](_normalize(operand)) if is_text else test)

    def matches(
        self,
        arguments: Mapping[str, Any],
        *,
        action: Literal["allow", "ask", "deny"],
        expected: Collection[object] | None = (),
        working_directory: str | None = None,
    ) -> bool:
        """Whether every part matches. In doubt, a restriction (ask, deny) matches, and a permission does not.

        A part is in doubt if its value cannot be compared: `at_most: 100` with `"5,000"`; or if a text matches and its
        NFKC form does not, or the other way round: full-width letters and ligatures get past no restriction.

        What is absent is in doubt too, if it is a part of an argument that the tool takes (`expected`; None if the tool
        declares no arguments). A tool that has no such argument at all is not what the condition is about.
        """
        outcome = self._evaluate(arguments, expected, working_directory)
        return action != "allow" if outcome is None else outcome

    def _evaluate(
        self, arguments: Mapping[str, Any], expected: Collection[object] | None, working_directory: str | None
    ) -> bool | None:
        is_certain = True
        for (steps, _, _, test), normalized_test in zip(self._tests, self._normalized_tests, strict=True):
            found = _look_up(arguments, steps)
            if found is ABSENT:
                outcome = None if expected is None or steps[0] in expected or steps[0] in arguments else False
            else:
                outcome = _test_value(found, test, normalized_test, working_directory)
            if outcome is False:
                return False
            is_certain = is_certain and outcome is True
        if self._negated is not None:
            outcome = _negate(self._negated._evaluate(arguments, expected, working_directory))
            if outcome is False:
                return False
            is_certain = is_certain and outcome is True
        return True if is_certain else None

    def explain_failure(
        self, arguments: Mapping[str, Any], *, shown: Mapping[str, Any], working_directory: str | None = None
    ) -> str:
        """Why this condition does not hold: the first part of it that does not, and the value as `shown` has it."""
        for (steps, name, operand, test), normalized_test in zip(self._tests, self._normalized_tests, strict=True):
            path, found = format_path(steps), _look_up(arguments, steps)
            if found is ABSENT:
                return f"there is no {path}"
            outcome = _test_value(found, test, normalized_test, working_directory)
            if outcome is True:
                continue
            value = _look_up(shown, steps)
            value = HIDDEN if value is ABSENT or value == HIDDEN else shorten(repr(value), _MAX_SHOWN)
            if outcome is None:
                return f"{path} is {value}, for which `{name}` cannot tell"
            return f"{path} is {value}, {_FAILURES[name]} {operand!r}"
        return "what stands under `not` holds, or may hold"

    def find_problems(self, schemas: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        """Why this condition can never hold for any of these schemas: unknown arguments, impossible comparisons."""
        for steps, operator, operand, test in self._tests:
            found = find_nodes(schemas, steps)
            if found.is_open:
                continue
            path = format_path(steps)
            if not found.nodes:
                yield f"unknown argument {path!r}{suggest(found.missing, found.names)}"
                continue
            problems = [_find_impossible(operator, operand, node, test) for node in found.nodes]
            if all(problems):
                yield f"the argument {path!r} {problems[0]}"
        if self._negated is not None:
            yield from self._negated.find_problems(schemas)


def _find_impossible(operator: str, operand: Any, node: Mapping[str, Any], test: Test) -> str | None:
    """Why a condition can never hold for values of this schema."""
    values = get_fixed_values(dict(node))
    if values is not None and all(test(value, None) is False for value in values):
        return f"can only be {' or '.join(map(repr, values[:10]))}, so that `{operator}` never holds."
    kind: Any = node.get("type")
    if not isinstance(kind, str) or kind in ("object", "array", "null"):
        return None
    if kind == "boolean" and operator in _NUMERIC | _TEXTUAL:
        return f"is a boolean, which `{operator}` cannot compare."
    if kind in ("integer", "number"):
        if operator in _TEXTUAL:
            return f"is a number, which `{operator}` cannot compare."
        if operator in ("equals", *_NUMERIC) and operand is not None and _to_number(operand) is None:
            return f"is a number, and can never be compared with {operand!r}."
    return None


def _parse_operators(path: str, wanted: Any) -> list[tuple[str, Any]]:
    if not isinstance(wanted, Mapping):
        return [("equals", wanted)]
    given = cast(Mapping[str, Any], wanted)
    if "pattern" in given:
        raise ConfigError(
            f"where[{path!r}] has 'pattern'; write 'matches' for the whole text, or 'search' for a part of it."
        )
    unknown = [name for name in given if name not in OPERATORS]
    if unknown:
        raise ConfigError(
            f"unknown operator {unknown[0]!r} in where[{path!r}]{suggest(unknown[0], OPERATORS)} "
            f"It takes: {', '.join(OPERATORS)}."
        )
    if not given:
        raise ConfigError(f"where[{path!r}] is empty; it takes: {', '.join(OPERATORS)}.")
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

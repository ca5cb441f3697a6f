"""Conditions on arguments: a path into them, and what must hold there."""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from pydantic_core import SchemaError, SchemaValidator, core_schema

from handrail.authorize.argument_paths import (
    ABSENT,
    EVERY,
    DeclaredArguments,
    PathSteps,
    find_nodes,
    look_up,
    look_up_all,
    parse_path,
    write_path,
)
from handrail.authorize.from_condition import OriginTest, parse_sources
from handrail.core.context import ToolContext
from handrail.core.lazy_loading import LazyModule, LazyPattern
from handrail.core.redact import HIDDEN
from handrail.core.text import encodable, normalize_unicode, suggest
from handrail.errors import ConfigError, shorten
from handrail.schema.schema_nodes import get_fixed_values

if TYPE_CHECKING:
    import pathlib
else:
    pathlib = LazyModule("pathlib")  # 2.4 of the 25 ms that an executor's import adds to that of Pydantic.

Test = Callable[[Any, ToolContext[Any] | None], bool | None]
"""From a value and the context to True, False, or None if the condition cannot compare the value."""

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
    if isinstance(value, str) and isinstance(wanted, str):
        return value == wanted
    if isinstance(value, int | float | str):
        found, number = _to_number(value), _to_number(wanted)
        return None if found is None or number is None else found == number
    return value == wanted if type(value) is type(wanted) else None


def _build_comparison(limit: Any, holds: Callable[[Any, Any], bool]) -> Test:
    wanted = _to_number(limit)
    if wanted is None and not isinstance(limit, str):
        raise ConfigError(f"A limit must be a number or a string, got {limit!r}.")

    def test(value: Any, _: ToolContext[Any] | None) -> bool | None:
        if wanted is not None:
            found = _to_number(value)
            return None if found is None else holds(found, wanted)
        return holds(value, limit) if isinstance(value, str) else None

    return test


def _build_pattern_test(operator: str, *, is_whole: bool) -> Callable[[Any], Test]:
    def build(pattern: Any) -> Test:
        if not isinstance(pattern, str):
            raise ConfigError(f"{operator} must be a regular expression, got {pattern!r}.")
        try:
            has_match = _compile_pattern(pattern, is_whole=is_whole)
        except re.error as error:
            raise ConfigError(f"{operator} must be a regular expression, got {pattern!r:.200}: {error}.") from error
        except (SchemaError, OverflowError, RecursionError, ValueError) as error:
            raise ConfigError(
                f"{operator} must be a regular expression that can be matched in linear time (no look-around, no "
                f"back-references, no huge repetition), got {pattern!r:.200}."
            ) from error
        return lambda value, _: has_match(value) if isinstance(value, str) else None

    return build


def _compile_pattern(pattern: str, *, is_whole: bool) -> Callable[[str], bool | None]:
    """A pattern for the engine without backtracking: rules may be those of a tenant, the text is a model's, and
    `(a+)+$` would hold up every call of the process."""
    text, size = _translate_pattern(pattern)
    re.compile(pattern)  # Only what Python can read, too: this engine has more.
    has_end = r"\Z" in _TOKEN.compiled.findall(pattern)
    text = rf"(?s)\A(?:{text})\z" if is_whole else f"(?s){text}"
    compiled = SchemaValidator(core_schema.str_schema(pattern=text, regex_engine="rust-regex"))

    def has_match(value: str) -> bool | None:
        if size * len(value) > _MAX_STEPS:
            return None
        if compiled.isinstance_python(value):
            return True
        if not value.isascii() and encodable(value) != value:
            return None
        # `$` also stands before a line break that ends the text.
        return not (is_whole or has_end) and value.endswith("\n") and compiled.isinstance_python(value[:-1])

    return has_match


_MAX_STEPS: Final = 100_000_000
"""Characters of a text, times the size of an expression: at worst each is compared with each, which takes 2 seconds."""
_TOKEN: Final = LazyPattern(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]?|\{[\d,\s]*\}|\(\?(?:#|[a-z-]+[:)])|.", re.DOTALL)
"""A part of an expression: an escape, a set, how often something is repeated, flags, a character."""
_CLASSES: Final = {
    r"\s": r"\s\x1c-\x1f",
    r"\S": r"[^\s\x1c-\x1f]",
    r"\w": r"\p{L}\p{N}_",
    r"\W": r"[^\p{L}\p{N}_]",
}
"""The classes of Python that are others in this engine, as parts of a set."""
_ESCAPES: Final = {r"\Z": r"\z", r"\<": "<", r"\>": ">"} | {
    escape: members if members[0] == "[" else f"[{members}]" for escape, members in _CLASSES.items()
}
_SETS: Final = frozenset((".", r"\d", r"\D", *_CLASSES))
_SET_OPERATORS: Final = LazyPattern(r"\[|&&|--|~~|\|\|")


def _translate_pattern(pattern: str) -> tuple[str, int]:
    """A pattern of Python for the other engine, and its size: its sets, and all that is repeated, as when written out.

    Raises `re.error` for what the two read in different ways.
    """
    tokens = _TOKEN.compiled.findall(pattern)
    translated: list[str] = []
    sizes, last = [0], 0  # Of the groups that are open, and of what was read last.
    singles, last_single = [0], 0  # How many of it are characters that are not repeated.
    for token, following in zip(tokens, [*tokens[1:], ""], strict=False):
        is_repetition = token in ("*", "+", "?") or (token[0] == "{" and len(token) > 1)
        if (
            (token in (r"\b", r"\B") and following == "{")
            or (is_repetition and (following == "+" or any(map(str.isspace, token))))
            or (token[:2] == "(?" and ("#" in token or "x" in token))
            or (token[0] == "[" and _SET_OPERATORS.compiled.search(re.sub(r"\\.", "a", token[1:], flags=re.DOTALL)))
        ):
            raise re.error(f"{token + following:.20} has more than one meaning; escape it or write it in another way")
        if token[0] == "[":
            translated.append(re.sub(r"\\.", lambda escape: _CLASSES.get(escape[0], escape[0]), token, flags=re.DOTALL))
        else:
            translated.append(_ESCAPES.get(token, token))
        if is_repetition:
            times = max(map(int, re.findall(r"\d+", token)), default=1)
            sizes[-1] += last * max(times - 1, 0)
            last *= max(times, 1)
            singles[-1] -= last_single
            last_single = 0
        elif token[0] == "(" and token[-1] != ")":
            sizes.append(0)
            singles.append(0)
        elif token == ")":
            last, last_single = (sizes.pop(), singles.pop()) if len(sizes) > 1 else (0, 0)
            sizes[-1] += last
            singles[-1] += last_single
        else:
            last, last_single = 1, int(token[0] != "[" and token not in _SETS)
            sizes[-1] += 1
            singles[-1] += last_single
    return "".join(translated), sizes[0] - singles[0]


def _build_one_of(values: Any) -> Test:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise ConfigError(f"one_of must be a list, got {values!r}.")
    listed = tuple(cast(Sequence[Any], values))

    def test(value: Any, _: ToolContext[Any] | None) -> bool | None:
        outcomes = [_compare(value, wanted) for wanted in listed]
        return True if True in outcomes else None if None in outcomes else False

    return test


def _build_under(directory: Any) -> Test:
    if not isinstance(directory, str) or not directory:
        raise ConfigError(f"under must be the path of a directory, got {directory!r}.")

    def test(value: Any, context: ToolContext[Any] | None) -> bool | None:
        if not isinstance(value, str) or not value:
            return None
        working_directory = None if context is None else context.working_directory
        found, allowed = _resolve(value, working_directory), _resolve(directory, working_directory)
        return None if found is None or allowed is None else found.is_relative_to(allowed)

    return test


def _resolve(path: str, working_directory: str | None) -> "pathlib.PurePath | None":
    """The path without links and `..`, relative to the working directory; None if that cannot be found out."""
    if not os.path.isabs(path):
        if not working_directory or not os.path.isabs(working_directory):
            return None
        path = os.path.join(working_directory, path)
    try:
        return pathlib.PurePath(os.path.realpath(path))
    except (OSError, ValueError, RecursionError):
        return None


def _normalize(value: Any) -> Any:
    """A text in its NFKC form, in which characters that look alike are equal; also each text of a list."""
    if isinstance(value, str):
        return normalize_unicode(value)
    return [_normalize(item) for item in cast(list[Any], value)] if isinstance(value, list | tuple) else value


def _test_value(value: Any, test: Test, normalized_test: Test, context: ToolContext[Any] | None) -> bool | None:
    """The outcome of a test; None also if a text and its NFKC form do not agree."""
    outcome = test(value, context)
    if isinstance(value, str) and not value.isascii():
        normalized = normalized_test(_normalize(value), context)
        outcome = outcome if outcome is normalized else None
    return outcome


def _build_equals(wanted: Any) -> Test:
    """Equal to a value, or to one of the context: `{"context": "customer_id"}`."""
    if not isinstance(wanted, Mapping) or "context" not in wanted:
        return lambda value, _: _compare(value, wanted)
    field = _parse_context_field(cast(Mapping[str, Any], wanted))

    def test(value: Any, context: ToolContext[Any] | None) -> bool | None:
        expected = None if context is None else getattr(context, field)
        return None if expected is None else _compare(value, expected)

    return test


def _parse_context_field(wanted: Mapping[str, Any]) -> str:
    field = wanted["context"]
    if len(wanted) > 1 or field not in _CONTEXT_FIELDS:
        raise ConfigError(
            f"equals with a context must be one of its ids, like {{'context': 'customer_id'}}, got {dict(wanted)!r}. "
            f"It takes: {', '.join(_CONTEXT_FIELDS)}."
        )
    return field


def _build_count(wanted: Any) -> Test:
    """A test of the number of elements of a list, or of fields of an object."""
    if isinstance(wanted, bool) or not isinstance(wanted, int | Mapping):
        raise ConfigError(f"count must be a number, or a comparison like {{'at_most': 5}}, got {wanted!r}.")
    given: dict[str, Any] = {"equals": wanted} if isinstance(wanted, int) else dict(cast(Mapping[str, Any], wanted))
    unknown = [name for name in given if name not in _COUNTS]
    if unknown or not given:
        raise ConfigError(f"count takes a number or: {', '.join(_COUNTS)}; got {wanted!r}.")
    for name, limit in given.items():
        if isinstance(limit, bool) or not isinstance(limit, int):
            raise ConfigError(f"count: {name} must be a whole number, got {limit!r}.")
    tests = [OPERATORS[name](limit) for name, limit in given.items()]

    def test(value: Any, context: ToolContext[Any] | None) -> bool | None:
        if not isinstance(value, list | tuple | Mapping):
            return None
        return all(each(len(cast(list[Any], value)), context) is True for each in tests)

    return test


def _negate_test(test: Test) -> Test:
    return lambda value, context: _negate(test(value, context))


def _negate(outcome: bool | None) -> bool | None:
    return None if outcome is None else not outcome


OPERATORS: Final[Mapping[str, Callable[[Any], Test]]] = {
    "equals": _build_equals,
    "not_equals": lambda wanted: _negate_test(_build_equals(wanted)),
    "one_of": _build_one_of,
    "matches": _build_pattern_test("matches", is_whole=True),
    "search": _build_pattern_test("search", is_whole=False),
    "under": _build_under,
    "above": lambda limit: _build_comparison(limit, lambda found, wanted: found > wanted),
    "below": lambda limit: _build_comparison(limit, lambda found, wanted: found < wanted),
    "at_least": lambda limit: _build_comparison(limit, lambda found, wanted: found >= wanted),
    "at_most": lambda limit: _build_comparison(limit, lambda found, wanted: found <= wanted),
    "count": _build_count,
}
_COUNTS: Final = ("equals", "not_equals", "above", "below", "at_least", "at_most")
_CONTEXT_FIELDS: Final = ("customer_id", "session_id", "tenant_id", "agent_id")
_FROM: Final = "from"
_NAMES: Final = (*OPERATORS, _FROM)

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
    "count": "and their number is not",
}
"""How an operator fails, before its operand."""
_NUMERIC: Final = frozenset({"above", "below", "at_least", "at_most"})
_TEXTUAL: Final = frozenset({"matches", "search", "under"})
_SCALARS: Final = ("string", "integer", "number", "boolean")


class _ValueTest:
    """One operator of a condition, compiled once, with the path of the values that it is about."""

    __slots__ = ("_has_every", "_normalized_test", "name", "operand", "steps", "test")

    def __init__(self, path: str, name: str, operand: Any) -> None:
        self.steps = parse_path(path)
        self._has_every = EVERY in self.steps
        self.name = name
        self.operand = operand
        self.test = OPERATORS[name](operand)
        is_text = name in ("equals", "not_equals", "one_of")
        self._normalized_test = OPERATORS[name](_normalize(operand)) if is_text else self.test
        """The same test, for a text in its NFKC form."""

    def evaluate(
        self, arguments: Mapping[str, Any], declared: DeclaredArguments | None, context: ToolContext[Any] | None
    ) -> bool | None:
        if not self._has_every:
            found = look_up(arguments, self.steps)
            if found is not ABSENT:
                return _test_value(found, self.test, self._normalized_test, context)
        else:
            outcomes = [outcome for _, _, outcome in self._test_each(arguments, context)]
            if outcomes:
                return False if False in outcomes else None if None in outcomes else True
        first = self.steps[0]
        return None if declared is None or declared.has(first) or first in arguments else False

    def _test_each(
        self, arguments: Mapping[str, Any], context: ToolContext[Any] | None
    ) -> Iterator[tuple[PathSteps, Any, bool | None]]:
        for steps, found in look_up_all(arguments, self.steps):
            if found is not ABSENT:
                yield steps, found, _test_value(found, self.test, self._normalized_test, context)
            elif steps != self.steps:  # Not the list, but something in an element of it.
                yield steps, found, None

    def explain_failure(
        self, arguments: Mapping[str, Any], shown: Mapping[str, Any], context: ToolContext[Any] | None
    ) -> str | None:
        """Why it does not hold, with the value as `shown` has it; None if it does."""
        is_empty = True
        for steps, found, outcome in self._test_each(arguments, context):
            is_empty = False
            if outcome is True:
                continue
            path = write_path(steps)
            if found is ABSENT:
                return f"there is no {path}"
            value = look_up(shown, steps)
            value = HIDDEN if value is ABSENT or value == HIDDEN else shorten(repr(value), _MAX_SHOWN)
            if outcome is None:
                return f"{path} is {value}, for which `{self.name}` cannot tell"
            return f"{path} is {value}, {_FAILURES[self.name]} {self.operand!r}"
        return f"there is no {write_path(self.steps)}" if is_empty else None


class Condition:
    """A condition on arguments, compiled once: `{"amount": {"above": 500}, "to.country": "CH"}`.

    The parts are connected by "and"; `{"not": {…}}` negates a condition.
    """

    __slots__ = ("_negated", "_origins", "_tests")

    def __init__(self, where: Mapping[str, Any]) -> None:
        if not isinstance(where, Mapping) or not where:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"where must be a mapping from a path in the arguments to a condition, got {where!r}.")
        self._negated = Condition(where["not"]) if isinstance(where.get("not"), Mapping) else None
        self._tests: list[_ValueTest] = []
        self._origins: list[OriginTest] = []
        for path, wanted in where.items():
            if path == "not" and self._negated is not None:
                continue
            for name, operand in _parse_operators(path, wanted):
                if name == _FROM:
                    self._origins.append(OriginTest(parse_path(path), parse_sources(operand)))
                else:
                    self._tests.append(_ValueTest(path, name, operand))

    @property
    def origins(self) -> tuple[OriginTest, ...]:
        """Every `from` in it."""
        return (*self._origins, *(self._negated.origins if self._negated is not None else ()))

    def matches(
        self,
        arguments: Mapping[str, Any],
        *,
        action: Literal["allow", "ask", "deny"],
        declared: DeclaredArguments | None = None,
        context: ToolContext[Any] | None = None,
    ) -> bool:
        """Whether every part matches. In doubt, a restriction (ask, deny) matches, and a permission does not.

        A part is in doubt if its value cannot be compared: `at_most: 100` with `"5,000"`; or if a text matches and its
        NFKC form does not, or the other way round: full-width letters and ligatures get past no restriction. `from` is
        in doubt if there is no provenance, or a text of the source was cut or dropped.

        What is absent is in doubt too, if it is a part of an argument that the tool takes (`declared`; None if nobody
        knows what it takes). A tool that has no such argument at all is not what the condition is about.
        """
        outcome = self._evaluate(arguments, declared, context)
        return action != "allow" if outcome is None else outcome

    def _evaluate(
        self, arguments: Mapping[str, Any], declared: DeclaredArguments | None, context: ToolContext[Any] | None
    ) -> bool | None:
        is_certain = True
        for test in self._tests:
            outcome = test.evaluate(arguments, declared, context)
            if outcome is False:
                return False
            is_certain = is_certain and outcome is True
        for origin in self._origins:
            outcome = origin.evaluate(arguments, declared, context)
            if outcome is False:
                return False
            is_certain = is_certain and outcome is True
        if self._negated is not None:
            outcome = _negate(self._negated._evaluate(arguments, declared, context))
            if outcome is False:
                return False
            is_certain = is_certain and outcome is True
        return True if is_certain else None

    def explain_failure(
        self,
        arguments: Mapping[str, Any],
        *,
        shown: Mapping[str, Any],
        declared: DeclaredArguments | None = None,
        context: ToolContext[Any] | None = None,
    ) -> str:
        """Why this condition does not hold: the first part of it that does not, and the value as `shown` has it."""
        for test in self._tests:
            if (failure := test.explain_failure(arguments, shown, context)) is not None:
                return failure
        for origin in self._origins:
            if origin.evaluate(arguments, declared, context) is not True:
                for found in origin.describe(arguments, declared, context):
                    return f"{found.path} is {found.describe()}"
                return f"there is no {write_path(origin.steps)}"
        return "what stands under `not` holds, or may hold"

    def find_problems(self, schemas: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        """Why this condition can never hold for any of these schemas: unknown arguments, impossible comparisons."""
        for test in self._tests:
            yield from _find_path_problems(
                schemas, test.steps, lambda node, test=test: _find_impossible(test.name, test.operand, node, test.test)
            )
        for origin in self._origins:
            yield from _find_path_problems(schemas, origin.steps, _find_no_origin)
        if self._negated is not None:
            yield from self._negated.find_problems(schemas)


def _find_path_problems(
    schemas: Sequence[Mapping[str, Any]], steps: PathSteps, find_impossible: Callable[[Mapping[str, Any]], str | None]
) -> Iterator[str]:
    found = find_nodes(schemas, steps)
    if found.is_open:
        return
    path = write_path(steps)
    if not found.nodes:
        yield f"unknown argument {path!r}{suggest(found.missing, found.names)}"
        return
    problems = [find_impossible(node) for node in found.nodes]
    if all(problems):
        yield f"the argument {path!r} {problems[0]}"


def _find_no_origin(node: Mapping[str, Any]) -> str | None:
    """Why nobody can be the source of values of this schema."""
    if get_fixed_values(dict(node)) is not None:
        return "can only be one of a few values, which have no origin; write `equals` or `one_of` instead of `from`."
    if node.get("type") == "boolean":
        return "is a boolean, which has no origin; write `equals` instead of `from`."
    return None


def _find_impossible(operator: str, operand: Any, node: Mapping[str, Any], test: Test) -> str | None:
    """Why a condition can never hold for values of this schema."""
    values = get_fixed_values(dict(node))
    if values is not None and all(test(value, None) is False for value in values):
        return f"can only be {' or '.join(map(repr, values[:10]))}, so that `{operator}` never holds."
    kind: Any = node.get("type")
    if operator == "count" and kind in _SCALARS:
        return f"is a {kind}, of which nothing can be counted."
    if kind == "boolean" and operator in _NUMERIC | _TEXTUAL:
        return f"is a boolean, which `{operator}` cannot compare."
    if kind in ("integer", "number"):
        if operator in _TEXTUAL:
            return f"is a number, which `{operator}` cannot compare."
        is_of_context = isinstance(operand, Mapping) and "context" in operand
        if (
            operator in ("equals", *_NUMERIC)
            and operand is not None
            and not is_of_context
            and _to_number(operand) is None
        ):
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
    unknown = [name for name in given if name not in _NAMES]
    if unknown:
        raise ConfigError(
            f"unknown operator {unknown[0]!r} in where[{path!r}]{suggest(unknown[0], _NAMES)} "
            f"It takes: {', '.join(_NAMES)}."
        )
    if not given:
        raise ConfigError(f"where[{path!r}] is empty; it takes: {', '.join(_NAMES)}.")
    return list(given.items())

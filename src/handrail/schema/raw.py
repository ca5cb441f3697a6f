"""JSON Schemas that somebody wrote by hand, or that came from elsewhere."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, cast

import jsonschema_rs
from jsonschema_rs import ValidationErrorKind as Kind
from pydantic_core import from_json

from handrail.errors import ToolDefinitionError, shorten
from handrail.schema import faults
from handrail.schema.ambiguity import refuse_infinite
from handrail.schema.arguments import Arguments


class RawSchema:
    """A JSON Schema of a tool's arguments, compiled once."""

    schema: dict[str, Any]
    """A copy of what was given, with `type: object` said."""

    def __init__(self, schema: object, *, name: str = "the tool") -> None:
        if not isinstance(schema, Mapping):
            raise _bad_schema(name, f"must be a JSON Schema object, not {type(schema).__name__}")
        given: dict[str, Any] = {"type": "object", **cast(Mapping[str, Any], schema)}
        if given["type"] != "object":
            raise _bad_schema(name, f"must describe an object, not {given['type']!r}")
        try:
            # Copied, because the validator knows plain dicts and lists only; those of a definition refuse to change.
            self.schema = _copied(given)
            self._validator, self._looks_around = _compile(self.schema)
            json.dumps(self.schema, allow_nan=False)  # It can be sent: no number in it is infinite.
        except jsonschema_rs.ValidationError as error:
            raise _bad_schema(name, f"is not valid at {_place_in(given, error)}: {_wanted(error)}") from error
        except (TypeError, ValueError, RecursionError) as error:
            raise _bad_schema(name, f"is not JSON: {shorten(str(error), 300)}") from error

    def check(self, value: dict[str, Any]) -> None:
        """Raise `InvalidArgumentsError` unless the value fits."""
        if self._looks_around and any(len(name) > _MOST for name in _names(value)):
            raise faults.invalid([("", f"no name in an object may be longer than {_MOST:,} characters")])
        if self._validator.is_valid(value):
            return
        found: list[tuple[str, str]] = []
        for error in self._validator.iter_errors(value):
            found.extend(self._faults(error))
            if len(found) > faults.MOST:
                break
        raise faults.invalid(found)

    def _faults(self, error: jsonschema_rs.ValidationError) -> Iterator[tuple[str, str]]:
        path, kind = error.instance_path, error.kind
        if isinstance(kind, Kind.AdditionalProperties | Kind.UnevaluatedProperties):
            for name in kind.unexpected:
                text = "not expected here" if path else faults.not_an_argument(self.schema.get("properties", {}))
                yield faults.place([*path, name]), text
        elif isinstance(kind, Kind.Required):
            yield faults.place([*path, kind.property]), "required, but missing"
        else:
            yield faults.place(path), f"{_wanted(error)}, got {faults.quoted(error.instance)}"


def _copied(node: Any) -> Any:
    """A schema as plain dicts and lists, its own."""
    if isinstance(node, dict):
        return {key: _copied(one) for key, one in cast(dict[str, Any], node).items()}
    return [_copied(one) for one in cast(list[Any], node)] if isinstance(node, list | tuple) else node


def _bad_schema(name: str, problem: str) -> ToolDefinitionError:
    return ToolDefinitionError(f"`{name}`: input_schema {problem}.")


def _names(value: Any) -> Iterator[str]:
    """Every name in every object of a JSON value."""
    below: list[Any] = []
    if isinstance(value, dict):
        yield from cast(dict[str, Any], value)
        below = list(cast(dict[str, Any], value).values())
    elif isinstance(value, list):
        below = cast(list[Any], value)
    for one in below:
        yield from _names(one)


def _compile(schema: dict[str, Any]) -> tuple[jsonschema_rs.Validator, bool]:
    """Compile for the regex engine without backtracking, because arguments are hostile; where a pattern looks around,
    for the other one, within limits. Says which it was.
    """
    try:
        return _compiled(schema, jsonschema_rs.RegexOptions()), False
    except jsonschema_rs.ValidationError:
        _compiled(schema, _LOOKS_AROUND)  # Raises, with the place, where looking around is not the problem.
        return _compiled(schema, _LOOKS_AROUND, keywords={"pattern": _Pattern}), True


def _compiled(
    schema: dict[str, Any], patterns: jsonschema_rs.RegexOptions | jsonschema_rs.FancyRegexOptions, **options: Any
) -> jsonschema_rs.Validator:
    # Offline: a schema that came from elsewhere must not make this process fetch anything.
    return jsonschema_rs.validator_for(
        schema, mask="it", offline=True, validate_formats=True, pattern_options=patterns, **options
    )


_LOOKS_AROUND: Final = jsonschema_rs.FancyRegexOptions(backtrack_limit=100_000)
_MOST: Final = 1_000
"""How long a text may be to be matched while looking around, which takes the square of its length."""


class _Pattern:
    """The keyword `pattern`, with a limit where it looks around."""

    def __init__(self, parent_schema: dict[str, Any], value: str, schema_path: list[str | int]) -> None:
        self._pattern = value
        try:
            self._validator = _compiled({"pattern": value}, jsonschema_rs.RegexOptions())
            self._most = None
        except jsonschema_rs.ValidationError:
            self._validator = _compiled({"pattern": value}, _LOOKS_AROUND)
            self._most = _MOST

    def validate(self, instance: Any) -> None:
        if not isinstance(instance, str):
            return
        if self._most is not None and len(instance) > self._most:
            raise ValueError(f"it is longer than {self._most:,} characters")
        if not self._validator.is_valid(instance):
            raise ValueError(f"it does not match {faults.quoted(self._pattern, 200)}")


def _place_in(schema: dict[str, Any], error: jsonschema_rs.ValidationError) -> str:
    """Where in the schema it is wrong; for a reference that leads nowhere, where it is written."""
    path = error.instance_path
    if not path and isinstance(error.kind, Kind.Referencing):
        path = next((one for one, ref in _references(schema, []) if ref.lstrip("#") in error.message), path)
    return faults.place(path) or "its root"


def _references(node: Any, path: list[str | int]) -> Iterator[tuple[list[str | int], str]]:
    if isinstance(node, dict):
        for key, value in cast(dict[str, Any], node).items():
            if key in ("$ref", "$dynamicRef") and isinstance(value, str):
                yield [*path, key], value
            yield from _references(value, [*path, key])
    elif isinstance(node, list):
        for index, value in enumerate(cast(list[Any], node)):
            yield from _references(value, [*path, index])


def _wanted(error: jsonschema_rs.ValidationError) -> str:
    """What is allowed instead."""
    match error.kind:
        case Kind.Enum(options):
            return f"must be one of {faults.quoted(options, 300)}"
        case Kind.Constant(expected):
            return f"must be exactly {faults.quoted(expected, 300)}"
        case Kind.Type(types):
            return f"must be of type {' or '.join(types)}"
        case Kind.Required(name):
            return f"`{shorten(name)}` is required"
        case Kind.FalseSchema():
            return "not allowed here"
        case Kind.BacktrackLimitExceeded() | Kind.RegexEngineFailure():
            return "a name in it cannot be matched against a pattern"
        case Kind.AnyOf(branches) | Kind.OneOfNotValid(branches):
            wanted = [_wanted_below(error, errors[0]) for errors in branches if errors]
            return shorten("; or ".join(dict.fromkeys(wanted)), 300)
        case _:
            return shorten(error.message, 300)


def _wanted_below(error: jsonschema_rs.ValidationError, inner: jsonschema_rs.ValidationError) -> str:
    deeper = inner.instance_path[len(error.instance_path) :]
    return f"`{faults.place(deeper)}` {_wanted(inner)}" if deeper else _wanted(inner)


_MAY_BE_INFINITE = re.compile(r"[eE]\+?\d{3}|(?<!\d)\d{200}")


def _whole(value: Any) -> Any:
    """The value with 2.0 as 2: in JSON Schema it is an integer, and Python wants one to count with."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, dict):
        return {key: _whole(one) for key, one in cast(dict[str, Any], value).items()}
    return [_whole(one) for one in cast(list[Any], value)] if isinstance(value, list) else value


def schema_problem(schema: dict[str, Any]) -> str | None:
    """What is wrong with a JSON Schema by itself, with its place; None if nothing is. References are not followed."""
    try:
        jsonschema_rs.meta.validate(schema)
    except jsonschema_rs.ValidationError as error:
        return f"is not valid at {_place_in(schema, error)}: {_wanted(error)}"
    return None


def from_json_schema(schema: Mapping[str, Any], *, name: str) -> Arguments:
    """Arguments from a JSON Schema that somebody wrote; the validated arguments are the JSON values themselves."""
    raw = RawSchema(schema, name=name)
    return _arguments(raw.schema, raw.check)


def from_checked_schema(schema: dict[str, Any], *, name: str) -> Arguments:
    """Arguments from a JSON Schema in which nothing is wrong, and which nobody changes.

    Its validator is made with the first call: a document of a thousand operations has a thousand, of which few are
    called.
    """
    made: list[RawSchema] = []

    def check(value: dict[str, Any]) -> None:
        if not made:
            made.append(RawSchema(schema, name=name))
        made[0].check(value)

    return _arguments(schema, check)


def _arguments(schema: dict[str, Any], check: Callable[[dict[str, Any]], None]) -> Arguments:
    def parse(text: str) -> dict[str, Any]:
        try:
            value = from_json(text or "{}", allow_inf_nan=False)
        except ValueError as error:
            raise faults.no_json(str(error)) from None
        except TypeError:  # It could not be encoded.
            raise faults.no_json("it contains a lone surrogate") from None
        if not isinstance(value, dict):
            raise faults.no_object(value)
        if _MAY_BE_INFINITE.search(text):  # The validator would take 1e999 for null.
            refuse_infinite(text)
        arguments = cast(dict[str, Any], value)
        check(arguments)
        return _whole(arguments)

    return Arguments(input_schema=schema, parse=parse, dump=dict)

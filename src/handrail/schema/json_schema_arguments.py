"""Arguments of tools that come with a JSON Schema instead of types, and whether one is too expensive to check."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, cast
from urllib.parse import unquote

import jsonschema_rs
from jsonschema_rs import ValidationErrorKind as Kind
from pydantic_core import from_json

from handrail.core.text import copy_json
from handrail.errors import ToolDefinitionError, shorten
from handrail.schema import validation_errors
from handrail.schema.arguments import Arguments, is_exact_integer, refuse_infinite
from handrail.schema.schema_nodes import NotRepresentable, get_branches, get_types, rename_definitions, resolve
from handrail.schema.subschemas import Schema


class RawSchema:
    """A JSON Schema of a tool's arguments, compiled once."""

    schema: dict[str, Any]
    """A copy of the schema, with `type: object` added."""

    def __init__(self, schema: object, *, name: str = "the tool") -> None:
        if not isinstance(schema, Mapping):
            raise _build_schema_error(name, f"must be a JSON Schema object, not {type(schema).__name__}")
        given: dict[str, Any] = {"type": "object", **cast(Mapping[str, Any], schema)}
        if given["type"] == ["object"]:
            given["type"] = "object"
        if given["type"] != "object":
            raise _build_schema_error(name, f"must describe an object, not {given['type']!r}")
        try:
            # Copied, because the validator accepts plain dicts and lists only.
            self.schema = copy_json(given)
            self._validator, self._has_lookaround = _compile(self.schema)
            text = json.dumps(self.schema, allow_nan=False)  # Raises for NaN and infinity.
        except jsonschema_rs.ValidationError as error:
            raise _build_schema_error(
                name, f"is not valid at {_find_schema_path(given, error)}: {_describe_expected(error)}"
            ) from error
        except (TypeError, ValueError, RecursionError) as error:
            raise _build_schema_error(name, f"is not JSON: {shorten(str(error), 300)}") from error
        if is_explosive(self.schema, text):
            raise _build_schema_error(
                name, f"refers to its parts so often that one value may need more than {MAX_CHECKS:,} checks"
            )

    def check(self, value: dict[str, Any]) -> None:
        """Raise `InvalidArgumentsError` unless the value fits."""
        if self._has_lookaround and any(len(name) > _MAX_LOOKAROUND_CHARS for name in _iter_names(value)):
            raise validation_errors.build_invalid_error(
                [("", f"no name in an object may be longer than {_MAX_LOOKAROUND_CHARS:,} characters")]
            )
        if self._validator.is_valid(value):
            return
        found: list[tuple[str, str]] = []
        for error in self._validator.iter_errors(value):
            found.extend(self._describe_errors(error))
            if len(found) > validation_errors.MAX_ERRORS:
                break
        raise validation_errors.build_invalid_error(found)

    def _describe_errors(self, error: jsonschema_rs.ValidationError) -> Iterator[tuple[str, str]]:
        path, kind = error.instance_path, error.kind
        if isinstance(kind, Kind.AdditionalProperties | Kind.UnevaluatedProperties):
            for name in kind.unexpected:
                text = (
                    "not expected here"
                    if path
                    else validation_errors.describe_unknown_argument(self.schema.get("properties", {}))
                )
                yield validation_errors.format_path([*path, name]), text
        elif isinstance(kind, Kind.Required):
            yield validation_errors.format_path([*path, kind.property]), "required, but missing"
        else:
            yield (
                validation_errors.format_path(path),
                f"{_describe_expected(error)}, got {validation_errors.quote_value(error.instance)}",
            )


def _build_schema_error(name: str, problem: str) -> ToolDefinitionError:
    return ToolDefinitionError(f"`{name}`: input_schema {problem}.")


def _iter_names(value: Any) -> Iterator[str]:
    """Every name in every object of a JSON value."""
    below: list[Any] = []
    if isinstance(value, dict):
        yield from cast(dict[str, Any], value)
        below = list(cast(dict[str, Any], value).values())
    elif isinstance(value, list):
        below = cast(list[Any], value)
    for item in below:
        yield from _iter_names(item)


def _compile(schema: dict[str, Any]) -> tuple[jsonschema_rs.Validator, bool]:
    """Compile for the regex engine without backtracking, because arguments may be hostile; a schema with look-around
    for the other engine, within limits. Returns whether it has look-around.
    """
    try:
        return _compile_validator(schema, jsonschema_rs.RegexOptions()), False
    except jsonschema_rs.ValidationError:
        _compile_validator(schema, _LOOKAROUND_OPTIONS)  # Raises with the path if look-around is not the problem.
        return _compile_validator(schema, _LOOKAROUND_OPTIONS, keywords={"pattern": _Pattern}), True


def _compile_validator(
    schema: dict[str, Any], patterns: jsonschema_rs.RegexOptions | jsonschema_rs.FancyRegexOptions, **options: Any
) -> jsonschema_rs.Validator:
    # Offline: a schema that came from elsewhere must not make this process fetch anything.
    return jsonschema_rs.validator_for(
        schema, mask="it", offline=True, validate_formats=True, pattern_options=patterns, **options
    )


_LOOKAROUND_OPTIONS: Final = jsonschema_rs.FancyRegexOptions(backtrack_limit=100_000)
_MAX_LOOKAROUND_CHARS: Final = 1_000
"""The longest text that is matched with look-around, which takes quadratic time."""


class _Pattern:
    """The keyword `pattern`, with a length limit for look-around."""

    def __init__(self, parent_schema: dict[str, Any], value: str, schema_path: list[str | int]) -> None:
        self._pattern = value
        try:
            self._validator = _compile_validator({"pattern": value}, jsonschema_rs.RegexOptions())
            self._max_chars = None
        except jsonschema_rs.ValidationError:
            self._validator = _compile_validator({"pattern": value}, _LOOKAROUND_OPTIONS)
            self._max_chars = _MAX_LOOKAROUND_CHARS

    def validate(self, instance: Any) -> None:
        if not isinstance(instance, str):
            return
        if self._max_chars is not None and len(instance) > self._max_chars:
            raise ValueError(f"it is longer than {self._max_chars:,} characters")
        if not self._validator.is_valid(instance):
            raise ValueError(f"it does not match {validation_errors.quote_value(self._pattern, 200)}")


def _find_schema_path(schema: dict[str, Any], error: jsonschema_rs.ValidationError) -> str:
    """The path of an error in the schema; for an unresolvable reference, the path of the reference."""
    path = error.instance_path
    if not path and isinstance(error.kind, Kind.Referencing):
        path = next(
            (reference for reference, ref in _iter_references(schema, []) if ref.lstrip("#") in error.message), path
        )
    return validation_errors.format_path(path) or "its root"


def _iter_references(node: Any, path: list[str | int]) -> Iterator[tuple[list[str | int], str]]:
    if isinstance(node, dict):
        for key, value in cast(dict[str, Any], node).items():
            if key in ("$ref", "$dynamicRef") and isinstance(value, str):
                yield [*path, key], value
            yield from _iter_references(value, [*path, key])
    elif isinstance(node, list):
        for index, value in enumerate(cast(list[Any], node)):
            yield from _iter_references(value, [*path, index])


def _describe_expected(error: jsonschema_rs.ValidationError) -> str:
    """What the schema allows instead."""
    match error.kind:
        case Kind.Enum(options):
            return f"must be one of {validation_errors.quote_value(options, 300)}"
        case Kind.Constant(expected):
            return f"must be exactly {validation_errors.quote_value(expected, 300)}"
        case Kind.Type(types):
            return f"must be of type {' or '.join(types)}"
        case Kind.Required(name):
            return f"`{shorten(name)}` is required"
        case Kind.FalseSchema():
            return "not allowed here"
        case Kind.BacktrackLimitExceeded() | Kind.RegexEngineFailure():
            return "a name in it cannot be matched against a pattern"
        case Kind.AnyOf(branches) | Kind.OneOfNotValid(branches):
            wanted = [_describe_expected_below(error, errors[0]) for errors in branches if errors]
            return shorten("; or ".join(dict.fromkeys(wanted)), 300)
        case _:
            return shorten(error.message, 300)


def _describe_expected_below(error: jsonschema_rs.ValidationError, inner: jsonschema_rs.ValidationError) -> str:
    deeper = inner.instance_path[len(error.instance_path) :]
    return (
        f"`{validation_errors.format_path(deeper)}` {_describe_expected(inner)}"
        if deeper
        else _describe_expected(inner)
    )


_MAX_REFERENCES: Final = 20
# An exponent of three digits, or 200 digits. One set comes first, which is what the search can skip to.
_MAY_BE_INFINITE = re.compile(r"[eE0-9](?:(?<=[eE])\+?[0-9]{3}|(?<![0-9].)(?<=[0-9])[0-9]{199})")


def _convert_whole_floats(value: Any, node: Any, root: dict[str, Any]) -> Any:
    """The value with 2.0 as 2 where the schema wants an integer; for a `number` it stays a float."""
    types, node = _find_types(node, root)
    if isinstance(value, float):
        if not value.is_integer() or "integer" not in types or "number" in types:
            return value
        if not is_exact_integer(value):
            text = f"is too long for a number with a decimal point, got {value!r}: write all digits of the integer"
            raise validation_errors.build_invalid_error([("", text)])
        return int(value)
    if isinstance(value, dict):
        properties: Any = node.get("properties")
        known = cast(dict[str, Any], properties) if isinstance(properties, dict) else {}
        others = node.get("additionalProperties")
        members = cast(dict[str, Any], value).items()
        return {key: _convert_whole_floats(member, known.get(key, others), root) for key, member in members}
    if isinstance(value, list):
        return [_convert_whole_floats(item, node.get("items"), root) for item in cast(list[Any], value)]
    return value


def _find_types(node: Any, root: dict[str, Any], depth: int = 0) -> tuple[frozenset[str], dict[str, Any]]:
    """The JSON types of a node, those of the branches of a union included, and the node without its reference."""
    if not isinstance(node, dict) or depth > _MAX_REFERENCES:
        return frozenset(), {}
    try:
        resolved = resolve(cast(dict[str, Any], node), root)
    except (NotRepresentable, RecursionError):
        return frozenset(), {}
    branches = get_branches(resolved)
    if branches is None:
        return get_types(resolved) or frozenset(), resolved
    found = [_find_types(branch, root, depth + 1) for branch in branches]
    objects = [item for types, item in found if types & {"object", "array"}]
    return frozenset[str]().union(*(types for types, _ in found)), objects[0] if len(objects) == 1 else resolved


def find_schema_problem(schema: dict[str, Any]) -> str | None:
    """The problem of a JSON Schema with its path; None if it is valid. References are not followed."""
    try:
        jsonschema_rs.meta.validate(schema)
    except jsonschema_rs.ValidationError as error:
        return f"is not valid at {_find_schema_path(schema, error)}: {_describe_expected(error)}"
    return None


def build_from_json_schema(schema: Mapping[str, Any], *, name: str) -> Arguments:
    """Build arguments from a JSON Schema; the validated arguments are the JSON values themselves."""
    raw = RawSchema(schema, name=name)
    return _build_arguments(raw.schema, raw.check)


def build_from_checked_schema(schema: dict[str, Any], *, name: str) -> Arguments:
    """Build arguments from a valid JSON Schema that does not change.

    Its validator is compiled with the first call: a document may have a thousand operations, of which few are
    called.
    """
    made: list[RawSchema] = []

    def check(value: dict[str, Any]) -> None:
        if not made:
            made.append(RawSchema(schema, name=name))
        made[0].check(value)

    return _build_arguments(schema, check)


def _build_arguments(schema: dict[str, Any], check: Callable[[dict[str, Any]], None]) -> Arguments:
    root = rename_definitions(schema)

    def parse(text: str) -> dict[str, Any]:
        try:
            value = from_json(text or "{}", allow_inf_nan=False)
        except ValueError as error:
            raise validation_errors.build_json_error(str(error)) from None
        except TypeError:  # It could not be encoded.
            raise validation_errors.build_json_error("it contains a lone surrogate") from None
        if not isinstance(value, dict):
            raise validation_errors.build_object_error(value)
        if _MAY_BE_INFINITE.search(text):  # The validator would take 1e999 for null.
            refuse_infinite(text)
        arguments = cast(dict[str, Any], value)
        check(arguments)
        return _convert_whole_floats(arguments, root, root) if "." in text or "e" in text or "E" in text else arguments

    return Arguments(input_schema=schema, parse=parse, dump=copy_json)


MAX_CHECKS: Final = 20_000
"""How many subschemas one value may have to be checked against."""
_MIN_REFERENCES: Final = 24
"""With fewer references than this a schema cannot grow much beyond its own length."""
_LISTS: Final = ("allOf", "anyOf", "oneOf")
_ONES: Final = ("not", "if", "then", "else")


def is_explosive(schema: Schema, text: str | None = None) -> bool:
    """Whether one value may have to be checked against more than `MAX_CHECKS` subschemas.

    `text` is the schema as JSON, where the caller has it: most schemas are harmless at a glance.
    """
    if text is not None and text.count('"$ref"') + text.count('"$dynamicRef"') < _MIN_REFERENCES:
        return False
    counted: dict[int, int] = {}
    waiting: list[Any] = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            if _count(cast(Schema, node), schema, counted) > MAX_CHECKS:
                return True
            waiting += cast(Schema, node).values()
        elif isinstance(node, list):
            waiting += cast(list[Any], node)
    return False


def _count(start: Schema, root: Schema, counted: dict[int, int]) -> int:
    """How many subschemas a value is checked against that is checked against this one; a circle counts once."""
    stack: list[tuple[Schema, list[Schema]]] = [(start, list(_iter_in_place(start, root)))]
    entered = {id(start)}
    while stack:
        node, children = stack[-1]
        if child := next((item for item in children if id(item) not in counted and id(item) not in entered), None):
            entered.add(id(child))
            stack.append((child, list(_iter_in_place(child, root))))
            continue
        # A child that was entered and is not counted yet leads back here.
        counted[id(node)] = min(1 + sum(counted.get(id(item), 0) for item in children), MAX_CHECKS + 1)
        stack.pop()
    return counted[id(start)]


def _iter_in_place(node: Schema, root: Schema) -> Iterator[Schema]:
    """The subschemas that apply to the same value."""
    for key in _LISTS:
        if isinstance(parts := node.get(key), list):
            yield from (cast(Schema, item) for item in cast(list[Any], parts) if isinstance(item, dict))
    for key in _ONES:
        if isinstance(part := node.get(key), dict):
            yield cast(Schema, part)
    if isinstance(parts := node.get("dependentSchemas"), dict):
        yield from (cast(Schema, item) for item in cast(Schema, parts).values() if isinstance(item, dict))
    for key in ("$ref", "$dynamicRef"):
        if isinstance(reference := node.get(key), str) and (target := _find(reference, root)) is not None:
            yield target


def _find(reference: str, root: Schema) -> Schema | None:
    """The schema that a local reference points to; None for any other."""
    head, *steps = reference.split("/")
    found: Any = root if head == "#" else None
    for step in steps:
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and name.isdigit() and int(name) < len(cast(list[Any], found)):
            found = cast(list[Any], found)[int(name)]
        else:
            found = cast(Schema, found).get(name) if isinstance(found, dict) else None
    return cast(Schema, found) if isinstance(found, dict) else None

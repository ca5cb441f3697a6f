"""JSON Schemas that somebody wrote by hand, or that came from elsewhere."""

import copy
from collections.abc import Mapping
from typing import Any, cast

import jsonschema_rs
from pydantic_core import from_json

from handrail.errors import ToolDefinitionError, shorten
from handrail.schema import faults
from handrail.schema.arguments import Arguments


class RawSchema:
    """A JSON Schema of a tool's arguments, compiled once."""

    schema: dict[str, Any]
    """A copy of what was given, with `type: object` said."""

    def __init__(self, schema: object) -> None:
        if not isinstance(schema, Mapping):
            raise ToolDefinitionError(f"input_schema must be a JSON Schema object, not {type(schema).__name__}.")
        self.schema = {"type": "object", **copy.deepcopy(dict(cast(Mapping[str, Any], schema)))}
        if self.schema["type"] != "object":
            raise ToolDefinitionError(f"input_schema must describe an object, not {self.schema['type']!r}.")
        try:
            # Offline: a schema that came from elsewhere must not make this process fetch anything. The regex engine
            # without backtracking is tried first, because arguments are hostile.
            self._validator = self._compile(jsonschema_rs.RegexOptions())
        except jsonschema_rs.ValidationError:
            try:
                self._validator = self._compile(jsonschema_rs.FancyRegexOptions(backtrack_limit=100_000))
            except jsonschema_rs.ValidationError as error:
                where = faults.place(error.instance_path)
                reason = shorten(error.message.splitlines()[0], 300)
                raise ToolDefinitionError(f"input_schema is not valid at {where or 'its root'}: {reason}") from error
        except (TypeError, ValueError) as error:
            raise ToolDefinitionError(f"input_schema is not JSON: {error}") from error

    def _compile(self, patterns: "jsonschema_rs.RegexOptions | jsonschema_rs.FancyRegexOptions") -> Any:
        return jsonschema_rs.validator_for(
            self.schema, mask="it", offline=True, validate_formats=True, pattern_options=patterns
        )

    def check(self, value: dict[str, Any]) -> None:
        """Raise `InvalidArgumentsError` unless the value fits."""
        if self._validator.is_valid(value):
            return
        found: list[tuple[str, str]] = []
        for error in self._validator.iter_errors(value):
            found.extend(self._faults(error))
            if len(found) > faults.MOST:
                break
        raise faults.invalid(found)

    def _faults(self, error: Any) -> list[tuple[str, str]]:
        path: list[str | int] = list(error.instance_path)
        match error.kind.name:
            case "required":
                return [(faults.place([*path, error.kind.property]), "required, but missing")]
            case "additionalProperties" | "unevaluatedProperties":
                unexpected: list[str] = error.kind.unexpected
                return [(faults.place([*path, name]), self._not_expected(path)) for name in unexpected]
            case "enum" | "const" | "type":
                keyword: str = error.kind.name
                wanted = {"enum": "one of", "const": "exactly", "type": "of type"}[keyword]
                limit = faults.quoted(self._said(error.schema_path))
                return [(faults.place(path), f"must be {wanted} {limit}, got {faults.quoted(error.instance)}")]
            case _:
                return [(faults.place(path), f"{shorten(error.message, 300)}, got {faults.quoted(error.instance)}")]

    def _not_expected(self, path: list[str | int]) -> str:
        if path:
            return "not expected here"
        return f"not an argument of this tool; it has: {', '.join(self.schema.get('properties', {})) or 'none'}"

    def _said(self, schema_path: list[str | int]) -> Any:
        said: Any = self.schema
        for step in schema_path:
            try:
                said = said[step]
            except (KeyError, IndexError, TypeError):  # Behind a reference.
                return "what the schema says"
        return said


def from_json_schema(schema: Mapping[str, Any]) -> Arguments:
    """Arguments from a JSON Schema that somebody wrote; the validated arguments are the JSON values themselves."""
    raw = RawSchema(schema)

    def parse(text: str) -> dict[str, Any]:
        try:
            value = from_json(text or "{}")
        except ValueError as error:
            raise faults.no_json(str(error)) from None
        if not isinstance(value, dict):
            raise faults.no_object(value)
        arguments = cast(dict[str, Any], value)
        raw.check(arguments)
        return arguments

    return Arguments(input_schema=raw.schema, parse=parse, dump=dict)

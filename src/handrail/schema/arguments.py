"""The arguments of a tool: their JSON Schema, and the functions that parse and dump them."""

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import pydantic
from pydantic_core import SchemaError, ValidationError
from typing_extensions import TypedDict

from handrail.core.text import encodable
from handrail.errors import ToolDefinitionError
from handrail.schema import validation_errors
from handrail.schema.ambiguity import find_non_finite, refuse_ambiguous
from handrail.schema.subschemas import map_children, remove_titles

if TYPE_CHECKING:
    from pydantic.json_schema import GenerateJsonSchema

# Pydantic loads its parts on first use. Naming them as attributes (`pydantic.TypeAdapter`) instead of importing them
# keeps `from handrail import tool` about as cheap as `import pydantic`.

SCHEMA_ERRORS = (RuntimeError, SchemaError, TypeError, ValueError, NameError, AttributeError)
"""What Pydantic raises for a type without a schema; its own errors are RuntimeErrors and NameErrors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What one tool accepts."""

    input_schema: dict[str, Any]
    parse: Callable[[str], Any]
    """JSON text to validated arguments; raises a `ToolError` for the model."""
    dump: Callable[[Any], dict[str, Any]]
    """Validated arguments to JSON values."""
    dump_sent: Callable[[Any], dict[str, Any]] | None = None
    """Validated arguments to JSON values, without the defaults; None if no string can become a number."""

    def build_strict_parser(self) -> Callable[[str], Any]:
        """`parse` for a consequential tool: it refuses ambiguous JSON, and every number that is not finite, because
        the strings `"NaN"` and `"1e999"` become such numbers.
        """
        parse, sent = self.parse, self.dump_sent

        def parse_carefully(text: str) -> Any:
            refuse_ambiguous(text or "{}")
            return parse(text)

        if sent is None:
            return parse_carefully

        def parse_numbers_carefully(text: str) -> Any:
            arguments = parse_carefully(text)
            if found := list(find_non_finite(sent(arguments))):
                raise validation_errors.build_invalid_error(
                    (validation_errors.format_path(path), "must be a finite number") for path in found
                )
            return arguments

        return parse_numbers_carefully


def build_from_annotations(fields: Mapping[str, Any], *, forbid_extra: bool = True) -> Arguments:
    """Build arguments from annotations, each possibly `Annotated` with a Pydantic `Field` that holds a default."""
    shape: Any = TypedDict("Arguments", dict(fields))  # pyright: ignore[reportArgumentType, reportGeneralTypeIssues, reportUnknownVariableType]
    shape.__pydantic_config__ = pydantic.ConfigDict(
        extra="forbid" if forbid_extra else "ignore", arbitrary_types_allowed=False
    )
    adapter: pydantic.TypeAdapter[dict[str, Any]] = pydantic.TypeAdapter(shape)
    schema = remove_titles(_drop_unencodable(_generate_schema(adapter, schema_generator=_get_schema_generator())))

    def dump(value: Any, *, defaults: bool = True) -> dict[str, Any]:
        return adapter.dump_python(value, mode="json", by_alias=True, warnings=False, exclude_defaults=not defaults)

    return Arguments(
        input_schema=schema,
        parse=build_parser(adapter.validator.validate_json, names=tuple(schema["properties"])),
        dump=dump,
        dump_sent=(lambda value: dump(value, defaults=False)) if '"number"' in json.dumps(schema) else None,
    )


def _generate_schema(adapter: "pydantic.TypeAdapter[Any]", **options: Any) -> dict[str, Any]:
    """The JSON Schema of a type, without Pydantic's warnings about defaults that JSON cannot represent."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return adapter.json_schema(**options)


@cache
def _get_schema_generator() -> "type[GenerateJsonSchema]":
    from pydantic.json_schema import GenerateJsonSchema  # noqa: PLC0415  # slow to import; loaded with the first tool

    class EagerOnly(GenerateJsonSchema):
        """Refuses two types that have a JSON Schema in Pydantic, but no value for a handler."""

        def generator_schema(self, schema: Any) -> dict[str, Any]:
            # It would be validated while the handler iterates over it, which is too late.
            raise pydantic.PydanticUserError("An iterable is only checked when it is used; write list[…]", code=None)

        def is_subclass_schema(self, schema: Any) -> dict[str, Any]:
            raise pydantic.PydanticUserError("A class cannot be written in JSON", code=None)

    return EagerOnly


def _drop_unencodable(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A generated schema without values that JSON cannot represent, such as a default of infinity."""
    copy = map_children(
        schema, lambda _, child: _drop_unencodable(cast(Any, child)) if isinstance(child, dict) else child
    )
    kept = {key: encodable(value) if isinstance(value, str) else value for key, value in copy.items()}
    return {key: value for key, value in kept.items() if _is_json(value)}


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except ValueError:
        return False
    return True


def build_parser(validate_json: Callable[[str], Any], *, names: tuple[str, ...]) -> Callable[[str], Any]:
    """Build a `parse` function around one of Pydantic's validators."""

    def parse(text: str) -> Any:
        try:
            return validate_json(text or "{}")
        except ValidationError as error:
            raise validation_errors.convert_pydantic_error(error, names, text) from None

    return parse


def build_output_schema(annotation: Any) -> dict[str, Any] | None:
    """The JSON Schema of a return annotation; None for plain text and for types without a schema."""
    if annotation in (None, type(None), str, Any, object):
        return None
    try:
        return remove_titles(
            _drop_unencodable(_generate_schema(pydantic.TypeAdapter(annotation), mode="serialization"))
        )
    except SCHEMA_ERRORS:
        return None


def build_definition_error(name: str, problem: str) -> ToolDefinitionError:
    """The error for a function that cannot be a tool; it names the tool and the problem."""
    return ToolDefinitionError(f"`{name}` cannot be a tool: {problem}")

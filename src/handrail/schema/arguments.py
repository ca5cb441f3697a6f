"""What a tool accepts: its JSON Schema, and the functions between JSON text and validated arguments."""

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
from handrail.schema import faults
from handrail.schema.ambiguity import not_finite, refuse_ambiguous
from handrail.schema.tidy import map_children, tidy

if TYPE_CHECKING:
    from pydantic.json_schema import GenerateJsonSchema

# Pydantic loads its parts on first use. Naming them as attributes (`pydantic.TypeAdapter`) instead of importing them
# keeps `from handrail import tool` about as cheap as `import pydantic`.

UNUSABLE = (RuntimeError, SchemaError, TypeError, ValueError, NameError, AttributeError)
"""What Pydantic raises for a type that it can make nothing of; its own errors are RuntimeErrors and NameErrors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What one tool accepts."""

    input_schema: dict[str, Any]
    parse: Callable[[str], Any]
    """JSON text to validated arguments, or a `ToolError` for the model."""
    dump: Callable[[Any], dict[str, Any]]
    """Validated arguments to JSON values."""
    sent: Callable[[Any], dict[str, Any]] | None = None
    """Validated arguments to JSON values, without the defaults; None where no text becomes a number."""

    def careful(self) -> Callable[[str], Any]:
        """`parse` for a tool with consequences: ambiguous JSON is refused first, and then every number that is not
        finite, because `"NaN"` and `"1e999"` are texts in JSON and become such numbers here.
        """
        parse, sent = self.parse, self.sent

        def parse_carefully(text: str) -> Any:
            refuse_ambiguous(text or "{}")
            return parse(text)

        if sent is None:
            return parse_carefully

        def parse_numbers_carefully(text: str) -> Any:
            arguments = parse_carefully(text)
            if found := list(not_finite(sent(arguments))):
                raise faults.invalid((faults.place(path), "must be a finite number") for path in found)
            return arguments

        return parse_numbers_carefully


def from_annotations(fields: Mapping[str, Any], *, closed: bool = True) -> Arguments:
    """Arguments from annotations, each possibly `Annotated` with a Pydantic `Field` that holds a default."""
    shape: Any = TypedDict("Arguments", dict(fields))  # pyright: ignore[reportArgumentType, reportGeneralTypeIssues, reportUnknownVariableType]
    shape.__pydantic_config__ = pydantic.ConfigDict(
        extra="forbid" if closed else "ignore", arbitrary_types_allowed=False
    )
    adapter: pydantic.TypeAdapter[dict[str, Any]] = pydantic.TypeAdapter(shape)
    schema = tidy(_encodable(_schema_of(adapter, schema_generator=_eager_only())))

    def dump(value: Any, *, defaults: bool = True) -> dict[str, Any]:
        return adapter.dump_python(value, mode="json", by_alias=True, warnings=False, exclude_defaults=not defaults)

    return Arguments(
        input_schema=schema,
        parse=parser(adapter.validator.validate_json, names=tuple(schema["properties"])),
        dump=dump,
        sent=(lambda value: dump(value, defaults=False)) if '"number"' in json.dumps(schema) else None,
    )


def _schema_of(adapter: "pydantic.TypeAdapter[Any]", **options: Any) -> dict[str, Any]:
    """The JSON Schema of a type, without Pydantic's warnings about defaults that JSON cannot hold."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return adapter.json_schema(**options)


@cache
def _eager_only() -> "type[GenerateJsonSchema]":
    from pydantic.json_schema import GenerateJsonSchema  # noqa: PLC0415  # dear; loaded with the first tool

    class EagerOnly(GenerateJsonSchema):
        """Refuses two types that have a JSON Schema in Pydantic, but no value that a handler could be given."""

        def generator_schema(self, schema: Any) -> dict[str, Any]:
            # It would be validated while the handler runs through it: too late.
            raise pydantic.PydanticUserError("An iterable is only checked when it is used; write list[…]", code=None)

        def is_subclass_schema(self, schema: Any) -> dict[str, Any]:
            raise pydantic.PydanticUserError("A class cannot be written in JSON", code=None)

    return EagerOnly


def _encodable(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A generated schema as JSON can hold it: without a default of infinity, or a text with half a character."""
    copy = map_children(schema, lambda _, child: _encodable(cast(Any, child)) if isinstance(child, dict) else child)
    kept = {key: encodable(value) if isinstance(value, str) else value for key, value in copy.items()}
    return {key: value for key, value in kept.items() if _is_json(value)}


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except ValueError:
        return False
    return True


def parser(validate_json: Callable[[str], Any], *, names: tuple[str, ...]) -> Callable[[str], Any]:
    """A `parse` around one of Pydantic's validators."""

    def parse(text: str) -> Any:
        try:
            return validate_json(text or "{}")
        except ValidationError as error:
            raise faults.from_pydantic(error, names, text) from None

    return parse


def output_schema(annotation: Any) -> dict[str, Any] | None:
    """The JSON Schema of what a tool returns, where the annotation says something worth telling."""
    if annotation in (None, type(None), str, Any, object):
        return None
    try:
        return tidy(_encodable(_schema_of(pydantic.TypeAdapter(annotation), mode="serialization")))
    except UNUSABLE:
        return None


def definition_error(name: str, problem: str) -> ToolDefinitionError:
    """A refusal that names the tool and the part that is in the way."""
    return ToolDefinitionError(f"`{name}` cannot be a tool: {problem}")

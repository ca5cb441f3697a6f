"""What a tool accepts: its JSON Schema, and the functions between JSON text and validated arguments."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pydantic
from pydantic_core import ValidationError
from typing_extensions import TypedDict

from handrail.errors import ToolDefinitionError
from handrail.schema import faults
from handrail.schema.ambiguity import refuse_ambiguous
from handrail.schema.tidy import tidy

# Pydantic loads its parts on first use. Naming them as attributes (`pydantic.TypeAdapter`) instead of importing them
# keeps `from handrail import tool` about as cheap as `import pydantic`.


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What one tool accepts."""

    input_schema: dict[str, Any]
    parse: Callable[[str], Any]
    """JSON text to validated arguments, or a `ToolError` for the model."""
    dump: Callable[[Any], dict[str, Any]]
    """Validated arguments to JSON values."""

    def careful(self) -> Callable[[str], Any]:
        """`parse` for a tool with consequences: ambiguous JSON is refused first."""
        parse = self.parse

        def parse_carefully(text: str) -> Any:
            refuse_ambiguous(text or "{}")
            return parse(text)

        return parse_carefully


def from_annotations(fields: Mapping[str, Any], *, closed: bool = True) -> Arguments:
    """Arguments from annotations, each possibly `Annotated` with a Pydantic `Field` that holds a default."""
    shape: Any = TypedDict("Arguments", dict(fields))  # pyright: ignore[reportArgumentType, reportGeneralTypeIssues, reportUnknownVariableType]
    shape.__pydantic_config__ = pydantic.ConfigDict(
        extra="forbid" if closed else "ignore", arbitrary_types_allowed=False
    )
    adapter: pydantic.TypeAdapter[dict[str, Any]] = pydantic.TypeAdapter(shape)
    schema = tidy(schema_of(adapter))
    return Arguments(
        input_schema=schema,
        parse=parser(adapter.validator.validate_json, names=tuple(schema["properties"])),
        dump=lambda value: adapter.dump_python(value, mode="json", by_alias=True, warnings=False),
    )


def schema_of(adapter: "pydantic.TypeAdapter[Any]", mode: Any = "validation") -> dict[str, Any]:
    """The JSON Schema of a type, without Pydantic's warnings about defaults that JSON cannot hold."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return adapter.json_schema(mode=mode)


def parser(validate_json: Callable[[str], Any], *, names: tuple[str, ...]) -> Callable[[str], Any]:
    """A `parse` around one of Pydantic's validators."""

    def parse(text: str) -> Any:
        try:
            return validate_json(text or "{}")
        except ValidationError as error:
            raise faults.from_pydantic(error, names) from None

    return parse


def output_schema(annotation: Any) -> dict[str, Any] | None:
    """The JSON Schema of what a tool returns, where the annotation says something worth telling."""
    if annotation in (None, type(None), str, Any, object):
        return None
    try:
        return tidy(schema_of(pydantic.TypeAdapter(annotation), mode="serialization"))
    except pydantic.PydanticUserError:
        return None


def definition_error(name: str, problem: str) -> ToolDefinitionError:
    """A refusal that names the tool and the part that is in the way."""
    return ToolDefinitionError(f"`{name}` cannot be a tool: {problem}")

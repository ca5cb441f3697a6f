"""The JSON Schema that Pydantic makes of a type, without what no model and no handler could use."""

import json
import sys
import types
import typing
import warnings
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import pydantic
import typing_extensions
from pydantic_core import SchemaError

from handrail.core.text import encodable
from handrail.errors import ToolDefinitionError
from handrail.schema.subschemas import map_children, remove_titles

if TYPE_CHECKING:
    from pydantic.json_schema import GenerateJsonSchema

SCHEMA_ERRORS = (RuntimeError, SchemaError, TypeError, ValueError, NameError, AttributeError)
"""What Pydantic raises for a type without a schema; its own errors are RuntimeErrors and NameErrors."""


def generate_input_schema(adapter: "pydantic.TypeAdapter[Any]") -> dict[str, Any]:
    """The JSON Schema of arguments."""
    return remove_titles(_drop_unencodable(_generate_schema(adapter, schema_generator=_get_schema_generator())))


def build_output_schema(annotation: Any) -> dict[str, Any] | None:
    """The JSON Schema of a return annotation; None for plain text and for types without a schema."""
    if annotation in (None, type(None), str, Any, object):
        return None
    try:
        if sys.version_info < (3, 12):
            annotation = _replace_typed_dicts(annotation, ())
        return remove_titles(
            _drop_unencodable(_generate_schema(pydantic.TypeAdapter(annotation), mode="serialization"))
        )
    except SCHEMA_ERRORS:
        return None


def _replace_typed_dicts(hint: Any, inside: tuple[Any, ...]) -> Any:
    """A type with `typing_extensions.TypedDict` in the place of `typing.TypedDict`, which Pydantic refuses before 3.12.

    One that contains itself is left as it is.
    """
    if typing.is_typeddict(hint) and type(hint).__module__ == "typing" and hint not in inside:
        hints = typing.get_type_hints(hint, include_extras=True)
        fields: dict[str, Any] = {}
        for name, one in hints.items():
            while typing.get_origin(one) in (typing.Required, typing.NotRequired):
                one = typing.get_args(one)[0]
            marker = typing_extensions.Required if name in hint.__required_keys__ else typing_extensions.NotRequired
            fields[name] = marker[_replace_typed_dicts(one, (*inside, hint))]
        new: Any = typing_extensions.TypedDict(hint.__name__, fields)  # pyright: ignore[reportArgumentType, reportGeneralTypeIssues, reportUnknownVariableType]
        new.__doc__ = hint.__doc__
        return new
    parts = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Annotated:
        return typing.Annotated[(_replace_typed_dicts(parts[0], inside), *parts[1:])]  # type: ignore[return-value]
    replaced = tuple(_replace_typed_dicts(part, inside) for part in parts)
    if all(one is other for one, other in zip(parts, replaced, strict=True)):
        return hint
    if isinstance(hint, types.UnionType):
        return typing.Union[replaced]  # noqa: UP007
    return hint.copy_with(replaced) if hasattr(hint, "copy_with") else typing.get_origin(hint)[replaced]


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


def build_definition_error(name: str, problem: str) -> ToolDefinitionError:
    """The error for a function that cannot be a tool; it names the tool and the problem."""
    return ToolDefinitionError(f"`{name}` cannot be a tool: {problem}")

"""Structured output: the model is asked for JSON of a schema, and its response is validated here."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar, cast, overload

import pydantic
from msgspec import Struct
from pydantic_core import from_json

from handrail.errors import BadResponseError, ConfigError, InvalidArgumentsError, RefusalError, ToolError, shorten
from handrail.providers.messages import AssistantMessage, Message, UserMessage
from handrail.providers.provider import ModelRequest, Provider
from handrail.providers.response_schema import WRAPPER_PROPERTY, check_response_schema, wrap_in_object
from handrail.schema import validation_errors
from handrail.schema.json_schema_arguments import build_from_json_schema

T = TypeVar("T")

_FENCE: Final = "```"


class _OutputSpec(Struct, frozen=True, kw_only=True):
    schema: Mapping[str, Any]
    parse: Callable[[str], Any]
    """From text to the value; raises a `ToolError` that names what is wrong."""


@overload
async def generate_structured(
    provider: Provider,
    output_type: type[T],
    messages: str | Sequence[Message],
    *,
    instructions: str = "",
    max_attempts: int = 2,
) -> T: ...


@overload
async def generate_structured(
    provider: Provider,
    output_type: Any,
    messages: str | Sequence[Message],
    *,
    instructions: str = "",
    max_attempts: int = 2,
) -> Any: ...


async def generate_structured(
    provider: Provider,
    output_type: Any,
    messages: str | Sequence[Message],
    *,
    instructions: str = "",
    max_attempts: int = 2,
) -> Any:
    """Ask for a value of a Python type or a JSON Schema. If the response does not fit, ask again with its errors."""
    if max_attempts < 1:
        raise ConfigError(f"max_attempts must be at least 1, got {max_attempts}.")
    if isinstance(output_type, Mapping):
        spec = _build_from_schema(cast(Mapping[str, Any], output_type))
    else:
        spec = _build_from_type(output_type)
    history: list[Message] = [UserMessage(text=messages)] if isinstance(messages, str) else [*messages]
    where = ""
    for _ in range(max_attempts):
        response = await provider.ask(ModelRequest(messages=history, instructions=instructions, schema=spec.schema))
        if response.finish_reason == "refusal":
            raise RefusalError(
                f"{provider.name} refused to respond: {shorten(response.text, 300) or 'no reason given'}"
            )
        try:
            return spec.parse(_remove_fence(response.text))
        except ToolError as error:
            problem, where = _describe_for_model(error), _describe_for_log(error)
        history += [
            AssistantMessage(text=response.text),
            UserMessage(text=f"{problem}\nRespond again, only with JSON that fits the schema."),
        ]
    times = "once" if max_attempts == 1 else f"{max_attempts} times"
    raise BadResponseError(f"{provider.name} was asked {times}, and its response does not fit the schema: {where}.")


def _describe_for_model(error: ToolError) -> str:
    """The validation errors as a message to the model."""
    text = error.message.replace("The arguments are", "The answer is", 1).replace("The arguments", "The answer", 1)
    return text.replace("not an argument of this tool", "not expected here").replace(" Send one JSON object.", "")


def _describe_for_log(error: ToolError) -> str:
    """Where the response is wrong, without its text, which may be private."""
    if isinstance(error, InvalidArgumentsError):
        return f"it is wrong at {', '.join(place or 'its root' for place in error.places)}"
    return "it is not valid JSON"


def _remove_fence(text: str) -> str:
    """The JSON without the Markdown fence that many models put around it."""
    first, _, rest = text.strip().partition("\n")
    if first.rstrip() not in (_FENCE, f"{_FENCE}json") or not rest.endswith(_FENCE):
        return text
    return rest.removesuffix(_FENCE).strip()


def _build_from_type(output_type: Any) -> _OutputSpec:
    try:
        adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(output_type)
        schema = adapter.json_schema()
    except (pydantic.errors.PydanticUserError, pydantic.errors.PydanticUndefinedAnnotation) as error:
        text = f"output_type must be a JSON Schema or a type that has one, got {output_type!r}: {error.message}."
        raise ConfigError(text) from error
    names = tuple(schema.get("properties", {}))

    def parse_text(text: str) -> Any:
        try:
            return adapter.validate_json(text)
        except pydantic.ValidationError as error:
            raise validation_errors.convert_pydantic_error(error, names, text) from None

    return _OutputSpec(schema=schema, parse=parse_text)


def _build_from_schema(output_type: Mapping[str, Any]) -> _OutputSpec:
    schema = check_response_schema(output_type)
    wrapped, is_wrapped = wrap_in_object(schema)
    parse = build_from_json_schema(wrapped, name="the answer").parse

    def parse_text(text: str) -> Any:
        if not is_wrapped:
            return parse(text or "null")
        try:
            from_json(text, allow_inf_nan=False)
        except (TypeError, ValueError) as error:
            raise validation_errors.build_json_error(str(error)) from None
        return parse(f'{{"{WRAPPER_PROPERTY}":{text}}}')[WRAPPER_PROPERTY]

    return _OutputSpec(schema=schema, parse=parse_text)

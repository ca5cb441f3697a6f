"""A value instead of words: the model is asked for JSON of a schema, and what it answers is checked here."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar, cast, overload

import pydantic
from msgspec import Struct
from pydantic_core import from_json

from handrail.errors import BadAnswerError, ConfigError, InvalidArgumentsError, RefusalError, ToolError, shorten
from handrail.providers.messages import AssistantMessage, Message, UserMessage
from handrail.providers.provider import ModelRequest, Provider
from handrail.providers.shape import ANSWER, as_object, checked
from handrail.schema import faults
from handrail.schema.raw import from_json_schema

T = TypeVar("T")

_FENCE: Final = re.compile(r"\s*```(?:json)?\s*\n(.*?)\n?\s*```\s*", re.DOTALL)


class _Wanted(Struct, frozen=True, kw_only=True):
    schema: Mapping[str, Any]
    read: Callable[[str], Any]
    """The value in a text; raises a `ToolError` that names what is wrong with it."""


@overload
async def generate_structured(
    provider: Provider,
    wanted: type[T],
    messages: str | Sequence[Message],
    *,
    instructions: str = "",
    attempts: int = 2,
) -> T: ...


@overload
async def generate_structured(
    provider: Provider, wanted: Any, messages: str | Sequence[Message], *, instructions: str = "", attempts: int = 2
) -> Any: ...


async def generate_structured(
    provider: Provider, wanted: Any, messages: str | Sequence[Message], *, instructions: str = "", attempts: int = 2
) -> Any:
    """A value of a Python type, or of a JSON Schema. One that does not fit is asked for again, with its faults."""
    if attempts < 1:
        raise ConfigError(f"A value is asked for at least once, not {attempts} times.")
    want = _of_schema(cast(Mapping[str, Any], wanted)) if isinstance(wanted, Mapping) else _of_type(wanted)
    asked: list[Message] = [UserMessage(text=messages)] if isinstance(messages, str) else [*messages]
    where = ""
    for _ in range(attempts):
        reply = await provider.ask(ModelRequest(messages=asked, instructions=instructions, schema=want.schema))
        if reply.finish_reason == "refusal":
            raise RefusalError(f"{provider.name} would not answer: {shorten(reply.text, 300) or 'no reason given'}")
        try:
            return want.read(_bare(reply.text))
        except ToolError as error:
            fault, where = _told(error), _places(error)
        asked += [
            AssistantMessage(text=reply.text),
            UserMessage(text=f"{fault}\nAnswer again, with JSON alone that fits the schema."),
        ]
    times = "once" if attempts == 1 else f"{attempts} times"
    raise BadAnswerError(f"{provider.name} was asked {times}, and its answer does not fit the schema: {where}.")


def _told(error: ToolError) -> str:
    """What is wrong with an answer, in the words that are used of arguments."""
    text = error.message.replace("The arguments are", "The answer is", 1).replace("The arguments", "The answer", 1)
    return text.replace("not an argument of this tool", "not expected here").replace(" Send one JSON object.", "")


def _places(error: ToolError) -> str:
    """Where it is wrong, for a log: never with the words of the answer, which may be anybody's."""
    if isinstance(error, InvalidArgumentsError):
        return f"it is wrong at {', '.join(place or 'its root' for place in error.places)}"
    return "it is no JSON of that kind"


def _bare(text: str) -> str:
    """The JSON without the fence that many models put around it."""
    found = _FENCE.fullmatch(text)
    return found[1] if found else text


def _of_type(wanted: Any) -> _Wanted:
    try:
        adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(wanted)
        schema = adapter.json_schema()
    except (pydantic.errors.PydanticUserError, pydantic.errors.PydanticUndefinedAnnotation) as error:
        text = f"{wanted!r} is neither a JSON Schema nor a type that has one: {error.message}."
        raise ConfigError(text) from error
    names = tuple(schema.get("properties", {}))

    def read(text: str) -> Any:
        try:
            return adapter.validate_json(text)
        except pydantic.ValidationError as error:
            raise faults.from_pydantic(error, names, text) from None

    return _Wanted(schema=schema, read=read)


def _of_schema(wanted: Mapping[str, Any]) -> _Wanted:
    schema = checked(wanted)
    whole, wrapped = as_object(schema)
    parse = from_json_schema(whole, name="the answer").parse

    def read(text: str) -> Any:
        if not wrapped:
            return parse(text or "null")
        try:
            from_json(text, allow_inf_nan=False)
        except (TypeError, ValueError) as error:
            raise faults.no_json(str(error)) from None
        return parse(f'{{"{ANSWER}":{text}}}')[ANSWER]

    return _Wanted(schema=schema, read=read)

"""What Chat Completions and Responses both refuse."""

import re
from collections.abc import Collection, Mapping

from .openai_schema import check_output
from .reading import Field, RequestRefused, first_repeated, format_bracketed, is_map

NAME = re.compile("[a-zA-Z0-9_-]+")


def key_is_sent(headers: Mapping[str, str]) -> None:
    """Observed: openai 3.49 sends the key as a bearer token, and the API responds with 401 without it."""
    if not re.fullmatch(r"Bearer \S+", headers.get("authorization", "")):
        message = "You didn't provide an API key. Provide it in an Authorization header using Bearer auth."
        raise RequestRefused(message, status=401)


def name_is_valid(name: Field, *, max_chars: int) -> str:
    """API reference: `^[a-zA-Z0-9_-]+$`, up to 128 (Responses) or 64 (Chat Completions)."""
    found, place = name.text(), format_bracketed(name.path)
    if not NAME.fullmatch(found):
        message = f"Invalid '{place}': string does not match pattern. Expected '^[a-zA-Z0-9_-]+$'."
        raise RequestRefused(message, code="invalid_value", param=place)
    if len(found) > max_chars:
        message = f"Invalid '{place}': string too long. Expected at most {max_chars} characters, but got {len(found)}."
        raise RequestRefused(message, code="string_above_max_length", param=place)
    return found


def names_are_unique(names: Collection[str]) -> None:
    """Observed: a call by a name that two tools have could not be told apart."""
    if repeated := first_repeated(names):
        raise RequestRefused(f"Tool names must be unique: '{repeated}' is there twice.", param="tools")


def stream_options_need_a_stream(body: Field) -> None:
    """Observed: the refusal of the API."""
    if body.find("stream_options") and body.members().get("stream") is not True:
        message = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
        raise RequestRefused(message, param="stream_options")


def options_need_tools(body: Field, *options: str) -> None:
    """API reference: `parallel_tool_calls` and `tool_choice` need tools."""
    for option in options:
        if body.find(option) and not body.find("tools"):
            message = f"Invalid value for '{option}': '{option}' is only allowed when 'tools' are specified."
            raise RequestRefused(message, param=option)


def output_format_is_valid(described: Field) -> None:
    """API reference, strict mode, for structured output."""
    name = name_is_valid(described.need("name"), max_chars=64)
    strict = described.find("strict")
    if schema := described.find("schema"):
        check_output(schema, name=name, strict=strict is not None and strict.flag())


def parts_are(content: Field, kinds: Collection[str]) -> None:
    """Refuse content that is neither text nor a list of parts of these kinds."""
    if isinstance(content.value, str):
        return
    if is_map(content.value):
        raise content.wording.wrong_type(content.path, "one of a string or an array of objects", content.value)
    for part in content.items():
        if part.need("type").one_of(kinds) in ("text", "input_text", "output_text"):
            part.need("text").text()

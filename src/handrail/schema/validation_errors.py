"""Errors for invalid arguments, with messages for the model: the path, the value, and what is allowed."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from pydantic_core import from_json

from handrail.core.text import compact_json
from handrail.errors import InvalidArgumentsError, ToolArgsParseError, ToolError, shorten

if TYPE_CHECKING:
    from pydantic import ValidationError

MAX_ERRORS = 10
"""The most errors that one message lists."""

PathStep = str | int


def build_json_error(reason: str) -> ToolArgsParseError:
    """The arguments are not JSON."""
    return ToolArgsParseError(f"The arguments are not valid JSON: {shorten(reason, 200)}. Send one JSON object.")


def build_object_error(found: object) -> ToolArgsParseError:
    """The arguments are JSON, but not an object."""
    return ToolArgsParseError(f"The arguments must be a JSON object, not {describe_type(found)}.")


def build_invalid_error(errors: Iterable[tuple[str, str]], *, more: int = 0) -> InvalidArgumentsError:
    """The arguments do not fit the schema; each error is a path and a description."""
    listed = list(errors)
    more += len(listed[MAX_ERRORS:])
    lines = [f"- {place}: {text}" if place else f"- {text}" for place, text in listed[:MAX_ERRORS]]
    if more:
        lines.append(f"- … and {more} more")
    return InvalidArgumentsError(
        "The arguments are not valid:\n" + "\n".join(lines), places=[place for place, _ in listed[:MAX_ERRORS]]
    )


def convert_pydantic_error(error: "ValidationError", allowed: Sequence[str], text: str) -> ToolError:
    """Convert Pydantic's error: the text is not JSON, not an object, or does not fit the schema."""
    details = error.errors(include_url=False, include_context=True)
    first = details[0]
    if not first["loc"]:
        match first["type"]:
            case "json_invalid":
                return build_json_error(str(first.get("ctx", {}).get("error", first["msg"])))
            case "string_unicode":
                return build_json_error("it contains a lone surrogate")
            case "dict_type" | "model_type" | "model_attributes_type":
                return build_object_error(first["input"])
            case _:
                pass
    try:
        sent = from_json(text or "{}")
    except ValueError:  # A class may parse its arguments in its own way.
        sent = None
    return build_invalid_error(
        (_describe_error(detail, allowed, sent) for detail in details[:MAX_ERRORS]), more=len(details[MAX_ERRORS:])
    )


def _describe_error(detail: Any, allowed: Sequence[str], sent: Any) -> tuple[str, str]:
    path = _clean_path(detail, sent)
    match detail["type"]:
        case "missing":
            return format_path(path), "required, but missing"
        case "extra_forbidden" if len(path) == 1:
            return format_path(path), describe_unknown_argument(allowed)
        case "extra_forbidden" | "unexpected_keyword_argument":
            return format_path(path), "not expected here"
        case _:
            message = shorten(detail["msg"], 300)
            if message[1:2].islower():
                message = message[0].lower() + message[1:]
            return format_path(path), f"{message}, got {quote_value(detail['input'])}"


def _clean_path(detail: Any, sent: Any) -> list[PathStep]:
    """Pydantic's path without the names of union branches and validators, which do not exist in the JSON."""
    loc: tuple[PathStep, ...] = detail["loc"]
    path: list[PathStep] = []
    here = sent
    for position, step in enumerate(loc, start=1):
        match here:
            case dict() if step in here:
                here = cast(dict[Any, Any], here)[step]
            case list() if isinstance(step, int) and step < len(cast(list[Any], here)):
                here = cast(list[Any], here)[step]
            case _ if position == len(loc) and detail["type"] == "missing":
                pass
            case _:
                continue
        path.append(step)
    return path or list(loc)


def describe_unknown_argument(allowed: Iterable[str]) -> str:
    """The description of an unknown argument."""
    return f"not an argument of this tool; it has: {', '.join(allowed) or 'none'}"


def format_path(path: Iterable[object]) -> str:
    """A path into the arguments: `items[0].price`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step) or '""'
    return shorten(text, 120)


def quote_value(found: object, max_chars: int = 60) -> str:
    """A value as short JSON, for a message."""
    try:
        return shorten(compact_json(found), max_chars)
    except ValueError:
        return describe_type(found)


def describe_type(found: object) -> str:
    """The JSON name of a value's type."""
    match found:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "an array"
        case dict():
            return "an object"
        case _:
            return f"a {type(found).__name__}"

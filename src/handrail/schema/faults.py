"""What is wrong with arguments, in words for the model: the place, what was found, what is allowed."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from handrail.core.text import compact_json
from handrail.errors import InvalidArgumentsError, ToolArgsParseError, ToolError, shorten

if TYPE_CHECKING:
    from pydantic import ValidationError

MOST = 10
"""How many faults one answer lists; a model mends the first ones first."""


def no_json(reason: str) -> ToolArgsParseError:
    """The arguments are not JSON."""
    return ToolArgsParseError(f"The arguments are not valid JSON: {shorten(reason, 200)}. Send one JSON object.")


def no_object(found: object) -> ToolArgsParseError:
    """The arguments are JSON, but not an object."""
    return ToolArgsParseError(f"The arguments must be a JSON object, not {kind(found)}.")


def invalid(faults: Iterable[tuple[str, str]]) -> InvalidArgumentsError:
    """The arguments do not fit; each fault is a place and a sentence about it."""
    listed = list(faults)
    lines = [f"- {place}: {text}" if place else f"- {text}" for place, text in listed[:MOST]]
    if len(listed) > MOST:
        lines.append(f"- … and {len(listed) - MOST} more")
    return InvalidArgumentsError(
        "The arguments are not valid:\n" + "\n".join(lines), places=[place for place, _ in listed]
    )


def from_pydantic(error: "ValidationError", allowed: Sequence[str]) -> ToolError:
    """Pydantic's finding as the error that it is: no JSON, no object, or invalid arguments."""
    details = error.errors(include_url=False, include_context=True)
    first = details[0]
    if first["type"] == "json_invalid":
        return no_json(str(first.get("ctx", {}).get("error", first["msg"])))
    if not first["loc"] and first["type"] in ("dict_type", "model_type", "string_unicode", "model_attributes_type"):
        return (
            no_json("it contains a lone surrogate") if first["type"] == "string_unicode" else no_object(first["input"])
        )
    return invalid((place(detail["loc"]), _sentence(detail, allowed)) for detail in details)


def _sentence(detail: Any, allowed: Sequence[str]) -> str:
    match detail["type"]:
        case "missing":
            return "required, but missing"
        case "extra_forbidden" if len(detail["loc"]) == 1:
            return f"not an argument of this tool; it has: {', '.join(allowed) or 'none'}"
        case "extra_forbidden":
            return "not expected here"
        case _:
            message: str = detail["msg"]
            return f"{message[:1].lower()}{message[1:]}, got {quoted(detail['input'])}"


def place(loc: Iterable[object]) -> str:
    """A path into the arguments, as people write it: `items[0].price`."""
    text = ""
    for step in loc:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return shorten(text, 120)


def quoted(found: object) -> str:
    """A short, harmless picture of a value that a model sent."""
    try:
        return shorten(compact_json(found), 60)
    except ValueError:
        return kind(found)


def kind(found: object) -> str:
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

"""What is wrong with arguments, in words for the model: the place, what was found, what is allowed."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from pydantic_core import from_json

from handrail.core.text import compact_json
from handrail.errors import InvalidArgumentsError, ToolArgsParseError, ToolError, shorten

if TYPE_CHECKING:
    from pydantic import ValidationError

MOST = 10
"""How many faults one answer lists; a model mends the first ones first."""

Step = str | int


def no_json(reason: str) -> ToolArgsParseError:
    """The arguments are not JSON."""
    return ToolArgsParseError(f"The arguments are not valid JSON: {shorten(reason, 200)}. Send one JSON object.")


def no_object(found: object) -> ToolArgsParseError:
    """The arguments are JSON, but not an object."""
    return ToolArgsParseError(f"The arguments must be a JSON object, not {kind(found)}.")


def invalid(faults: Iterable[tuple[str, str]], *, more: int = 0) -> InvalidArgumentsError:
    """The arguments do not fit; each fault is a place and a sentence about it."""
    listed = list(faults)
    more += len(listed[MOST:])
    lines = [f"- {place}: {text}" if place else f"- {text}" for place, text in listed[:MOST]]
    if more:
        lines.append(f"- … and {more} more")
    return InvalidArgumentsError(
        "The arguments are not valid:\n" + "\n".join(lines), places=[place for place, _ in listed[:MOST]]
    )


def from_pydantic(error: "ValidationError", allowed: Sequence[str], text: str) -> ToolError:
    """Pydantic's finding as the error that it is: no JSON, no object, or invalid arguments."""
    details = error.errors(include_url=False, include_context=True)
    first = details[0]
    if not first["loc"]:
        match first["type"]:
            case "json_invalid":
                return no_json(str(first.get("ctx", {}).get("error", first["msg"])))
            case "string_unicode":
                return no_json("it contains a lone surrogate")
            case "dict_type" | "model_type" | "model_attributes_type":
                return no_object(first["input"])
            case _:
                pass
    try:
        sent = from_json(text or "{}")
    except ValueError:  # A class may read its arguments in a way of its own.
        sent = None
    return invalid((_fault(detail, allowed, sent) for detail in details[:MOST]), more=len(details[MOST:]))


def _fault(detail: Any, allowed: Sequence[str], sent: Any) -> tuple[str, str]:
    path = _path(detail, sent)
    match detail["type"]:
        case "missing":
            return place(path), "required, but missing"
        case "extra_forbidden" if len(path) == 1:
            return place(path), not_an_argument(allowed)
        case "extra_forbidden" | "unexpected_keyword_argument":
            return place(path), "not expected here"
        case _:
            message = shorten(detail["msg"], 300)
            if message[1:2].islower():
                message = message[0].lower() + message[1:]
            return place(path), f"{message}, got {quoted(detail['input'])}"


def _path(detail: Any, sent: Any) -> list[Step]:
    """Pydantic's path without the names of union branches and validators, which are no places in what was sent."""
    loc: tuple[Step, ...] = detail["loc"]
    path: list[Step] = []
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


def not_an_argument(allowed: Iterable[str]) -> str:
    """What to say of an argument that a tool does not have."""
    return f"not an argument of this tool; it has: {', '.join(allowed) or 'none'}"


def place(path: Iterable[object]) -> str:
    """A path into the arguments, as people write it: `items[0].price`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step) or '""'
    return shorten(text, 120)


def quoted(found: object, limit: int = 60) -> str:
    """A short, harmless picture of a value."""
    try:
        return shorten(compact_json(found), limit)
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

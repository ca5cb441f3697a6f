"""What every wire format needs to read an answer: fields of objects and dicts, arguments as text."""

import json
from collections.abc import Mapping
from typing import Any, cast

from pydantic_core import from_json

from handrail.core.text import faithful_json


def get_field(source: Any, name: str, default: Any = None) -> Any:
    """A field of an SDK's object or of a plain dict, which are the same thing to a format."""
    if isinstance(source, Mapping):
        return cast(Mapping[str, Any], source).get(name, default)
    return getattr(source, name, default)


def to_json_text(arguments: Any) -> str:
    """Arguments that arrived as a value, as JSON text; nothing that a parser must refuse is mended on the way."""
    if arguments is None:
        return "{}"
    try:
        return faithful_json(arguments)
    except ValueError:  # Nested deeper than the tool's parser goes, which will say so.
        try:
            return json.dumps(arguments)
        except (TypeError, ValueError, RecursionError):
            return make_unparsable("{}")


def make_unparsable(arguments: str) -> str:
    """Arguments of a call that the provider cut off, as text that no parser takes for complete.

    The call still has to be answered; it must never run.
    """
    try:
        from_json(arguments or "{}")
    except (TypeError, ValueError):
        return arguments
    return arguments.rstrip()[:-1] or "{"


def to_plain(source: Any) -> Any:
    """An SDK's object as the dict that can be sent back; a dict as it is."""
    dump = getattr(source, "model_dump", None)
    return source if dump is None else dump(exclude_none=True, warnings=False)


def parse_object(arguments: str) -> dict[str, Any]:
    """Arguments as a value, to be shown back to the model; what is no object, or was cut off, as an empty one."""
    try:
        value = from_json(arguments or "{}")
    except (TypeError, ValueError):  # Half a character is a TypeError.
        return {}
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}

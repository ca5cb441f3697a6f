"""JSON with its numbers as the model wrote them, so that changing one value does not round another."""

import json
from typing import Any, cast


class NumberText(str):
    """A number as the model wrote it; a float would lose the digits of a Decimal."""

    __slots__ = ()


def write_json(value: Any) -> str:
    """Write a JSON value whose numbers may be `NumberText`."""
    match value:
        case NumberText():
            return str(value)
        case dict():
            members = cast(dict[str, Any], value).items()
            return "{" + ",".join(f"{write_json(name)}:{write_json(member)}" for name, member in members) + "}"
        case list():
            return "[" + ",".join(write_json(item) for item in cast(list[Any], value)) + "]"
        case str():
            # A lone surrogate stays an escape, which the parser refuses.
            return json.dumps(value, ensure_ascii=any("\ud800" <= char <= "\udfff" for char in value))
        case _:
            return json.dumps(value)

"""A JSON Schema that an answer has to fit, as an API takes it, and the way back."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, cast

from msgspec import Struct

from handrail.core.text import compact_json
from handrail.errors import ConfigError
from handrail.formats.definitions import SkippedTool
from handrail.formats.outgoing import valid
from handrail.schema import strict
from handrail.schema.nodes import branches, resolved
from handrail.schema.restore import decoder
from handrail.schema.tidy import map_children

ANSWER: Final = "answer"
"""The name of the one property of an object around an answer that is none itself."""
_DEFINITION: Final = "TheAnswer"


class Shape(Struct, frozen=True, kw_only=True):
    """How an answer looks on the wire."""

    schema: dict[str, Any]
    strict: bool
    """Whether the provider can hold the model to it."""
    decode: Callable[[str], str]
    """The text of the reply, as the given schema wants it; text that is no JSON stays as it is."""


def checked(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the schema, if it is one."""
    try:
        return valid(json.loads(compact_json(schema)))
    except (SkippedTool, ValueError, TypeError, RecursionError) as reason:
        text = str(reason).replace("its input_schema", "it")
        raise ConfigError(f"This is not a JSON Schema for an answer: {text}.") from reason


def as_object(schema: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """The schema of an object, which is what the APIs take, and whether the answer is inside of it."""
    start = resolved(schema, schema) if "$ref" in schema else schema
    if start.get("type") == "object" and branches(start) is None:
        return schema, False
    definitions = cast(dict[str, Any], schema.get("$defs", {}))
    inner = {key: value for key, value in schema.items() if key not in ("$defs", "$schema", "$id")}
    every = {**definitions, _DEFINITION: inner}
    return {
        "type": "object",
        "properties": {ANSWER: {"$ref": f"#/$defs/{_DEFINITION}"}},
        "required": [ANSWER],
        "additionalProperties": False,
        "$defs": {name: _moved(one) for name, one in every.items()},
    }, True


def _moved(node: Any) -> Any:
    """References to the root, which is somewhere else now."""
    if not isinstance(node, dict):
        return node
    copy = map_children(cast(dict[str, Any], node), lambda _, child: _moved(child))
    return {**copy, "$ref": f"#/$defs/{_DEFINITION}"} if copy.get("$ref") == "#" else copy


def shaped(schema: Mapping[str, Any], *, dialect: strict.Dialect | None) -> Shape:
    """The schema in a provider's strict mode where it can be said there, else as it is."""
    whole, wrapped = as_object(checked(schema))
    lowered: strict.Lowered | None = None
    if dialect is not None:
        with suppress(strict.NotRepresentable):
            lowered = strict.lower(whole, dialect)
    back = None if lowered is None else lowered.decode
    unwrap = decoder(_unwrapped) if wrapped else None
    steps = [one for one in (back, unwrap) if one is not None]

    def decode(text: str) -> str:
        for step in steps:
            text = step(text)
        return text

    return Shape(schema=whole if lowered is None else lowered.schema, strict=lowered is not None, decode=decode)


def _unwrapped(value: Any) -> Any:
    members = cast(dict[str, Any], value) if isinstance(value, dict) else {}
    return members[ANSWER] if members.keys() == {ANSWER} else cast(Any, value)

"""The JSON Schema of a structured response, as one API takes it, and the decoder of the response."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, cast

from msgspec import Struct

from handrail.core.text import compact_json
from handrail.errors import ConfigError, UnsupportedToolError
from handrail.formats.definition_parts import check_schema
from handrail.schema import strict_schema
from handrail.schema.schema_nodes import get_branches, resolve
from handrail.schema.strict_decoding import build_decoder
from handrail.schema.subschemas import map_children

WRAPPER_PROPERTY: Final = "answer"
"""The only property of the object that wraps a response which is not an object itself."""
_DEFINITION: Final = "TheAnswer"


class ResponseSchema(Struct, frozen=True, kw_only=True):
    """The schema that is sent, and how the response is decoded."""

    schema: dict[str, Any]
    strict: bool
    """Whether the provider enforces it."""
    decode: Callable[[str], str]
    """From the text of the response to text that fits the caller's schema; text that is not JSON stays unchanged."""


def check_response_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the schema; raises `ConfigError` if it is not valid."""
    try:
        return check_schema(json.loads(compact_json(schema)))
    except (UnsupportedToolError, ValueError, TypeError, RecursionError) as reason:
        text = str(reason).replace("its input_schema", "it")
        raise ConfigError(f"schema is not a valid JSON Schema: {text}.") from reason


def wrap_in_object(schema: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """The schema of an object, which the APIs require, and whether the response is wrapped in it."""
    start = resolve(schema, schema) if "$ref" in schema else schema
    if start.get("type") == "object" and get_branches(start) is None:
        return schema, False
    definitions = cast(dict[str, Any], schema.get("$defs", {}))
    inner = {key: value for key, value in schema.items() if key not in ("$defs", "$schema", "$id")}
    every = {**definitions, _DEFINITION: inner}
    return {
        "type": "object",
        "properties": {WRAPPER_PROPERTY: {"$ref": f"#/$defs/{_DEFINITION}"}},
        "required": [WRAPPER_PROPERTY],
        "additionalProperties": False,
        "$defs": {name: _rebase_root_references(value) for name, value in every.items()},
    }, True


def _rebase_root_references(node: Any) -> Any:
    """Point references to the root to where the root is now."""
    if not isinstance(node, dict):
        return node
    copy = map_children(cast(dict[str, Any], node), lambda _, child: _rebase_root_references(child))
    return {**copy, "$ref": f"#/$defs/{_DEFINITION}"} if copy.get("$ref") == "#" else copy


def build_response_schema(schema: Mapping[str, Any], *, dialect: strict_schema.Dialect | None) -> ResponseSchema:
    """The schema lowered to a provider's strict mode if that can represent it, else unchanged."""
    wrapped, is_wrapped = wrap_in_object(check_response_schema(schema))
    lowered: strict_schema.Lowered | None = None
    if dialect is not None:
        with suppress(strict_schema.NotRepresentable):
            lowered = strict_schema.lower(wrapped, dialect)
    restore = None if lowered is None else lowered.decode
    unwrap = build_decoder(_unwrap) if is_wrapped else None
    steps = [item for item in (restore, unwrap) if item is not None]

    def decode(text: str) -> str:
        for step in steps:
            text = step(text)
        return text

    return ResponseSchema(
        schema=wrapped if lowered is None else lowered.schema, strict=lowered is not None, decode=decode
    )


def _unwrap(value: Any) -> Any:
    members = cast(dict[str, Any], value) if isinstance(value, dict) else {}
    return members[WRAPPER_PROPERTY] if members.keys() == {WRAPPER_PROPERTY} else cast(Any, value)

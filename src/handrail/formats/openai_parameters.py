"""The parameters of a tool as the three OpenAI formats send them, strict or not."""

from typing import Any, cast

from msgspec import Struct

from handrail.core.tool import Tool
from handrail.formats.definition_parts import add_properties, get_object_schema
from handrail.formats.names import Decode
from handrail.schema import strict_schema
from handrail.schema.schema_nodes import get_types
from handrail.schema.subschemas import map_children


class Parameters(Struct, frozen=True, kw_only=True):
    """A tool's schema, rendered for OpenAI."""

    schema: dict[str, Any]
    strict: bool
    decode: Decode | None = None
    notes: tuple[str, ...] = ()


def build_parameters(tool: Tool[..., Any]) -> Parameters:
    """Render the schema, in strict mode if the tool asks for it and strict mode can represent the schema."""
    schema = get_object_schema(tool)
    if not tool.strict:
        return Parameters(schema=to_non_strict(schema), strict=False)
    try:
        lowered = strict_schema.lower(schema, strict_schema.OPENAI)
    except strict_schema.NotRepresentable as reason:
        return Parameters(schema=to_non_strict(schema), strict=False, notes=(f"is sent without strict mode: {reason}",))
    return Parameters(
        schema=lowered.schema,
        strict=True,
        decode=lowered.decode,
        notes=(*(f"checked here only: {constraint}" for constraint in lowered.lost), *lowered.closed_notes),
    )


def to_non_strict(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a non-strict tool. Every array gets `items`, which the API requires."""

    def add_items(node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        copy = map_children(cast(dict[str, Any], node), lambda _, child: add_items(child))
        return {**copy, "items": {}} if "items" not in copy and "array" in (get_types(copy) or ()) else copy

    return add_properties(add_items(schema))

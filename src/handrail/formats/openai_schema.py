"""What the three OpenAI formats share: parameters, strict or not."""

import re
from typing import Any, Final, cast

from msgspec import Struct

from handrail.core.tool import Tool
from handrail.formats.outgoing import Decode, plain_object, with_properties
from handrail.schema import strict
from handrail.schema.nodes import kinds
from handrail.schema.tidy import map_children

NAME: Final = re.compile(r"[a-zA-Z0-9_-]+")


class Parameters(Struct, frozen=True, kw_only=True):
    """A tool's schema as OpenAI gets it."""

    schema: dict[str, Any]
    strict: bool
    decode: Decode | None = None
    notes: tuple[str, ...] = ()


def parameters(tool: Tool[..., Any]) -> Parameters:
    """The schema, in strict mode where the tool asks for it and the schema can be said there."""
    schema = plain_object(tool)
    if not tool.strict:
        return Parameters(schema=loose(schema), strict=False)
    try:
        lowered = strict.lower(schema, strict.OPENAI)
    except strict.NotRepresentable as reason:
        return Parameters(schema=loose(schema), strict=False, notes=(f"goes out non-strict: {reason}",))
    return Parameters(
        schema=lowered.schema,
        strict=True,
        decode=lowered.decode,
        notes=tuple(f"checked here only: {one}" for one in lowered.lost),
    )


def loose(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema for a tool that is not strict. Every array says what is in it, which the API asks for."""

    def said(node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        copy = map_children(cast(dict[str, Any], node), lambda _, child: said(child))
        return {**copy, "items": {}} if "items" not in copy and "array" in (kinds(copy) or ()) else copy

    return with_properties(said(schema))

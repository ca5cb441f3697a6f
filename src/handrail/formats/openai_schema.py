"""What the three OpenAI formats share: parameters, strict or not."""

import re
from typing import Any, Final

from msgspec import Struct

from handrail.core.tool import Tool
from handrail.formats.definitions import plain_object
from handrail.schema import strict

NAME: Final = re.compile(r"[a-zA-Z0-9_-]+")


class Parameters(Struct, frozen=True, kw_only=True):
    """A tool's schema as OpenAI gets it."""

    schema: dict[str, Any]
    strict: bool
    decode: Any = None
    notes: tuple[str, ...] = ()


def parameters(tool: Tool[..., Any]) -> Parameters:
    """The schema, in strict mode where the tool asks for it and the schema can be said there."""
    schema = plain_object(tool)
    if not tool.strict:
        return Parameters(schema=schema, strict=False)
    try:
        lowered = strict.lower(schema, strict.OPENAI)
    except strict.NotRepresentable as reason:
        return Parameters(schema=schema, strict=False, notes=(f"goes out non-strict: {reason}",))
    return Parameters(
        schema=lowered.schema,
        strict=True,
        decode=lowered.decode,
        notes=tuple(f"checked here only: {one}" for one in lowered.lost),
    )

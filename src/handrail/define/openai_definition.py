"""Builds the tool definitions of OpenAI's two APIs from a name, a description and a schema."""

import warnings
from typing import TYPE_CHECKING, Any, cast

from handrail.schema import strict_schema

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionToolParam
    from openai.types.responses import FunctionToolParam


def tool_def_for_chat_completions_api(
    name: str, description: str | None, strict: bool, schema: dict[str, Any]
) -> "ChatCompletionToolParam":
    """Build a definition for Chat Completions."""
    parameters, strict = _build_parameters(name, strict, schema)
    function: dict[str, Any] = {"name": name}
    if strict:
        function["strict"] = True
    if description:
        function["description"] = description
    if parameters["properties"] or parameters.keys() - {"type", "properties", "required"}:
        function["parameters"] = parameters
    return cast(Any, {"type": "function", "function": function})


def tool_def_for_responses_api(
    name: str, description: str | None, strict: bool, schema: dict[str, Any]
) -> "FunctionToolParam":
    """Build a definition for Responses."""
    parameters, strict = _build_parameters(name, strict, schema)
    definition: dict[str, Any] = {"type": "function", "name": name, "parameters": parameters, "strict": strict}
    if description:
        definition["description"] = description
    return cast(Any, definition)


def _build_parameters(name: str, wants_strict: bool, schema: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    if wants_strict and (lowered := lower_or_none(schema, name=name)):
        return lowered.schema, True
    return _build_object_schema(schema), False


def _build_object_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Build the schema of the arguments, without the title and description of the tool itself."""
    rest = {
        key: value
        for key, value in inline_root_reference(schema).items()
        if key not in ("title", "description", "type")
    }
    return {"type": "object", "properties": {}, "required": [], **rest}


def inline_root_reference(schema: dict[str, Any]) -> dict[str, Any]:
    """Inline the root of a recursive model's schema, which Pydantic writes as a reference to a definition."""
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    target = schema.get("$defs", {}).get(name)
    return {**target, "$defs": schema["$defs"]} if target else schema


def lower_or_none(schema: dict[str, Any], *, name: str | None = None) -> strict_schema.Lowered | None:
    """Lower a schema to strict mode; None, with a warning, if strict mode cannot represent it."""
    try:
        return strict_schema.lower(_build_object_schema(schema), strict_schema.OPENAI)
    except strict_schema.NotRepresentable as reason:
        if name is not None:
            warnings.warn(f"`{name}` is sent without strict mode: {reason}.", stacklevel=4)
        return None

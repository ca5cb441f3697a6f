"""What the formats have in common: the parts of a tool's definition, and the text and the media of its result."""

from collections.abc import Collection
from typing import Any, Final, cast
from urllib.parse import unquote

import jsonschema_rs

from handrail.core.media import MediaPart
from handrail.core.text import compact_json
from handrail.core.tool import Tool
from handrail.core.values import ToolResult
from handrail.errors import UnsupportedToolError, shorten
from handrail.schema.subschemas import iter_subschemas

_DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"


def render_description(tool: Tool[..., Any]) -> str:
    """The description with the examples in it, for an API that has no field for examples."""
    if not tool.examples:
        return tool.description
    lines = "\n".join(compact_json(example) for example in tool.examples)
    return f"{tool.description}\n\nExamples of arguments:\n{lines}".strip()


def get_object_schema(tool: Tool[..., Any]) -> dict[str, Any]:
    """The input schema of a tool; raises `UnsupportedToolError` unless its root is an object, as every API requires."""
    schema = _inline_root_reference(dict(tool.input_schema))
    if schema.get("type") != "object":
        raise UnsupportedToolError("its input_schema is not an object")
    if refused := sorted(schema.keys() & {"anyOf", "oneOf", "allOf", "not", "enum", "const"}):
        raise UnsupportedToolError(f"its input_schema has {', '.join(refused)} at the root, which the API refuses")
    return check_schema(schema)


def _inline_root_reference(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with a `$ref` at its root replaced by its target; what stands beside the reference is kept."""
    followed: set[str] = set()
    while "$ref" in schema:
        reference = str(schema["$ref"])
        target = _find_reference(reference, schema)
        if not isinstance(target, dict) or reference in followed or reference == "#":
            raise UnsupportedToolError(f"its input_schema refers to {reference}, which leads to no schema")
        followed.add(reference)
        found = cast(dict[str, Any], target)
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        merged = {**found, **rest}
        if "properties" in found and "properties" in rest:
            merged["properties"] = {**found["properties"], **rest["properties"]}
        if "required" in found and "required" in rest:
            merged["required"] = list(dict.fromkeys([*found["required"], *rest["required"]]))
        schema = merged
    return schema


def check_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema; raises `UnsupportedToolError` unless it is valid and all its references are local."""
    try:
        # The dialect is given here, because an unknown one would be fetched.
        jsonschema_rs.meta.validate({**schema, "$schema": _DRAFT})
    except jsonschema_rs.ValidationError as error:
        raise UnsupportedToolError(f"its input_schema is not valid: {shorten(error.message, 200)}") from error
    for _, node in [("", schema), *iter_subschemas(schema)]:
        if "$ref" in node and not _is_resolvable(str(node["$ref"]), schema):
            raise UnsupportedToolError(f"its input_schema refers to {node['$ref']}, which is not in it")
    return schema


def _is_resolvable(reference: str, root: dict[str, Any]) -> bool:
    return _find_reference(reference, root) is not None


def _find_reference(reference: str, root: dict[str, Any]) -> Any:
    """The node that a local reference points to; None if there is none."""
    found: Any = root
    head, *steps = unquote(reference).split("/")
    for step in steps:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and step.isdigit() and int(step) < len(cast(list[Any], found)):
            found = cast(list[Any], found)[int(step)]
        elif isinstance(found, dict) and step in found:
            found = cast(dict[str, Any], found)[step]
        else:
            return None
    return found if head == "#" else None


def add_properties(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with `properties`, which the APIs require even for a tool without parameters."""
    return schema if "properties" in schema else {**schema, "properties": {}}


PDF: Final = "application/pdf"


def select_media(
    result: ToolResult, *, images: Collection[str], files: Collection[str] = (), with_uri: bool = False
) -> tuple[MediaPart, ...]:
    """The media that an API takes, by the MIME types that it names; `with_uri`, also those that it fetches itself."""
    if not result.media or not result.ok:
        return ()

    def is_accepted(part: MediaPart) -> bool:
        has_content = part.data is not None or (with_uri and (part.uri or "").startswith("https://"))
        return has_content and not part.omitted and part.mime_type.lower() in (*images, *files)

    return tuple(part for part in result.media if is_accepted(part))


def render_result(result: ToolResult, attached: Collection[MediaPart] = ()) -> tuple[str, bool]:
    """The text for the model, and whether it is a failure; an output that JSON cannot hold is one.

    Media are described in the text, but for those that are attached.
    """
    text = result.for_model(attached=attached)
    if result.ok and not isinstance(result.output, str):
        try:
            compact_json(result.output)
        except ValueError:
            return text, True
    return text, not result.ok

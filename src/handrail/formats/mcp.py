"""The Model Context Protocol, from the server's side."""

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote
from uuid import uuid4

from handrail.core.media import MediaPart
from handrail.core.tool import Tool
from handrail.core.values import ToolCall, ToolResult
from handrail.errors import ConfigError, UnsupportedToolError
from handrail.formats import names
from handrail.formats.call_parsing import build_call, decode_calls, get_field, to_json_text
from handrail.formats.definition_parts import check_schema, render_description, render_result
from handrail.formats.definitions import Definitions, RenderedTool, ToolChoiceMode, build_definitions

if TYPE_CHECKING:
    from typing import NoReturn


def tools(pool: Iterable[Tool[..., Any]]) -> Definitions[dict[str, Any]]:
    """Build the definitions for the response to `tools/list`."""
    return build_definitions(pool, dialect="mcp", render=_render_tool)


def _render_tool(tool: Tool[..., Any]) -> RenderedTool:
    name, notes = names.fit_name(tool.name, names.MCP)
    schema = {"type": "object", **tool.input_schema}
    if schema["type"] != "object":
        raise UnsupportedToolError("its input_schema is not an object")
    definition: dict[str, Any] = {
        "name": name,
        "description": render_description(tool),
        "inputSchema": check_schema(schema),
        "annotations": {
            "readOnlyHint": tool.read_only,
            "idempotentHint": tool.read_only or tool.idempotent,
        },
    }
    if tool.output_schema is not None and tool.output_schema.get("type") == "object":
        definition["outputSchema"] = dict(tool.output_schema)
    return RenderedTool(name=name, definition=definition, notes=notes)


def calls(response: Any, definitions: Sequence[Any] | None = None) -> list[ToolCall]:
    """The call in a `tools/call` request, or in its parameters."""
    requests = cast(Sequence[Any], response) if isinstance(response, list | tuple) else (response,)
    found: list[ToolCall] = []
    for request in requests:
        parameters = get_field(request, "params") or request
        request_id = get_field(request, "id")
        arguments = get_field(parameters, "arguments")
        found.append(
            build_call(
                id=uuid4().hex if request_id is None else request_id,
                name=get_field(parameters, "name"),
                # A text is a JSON value here, and no object: the tool's parser refuses it.
                arguments=to_json_text(arguments),
            )
        )
    return decode_calls(found, definitions)


def results(results: Iterable[ToolResult], definitions: Sequence[Any] | None = None) -> list[dict[str, Any]]:
    """Render results as results of `tools/call`, with failures marked."""
    rendered: list[dict[str, Any]] = []
    for result in results:
        media = tuple(part for part in result.media if not part.omitted) if result.media and result.ok else ()
        text, failed = render_result(result, media)
        texts = [{"type": "text", "text": text}] if text or not media else []
        entry: dict[str, Any] = {"content": [*texts, *map(_render_media, media)], "isError": failed}
        if (
            not failed
            and not isinstance(result.output, str)
            and isinstance(value := json.loads(result.text or "0"), dict)
        ):
            entry["structuredContent"] = value
        rendered.append(entry)
    return rendered


def _render_media(part: MediaPart) -> dict[str, Any]:
    if part.data is None:
        name = part.name or (part.uri or "").rpartition("/")[2] or part.kind
        return {"type": "resource_link", "uri": part.uri, "name": name, "mimeType": part.mime_type}
    if part.kind in ("image", "audio"):
        return {"type": part.kind, "mimeType": part.mime_type, "data": part.base64}
    uri = part.uri or f"file:///{quote(part.name or 'file')}"
    return {"type": "resource", "resource": {"uri": uri, "mimeType": part.mime_type, "blob": part.base64}}


def tool_choice(
    mode: ToolChoiceMode = "auto",
    *,
    tool: str | None = None,
    allowed: Sequence[str] = (),
    definitions: Sequence[Any] | None = None,
) -> "NoReturn":
    """MCP lets the client choose: there is nothing to send."""
    raise ConfigError("MCP has no tool choice: the client decides which tool it calls.")


def assistant_messages(response: Any) -> list[dict[str, Any]]:
    """Return nothing: MCP has no history."""
    return []

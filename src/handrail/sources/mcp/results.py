"""What an MCP server answered to a call, as a result."""

from typing import Any, Final, cast

import mcp_types as types

from handrail.core.text import compact_json
from handrail.core.values import ToolResult
from handrail.errors import ToolError

_ERROR_CHARS: Final = 4_000
_MEDIA: Final = ("image", "audio", "resource", "resource_link")


def build_result(result: types.CallToolResult) -> ToolResult:
    """The result of a call.

    Structured content is the output as it is. Text is joined; images, audio and files are described in the output, and
    are in `ToolResult.context`, for the caller's own code. What the server calls an error is raised as a `ToolError`.
    """
    parts: list[Any] = []
    media: list[dict[str, Any]] = []
    for block in result.content:
        parts.append(_read_block(block, media))
    texts = [part for part in parts if isinstance(part, str)]
    if result.is_error:
        text = "\n".join(texts)[:_ERROR_CHARS]
        raise ToolError(text or "The tool reported an error, and does not say which.")
    described = [part for part in parts if not isinstance(part, str)]
    output: Any
    if result.structured_content is not None:
        output = [result.structured_content, *described] if described else result.structured_content
    else:
        output = parts if described else "\n".join(texts)
    return ToolResult(output=output, context=tuple(media) or None)


def build_media_blocks(result: ToolResult) -> list[dict[str, Any]] | None:
    """The content of a result that holds more than text: what `build_result` made of it, made back; None for a result
    of one text or value."""
    output, context = cast(object, result.output), cast(object, result.context)
    if not result.ok or not isinstance(output, list):
        return None
    given = cast(tuple[Any, ...], context) if isinstance(context, tuple) else ()
    data = [cast(dict[str, Any], one) for one in given if isinstance(one, dict) and "data" in one]
    parts = cast(list[Any], output)
    if not any(_get_type(part) in _MEDIA for part in parts):
        return None
    blocks: list[dict[str, Any]] = []
    for part in parts:
        kind = _get_type(part)
        if kind in _MEDIA and "bytes" in part and data:
            blocks.append(_write_block(data.pop(0)))
        elif kind == "resource" and "text" in part:
            blocks.append({"type": kind, "resource": {key: value for key, value in part.items() if key != "type"}})
        elif kind == "resource_link":
            blocks.append(part)
        else:
            blocks.append({"type": "text", "text": part if isinstance(part, str) else compact_json(part)})
    return blocks


def _get_type(part: Any) -> str:
    return str(cast(dict[str, Any], part).get("type", "")) if isinstance(part, dict) else ""


def _write_block(media: dict[str, Any]) -> dict[str, Any]:
    if media.get("type") == "resource":
        resource = {"uri": media.get("uri"), "mimeType": media.get("mimeType"), "blob": media["data"]}
        return {"type": "resource", "resource": {key: value for key, value in resource.items() if value is not None}}
    return {"type": media.get("type"), "mimeType": media.get("mimeType"), "data": media["data"]}


def _read_block(block: types.ContentBlock, media: list[dict[str, Any]]) -> Any:
    """A text as it is; anything else as what describes it, with its data put aside."""
    match block:
        case types.TextContent():
            return block.text
        case types.ImageContent() | types.AudioContent():
            media.append({"type": block.type, "mimeType": block.mime_type, "data": block.data})
            return {"type": block.type, "mimeType": block.mime_type, "bytes": _decoded_size(block.data)}
        case types.EmbeddedResource(resource=types.TextResourceContents() as resource):
            described = {"uri": str(resource.uri), "mimeType": resource.mime_type, "text": resource.text}
            return {"type": "resource", **{key: value for key, value in described.items() if value is not None}}
        case types.EmbeddedResource(resource=types.BlobResourceContents() as resource):
            found = {"type": "resource", "uri": str(resource.uri), "mimeType": resource.mime_type}
            media.append({**found, "data": resource.blob})
            return {**found, "bytes": _decoded_size(resource.blob)}
        case types.ResourceLink():
            link = {"uri": str(block.uri), "name": block.name, "description": block.description}
            described = {**link, "mimeType": block.mime_type}
            return {"type": "resource_link", **{key: value for key, value in described.items() if value is not None}}
        case _:
            return {"type": getattr(block, "type", "unknown")}


def _decoded_size(base64: str) -> int:
    return len(base64) * 3 // 4 - base64.count("=", -2)

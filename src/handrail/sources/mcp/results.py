"""What an MCP server answered to a call, as a result."""

from base64 import b64decode
from typing import Any, Final, cast

import mcp_types as types

from handrail.core.media import MediaPart, to_mime_type
from handrail.core.text import compact_json
from handrail.core.values import ToolResult
from handrail.errors import ToolError

_ERROR_CHARS: Final = 4_000
_RESOURCES: Final = ("resource", "resource_link")


def build_result(result: types.CallToolResult) -> ToolResult:
    """The result of a call.

    Structured content is the output as it is. Text is joined; images, audio and files are its media; the text of a
    resource and a link stay in the output, beside the text. What the server calls an error is raised as a `ToolError`.
    """
    media: list[MediaPart] = []
    parts = [part for block in result.content if (part := _read_block(block, media)) is not None]
    texts = [part for part in parts if isinstance(part, str)]
    if result.is_error:
        text = "\n".join(texts)[:_ERROR_CHARS]
        raise ToolError(text or "The tool reported an error, and does not say which.")
    resources = [part for part in parts if not isinstance(part, str)]
    output: Any
    if result.structured_content is not None:
        output = [result.structured_content, *resources] if resources else result.structured_content
    elif resources:
        output = parts
    else:
        output = "\n".join(texts) or (None if media else "")
    return ToolResult(output=output, media=tuple(media))


def build_resource_blocks(result: ToolResult) -> list[dict[str, Any]] | None:
    """The output of a result as blocks, if there are resources in it, as `build_result` puts them there; else None."""
    output = cast(object, result.output)
    if not result.ok or not isinstance(output, list):
        return None
    parts = cast(list[Any], output)
    if not any(_get_type(part) in _RESOURCES for part in parts):
        return None
    blocks: list[dict[str, Any]] = []
    for part in parts:
        kind = _get_type(part)
        if kind == "resource" and "text" in part:
            blocks.append({"type": kind, "resource": {key: value for key, value in part.items() if key != "type"}})
        elif kind == "resource_link":
            blocks.append(part)
        else:
            blocks.append({"type": "text", "text": part if isinstance(part, str) else compact_json(part)})
    return blocks


def _get_type(part: Any) -> str:
    return str(cast(dict[str, Any], part).get("type", "")) if isinstance(part, dict) else ""


def _read_block(block: types.ContentBlock, media: list[MediaPart]) -> Any:
    """A text or a resource, for the output; None for what was put into the media."""
    match block:
        case types.TextContent():
            return block.text
        case types.ImageContent() | types.AudioContent():
            return _read_media(block.data, block.mime_type, None, block.type, media)
        case types.EmbeddedResource(resource=types.TextResourceContents() as resource):
            described = {"uri": str(resource.uri), "mimeType": resource.mime_type, "text": resource.text}
            return {"type": "resource", **{key: value for key, value in described.items() if value is not None}}
        case types.EmbeddedResource(resource=types.BlobResourceContents() as resource):
            return _read_media(resource.blob, resource.mime_type, str(resource.uri), "resource", media)
        case types.ResourceLink():
            link = {"uri": str(block.uri), "name": block.name, "description": block.description}
            described = {**link, "mimeType": block.mime_type}
            return {"type": "resource_link", **{key: value for key, value in described.items() if value is not None}}
        case _:
            return {"type": getattr(block, "type", "unknown")}


def _read_media(base64: str, mime_type: str | None, uri: str | None, kind: str, media: list[MediaPart]) -> str | None:
    try:
        media.append(MediaPart(mime_type=to_mime_type(mime_type), data=b64decode(base64, validate=True), uri=uri))
    except ValueError:  # The call has run all the same: the rest of its result is good.
        return f"[{kind}: its data cannot be read]"
    return None

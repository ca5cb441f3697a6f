"""What an MCP server says, as our values: its list as tools, each checked by itself, and its answers as results."""

import hashlib
import json
from base64 import b64decode
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, cast
from urllib.parse import urlsplit

import mcp_types as types
from msgspec import Struct

from handrail.core.context import ToolContext
from handrail.core.media import MediaPart, to_mime_type
from handrail.core.selectors import is_match
from handrail.core.text import compact_json, encodable
from handrail.core.tool import Tool
from handrail.core.values import ToolResult
from handrail.define.build import build_tool
from handrail.define.options import ToolFlags
from handrail.errors import ToolDefinitionError, ToolError, shorten
from handrail.sources.mcp.server_options import McpServer
from handrail.sources.source import SkippedTool

_FIELDS: Final = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")
"""What of a definition a model, a policy or a person acts upon."""
_ERROR_CHARS: Final = 4_000
_RESOURCES: Final = ("resource", "resource_link")

CallServer = Callable[[str, bool, Mapping[str, Any], ToolContext[Any]], Awaitable[ToolResult]]
"""Calls a tool by the server's own name for it; the flag says whether it is read-only."""


class McpDefinition(Struct, frozen=True, kw_only=True):
    """What a server says of one of its tools."""

    name: str
    """The server's own name for it."""
    definition: dict[str, Any]
    digest: str

    @classmethod
    def from_tool(cls, tool: types.Tool) -> "McpDefinition":
        """Read a listed tool."""
        given = tool.model_dump(mode="json", by_alias=True, exclude_none=True)
        definition = {key: given[key] for key in _FIELDS if key in given}
        return cls(name=tool.name, definition=definition, digest=compute_digest(definition))


def compute_digest(definition: Mapping[str, Any]) -> str:
    """The digest of a definition, whatever the order of its keys."""
    text = json.dumps(definition, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class BuiltTools(Struct, frozen=True, kw_only=True):
    """The tools of one listing, and those that are none."""

    tools: dict[str, Tool[..., Any]]
    """By the digest of their definitions."""
    skipped: tuple[SkippedTool, ...]


def build_tools(
    server: McpServer, listed: Sequence[McpDefinition], call: CallServer, known: Mapping[str, Tool[..., Any]]
) -> BuiltTools:
    """Make tools of definitions; one that is known by its digest stays the same object."""
    tools: dict[str, Tool[..., Any]] = {}
    skipped: list[SkippedTool] = []
    wanted = [item for item in listed if _is_wanted(server, item.name)]
    if len(wanted) > server.max_tools:
        rest = len(wanted) - server.max_tools
        reason = f"the server lists {len(wanted):,} tools, and max_tools is {server.max_tools:,}; use include=[…]"
        skipped.append(SkippedTool(name=f"{rest:,} tools", reason=reason))
        wanted = wanted[: server.max_tools]
    counts = Counter(_local_name(server, item.name) for item in wanted)
    for definition in wanted:
        name = _local_name(server, definition.name)
        try:
            if counts[name] > 1:
                raise ToolDefinitionError(f"the server has {counts[name]} tools that would be named {shorten(name)!r}")
            tools[definition.digest] = known.get(definition.digest) or _build(server, definition, name, call)
        except ToolDefinitionError as error:
            skipped.append(SkippedTool(name=shorten(definition.name), reason=error.message))
    return BuiltTools(tools=tools, skipped=tuple(dict.fromkeys(skipped)))


def _is_wanted(server: McpServer, name: str) -> bool:
    if server.include is not None and not any(is_match(name, pattern) for pattern in server.include):
        return False
    return not any(is_match(name, pattern) for pattern in server.exclude)


def _local_name(server: McpServer, name: str) -> str:
    # A colon selects by source or tag here.
    return f"{server.name}__{name.replace(':', '_')}"


def _build(server: McpServer, one: McpDefinition, name: str, call: CallServer) -> Tool[..., Any]:
    if not one.name or not one.name.isprintable():
        raise ToolDefinitionError("its name has control characters" if one.name else "its name is empty")
    given = one.definition
    hints = given.get("annotations", {})
    options = (ToolFlags.from_annotations(hints) if server.trusted else ToolFlags()).to_options()
    read_only = options.get("read_only", False)

    async def execute(payload: dict[str, Any], context: ToolContext[Any]) -> ToolResult:
        return await call(one.name, read_only, payload, context)

    return build_tool(
        {
            "name": name,
            "description": encodable(given.get("description", "") or given.get("title", "")),
            "input_schema": given["inputSchema"],
            "output_schema": given.get("outputSchema"),
            "execute": execute,
            **options,
            "timeout": server.timeout,
            "source": f"mcp:{server.name}",
            "metadata": {
                "mcp": {"server": server.name, "tool": one.name, "annotations": hints, "digest": one.digest},
                **({} if server.url is None else {"host": urlsplit(server.url).hostname}),
            },
        }
    )


# Answers.


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

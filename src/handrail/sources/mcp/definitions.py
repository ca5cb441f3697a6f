"""What an MCP server says, as our values: its list as tools, each checked by itself, and its answers as results."""

import asyncio
import hashlib
import json
from base64 import b64decode
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol, Self, cast
from urllib.parse import urlsplit

import mcp_types as types
from mcp.shared.message import SessionMessage
from msgspec import Struct
from pydantic import ValidationError

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


StreamMessage = SessionMessage | Exception

MAX_LISTED: Final = 10_000
"""How many definitions of one server are read at most, whatever it lists."""
_BATCH: Final = 100
"""How many definitions are checked before the loop may do something else."""


class MessageStream(Protocol):
    """What the SDK reads messages from."""

    async def receive(self) -> StreamMessage: ...

    async def aclose(self) -> None: ...

    async def __anext__(self) -> StreamMessage: ...


class CheckedStream:
    """A stream of messages in which every list of tools holds only tools."""

    def __init__(
        self, inner: MessageStream, *, max_definition_bytes: int, on_skip: Callable[[SkippedTool], None]
    ) -> None:
        self._inner = inner
        self._limit = max_definition_bytes
        self._on_skip = on_skip
        self._is_legacy = False
        """Whether the server was initialized, as in the older revisions of the protocol."""

    @property
    def last_context(self) -> Any:
        """The context of whoever sent the last message; the SDK asks for it."""
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> StreamMessage:
        """The next message."""
        return await self._check(await self._inner.receive())

    async def _check(self, message: StreamMessage) -> StreamMessage:
        if not isinstance(message, SessionMessage):
            return message
        if isinstance(message.message, types.JSONRPCError):
            if message.message.error.code == types.CONNECTION_CLOSED:
                # The SDK says this code of a lost connection; what a server sends is its own error.
                message.message.error.code = types.INTERNAL_ERROR
        elif isinstance(message.message, types.JSONRPCResponse):
            result = message.message.result
            self._is_legacy = self._is_legacy or "protocolVersion" in result
            listed: object = result.get("tools")
            if isinstance(listed, list):
                result["tools"] = await self._select_tools(cast(list[object], listed))
        return message

    async def _select_tools(self, listed: list[object]) -> list[object]:
        """The definitions that are some; never so many at once that the other tasks of the loop have to wait."""
        found: list[object] = []
        if len(listed) > MAX_LISTED:
            reason = f"the server lists {len(listed):,} tools at once, and only {MAX_LISTED:,} are read"
            self._on_skip(SkippedTool(name=f"{len(listed) - MAX_LISTED:,} tools", reason=reason))
        for number, definition in enumerate(listed[:MAX_LISTED], start=1):
            if self._is_tool(definition):
                found.append(definition)
            if number % _BATCH == 0:
                await asyncio.sleep(0)
        return found

    def _is_tool(self, given: object) -> bool:
        problem = find_problem(given, self._limit, is_legacy=self._is_legacy)
        if problem is None:
            return True
        name = cast(dict[str, object], given).get("name") if isinstance(given, dict) else None
        self._on_skip(SkippedTool(name=shorten(name) if isinstance(name, str) else "(no name)", reason=problem))
        return False

    async def aclose(self) -> None:
        """Close the stream."""
        await self._inner.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamMessage:
        return await self._check(await self._inner.__anext__())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()


def find_problem(given: object, max_definition_bytes: int, *, is_legacy: bool) -> str | None:
    """Why this is no definition of a tool; None if it may be one. Older revisions want more of it."""
    if not isinstance(given, dict):
        return "its definition is not an object"
    definition = cast(dict[str, Any], given)
    size = len(json.dumps(definition))
    if size > max_definition_bytes:
        return f"its definition has {size:,} bytes, and max_definition_bytes is {max_definition_bytes:,}"
    try:
        found = types.Tool.model_validate(definition, by_name=False)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        return f"its definition is not valid at {'.'.join(map(str, first['loc']))}: {first['msg']}"
    if found.input_schema.get("type") != "object":
        return "its inputSchema must have type 'object'"
    problem = _find_schema_problem("inputSchema", found.input_schema)
    if problem is None and found.output_schema is not None:
        if is_legacy and found.output_schema.get("type") != "object":
            return "its outputSchema must have type 'object' in this revision of the protocol"
        problem = _find_schema_problem("outputSchema", found.output_schema)
    return problem


def _find_schema_problem(name: str, schema: dict[str, Any]) -> str | None:
    """What the SDK would refuse the whole list for."""
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not all(isinstance(item, dict) for item in cast(Any, properties).values()):
        return f"its {name} is not valid at properties: each must be a schema"
    if not isinstance(required, list) or not all(isinstance(item, str) for item in cast(Any, required)):
        return f"its {name} is not valid at required: must be a list of names"
    if not isinstance(schema.get("$schema", ""), str):
        return f"its {name} is not valid at $schema: must be a text"
    return None

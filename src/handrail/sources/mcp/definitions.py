"""From what an MCP server lists to tools: each checked by itself, so that a bad one costs nobody else anything."""

import hashlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import mcp_types as types
from msgspec import Struct

from handrail.core.context import ToolContext
from handrail.core.selectors import is_match
from handrail.core.text import encodable
from handrail.core.tool import Tool
from handrail.core.values import ToolResult
from handrail.define.build import build_tool
from handrail.define.options import ToolFlags
from handrail.errors import ToolDefinitionError, shorten
from handrail.sources.mcp.server import McpServer
from handrail.sources.source import SkippedTool

_FIELDS: Final = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")
"""What of a definition a model, a policy or a person acts upon."""

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

"""Tools that live elsewhere: MCP servers, OpenAPI documents, plugins; and serving your own over MCP."""

from typing import TYPE_CHECKING

from handrail.core.lazy_loading import build_getattr

if TYPE_CHECKING:
    from handrail.sources.mcp.elicitation import Elicitation, ask_for_approval
    from handrail.sources.mcp.endpoint import McpRequest, mcp_app, serve_mcp
    from handrail.sources.mcp.server_options import McpServer
    from handrail.sources.openapi import OpenApi, Pagination
    from handrail.sources.pins import PinDifference
    from handrail.sources.plugins import Plugins, load_plugins
    from handrail.sources.source import OpenSource, SkippedTool, Source, Sources, SourceStatus, connect

__all__ = [
    "Elicitation",
    "McpRequest",
    "McpServer",
    "OpenApi",
    "OpenSource",
    "Pagination",
    "PinDifference",
    "Plugins",
    "SkippedTool",
    "Source",
    "SourceStatus",
    "Sources",
    "ask_for_approval",
    "connect",
    "load_plugins",
    "mcp_app",
    "serve_mcp",
]

# Loaded on first use, so that importing one module of this package does not import the others.
_ON_FIRST_USE = {
    "Elicitation": "handrail.sources.mcp.elicitation",
    "McpRequest": "handrail.sources.mcp.endpoint",
    "McpServer": "handrail.sources.mcp.server_options",
    "OpenApi": "handrail.sources.openapi",
    "OpenSource": "handrail.sources.source",
    "Pagination": "handrail.sources.openapi",
    "PinDifference": "handrail.sources.pins",
    "Plugins": "handrail.sources.plugins",
    "SkippedTool": "handrail.sources.source",
    "Source": "handrail.sources.source",
    "SourceStatus": "handrail.sources.source",
    "Sources": "handrail.sources.source",
    "ask_for_approval": "handrail.sources.mcp.elicitation",
    "connect": "handrail.sources.source",
    "load_plugins": "handrail.sources.plugins",
    "mcp_app": "handrail.sources.mcp.endpoint",
    "serve_mcp": "handrail.sources.mcp.endpoint",
}

__getattr__ = build_getattr(__name__, _ON_FIRST_USE)

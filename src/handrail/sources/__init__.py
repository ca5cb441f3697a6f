"""Tools that live elsewhere: MCP servers, OpenAPI documents, plugins; and serving your own over MCP."""

from handrail.sources.connection import Sources, connect
from handrail.sources.mcp.endpoint import McpRequest, mcp_app, serve_mcp
from handrail.sources.mcp.server import Elicitation, McpServer, ask_for_approval
from handrail.sources.openapi import OpenApi, Pagination
from handrail.sources.pins import PinDifference
from handrail.sources.plugins import Plugins, load_plugins
from handrail.sources.source import OpenSource, SkippedTool, Source, SourceStatus

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

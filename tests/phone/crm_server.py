"""A customer database as an MCP server, made with the official SDK: what a tenant has in a process of its own."""

import os
import sys

import mcp_types as types
from mcp.server.mcpserver import MCPServer

server = MCPServer("crm", version="1.0")


@server.tool(annotations=types.ToolAnnotations(read_only_hint=True))
def find_customer(number: str) -> str:
    """Find a customer by their telephone number."""
    return f"{number} is known to {os.environ['CRM_OWNER']}, key {os.environ['CRM_KEY'][-1]}"


@server.tool()
def write_note(text: str) -> str:
    """Write a note about a customer."""
    return f"noted: {text}"


if __name__ == "__main__":
    if "broken" in sys.argv:
        sys.exit(3)
    server.run(transport="stdio")

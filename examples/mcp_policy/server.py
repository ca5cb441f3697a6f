"""An MCP server that somebody else wrote: it has a tool to read, one to write, and one to delete."""

from mcp.server.mcpserver import MCPServer
from mcp.types import ToolAnnotations

server = MCPServer("files")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def list_reports() -> list[str]:
    """List all reports."""
    return ["2026-10", "2026-11"]


@server.tool()
def publish_report(name: str, audience: str) -> str:
    """Publish a report to an audience."""
    return f"Published {name} to {audience}."


@server.tool()
def delete_report(name: str) -> str:
    """Delete a report."""
    return f"Deleted {name}."


if __name__ == "__main__":
    server.run(transport="stdio")

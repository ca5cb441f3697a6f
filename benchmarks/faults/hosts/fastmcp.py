"""FastMCP: a tool that asks the client's user with `InputRequiredResult`, or `HandrailMiddleware` in the server."""

from benchmarks.faults.hosts.mcp_agent import McpHost


class Host(McpHost):
    """An agent whose server is made with FastMCP."""

    kind = "fastmcp"

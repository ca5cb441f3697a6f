"""The official MCP SDK: a tool that asks the client's user with `InputRequiredResult`."""

from benchmarks.faults.hosts.mcp_agent import McpHost


class Host(McpHost):
    """An agent whose server is made with the official SDK; there is no adapter for it but FastMCP's."""

    kind = "mcp"

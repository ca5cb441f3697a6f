"""The Model Context Protocol, both ways, over the official SDK (extra `mcp`)."""

"""A small MCP server made with the official SDK: what the tests connect to, in a process of its own."""

import os
import sys
from pathlib import Path

import mcp_types as types
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("shop", version="1.0")


@server.tool(annotations=types.ToolAnnotations(read_only_hint=True))
def find_order(order_id: int) -> dict[str, object]:
    """Find an order."""
    return {"order_id": order_id, "state": "paid"}


@server.tool()
def refund(order_id: int, amount: float) -> str:
    """Give money back."""
    if amount > 1000:
        raise ToolError("at most 1000 can be refunded")
    _note(f"refund {order_id}")
    return f"refunded {amount:g}"


@server.tool()
def crash(order_id: int) -> str:
    """Do something, and die before anybody hears of it."""
    _note(f"crash {order_id}")
    os._exit(3)


@server.tool()
async def count(ctx: Context, to: int) -> str:
    """Count, and say how far it has come."""
    for number in range(1, to + 1):
        await ctx.report_progress(number, to, f"at {number}")
    return "done"


@server.tool()
def picture() -> list[types.TextContent | types.ImageContent]:
    """Draw a picture."""
    return [types.TextContent(text="a dot"), types.ImageContent(data="aGVsbG8=", mime_type="image/png")]


def _note(line: str) -> None:
    if journal := os.environ.get("SHOP_JOURNAL"):
        with Path(journal).open("a") as file:
            file.write(f"{line}\n")


if __name__ == "__main__":
    server.run(transport="stdio" if len(sys.argv) < 2 else "streamable-http")

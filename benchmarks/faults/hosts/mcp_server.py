"""An MCP server with `pay`, in a process of its own: of the official SDK, of FastMCP, or of FastMCP with Handrail."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import mcp_types
from fastmcp import Context as FastMCPContext
from fastmcp import FastMCP
from fastmcp.server.middleware import Middleware
from mcp.server.mcpserver import Context as McpContext
from mcp.server.mcpserver import MCPServer
from mcp.server.request_state import RequestStateSecurity

from benchmarks.faults.cells import TIMEOUT
from benchmarks.faults.hosts.guarding import APPROVE, Guard
from benchmarks.faults.world import World


def build_server(kind: str, world: World, *, guarded: bool) -> Any:
    """A server whose tool asks the client's user first, by itself or through Handrail."""
    # One key for every process of the server: a question survives a restart.
    security = RequestStateSecurity(keys=["k" * 32], audience="faults")

    async def pay_now(invoice_id: str, amount: int) -> str:
        if world.plan.is_sync:
            return await asyncio.to_thread(world.pay, invoice_id, amount)
        return await world.pay_async(invoice_id, amount)

    async def ask_first(invoice_id: str, amount: int, responses: Any) -> Any:
        answer = (responses or {}).get(APPROVE)
        if answer is None:
            question = mcp_types.ElicitRequest(
                params=mcp_types.ElicitRequestFormParams(
                    message=f"Pay {amount} for {invoice_id}?", requested_schema={"type": "object", "properties": {}}
                )
            )
            return mcp_types.InputRequiredResult(input_requests={APPROVE: question}, request_state="asked")
        if answer.action != "accept":
            return "The payment was denied."
        return await pay_now(invoice_id, amount)

    if kind == "mcp":
        server: Any = MCPServer("faults", request_state_security=security)

        @server.tool(name="pay", structured_output=False)
        async def pay_mcp(invoice_id: str, amount: int, ctx: McpContext) -> Any:
            return await ask_first(invoice_id, amount, ctx.input_responses)

        return server

    server = FastMCP("faults", request_state_security=security)
    if not guarded:

        @server.tool(name="pay", output_schema=None)
        async def pay_fastmcp(invoice_id: str, amount: int, ctx: FastMCPContext) -> Any:
            return await ask_first(invoice_id, amount, ctx.input_responses)

        return server

    server.tool(pay_now, name="pay_now" if world.plan.adds_tool else "pay")
    return server


class Again(Middleware):
    """Runs what failed once more; FastMCP's own `RetryMiddleware` is refused when it stands inside of Handrail."""

    async def on_call_tool(self, context: Any, call_next: Any) -> Any:
        """Run the tool, twice if it has to be."""
        try:
            return await call_next(context)
        except Exception:
            return await call_next(context)


class Alias(Middleware):
    """Sends calls of `pay`, which no tool has, to `pay_now`."""

    async def on_call_tool(self, context: Any, call_next: Any) -> Any:
        """Run the tool that stands behind the name."""
        return await call_next(context.copy(message=context.message.model_copy(update={"name": "pay_now"})))


async def serve(kind: str, directory: str, *, guarded: bool) -> None:
    """Serve until the client leaves."""
    world = World(Path(directory))
    server = build_server(kind, world, guarded=guarded)
    if guarded:
        from handrail.adapters.fastmcp import HandrailMiddleware

        guard = Guard(world, timeout=TIMEOUT)
        turns = json.loads((world.directory / "agent.json").read_text("utf-8"))["turns"]
        server.add_middleware(HandrailMiddleware(await guard.executor(), context=guard.context(turns)))
    if world.plan.retries:
        server.add_middleware(Again())
    if world.plan.adds_tool and guarded:
        server.add_middleware(Alias())
    if kind == "mcp":
        await server.run_stdio_async()
    else:
        await server.run_stdio_async(show_banner=False)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2], guarded=sys.argv[3] == "True"))

"""An MCP server of the official SDK that asks nobody, behind `handrail mcp gateway`: an operator decides."""

import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import MCPServer

from benchmarks.faults.cells import TIMEOUT
from benchmarks.faults.hosts.guarding import Asked
from benchmarks.faults.hosts.mcp_agent import McpHost
from benchmarks.faults.world import World
from handrail import Executor
from handrail.store import open_store

_WAITING = ("approval_required", "outcome_unknown", "in_progress")


class Host(McpHost):
    """The agent; its server is a gateway in front of a server that knows nothing of Handrail."""

    kind = "gateway"

    def __init__(self, world: World, *, guarded: bool) -> None:
        super().__init__(world, guarded=guarded)
        self._guard = None
        self._stack = AsyncExitStack()
        self._url = f"sqlite:///{world.directory / 'gateway.db'}"

    async def questions(self) -> list[Asked]:
        """What an operator is shown."""
        executor = await self._open()
        pending, doubts = await executor.approvals.pending(), await executor.doubts()
        return [
            *(
                Asked(
                    id=approval.token, arguments=dict(approval.arguments), text=f"{approval.tool} {approval.question}"
                )
                for approval in pending
            ),
            *(
                Asked(id=doubt.call_id, arguments={}, text=f"{doubt.tool} is in doubt", is_doubt=True)
                for doubt in doubts
            ),
        ]

    async def decide(self, question: Asked, *, yes: bool) -> None:
        """An operator's decision, as on the Decide page."""
        approvals = (await self._open()).approvals
        decide = approvals.approve if yes else approvals.deny
        await decide(question.id, by="operator", who="ann")

    async def resolve(self, question: Asked, *, happened: bool) -> None:
        """What an operator found out, as on the Doubts page."""
        executor = await self._open()
        (doubt,) = [item for item in await executor.doubts() if item.call_id == question.id]
        await executor.resolve(session_id=doubt.session_id, call_id=doubt.call_id, happened=happened, who="ann")

    async def aclose(self) -> None:
        """Close the connection and the store."""
        await super().aclose()
        await self._stack.aclose()

    async def _open(self) -> Executor:
        store = await self._stack.enter_async_context(open_store(self._url))
        return Executor(store=store)

    async def _call(self, state: dict[str, Any], call: dict[str, Any]) -> None:
        client = await self._connect()
        result = await client.call_tool("server__pay", call["arguments"])
        text = "\n".join(getattr(item, "text", "") for item in result.content)
        if any(code in text for code in _WAITING):
            state["waiting"][call["id"]] = {}
            return
        state["waiting"].pop(call["id"], None)
        state["told"].append(f"Error: {text}" if result.is_error and "permission_denied" not in text else text)

    def _list_arguments(self) -> list[str]:
        gateway = ["-m", "handrail.cli", "mcp", "gateway", "--approval-wait", "0", "--timeout", str(TIMEOUT)]
        gateway += ["--errors", "unknown"]
        server = [sys.executable, "-m", "benchmarks.faults.hosts.mcp_gateway", str(self.world.directory)]
        return [*gateway, "--store", self._url, *server]


def serve(directory: str) -> None:
    """The server: it pays whoever asks."""
    world = World(Path(directory))
    server: Any = MCPServer("faults")

    @server.tool(name="pay", structured_output=False)
    async def pay(invoice_id: str, amount: int) -> str:
        if world.plan.is_sync:
            return await asyncio.to_thread(world.pay, invoice_id, amount)
        return await world.pay_async(invoice_id, amount)

    server.run(transport="stdio")


if __name__ == "__main__":
    serve(sys.argv[1])

"""An ASGI app on a socket of this machine, in the loop of the test."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

import uvicorn


def bind(port: int = 0) -> socket.socket:
    """A port, for an app that has to know it before it is made."""
    listener = socket.socket(proto=socket.IPPROTO_TCP)  # Else asyncio leaves Nagle on: 40 ms for every answer.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    return listener


class QuickServer(uvicorn.Server):
    """Looks every few milliseconds whether it is time to end; uvicorn does that ten times a second."""

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            await asyncio.sleep(0.005)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        state = self.server_state
        for connection in [*state.connections]:
            connection.shutdown()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while state.connections or state.tasks:
                    await asyncio.sleep(0.005)
        for task in state.tasks:
            task.cancel()
        await self.lifespan.shutdown()


@asynccontextmanager
async def listening(app: Any, port: int = 0, *, listener: socket.socket | None = None) -> AsyncGenerator[str]:
    """Serve an app; what it yields is the address."""
    listener = listener or bind(port)
    config = uvicorn.Config(app, log_level="error", lifespan="on", timeout_graceful_shutdown=1)
    server = QuickServer(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task

"""A wire that can be cut: between a client and a real server, at the worst moment."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Proxy:
    """Passes bytes on, until it is told not to."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0
        self.lose: bytes | None = None
        """The answer of the server that never arrives: the connection is cut in its place, once."""
        self.lost = 0

    async def start(self) -> None:
        """Let clients in, at the same port as before."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Cut all connections, and let nobody in."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        own = {writer}
        self._writers |= own  # At once: a client that is still on its way to the server is cut off, too.
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
            own.add(far_writer)
            self._writers |= own
            await asyncio.gather(self._pass(reader, far_writer, None), self._pass(far_reader, writer, writer))
        except OSError:
            pass
        finally:
            for item in own:
                item.close()
            self._writers -= own

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client: asyncio.StreamWriter | None
    ) -> None:
        try:
            while data := await reader.read(65536):
                if client is not None and self.lose is not None and self.lose in data:
                    self.lose = None
                    self.lost += 1
                    break
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def proxied(port: int) -> AsyncGenerator[Proxy]:
    """A proxy to a server on the loopback."""
    proxy = Proxy(port)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()

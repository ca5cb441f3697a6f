"""A server that does what no API does: it stops in the middle, says nothing at all, or talks nonsense."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from handrail.testing.servers import Reply
from handrail.testing.servers.anthropic_messages import MessagesApi
from handrail.testing.servers.gemini import GeminiApi
from handrail.testing.servers.http import Incoming
from handrail.testing.servers.openai import ChatApi, ResponsesApi
from tests.providers.kit import Subject

WAIT = b"wait"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nTransfer-Encoding: chunked\r\n\r\n"


@dataclass
class RawServer:
    """What it saw of its client."""

    url: str
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)
    """The client has closed the connection."""
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    """What comes after a `WAIT` may be sent."""


def events(subject: Subject, reply: Reply) -> list[bytes]:
    """A reply as the events of this API."""
    apis: dict[str, Any] = {
        "openai_chat": ChatApi(),
        "openai_responses": ResponsesApi(),
        "anthropic": MessagesApi(),
        "gemini": GeminiApi(),
    }
    incoming = Incoming(path="/", query={}, headers={}, body={"model": "test-model", "stream_options": {}})
    return list(apis[subject.name].build_events(incoming, reply, 1, 4))


@asynccontextmanager
async def serving(
    subject: Subject,
    chunks: Sequence[bytes],
    *,
    kind: bytes = b"text/event-stream",
    ends: bool = False,
    pause: float = 0.0,
) -> AsyncIterator[RawServer]:
    """Send these chunks as the answer to any request, with a pause after each; then end, or wait for the client to
    hang up."""
    found: list[RawServer] = []
    writers: list[asyncio.StreamWriter] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.split(b":")[1]))
            if chunks:
                writer.write(HEAD % kind)
            for chunk in [*chunks, *([b""] if ends else [])]:
                if chunk is WAIT:
                    await found[0].go_on.wait()
                    continue
                writer.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
                await writer.drain()
                await asyncio.sleep(pause)
            await reader.read()
        found[0].hung_up.set()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    prefix = "/v1" if subject.name.startswith("openai") else ""
    found.append(RawServer(url=f"http://127.0.0.1:{port}{prefix}"))
    try:
        yield found[0]
    finally:
        server.close()
        for writer in writers:
            writer.close()

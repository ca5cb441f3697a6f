"""A process that speaks MCP over its standard input and output, with a limit on what it may send at once.

The SDK's own transport has no limit, and its time grows with the square of a message's length.
"""

import asyncio
import contextlib
import os
import re
import signal
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Self, cast

import anyio
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage

from handrail.core.log import log
from handrail.errors import shorten
from handrail.sources.mcp.request_outcome import RequestTrace, current_trace

Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], "_TracingStream"]
_Traced = tuple[SessionMessage, RequestTrace | None]

_CHUNK: Final = 1 << 16
_ENDS: Final = 4096
"""How much is kept of both ends of a message that is too long, to find out which call it answers."""
_HEAD_ID: Final = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,18}|"[^"\\]{1,64}")\s*,')
_TAIL_ID: Final = re.compile(rb'"id"\s*:\s*(\d{1,18}|"[^"\\]{1,64}")\s*\}\s*\Z')
_GRACE: Final = 2.0
"""Seconds that the process has to end by itself, and again after it was asked to."""

TOO_LONG: Final = "handrail: the message is too long"


class ServerProcess:
    """What is known of a process: whether it has ended, and what it said last."""

    def __init__(self) -> None:
        self.returncode: int | None = None
        self.last_lines: deque[str] = deque(maxlen=5)

    def describe_end(self) -> str:
        """Why it ended, for the operator."""
        code = "the process closed its output" if self.returncode is None else f"the process ended ({self.returncode})"
        return f"{code}: {self.last_lines[-1]}" if self.last_lines else code


@asynccontextmanager
async def open_process(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | Path | None,
    max_message_bytes: int,
    on_end: Callable[[ServerProcess], None],
) -> AsyncGenerator[Streams]:
    """Start a server, and stop it with everything that it started at the end of the block."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**get_default_environment(), **env},
        cwd=cwd,
        start_new_session=True,
        limit=_CHUNK,
    )
    incoming, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    sending, outgoing = anyio.create_memory_object_stream[_Traced](0)
    state = ServerProcess()
    tasks = [
        asyncio.ensure_future(_read(process, incoming, max_message_bytes, state, on_end)),
        asyncio.ensure_future(_write(process, outgoing)),
        asyncio.ensure_future(_read_errors(process, state)),
    ]
    try:
        yield received, _TracingStream(sending)
    finally:
        for stream in (received, sending):
            stream.close()
        try:
            await _finish(asyncio.ensure_future(_end(process, tasks)))
        finally:
            for stream in (incoming, outgoing):
                stream.close()


class _TracingStream:
    """Takes messages for the process, and notes of each request whether it is still waiting."""

    def __init__(self, inner: MemoryObjectSendStream[_Traced]) -> None:
        self._inner = inner

    async def send(self, item: SessionMessage, /) -> None:
        trace = current_trace.get() if isinstance(item.message, types.JSONRPCRequest) else None
        if trace is not None:
            trace.was_held = True
        await self._inner.send((item, trace))

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()


async def _finish(work: asyncio.Future[Any]) -> None:
    """Wait for work that has its own deadlines, also if this task is cancelled: no process is left behind."""
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


async def _read(
    process: asyncio.subprocess.Process,
    incoming: MemoryObjectSendStream[SessionMessage | Exception],
    limit: int,
    state: ServerProcess,
    on_end: Callable[[ServerProcess], None],
) -> None:
    assert process.stdout is not None
    lines = _Lines(limit)
    try:
        async with incoming:
            while chunk := await process.stdout.read(_CHUNK):
                for line in lines.feed(chunk):
                    if (message := _parse(line)) is not None:
                        await incoming.send(message)
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        while await process.stdout.read(_CHUNK):  # So that it can flush, and end.
            pass
    finally:
        on_end(state)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GRACE):  # Its code and its last words come a moment later than its end.
                state.returncode = await process.wait()


class TooLong:
    """A message that was dropped: its two ends."""

    def __init__(self, head: bytes, tail: bytes) -> None:
        self.head = head
        self.tail = tail


class _Lines:
    """Splits a stream into lines; of one that is too long only the ends are kept."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._head: bytes | None = None

    def feed(self, chunk: bytes) -> list[bytes | TooLong]:
        found: list[bytes | TooLong] = []
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            self._buffer += chunk[start:end]
            found.append(self._take())
            start = end + 1
        self._buffer += chunk[start:]
        if len(self._buffer) > self._limit or self._head is not None:
            if self._head is None:
                self._head = bytes(self._buffer[:_ENDS])
            del self._buffer[:-_ENDS]
        return found

    def _take(self) -> bytes | TooLong:
        line: bytes | TooLong
        if self._head is not None:
            line = TooLong(self._head, bytes(self._buffer[-_ENDS:]))
        elif len(self._buffer) > self._limit:
            line = TooLong(bytes(self._buffer[:_ENDS]), bytes(self._buffer[-_ENDS:]))
        else:
            line = bytes(self._buffer)
        self._buffer.clear()
        self._head = None
        return line


def _parse(line: bytes | TooLong) -> SessionMessage | None:
    if isinstance(line, TooLong):
        found = _HEAD_ID.match(line.head) or _TAIL_ID.search(line.tail)
        log.error("an MCP server sent a message that is too long; it was dropped")
        if found is None:
            return None
        raw = found[1].decode(errors="replace")
        request_id: Any = raw.strip('"') if raw.startswith('"') else int(raw)
        error = types.ErrorData(code=types.INTERNAL_ERROR, message=TOO_LONG)
        return SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=request_id, error=error))
    if not line.strip():
        return None
    try:
        return SessionMessage(types.jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        log.warning("an MCP server wrote something that is no message to its standard output")
        return None


async def _write(process: asyncio.subprocess.Process, outgoing: MemoryObjectReceiveStream[_Traced]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        async with outgoing:
            async for message, trace in outgoing:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                if trace is not None:
                    trace.was_sent = True
                process.stdin.write(text.encode() + b"\n")
                await process.stdin.drain()


async def _read_errors(process: asyncio.subprocess.Process, state: ServerProcess) -> None:
    assert process.stderr is not None
    rest = b""
    while chunk := await process.stderr.read(_CHUNK):
        *lines, rest = (rest + chunk).split(b"\n")
        rest = rest[-_ENDS:]
        state.last_lines.extend(shorten(line.decode(errors="replace").strip(), 200) for line in lines if line.strip())


async def _end(process: asyncio.subprocess.Process, tasks: Sequence[asyncio.Future[None]]) -> None:
    """Stop the process, those who talk to it, and what connects them."""
    await _stop(process, tasks[1])
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    # A process that it left behind, in a group of its own, may have the other ends of the pipes: they never end.
    cast("Any", process)._transport.close()


async def _stop(process: asyncio.subprocess.Process, writer: asyncio.Future[None]) -> None:
    """Close its input, wait, ask it to end, wait, and end it with its children."""
    assert process.stdin is not None
    await asyncio.wait([writer], timeout=0.5)
    process.stdin.close()
    for ask in (None, signal.SIGTERM, signal.SIGKILL):
        if ask is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, ask)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GRACE):
                await process.wait()
                break
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # What it started and left behind.

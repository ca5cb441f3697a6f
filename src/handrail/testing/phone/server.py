"""A local server of the Realtime API for calls: call control over HTTP and sidebands over WebSocket on one port."""

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import parse_qs, urlsplit

from .call_control import ControlResponse, error_response
from .script import Verb
from .state import Frame

if TYPE_CHECKING:
    from websockets.server import ServerProtocol

_VERBS: tuple[Verb, ...] = ("accept", "reject", "refer", "hangup")
_MAX_HEAD = 64 * 1024
_MAX_BODY = 16 * 1024 * 1024
_DATA_FRAMES = (0, 1, 2)  # continuation, text, binary
_NO_CLOSE_FRAME = (1005, 1006, 1015)
_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed"}


class ServedCall(Protocol):
    """What the server needs of a call that is under way."""

    def request(self, verb: Verb, body: object) -> ControlResponse: ...
    def connect(self, send: Callable[[Frame], None]) -> int:
        """Raise `LookupError` if the call is not open."""
        ...

    def feed(self, message: str | bytes) -> None: ...
    def disconnect(self, sideband: int) -> None: ...


@dataclass(frozen=True, slots=True)
class ControlRequest:
    """A request as it was read."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    head: bytes


class PhoneServer:
    """The listening socket and its connections."""

    def __init__(self, find: Callable[[str], ServedCall | None], api_key: str | None) -> None:
        self._find = find
        self._api_key = api_key
        self._server: asyncio.Server | None = None
        self._new_protocol: Callable[[], ServerProtocol]
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port."""
        try:
            from websockets.server import ServerProtocol  # noqa: PLC0415  # optional
        except ImportError as error:
            raise ImportError("The simulator's server needs websockets: pip install 'handrail[openai]'.") from error

        self._new_protocol = lambda: ServerProtocol(max_size=None)
        self._server = await asyncio.start_server(self._accept, host, port, limit=_MAX_HEAD, backlog=1024)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Stop listening, and close every connection."""
        if self._server is not None:
            self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # transports that were closed say so in the next round of the loop

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                while (request := await _read_request(reader)) is not None:
                    if request.headers.get("upgrade", "").lower() == "websocket":
                        await self._serve_sideband(request, reader, writer)
                        return
                    if not await self._answer(request, writer):
                        return
        except asyncio.CancelledError:
            writer.transport.abort()
            raise
        finally:
            writer.close()

    async def _answer(self, request: ControlRequest, writer: asyncio.StreamWriter) -> bool:
        """Answer one HTTP request; False: the connection is to be broken off."""
        response = self._control(request)
        if response.delay:
            await asyncio.sleep(response.delay)
        if response.is_lost:
            writer.transport.abort()
            return False
        body = b"" if response.body is None else json.dumps(response.body).encode()
        reason = _REASONS.get(response.status, "Error")
        head = (
            f"HTTP/1.1 {response.status} {reason}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nx-request-id: req_simulated\r\n\r\n"
        )
        writer.write(head.encode() + body)
        await writer.drain()
        return True

    def _control(self, request: ControlRequest) -> ControlResponse:
        if (refusal := self._check_key(request)) is not None:
            return refusal
        parts = urlsplit(request.target).path.strip("/").split("/")
        if len(parts) != 5 or parts[:3] != ["v1", "realtime", "calls"] or parts[4] not in _VERBS:
            return error_response(404, None, f"Invalid URL ({request.method} {urlsplit(request.target).path})")
        if request.method != "POST":
            return error_response(405, "method_not_supported", f"Not allowed to {request.method} on this URL.")
        call = self._find(parts[3])
        if call is None:  # R2
            return error_response(404, "call_id_not_found", f"No session found for call_id: {parts[3]}")
        body: object = None
        if request.body:
            try:
                body = json.loads(request.body)
            except (ValueError, RecursionError):
                return error_response(400, "invalid_json", "We could not parse the JSON body of your request.")
        return call.request(parts[4], body)

    def _check_key(self, request: ControlRequest) -> ControlResponse | None:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key or (self._api_key is not None and key != self._api_key):  # S7
            return error_response(401, "invalid_api_key", "You didn't provide an API key, or a wrong one.")
        return None

    async def _serve_sideband(
        self, request: ControlRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        protocol = self._new_protocol()
        protocol.receive_data(request.head)
        handshakes = cast("list[Any]", protocol.events_received())
        parts = urlsplit(request.target)
        call_id = parse_qs(parts.query).get("call_id", [""])[0]
        call = self._find(call_id) if parts.path == "/v1/realtime" else None
        if self._check_key(request) is not None:
            response = protocol.reject(401, "no API key")
        elif call is None or not handshakes:
            response = protocol.reject(404, f"No session found for call_id: {call_id}")  # R1
        else:
            response = protocol.accept(handshakes[0])
        sideband = _Sideband(protocol, writer)
        number: int | None = None
        if call is not None and response.status_code == 101:
            try:
                number = call.connect(sideband.send)
            except LookupError as refusal:
                response = protocol.reject(404, str(refusal))  # R1
        protocol.send_response(response)
        sideband.open()
        if call is None or number is None:
            await writer.drain()
            return
        try:
            await sideband.listen(reader, call.feed)
        finally:
            call.disconnect(number)


class _Sideband:
    """One WebSocket: frames out, messages in."""

    def __init__(self, protocol: "ServerProtocol", writer: asyncio.StreamWriter) -> None:
        self._protocol = protocol
        self._writer = writer
        self._waiting: list[Frame] | None = []

    def open(self) -> None:
        """Send the answer to the handshake, and what was said since."""
        self._flush()
        waiting, self._waiting = self._waiting or [], None
        for frame in waiting:
            self.send(frame)

    def send(self, frame: Frame) -> None:
        """Send an event or a text, or close."""
        if self._waiting is not None:
            self._waiting.append(frame)
            return
        if self._protocol.state.name != "OPEN":
            return
        if frame.close in _NO_CLOSE_FRAME:
            self._writer.transport.abort()
            return
        if frame.close is not None:
            self._protocol.send_close(frame.close)
        elif frame.text is not None:
            self._protocol.send_text(frame.text.encode())
        else:
            self._protocol.send_text(json.dumps(frame.event, ensure_ascii=False).encode())
        self._flush()

    async def listen(self, reader: asyncio.StreamReader, on_message: Callable[[str | bytes], None]) -> None:
        """Take messages until the socket closes."""
        parts: list[bytes] = []
        while data := await reader.read(65536):
            self._protocol.receive_data(data)
            for event in self._protocol.events_received():
                frame = cast(Any, event)
                if frame.opcode in _DATA_FRAMES:
                    parts.append(bytes(frame.data))
                    if frame.fin:
                        message, parts = b"".join(parts), []
                        on_message(message)
            self._flush()  # pongs, and the answer to a close
            if self._protocol.close_expected():
                return

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                self._writer.write(data)


async def _read_request(reader: asyncio.StreamReader) -> ControlRequest | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    lines = head.decode("latin-1").split("\r\n")
    method, _, rest = lines[0].partition(" ")
    target, _, _ = rest.rpartition(" ")
    pairs = (line.partition(":") for line in lines[1:] if line)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    length = headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > _MAX_BODY:
        return None
    body = await reader.readexactly(int(length)) if int(length) else b""
    return ControlRequest(method, target, headers, body, head)

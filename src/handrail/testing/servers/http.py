"""The HTTP part of the local servers: reads a request, checks it, and sends the next reply of the script."""

import json
import re
import socket
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Protocol, Self, cast
from urllib.parse import parse_qsl, urlencode, urlsplit

from .rules.reading import RequestRefused
from .script import Error, Raw, Reply, ScriptedResponse, ServerResponse

SECRET_HEADERS = frozenset({"authorization", "x-api-key", "x-goog-api-key", "proxy-authorization", "cookie"})
REDACTED = "[redacted]"
NO_RETRY = {"x-should-retry": "false"}  # the official clients of OpenAI and Anthropic do as it says


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """A request, as the rules check it."""

    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    """The headers, with names in lower case."""
    body: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request that was handled, without the key."""

    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]
    status: int
    refused: str | None = None
    """Why the server refused it."""


class ServedApi(Protocol):
    """One API: checks requests and renders replies."""

    def can_serve(self, path: str) -> bool:
        """Whether this is a path of the API."""
        ...

    def check(self, incoming: Incoming) -> None:
        """Raise `RequestRefused` for what the real API would refuse."""
        ...

    def is_streaming(self, incoming: Incoming) -> bool:
        """Whether the request asks for a stream."""
        ...

    def build_body(self, incoming: Incoming, reply: Reply, number: int) -> Mapping[str, object]:
        """Build the response as one body; `number` is the position of the reply in the script, from 1."""
        ...

    def build_events(self, incoming: Incoming, reply: Reply, number: int, piece: int) -> Iterator[bytes]:
        """Build the response as server-sent events, with text and arguments in chunks of `piece` characters."""
        ...

    def build_error_body(self, error: Error) -> Mapping[str, object]:
        """Build the body of an error response."""
        ...

    def build_error_event(self, error: Error) -> bytes:
        """Build the event that ends a failed stream."""
        ...


def sse(data: object, *, event: str | None = None, newline: str = "\n") -> bytes:
    """Format one server-sent event."""
    name = f"event: {event}{newline}" if event else ""
    body = data if isinstance(data, str) else dumps(data)
    return f"{name}data: {body}{newline}{newline}".encode()


def dumps(data: object) -> str:
    """Serialize compact JSON; a lone surrogate, which some APIs send, is escaped."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return re.sub("[\ud800-\udfff]", lambda half: f"\\u{ord(half[0]):04x}", text)


class StrictServer:
    """A local HTTP server that replies from a script, and refuses what the real API would refuse."""

    def __init__(
        self, script: Iterable[ScriptedResponse], *, apis: Sequence[ServedApi], prefix: str = "", piece: int = 4
    ) -> None:
        if piece < 1:
            raise ValueError(f"A piece has at least one character, not {piece}.")
        self._state = _ScriptState(list(script), apis, piece)
        self._prefix = prefix
        self._listener: _Listener | None = None

    @property
    def url(self) -> str:
        """The `base_url` for the official client."""
        if self._listener is None:
            raise RuntimeError("The server is not running: use it as `with Server(script) as server:`.")
        return f"http://127.0.0.1:{self._listener.server_port}{self._prefix}"

    @property
    def requests(self) -> list[Request]:
        """The requests so far, including refused ones."""
        return self._state.requests

    def __enter__(self) -> Self:
        self._listener = _Listener(self._state)
        threading.Thread(target=self._listener.serve_forever, args=(0.01,), name="strict-server", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._listener is not None:
            self._listener.stop()
            self._listener = None
        if error is None:
            self._state.finish()
        else:
            for failure in self._state.failures:
                error.add_note(f"The local server failed, too: {failure!r}")


class _ScriptState:
    """The state of a script: its position, and the requests so far."""

    def __init__(self, script: Sequence[ScriptedResponse], apis: Sequence[ServedApi], piece: int) -> None:
        self.apis = apis
        self.piece = piece
        self.requests: list[Request] = []
        self.failures: list[BaseException] = []
        self._script = script
        self._used = 0
        self._lock = threading.Lock()

    def api(self, path: str) -> ServedApi | None:
        return next((api for api in self.apis if api.can_serve(path)), None)

    def next_reply(self, body: dict[str, Any]) -> tuple[int, ServerResponse]:
        with self._lock:
            self._used += 1
            number = self._used
        if number > len(self._script):
            message = f"The script has {len(self._script)} replies; there is none for this request."
            return number, Error(status=500, message=message, headers=NO_RETRY)
        scripted = self._script[number - 1]
        return number, scripted(body) if callable(scripted) else scripted

    def note_failure(self, failure: BaseException | None) -> bool:
        """Record a failure of the server; return False if only the client disconnected."""
        if failure is None or isinstance(failure, ConnectionError):
            return False
        if failure not in self.failures:
            self.failures.append(failure)
        return True

    def finish(self) -> None:
        """Raise the first failure of the server, or `AssertionError` for unused replies."""
        if self.failures:
            raise self.failures[0]
        if left := self._script[self._used :]:
            raise AssertionError(f"{len(left)} of {len(self._script)} scripted replies were not asked for: {left!r}")


class _Listener(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, state: _ScriptState) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.state = state
        self._open: set[socket.socket] = set()

    def stop(self) -> None:
        self.shutdown()
        self.server_close()
        for connection in list(self._open):
            hang_up(connection)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self._open.add(connection)
        return connection, address

    def shutdown_request(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        if isinstance(request, socket.socket):
            self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: socket.socket | tuple[bytes, socket.socket], client_address: Any) -> None:
        self.state.note_failure(sys.exc_info()[1])


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 0

    def setup(self) -> None:
        super().setup()
        self.state = cast(_Listener, self.server).state
        self.has_responded = False

    def do_POST(self) -> None:
        self.has_responded = False
        length = self.headers.get("Content-Length", "")
        try:
            self.handle_body(self.rfile.read(int(length) if length.isdecimal() else 0))
        finally:
            # Recorded before the response: the client may leave the context as soon as it has the response.
            if self.state.note_failure(sys.exc_info()[1]) and not self.has_responded:
                message = "The local server failed, or a function of its script; leaving its context raises the error."
                self.send(500, dumps({"error": {"message": message}}).encode(), NO_RETRY)

    def do_GET(self) -> None:
        self.send(404, dumps({"error": {"message": f"This server has no GET {self.path}."}}).encode())

    def handle_body(self, raw: bytes) -> None:
        split = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        incoming = Incoming(path=split.path, query=dict(parse_qsl(split.query)), headers=headers, body={})
        api = self.state.api(split.path)
        if api is None:
            message = f"This server has no POST {split.path}."
            self.record(incoming, 404, message)
            self.send(404, dumps({"error": {"message": message}}).encode())
            return
        try:
            incoming = Incoming(path=split.path, query=incoming.query, headers=headers, body=decode(raw))
            api.check(incoming)
        except RequestRefused as refusal:
            self.send_error_body(api, incoming, as_error(refusal), refused=refusal.message)
        except RecursionError:
            message = "The body is nested too deeply."
            self.send_error_body(api, incoming, Error(status=400, message=message), refused=message)
        else:
            self.reply(api, incoming)

    def reply(self, api: ServedApi, incoming: Incoming) -> None:
        number, reply = self.state.next_reply(incoming.body)
        if isinstance(reply, Error):
            self.send_error_body(api, incoming, reply)
            return
        if isinstance(reply, Raw):
            if api.is_streaming(incoming):
                raise TypeError("A raw reply is one body, and the request asks for a stream.")
            self.record(incoming, 200)
            self.send(200, dumps(reply.body).encode())
            return
        if api.is_streaming(incoming):
            events = list(api.build_events(incoming, reply, number, self.state.piece))
            self.record(incoming, 200)
            self.send_events(api, reply, events)
            return
        body = dumps(api.build_body(incoming, reply, number)).encode()
        self.record(incoming, 200)
        if reply.cut_after is None:
            self.send(200, body)
        else:
            self.drop()

    def send_events(self, api: ServedApi, reply: Reply, events: list[bytes]) -> None:
        self.has_responded = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in events[: reply.cut_after]:
            self.chunk(event)
        if reply.cut_after is not None and reply.cut_by == "drop":
            self.drop()
            return
        if reply.cut_after is not None and isinstance(reply.cut_by, Error):
            self.chunk(api.build_error_event(reply.cut_by))
        self.chunk(b"")

    def send_error_body(self, api: ServedApi, incoming: Incoming, error: Error, *, refused: str | None = None) -> None:
        self.record(incoming, error.status, refused)
        self.send(error.status, dumps(api.build_error_body(error)).encode(), error.headers)

    def send(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.has_responded = True
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def end_headers(self) -> None:
        for name in ("x-request-id", "request-id"):  # OpenAI's and Anthropic's
            self.send_header(name, f"req_{len(self.state.requests)}")
        super().end_headers()

    def chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def drop(self) -> None:
        self.has_responded = True
        self.close_connection = True
        hang_up(self.connection)

    def record(self, incoming: Incoming, status: int, refused: str | None = None) -> None:
        query = {name: REDACTED if name == "key" else value for name, value in incoming.query.items()}
        headers = {name: REDACTED if name in SECRET_HEADERS else value for name, value in incoming.headers.items()}
        path = f"{incoming.path}?{urlencode(query)}" if query else incoming.path
        self.state.requests.append(
            Request(path=path, headers=headers, body=incoming.body, status=status, refused=refused)
        )

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing; see `server.requests`."""


def as_error(refusal: RequestRefused) -> Error:
    """Convert a refusal to an error response."""
    return Error(status=refusal.status, code=refusal.code, message=refusal.message, param=refusal.param)


def decode(raw: bytes) -> dict[str, Any]:
    """Decode the body as a JSON object by RFC 8259, without the extensions of Python's decoder."""
    try:
        body: object = json.loads(raw.decode(), parse_constant=_refuse_constant)
        json.dumps(body, ensure_ascii=False).encode()
    except ValueError as error:
        raise RequestRefused(f"We could not parse the JSON body of your request: {error}") from error
    if not isinstance(body, dict):
        raise RequestRefused("We could not parse the JSON body of your request: it is not an object.")
    return cast(dict[str, Any], body)


def hang_up(connection: socket.socket) -> None:
    """Close the connection in both directions, so that the client sees an incomplete response."""
    with suppress(OSError):  # the client may have closed it first
        connection.shutdown(socket.SHUT_RDWR)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")

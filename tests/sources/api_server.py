"""A real HTTP server on a socket, which keeps every request and answers as its test says."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit


@dataclass(frozen=True, kw_only=True)
class Request:
    """What arrived."""

    method: str
    target: str
    headers: Mapping[str, str]
    """By their names in lower case."""
    body: bytes

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def query(self) -> list[tuple[str, str]]:
        return parse_qsl(urlsplit(self.target).query, keep_blank_values=True)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What is answered. `cut` closes the connection after the request was read, before a byte is sent."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: bool = False


class ApiServer:
    """Requests in, replies out."""

    def __init__(self, answer: Callable[[Request], Reply | Any]) -> None:
        self.requests: list[Request] = []
        self.connections = 0
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                server.connections += 1

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except ConnectionError:
                    self.close_connection = True

            def answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                request = Request(
                    method=self.command,
                    target=self.path,
                    headers={name.lower(): ", ".join(self.headers.get_all(name) or ()) for name in self.headers},
                    body=self.rfile.read(length),
                )
                server.requests.append(request)
                reply = answer(request)
                reply = reply if isinstance(reply, Reply) else Reply(body=reply)
                if reply.cut:
                    self.close_connection = True
                    return
                body = reply.body
                kind = "application/octet-stream"
                if isinstance(body, str):
                    body, kind = body.encode(), "text/plain; charset=utf-8"
                elif body is None:
                    body = b""
                elif not isinstance(body, bytes):
                    body, kind = json.dumps(body).encode(), "application/json"
                self.send_response(reply.status)
                for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **reply.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = answer

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

        self._server = Server(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def last(self) -> Request:
        return self.requests[-1]

    def start(self) -> None:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def serving(answer: Callable[[Request], Reply | Any]) -> Iterator[ApiServer]:
    """A server for the length of a block."""
    server = ApiServer(answer)
    server.start()
    try:
        yield server
    finally:
        server.stop()

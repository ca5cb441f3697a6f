"""A strict server of files on the loopback: ranges, broken connections, a simple index; it notes what it saw."""

import base64
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


@dataclass(kw_only=True)
class Files:
    """What is served, and what happened."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    types: dict[str, str] = field(default_factory=dict[str, str])
    cut_after: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """For each path: after how many bytes of each next answer the connection breaks off."""
    no_ranges: bool = False
    shifted: bool = False
    """Ranges are answered with another part of the file than the one asked for."""
    redirects: dict[str, str] = field(default_factory=dict[str, str])
    password: str | None = None
    asked: list[tuple[str, str | None]] = field(default_factory=list[tuple[str, str | None]])
    """Each path, with the range that was asked for."""
    authorised: list[tuple[str, str | None]] = field(default_factory=list[tuple[str, str | None]])

    def index(self, package: str, links: Mapping[str, str], *, html: bool = False, at: str = "/simple") -> None:
        """Add a page of a package index: names of files and their addresses."""
        path = f"{at}/{package}/"
        if html:
            rows = "".join(f'<a href="{link}#sha256=00">{name}</a>' for name, link in links.items())
            self.files[path], self.types[path] = f"<html><body>{rows}".encode(), "text/html; charset=utf-8"
        else:
            entries = [{"filename": name, "url": link, "hashes": {}} for name, link in links.items()]
            self.files[path] = json.dumps({"meta": {"api-version": "1.0"}, "files": entries}).encode()
            self.types[path] = "application/vnd.pypi.simple.v1+json"


@contextmanager
def serving(files: Files) -> Iterator[Files]:
    """Serve the files while the context is open."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            files.asked.append((self.path, wanted))
            files.authorised.append((self.path, self.headers.get("Authorization")))
            if self.headers.get("Accept-Encoding") != "identity":  # A compressed answer could not be resumed.
                return self.answer(400)
            if files.password is not None:
                pair = base64.b64encode(f"user:{files.password}".encode()).decode()
                if self.headers.get("Authorization") != f"Basic {pair}":
                    return self.answer(401)
            if self.path in files.redirects:
                return self.answer(302, {"Location": files.redirects[self.path]})
            if self.path not in files.files:
                return self.answer(404)
            body, headers, status = files.files[self.path], {}, 200
            if wanted is not None and not files.no_ranges:
                found = re.fullmatch(r"bytes=(\d+)-", wanted)
                if found is None:
                    return self.answer(400)
                start = int(found[1])
                if start >= len(body):
                    return self.answer(416)
                start += files.shifted
                headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
                body, status = body[start:], 206
            headers["Content-Type"] = files.types.get(self.path, "application/octet-stream")
            cuts = files.cut_after.get(self.path)
            return self.answer(status, headers, body, cuts.pop(0) if cuts else None)

        def answer(
            self, status: int, headers: Mapping[str, str] | None = None, body: bytes = b"", cut: int | None = None
        ) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[:cut])
            if cut is not None:
                self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    files.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield files
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

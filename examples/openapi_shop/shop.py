"""The shop's API, for the example: two orders in memory. It knows the idempotency keys that it has seen."""

import json
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

ORDERS: dict[str, dict[str, Any]] = {"A-1": {"paid": 50, "refunded": 0}, "A-2": {"paid": 900, "refunded": 0}}
KEYS: dict[str, dict[str, Any]] = {}


class Api(BaseHTTPRequestHandler):
    """`GET /orders/{id}` and `POST /orders/{id}/refunds`."""

    def do_GET(self) -> None:
        order = ORDERS.get(self.path.split("/")[2])
        self.answer(200 if order else 404, order or {"error": "no such order"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        order, key = ORDERS.get(self.path.split("/")[2]), self.headers["Idempotency-Key"]
        if order is None:
            return self.answer(404, {"error": "no such order"})
        if key not in KEYS:
            if order["refunded"] + body["amount"] > order["paid"]:
                return self.answer(422, {"error": "that is more than was paid"})
            order["refunded"] += body["amount"]
            KEYS[key] = dict(order)
        return self.answer(201, KEYS[key])

    def answer(self, status: int, value: dict[str, Any]) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing: the agent prints what happens."""


@contextmanager
def serve_shop() -> Generator[str]:
    """Serve the API on a free port, and yield its URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Api) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()

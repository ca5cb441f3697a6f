"""What a call over HTTP costs beside a bare FastAPI route, and a page of Calls beside one of a small database.

python -m benchmarks.service                    calls, in CPU time
python -m benchmarks.service --rows 1000000     also the page, with so many rows of the audit
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import socket
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sqlalchemy import create_engine, insert

from handrail import Executor, Policy, Rule, tool
from handrail.serve import ApiLimits, build_app
from handrail.store import SqlStore, open_store
from handrail.store.tables import audit
from tests.postgres import PostgresServer

ROUNDS, REQUESTS = 5, 300


class Body(BaseModel):
    tool: str
    arguments: dict[str, Any]
    session_id: str


@tool(read_only=True, concurrency_safe=True)
async def get_balance(account: str) -> dict[str, Any]:
    """Look up the balance of an account."""
    return {"account": account, "balance": 5}


@tool(key="invoice")
async def pay(invoice: str) -> str:
    """Pay an invoice."""
    return "paid"


def build_bare() -> FastAPI:
    """The same request and about the same answer, with nothing behind it."""
    app = FastAPI()

    @app.post("/v1/calls")
    async def call(body: Body) -> dict[str, Any]:
        return {
            "ok": True,
            "output": {"account": body.arguments["account"], "balance": 5},
            "session_id": body.session_id,
        }

    return app


async def send(app: Any, body: dict[str, Any], secret: str, *, path: str = "/v1/calls", method: str = "POST") -> bytes:
    """One request, without a socket: only the app is measured."""
    content = json.dumps(body).encode()
    headers = [(b"content-type", b"application/json"), (b"authorization", f"Bearer {secret}".encode())]
    headers.append((b"content-length", str(len(content)).encode()))
    path, _, query = path.partition("?")
    scope = {"type": "http", "http_version": "1.1", "method": method, "path": path, "raw_path": path.encode()}
    scope |= {"query_string": query.encode(), "headers": headers, "root_path": "", "scheme": "http", "state": {}}
    scope |= {"client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "asgi": {"version": "3.0"}}
    sent: list[bytes] = []
    is_first = True

    async def receive() -> dict[str, Any]:
        nonlocal is_first
        if is_first:
            is_first = False
            return {"type": "http.request", "body": content, "more_body": False}
        await asyncio.Event().wait()
        raise AssertionError

    async def take(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            assert message["status"] == 200, message
        sent.append(message.get("body", b""))

    await app(scope, receive, take)
    return b"".join(sent)


async def measure(app: Any, make_body: Any, secret: str, store: SqlStore | None = None) -> float:
    """Microseconds of CPU for each request, with what it leaves to be written."""
    begun = time.process_time()
    for number in range(REQUESTS):
        await send(app, make_body(number), secret)
    if store is not None:
        await store.audit.flush(timeout=60)
    return (time.process_time() - begun) / REQUESTS * 1e6


async def compare(url: str, rounds: int = ROUNDS) -> dict[str, float]:
    bare, samples = build_bare(), {"bare": list[float](), "read": list[float](), "consequential": list[float]()}
    limits = ApiLimits(requests_per_second=1e6, burst=1_000_000)
    async with open_store(url) as store:
        executor = Executor([get_balance, pay], policy=Policy([Rule.allow("pay")]), store=store, scope="session")
        app = build_app(executor, store=store, api_limits=limits)
        _, secret = await store.keys.create(role="caller", who="bot", tenant_id="acme")
        read = {"tool": "get_balance", "arguments": {"account": "a-1"}, "session_id": "s"}
        for round in range(rounds + 1):
            figures = {
                "bare": await measure(bare, lambda _: read, secret),
                "read": await measure(app, lambda _: read, secret, store),
                "consequential": await measure(
                    app,
                    lambda number, round=round: {
                        "tool": "pay",
                        "arguments": {"invoice": f"{round}-{number}"},
                        "session_id": "s",
                        "call_id": f"{round}-{number}",
                    },
                    secret,
                    store,
                ),
            }
            for name, value in figures.items() if round else ():  # The first one warms up.
                samples[name].append(value)
        await executor.aclose()
    return {name: statistics.median(values) for name, values in samples.items()}


def serve_in_child(kind: str, url: str, secret: "Any", port: "Any") -> None:
    """A server in a process of its own: a bare route, or the service."""

    async def serve() -> None:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.bind(("127.0.0.1", 0))
        listener.listen(100)
        async with open_store(url) as store:
            app: Any = build_bare()
            if kind != "bare":
                executor = Executor([get_balance], store=store)
                app = build_app(executor, store=store, api_limits=ApiLimits(requests_per_second=1e6, burst=1_000_000))
            secret.put((await store.keys.create(role="caller", who="bot", tenant_id="acme"))[1])
            port.put(listener.getsockname()[1])
            config = uvicorn.Config(app, log_level="error", lifespan="off", access_log=False)
            await uvicorn.Server(config).serve(sockets=[listener])

    asyncio.run(serve())


def read_cpu(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure_server(kind: str, folder: str, requests: int = 1_000) -> float:
    """Microseconds of CPU of a server process for each request over one connection."""
    context = multiprocessing.get_context("spawn")
    secret, port = context.Queue(), context.Queue()
    child = context.Process(target=serve_in_child, args=(kind, f"sqlite:///{folder}/{kind}.db", secret, port))
    child.start()
    try:
        headers = {"Authorization": f"Bearer {secret.get(timeout=60)}", "Content-Type": "application/json"}
        body = json.dumps({"tool": "get_balance", "arguments": {"account": "a-1"}, "session_id": "s"})
        connection = HTTPConnection("127.0.0.1", port.get(timeout=60), timeout=60)
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def ask(count: int) -> None:
            for _ in range(count):
                connection.request("POST", "/v1/calls", body, headers)
                answer = connection.getresponse()
                assert answer.status == 200, answer.read()
                answer.read()

        ask(300)
        begun = read_cpu(child.pid or 0)
        ask(requests)
        time.sleep(1)  # What is left for the audit is written.
        return (read_cpu(child.pid or 0) - begun) / requests * 1e6
    finally:
        child.kill()
        child.join()


PAGES = {
    "newest": "kind=call_finished&limit=50",
    "of a tool": "kind=call_finished&tool=pay&limit=50",
    "of a tenant": "kind=call_finished&tenant_id=t-2&limit=50",
    "of a small tenant": "kind=call_finished&tenant_id=small&limit=50",
    "from the middle": "kind=call_finished&until={middle}&limit=50",
}
SMALL_ROWS, PAGE_ROUNDS = 1_000, 60


def fill_audit(file: Path, rows: int, now: float) -> None:
    """So many rows; one tenant has 60 of them, however many there are, and each other one a fifth."""
    blank = {column.name: None for column in audit.columns}
    every = rows // 60 // 2 * 2
    engine = create_engine(f"sqlite:///{file}")
    with engine.begin() as connection:
        for start in range(0, rows, 10_000):
            values = [
                blank
                | {
                    "writer": "bench",
                    "number": number,
                    "at": now - rows + number,
                    "kind": ("call_started", "call_finished")[number % 2],
                    "session_id": f"s-{number // 20}",
                    "tenant_id": "small" if number % every == 1 else f"t-{number % 5}",
                    "call_id": f"c-{number // 2}",
                    "tool": ("pay", "get_balance", "find_order")[number % 3],
                    "ok": number % 10 != 0,
                    "error": None if number % 10 else "tool_timeout",
                    "duration_ms": 5.0,
                }
                for number in range(start, min(start + 10_000, rows))
            ]
            connection.execute(insert(audit), values)
    engine.dispose()


async def measure_pages(folder: Path, rows: int) -> dict[str, tuple[float, float]]:
    """Milliseconds of CPU of each page, in a small database and in a large one, in turns; both have 50 rows."""
    now, sizes = time.time(), (SMALL_ROWS, rows)
    async with AsyncExitStack() as stack:
        served: list[tuple[Any, str]] = []
        for size in sizes:
            file = folder / f"audit-{size}.db"
            async with open_store(f"sqlite:///{file}") as store:
                _, secret = await store.keys.create(role="viewer", who="ann")
            fill_audit(file, size, now)
            store = await stack.enter_async_context(open_store(f"sqlite:///{file}"))
            limits = ApiLimits(requests_per_second=1e6, burst=1_000_000)
            served.append((build_app(Executor([get_balance], store=store), store=store, api_limits=limits), secret))
        found: dict[str, tuple[float, float]] = {}
        for name, query in PAGES.items():
            times: tuple[list[float], list[float]] = ([], [])
            for round in range(PAGE_ROUNDS + 10):
                for (app, secret), size, taken in zip(served, sizes, times, strict=True):
                    path = f"/v1/audit?{query.format(middle=now - size / 2)}"
                    begun = time.process_time()
                    answer = await send(app, {}, secret, path=path, method="GET")
                    if round >= 10:  # The first ones warm up, on both sides.
                        taken.append((time.process_time() - begun) * 1e3)
                    else:
                        assert len(json.loads(answer)["items"]) == 50, (name, size)
            found[name] = statistics.median(times[0]), statistics.median(times[1])
    return found


def measure_all(*, rounds: int = ROUNDS) -> dict[str, dict[str, float]]:
    """Microseconds of CPU: through a socket, and without one for each of the databases."""
    server = PostgresServer(fsync=True)
    with tempfile.TemporaryDirectory() as folder:
        # The processes in turns, so that a noisy moment does not meet one of them only.
        served = [{kind: measure_server(kind, folder) for kind in ("bare", "read")} for _ in range(rounds)]
        served.sort(key=lambda one: one["read"] / one["bare"])
        try:
            server.start()
            urls = {"SQLite": f"sqlite:///{folder}/calls.db", "Postgres": server.new_database()}
            compared = {name: asyncio.run(compare(url, rounds)) for name, url in urls.items()}
        finally:
            server.remove()
    return {"served": served[rounds // 2], **compared}


def print_calls(folder: str, postgres: str | None) -> None:
    """Measure calls, and print what they cost."""
    served = {kind: measure_server(kind, folder) for kind in ("bare", "service")}
    ratio = served["service"] / served["bare"]
    print(f"through HTTP, CPU of the server: bare route {served['bare']:.0f} µs, a read-only call", end=" ")
    print(f"{served['service']:.0f} µs ({ratio:.2f} ×)")
    stores = {"SQLite": f"sqlite:///{folder}/calls.db"}
    if postgres:
        stores["Postgres"] = postgres
    for name, url in stores.items():
        found = asyncio.run(compare(url))
        print(f"{name}, without a server: bare route {found['bare']:.0f} µs", end="")
        for kind in ("read", "consequential"):
            print(f", {kind} {found[kind]:.0f} µs ({found[kind] / found['bare']:.2f} ×)", end="")
        print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--postgres", metavar="URL", help="measure calls on this empty database, too")
    parser.add_argument("--rows", type=int, default=0, help="measure the page of Calls with so many rows")
    parser.add_argument("--only-pages", action="store_true", help="measure no calls")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if not options.only_pages:
            print_calls(folder, options.postgres)
        if options.rows:
            for name, (small, large) in asyncio.run(measure_pages(Path(folder), options.rows)).items():
                print(f"page {name}: {small:.2f} ms of CPU at {SMALL_ROWS:,} rows, {large:.2f} ms", end=" ")
                print(f"at {options.rows:,} ({large / small:.2f} ×)")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

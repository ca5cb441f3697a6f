"""`handrail serve`: the service of a configuration file, or of the example agent: API, MCP and console."""

import argparse
import asyncio
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from importlib.util import find_spec
from typing import Any, Final

from handrail.authorize.policy import Policy
from handrail.cli.agent_file import load_agent_file
from handrail.cli.store_option import DEFAULT_STORE
from handrail.errors import ConfigError, MissingExtraError
from handrail.execute.executor import Executor
from handrail.execute.limits import Timeouts
from handrail.store import open_store

_FIRST_KEYS: Final[dict[Any, tuple[str, str]]] = {
    "operator": ("operator", "sign in at the console, and decide"),
    "admin": ("admin", "tenants and keys"),
    "caller": ("client", "the bearer token of a client, over HTTP or MCP"),
}
"""What a database without keys gets, with the holder and the use of each."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "file", nargs="?", metavar="FILE", help="the configuration, such as gateway.yaml (default: the example agent)"
    )
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen at (default: this machine only)")
    parser.add_argument(
        "--grace", type=int, default=5, metavar="SECONDS", help="how long requests may go on when it is stopped (5)"
    )
    parser.add_argument("--worker", action="store_true", help="also run durable calls that any replica has stored")
    parser.add_argument("--port", type=int, default=8000, help="0 chooses a free one (default: 8000)")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    for package in ("fastapi", "starlette", "uvicorn", "jinja2", "mcp", "sqlalchemy", "httpx2"):
        if find_spec(package) is None:
            raise MissingExtraError(package, extra="serve")
    asyncio.run(_serve(options))
    return 0


async def _serve(options: argparse.Namespace) -> None:
    import uvicorn  # noqa: PLC0415  # optional

    if not 0 <= options.port < 65536:
        raise ConfigError(f"port must be 0 to 65535, got {options.port}.")
    # What runs may finish: then it is cut off, and settled by the executor.
    grace = options.grace
    config = uvicorn.Config("", log_level="warning", timeout_graceful_shutdown=grace, server_header=False)
    listener = _bind(options.host, options.port)
    url = f"http://{options.host}:{listener.getsockname()[1]}"
    is_worker = options.worker
    opening = _open_example(is_worker) if options.file is None else _open_file(options.file, url, is_worker)
    async with opening as (app, store):
        print(f"console: {url}/\nHTTP:    {url}/v1\nMCP:     {url}/mcp", flush=True)
        if not await store.keys.list():
            for role, (who, use) in _FIRST_KEYS.items():
                key, secret = await store.keys.create(role=role, who=who)
                print(f"{key.role} key, shown only now ({use}): {secret}", flush=True)
        config.app = app
        config.load()
        server = uvicorn.Server(config)
        # Its own handlers send the signal once more at the end, which would end the process before the store is closed.
        server.capture_signals = lambda: _stop_on_signals(server)
        await server.serve(sockets=[listener])


@contextmanager
def _stop_on_signals(server: Any) -> Generator[None]:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, server.handle_exit, number, None)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, proto=socket.IPPROTO_TCP)  # Else asyncio leaves Nagle on: 40 ms for every answer.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(1_024)  # From now on a client waits for the answer, and is not refused.
    except OSError as error:
        raise ConfigError(f"cannot listen at {host}:{port}: {error.strerror}. Choose another --port.") from error
    return listener


@asynccontextmanager
async def _open_file(file: str, url: str, is_worker: bool) -> AsyncGenerator[tuple[Any, Any]]:
    from handrail.serve.gateway import open_gateway  # noqa: PLC0415  # optional

    async with open_gateway(file, url=url, worker=is_worker) as gateway:
        for name, status in gateway.sources.status.items():
            why = f": {status.reason}" if status.reason else ""
            print(f"source {name}: {status.state}{why}, {status.tools} tools", flush=True)
        yield gateway.app, gateway.store


@asynccontextmanager
async def _open_example(is_worker: bool) -> AsyncGenerator[tuple[Any, Any]]:
    from handrail.serve.app import build_app  # noqa: PLC0415  # optional
    from handrail.serve.gateway import build_metrics  # noqa: PLC0415  # optional

    agent = load_agent_file()
    # Nobody is in a conversation here: what the example asks the customer, an operator is asked.
    rules = [rule for rule in agent.policy.rules if rule.by != "customer"]
    async with open_store(DEFAULT_STORE, audit_values=True) as store:
        metrics = build_metrics()
        executor = Executor(
            agent.tools,
            policy=Policy(rules, asks="operator"),
            store=store,
            listeners=metrics,
            timeouts=Timeouts(approval=3_600),
        )
        print(
            "No file was given: this is the example agent of a bank, with the database ./handrail.db", file=sys.stderr
        )
        async with executor:
            registry = metrics[0].registry if metrics else None
            app = build_app(
                executor,
                store=store,
                deps=agent.make_deps(),
                tenants=store.tenants,
                registry=registry,
                worker=is_worker,
            )
            yield app, store

"""`handrail serve`: the service of a configuration file, or of an agent: API, MCP and console."""

import argparse
import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from errno import EADDRNOTAVAIL
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from msgspec import structs

from handrail.authorize.policy import Policy
from handrail.cli.agent_file import AgentFile, load_agent_file, load_object
from handrail.cli.provider_choice import PROVIDERS, choose_provider
from handrail.cli.store_option import choose_store_url, find_agent_store
from handrail.core.text import escape_line
from handrail.errors import ConfigError, MissingExtraError
from handrail.execute.executor import Executor
from handrail.execute.limits import Timeouts
from handrail.guide import Agent
from handrail.sources.source import connect
from handrail.store import open_store

_FIRST_KEYS: Final[dict[Any, tuple[str, str]]] = {
    "operator": ("operator", "sign in at the console, and decide"),
    "admin": ("admin", "tenants and keys"),
    "caller": ("client", "the bearer token of a client, over HTTP or MCP"),
}
"""What a database without keys gets, with the holder and the use of each."""
_PROVIDER_VARIABLES: Final = (
    *("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"),
    *("OPENAI_BASE_URL", "HANDRAIL_MODEL"),
)
"""Without one of them no model is asked for: a service starts no download."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "file",
        nargs="?",
        metavar="FILE",
        help="the configuration, such as gateway.yaml; or an agent: a Python file as of `handrail chat`, or "
        "module:agent (default: the example agent)",
    )
    parser.add_argument("--store", metavar="URL", help="of an agent: sqlite:///… or postgresql://… (./handrail.db)")
    parser.add_argument("--provider", choices=PROVIDERS, metavar="NAME", help="of an agent's model")
    parser.add_argument("--model", help="of an agent: the model's name")
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
    if options.grace < 0:
        raise ConfigError(f"grace must be at least 0 seconds, got {options.grace}.")
    # What runs may finish: then it is cut off, and settled by the executor.
    grace = options.grace
    config = uvicorn.Config("", log_level="warning", timeout_graceful_shutdown=grace, server_header=False)
    listener = _bind(options.host, options.port)
    url = f"http://{options.host}:{listener.getsockname()[1]}"
    opening = _open_agent(options) if _is_agent(options.file) else _open_file(options.file, url, options.worker)
    async with opening as (app, store):
        print(f"console: {url}/\nHTTP:    {url}/v1\nMCP:     {url}/mcp", flush=True)
        if known := await store.keys.list():
            valid = sum(not key.revoked_at for key in known)
            print(f"keys:    {valid} valid, of {store.url}; `handrail keys create` makes another", flush=True)
        else:
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
        listener.close()
        option = "--host" if isinstance(error, socket.gaierror) or error.errno == EADDRNOTAVAIL else "--port"
        raise ConfigError(f"cannot listen at {host}:{port}: {error.strerror}. Choose another {option}.") from error
    return listener


@asynccontextmanager
async def _open_file(file: str, url: str, is_worker: bool) -> AsyncGenerator[tuple[Any, Any]]:
    from handrail.serve.gateway import open_gateway  # noqa: PLC0415  # optional

    async with open_gateway(file, url=url, worker=is_worker) as gateway:
        for name, status in gateway.sources.status.items():
            why = f": {status.reason.rstrip('.')}" if status.reason else ""
            print(escape_line(f"source {name}: {status.state}{why}, {status.tools} tools"), flush=True)
        yield gateway.app, gateway.store


@asynccontextmanager
async def _open_agent(options: argparse.Namespace) -> AsyncGenerator[tuple[Any, Any]]:
    """Serve an agent: the example, a file as `handrail chat` takes it, or `module:agent`."""
    from handrail.serve.app import build_app  # noqa: PLC0415  # optional
    from handrail.serve.gateway import build_metrics  # noqa: PLC0415  # optional

    file = _load_agent(options.file)
    policy = file.policy if file.agent is None else file.agent.executor.policy
    if options.file is None:
        # MCP clients have nobody to ask: what the example asks the customer, an operator is asked.
        rules = [structs.replace(rule, by="operator") if rule.by == "customer" else rule for rule in policy.rules]
        policy = Policy(rules, asks="operator")
    store_url = choose_store_url(options.store, default=find_agent_store)
    async with open_store(store_url, audit_values=True) as store, connect(file.sources) as sources:
        metrics = build_metrics()
        executor = Executor(
            [*file.tools, sources],
            policy=policy,
            store=store,
            listeners=metrics,
            timeouts=Timeouts(approval=3_600),
        )
        agent = _choose_agent(options, file)
        if options.file is None:
            text = "No file was given: this is the example agent of a bank, with the database"
            print(f"{text} {store_url.removeprefix('sqlite:///')}", file=sys.stderr)
        if agent is None:
            text = "No model is configured, so that nobody can talk to the agent: set OPENAI_API_KEY, or --provider."
            print(text, file=sys.stderr)
        async with executor:
            registry = metrics[0].registry if metrics else None
            app = build_app(
                executor,
                store=store,
                deps=file.make_deps(),
                tenants=store.tenants,
                registry=registry,
                worker=options.worker,
                agent=agent,
            )
            yield app, store
        if (close := getattr(getattr(agent, "provider", None), "aclose", None)) is not None:
            await close()


def _is_agent(file: str | None) -> bool:
    return file is None or file.endswith(".py") or (":" in file and not file.endswith((".yaml", ".yml")))


def _load_agent(file: str | None) -> AgentFile:
    if file is None or (file.endswith(".py") and ":" not in Path(file).name):
        return load_agent_file(file)
    agent = load_object(file)
    if not isinstance(agent, Agent):
        raise ConfigError(f"{file} must be an Agent, got {type(agent).__name__}.")
    own = agent.executor
    return AgentFile(
        tools=own.registry,
        policy=own.policy,
        instructions=agent.instructions,
        make_deps=lambda: None,
        agent=agent,
    )


def _choose_agent(options: argparse.Namespace, file: AgentFile) -> Any:
    """The agent with its model; None if no model was chosen and none is configured."""
    from handrail.serve import ChatAgent  # noqa: PLC0415  # optional

    agent = file.agent
    if agent is not None and (agent.judge is not None or agent.provider is not None):
        return agent
    is_configured = any(os.environ.get(name) for name in _PROVIDER_VARIABLES)
    if options.provider is None and options.model is None and not is_configured:
        return None
    provider = choose_provider(os.environ, name=options.provider, model=options.model)
    if agent is None:
        return ChatAgent(provider=provider, instructions=file.instructions)
    agent.provider = provider
    return agent

"""A gateway that runs until it is stopped: sources, policy, store and app together, over HTTP or standard input."""

import asyncio
import getpass
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal

from msgspec import Struct
from pydantic import ValidationError
from starlette.applications import Starlette

from handrail.authorize.policy import Policy
from handrail.authorize.policy_file import load_policy
from handrail.core.log import log
from handrail.errors import ConfigError
from handrail.execute.executor import Executor
from handrail.execute.limits import Timeouts
from handrail.monitor.metrics import Metrics
from handrail.serve.app import build_app, build_mcp_endpoint
from handrail.serve.gateway_config import GatewayConfig, McpSource, load_gateway_config
from handrail.serve.mcp_calls import GatewayCalls
from handrail.serve.notifications import Notifier
from handrail.sources.mcp.server_options import import_with_sdk
from handrail.sources.pins import PinDifference
from handrail.sources.source import Sources, connect
from handrail.store import SqlStore, open_store

_POLICY_SECONDS: Final = 1.0
"""Seconds between two looks at the policy file."""
Stamp = tuple[int, int]


class Gateway(Struct, frozen=True, kw_only=True):
    """A gateway that is open."""

    app: Starlette
    executor: Executor
    store: SqlStore
    sources: Sources
    config: GatewayConfig


@asynccontextmanager
async def open_gateway(path: str | Path, *, url: str = "", worker: bool = False) -> AsyncGenerator[Gateway]:
    """Open what a configuration file describes. A source that is down is tried again, and the pages say so."""
    file = Path(path)
    config = load_gateway_config(file)
    async with open_configured_gateway(config, directory=file.parent, url=url, worker=worker) as gateway:
        yield gateway


@asynccontextmanager
async def open_configured_gateway(
    config: GatewayConfig, *, directory: Path, url: str = "", worker: bool = False
) -> AsyncGenerator[Gateway]:
    """Open what a configuration describes, with paths that are relative to a directory."""
    policy_file = None if config.policy is None else directory / config.policy
    stamp = read_stamp(policy_file)  # Before the rules: to connect takes long enough to save others.
    policy = Policy(asks="operator") if policy_file is None else load_gateway_policy(policy_file)
    url = config.url or url
    async with AsyncExitStack() as stack:
        with config.naming("store"):
            opening = open_store(config.read_store_url(directory), audit_values=config.audit_values)
        store = await stack.enter_async_context(opening)
        notifier = await stack.enter_async_context(Notifier(config.notify, url=url))
        sources = await stack.enter_async_context(connect(config.build_sources(directory)))
        metrics = build_metrics()
        executor = Executor(
            [sources],
            policy=policy,
            store=store,
            listeners=[notifier, *metrics],
            timeouts=Timeouts(approval=config.approval_timeout, call=config.call_timeout),
        )
        notifier.follow(executor)
        stack.push_async_callback(executor.aclose)
        watch = PolicyWatch(executor, policy_file, stamp)
        watching = asyncio.create_task(watch.run(), name="handrail:policy-watch")
        stack.push_async_callback(_cancel, watching)
        app = build_app(
            executor,
            store=store,
            approval_wait=config.approval_wait,
            url=url,
            notices=lambda: [*watch.list_problems(), *list_source_problems(sources)],
            held_tools=lambda: find_held_tools(sources),
            tenants=store.tenants,
            registry=metrics[0].registry if metrics else None,
            worker=worker,
        )
        yield Gateway(app=app, executor=executor, store=store, sources=sources, config=config)


async def serve_over_stdio(
    command: Sequence[str],
    *,
    name: str,
    trusted: bool,
    policy: str | None,
    pins: str | None,
    timeout: float | None,
    errors: Literal["nothing_happened", "unknown"] | None,
    approval_wait: float,
    store: str,
) -> None:
    """Serve the tools of one MCP server, which is started, until the client leaves: for a desktop client."""
    try:
        source = McpSource(command=list(command), trusted=trusted, pins=pins, timeout=timeout, errors=errors)
        config = GatewayConfig(store=store, sources={name: source}, policy=policy, approval_wait=approval_wait)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ConfigError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}.") from error
    async with open_configured_gateway(config, directory=Path()) as gateway:
        calls = GatewayCalls(gateway.store, approval_wait=approval_wait, person=getpass.getuser())
        where = f"with `handrail approvals approve {{token}} --who NAME --store {store}`"
        endpoint = build_mcp_endpoint(gateway.executor, calls, decide_where=where)
        serve = import_with_sdk("handrail.sources.mcp.served_executor").serve
        await serve(endpoint, transport="stdio", host="", port=0, path="")


def build_metrics() -> list[Metrics]:
    """The listener that counts for `/v1/metrics`, in a registry of its own; none without the extra `metrics`."""
    if find_spec("prometheus_client") is None:
        return []
    from prometheus_client import CollectorRegistry  # noqa: PLC0415  # optional

    return [Metrics(CollectorRegistry())]


async def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def load_gateway_policy(path: Path) -> Policy:
    """The policy of a file; where no rule says who is asked, it is an operator: a gateway has no conversation."""
    read = load_policy(path)
    return Policy(read.rules, default=read.default, asks="operator")


def read_stamp(file: Path | None) -> Stamp | None:
    """What changes with the file; None if there is none."""
    try:
        found = None if file is None else file.stat()
    except OSError:
        return None
    return None if found is None else (found.st_mtime_ns, found.st_size)


class PolicyWatch:
    """Applies a policy file anew when it changes; one that cannot be read changes nothing, and is a notice."""

    def __init__(self, executor: Executor, file: Path | None, stamp: Stamp | None) -> None:
        self._executor = executor
        self._file = file
        self._problem = ""
        self._stamp = stamp
        """Of the file as it was when the executor got its rules."""

    def list_problems(self) -> list[str]:
        """What people have to know about the policy."""
        found = [f"The policy file cannot be used, and the rules before it are in force: {self._problem}"]
        return [*(found if self._problem else []), *(f"Policy: {text}" for text in self._executor.diagnostics)]

    async def run(self) -> None:
        """Look for changes until it is cancelled."""
        while self._file is not None:
            await asyncio.sleep(_POLICY_SECONDS)
            try:
                await self.check()
            except Exception as error:  # The next rules may be others.
                self._problem = f"{type(error).__name__}: {error}"
                log.exception("the policy file cannot be used, and the rules before it are in force")

    async def check(self) -> None:
        """Apply the file if it is another one than before."""
        stamp = await asyncio.to_thread(read_stamp, self._file)
        if self._file is None or stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._executor.replace_policy(await asyncio.to_thread(load_gateway_policy, self._file))
        except ConfigError as error:
            self._problem = error.message
            log.error("the policy file cannot be used, and the rules before it are in force: %s", error.message)
        else:
            self._problem = ""
            log.warning("the policy was replaced by %s", self._file)


def list_source_problems(sources: Sources) -> list[str]:
    """What people have to know about the sources: those that are away, and tools that are held, with what differs."""
    found: list[str] = []
    for name, status in sources.status.items():
        if status.state != "connected":
            found.append(f"The source {name} is {status.state}: {status.reason or 'no reason is known'}")
        found.extend(
            f"{name}: the tool {difference.tool} is {difference.kind} and is held until somebody accepts it: "
            f"`handrail mcp accept`\n{difference.diff}"
            for difference in status.differences
        )
    return found


def find_held_tools(sources: Sources) -> dict[str, PinDifference]:
    """The tools that are not served until somebody accepts them, by the name that they would have."""
    return {
        f"{name}__{difference.tool.replace(':', '_')}": difference
        for name, status in sources.status.items()
        for difference in status.differences
    }

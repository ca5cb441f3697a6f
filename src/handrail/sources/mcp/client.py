"""An MCP server while it is connected: its tools, its state, and calls to it."""

import asyncio
import random
from collections import ChainMap, OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Final, cast

import mcp_types as types
from mcp import MCPError
from msgspec import structs

from handrail.core.context import ToolContext
from handrail.core.log import log
from handrail.core.secrets import resolve_reference
from handrail.core.tool import Tool
from handrail.core.values import ToolResult
from handrail.errors import ConfigError, McpCallError, ToolError, shorten
from handrail.sources.mcp.connection import ConnectionFailed, McpConnection
from handrail.sources.mcp.definitions import BuiltTools, McpDefinition, build_result, build_tools
from handrail.sources.mcp.request_outcome import RequestTrace, current_trace
from handrail.sources.mcp.server_options import IDEMPOTENCY_META_KEY, McpServer
from handrail.sources.pins import PinDifference, list_held_back, read_pins
from handrail.sources.source import SourceStatus, run_in_thread

_FIRST_PAUSE: Final = 0.5
_MAX_PAUSE: Final = 30.0
_LISTING_PAUSE: Final = 0.25
"""Seconds between two listings at least: a server may announce changes without end."""
_MAX_CHANGES: Final = 20
"""How many changes in a row are looked at without longer and longer pauses."""
_PINS_PAUSE: Final = 1.0
"""Seconds between two looks at the pin file, while tools wait for being accepted."""
_MAX_CONNECTIONS: Final = 64
"""How many connections with other headers than the first one's are kept open."""
_MAX_PROGRESS: Final = 1_000
"""How many reports of progress one call may make."""
_CALL_TIMEOUT: Final = 3_600.0
"""The executor has a limit of its own; this one is for whoever calls a tool without it."""

_NOT_RUN: Final = frozenset(
    {
        *(types.INVALID_PARAMS, types.METHOD_NOT_FOUND, types.HEADER_MISMATCH),
        types.MISSING_REQUIRED_CLIENT_CAPABILITY,
    }
)
"""Errors of the protocol after which nothing has happened."""


class OpenMcpServer:
    """Keeps one server connected, with growing pauses between the attempts, until it is closed."""

    def __init__(self, server: McpServer, *, on_change: Callable[[], None], secrets: Mapping[str, str]) -> None:
        self._server = server
        self._on_change = on_change
        self._secrets = secrets
        self._built = BuiltTools(tools={}, skipped=())
        self._differences: tuple[PinDifference, ...] = ()
        self._pins_mtime = 0
        self.definitions: dict[str, dict[str, Any]] = {}
        """What the server says of its tools, by its own names for them."""
        self._status = SourceStatus(name=server.name, state="connecting")
        self._main: McpConnection | None = None
        self._main_headers: Mapping[str, str] = {}
        self._tenant_connections: OrderedDict[tuple[tuple[str, str], ...], asyncio.Task[McpConnection]] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()
        self._list_changed = asyncio.Event()
        self._stopped = asyncio.Event()
        self._has_served = False
        self._first_attempt_done = asyncio.Event()
        """Set when the first attempt to connect has ended, either way."""
        self._task: asyncio.Task[None] | None = None
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def tools(self) -> tuple[Tool[..., Any], ...]:
        """The tools, in the order of the server."""
        return tuple(self._built.tools.values())

    @property
    def status(self) -> SourceStatus:
        """How the server is doing."""
        known = self._status
        if known.state == "connected" and self._main is not None and self._main.client is None:
            known = structs.replace(known, state="reconnecting", reason=self._main.reason)
        return structs.replace(
            known, tools=len(self._built.tools), skipped=self._built.skipped, differences=self._differences
        )

    async def start(self) -> None:
        """Start connecting, and wait for the end of the first attempt."""
        self._task = asyncio.create_task(self._stay_connected(), name=f"mcp-server:{self._server.name}")
        try:
            await self._first_attempt_done.wait()
        except asyncio.CancelledError:
            await self.aclose()
            raise

    async def wait_idle(self) -> None:
        """Wait until no call is under way."""
        await self._idle.wait()

    async def aclose(self) -> None:
        """Close every connection, and end the processes."""
        self._stopped.set()
        if self._task is not None:
            done, _ = await asyncio.wait([self._task], timeout=0.5)
            if not done:  # It is connecting, or listing.
                self._task.cancel()
                await asyncio.wait([self._task])
        if self._main is not None:
            await self._main.aclose()
        opening = list(self._tenant_connections.values())
        self._tenant_connections.clear()
        await asyncio.gather(*opening, return_exceptions=True)
        await asyncio.gather(*(task.result().aclose() for task in opening if _is_open(task)), *self._closing)
        self._set_status("closed")

    # Staying connected.

    async def _stay_connected(self) -> None:
        attempt = 0
        loop = asyncio.get_running_loop()
        while not self._stopped.is_set():
            began = loop.time()
            try:
                await self._serve_connection()
                reason, is_final = "", False
            except ConnectionFailed as failed:
                reason, is_final = str(failed), failed.is_final
            except ConfigError as error:
                reason, is_final = error.message, True
            except Exception as error:
                log.exception("the MCP server %s cannot be used", self._server.name)
                reason, is_final = f"{type(error).__name__}: {shorten(str(error), 300)}", False
            if loop.time() - began > _MAX_PAUSE:  # One that dies at once each time is not asked at once each time.
                attempt = 0
            if self._main is not None:
                await self._main.aclose()
                reason = reason or self._main.reason
                self._main = None
            if self._stopped.is_set():
                break
            log.warning("the MCP server %s is not connected: %s", self._server.name, reason)
            if is_final and not self._has_served:  # What has served once may be put right: a secret that is renewed.
                self._set_status("failed", reason)
                self._first_attempt_done.set()
                break
            self._set_status("reconnecting", reason)
            self._first_attempt_done.set()
            pause = min(_FIRST_PAUSE * 2**attempt, _MAX_PAUSE) * (0.5 + random.random() / 2)
            attempt += 1
            await _wait_any(self._stopped.wait(), timeout=pause)

    async def _serve_connection(self) -> None:
        """One connection, from its beginning to its end."""
        self._main_headers = self._resolve_headers(None, self._secrets)
        env = {name: self._resolve_env(name, value) for name, value in self._server.env.items()}
        main = McpConnection(self._server, headers=self._main_headers, env=env, on_list_changed=self._list_changed.set)
        self._main = main
        await main.open()
        await self._refresh_tools(main)
        pause = _LISTING_PAUSE
        changes, loop = 0, asyncio.get_running_loop()
        while not self._stopped.is_set():
            await _wait_any(main.wait_lost(), self._stopped.wait(), timeout=pause)
            waiting_since = loop.time()
            await self._wait_for_change(main)
            if main.client is None or self._stopped.is_set():
                if self._server.url is not None and main.active_calls:
                    # Calls that are under way may still end, and new ones need not wait for them.
                    self._main = None
                    self._close_later(self._close_once_lost(main))
                else:
                    await _wait_any(main.wait_lost(), self._stopped.wait())
                return
            try:
                # What announces changes that are none, or changes without end, is asked less and less often.
                was_quiet = loop.time() - waiting_since > _MAX_PAUSE
                is_changed = await self._refresh_tools(main)
                changes = 0 if was_quiet else changes + 1
                may_be_soon = was_quiet or (is_changed and changes <= _MAX_CHANGES)
                pause = _LISTING_PAUSE if may_be_soon else min(pause * 2, _MAX_PAUSE)
            except (ConnectionFailed, ConfigError) as failed:  # Calls may be running: the connection is kept.
                log.warning("the tools of the MCP server %s stay as they were: %s", self._server.name, failed)
                self._list_changed.set()  # It does not say twice that they have changed.
                pause = min(pause * 2, _MAX_PAUSE)

    async def _close_once_lost(self, connection: McpConnection) -> None:
        await _wait_any(connection.wait_lost(), self._stopped.wait())
        await connection.aclose()

    def _close_later(self, closing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(closing)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _wait_for_change(self, main: McpConnection) -> None:
        """Wait until the connection is lost, the tools have changed, or the pin file may have been changed."""
        while not (self._stopped.is_set() or self._list_changed.is_set() or main.client is None):
            pause = _PINS_PAUSE if self._differences else None
            await _wait_any(main.wait_lost(), self._stopped.wait(), self._list_changed.wait(), timeout=pause)
            if self._differences and self._get_pins_mtime() != self._pins_mtime:
                return

    def _get_pins_mtime(self) -> int:
        try:
            return Path(self._server.pins or "").stat().st_mtime_ns
        except OSError:
            return 0

    async def _refresh_tools(self, connection: McpConnection) -> bool:
        """List the tools, and call `on_change` if they have changed; whether they have."""
        self._list_changed.clear()
        listed, skipped = await connection.list_tools()
        self.definitions = {item.name: item.definition for item in listed}
        # In a thread: a thousand schemas are compiled here.
        self._differences, built = await run_in_thread(self._server.name, self._build, listed)
        built = structs.replace(built, skipped=(*skipped, *built.skipped))
        is_changed = built.tools.keys() != self._built.tools.keys()
        self._built = built
        for difference in self._differences:
            log.warning(
                "the tool %s of the MCP server %s is not the pinned one: %s",
                difference.tool,
                self._server.name,
                difference.kind,
            )
        for tool in built.skipped:
            log.warning("a tool of the MCP server %s is skipped: %s: %s", self._server.name, tool.name, tool.reason)
        self._set_status("connected")
        self._has_served = True
        self._first_attempt_done.set()
        if is_changed:
            self._on_change()
        return is_changed

    def _build(self, listed: list[McpDefinition]) -> tuple[tuple[PinDifference, ...], BuiltTools]:
        """The tools of a listing, without those that nobody has accepted yet."""
        differences: tuple[PinDifference, ...] = ()
        if self._server.pins is not None:
            self._pins_mtime = self._get_pins_mtime()
            differences = list_held_back(read_pins(self._server.pins, self._server.name), self.definitions)
        names = {difference.tool for difference in differences}
        accepted = [item for item in listed if item.name not in names]
        return differences, build_tools(self._server, accepted, self._call, self._built.tools)

    def _set_status(self, state: Any, reason: str = "") -> None:
        self._status = SourceStatus(name=self._server.name, state=state, reason=reason)

    # Credentials and connections.

    def _resolve_env(self, name: str, value: str) -> str:
        if value.partition(":")[0] not in ("env", "file", "secret"):
            return value
        return resolve_reference(value, name=f"env[{name!r}] of {self._server.name!r}", secrets=self._secrets)

    def _resolve_headers(self, context: ToolContext[Any] | None, secrets: Mapping[str, str]) -> dict[str, str]:
        server = self._server
        try:
            given = server.headers(context) if callable(server.headers) else server.headers
            headers = {str(name): str(value) for name, value in given.items()}
        except Exception as error:
            log.exception("the headers of the MCP server %s failed", server.name)
            raise ConfigError(f"headers of {server.name!r} raised {type(error).__name__}.") from error
        if server.bearer is not None:
            is_secret = isinstance(server.bearer, str) and server.bearer.startswith("secret:")
            if context is None and is_secret and str(server.bearer).partition(":")[2] not in secrets:
                return headers  # Some servers list their tools to anybody.
            token = resolve_reference(server.bearer, name=f"bearer of {server.name!r}", secrets=secrets)
            headers["Authorization"] = f"Bearer {token}"
        return headers

    async def _find_connection(self, context: ToolContext[Any]) -> McpConnection:
        """The connection for a call: the first one, or one of its own for other headers."""
        server = self._server
        headers = self._main_headers
        if callable(server.headers) or server.bearer is not None:
            # Looked up one by one: fetching a secret may fail, and only this one is needed. A tenant has its own
            # secrets or none: with those of the listing it would act as somebody else.
            own: Any = context.secrets
            secrets = own if context.tenant_id is not None else ChainMap(own, cast(Any, self._secrets))
            headers = self._resolve_headers(context, secrets)
        if headers == self._main_headers:
            if self._main is None or self._main.client is None:
                raise ConnectionFailed(self._status.reason or "it is not connected")
            return self._main
        key = tuple(sorted(headers.items()))
        task = self._tenant_connections.get(key)
        if task is None or (task.done() and (not _is_open(task) or task.result().client is None)):
            task = self._tenant_connections[key] = asyncio.create_task(self._open_tenant_connection(headers))
            self._close_idle()
        self._tenant_connections.move_to_end(key)
        return await asyncio.shield(task)

    async def _open_tenant_connection(self, headers: Mapping[str, str]) -> McpConnection:
        connection = McpConnection(self._server, headers=headers, env={})
        await connection.open()
        return connection

    def _close_idle(self) -> None:
        """Close the connections that were not used for the longest time, where there are too many."""
        for key, task in list(self._tenant_connections.items()):
            if len(self._tenant_connections) <= _MAX_CONNECTIONS:
                return
            if task.done() and (not _is_open(task) or not task.result().active_calls):
                del self._tenant_connections[key]
                if _is_open(task):
                    self._close_later(task.result().aclose())

    # Calls.

    async def _call(
        self, name: str, read_only: bool, arguments: Mapping[str, Any], context: ToolContext[Any]
    ) -> ToolResult:
        self._calls += 1
        self._idle.clear()
        try:
            return await self._send_call(name, read_only, arguments, context)
        finally:
            self._calls -= 1
            if not self._calls:
                self._idle.set()

    async def _send_call(
        self, name: str, read_only: bool, arguments: Mapping[str, Any], context: ToolContext[Any]
    ) -> ToolResult:
        try:
            connection = await self._find_connection(context)
            client = connection.client
            if client is None:
                raise ConnectionFailed(connection.reason)
        except (ConnectionFailed, ConfigError) as error:
            log.warning("a call of %s on the MCP server %s was not sent: %s", name, self._server.name, error)
            raise self._build_unavailable() from error
        trace = RequestTrace()
        token = current_trace.set(trace)
        connection.begin_call(trace, context)
        try:
            result = await client.call_tool(
                name,
                dict(arguments),
                read_timeout_seconds=self._server.timeout or _CALL_TIMEOUT,
                progress_callback=_build_progress_callback(context),
                meta=_build_meta(context),
            )
        except MCPError as error:
            raise self._interpret_error(connection, name, error, trace, read_only=read_only) from error
        except (RuntimeError, ValueError, ExceptionGroup) as error:  # What came is not what the server had promised.
            if not read_only:
                raise
            log.error("the MCP server %s answered %s wrongly", self._server.name, name, exc_info=error)
            raise ToolError("The server's answer is not what it has promised, and was dropped.") from error
        finally:
            connection.end_call(trace)
            current_trace.reset(token)
        if result.is_error and not read_only and self._server.errors == "unknown":
            raise McpCallError(f"{self._server.name} reported an error of {name}, which may have taken effect.")
        return build_result(result)

    def _interpret_error(
        self, connection: McpConnection, name: str, error: MCPError, trace: RequestTrace, *, read_only: bool
    ) -> Exception:
        """Turn an error of the protocol into the exception that says what is known of the call's effect."""
        is_gone = trace.status == 404 and error.code == types.INVALID_REQUEST  # The server has forgotten the session.
        if is_gone or trace.is_unsent or error.code == types.CONNECTION_CLOSED or trace.status == 401:
            connection.retire(trace.reason or connection.reason or shorten(error.message, 200))
        if trace.is_unsent or is_gone or (trace.is_refused and error.code not in _NOT_RUN):
            log.warning("the MCP server %s did not take a call of %s: %s", self._server.name, name, trace.reason)
            return self._build_unavailable()
        if error.code in _NOT_RUN:
            return ToolError(f"The server refused the call: {error.message[:1000]}")
        if read_only and error.code == types.INTERNAL_ERROR:
            return ToolError(f"The server reported an error: {error.message[:1000]}")
        if read_only:
            log.warning("the MCP server %s did not answer a call of %s: %s", self._server.name, name, error.message)
            return self._build_unavailable()
        return McpCallError(f"{self._server.name} did not say what became of {name}: {error.message}")

    def _build_unavailable(self) -> ToolError:
        text = f"The server {self._server.name!r} cannot be reached now. Nothing was done. It may work later."
        return ToolError(text, code="unavailable", retryable=True)


def _is_open(task: asyncio.Task[McpConnection]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _build_meta(context: ToolContext[Any]) -> Any:
    """What goes with a call, so that the server can recognise a second attempt of the same effect."""
    return {IDEMPOTENCY_META_KEY: context.idempotency_key} if context.idempotency_key else None


def _build_progress_callback(context: ToolContext[Any]) -> Any:
    count = 0

    async def report(progress: float, total: float | None, message: str | None) -> None:
        nonlocal count
        count += 1
        if count > _MAX_PROGRESS:
            return
        fraction = min(max(progress / total, 0.0), 1.0) if total else None
        context.progress(message[:1000] if message else f"{progress:g}", fraction=fraction)

    return report


async def _wait_any(*waits: Any, timeout: float | None = None) -> None:
    """Wait for the first of several, or for the time."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

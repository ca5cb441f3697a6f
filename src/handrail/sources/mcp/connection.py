"""One connection to an MCP server: opened, listed, called, and lost."""

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Final, cast
from urllib.parse import urlsplit

import anyio
import mcp_types as types
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import SubscriptionLost
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from handrail.core.context import ToolContext
from handrail.core.log import log, quiet_library
from handrail.core.version import __version__
from handrail.errors import ConfigError, InvalidArgumentsError, ToolDefinitionError, shorten
from handrail.schema.json_schema_arguments import RawSchema
from handrail.sources.mcp.definitions import MAX_LISTED, CheckedStream, McpDefinition
from handrail.sources.mcp.elicitation import Elicitation
from handrail.sources.mcp.http import make_client
from handrail.sources.mcp.request_outcome import RequestTrace, current_trace
from handrail.sources.mcp.server_options import McpServer
from handrail.sources.mcp.stdio import ServerProcess, open_process
from handrail.sources.source import SkippedTool

_PAGES: Final = 1_000
"""How many pages a list of tools may have: one that never ends must not be read for ever."""
_CLOSE_TIMEOUT: Final = 10.0
_INFO: Final = types.Implementation(name="handrail", version=__version__)
_ANSWER_TIMEOUT: Final = 300.0
"""Seconds that an answer may take, if the server has no `timeout`; the timeout of the call ends it before that."""
_MAX_QUESTIONS: Final = 8
"""How many questions of one connection may be open at once."""
_MAX_MESSAGE_CHARS: Final = 4_000

_DECLINE: Final = types.ElicitResult(action="decline")
_CANCEL: Final = types.ElicitResult(action="cancel")


class ConnectionFailed(Exception):
    """The server could not be reached, or did not answer as one should; the text is for the operator."""

    def __init__(self, reason: str, *, is_final: bool = False) -> None:
        super().__init__(reason)
        self.is_final = is_final
        """Whether trying again is of no use: the configuration must be changed."""


class McpConnection:
    """A client of the SDK in a task of its own, which owns everything that the SDK opens."""

    def __init__(
        self,
        server: McpServer,
        *,
        headers: Mapping[str, str],
        env: Mapping[str, str],
        on_list_changed: Callable[[], None] = lambda: None,
    ) -> None:
        quiet_library("mcp")  # At DEBUG it logs every message.
        self._server = server
        self._headers = headers
        self._env = env
        self._on_list_changed = on_list_changed
        self._client: Client | None = None
        self._lost = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[Client] | None = None
        self.active_calls: dict[RequestTrace, ToolContext[Any]] = {}
        """The calls that wait for an answer."""
        asks = server.on_elicitation is not None
        self._elicitation = _ElicitationHandler(server, self._find_context) if asks else None
        self._reason = ""
        self._is_retired = False
        self._skipped: list[SkippedTool] = []
        """What was taken out of the list of tools that is being read."""
        self._process: ServerProcess | None = None
        """Set when it has ended."""

    @property
    def client(self) -> Client | None:
        """The SDK's client, while the connection lives and takes new calls."""
        return None if self._lost.is_set() or self._is_retired else self._client

    @property
    def reason(self) -> str:
        """Why it was lost, for the operator."""
        return self._process.describe_end() if self._process is not None else self._reason

    def _find_context(self) -> ToolContext[Any] | None:
        """The context of the call that a question of the server belongs to, if that is certain."""
        trace = current_trace.get()
        if trace in self.active_calls:  # A newer server asks as the answer to a call.
            return self.active_calls[trace]
        return next(iter(self.active_calls.values())) if len(self.active_calls) == 1 else None

    async def open(self) -> None:
        """Connect, or raise `ConnectionFailed`."""
        self._ready = asyncio.get_running_loop().create_future()
        # Whoever is cancelled while it connects does not look at what came of it.
        self._ready.add_done_callback(lambda ready: ready.cancelled() or ready.exception())
        self._task = asyncio.create_task(self._run(self._ready), name=f"mcp:{self._server.name}")
        try:
            self._client = await asyncio.shield(self._ready)
        except asyncio.CancelledError:
            await self.aclose()
            raise

    async def wait_lost(self) -> None:
        """Wait until the connection is lost."""
        await self._lost.wait()

    def mark_lost(self, reason: str) -> None:
        """Give the connection up."""
        if not self._lost.is_set():
            self._reason = reason
            self._lost.set()

    def retire(self, reason: str) -> None:
        """Take no more calls; those that are under way still end, and then the connection is lost."""
        if not self._is_retired:
            self._is_retired, self._reason = True, reason
        self._close_if_unused()

    def begin_call(self, trace: RequestTrace, context: ToolContext[Any]) -> None:
        """Count a call that waits for an answer."""
        self.active_calls[trace] = context

    def end_call(self, trace: RequestTrace) -> None:
        """Count a call that has its answer."""
        del self.active_calls[trace]
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._is_retired and not self.active_calls:
            self.mark_lost(self._reason)

    async def aclose(self) -> None:
        """Close it, and end what was started for it."""
        self.mark_lost("closed")
        task = self._task
        if task is None:
            return
        if self._ready is not None and not self._ready.done():
            task.cancel()  # It is still being opened.
        done, _ = await asyncio.wait([task], timeout=self._server.connect_timeout + _CLOSE_TIMEOUT)
        if not done:
            task.cancel()
            await asyncio.wait([task])

    async def _run(self, ready: asyncio.Future[Client]) -> None:
        trace = RequestTrace()
        current_trace.set(trace)  # Of what this task itself asks: to connect, and to listen.
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(self._server.connect_timeout):
                    client = await stack.enter_async_context(await self._enter(stack))
                ready.set_result(client)
                listener = asyncio.create_task(self._listen(client))
                try:
                    await self._lost.wait()
                finally:
                    listener.cancel()
                    await asyncio.gather(listener, return_exceptions=True)
        except TimeoutError:
            self._fail(ready, f"it did not answer within {self._server.connect_timeout:g} s")
        except (FileNotFoundError, PermissionError, NotADirectoryError) as error:
            self._fail(ready, f"{error.strerror}: {shorten(str(error.filename), 200)}", is_final=True)
        except asyncio.CancelledError:
            self._fail(ready, "cancelled")
            raise
        except (Exception, BaseExceptionGroup) as error:  # The SDK raises groups of anything.
            self._fail(ready, trace.reason or self.reason or describe(error))
            log.debug("the connection to %s ended", self._server.name, exc_info=error)

    def _fail(self, ready: asyncio.Future[Client], reason: str, *, is_final: bool = False) -> None:
        self.mark_lost(reason)
        if not ready.done():
            ready.set_exception(ConnectionFailed(reason, is_final=is_final))

    async def _enter(self, stack: AsyncExitStack) -> Client:
        server = self._server
        transport: AbstractAsyncContextManager[Any]
        if server.command is not None:
            transport = open_process(
                server.command,
                env=self._env,
                cwd=server.cwd,
                max_message_bytes=server.max_message_bytes,
                on_end=self._on_process_end,
            )
        else:
            http = make_client(
                server.url or "",
                self._headers,
                auth=server.auth,
                timeout=server.connect_timeout,
                max_message_bytes=server.max_message_bytes,
                allow_private=server.allow_private,
            )
            await stack.enter_async_context(http)
            transport = streamable_http_client(
                server.url or "", http_client=http, max_sse_event_size=server.max_message_bytes
            )
        return Client(
            self._check(transport),  # pyright: ignore[reportArgumentType]  # a context manager of streams is what it takes
            message_handler=self._receive,
            client_info=_INFO,
            elicitation_callback=self._elicitation,
            mode=server.protocol,
            read_timeout_seconds=server.connect_timeout,
            cache=None,
        )

    @asynccontextmanager
    async def _check(self, transport: AbstractAsyncContextManager[Any]) -> AsyncGenerator[Any]:
        async with transport as (received, sending):
            limit = self._server.max_definition_bytes
            yield CheckedStream(received, max_definition_bytes=limit, on_skip=self._skipped.append), sending

    def _on_process_end(self, process: ServerProcess) -> None:
        self._process = process  # It knows better why than whoever noticed first.
        self._lost.set()

    async def _receive(self, message: object) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._on_list_changed()

    async def _listen(self, client: Client) -> None:
        """Hear of changed tools, where the protocol wants to be asked for that."""
        tools = client.server_capabilities.tools
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS or tools is None or not tools.list_changed:
            return
        pause = 0.5
        while True:
            try:
                async with client.listen(tools_list_changed=True) as events:
                    pause = 0.5
                    self._on_list_changed()  # What changed before this moment was not announced.
                    async for _ in events:
                        self._on_list_changed()
            except MCPError as error:
                if error.code == types.METHOD_NOT_FOUND:
                    return
            except (SubscriptionLost, TimeoutError, anyio.ClosedResourceError):
                pass
            await asyncio.sleep(pause)
            pause = min(pause * 2, 30.0)

    async def list_tools(self) -> tuple[list[McpDefinition], tuple[SkippedTool, ...]]:
        """Every tool that the server has, page by page, and what is none; raises `ConnectionFailed`."""
        client = self.client
        if client is None:
            raise ConnectionFailed(self.reason)
        trace = RequestTrace()
        current_trace.set(trace)
        self._skipped.clear()
        found: list[McpDefinition] = []
        cursor: str | None = None
        try:
            async with asyncio.timeout(self._server.connect_timeout):
                for _ in range(_PAGES):
                    page = await client.list_tools(cursor=cursor)
                    found += map(McpDefinition.from_tool, page.tools[: MAX_LISTED - len(found)])
                    cursor = page.next_cursor
                    if cursor is not None and len(found) >= MAX_LISTED:
                        reason = f"the server lists more than {MAX_LISTED:,} tools, and only these are read"
                        self._skipped.append(SkippedTool(name="further tools", reason=reason))
                        cursor = None
                    if cursor is None:
                        return found, tuple(self._skipped)
        except TimeoutError as error:
            raise ConnectionFailed(f"it did not list its tools within {self._server.connect_timeout:g} s") from error
        except MCPError as error:
            raise ConnectionFailed(f"its tools cannot be listed: {trace.reason or shorten(str(error), 200)}") from error
        except ValueError as error:  # Pydantic's.
            raise ConnectionFailed(f"its list of tools is not valid: {shorten(str(error), 300)}") from error
        raise ConnectionFailed(f"its list of tools has more than {_PAGES} pages")


def describe(error: BaseException) -> str:
    """The first real error in a group, for the operator."""
    found: Any = error
    while isinstance(found, BaseExceptionGroup):
        found = cast(Any, found).exceptions[0]
    return found.message if isinstance(found, ConfigError) else f"{type(found).__name__}: {shorten(str(found), 300)}"


class _ElicitationHandler:
    """The SDK's callback for the questions of one server. Whatever happens, the server gets an answer."""

    def __init__(self, server: McpServer, find_context: Callable[[], ToolContext[Any] | None]) -> None:
        self._server = server
        self._find_context = find_context
        self._open = 0

    async def __call__(self, context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        """Answer one question."""
        if self._open >= _MAX_QUESTIONS:
            log.warning("the MCP server %s asks too many questions at once", self._server.name)
            return _DECLINE
        self._open += 1
        try:
            async with asyncio.timeout(self._server.timeout or _ANSWER_TIMEOUT):
                answer = await self._answer(params)
        except TimeoutError:
            log.warning("a question of the MCP server %s was not answered in time", self._server.name)
            answer = _CANCEL
        except Exception:
            log.exception("on_elicitation of the MCP server %s failed", self._server.name)
            answer = _CANCEL
        finally:
            self._open -= 1
        log.info("a question of the MCP server %s was answered: %s", self._server.name, answer.action)
        return answer

    async def _answer(self, params: types.ElicitRequestParams) -> types.ElicitResult:
        ask = self._server.on_elicitation
        assert ask is not None
        url = params.url if isinstance(params, types.ElicitRequestURLParams) else None
        schema: dict[str, Any] | None = None
        if isinstance(params, types.ElicitRequestFormParams):
            schema = dict(cast(Mapping[str, Any], params.requested_schema))
        elif url is None or urlsplit(url).scheme != "https":
            log.warning("the MCP server %s wants a person to open a URL that is not https", self._server.name)
            return _DECLINE
        question = Elicitation(
            server=self._server.name,
            message=params.message[:_MAX_MESSAGE_CHARS],
            schema=schema,
            url=url,
            context=self._find_context(),
        )
        answer: object = ask(question)
        if inspect.isawaitable(answer):
            answer = await cast(Any, answer)
        return self._check(answer, schema)

    def _check(self, answer: object, schema: dict[str, Any] | None) -> types.ElicitResult:
        """What the host answered, if the server can take it."""
        if answer is None or answer is False:
            return _DECLINE
        if answer is not True and not isinstance(answer, Mapping):
            raise TypeError(f"on_elicitation must return a mapping, True, False or None, got {type(answer).__name__}.")
        if schema is None:
            return types.ElicitResult(action="accept")
        content = {} if answer is True else dict(cast(Mapping[str, Any], answer))
        try:
            RawSchema(schema, name="the question").check(content)
        except (InvalidArgumentsError, ToolDefinitionError) as error:
            problem = shorten(str(error), 300)
            log.error("the answer to a question of the MCP server %s does not fit: %s", self._server.name, problem)
            return _CANCEL
        return types.ElicitResult(action="accept", content=cast(Any, content))

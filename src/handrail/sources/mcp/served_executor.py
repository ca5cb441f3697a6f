"""An executor as an MCP server: the same pool, policy, ledger and events, for any MCP client."""

import asyncio
import hashlib
import inspect
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, Literal, cast
from uuid import uuid4
from weakref import WeakSet

import mcp_types as types
from mcp import MCPError
from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from msgspec import Struct, structs
from pydantic import TypeAdapter, ValidationError

from handrail.core.context import ToolContext
from handrail.core.events import Event, Progress
from handrail.core.fair_threads import FairThreads
from handrail.core.log import log, quiet_library
from handrail.core.text import compact_json, escape_invisible
from handrail.core.values import Approval, ToolCall, ToolResult
from handrail.core.version import __version__
from handrail.errors import ApprovalError, ConfigError, ToolError
from handrail.execute.executor import Executor
from handrail.formats import mcp as wire
from handrail.registry.registry import ToolRegistry
from handrail.sources.mcp.definitions import build_resource_blocks
from handrail.sources.mcp.endpoint import FindCallKey, FindExecutor, FindTenant, MakeMcpContext, McpRequest, RunMcpCall
from handrail.sources.mcp.server_options import IDEMPOTENCY_META_KEY

_APPROVAL: Final = "approval"
"""The key of the question in a result that asks for input."""
_MAX_POOLS: Final = 200
"""Pools whose definitions are kept: one for each tenant that has tools of its own."""
_NOTIFY_TIMEOUT: Final = 5.0
_ARGUMENT_CHARS: Final = 2_000
_MAX_KEY_CHARS: Final = 200
_MAX_ATTEMPTS: Final = 20
"""How often one idempotency key may be tried, if every attempt fails."""
_NO_FIELDS: Final[dict[str, Any]] = {"type": "object", "properties": {}}
"""What is asked for: only yes or no."""

RequestContext = ServerRequestContext[Any, Any]


class _ServedPool(Struct, frozen=True, kw_only=True):
    """A pool as clients see it."""

    registry: ToolRegistry
    definitions: Any
    tools: dict[str, types.Tool]


class _Listeners:
    """The clients of one tenant that ask to be told of changed tools, in the newer revision of the protocol."""

    def __init__(self) -> None:
        self.bus = InMemorySubscriptionBus()
        self.handle = ListenHandler(self.bus)
        self.count = 0
        """How many there are."""


class _ToolServer(Server[Any]):
    """A server that says that its tools may change, over every transport."""

    def create_initialization_options(
        self, notification_options: NotificationOptions | None = None, *args: Any, **options: Any
    ) -> InitializationOptions:
        told = notification_options or NotificationOptions(tools_changed=True)
        return super().create_initialization_options(told, *args, **options)


class McpEndpoint:
    """Answers the requests of MCP clients from one executor."""

    def __init__(
        self,
        executor: Executor,
        *,
        context: MakeMcpContext | None = None,
        name: str = "handrail",
        instructions: str | None = None,
        approval_hint: str | Callable[[Approval], str] | None = None,
        find_key: FindCallKey | None = None,
        run_call: RunMcpCall | None = None,
        find_executor: FindExecutor | None = None,
        find_tenant: FindTenant | None = None,
    ) -> None:
        quiet_library("mcp")  # At DEBUG it logs every message.
        self._executor = executor
        self._make_context = context or _make_plain_context
        self._find_key = find_key
        self._run_call = run_call or _run_plain_call
        self._find_executor = find_executor
        self._find_tenant: FindTenant = find_tenant or _find_no_tenant
        self._approval_hint = approval_hint or (
            "To approve it, decide about the approval {token} in the application that serves these tools, "
            "then call the tool again with the same arguments."
        )
        self._connection_id = f"mcp-{uuid4().hex}"
        """The identity of the one client that stdio has."""
        self._turn = 0
        self._pools: OrderedDict[int, _ServedPool] = OrderedDict()
        """By the identity of the registry, which each of them keeps alive."""
        self._listeners: dict[str | None, _Listeners] = {}
        """By their tenant."""
        self._connections: dict[str | None, WeakSet[Connection]] = {}
        """Clients of the older revision, by their tenant: they are told of changed tools without having to ask for it.
        The server keeps them, as long as their sessions last."""
        self._threads = FairThreads("mcp-definitions")
        """Where definitions are made: those of a thousand tools of one tenant take seconds."""
        self._notifications: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop that serves the clients, once there is one."""
        self.server: Server[Any] = _ToolServer(
            name,
            version=__version__,
            instructions=instructions,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_subscriptions_listen=self._listen,
            get_tool_input_schema=self._input_schema,
        )
        executor.subscribe_tools(self._on_tools_change)

    def _on_tools_change(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._start_notifying)  # A handler in a thread may have replaced them.

    def _start_notifying(self) -> None:
        for tenant_id in self.tenants:
            self.notify_tenant(tenant_id)

    @property
    def tenants(self) -> set[str | None]:
        """The tenants of the clients that are told of changed tools."""
        connected = (tenant_id for tenant_id, connections in self._connections.items() if connections)
        return {*self._listeners, *connected}

    def notify_tenant(self, tenant_id: str | None) -> None:
        """Tell the clients of a tenant that their tools have changed; to be called in the loop that serves them."""
        task = asyncio.ensure_future(self._notify_clients(tenant_id))
        self._notifications.add(task)
        task.add_done_callback(self._notifications.discard)

    async def _notify_clients(self, tenant_id: str | None) -> None:
        if (listeners := self._listeners.get(tenant_id)) is not None:
            await listeners.bus.publish(ToolsListChanged())
        for connection in tuple(self._connections.get(tenant_id, ())):
            try:
                async with asyncio.timeout(_NOTIFY_TIMEOUT):
                    await connection.send_tool_list_changed()
            except Exception:  # It may be gone; the others still have to hear of it.
                log.debug("an MCP client could not be told of changed tools", exc_info=True)

    async def _listen(
        self, ctx: RequestContext, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        tenant_id = self._find_tenant(self._build_request(ctx))
        self._loop = asyncio.get_running_loop()
        listeners = self._listeners.setdefault(tenant_id, _Listeners())
        listeners.count += 1
        try:
            return await listeners.handle(ctx, params)
        finally:
            listeners.count -= 1
            if not listeners.count:
                del self._listeners[tenant_id]

    async def _load_pool(self, executor: Executor, asked: McpRequest) -> "_ServedPool":
        """The definitions of a pool; made once for each."""
        registry = executor.registry
        if id(registry) in self._pools:
            return self._keep_pool(self._pools[id(registry)])
        owner = f"tenant:{self._find_tenant(asked)}"
        return self._keep_pool(await self._threads.run(owner, self._build_pool, registry))

    def _build_pool(self, registry: ToolRegistry) -> "_ServedPool":
        known = self._pools.get(id(registry))
        if known is not None:  # Somebody asked for it at the same time.
            return known
        definitions = registry.to_mcp_tools()
        tools = [types.Tool.model_validate(dict(definition), by_name=False) for definition in definitions]
        return _ServedPool(registry=registry, definitions=definitions, tools={tool.name: tool for tool in tools})

    def _keep_pool(self, pool: "_ServedPool") -> "_ServedPool":
        pool = self._pools.setdefault(id(pool.registry), pool)
        self._pools.move_to_end(id(pool.registry))
        if len(self._pools) > _MAX_POOLS:
            self._pools.popitem(last=False)
        return pool

    def _input_schema(self, name: str) -> Mapping[str, Any] | None:
        tool = self._keep_pool(self._build_pool(self._executor.registry)).tools.get(name)
        return tool.input_schema if tool is not None else None

    async def _list_tools(
        self, ctx: RequestContext, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        asked = self._build_request(ctx)
        context = await self._build_context(asked)
        if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            self._follow(self._find_tenant(asked), cast("Any", ctx.session)._connection)
        executor = await self._get_executor(asked)
        listed = (await self._load_pool(executor, asked)).tools.items()
        return types.ListToolsResult(tools=[tool for name, tool in listed if not executor.is_denied(name, context)])

    def _follow(self, tenant_id: str | None, connection: Connection) -> None:
        if tenant_id not in self._connections:
            self._connections = {known: others for known, others in self._connections.items() if others}
            self._connections[tenant_id] = WeakSet()
        self._connections[tenant_id].add(connection)

    async def _call_tool(
        self, ctx: RequestContext, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        asked = self._build_request(ctx)
        context = await self._build_context(asked)
        executor = (await self._get_executor(asked)).snapshot()  # A call is answered by the tools it was read with.
        definitions = (await self._load_pool(executor, asked)).definitions
        key = _get_idempotency_key(params)
        request = {"id": _build_call_id(key, 0), "params": {"name": params.name, "arguments": params.arguments or {}}}
        (call,) = wire.calls(request, definitions)
        if key is None and self._find_key is not None:
            key = await self._find_key(asked, executor, call, context)
            call = structs.replace(call, id=_build_call_id(key, 0))
        if params.request_state is not None:
            asked_about = await self._apply_elicitation_response(params, context)
            if key is None and asked_about:  # The call that the person was asked about: the answer is for no other.
                call = structs.replace(call, id=asked_about)
        result = await self._run(ctx, asked, executor, call, context)
        for attempt in range(1, _MAX_ATTEMPTS if key else 0):
            if result.ok or result.origin != "replayed":
                break
            # An attempt before this one failed, and nothing happened: the same key may be tried again.
            call = structs.replace(call, id=_build_call_id(key, attempt))
            result = await self._run(ctx, asked, executor, call, context)
        approval = _find_open_approval(result)
        if approval is not None and approval.by == "customer" and _can_elicit(ctx) and _is_shown_whole(approval):
            if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
                return _build_input_request(approval)
            if await self._elicit(ctx, approval, context):
                again = structs.replace(context, turn=self._next_turn())
                result = await self._run(ctx, asked, executor, call, again)
                approval = _find_open_approval(result)
        return self._build_answer(executor, result, approval, definitions)

    async def _run(
        self, ctx: RequestContext, asked: McpRequest, executor: Executor, call: ToolCall, context: ToolContext[Any]
    ) -> ToolResult:
        async with _forward_progress(ctx, call) as listener:
            with executor.subscribe(context.session_id, listener):
                result = await self._run_call(asked, executor, call, context)
        if result.error is not None and result.error.code == "tool_not_found":
            raise MCPError(types.INVALID_PARAMS, result.error.message)
        return result

    # The client's identity and context.

    def _build_request(self, ctx: RequestContext) -> McpRequest:
        return McpRequest(
            session_id=self._identify_client(ctx),
            client=ctx.session.client_params.client_info.name if ctx.session.client_params else None,
            headers=_get_headers(ctx),
            state={} if ctx.request is None else ctx.request.scope.get("state", {}),
        )

    async def _build_context(self, request: McpRequest) -> ToolContext[Any]:
        self._loop = asyncio.get_running_loop()
        try:
            made = self._make_context(request)
            context = await made if inspect.isawaitable(made) else made
        except ToolError as error:
            raise MCPError(types.INVALID_REQUEST, error.message) from error
        except PermissionError as error:
            raise MCPError(types.INVALID_REQUEST, "This client may not use these tools.") from error
        if not isinstance(context, ToolContext):  # pyright: ignore[reportUnnecessaryIsInstance]
            log.error("context of serve_mcp must return a ToolContext, got %s", type(context).__name__)
            raise MCPError(types.INTERNAL_ERROR, "The server is not configured correctly.")
        return structs.replace(context, turn=self._next_turn())

    async def _get_executor(self, request: McpRequest) -> Executor:
        return self._executor if self._find_executor is None else await self._find_executor(request)

    def _identify_client(self, ctx: RequestContext) -> str:
        """The client behind a request, which is not the request: what it did before is known, and not done twice."""
        request = ctx.request
        if request is None:
            return self._connection_id
        headers = _get_headers(ctx)
        if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS and (session := headers.get("mcp-session-id")):
            return f"mcp-{session}"
        secret = headers.get("authorization", "")
        address = request.client.host if request.client is not None else ""
        known = secret or f"{address} {ctx.session.client_params.client_info.name if ctx.session.client_params else ''}"
        return f"mcp-{hashlib.sha256(known.encode()).hexdigest()[:32]}"

    def _next_turn(self) -> int:
        """Each request is a turn of its own, later than all before it, also than those before a restart."""
        self._turn = max(self._turn + 1, int(time.time() * 1000))
        return self._turn

    # Approvals.

    async def _elicit(self, ctx: RequestContext, approval: Approval, context: ToolContext[Any]) -> bool:
        """Ask the person at the client; whether they have decided."""
        try:
            answer = await ctx.session.elicit_form(_build_question(approval), _NO_FIELDS, ctx.request_id)
        except MCPError as error:
            log.warning("an MCP client could not be asked for an approval: %s", error.message)
            return False
        return await self._decide(approval.token, answer.action, context)

    async def _apply_elicitation_response(
        self, params: types.CallToolRequestParams, context: ToolContext[Any]
    ) -> str | None:
        """Take the answer that came with a call that is made again; returns the id of the call that it is about."""
        answer, token = (params.input_responses or {}).get(_APPROVAL), params.request_state or ""
        if not isinstance(answer, types.ElicitResult) or not await self._decide(token, answer.action, context):
            return None
        asked = await self._executor.approvals.get(token)
        return None if asked is None or asked.tool != params.name else asked.call_id

    async def _decide(
        self, token: str, action: Literal["accept", "decline", "cancel"], context: ToolContext[Any]
    ) -> bool:
        approvals = self._executor.approvals
        asked = await approvals.get(token)
        if action == "cancel" or asked is None or asked.session_id != context.session_id:  # Not one of this client's.
            return False
        decide = approvals.approve if action == "accept" else approvals.deny
        try:
            await decide(token, by="customer", who=context.customer_id or context.session_id)
        except ApprovalError as error:
            log.warning("an approval over MCP was not taken: %s", error.message)
            return False
        return True

    def _build_answer(
        self, executor: Executor, result: ToolResult, approval: Approval | None, definitions: Any
    ) -> types.CallToolResult:
        (rendered,) = wire.results([result], definitions)
        if (blocks := build_resource_blocks(result)) is not None:
            try:
                resources = TypeAdapter(list[types.ContentBlock]).validate_python(blocks, by_name=False)
                rendered["content"][:1] = resources  # The text of the output; media follow it.
            except ValidationError:  # It only looked like a resource: it goes out as the text that it is.
                log.debug("a result of %s is no MCP content", result.tool_name)
        if approval is not None:
            hint = self._approval_hint
            if not callable(hint):
                hint = hint.replace("{token}", approval.token).replace("{by}", approval.by)
            else:
                hint = hint(approval)
            rendered["content"].append(types.TextContent(text=hint))
        if _promises_structure(executor, result.tool_name) and "structuredContent" not in rendered:
            rendered["isError"] = True  # It was cut, or failed: a client would look in vain for what is promised.
        return types.CallToolResult.model_validate(rendered, by_name=False)


def _get_idempotency_key(params: types.CallToolRequestParams) -> str | None:
    """The key under which the client knows this effect: equal for every attempt, so that it happens once."""
    key: object = (params.meta or {}).get(IDEMPOTENCY_META_KEY)
    if key is None:
        return None
    if not isinstance(key, str) or not 1 <= len(key) <= _MAX_KEY_CHARS or not key.isprintable():
        text = f"_meta[{IDEMPOTENCY_META_KEY!r}] must be 1 to {_MAX_KEY_CHARS} printable characters."
        raise MCPError(types.INVALID_PARAMS, text)
    return key


def _build_call_id(key: str | None, attempt: int) -> str:
    """The id of an attempt. No key of a client is the id of another one's attempt: those begin with a number sign."""
    if key is None:
        return uuid4().hex
    return f"#{attempt}:{key}" if attempt or key.startswith("#") else key


def _promises_structure(executor: Executor, name: str) -> bool:
    schema = executor.registry.get(name).output_schema
    return schema is not None and schema.get("type") == "object"


async def _run_plain_call(
    request: McpRequest, executor: Executor, call: ToolCall, context: ToolContext[Any]
) -> ToolResult:
    return await executor.run(call, context)


def _find_no_tenant(request: McpRequest) -> str | None:
    return None


def _make_plain_context(request: McpRequest) -> ToolContext[Any]:
    return ToolContext(session_id=request.session_id)


def _get_headers(ctx: RequestContext) -> dict[str, str]:
    return dict(ctx.request.headers) if ctx.request is not None else {}


def _can_elicit(ctx: RequestContext) -> bool:
    capabilities = ctx.session.client_capabilities
    if capabilities is None or capabilities.elicitation is None:
        return False
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS or ctx.session.can_send_request


def _is_shown_whole(approval: Approval) -> bool:
    """Whether a question has room for all arguments: nobody agrees to what they do not see."""
    return len(_show_arguments(approval)) <= _ARGUMENT_CHARS


def _show_arguments(approval: Approval) -> str:
    return escape_invisible(compact_json(dict(approval.arguments)))


def _build_question(approval: Approval) -> str:
    arguments = _show_arguments(approval)
    why = f" ({approval.question})" if approval.question else ""
    return f"Allow {approval.tool} to run with {arguments}?{why}"


def _build_input_request(approval: Approval) -> types.InputRequiredResult:
    params = types.ElicitRequestFormParams(message=_build_question(approval), requested_schema=_NO_FIELDS)
    return types.InputRequiredResult(
        input_requests={_APPROVAL: types.ElicitRequest(params=params)}, request_state=approval.token
    )


@asynccontextmanager
async def _forward_progress(ctx: RequestContext, call: ToolCall) -> AsyncGenerator[Callable[[Event], None]]:
    """A listener that hands the progress of one call to the client, in order, until the block ends."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[Progress | None] = asyncio.Queue()

    def listen(event: Event) -> None:
        if isinstance(event, Progress) and event.call_id == call.id:
            loop.call_soon_threadsafe(queue.put_nowait, event)  # A handler may run in a thread.

    async def pump() -> None:
        count = 0
        while (event := await queue.get()) is not None:
            count += 1
            if event.fraction is not None:
                await ctx.session.report_progress(event.fraction, 1.0, event.message)
            else:
                await ctx.session.report_progress(float(count), None, event.message)

    task = asyncio.create_task(pump())
    try:
        yield listen
    finally:
        loop.call_soon(queue.put_nowait, None)
        await asyncio.wait([task], timeout=1.0)
        task.cancel()
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            log.debug("the progress of a call could not be sent to an MCP client", exc_info=error)


async def serve(endpoint: McpEndpoint, *, transport: Literal["stdio", "http"], host: str, port: int, path: str) -> None:
    """Serve until the client leaves (stdio), or until the task is cancelled."""
    server = endpoint.server
    if transport == "stdio":
        async with stdio_server() as (received, sending):
            await server.run(received, sending, server.create_initialization_options())
        return
    if transport != "http":  # pyright: ignore[reportUnnecessaryComparison]
        raise ConfigError(f"transport must be 'stdio' or 'http', got {transport!r}.")
    import uvicorn  # noqa: PLC0415  # only this transport needs it

    app = cast(Any, server.streamable_http_app(streamable_http_path=path, host=host))
    await uvicorn.Server(uvicorn.Config(app, host=host, port=port, log_level="warning")).serve()


def _find_open_approval(result: ToolResult) -> Approval | None:
    approval = result.approval
    return approval if approval is not None and approval.state == "pending" else None

"""`build_app`: the gateway, its console and its API as an ASGI app."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from handrail.core.log import log
from handrail.core.values import Approval
from handrail.core.version import __version__
from handrail.errors import ConfigError, StoreError
from handrail.execute.executor import Executor
from handrail.execute.worker import Worker
from handrail.serve.access import Access
from handrail.serve.api import audit_and_erasure, calls, decisions, operations, sessions, tenants, tools
from handrail.serve.api.error_responses import add_error_handlers
from handrail.serve.api.key_scope import Service
from handrail.serve.api.request_limits import ApiGate, ApiLimits
from handrail.serve.api.turns import Conversations, ServedAgent
from handrail.serve.audit_feed import AuditFeed
from handrail.serve.chat_pages import ChatPages
from handrail.serve.console import Console
from handrail.serve.mcp_calls import AsgiScope, AsgiSend, GatewayCalls, McpGate
from handrail.serve.tenant_pools import TenantPools, TenantUnusableError
from handrail.serve.tenant_retention import Retention
from handrail.serve.tool_pages import ToolPages
from handrail.sources.mcp.endpoint import McpRequest
from handrail.sources.mcp.server_options import import_with_sdk
from handrail.sources.pins import PinDifference
from handrail.store import SqlStore
from handrail.tenants.directory import Tenants
from handrail.tenants.tool_builder import ToolBuilder
from handrail.tenants.trust import TenantTrust

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from handrail.phone.gateway import PhoneGateway

_HEADERS: Final = (
    (b"content-security-policy", b"default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
)


def build_app(
    executor: Executor,
    *,
    store: SqlStore,
    approval_wait: float = 25.0,
    deps: Any = None,
    url: str = "",
    title: str = "Handrail",
    notices: Callable[[], list[str]] | None = None,
    held_tools: Callable[[], Mapping[str, PinDifference]] | None = None,
    tenants: Tenants | None = None,
    tools: ToolBuilder | None = None,
    trust: TenantTrust | None = None,
    phone: "PhoneGateway | None" = None,
    registry: "CollectorRegistry | None" = None,
    api_limits: ApiLimits | None = None,
    worker: bool = False,
    agent: ServedAgent | None = None,
) -> Starlette:
    """The tools of an executor for MCP clients at `/mcp`, the HTTP API at `/v1`, and the console at `/`; `store` is the
    executor's own.

    Every client and every person needs a key (`handrail keys create`). The app needs its lifespan to be run; the
    executor and the store stay yours to close.

    Args:
        executor: Runs the calls.
        store: The executor's own store.
        approval_wait: Seconds, 0 to 55, for which a call is held that an operator has to approve; then its result says
            that it waits.
        deps: `context.deps` of every call.
        url: Where people reach the console: results name it.
        title: The name on the pages.
        notices: Returns what is shown on every page, of each the first line, and the others on request.
        held_tools: Returns the tools whose definition somebody has to accept first, by name; their pages show what
            differs.
        tenants: The configurations of tenants, such as `store.tenants`: a call with a tenant's key has the tools of the
            executor and those that `tools` builds from its configuration, under the rules of both.
        tools: Builds the tools of a tenant.
        trust: What the configuration of a tenant may refer to.
        phone: Takes the webhooks of phone calls at `/v1/phone/webhook`.
        registry: Has the metrics for `/v1/metrics`.
        api_limits: How much one key may use of the HTTP API.
        worker: Runs the durable calls of the store in this process, while the app does.
        agent: Whose conversations are served, at `/v1/sessions` and on the page Sessions: a `ChatAgent`, or an `Agent`
            with this executor.
    """
    if executor.approvals is not store.approvals:
        raise ConfigError("store must be the store of the executor: Executor(…, store=store).")
    access = Access(store)
    feed = AuditFeed(store)
    pools = None
    if tenants is not None:
        pools = TenantPools(executor, tenants, builder=tools or ToolBuilder(), trust=trust or TenantTrust())
    calls = GatewayCalls(store, approval_wait=approval_wait, deps=deps, tenants=pools)
    limits = api_limits or ApiLimits()
    conversations = None if agent is None else Conversations(agent, executor, store, limits=limits)
    service = Service(
        executor=executor,
        store=store,
        access=access,
        deps=deps,
        tenants=pools,
        phone=phone,
        registry=registry,
        conversations=conversations,
    )
    api = build_api(service, limits=limits, title=title)
    where = f"at {url.rstrip('/')}/decide/{{token}}" if url else "on the Decide page, or with `handrail approvals`"
    console = Console(service, feed=feed, notices=notices or list, title=title)
    mcp = build_mcp_endpoint(executor, calls, decide_where=where)
    if pools is not None:
        pools.on_change = mcp.notify_tenant
    # No check of the host: a page of another site has no key to send.
    endpoint = mcp.server.streamable_http_app(streamable_http_path="/mcp", host="0.0.0.0")
    sessions = import_with_sdk("handrail.serve.mcp_sessions").McpSessions(endpoint)

    def list_watched_tenants() -> set[str | None]:
        return mcp.tenants if conversations is None else mcp.tenants | conversations.tenants

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        await executor.open()
        deleting = None if tenants is None else asyncio.create_task(Retention(store, tenants).run())
        watching = None if pools is None else asyncio.create_task(pools.watch(list_watched_tenants))
        working = (
            None
            if not worker
            else Worker(executor, context=service.make_worker_context, find_executor=service.get_executor)
        )
        running = None if working is None else asyncio.create_task(working.run(), name="handrail:worker")
        try:
            async with endpoint.router.lifespan_context(endpoint):
                yield
        finally:
            if conversations is not None:
                await conversations.aclose()
            if working is not None and running is not None:
                await working.drain()
                await asyncio.gather(running, return_exceptions=True)
            for task in (deleting, watching):
                if task is not None:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
            await feed.aclose()
            if pools is not None:
                await pools.aclose()

    static = StaticFiles(packages=[("handrail.serve", "static")])
    return Starlette(
        routes=[
            Route("/mcp", _AtRoot(McpGate(sessions, access))),
            Mount("/static", static),
            *console.build_routes(),
            *ToolPages(console, service, held_tools=held_tools or dict).build_routes(),
            *ChatPages(console, service, conversations).build_routes(),
        ],
        middleware=[Middleware(_SecurityHeaders), Middleware(_ApiMount, api=api)],
        exception_handlers={StoreError: _show_store_error},
        lifespan=lifespan,
    )


def build_mcp_endpoint(executor: Executor, calls: GatewayCalls, *, decide_where: str) -> Any:
    """The MCP server of a gateway, for any transport; `decide_where` has `{token}` where the question's token goes."""

    def describe(approval: Approval) -> str:
        return describe_wait(approval, where=decide_where.replace("{token}", approval.token))

    async def find_executor(request: McpRequest) -> Executor:
        return await calls.find_executor(request, executor)

    return import_with_sdk("handrail.sources.mcp.served_executor").McpEndpoint(
        executor,
        context=calls.make_context,
        name="handrail-gateway",
        approval_hint=describe,
        find_key=calls.find_key,
        run_call=calls.run_call,
        find_executor=find_executor,
        find_tenant=calls.find_tenant,
    )


def describe_wait(approval: Approval, *, where: str) -> str:
    """What a client is told when somebody has to agree: for whom it waits, and how to go on."""
    if approval.by == "customer":
        return (
            "It needs the consent of the person at this client, who cannot be asked here: the client does not support "
            "elicitation, or the arguments are too long for a question. Nothing was done."
        )
    return (
        f"It waits for an operator, who decides {where}. Nothing was done yet. To go on, call the tool again with "
        "exactly the same arguments: once it is approved it runs, once; until somebody has decided, it says this again."
    )


class _AtRoot:
    """Calls an app as if nothing was mounted: the MCP endpoint knows its own path only."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: AsgiScope, receive: Any, send: AsgiSend) -> None:
        await self._app({**scope, "path": "/mcp", "raw_path": b"/mcp", "root_path": ""}, receive, send)


class _ApiMount:
    """Hands what is below `/v1` to the API, whatever characters the rest of the path has."""

    def __init__(self, app: Any, api: Any) -> None:
        self._app = app
        self._api = api

    async def __call__(self, scope: AsgiScope, receive: Any, send: AsgiSend) -> None:
        root = scope.get("root_path", "")
        if scope["type"] == "http" and f"{scope['path'].removeprefix(root)}/".startswith("/v1/"):
            await self._api({**scope, "root_path": f"{root}/v1"}, receive, send)
        else:
            await self._app(scope, receive, send)


class _SecurityHeaders:
    """Adds the headers that keep a browser from loading or running anything that is not ours."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: AsgiScope, receive: Any, send: AsgiSend) -> None:
        async def add_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", ()), *_HEADERS]
                if not scope["path"].startswith("/static/") and not any(
                    name == b"cache-control" for name, _ in headers
                ):
                    headers.append((b"cache-control", b"no-store"))
                message = {**message, "headers": headers}
            await send(message)

        await self._app(scope, receive, add_headers if scope["type"] == "http" else send)


async def _show_store_error(request: Request, error: Exception) -> Response:
    log.error("a page could not be shown", exc_info=error)
    if isinstance(error, TenantUnusableError):
        return PlainTextResponse(error.message, status_code=503)
    text = "The database does not answer. Whether your last action was recorded is not known: reload the page and look."
    return PlainTextResponse(text, status_code=503, headers={"Retry-After": "5"})


_NO_KEY = ("/health", "/ready", "/phone/webhook")


def build_api(service: Service, *, limits: ApiLimits, title: str) -> ApiGate:
    """The API of a service, to mount; its paths are below the mount."""
    api = FastAPI(
        title=f"{title}: tools over HTTP",
        version=__version__,
        docs_url=None,  # They load scripts from another host.
        redoc_url=None,
        redirect_slashes=False,
    )
    api.state.service = service
    add_error_handlers(api)
    for module in (calls, decisions, audit_and_erasure, tenants, tools):
        api.include_router(module.build_router())
    api.include_router(operations.build_router(service))
    if service.conversations is not None:
        api.include_router(sessions.build_router(service, service.conversations, json_timeout=limits.request_timeout))

    def describe() -> dict[str, Any]:
        if api.openapi_schema is None:
            api.openapi_schema = _describe_api(api)
        return api.openapi_schema

    api.openapi = describe
    return ApiGate(api, service.access, limits)


def _describe_api(api: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, with the bodies that are read by hand, and the key that every other route needs."""
    document = get_openapi(title=api.title, version=api.version, routes=api.routes)
    parts = document.setdefault("components", {})
    parts.setdefault("schemas", {})["Call"] = calls.CallBody.model_json_schema()
    parts["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer", "bearerFormat": "hrk_…"}}
    for path, methods in document["paths"].items():
        for operation in methods.values():
            if path not in _NO_KEY:
                operation["security"] = [{"key": []}]
    return document

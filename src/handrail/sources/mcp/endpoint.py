"""`serve_mcp` and `mcp_app`: an executor for any MCP client."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

from msgspec import Struct

from handrail.core.context import ToolContext
from handrail.core.values import ToolCall, ToolResult
from handrail.execute.executor import Executor
from handrail.sources.mcp.server_options import import_with_sdk


class McpRequest(Struct, frozen=True, kw_only=True):
    """Who asks: what a context is made from."""

    session_id: str
    """The client's identity: its connection, its MCP session, or, where the protocol has none, its credentials or its
    address. It stays the same from request to request."""
    client: str | None = None
    """What the client calls itself; nothing proves it."""
    headers: Mapping[str, str] = {}
    """Of the HTTP request, in lower case; none over stdio."""
    state: Mapping[str, Any] = {}
    """What an ASGI app in front of the endpoint put into the `state` of the request's scope."""


FindCallKey = Callable[[McpRequest, Executor, ToolCall, ToolContext[Any]], Awaitable[str | None]]
"""The idempotency key of a call whose client sent none; None if every such call is a call of its own."""
RunMcpCall = Callable[[McpRequest, Executor, ToolCall, ToolContext[Any]], Awaitable[ToolResult]]
FindExecutor = Callable[[McpRequest], Awaitable[Executor]]
"""The executor for a client, where not all have the same tools and rules."""
FindTenant = Callable[[McpRequest], str | None]
"""Whose tools a client has, where not all have the same: its tenant, or None."""
MakeMcpContext = Callable[[McpRequest], ToolContext[Any] | Awaitable[ToolContext[Any]]]


async def serve_mcp(
    executor: Executor,
    *,
    transport: Literal["stdio", "http"] = "stdio",
    context: MakeMcpContext | None = None,
    name: str = "handrail",
    instructions: str | None = None,
    approval_hint: str | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    path: str = "/mcp",
) -> None:
    """Serve the tools of an executor over MCP, under its policy, its ledger and its events.

    Where somebody has to agree to a call, a client that can is asked (elicitation); otherwise the answer says so.

    Args:
        executor: Runs the calls.
        transport: `stdio` for a client that starts this program, or `http`.
        context: Makes the context of a call from an `McpRequest`, which holds the client's identity; it may be async,
            and raises `PermissionError` to refuse the client.
        name: What the server is called.
        instructions: What clients tell their model about the server.
        approval_hint: How somebody can agree to a call that waits, with `{token}` and `{by}`.
        host: The address to listen at, for `http`.
        port: The port to listen at.
        path: The path of the endpoint.
    """
    serve = import_with_sdk("handrail.sources.mcp.served_executor")
    endpoint = serve.McpEndpoint(
        executor, context=context, name=name, instructions=instructions, approval_hint=approval_hint
    )
    await serve.serve(endpoint, transport=transport, host=host, port=port, path=path)


def mcp_app(
    executor: Executor,
    *,
    context: MakeMcpContext | None = None,
    name: str = "handrail",
    instructions: str | None = None,
    approval_hint: str | None = None,
    host: str = "127.0.0.1",
    path: str = "/mcp",
) -> Any:
    """The same as an ASGI app, for a server of your own; it needs its lifespan to be run.

    Args:
        executor: Runs the calls.
        context: As of `serve_mcp`.
        name: What the server is called.
        instructions: What clients tell their model about the server.
        approval_hint: As of `serve_mcp`.
        host: Where it will be reached: on this machine only, requests from foreign web pages are refused.
        path: The path of the endpoint.
    """
    serve = import_with_sdk("handrail.sources.mcp.served_executor")
    endpoint = serve.McpEndpoint(
        executor, context=context, name=name, instructions=instructions, approval_hint=approval_hint
    )
    return endpoint.server.streamable_http_app(streamable_http_path=path, host=host)

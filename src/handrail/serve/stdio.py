"""A gateway over standard input and output, in front of one MCP server that it starts: for a desktop client."""

import getpass
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from handrail.errors import ConfigError
from handrail.serve.app import build_mcp_endpoint
from handrail.serve.gateway import open_configured_gateway
from handrail.serve.gateway_config import GatewayConfig, McpSource
from handrail.serve.mcp_calls import GatewayCalls
from handrail.sources.mcp.server_options import import_with_sdk


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
    """Serve the tools of one server until the client leaves."""
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

"""The tools that a tenant has elsewhere: its MCP servers and OpenAPI documents."""

from handrail.authorize.secrets import Secrets
from handrail.core.log import log
from handrail.errors import ConfigError
from handrail.sources.connection import Sources
from handrail.sources.mcp_server import McpServer
from handrail.sources.openapi import OpenApi
from handrail.sources.source import Source
from handrail.tenants.config import TenantConfig


def list_sources(cfg: TenantConfig) -> list[Source]:
    """The sources that a tenant configures; `ConfigError` for one that cannot be."""
    servers: list[Source] = [
        McpServer(
            one.name,
            url=one.url,
            command=list(one.command) or None,
            bearer=one.bearer,
            include=one.include,
            connect_timeout=one.connect_timeout,
        )
        for one in cfg.mcp_servers
    ]
    documents: list[Source] = [
        OpenApi(one.url or one.path or "", name=one.name, base_url=one.base_url, bearer=one.bearer, include=one.include)
        for one in cfg.openapi
    ]
    return [*servers, *documents]


async def open_sources(cfg: TenantConfig) -> Sources | None:
    """Open a tenant's sources; None if it has none. One that cannot be opened costs its own tools only."""
    if not cfg.mcp_servers and not cfg.openapi:
        return None
    opened = Sources()
    for source in list_sources(cfg):
        try:
            await opened.open(source, Secrets(cfg.secrets))
        except ConfigError as error:
            log.error("the source %s of the tenant %s is not configured: %s", source.name, cfg.tenant_id, error.message)
    return opened

"""The tools that a tenant has elsewhere: its MCP servers and OpenAPI documents."""

import asyncio

from handrail.core.log import log
from handrail.core.secrets import Secrets
from handrail.errors import ConfigError
from handrail.sources.connection import Sources
from handrail.sources.source import Source
from handrail.tenants.config import TenantConfig


async def open_sources(cfg: TenantConfig) -> Sources | None:
    """Open a tenant's sources at once; None if it has none. One that cannot be opened costs its own tools only."""
    if not cfg.mcp_servers and not cfg.openapi:
        return None
    secrets, opened = Secrets(cfg.secrets), Sources()

    async def open_one(source: Source) -> None:
        try:
            await opened.open(source, secrets)
        except ConfigError as error:
            log.error("the source %s of the tenant %s cannot be used: %s", source.name, cfg.tenant_id, error.message)
            opened.mark_failed(source.name, error.message)

    try:
        await asyncio.gather(*(open_one(config.to_source(secrets)) for config in (*cfg.mcp_servers, *cfg.openapi)))
    except BaseException:  # Cancelled: nobody would close what is open.
        await opened.aclose()
        raise
    return opened

"""The tools that a tenant has elsewhere: its MCP servers and OpenAPI documents."""

import asyncio

from handrail.core.log import log
from handrail.core.secrets import Secrets
from handrail.errors import ConfigError
from handrail.sources.source import OWNER, Sources
from handrail.tenants.config import TenantConfig
from handrail.tenants.tool_source_config import McpServerConfig, OpenApiConfig
from handrail.tenants.trust import TenantTrust


async def open_sources(cfg: TenantConfig, trust: TenantTrust) -> Sources | None:
    """Open a tenant's sources at once; None if it has none. One that cannot be opened costs its own tools only."""
    if not cfg.mcp_servers and not cfg.openapi:
        return None
    secrets, opened = Secrets(trust.select_secrets(cfg)), Sources()
    owner = OWNER.set(f"tenant:{cfg.tenant_id}")

    async def open_one(config: McpServerConfig | OpenApiConfig) -> None:
        try:
            if problem := trust.find_problem(cfg, config):
                raise ConfigError(problem)
            await opened.open(config.to_source(secrets, private_networks=trust.private_networks), secrets)
        except ConfigError as error:
            log.error("the source %s of the tenant %s cannot be used: %s", config.name, cfg.tenant_id, error.message)
            opened.mark_failed(config.name, error.message)

    try:
        await asyncio.gather(*map(open_one, (*cfg.mcp_servers, *cfg.openapi)))
    except BaseException:  # Cancelled: nobody would close what is open.
        await opened.aclose()
        raise
    finally:
        OWNER.reset(owner)
    return opened

"""What a tenant's configuration may reach on the host: it is a customer's data, and less than code."""

import posixpath
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from msgspec import Struct

from handrail.core.lazy_loading import LazyModule
from handrail.tenants.config import TenantConfig
from handrail.tenants.tool_source_config import McpServerConfig, OpenApiConfig

if TYPE_CHECKING:
    from handrail.sources.mcp import server_options
else:
    # Loaded with the first tenant that has an MCP server: 1.3 ms.
    server_options = LazyModule("handrail.sources.mcp.server_options")


class TenantTrust(Struct, frozen=True, kw_only=True):
    """What tenants may refer to beside their own text: nothing, unless it is listed here.

    In patterns `*` stands for any text, `{tenant}` for the id of the tenant, and `{TENANT}` for the id in capitals with
    `_` for all that the name of a variable cannot have.
    """

    secrets: tuple[str, ...] | list[str] = ()
    """Patterns of references, such as `env:{TENANT}_*` or `file:/run/secrets/{tenant}/*`."""
    commands: tuple[str, ...] | list[str] = ()
    """Commands of MCP servers, word by word; a last word `*` allows further ones: `uvx crm-server *`."""
    environment: tuple[str, ...] | list[str] = ()
    """Patterns of the environment variables that tenants may set for such a command."""
    documents: tuple[str, ...] | list[str] = ()
    """Patterns of the paths of OpenAPI documents."""
    private_networks: bool = False
    """Whether a tenant may set `allow_private` and name MCP servers in a private network, which only the host should
    reach."""

    def find_problems(self, cfg: TenantConfig) -> dict[str, str]:
        """What a tenant refers to and must not, by its place in the configuration."""
        found = dict(self._find_secrets(cfg))
        for kind, sources in (("mcp_servers", cfg.mcp_servers), ("openapi", cfg.openapi)):
            for number, source in enumerate(sources):
                if problem := self.find_problem(cfg, source):
                    found[f"{kind}.{number}"] = problem
        return found

    def find_problem(self, cfg: TenantConfig, source: McpServerConfig | OpenApiConfig) -> str:
        """Why a source of a tenant must not be opened; empty if it may."""
        return next(self._check_source(cfg.tenant_id, source), "")

    def select_secrets(self, cfg: TenantConfig) -> dict[str, str]:
        """The references of a tenant that may be resolved."""
        refused = {place for place, _ in self._find_secrets(cfg)}
        return {name: reference for name, reference in cfg.secrets.items() if f"secrets.{name}" not in refused}

    def _find_secrets(self, cfg: TenantConfig) -> Iterator[tuple[str, str]]:
        for name, reference in cfg.secrets.items():
            if not self._allows(cfg.tenant_id, reference):
                yield f"secrets.{name}", self._refuse_reference(reference)

    def _check_source(self, tenant_id: str, source: McpServerConfig | OpenApiConfig) -> Iterator[str]:
        for field, value in _list_references(source).items():
            if value.startswith(("env:", "file:")) and not self._allows(tenant_id, value):
                yield f"{field}: {self._refuse_reference(value)}"
        if isinstance(source, McpServerConfig):
            if source.command and not any(_is_command(source.command, allowed) for allowed in self.commands):
                yield f"command must be one that the host allows ({_list(self.commands)}), got {source.command[0]!r}"
            for name in source.env:
                if not _matches(name, self.environment, tenant_id):
                    yield f"env.{name}: the host allows {_list(self.environment)}"
            if (
                source.url is not None
                and not self.private_networks
                and server_options.is_private_host(urlsplit(source.url).hostname or "")
            ):
                yield "url must not be in a private network: the host does not allow that"
            return
        if source.path is not None and not _matches(posixpath.normpath(source.path), self.documents, tenant_id):
            yield f"path must be one that the host allows ({_list(self.documents)}), got {source.path!r}"
        if source.allow_private and not self.private_networks:
            yield "allow_private must be false: the host does not allow private networks"

    def _allows(self, tenant_id: str, reference: str) -> bool:
        kind, _, place = reference.partition(":")
        # Whoever may read one directory must not leave it with "..".
        exact = f"file:{posixpath.normpath(place)}" if kind == "file" else reference
        return _matches(exact, self.secrets, tenant_id)

    def _refuse_reference(self, reference: str) -> str:
        return f"must be a reference that the host allows ({_list(self.secrets)}), got {reference!r}"


def _list_references(source: McpServerConfig | OpenApiConfig) -> dict[str, str]:
    """Every value of a source that may be a reference to a secret."""
    if isinstance(source, McpServerConfig):
        found: dict[str, str | None] = {"bearer": source.bearer, **_prefix("headers", source.headers)}
        found |= _prefix("env", source.env)
    else:
        found = {"bearer": source.bearer, "basic": source.basic}
        keys = source.api_key
        found |= {"api_key": keys} if keys is None or isinstance(keys, str) else _prefix("api_key", keys)
    return {field: value for field, value in found.items() if value is not None}


def _prefix(field: str, values: Mapping[str, str]) -> dict[str, str]:
    return {f"{field}.{name}": value for name, value in values.items()}


def _matches(text: str, patterns: Iterable[str], tenant_id: str) -> bool:
    # What a tenant is called must not be a pattern: `[` and `?` are no letters of an id, and `*` is none either.
    names = {"{tenant}": tenant_id, "{TENANT}": re.sub(r"[^A-Z0-9]", "_", tenant_id.upper())}
    for pattern in patterns:
        for placeholder, name in names.items():
            pattern = pattern.replace(placeholder, name)
        if fnmatchcase(text, pattern):
            return True
    return False


def _is_command(command: tuple[str, ...], allowed: str) -> bool:
    words = tuple(shlex.split(allowed))
    if words[-1:] == ("*",):
        return command[: len(words) - 1] == words[:-1]
    return command == words


def _list(patterns: Iterable[str]) -> str:
    return ", ".join(patterns) or "none"

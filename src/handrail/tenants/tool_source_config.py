"""The MCP servers and OpenAPI documents that a tenant's configuration names, with references to credentials."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Final, TypeVar, overload

from pydantic import Field, model_validator

# Named as attributes, so that the sources are loaded with the first tenant that has one.
import handrail.sources
from handrail.core.context import ToolContext
from handrail.core.secrets import Reference, resolve_reference
from handrail.errors import ConfigError
from handrail.tenants.section import Id, Section

_MAX_OPERATIONS: Final = 1_000
"""That a tenant's document may add, as many as the tools of an MCP server: each takes its time to compile."""
_MAX_DOCUMENT_BYTES: Final = 16 * 1024 * 1024
"""Of a tenant's document: while it is parsed, everybody else has less of the processor."""


class McpServerConfig(Section):
    """An MCP server whose tools the agent may use; see `handrail.sources.McpServer`."""

    name: Id
    url: str | None = None
    command: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict, repr=False)
    """Environment variables of the command; a value may be a reference, as in `bearer`."""
    bearer: str | None = Field(default=None, repr=False)
    """A reference: `secret:name` for one of the tenant's secrets, `env:NAME` or `file:/path`."""
    headers: dict[str, str] = Field(default_factory=dict, repr=False)
    """HTTP headers; a value may be a reference, as in `bearer`."""
    trusted: bool = False
    """Whether what the server says of its tools counts; otherwise each may change something, and needs an approval."""
    include: tuple[str, ...] | None = None
    """Only these tools, by names or globs."""
    exclude: tuple[str, ...] = ()
    connect_timeout: Annotated[float, Field(gt=0, le=30)] = 5.0
    """Seconds that the server has to answer while a call rings; without it the call is taken without its tools."""

    @model_validator(mode="after")
    def _check(self) -> "McpServerConfig":
        if (self.url is None) == (not self.command):
            raise ValueError("must have either url or command")
        return _check_source(self)

    def to_source(self, secrets: Mapping[str, str], *, private_networks: bool = False) -> "handrail.sources.McpServer":
        """The server, with the tenant's secrets in its headers."""

        def resolve_headers(_: ToolContext[Any] | None) -> dict[str, str]:
            return {name: _resolve(value, name=name, secrets=secrets) for name, value in self.headers.items()}

        return handrail.sources.McpServer(
            self.name,
            url=self.url,
            command=list(self.command) or None,
            env=self.env,
            bearer=_bind_secret(self.bearer, secrets),
            headers=resolve_headers if self.headers else {},
            trusted=self.trusted,
            allow_private=private_networks,
            include=self.include,
            exclude=self.exclude,
            connect_timeout=self.connect_timeout,
        )


class OpenApiConfig(Section):
    """An OpenAPI document whose operations the agent may use; see `handrail.sources.OpenApi`."""

    name: Id
    url: str | None = None
    path: str | None = None
    base_url: str | None = None
    bearer: str | None = Field(default=None, repr=False)
    """A reference: `secret:name` for one of the tenant's secrets, `env:NAME` or `file:/path`."""
    basic: str | None = Field(default=None, repr=False)
    """A reference to `user:password`."""
    api_key: str | dict[str, str] | None = Field(default=None, repr=False)
    """A reference, or one for each security scheme of the document."""
    include: tuple[str, ...] | None = None
    exclude: tuple[str, ...] | None = None
    allow_private: bool = False
    """Whether the API may be in a private network."""

    @model_validator(mode="after")
    def _check(self) -> "OpenApiConfig":
        if (self.url is None) == (self.path is None):
            raise ValueError("must have either url or path")
        if self.url is not None and not self.url.lower().startswith(("http://", "https://")):
            raise ValueError("url must be an http or https URL; a file is named by path")
        return _check_source(self)

    def to_source(self, secrets: Mapping[str, str], *, private_networks: bool = False) -> "handrail.sources.OpenApi":
        """The document; its credentials are fetched for each request, from the tenant's secrets."""
        keys = self.api_key
        return handrail.sources.OpenApi(
            self.url or self.path or "",
            name=self.name,
            base_url=self.base_url,
            bearer=_bind_secret(self.bearer, secrets),
            basic=_bind_secret(self.basic, secrets),
            api_key={name: _bind_secret(key, secrets) for name, key in keys.items()}
            if isinstance(keys, dict)
            else _bind_secret(keys, secrets),
            include=self.include,
            exclude=self.exclude,
            allow_private=self.allow_private and private_networks,
            max_document_bytes=_MAX_DOCUMENT_BYTES,
            max_tools=_MAX_OPERATIONS,
        )


SourceT = TypeVar("SourceT", McpServerConfig, OpenApiConfig)


def _check_source(config: SourceT) -> SourceT:
    try:
        config.to_source({})
    except ConfigError as error:
        raise ValueError(error.message) from error
    return config


@overload
def _bind_secret(reference: str, secrets: Mapping[str, str]) -> Reference: ...
@overload
def _bind_secret(reference: str | None, secrets: Mapping[str, str]) -> Reference | None: ...
def _bind_secret(reference: str | None, secrets: Mapping[str, str]) -> Reference | None:
    """A reference that finds the tenant's own secrets only: those of a call may be the host's."""
    if reference is None or not reference.startswith("secret:"):
        return reference
    return partial(resolve_reference, reference, name=reference, secrets=secrets)


def _resolve(value: str, *, name: str, secrets: Mapping[str, str]) -> str:
    if not value.startswith(("secret:", "env:", "file:")):
        return value
    return resolve_reference(value, name=f"the header {name}", secrets=secrets)

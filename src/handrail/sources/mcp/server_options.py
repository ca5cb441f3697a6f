"""`McpServer`: where an MCP server is, and how far it is trusted."""

import ipaddress
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import SplitResult, urlsplit

from handrail.core.context import ToolContext
from handrail.core.secrets import Reference, check_reference
from handrail.errors import ConfigError, MissingExtraError
from handrail.sources.mcp.elicitation import OnElicitation

if TYPE_CHECKING:
    from handrail.sources.source import OpenSource

McpHeaders = Mapping[str, str] | Callable[[ToolContext[Any] | None], Mapping[str, str]]
"""HTTP headers, or a function of a call's context; it gets None where there is no call, to list the tools."""

IDEMPOTENCY_META_KEY: Final = "handrail/idempotencyKey"
"""Where the `_meta` of a `tools/call` has the idempotency key of a consequential call."""

_NAME: Final = re.compile(r"[A-Za-z0-9]+(?:[_.-][A-Za-z0-9]+)*")


@dataclass(frozen=True, kw_only=True)
class McpServer:
    """An MCP server: a command that is started and spoken to over stdio, or the URL of one that speaks HTTP.

    Its tools are named `server__tool`. What it says of them (`readOnlyHint` and the like) counts only if it is
    `trusted`; otherwise every tool is taken for one that may change something.
    """

    name: str = field(kw_only=False)
    """What the server is called here; the names of its tools begin with it."""
    command: Sequence[str] | None = None
    """The program and its arguments; no shell is involved."""
    url: str | None = None
    """The address of a server that speaks HTTP."""
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Environment variables of the command; a value may be a reference (`env:`, `file:`, `secret:`). Of this process's
    own environment it gets only PATH, HOME and the like."""
    cwd: str | Path | None = None
    """The working directory of the command."""
    bearer: Reference | None = field(default=None, repr=False)
    """The bearer token, as a reference: `env:NAME`, `file:/path`, `secret:name` or a function."""
    headers: McpHeaders = field(default_factory=dict[str, str], repr=False)
    """HTTP headers, or a function of a call's context that returns them."""
    auth: Any = field(default=None, repr=False)
    """An `httpx2.Auth`, such as one of the SDK's OAuth providers (`mcp.client.auth.OAuthClientProvider`)."""
    on_elicitation: OnElicitation | None = field(default=None, repr=False)
    """Answers what the server asks a person in the middle of a call; it may be async. Without it, the server is told
    that nobody can be asked."""
    protocol: str = "auto"
    """`auto` finds out which revision the server speaks; `legacy` is for one that takes offence at being asked."""
    trusted: bool = False
    """Whether what it says about its tools counts (`readOnlyHint` and the like)."""
    errors: Literal["nothing_happened", "unknown"] = "nothing_happened"
    """What it means that a consequential call ends with an error that the server reports: that nothing happened, so
    that it may be tried again; or that nobody knows, for a server whose tools can fail after they took effect."""
    allow_private: bool = True
    """Whether the host of `url` may be this machine or in a private network. With `False` the addresses that the name
    leads to are checked whenever it is connected to."""
    include: Sequence[str] | None = None
    """Only these of its tools, by the server's own names or globs."""
    exclude: Sequence[str] = ()
    """None of these."""
    pins: str | Path | None = None
    """The file with the accepted definitions; what differs from it is held (`handrail mcp pin`)."""
    timeout: float | None = None
    """Seconds that a call may take; the executor's own limit if unset."""
    connect_timeout: float = 30.0
    """Seconds that the server has to answer when it is connected, and to list its tools."""
    max_message_bytes: int = 16_000_000
    """What one answer of the server may have; a longer one is dropped."""
    max_tools: int = 1_000
    """How many tools are taken; further ones are skipped."""
    max_definition_bytes: int = 200_000
    """What the definition of one tool may have; one with more is skipped."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or len(self.name) > 32:
            raise ConfigError(
                f"name must be 1 to 32 of A-Z a-z 0-9 with single '_', '-' or '.' between them, got {self.name!r}."
            )
        if (self.command is None) == (self.url is None):
            raise ConfigError(f"The MCP server {self.name!r} needs either command=[…] or url=…, and not both.")
        if isinstance(self.command, str) or (self.command is not None and not self.command):
            raise ConfigError(f"command must be a list such as ['npx', 'server'], got {self.command!r}.")
        if self.url is not None:
            parts = _split_url(self.url)
            if parts.username or parts.password:
                raise ConfigError("url must not hold a name or password; use bearer= or headers=.")
            has_credentials = self.bearer is not None or bool(self.headers) or self.auth is not None
            if parts.scheme == "http" and has_credentials and not is_private_host(parts.hostname or ""):
                raise ConfigError(
                    f"url must be https where credentials are sent: http://{parts.hostname} is public, and anybody on "
                    "the way could read bearer, headers or auth."
                )
        elif self.bearer is not None or self.headers or self.auth is not None:
            raise ConfigError(f"bearer, headers and auth are for a server with url=…; give {self.name!r} env=….")
        if self.bearer is not None:
            check_reference(self.bearer, name=f"bearer of the MCP server {self.name!r}")
        if self.on_elicitation is not None and not callable(self.on_elicitation):
            raise ConfigError(f"on_elicitation must be a function, got {type(self.on_elicitation).__name__}.")
        for limit in ("connect_timeout", "max_message_bytes", "max_tools", "max_definition_bytes"):
            if not getattr(self, limit) > 0:
                raise ConfigError(f"{limit} must be more than 0, got {getattr(self, limit)!r}.")
        if self.errors not in ("nothing_happened", "unknown"):
            raise ConfigError(f"errors must be 'nothing_happened' or 'unknown', got {self.errors!r}.")
        if self.timeout is not None and not self.timeout > 0:
            raise ConfigError(f"timeout must be more than 0, got {self.timeout!r}.")

    async def open(self, *, on_change: Callable[[], None], secrets: Mapping[str, str]) -> "OpenSource":
        """Connect; a server that does not answer is tried again in the background."""
        client = import_with_sdk("handrail.sources.mcp.client")
        opened = client.OpenMcpServer(self, on_change=on_change, secrets=secrets)
        await opened.start()
        return opened


def _split_url(url: str) -> SplitResult:
    if not url.isprintable() or " " in url:  # `urlsplit` would leave some of them out.
        raise ConfigError("url must not have spaces or control characters.")
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise ConfigError(f"url is not valid: {error}.") from error
    if parts.scheme not in ("http", "https"):
        raise ConfigError(f"url must be an http or https URL, got one with scheme {parts.scheme!r}.")
    if not parts.hostname:
        raise ConfigError("url must have a host, as in https://crm.example/mcp.")
    return parts


def is_private_host(host: str) -> bool:
    """Whether a host is this machine or one of a private network, by its address or its name."""
    name = host.rstrip(".").lower()
    try:
        return not ipaddress.ip_address(name).is_global
    except ValueError:
        with suppress(OSError, ValueError):  # A resolver takes `127.1` and `0x7f.1` for addresses, too.
            return not ipaddress.ip_address(socket.inet_aton(name)).is_global
        return "." not in name or name.endswith((".localhost", ".local", ".internal", ".lan", ".home.arpa"))


def import_with_sdk(module: str) -> Any:
    """A module that needs the SDK, or `MissingExtraError`."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("handrail"):
            raise
        raise MissingExtraError("mcp", extra="mcp") from error

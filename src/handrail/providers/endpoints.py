"""Connecting to a provider: its key, its address, and one SDK client per event loop."""

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct

from handrail.errors import ConfigError, ProviderKeyError

NO_KEY: Final = "none"
"""The key for a server that needs none; the SDKs require one."""


class ProviderInfo(Struct, frozen=True, kw_only=True):
    """A provider's own address, and the environment variables that configure it."""

    title: str
    """Its name in messages."""
    label: str
    """Its name in code."""
    key_variables: tuple[str, ...]
    """The environment variables that may hold its key; errors name the first one."""
    base_url_variable: str
    """The environment variable that may hold another base URL."""
    domain: str
    """The domain of its own servers."""


class Endpoint(Struct, frozen=True, kw_only=True):
    """A server and the key for it; `repr` does not show the key."""

    provider: ProviderInfo
    api_key: str
    base_url: str | None

    def __repr__(self) -> str:
        return f"Endpoint({self.provider.label})"

    @property
    def is_official(self) -> bool:
        """Whether this is the provider's own server, and not one that is compatible with it."""
        return self.base_url is None or _is_host_of(self.base_url, self.provider.domain)

    @property
    def title(self) -> str:
        """Its name in an error message."""
        return self.provider.title if self.is_official else f"The server at {self.host}"

    @property
    def host(self) -> str:
        """The host and port for an error message, without credentials and path."""
        if self.base_url is None:
            return self.provider.domain
        found = urlsplit(self.base_url)
        return f"{found.hostname}:{found.port}" if found.port else str(found.hostname)


def resolve_endpoint(provider: ProviderInfo, *, api_key: str | None, base_url: str | None) -> Endpoint:
    """Find the key and the address, from the caller or from the environment.

    A key from the environment is never sent to a base URL that the caller passes, unless it is the provider's own.
    """
    address = base_url or os.environ.get(provider.base_url_variable) or None
    if address is not None and not _is_address(address):
        raise ConfigError(
            f"base_url must be the http(s) address of a server for the {provider.title} API, such as http://localhost/v1."
        )
    key = api_key
    if key is None and (base_url is None or _is_host_of(base_url, provider.domain)):
        key = next((found for name in provider.key_variables if (found := os.environ.get(name))), None)
    key = key.strip() if key else key
    if not key and (address is None or _is_host_of(address, provider.domain)):
        raise ProviderKeyError(
            f"No API key for {provider.title}. Set {provider.key_variables[0]}, or pass api_key=…; for a server that "
            "needs no key, pass base_url=…."
        )
    if key and not (key.isascii() and key.isprintable()):
        raise ProviderKeyError(
            f"The key for {provider.title} has characters that no key has. Check {provider.key_variables[0]}."
        )
    return Endpoint(provider=provider, api_key=key or NO_KEY, base_url=address)


def _is_address(address: str) -> bool:
    try:
        found = urlsplit(address)
        return found.scheme in ("http", "https") and bool(found.hostname) and found.port != 0
    except ValueError:
        return False


def _is_host_of(address: str, home: str) -> bool:
    host = urlsplit(address).hostname or ""
    return urlsplit(address).scheme == "https" and (host == home or host.endswith(f".{home}"))


_RESERVED_OPTIONS: Final = frozenset(
    ["model", "messages", "input", "contents", "instructions", "system", "system_instruction", "tools", "tool_choice",
     "tool_config", "stream", "n", "background", "max_tokens", "max_completion_tokens", "max_output_tokens",
     "automatic_function_calling", "functions", "function_call", "response_format", "response_schema"]
)  # fmt: skip
"""The options that the request or the adapter sets."""


def check_options(options: Mapping[str, Any] | None, *, known: Iterable[str]) -> dict[str, Any]:
    """Return the options of an SDK's method; raises `ConfigError` for unknown ones and those that the adapter sets."""
    allowed = sorted({*known} - _RESERVED_OPTIONS)
    for name in options or {}:
        if name in _RESERVED_OPTIONS:
            raise ConfigError(f"options cannot contain {name!r}: it is set by the request or the adapter.")
        if name not in allowed:
            raise ConfigError(f"unknown option {name!r}; this SDK takes: {', '.join(allowed)}.")
    return dict(options or {})


def check_retry_settings(*, timeout: float, max_retries: int) -> None:
    """Refuse values that an SDK would read as "no timeout" or "no attempt"."""
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"timeout must be greater than 0 seconds, got {timeout!r}.")
    if type(max_retries) is not int or max_retries < 0:
        raise ConfigError(f"max_retries must be at least 0, got {max_retries!r}.")


class ClientPool:
    """The async clients of an SDK, one per event loop, since connections cannot be shared between loops."""

    def __init__(self, create: Callable[[], Any], *, client: Any = None) -> None:
        self._create = create
        self._client = client
        self._by_loop: dict[asyncio.AbstractEventLoop, Any] = {}
        # Created now, so that wrong settings raise now.
        self._spare = create() if client is None else None

    def get(self) -> Any:
        """The client of the running event loop."""
        if self._client is not None:
            return self._client
        loop = asyncio.get_running_loop()
        if loop not in self._by_loop:
            self._by_loop = {other: client for other, client in self._by_loop.items() if not other.is_closed()}
            self._by_loop[loop] = self._spare or self._create()
            self._spare = None
        return self._by_loop[loop]

    def get_any(self) -> Any:
        """A client to inspect, outside of an event loop."""
        return self._client or self._spare

    def pop(self) -> Any:
        """Remove and return the client of the running event loop; None if there is none."""
        return self._by_loop.pop(asyncio.get_running_loop(), None)

"""How an adapter gets to its provider: the key, the address, and one SDK client per event loop."""

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from inspect import signature
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct

from handrail.errors import ConfigError, ProviderKeyError

NO_KEY: Final = "none"
"""What a server gets as a key that needs none; the SDKs do not go without."""


class Place(Struct, frozen=True, kw_only=True):
    """Where a provider is by itself, and what the environment says of it."""

    title: str
    """What people call it."""
    label: str
    """What its models' names begin with."""
    key: tuple[str, ...]
    """The environment variables that may hold its key; the first one is named in errors."""
    address: str
    """The environment variable that may hold another address."""
    home: str
    """The domain of its own servers."""


class Access(Struct, frozen=True, kw_only=True):
    """What is needed to ask; its `repr` says nothing of the key."""

    place: Place
    key: str
    base_url: str | None

    def __repr__(self) -> str:
        return f"Access({self.place.label})"

    @property
    def at_home(self) -> bool:
        """Whether these are the provider's own servers, and not some that speak its language."""
        return self.base_url is None or _is_at(self.base_url, self.place.home)

    @property
    def title(self) -> str:
        """What an error message calls it."""
        return self.place.title if self.at_home else f"The server at {self.host}"

    @property
    def host(self) -> str:
        """Where it is, for an error message: without names, passwords and paths."""
        if self.base_url is None:
            return self.place.home
        found = urlsplit(self.base_url)
        return f"{found.hostname}:{found.port}" if found.port else str(found.hostname)


def access(place: Place, *, api_key: str | None, base_url: str | None) -> Access:
    """The key and the address, from the caller or from the environment.

    A key of the environment never goes to an address that the caller names, unless it is one of the provider's own: a
    model on this machine has no business with it.
    """
    address = base_url or os.environ.get(place.address) or None
    if address is not None and not _is_address(address):
        raise ConfigError(
            f"base_url is the http(s) address of a server that speaks {place.title}, such as http://localhost/v1."
        )
    key = api_key
    if key is None and (base_url is None or _is_at(base_url, place.home)):
        key = next((found for name in place.key if (found := os.environ.get(name))), None)
    key = key.strip() if key else key
    if not key and (address is None or _is_at(address, place.home)):
        raise ProviderKeyError(
            f"There is no key for {place.title}. Set {place.key[0]}, or pass api_key=…; for a server that needs no "
            "key, pass its address as base_url=…."
        )
    if key and not (key.isascii() and key.isprintable()):
        raise ProviderKeyError(f"The key for {place.title} has characters that no key has. Check {place.key[0]}.")
    return Access(place=place, key=key or NO_KEY, base_url=address)


def reached(
    place: Place, client: Any, *, api_key: str | None, base_url: str | None, its: Callable[[Any], Access]
) -> Access:
    """The key and the address: those of a client that the caller has made (`its`), or those that one is made with."""
    if client is None:
        return access(place, api_key=api_key, base_url=base_url)
    if api_key is not None or base_url is not None:
        raise ConfigError("A client has its own key and address; leave api_key and base_url out.")
    return its(client)


def _is_address(address: str) -> bool:
    try:
        found = urlsplit(address)
        return found.scheme in ("http", "https") and bool(found.hostname) and found.port != 0
    except ValueError:
        return False


def _is_at(address: str, home: str) -> bool:
    host = urlsplit(address).hostname or ""
    return urlsplit(address).scheme == "https" and (host == home or host.endswith(f".{home}"))


_OURS: Final = frozenset(
    ["model", "messages", "input", "contents", "instructions", "system", "system_instruction", "tools", "tool_choice",
     "tool_config", "stream", "n", "background", "max_tokens", "max_completion_tokens", "max_output_tokens",
     "automatic_function_calling", "functions", "function_call", "response_format", "response_schema"]
)  # fmt: skip
"""What a request, or an adapter, says by itself."""


def checked_options(options: Mapping[str, Any] | None, *, known: Iterable[str]) -> dict[str, Any]:
    """Options for an SDK's method that it has, and that an adapter does not set by itself."""
    allowed = sorted({*known} - _OURS)
    for name in options or {}:
        if name in _OURS:
            raise ConfigError(f"`{name}` is not an option: the request, or the adapter itself, says it.")
        if name not in allowed:
            raise ConfigError(f"`{name}` is not an option of this SDK; it has: {', '.join(allowed)}.")
    return dict(options or {})


def check_patience(*, timeout: float, max_retries: int) -> None:
    """Refuse what an SDK would read as "for ever", or as "never"."""
    if not timeout > 0:
        raise ConfigError(f"timeout is a number of seconds above 0, not {timeout!r}.")
    if max_retries < 0:
        raise ConfigError(f"max_retries is 0 or more, not {max_retries!r}.")


class Clients:
    """An SDK's async clients: connections belong to the event loop that they were opened in."""

    def __init__(self, make: Callable[[], Any], *, given: Any = None) -> None:
        self._make = make
        self._given = given
        self._made: dict[asyncio.AbstractEventLoop, Any] = {}
        # Made now, because now is the time to hear what is wrong with the settings.
        self._spare = make() if given is None else None

    def here(self) -> Any:
        """The client of the running event loop."""
        if self._given is not None:
            return self._given
        loop = asyncio.get_running_loop()
        if loop not in self._made:
            self._made = {other: client for other, client in self._made.items() if not other.is_closed()}
            self._made[loop] = self._spare or self._make()
            self._spare = None
        return self._made[loop]

    def options(self, options: Mapping[str, Any] | None, *, of: Callable[[Any], Any]) -> dict[str, Any]:
        """Options for a method of the client, if it has them."""
        if not options:
            return {}
        return checked_options(options, known=signature(of(self._given or self._spare)).parameters)

    def mine(self) -> Any:
        """The client that was made for the running event loop, which is then no longer known; None if there is none."""
        return self._made.pop(asyncio.get_running_loop(), None)

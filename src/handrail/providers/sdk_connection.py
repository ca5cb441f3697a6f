"""Connects to a model through an official SDK: its endpoint, its clients, its options and its errors."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct

from handrail.errors import ConfigError
from handrail.providers.endpoints import (
    ClientPool,
    Endpoint,
    ProviderInfo,
    check_options,
    check_retry_settings,
    resolve_endpoint,
)
from handrail.providers.provider_errors import ErrorDetails


class Sdk(Struct, frozen=True, kw_only=True):
    """An official SDK, and the provider that it is for."""

    provider: ProviderInfo
    load: Callable[[], Any]
    """Imports the package; raises `MissingExtraError`."""
    create_client: Callable[[Any, Endpoint, float, int], Any]
    """Creates an async client from the package, the endpoint, the timeout in seconds, and the number of retries."""
    close_client: Callable[[Any], Awaitable[object]]
    read_client: Callable[[Any], Endpoint]
    """Reads the endpoint of a client that the caller created."""
    get_errors: Callable[[Any], tuple[type[BaseException], ...]]
    """Returns the exceptions of the package for an error response."""
    read_error: Callable[[Any, Any], ErrorDetails | None]
    """Reads an exception, given the package; None if the server sent no response."""


class ProviderConnection(Struct, frozen=True, kw_only=True):
    """A model, the clients of its server, and the settings of every request."""

    sdk: Sdk
    model: str
    endpoint: Endpoint
    clients: ClientPool
    max_tokens: int | None
    options: Mapping[str, Any]


def connect(
    sdk: Sdk,
    model: str,
    *,
    client: Any,
    api_key: str | None,
    base_url: str | None,
    timeout: float,
    max_retries: int,
    max_tokens: int | None,
    options: Mapping[str, Any] | None,
    list_options: Callable[[Any], Iterable[str]],
) -> ProviderConnection:
    """Connect to a model with the caller's client or a new one; `list_options` lists the options of its SDK method."""
    if client is None:
        endpoint = resolve_endpoint(sdk.provider, api_key=api_key, base_url=base_url)
    elif api_key is not None or base_url is not None:
        raise ConfigError("client has its own key and address; do not pass api_key or base_url with it.")
    else:
        endpoint = sdk.read_client(client)
    check_retry_settings(timeout=timeout, max_retries=max_retries)
    package = sdk.load()
    clients = ClientPool(lambda: sdk.create_client(package, endpoint, timeout, max_retries), client=client)
    checked = check_options(options, known=list_options(clients.get_any())) if options else {}
    return ProviderConnection(
        sdk=sdk, model=model, endpoint=endpoint, clients=clients, max_tokens=max_tokens, options=checked
    )

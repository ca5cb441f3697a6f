"""What the two OpenAI adapters share: the provider's address, its SDK client and its errors."""

from typing import Any, Final

from handrail.errors import MissingExtraError
from handrail.providers.clients import NO_KEY, ClientPool, Endpoint, ProviderInfo, check_retry_settings
from handrail.providers.provider_errors import ErrorDetails, read_stainless_error

OPENAI: Final = ProviderInfo(
    title="OpenAI",
    label="openai",
    key_variables=("OPENAI_API_KEY",),
    base_url_variable="OPENAI_BASE_URL",
    domain="api.openai.com",
)


def load_sdk() -> Any:
    """Import the SDK, or raise an error that names the extra to install."""
    try:
        import openai  # noqa: PLC0415  # optional
    except ImportError as error:
        raise MissingExtraError("openai", extra="openai") from error
    return openai


def read_client_endpoint(client: Any) -> Endpoint:
    """The endpoint of an SDK client."""
    return Endpoint(provider=OPENAI, api_key=str(client.api_key or NO_KEY), base_url=str(client.base_url))


def build_client_pool(endpoint: Endpoint, *, client: Any, timeout: float, max_retries: int) -> ClientPool:
    """The SDK clients for one model."""
    package = load_sdk()
    check_retry_settings(timeout=timeout, max_retries=max_retries)
    return ClientPool(
        lambda: package.AsyncOpenAI(
            api_key=endpoint.api_key, base_url=endpoint.base_url, timeout=timeout, max_retries=max_retries
        ),
        client=client,
    )


def get_sdk_errors() -> tuple[type[BaseException], ...]:
    """The base exception of the SDK."""
    return (load_sdk().OpenAIError,)


def read_error(error: Any) -> ErrorDetails | None:
    """Read an exception of the SDK; None if the server sent no response."""
    return None if isinstance(error, load_sdk().APIConnectionError) else read_stainless_error(error)

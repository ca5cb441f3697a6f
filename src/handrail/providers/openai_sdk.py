"""What the two APIs of OpenAI share: the place, the client and its errors."""

from typing import Any, Final

from handrail.errors import ConfigError, MissingExtraError
from handrail.providers.connect import NO_KEY, Access, Clients, Place, access, check_patience
from handrail.providers.failures import Told, from_stainless

PLACE: Final = Place(
    title="OpenAI", label="openai", key=("OPENAI_API_KEY",), address="OPENAI_BASE_URL", home="api.openai.com"
)


def sdk() -> Any:
    """The package, or the hint that installs it."""
    try:
        import openai  # noqa: PLC0415  # optional
    except ImportError as error:
        raise MissingExtraError("openai", extra="openai") from error
    return openai


def reached(client: Any, *, api_key: str | None, base_url: str | None) -> Access:
    """The key and the address: those of a client that the caller has made, or those that one is made with."""
    if client is None:
        return access(PLACE, api_key=api_key, base_url=base_url)
    if api_key is not None or base_url is not None:
        raise ConfigError("A client has its own key and address; leave api_key and base_url out.")
    return Access(place=PLACE, key=str(client.api_key or NO_KEY), base_url=str(client.base_url))


def clients(access: Access, *, given: Any, timeout: float, max_retries: int) -> Clients:
    """The clients for one model."""
    package = sdk()
    check_patience(timeout=timeout, max_retries=max_retries)
    return Clients(
        lambda: package.AsyncOpenAI(
            api_key=access.key, base_url=access.base_url, timeout=timeout, max_retries=max_retries
        ),
        given=given,
    )


def errors() -> tuple[type[BaseException], ...]:
    """What the SDK raises for an answer with an error."""
    return (sdk().OpenAIError,)


def told(error: Any) -> Told | None:
    """What such an error says; None if there was no answer."""
    return None if isinstance(error, sdk().APIConnectionError) else from_stainless(error)

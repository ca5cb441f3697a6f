"""What the two APIs of OpenAI share: the place, the client and its errors."""

from typing import Any, Final

from handrail.errors import MissingExtraError
from handrail.providers.connect import NO_KEY, Access, Clients, Place, check_patience
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


def access_of(client: Any) -> Access:
    """The key and the address of a client."""
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

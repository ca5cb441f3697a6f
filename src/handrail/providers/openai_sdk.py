"""The OpenAI SDK: its clients, its errors and its response formats, for the adapters of both APIs."""

from typing import Any, Final

from handrail.core.log import quiet_library
from handrail.errors import MissingExtraError
from handrail.formats.openai_chat import to_non_strict
from handrail.providers.endpoints import NO_KEY, Endpoint, ProviderInfo
from handrail.providers.provider_errors import read_stainless_error
from handrail.providers.response_schema import ResponseSchema
from handrail.providers.sdk_provider import Sdk

_OPENAI: Final = ProviderInfo(
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
    quiet_library("openai")  # At DEBUG it logs every request with its messages.
    return openai


def render_response_schema(response_schema: ResponseSchema) -> dict[str, Any]:
    """The name, the schema and the strict mode of a response format."""
    schema = response_schema.schema if response_schema.strict else to_non_strict(response_schema.schema)
    return {"name": "answer", "schema": schema, "strict": response_schema.strict}


def _create_client(package: Any, endpoint: Endpoint, timeout: float, max_retries: int) -> Any:
    return package.AsyncOpenAI(
        api_key=endpoint.api_key, base_url=endpoint.base_url, timeout=timeout, max_retries=max_retries
    )


def _read_client(client: Any) -> Endpoint:
    return Endpoint(provider=_OPENAI, api_key=str(client.api_key or NO_KEY), base_url=str(client.base_url))


OPENAI: Final = Sdk(
    provider=_OPENAI,
    load=load_sdk,
    create_client=_create_client,
    close_client=lambda client: client.close(),
    read_client=_read_client,
    get_errors=lambda package: (package.OpenAIError,),
    read_error=read_stainless_error,
)

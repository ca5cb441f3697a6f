"""Chooses the provider of a command: by name, else the first that the environment configures."""

import json
import os
from collections.abc import Callable, Mapping
from typing import Any, Final, cast
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from handrail.errors import ConfigError, shorten
from handrail.models.catalogue import CATALOGUE
from handrail.providers.anthropic import AnthropicMessages
from handrail.providers.gemini import GeminiModel
from handrail.providers.openai_chat import OpenAIChat
from handrail.providers.openai_responses import OpenAIResponses
from handrail.providers.provider import Provider

Env = Mapping[str, str]

OPENAI: Final = "gpt-5.4-mini"
ANTHROPIC: Final = "claude-sonnet-5-5"
GEMINI: Final = "gemini-3.8-flash"
_TIMEOUT: Final = 0.5
"""Seconds to wait for a local server's list of models."""
_MAX_BYTES: Final = 1_000_000
"""The most bytes of a server's list of models."""


def choose_provider(env: Env | None = None, *, name: str | None = None, model: str | None = None) -> Provider:
    """Return the provider of this name, or the first one that the environment configures.

    The order is OPENAI_API_KEY, ANTHROPIC_API_KEY, GEMINI_API_KEY, OPENAI_BASE_URL, a running Ollama, and the embedded
    model. `model`, or HANDRAIL_MODEL, selects the model; a GGUF file or a name of the catalogue selects the embedded
    provider.
    """
    env = os.environ if env is None else env
    model = model or env.get("HANDRAIL_MODEL") or None
    if name is not None:
        if name not in _BUILDERS:
            raise ConfigError(f"unknown provider {shorten(name)!r}; expected one of: {', '.join(_BUILDERS)}.")
        return _BUILDERS[name](env, model)
    return _BUILDERS[_detect_name(env, model)](env, model)


def _detect_name(env: Env, model: str | None) -> str:
    if model is not None and (model in CATALOGUE or model.lower().endswith(".gguf")):
        return "embedded"
    if env.get("OPENAI_API_KEY"):
        return "compatible" if env.get("OPENAI_BASE_URL") else "openai"
    for name, variable in (
        ("anthropic", "ANTHROPIC_API_KEY"),
        ("gemini", "GEMINI_API_KEY"),
        ("compatible", "OPENAI_BASE_URL"),
    ):
        if env.get(variable):
            return name
    # An Ollama without a model cannot reply; the embedded model can.
    return "ollama" if _list_ollama_models(env) else "embedded"


def _build_openai(env: Env, model: str | None) -> Provider:
    return OpenAIChat(model or OPENAI, api_key=env.get("OPENAI_API_KEY"), base_url=env.get("OPENAI_BASE_URL") or None)


def _build_responses(env: Env, model: str | None) -> Provider:
    base_url = env.get("OPENAI_BASE_URL") or None
    return OpenAIResponses(model or OPENAI, api_key=env.get("OPENAI_API_KEY"), base_url=base_url)


def _build_anthropic(env: Env, model: str | None) -> Provider:
    base_url = env.get("ANTHROPIC_BASE_URL") or None
    return AnthropicMessages(model or ANTHROPIC, api_key=env.get("ANTHROPIC_API_KEY"), base_url=base_url)


def _build_gemini(env: Env, model: str | None) -> Provider:
    base_url = env.get("GOOGLE_GEMINI_BASE_URL") or None
    return GeminiModel(model or GEMINI, api_key=env.get("GEMINI_API_KEY"), base_url=base_url)


def _build_compatible(env: Env, model: str | None) -> Provider:
    """Build a provider for an OpenAI-compatible server; without a model name, use the first that it lists."""
    base_url = env.get("OPENAI_BASE_URL")
    if not base_url:
        raise ConfigError("OPENAI_BASE_URL must be set for provider 'compatible', e.g. http://localhost:8000/v1.")
    key = env.get("OPENAI_API_KEY") or None
    provider = OpenAIChat(model or OPENAI, api_key=key, base_url=base_url)
    if model is not None or provider.endpoint.is_official:
        return provider
    models = _fetch_json(f"{base_url.rstrip('/')}/models", key=key)
    names = [str(model["id"]) for model in _read_items(models, "data") if model.get("id")]
    if not names:
        raise ConfigError("the server at OPENAI_BASE_URL lists no models: name one with --model or HANDRAIL_MODEL.")
    return OpenAIChat(names[0], api_key=key, base_url=base_url)


def _build_ollama(env: Env, model: str | None) -> Provider:
    name = model or next(iter(_list_ollama_models(env)), None)
    if name is None:
        address = _read_ollama_address(env)
        raise ConfigError(f"no Ollama with a model responds at {address}. Get a model with: ollama pull qwen3")
    return OpenAIChat(name, base_url=f"{_read_ollama_address(env)}/v1")


def _build_embedded(env: Env, model: str | None) -> Provider:
    from handrail.providers.embedded import EmbeddedProvider  # noqa: PLC0415  # optional

    return EmbeddedProvider(model) if model else EmbeddedProvider()


_BUILDERS: Final[Mapping[str, Callable[[Env, str | None], Provider]]] = {
    "openai": _build_openai,
    "responses": _build_responses,
    "anthropic": _build_anthropic,
    "gemini": _build_gemini,
    "ollama": _build_ollama,
    "compatible": _build_compatible,
    "embedded": _build_embedded,
}


PROVIDERS: Final = tuple(_BUILDERS)
"""The names of the providers."""


def _read_ollama_address(env: Env) -> str:
    """The URL of Ollama. OLLAMA_HOST is a host, a port, both, or a URL."""
    value = env.get("OLLAMA_HOST", "").strip().rstrip("/")
    value = value if "://" in value else f"http://{value}"
    try:
        found = urlsplit(value)
        host, port = found.hostname or "localhost", found.port or (443 if found.scheme == "https" else 11434)
    except ValueError as error:
        raise ConfigError("OLLAMA_HOST must be a host and a port, such as localhost:11434.") from error
    # Ollama may listen on all addresses; a client needs one of them.
    host = "localhost" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    return f"{found.scheme}://{host}:{port}"


def _list_ollama_models(env: Env) -> list[str]:
    models = _fetch_json(f"{_read_ollama_address(env)}/api/tags", key=None)
    return [str(model["name"]) for model in _read_items(models, "models") if model.get("name")]


class _NoRedirects(HTTPRedirectHandler):
    """Refuses redirects: the API key would follow them to another host."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        """Return None, which makes the redirect an error."""


def _fetch_json(address: str, *, key: str | None) -> Any:
    """Fetch JSON; return None if nothing responds, or if the response is not JSON."""
    if urlsplit(address).scheme not in ("http", "https"):
        return None
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    # The server is on this machine or this network, so no proxy is used.
    opener = build_opener(ProxyHandler({}), _NoRedirects())
    try:
        with opener.open(Request(address, headers=headers), timeout=_TIMEOUT) as response:
            return json.loads(response.read(_MAX_BYTES))
    except (URLError, OSError, ValueError, RecursionError):
        return None


def _read_items(body: Any, name: str) -> list[Mapping[str, Any]]:
    found: Any = cast(Mapping[str, Any], body).get(name) if isinstance(body, Mapping) else None
    entries = cast(list[Any], found) if isinstance(found, list) else []
    return [cast(Mapping[str, Any], entry) for entry in entries if isinstance(entry, Mapping)]

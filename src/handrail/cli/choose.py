"""Which model a command talks to: the one that was named, the one that the environment has, else the embedded one."""

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
_PATIENCE: Final = 0.5
"""Seconds for a server that is there or is not."""
_MOST: Final = 1_000_000
"""Bytes of a list of models."""


def choose(env: Env | None = None, *, name: str | None = None, model: str | None = None) -> Provider:
    """The provider of this name, or the first one that the environment has.

    In this order: OPENAI_API_KEY, ANTHROPIC_API_KEY, GEMINI_API_KEY, OPENAI_BASE_URL, a running Ollama, the embedded
    one. `model`, or HANDRAIL_MODEL, says which of its models; a GGUF file, and a name of the catalogue, is the embedded
    one's.
    """
    env = os.environ if env is None else env
    model = model or env.get("HANDRAIL_MODEL") or None
    if name is not None:
        if name not in _MAKERS:
            raise ConfigError(f"There is no provider `{shorten(name)}`; there are: {', '.join(_MAKERS)}.")
        return _MAKERS[name](env, model)
    return _MAKERS[_found(env, model)](env, model)


def _found(env: Env, model: str | None) -> str:
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
    # An Ollama without a model cannot answer; the embedded one can.
    return "ollama" if _ollama_models(env) else "embedded"


def _openai(env: Env, model: str | None) -> Provider:
    return OpenAIChat(model or OPENAI, api_key=env.get("OPENAI_API_KEY"), base_url=env.get("OPENAI_BASE_URL") or None)


def _responses(env: Env, model: str | None) -> Provider:
    base_url = env.get("OPENAI_BASE_URL") or None
    return OpenAIResponses(model or OPENAI, api_key=env.get("OPENAI_API_KEY"), base_url=base_url)


def _anthropic(env: Env, model: str | None) -> Provider:
    base_url = env.get("ANTHROPIC_BASE_URL") or None
    return AnthropicMessages(model or ANTHROPIC, api_key=env.get("ANTHROPIC_API_KEY"), base_url=base_url)


def _gemini(env: Env, model: str | None) -> Provider:
    base_url = env.get("GOOGLE_GEMINI_BASE_URL") or None
    return GeminiModel(model or GEMINI, api_key=env.get("GEMINI_API_KEY"), base_url=base_url)


def _compatible(env: Env, model: str | None) -> Provider:
    """A server that speaks OpenAI's language; without a name, the first model that it lists."""
    base_url = env.get("OPENAI_BASE_URL")
    if not base_url:
        raise ConfigError("A compatible server is named by OPENAI_BASE_URL, such as http://localhost:8000/v1.")
    key = env.get("OPENAI_API_KEY") or None
    provider = OpenAIChat(model or OPENAI, api_key=key, base_url=base_url)
    if model is not None or provider.access.at_home:
        return provider
    listed = _read(f"{base_url.rstrip('/')}/models", key=key)
    names = [str(one["id"]) for one in _items(listed, "data") if one.get("id")]
    if not names:
        hint = "Say which model it has with --model or HANDRAIL_MODEL."
        raise ConfigError(f"The server that OPENAI_BASE_URL names lists no models. {hint}")
    return OpenAIChat(names[0], api_key=key, base_url=base_url)


def _ollama(env: Env, model: str | None) -> Provider:
    name = model or next(iter(_ollama_models(env)), None)
    if name is None:
        raise ConfigError(f"There is no Ollama with a model at {_ollama_address(env)}. Get one with: ollama pull qwen3")
    return OpenAIChat(name, base_url=f"{_ollama_address(env)}/v1")


def _embedded(env: Env, model: str | None) -> Provider:
    from handrail.providers.embedded import EmbeddedProvider  # noqa: PLC0415  # optional

    return EmbeddedProvider(model) if model else EmbeddedProvider()


_MAKERS: Final[Mapping[str, Callable[[Env, str | None], Provider]]] = {
    "openai": _openai,
    "responses": _responses,
    "anthropic": _anthropic,
    "gemini": _gemini,
    "ollama": _ollama,
    "compatible": _compatible,
    "embedded": _embedded,
}


def _ollama_address(env: Env) -> str:
    """Where Ollama listens: OLLAMA_HOST is a host, a port, both, or an address."""
    given = env.get("OLLAMA_HOST", "").strip().rstrip("/")
    given = given if "://" in given else f"http://{given}"
    try:
        found = urlsplit(given)
        host, port = found.hostname or "localhost", found.port or (443 if found.scheme == "https" else 11434)
    except ValueError as error:
        raise ConfigError("OLLAMA_HOST is a host and a port, such as localhost:11434.") from error
    # An Ollama that listens everywhere is reached here.
    host = "localhost" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    return f"{found.scheme}://{host}:{port}"


def _ollama_models(env: Env) -> list[str]:
    listed = _read(f"{_ollama_address(env)}/api/tags", key=None)
    return [str(one["name"]) for one in _items(listed, "models") if one.get("name")]


class _Stay(HTTPRedirectHandler):
    """Goes nowhere else: a key would go along."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        """None: the redirection is an error."""


def _read(address: str, *, key: str | None) -> Any:
    """The JSON at an address; None if there is nobody, or something else."""
    if urlsplit(address).scheme not in ("http", "https"):
        return None
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    # Past any proxy: this is a question to the machine itself, or to its neighbour.
    opener = build_opener(ProxyHandler({}), _Stay())
    try:
        with opener.open(Request(address, headers=headers), timeout=_PATIENCE) as answer:
            return json.loads(answer.read(_MOST))
    except (URLError, OSError, ValueError, RecursionError):
        return None


def _items(listed: Any, name: str) -> list[Mapping[str, Any]]:
    found: Any = cast(Mapping[str, Any], listed).get(name) if isinstance(listed, Mapping) else None
    entries = cast(list[Any], found) if isinstance(found, list) else []
    return [cast(Mapping[str, Any], one) for one in entries if isinstance(one, Mapping)]

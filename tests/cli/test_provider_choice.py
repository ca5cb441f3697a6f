"""The environment says which model a command talks to."""

import json
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import ModuleType
from typing import Any

import pytest

from handrail.cli import provider_choice as module
from handrail.cli.provider_choice import choose_provider
from handrail.errors import ConfigError, ProviderKeyError
from handrail.providers import ModelRequest, UserMessage
from handrail.testing.servers import OpenAIServer, text

KEYS = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "GEMINI_API_KEY")


class Embedded:
    """Stands for the model that needs a file of many megabytes."""

    def __init__(self, model: str = "small") -> None:
        self.name = f"embedded:{model}"


@pytest.fixture(autouse=True)
def _nothing_around(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*KEYS, "GOOGLE_API_KEY", "GOOGLE_GEMINI_BASE_URL", "HANDRAIL_MODEL", "OLLAMA_HOST"):
        monkeypatch.delenv(name, raising=False)
    embedded = ModuleType("handrail.providers.embedded")
    embedded.EmbeddedProvider = Embedded  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "handrail.providers.embedded", embedded)


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@contextmanager
def serving(body: Any) -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    """A server that answers every GET with this, and what it was asked."""
    asked: list[tuple[str, str | None]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers.get("Authorization")))
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(307 if data.startswith(b"http") else 200)
            self.send_header("Location", data.decode(errors="replace"))
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"127.0.0.1:{server.server_port}", asked
        server.shutdown()


def test_keys_are_taken_in_their_order(nobody: str) -> None:
    env = {"OPENAI_API_KEY": "k1", "ANTHROPIC_API_KEY": "k2", "GEMINI_API_KEY": "k3", "OLLAMA_HOST": nobody}

    found = []
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"):
        found.append(choose_provider(env).name)
        del env[name]
    found.append(choose_provider(env).name)

    assert found == [
        f"openai:{module.OPENAI}",
        f"anthropic:{module.ANTHROPIC}",
        f"gemini:{module.GEMINI}",
        "embedded:small",
    ]


def test_an_empty_variable_is_none(nobody: str) -> None:
    env = dict.fromkeys((*KEYS, "HANDRAIL_MODEL"), "") | {"OLLAMA_HOST": nobody}

    assert choose_provider(env).name == "embedded:small"


@pytest.mark.parametrize(
    ("name", "label"),
    [("openai", "openai"), ("responses", "openai-responses"), ("anthropic", "anthropic"), ("gemini", "gemini")],
)
def test_a_name_decides_and_a_model_can_be_said(name: str, label: str) -> None:
    env = {"OPENAI_API_KEY": "k1", "ANTHROPIC_API_KEY": "k2", "GEMINI_API_KEY": "k3", "HANDRAIL_MODEL": "from-env"}

    assert choose_provider(env, name=name).name == f"{label}:from-env"
    assert choose_provider(env, name=name, model="said").name == f"{label}:said"


@pytest.mark.parametrize("name", ["openai", "responses", "anthropic", "gemini"])
def test_a_name_without_its_key_says_which_variable_is_missing(name: str) -> None:
    with pytest.raises(ProviderKeyError, match="_API_KEY"):
        choose_provider({}, name=name)


def test_an_unknown_name_is_reported_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"unknown provider 'closedai'.*openai, responses, anthropic"):
        choose_provider({}, name="closedai")


def test_a_file_is_the_embedded_ones_whatever_keys_there_are() -> None:
    assert choose_provider({"OPENAI_API_KEY": "k"}, model="/models/x.GGUF").name == "embedded:/models/x.GGUF"


def test_a_running_ollama_is_found_with_its_first_model() -> None:
    with serving({"models": [{"name": "qwen3:8b"}, {"name": "llama"}]}) as (address, asked):
        provider: Any = choose_provider({"OLLAMA_HOST": address})

    assert provider.name == "openai:qwen3:8b"
    assert provider.endpoint.base_url == f"http://{address}/v1"
    assert set(asked) == {("/api/tags", None)}


@pytest.mark.parametrize(
    "body", [{"models": []}, {}, [], b"<html>", b"\xff", {"models": 7}, {"models": [5, {"name": ""}]}]
)
def test_something_else_on_ollamas_port_is_no_ollama(body: Any) -> None:
    with serving(body) as (address, _):
        assert choose_provider({"OLLAMA_HOST": address}).name == "embedded:small"
        with pytest.raises(ConfigError, match="ollama pull"):
            choose_provider({"OLLAMA_HOST": address}, name="ollama")


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("", "http://localhost:11434"),
        ("0.0.0.0", "http://localhost:11434"),
        (":8000", "http://localhost:8000"),
        ("box", "http://box:11434"),
        ("box:8000", "http://box:8000"),
        ("https://box/", "https://box:443"),
        ("http://[::1]:9", "http://[::1]:9"),
    ],
)
def test_ollamas_host_is_read_as_ollama_reads_it(host: str, address: str) -> None:
    provider: Any = choose_provider({"OLLAMA_HOST": host}, name="ollama", model="m")

    assert provider.endpoint.base_url == f"{address}/v1"


@pytest.mark.parametrize("host", ["box:port", "http://[::1", "box:99999999"])
def test_a_host_that_is_none_is_reported(host: str) -> None:
    with pytest.raises(ConfigError, match="OLLAMA_HOST"):
        choose_provider({"OLLAMA_HOST": host})


def test_a_compatible_server_says_which_model_it_has() -> None:
    with serving({"data": [{"id": "local-model"}]}) as (address, asked):
        env = {"OPENAI_BASE_URL": f"http://{address}/v1/"}
        assert choose_provider(env).name == "openai:local-model"
        assert choose_provider({**env, "OPENAI_API_KEY": "k"}, name="compatible").name == "openai:local-model"
        assert choose_provider({**env, "HANDRAIL_MODEL": "mine"}).name == "openai:mine"

    assert asked == [("/v1/models", None), ("/v1/models", "Bearer k")]


def test_a_compatible_server_that_lists_nothing_needs_a_name(nobody: str) -> None:
    with pytest.raises(ConfigError, match="HANDRAIL_MODEL"):
        choose_provider({"OPENAI_BASE_URL": f"http://{nobody}/v1"})


def test_a_key_does_not_follow_a_redirection() -> None:
    with (
        serving({"data": [{"id": "stolen"}]}) as (elsewhere, asked),
        serving(f"http://{elsewhere}".encode()) as (near, _),
        pytest.raises(ConfigError, match="lists no models"),
    ):
        choose_provider({"OPENAI_BASE_URL": f"http://{near}/v1", "OPENAI_API_KEY": "k"})

    assert asked == []


def test_a_compatible_server_needs_an_address() -> None:
    with pytest.raises(ConfigError, match="OPENAI_BASE_URL"):
        choose_provider({}, name="compatible")


def test_openais_own_address_is_not_asked_for_its_models() -> None:
    env = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "https://eu.api.openai.com/v1"}

    assert choose_provider(env).name == f"openai:{module.OPENAI}"


async def test_what_was_chosen_answers() -> None:
    with OpenAIServer([text("Hello.")]) as server:
        provider: Any = choose_provider({"OPENAI_BASE_URL": server.url, "HANDRAIL_MODEL": "m"})
        reply = await provider.ask(ModelRequest(messages=[UserMessage(text="Hi.")]))
        await provider.aclose()

    assert reply.text == "Hello."

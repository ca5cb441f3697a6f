"""Where the key comes from, where it may go, and which event loop a connection belongs to."""

import asyncio
import sys
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from google import genai
from google.genai import types
from openai import AsyncOpenAI

from handrail.errors import ConfigError, MissingExtraError, ProviderError, ProviderKeyError
from handrail.providers import ModelRequest
from handrail.providers.endpoints import NO_KEY
from handrail.testing.servers import error, text
from tests.providers.kit import ALL, ANTHROPIC, CHAT, GEMINI, KEY, Subject, every_adapter, hello

VARIABLES = (
    "OPENAI_API_KEY",
    "OPENAI_BASE_URL",
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_BASE_URL",
    "GEMINI_API_KEY",
    "GOOGLE_API_KEY",
    "GOOGLE_GEMINI_BASE_URL",
)


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@every_adapter
@pytest.mark.parametrize("value", [None, "", "  "])
def test_a_missing_key_is_reported_at_once_with_the_name_of_its_variable(
    subject: Subject, value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value is not None:
        monkeypatch.setenv(subject.variable, value)

    with pytest.raises(ProviderKeyError, match=subject.variable) as caught:
        subject.adapter("test-model")

    assert caught.value.code == "missing_key"


@every_adapter
def test_a_key_of_the_environment_is_enough(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(subject.variable, KEY)

    provider = subject.adapter("test-model")

    assert provider.endpoint.api_key == KEY
    assert KEY not in repr(provider) + repr(provider.endpoint) + str(provider.endpoint)


@every_adapter
async def test_a_key_of_the_environment_does_not_go_to_a_server_that_the_caller_names(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(subject.variable, KEY)
    with subject.server([text("Hi.")]) as server:
        async with subject.at(server, api_key=None) as provider:
            reply = await provider.ask(ModelRequest(messages=hello()))

    assert reply.text == "Hi."
    assert provider.endpoint.api_key == NO_KEY


def test_a_key_of_the_environment_goes_to_the_providers_own_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)

    home = CHAT.adapter("m", base_url="https://eu.api.openai.com/v1")
    alike = CHAT.adapter("m", base_url="https://api.openai.com.evil.example/v1")
    plain = CHAT.adapter("m", base_url="http://api.openai.com/v1")

    assert [item.endpoint.api_key for item in (home, alike, plain)] == [KEY, NO_KEY, NO_KEY]


def test_an_address_of_the_environment_goes_with_the_key_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:8000/v1")
    assert CHAT.adapter("m").endpoint.api_key == NO_KEY
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert CHAT.adapter("m").endpoint.api_key == KEY


@every_adapter
@pytest.mark.parametrize("address", ["localhost:8000", "ftp://host", "http://", "http://host:99999999/", "http://[::1"])
def test_an_address_that_is_none_is_refused(subject: Subject, address: str) -> None:
    with pytest.raises(ConfigError, match="base_url"):
        subject.adapter("test-model", base_url=address)


@every_adapter
@pytest.mark.parametrize("key", ["sk-ö", "sk-\x00", "sk-a\nb"])
def test_a_key_that_no_header_can_carry_is_refused_without_being_shown(subject: Subject, key: str) -> None:
    with pytest.raises(ProviderKeyError, match=subject.variable) as caught:
        subject.adapter("test-model", api_key=key)

    assert key not in str(caught.value)


@every_adapter
@pytest.mark.parametrize(
    ("name", "value"),
    [("timeout", 0), ("timeout", float("nan")), ("timeout", "5"), ("max_retries", -1), ("max_retries", 1.5)],
)
def test_patience_that_is_none_is_refused(subject: Subject, name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        subject.adapter("test-model", api_key=KEY, **{name: value})


@every_adapter
async def test_a_provider_can_be_waited_for_without_an_end(subject: Subject) -> None:
    with subject.server([text("Hello.")]) as server:
        async with subject.at(server, timeout=float("inf")) as provider:
            assert (await provider.ask(ModelRequest(messages=hello()))).text == "Hello."


@every_adapter
def test_an_option_that_the_sdk_does_not_have_is_refused(subject: Subject) -> None:
    with pytest.raises(ConfigError, match=r"unknown option .temprature."):
        subject.adapter("test-model", api_key=KEY, options={"temprature": 1})


@every_adapter
@pytest.mark.parametrize("name", ["model", "tools"])
def test_an_option_that_the_request_says_is_refused(subject: Subject, name: str) -> None:
    with pytest.raises(ConfigError, match=f"options cannot contain .{name}."):
        subject.adapter("test-model", api_key=KEY, options={name: 1})


@pytest.mark.parametrize(
    ("subject", "package", "extra"),
    [(one, package, extra) for one, package, extra in zip(
        ALL, ["openai", "openai", "anthropic", "google"], ["openai", "openai", "anthropic", "gemini"], strict=True
    )],
    ids=lambda one: getattr(one, "name", None),
)  # fmt: skip
def test_a_missing_sdk_is_reported_with_the_command_that_installs_it(
    subject: Subject, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(MissingExtraError, match=rf"handrail\[{extra}\]"):
        subject.adapter("test-model", api_key=KEY)


@every_adapter
def test_one_adapter_can_be_used_in_one_event_loop_after_another(subject: Subject) -> None:
    with subject.server([text("One."), text("Two.")]) as server:
        provider = subject.adapter("test-model", base_url=server.url, api_key=KEY)

        async def ask() -> str:
            reply = await provider.ask(ModelRequest(messages=hello()))
            await provider.aclose()
            return reply.text

        assert [asyncio.run(ask()), asyncio.run(ask())] == ["One.", "Two."]


async def test_a_client_that_the_caller_made_is_used_and_not_closed() -> None:
    with CHAT.server([text("One."), text("Two.")]) as server:
        async with AsyncOpenAI(api_key=KEY, base_url=server.url) as client:
            provider: Any = CHAT.adapter("m", client=client)
            first = await provider.ask(ModelRequest(messages=hello()))
            await provider.aclose()
            second = await provider.ask(ModelRequest(messages=hello()))

    assert (first.text, second.text, provider.endpoint.api_key) == ("One.", "Two.", KEY)


async def test_a_client_of_anthropics_sdk_can_be_given_too() -> None:
    with ANTHROPIC.server([error(400, message=f"Bad: {KEY}")]) as server:
        async with AsyncAnthropic(api_key=KEY, base_url=server.url, max_retries=0) as client:
            provider: Any = ANTHROPIC.adapter("m", client=client, options={"service_tier": "auto"})
            with pytest.raises(ProviderError, match=r"Bad: \[key\]"):
                await provider.ask(ModelRequest(messages=hello()))


async def test_a_client_of_googles_sdk_can_be_given_too() -> None:
    with GEMINI.server([error(400, message=f"Bad: {KEY}")]) as server:
        client = genai.Client(api_key=KEY, http_options=types.HttpOptions(base_url=server.url))
        provider: Any = GEMINI.adapter("m", client=client)
        with pytest.raises(ProviderError, match=r"Bad: \[key\]"):
            await provider.ask(ModelRequest(messages=hello()))
        await provider.aclose()
        await client.aio.aclose()
        client.close()


async def test_an_option_with_a_value_that_the_sdk_does_not_take_is_refused() -> None:
    with GEMINI.server() as server:
        async with GEMINI.at(server, options={"temperature": "hot"}) as provider:
            with pytest.raises(ConfigError, match="temperature"):
                await provider.ask(ModelRequest(messages=hello()))


def test_an_address_is_reported_without_its_path_and_its_password() -> None:
    assert CHAT.adapter("m", api_key=KEY).endpoint.host == "api.openai.com"
    assert CHAT.adapter("m", base_url="https://user:secret@host/v1?key=secret").endpoint.host == "host"


@every_adapter
def test_a_client_and_a_key_are_too_much(subject: Subject) -> None:
    with pytest.raises(ConfigError, match="do not pass api_key"):
        subject.adapter("m", client=object(), api_key=KEY)

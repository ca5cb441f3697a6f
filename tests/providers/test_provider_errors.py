"""What a provider says of its failures becomes one clear error, and the key is in none of it."""

import base64
import logging
import socket
import traceback
from email.utils import formatdate
from time import time
from typing import Any
from urllib.parse import quote

import pytest

from handrail.errors import (
    BadResponseError,
    ContextTooLongError,
    ProviderDownError,
    ProviderError,
    ProviderKeyError,
    ProviderLimitError,
    RefusalError,
    UnknownModelError,
)
from handrail.providers import ModelRequest
from handrail.providers.provider_errors import ErrorDetails, build_error, read_google_error
from handrail.testing.servers import error, raw, text
from tests.providers.kit import (
    ANTHROPIC,
    CHAT,
    GEMINI,
    KEY,
    RESPONSES,
    Subject,
    Way,
    both_ways,
    every_adapter,
    hello,
    streamed,
    whole,
)

TOO_LONG = {
    "openai_chat": error(400, "context_length_exceeded", "This model's maximum context length is 8192 tokens."),
    "openai_responses": error(400, "context_length_exceeded", "Your input exceeds the context window of this model."),
    "anthropic": error(400, message="prompt is too long: 210000 tokens > 200000 maximum"),
    "gemini": error(400, message="The input token count (9) exceeds the maximum number of tokens allowed (8)."),
}
KINDS: dict[str, tuple[Any, type[ProviderError], str]] = {
    "key": (error(401), ProviderKeyError, "key_refused"),
    "rights": (error(403), ProviderKeyError, "key_refused"),
    "model": (error(404, message="The model `test-model` does not exist."), UnknownModelError, "unknown_model"),
    "limit": (error(429), ProviderLimitError, "rate_limit"),
    "too large": (error(413), ContextTooLongError, "context_too_long"),
    "bad": (error(400, message="Invalid value: 'x'."), ProviderError, "bad_request"),
    "broken": (error(500), ProviderDownError, "unavailable"),
    "overloaded": (error(529), ProviderDownError, "unavailable"),
    "no gateway": (error(503), ProviderDownError, "unavailable"),
}


async def _failed(subject: Subject, scripted: Any, way: Way, **options: Any) -> ProviderError:
    with subject.server([scripted]) as server:
        async with subject.at(server, **options) as provider:
            with pytest.raises(ProviderError) as caught:
                await way(provider, ModelRequest(messages=hello()))
    return caught.value


@every_adapter
@pytest.mark.parametrize(("scripted", "kind", "code"), KINDS.values(), ids=KINDS)
@both_ways
async def test_every_kind_of_error_has_its_own(
    subject: Subject, scripted: Any, kind: type[ProviderError], code: str, way: Way
) -> None:
    failed = await _failed(subject, scripted, way)

    assert (type(failed), failed.code, failed.status) == (kind, code, scripted.status)
    assert failed.retryable == (kind in (ProviderLimitError, ProviderDownError))


@every_adapter
@both_ways
async def test_a_conversation_that_is_too_long_is_reported_as_such(subject: Subject, way: Way) -> None:
    failed = await _failed(subject, TOO_LONG[subject.name], way)

    assert isinstance(failed, ContextTooLongError)
    assert "test-model" in failed.message


@every_adapter
@pytest.mark.parametrize(
    ("value", "seconds"), [("7", 7.0), ("date", 60.0), ("soon", None), ("1e400", None), ("-5", 0.0), ("nan", None)]
)
async def test_a_limit_says_when_to_ask_again(subject: Subject, value: str, seconds: float | None) -> None:
    value = formatdate(time() + 60, usegmt=True) if value == "date" else value
    scripted = error(429, headers={"retry-after": value})
    with subject.server([scripted]) as server:
        async with subject.at(server) as provider:
            with pytest.raises(ProviderLimitError) as caught:
                await provider.ask(ModelRequest(messages=hello()))

    assert caught.value.after == (None if seconds is None else pytest.approx(seconds, abs=3))


NO_DATE = {"retry-after": f"Mon, 01 Jan {'9' * 20} 00:00:00 GMT"}


@every_adapter
@both_ways
async def test_a_time_to_wait_that_no_calendar_has_is_no_other_error(subject: Subject, way: Way) -> None:
    failed = await _failed(subject, error(429, headers=NO_DATE), way)

    assert (failed.code, failed.after) == ("rate_limit", None)


@both_ways
async def test_what_an_sdk_cannot_calculate_with_is_an_error_of_the_provider(way: Way) -> None:
    """This SDK reads the header itself before it tries again, and raises `OverflowError`."""
    failed = await _failed(ANTHROPIC, error(429, headers=NO_DATE), way, max_retries=1)

    assert isinstance(failed, BadResponseError)


async def test_gemini_says_when_to_ask_again_in_its_body() -> None:
    class Said:
        code, status, message, response = 429, "RESOURCE_EXHAUSTED", "Quota.", None
        details = {"error": {"details": [{"retryDelay": "34.5s"}, {"reason": "RATE_LIMIT"}, 5]}}  # noqa: RUF012

    assert read_google_error(Said()).retry_after == 34.5


async def test_gemini_refuses_a_key_with_400() -> None:
    scripted = error(400, message="API key not valid. Please pass a valid API key.")

    failed = await _failed(GEMINI, scripted, whole)

    assert (type(failed), failed.code) == (ProviderKeyError, "key_refused")
    assert "GEMINI_API_KEY" in failed.message


async def test_a_filter_in_front_of_a_model_is_a_refusal() -> None:
    with CHAT.server([error(400, "content_filter", "The prompt was filtered.")]) as server:
        async with CHAT.at(server) as provider:
            with pytest.raises(RefusalError, match="The prompt was filtered"):
                await provider.ask(ModelRequest(messages=hello()))


def test_an_error_names_the_provider_or_the_server_that_stands_in_for_it() -> None:
    told, model = ErrorDetails(status=429, message="Slow down."), "m"
    home = CHAT.adapter("m", api_key=KEY).endpoint
    other = CHAT.adapter("m", base_url="http://user:pw@localhost:8000/v1").endpoint

    assert build_error(told, endpoint=home, model=model).message.startswith("OpenAI accepts no more requests")
    assert build_error(told, endpoint=other, model=model).message.startswith(
        "The server at localhost:8000 accepts no more"
    )


async def test_a_wrong_path_is_not_taken_for_an_unknown_model() -> None:
    with CHAT.server() as server:
        adapter = CHAT.adapter("m", base_url=f"{server.url}/extra", api_key=KEY, max_retries=0)
        with pytest.raises(ProviderError, match="is base_url right") as caught:
            await adapter.ask(ModelRequest(messages=hello()))
        await adapter.aclose()

    assert caught.value.code == "bad_request"


@both_ways
async def test_a_response_that_failed_is_an_error(way: Way) -> None:
    failed = await _failed(RESPONSES, text("Half an ans", stop="failed"), way)

    assert (type(failed), failed.code, failed.retryable) == (ProviderDownError, "unavailable", True)
    assert "Half an ans" not in str(failed)


@every_adapter
@both_ways
async def test_nobody_there_is_reported_without_waiting(subject: Subject, way: Way) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))

        class Nobody:
            url = f"http://user:hunter2@127.0.0.1:{taken.getsockname()[1]}/v1"

        async with subject.at(Nobody) as provider:
            with pytest.raises(ProviderDownError, match=r"127\.0\.0\.1") as caught:
                await way(provider, ModelRequest(messages=hello()))

    assert "hunter2" not in _everything(caught.value)


@every_adapter
async def test_the_sdk_tries_again_as_often_as_configured(subject: Subject) -> None:
    again = error(503, headers={"retry-after-ms": "1"})
    with subject.server([again, text("There you are.")]) as server:
        async with subject.at(server, max_retries=1) as provider:
            reply = await provider.ask(ModelRequest(messages=hello()))

    assert reply.text == "There you are."
    assert [request.status for request in server.requests] == [503, 200]


SPELLINGS = {
    "plain": KEY,
    "in a header": f"Authorization: Bearer {KEY}",
    "in an address": f"https://host/?key={quote(KEY, safe='')}",
    "encoded": base64.b64encode(KEY.encode()).decode(),
    "loud": KEY.upper(),
}


@every_adapter
@pytest.mark.parametrize("echo", SPELLINGS.values(), ids=SPELLINGS)
@pytest.mark.parametrize("status", [400, 401, 404, 429])
async def test_a_server_that_echoes_the_key_does_not_get_it_into_an_error(
    subject: Subject, echo: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for way in (whole, streamed):
        with subject.server([error(status, message=f"x {echo} " + "y" * 280 + echo)]) as server:
            async with subject.at(server) as provider:
                with pytest.raises(ProviderError) as caught:
                    await way(provider, ModelRequest(messages=hello()))

        seen = _everything(caught.value) + repr(provider) + str(provider.endpoint)
        for spelling in SPELLINGS.values():
            assert spelling not in seen
    assert KEY not in caplog.text


@every_adapter
async def test_an_error_event_that_echoes_the_key_is_clean_too(subject: Subject) -> None:
    cut = text("One, two.", cut_after=2, cut_by=error(400, message=f"Bad: {KEY}"))
    with subject.server([cut]) as server:
        async with subject.at(server) as provider:
            with pytest.raises(ProviderError) as caught:
                _ = [piece async for piece in provider.stream(ModelRequest(messages=hello()))]

    assert KEY not in _everything(caught.value)


def _everything(failed: BaseException) -> str:
    """All that a log, a trace or a person may see of an error, and of those that it is tied to."""
    seen: list[str] = []
    one: BaseException | None = failed
    while one is not None:
        seen += [str(one), repr(one), repr(one.__dict__)]
        assert one.__context__ is None or one.__cause__ is one.__context__
        one = one.__cause__
    log = failed.to_log_dict() if isinstance(failed, ProviderError) else {}
    return "".join([*seen, *traceback.format_exception(failed), repr(log)])


@every_adapter
async def test_no_log_of_the_sdks_has_the_key(subject: Subject, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with subject.server([text("Hi.")]) as server:
        async with subject.at(server) as provider:
            await provider.ask(ModelRequest(messages=hello()))

    assert KEY not in caplog.text


async def test_a_response_that_is_no_message_says_what_it_should_be() -> None:
    with ANTHROPIC.server([raw({"hello": "world"})]) as server:
        async with ANTHROPIC.at(server) as provider:
            with pytest.raises(BadResponseError, match="not a message"):
                await provider.ask(ModelRequest(messages=hello()))

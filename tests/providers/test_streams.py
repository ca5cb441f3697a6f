"""A stream that is cut anywhere gives no reply, so that no half call can run; one that is left is closed."""

import asyncio
import json
from typing import Any

import pytest

from handrail.errors import BadResponseError, ProviderDownError, ProviderError, ProviderLimitError
from handrail.providers import ModelRequest, ModelResponse, StreamEvent, TextDelta
from handrail.testing.servers import error, refusal, text, text_and_calls, tool_calls
from tests.providers.kit import CHAT, TOOLS, Subject, every_adapter, hello
from tests.providers.raw_server import WAIT, events, serving

ANSWERS: dict[str, Any] = {
    "words": text("One, two, three."),
    "calls": tool_calls(("weather", {"city": "Ulm", "days": 2}, "a_1"), ("weather", {"city": "Bern"}, "a_2")),
    "both": text_and_calls("Let me look.", ("weather", {"city": "Ulm"}, "a_1")),
    "refusal": refusal("I must not."),
}


async def _pieces(provider: Any) -> tuple[list[StreamEvent], ProviderError | None]:
    found: list[StreamEvent] = []
    try:
        async for piece in provider.stream(ModelRequest(messages=hello(), tools=TOOLS)):
            found.append(piece)  # what came before the failure is wanted
    except ProviderError as failed:
        return found, failed
    return found, None


@every_adapter
@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
@pytest.mark.parametrize("how", ["drop", "end"])
async def test_a_stream_that_is_cut_after_any_event_raises_and_gives_no_reply(
    subject: Subject, answer: Any, how: str
) -> None:
    whole = events(subject, answer)
    needed = next(count for count in range(len(whole) + 1) if _is_complete(subject, whole[:count]))
    script = [_cut(answer, count, how) for count in range(len(whole) + 1)]
    with subject.server(script) as server:
        async with subject.at(server) as provider:
            for count in range(len(whole) + 1):
                pieces, failed = await _pieces(provider)
                replies = [piece for piece in pieces if isinstance(piece, ModelResponse)]
                if count < needed:
                    assert isinstance(failed, ProviderDownError), count
                    assert replies == []
                elif failed is None:
                    (reply,) = replies
                    assert [json.loads(call.arguments_json) for call in reply.calls] == [
                        json.loads(call.arguments) for call in answer.calls
                    ]
                    assert pieces[-1] is reply
                else:  # The connection was lost behind the last event.
                    assert (how, replies) == ("drop", [])


def _cut(answer: Any, count: int, how: str) -> Any:
    return type(answer)(text=answer.text, calls=answer.calls, refusal=answer.refusal, cut_after=count, cut_by=how)


def _is_complete(subject: Subject, sent: list[bytes]) -> bool:
    """Whether the events hold the one that ends an answer, as the APIs document it."""
    marks = {
        "openai_chat": b'"finish_reason":"',
        "openai_responses": b"event: response.completed",
        "anthropic": b"event: message_stop",
        "gemini": b'"finishReason":"',
    }
    return any(marks[subject.name] in event for event in sent)


@every_adapter
async def test_an_error_inside_of_a_stream_is_reported_as_what_it_is(subject: Subject) -> None:
    limit = error(429, message="Slow down.", code="rate_limit_exceeded" if "openai" in subject.name else None)
    cuts = [text("One, two.", cut_after=2, cut_by=limit), text("One, two.", cut_after=2, cut_by=error(500))]
    with subject.server(cuts) as server:
        async with subject.at(server) as provider:
            begun, limited = await _pieces(provider)
            _, down = await _pieces(provider)

    assert (type(limited), type(down)) == (ProviderLimitError, ProviderDownError)
    assert (limited.retryable, down.retryable) == (True, True)
    assert all(isinstance(piece, TextDelta) for piece in begun)  # Nothing says that the answer is complete.


@every_adapter
async def test_leaving_a_stream_closes_the_connection(subject: Subject) -> None:
    sent = events(subject, text("One, two, three."))[:-1]
    async with serving(subject, sent) as server, subject.at(server) as provider:
        pieces = provider.stream(ModelRequest(messages=hello()))
        first = await anext(pieces)
        assert isinstance(first, TextDelta)
        assert "One, two, three.".startswith(first.text)
        assert not server.hung_up.is_set()
        await pieces.aclose()

        await asyncio.wait_for(server.hung_up.wait(), 5)


@every_adapter
async def test_cancelling_whoever_reads_a_stream_closes_the_connection(subject: Subject) -> None:
    sent = events(subject, text("One, two, three."))[:-1]
    async with serving(subject, sent) as server, subject.at(server) as provider:
        begun = asyncio.Event()

        async def read() -> None:
            async for _ in provider.stream(ModelRequest(messages=hello())):
                begun.set()

        task = asyncio.create_task(read())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        await asyncio.wait_for(server.hung_up.wait(), 5)


@every_adapter
async def test_leaving_one_stream_does_not_disturb_another_of_the_same_adapter(subject: Subject) -> None:
    begun, rest = _halves(events(subject, text("One, two, three.")))
    async with serving(subject, [*begun, WAIT, *rest], ends=True) as server, subject.at(server) as provider:
        request = ModelRequest(messages=hello())
        left, kept = provider.stream(request), provider.stream(request)
        await anext(left)
        await anext(kept)
        asked = asyncio.create_task(_pieces(provider))
        await left.aclose()
        server.go_on.set()
        said = [piece async for piece in kept]
        other, failed = await asked

    assert isinstance(said[-1], ModelResponse)
    assert (failed, other[-1]) == (None, said[-1])


def _halves(sent: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    """What holds the first words, and the rest."""
    begun = next(place for place, event in enumerate(sent, start=1) if b'"One,' in event)
    return sent[:begun], sent[begun:]


@every_adapter
async def test_a_provider_that_says_nothing_is_given_up_in_time(subject: Subject) -> None:
    async with serving(subject, []) as server, subject.at(server, timeout=0.2) as provider:
        with pytest.raises(ProviderDownError, match="in time"):
            await provider.ask(ModelRequest(messages=hello()))
        _, failed = await _pieces(provider)

    assert isinstance(failed, ProviderDownError)


@every_adapter
async def test_a_provider_that_sends_a_byte_now_and_then_is_given_up_in_time(subject: Subject) -> None:
    async with serving(subject, [b"\n"] * 500, pause=0.02) as server, subject.at(server, timeout=0.3) as provider:
        with pytest.raises(ProviderDownError, match="in time"):
            await asyncio.wait_for(provider.ask(ModelRequest(messages=hello())), 8)
        _, failed = await asyncio.wait_for(_pieces(provider), 8)

    assert isinstance(failed, ProviderDownError)
    assert "in time" in str(failed)


async def test_what_the_reader_of_a_stream_does_between_its_pieces_takes_no_time_of_the_provider() -> None:
    begun, rest = _halves(events(CHAT, text("One, two, three.")))
    async with serving(CHAT, [*begun, WAIT, *rest], ends=True) as server, CHAT.at(server, timeout=1.0) as provider:
        pieces = provider.stream(ModelRequest(messages=hello()))
        said = [await anext(pieces)]
        await asyncio.sleep(1.2)
        server.go_on.set()
        said += [piece async for piece in pieces]

    assert isinstance(said[-1], ModelResponse)


NONSENSE = {
    "a page": (b"text/html", b"<html>Welcome</html>"),
    "another object": (b"application/json", b'{"hello": "world"}'),
    "a list": (b"application/json", b"[1, 2]"),
    "half an object": (b"application/json", b'{"choices": [{"mess'),
    "null": (b"application/json", b"null"),
    "a pit": (b"application/json", b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "wrong types": (
        b"application/json",
        b'{"choices": 7, "output": 7, "status": "completed", "content": 7, "candidates": 7}',
    ),
    "wrong inside": (
        b"application/json",
        b'{"choices": [{"message": 5}], "output": [5], "status": [], "content": [5], "candidates": [{"content": 5}]}',
    ),
}


@every_adapter
@pytest.mark.parametrize(("kind", "body"), NONSENSE.values(), ids=NONSENSE)
async def test_a_response_that_is_none_is_reported_as_such(subject: Subject, kind: bytes, body: bytes) -> None:
    async with serving(subject, [body], kind=kind, ends=True) as server, subject.at(server) as provider:
        with pytest.raises((BadResponseError, ProviderDownError)):
            await provider.ask(ModelRequest(messages=hello()))


@every_adapter
@pytest.mark.parametrize(
    "event", [b"data: {\n\n", b"data: 5\n\n", b'data: {"choices": 7, "candidates": 7}\n\n', b"\xff\n\n"]
)
async def test_a_stream_of_nonsense_gives_no_reply(subject: Subject, event: bytes) -> None:
    async with serving(subject, [event], ends=True) as server, subject.at(server) as provider:
        pieces, failed = await _pieces(provider)

    assert pieces == []
    assert isinstance(failed, BadResponseError | ProviderDownError)


async def test_an_empty_reason_with_every_chunk_is_not_the_end() -> None:
    chunk = {"id": 5, "model": None, "choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": ""}]}
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    sent = [b"data: %s\n\n" % json.dumps(item).encode() for item in (chunk, chunk, last)]
    async with serving(CHAT, sent[:2], ends=True) as server, CHAT.at(server) as provider:
        _, failed = await _pieces(provider)
    async with serving(CHAT, sent, ends=True) as server, CHAT.at(server) as provider:
        pieces, _ = await _pieces(provider)

    assert isinstance(failed, ProviderDownError)
    assert isinstance(pieces[-1], ModelResponse)
    assert (pieces[-1].text, pieces[-1].finish_reason, pieces[-1].id) == ("HiHi", "stop", "5")


async def test_calls_without_an_id_get_one_each() -> None:
    call = {"type": "function", "function": {"name": "weather", "arguments": "{}"}}
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [call, call, {**call, "id": "x"}, {**call, "id": "x"}],
    }
    body = {"id": "1", "model": "m", "choices": [{"index": 0, "finish_reason": "tool_calls", "message": message}]}
    sent = [json.dumps(body).encode()]
    async with serving(CHAT, sent, kind=b"application/json", ends=True) as server, CHAT.at(server) as provider:
        reply = await provider.ask(ModelRequest(messages=hello(), tools=TOOLS))

    assert len({item.id for item in reply.calls if item.id}) == 4

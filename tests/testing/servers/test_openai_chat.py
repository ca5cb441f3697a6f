"""The official client of OpenAI against the local Chat Completions."""

from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from handrail.testing.servers import (
    OpenAIServer,
    Reply,
    ScriptedUsage,
    error,
    refusal,
    text,
    text_and_calls,
    tool_calls,
    truncated,
)
from tests.testing.servers.wire import schema

USER: Any = {"role": "user", "content": "What is the weather in Paris?"}
TOOL: Any = {"type": "function", "function": {"name": "get_weather", "parameters": schema(), "strict": True}}


def connect(server: OpenAIServer) -> OpenAI:
    return OpenAI(base_url=server.url, api_key="test", max_retries=0)


def ask(client: OpenAI, *messages: Any, **more: Any) -> Any:
    create: Any = client.chat.completions.create
    return create(model="gpt-test", messages=[USER, *messages], tools=[TOOL], **more)


def stream_all(server: OpenAIServer) -> Any:
    with (
        connect(server) as client,
        client.chat.completions.stream(
            model="gpt-test", messages=[USER], tools=[TOOL], stream_options={"include_usage": True}
        ) as stream,
    ):
        return stream.get_final_completion()


def test_a_call_is_made_gets_a_result_and_is_reported() -> None:
    with (
        OpenAIServer([tool_calls(("get_weather", {"city": "Paris"})), text("Sunny.")]) as server,
        connect(server) as client,
    ):
        message = ask(client).choices[0].message
        call = message.tool_calls[0]
        assert (call.id, call.function.name, call.function.arguments) == (
            "call_1_1",
            "get_weather",
            '{"city":"Paris"}',
        )
        answer = ask(client, message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"})
    assert answer.choices[0].message.content == "Sunny."
    assert answer.choices[0].finish_reason == "stop"
    assert server.requests[1].body["messages"][-1]["content"] == "sunny"


async def test_the_async_client_streams_parallel_calls_in_chunks() -> None:
    reply = text_and_calls("Let me see.", ("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Oslo"}, "mine"))
    with OpenAIServer([reply], piece=3) as server:
        client = AsyncOpenAI(base_url=server.url, api_key="test", max_retries=0)
        async with (
            client,
            client.chat.completions.stream(model="gpt-test", messages=[USER], tools=[TOOL]) as stream,
        ):
            events = [event async for event in stream]
            final = await stream.get_final_completion()
    calls = final.choices[0].message.tool_calls or []
    assert [(call.id, call.function.arguments) for call in calls] == [
        ("call_1_1", '{"city":"Paris"}'),
        ("mine", '{"city":"Oslo"}'),
    ]
    assert final.choices[0].message.content == "Let me see."
    assert sum(event.type == "tool_calls.function.arguments.delta" for event in events) > 8


@pytest.mark.parametrize("piece", [1, 4, 1000])
def test_a_stream_says_the_same_as_a_whole_response(piece: int) -> None:
    reply = text_and_calls(
        "Grüße 🌤", ("get_weather", {"city": "Zürich"}), usage=ScriptedUsage(input=7, output=3, cached=2)
    )
    with OpenAIServer([reply, reply], piece=piece) as server:
        streamed = stream_all(server)
        with connect(server) as client:
            whole = ask(client)
    assert streamed.choices[0].message.content == whole.choices[0].message.content == "Grüße 🌤"
    assert streamed.choices[0].finish_reason == whole.choices[0].finish_reason == "tool_calls"
    assert streamed.usage == whole.usage
    assert whole.usage.prompt_tokens_details.cached_tokens == 2


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (text("Hello"), "stop"),
        (text(""), "stop"),
        (tool_calls(("get_weather", "")), "tool_calls"),
        (tool_calls(("get_weather", "{}"), stop="stop"), "stop"),
        (truncated("Hel"), "length"),
        (truncated("", ("get_weather", '{"city": "Pa')), "length"),
        (text("He", stop="content_filter"), "content_filter"),
        (refusal("I can't help with that."), "stop"),
    ],
)
def test_every_way_to_stop(reply: Reply, reason: str) -> None:
    with OpenAIServer([reply, reply]) as server, connect(server) as client:
        whole = ask(client)
        chunks = list(ask(client, stream=True))
    assert whole.choices[0].finish_reason == chunks[-1].choices[0].finish_reason == reason
    assert whole.choices[0].message.refusal == reply.refusal
    deltas: list[Any] = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    assert "".join(call.function.arguments for call in deltas) == "".join(call.arguments for call in reply.calls)
    assert "".join(chunk.choices[0].delta.refusal or "" for chunk in chunks) == (reply.refusal or "")


@pytest.mark.parametrize("after", range(9))
def test_a_stream_that_is_cut_is_an_error_of_the_connection(after: int) -> None:
    reply = text_and_calls("Hello", ("get_weather", {"city": "Paris"}), cut_after=after)
    with OpenAIServer([reply]) as server, connect(server) as client:
        chunks = ask(client, stream=True)
        got: list[Any] = []
        with pytest.raises(openai.APIConnectionError):
            got.extend(chunks)


def test_a_stream_that_is_cut_gives_the_events_before_the_cut() -> None:
    with OpenAIServer([text("Hello world", cut_after=3)]) as server, connect(server) as client:
        got: list[Any] = []
        with pytest.raises(openai.APIConnectionError):
            got.extend(ask(client, stream=True))
    assert [chunk.choices[0].delta.content for chunk in got] == ["", "Hell", "o wo"]


def test_a_stream_can_end_too_early_as_if_it_were_complete() -> None:
    with OpenAIServer([text("Hello world", cut_after=2, cut_by="end")]) as server, connect(server) as client:
        chunks = list(ask(client, stream=True))
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None]


def test_a_stream_can_end_in_an_error() -> None:
    reply = text("Hello world", cut_after=2, cut_by=error(500, message="It broke."))
    with OpenAIServer([reply]) as server, connect(server) as client, pytest.raises(openai.APIError, match="It broke"):
        list(ask(client, stream=True))


def test_a_response_that_is_not_streamed_is_cut_before_it_starts() -> None:
    with (
        OpenAIServer([text("Hello", cut_after=0)]) as server,
        connect(server) as client,
        pytest.raises(openai.APIConnectionError),
    ):
        ask(client)


@pytest.mark.parametrize(
    ("status", "exception"),
    [
        (400, openai.BadRequestError),
        (401, openai.AuthenticationError),
        (403, openai.PermissionDeniedError),
        (404, openai.NotFoundError),
        (409, openai.ConflictError),
        (422, openai.UnprocessableEntityError),
        (429, openai.RateLimitError),
        (500, openai.InternalServerError),
        (503, openai.InternalServerError),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_scripted_errors_are_the_exceptions_of_the_client(
    status: int, exception: type[openai.APIStatusError], stream: bool
) -> None:
    with (
        OpenAIServer([error(status, "some_code", "Because.")]) as server,
        connect(server) as client,
        pytest.raises(exception, match="Because") as caught,
    ):
        ask(client, stream=stream)
    assert (caught.value.status_code, caught.value.code) == (status, "some_code")


def test_a_retry_of_the_client_gets_the_next_reply() -> None:
    with (
        OpenAIServer([error(500, headers={"retry-after-ms": "1"}), text("Sunny.")]) as server,
        OpenAI(base_url=server.url, api_key="test", max_retries=1) as client,
    ):
        assert ask(client).choices[0].message.content == "Sunny."


def test_structured_output_is_parsed_by_the_client() -> None:
    described: Any = {"type": "json_schema", "json_schema": {"name": "place", "schema": schema(), "strict": True}}
    with OpenAIServer([text('{"city":"Paris"}')]) as server, connect(server) as client:
        answer = client.chat.completions.create(model="gpt-test", messages=[USER], response_format=described)
    assert answer.choices[0].message.content == '{"city":"Paris"}'


@pytest.mark.parametrize("option", [{"n": 2}, {"functions": [{"name": "look"}]}])
def test_what_is_not_played_here_is_501(option: Any) -> None:
    with (
        OpenAIServer([]) as server,
        connect(server) as client,
        pytest.raises(openai.APIStatusError, match="This local server") as caught,
    ):
        ask(client, **option)
    assert caught.value.status_code == 501

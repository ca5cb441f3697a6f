"""The official client of Anthropic against the local Messages."""

from typing import Any

import anthropic
import pytest
from anthropic import Anthropic, AsyncAnthropic

from handrail.testing.servers import (
    AnthropicServer,
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
TOOL: Any = {"name": "get_weather", "description": "The weather.", "input_schema": schema()}
COMMON: Any = {"model": "claude-test", "max_tokens": 100, "tools": [TOOL]}


def connect(server: AnthropicServer) -> Anthropic:
    return Anthropic(base_url=server.url, api_key="test", max_retries=0)


def ask(client: Anthropic, *messages: Any, **more: Any) -> Any:
    create: Any = client.messages.create
    return create(**COMMON, messages=[USER, *messages], **more)


def result(name: str, content: Any = "sunny") -> Any:
    return {"type": "tool_result", "tool_use_id": name, "content": content}


def test_a_call_is_made_gets_a_result_and_is_reported() -> None:
    reply = text_and_calls("Let me see.", ("get_weather", {"city": "Paris"}))
    with AnthropicServer([reply, text("Sunny.")]) as server, connect(server) as client:
        first = ask(client)
        said, call = first.content
        assert (said.text, call.id, call.name, call.input) == (
            "Let me see.",
            "toolu_1_1",
            "get_weather",
            {"city": "Paris"},
        )
        told: Any = {"role": "user", "content": [result(call.id)]}
        second = ask(client, {"role": "assistant", "content": first.content}, told)
    assert (first.stop_reason, second.stop_reason) == ("tool_use", "end_turn")
    assert second.content[0].text == "Sunny."


async def test_the_async_client_streams_parallel_calls_in_chunks() -> None:
    reply = text_and_calls("Let me see.", ("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Oslo"}, "mine"))
    with AnthropicServer([reply], piece=3) as server:
        client = AsyncAnthropic(base_url=server.url, api_key="test", max_retries=0)
        async with client, client.messages.stream(**COMMON, messages=[USER]) as stream:
            events = [event async for event in stream]
            final = await stream.get_final_message()
    calls = [block for block in final.content if block.type == "tool_use"]
    assert [(call.id, call.input) for call in calls] == [
        ("toolu_1_1", {"city": "Paris"}),
        ("mine", {"city": "Oslo"}),
    ]
    assert sum(event.type == "input_json" for event in events) > 8


def test_the_events_of_a_text_and_a_call_are_those_of_the_api() -> None:
    reply = text_and_calls("Hello", ("get_weather", "{}"))
    with AnthropicServer([reply], piece=100) as server, connect(server) as client:
        streamed = client.messages.with_streaming_response.create(**COMMON, messages=[USER], stream=True)
        with streamed as answer:
            names = [line.removeprefix("event: ") for line in answer.iter_lines() if line.startswith("event: ")]
    assert names == [
        "message_start",
        "content_block_start",
        "ping",
        "content_block_delta",
        "content_block_stop",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


@pytest.mark.parametrize("piece", [1, 4, 1000])
def test_a_stream_says_the_same_as_a_whole_response(piece: int) -> None:
    reply = text_and_calls("Grüße 🌤", ("get_weather", {"city": "Zürich"}, "t"), id="m", usage=ScriptedUsage(cached=2))
    with AnthropicServer([reply, reply], piece=piece) as server, connect(server) as client:
        with client.messages.stream(**COMMON, messages=[USER]) as stream:
            streamed = stream.get_final_message()
        whole = ask(client)
    assert [block.to_dict() for block in streamed.content] == [
        {key: value for key, value in block.to_dict().items() if key != "citations"} for block in whole.content
    ]
    assert (streamed.id, streamed.stop_reason) == (whole.id, whole.stop_reason) == ("m", "tool_use")
    assert (streamed.usage.input_tokens, streamed.usage.cache_read_input_tokens) == (8, 2)
    assert streamed.usage.output_tokens == whole.usage.output_tokens == 5


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (text("Hello"), "end_turn"),
        (text(""), "end_turn"),
        (tool_calls(("get_weather", "")), "tool_use"),
        (truncated("Hel"), "max_tokens"),
        (truncated("Well", ("get_weather", '{"city": "Pa')), "max_tokens"),
        (text("Hello", stop="stop_sequence"), "stop_sequence"),
        (text("Hello", stop="pause_turn"), "pause_turn"),
        (text("Hello", stop="compaction"), "compaction"),
        (text("Hello", stop="model_context_window_exceeded"), "model_context_window_exceeded"),
        (refusal("I can't help with that."), "refusal"),
    ],
)
def test_every_way_to_stop(reply: Reply, reason: str) -> None:
    with AnthropicServer([reply, reply]) as server, connect(server) as client:
        whole = ask(client, stop_sequences=["END"])
        with client.messages.stream(**COMMON, messages=[USER], stop_sequences=["END"]) as stream:
            streamed = stream.get_final_message()
    for message in (whole, streamed):
        assert message.stop_reason == reason
        assert message.stop_sequence == ("END" if reason == "stop_sequence" else None)
        assert (message.stop_details.explanation if message.stop_details else None) == reply.refusal
        assert "".join(block.text for block in message.content if block.type == "text") == reply.text


def test_half_written_arguments_are_in_the_chunks_of_the_stream_only() -> None:
    reply = truncated("", ("get_weather", '{"city": "Pa'))
    with AnthropicServer([reply, reply]) as server, connect(server) as client:
        whole = ask(client)
        pieces = [event.delta.partial_json for event in ask(client, stream=True) if event.type == "content_block_delta"]
    assert whole.content[0].input == {}
    assert "".join(pieces) == '{"city": "Pa'


@pytest.mark.parametrize("after", range(10))
def test_a_stream_that_is_cut_is_an_error_of_the_connection(after: int) -> None:
    reply = text_and_calls("Hello", ("get_weather", {"city": "Paris"}), cut_after=after)
    with AnthropicServer([reply]) as server, connect(server) as client:
        got: list[Any] = []
        stream = ask(client, stream=True)
        with pytest.raises(Exception, match="peer closed connection"):  # this client lets the HTTP library's error pass
            got.extend(stream)
    assert len(got) <= after


def test_a_stream_can_end_too_early_as_if_it_were_complete() -> None:
    with AnthropicServer([text("Hello", cut_after=4, cut_by="end")]) as server, connect(server) as client:
        names = [event.type for event in ask(client, stream=True)]
    assert names == ["message_start", "content_block_start", "content_block_delta"]  # the client swallows the ping


def test_a_stream_can_end_in_an_error() -> None:
    reply = text("Hello", cut_after=3, cut_by=error(529, message="Too busy."))
    with (
        AnthropicServer([reply]) as server,
        connect(server) as client,
        pytest.raises(anthropic.APIStatusError, match=r"overloaded_error.*Too busy"),
    ):
        list(ask(client, stream=True))


@pytest.mark.parametrize(
    ("status", "exception", "kind"),
    [
        (400, anthropic.BadRequestError, "invalid_request_error"),
        (401, anthropic.AuthenticationError, "authentication_error"),
        (403, anthropic.PermissionDeniedError, "permission_error"),
        (404, anthropic.NotFoundError, "not_found_error"),
        (429, anthropic.RateLimitError, "rate_limit_error"),
        (500, anthropic.InternalServerError, "api_error"),
        (529, anthropic.APIStatusError, "overloaded_error"),
    ],
)
def test_scripted_errors_are_the_exceptions_of_the_client(
    status: int, exception: type[anthropic.APIStatusError], kind: str
) -> None:
    with (
        AnthropicServer([error(status, message="Because.")]) as server,
        connect(server) as client,
        pytest.raises(exception, match="Because") as caught,
    ):
        ask(client)
    body: Any = caught.value.body
    assert (caught.value.status_code, body["error"]["type"]) == (status, kind)


def test_the_tool_runner_of_the_client_runs_to_the_end() -> None:
    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """The weather of a city."""
        return f"sunny in {city}"

    with (
        AnthropicServer([tool_calls(("get_weather", {"city": "Paris"})), text("Sunny.")]) as server,
        connect(server) as client,
    ):
        runner = client.beta.messages.tool_runner(
            model="claude-test", max_tokens=100, messages=[USER], tools=[get_weather]
        )
        final: Any = runner.until_done()
    assert final.content[0].text == "Sunny."
    assert "sunny in Paris" in str(server.requests[1].body["messages"][-1])


def test_a_thread_holds_what_was_said_before() -> None:
    common: Any = {"model": "claude-test", "max_tokens": 10, "betas": ["threads"]}
    again: Any = {"type": "continue", "previous_message_id": "msg_1"}
    with AnthropicServer([tool_calls(("get_weather", "{}")), text("Sunny.")]) as server, connect(server) as client:
        create = client.beta.messages.create
        create(**common, messages=[USER], tools=[TOOL], thread={"type": "create"})
        with pytest.raises(anthropic.BadRequestError, match="without `tool_result` blocks"):
            create(**common, messages=[USER], thread=again)
        create(**common, messages=[{"role": "user", "content": [result("toolu_1_1")]}], thread=again)
        with pytest.raises(anthropic.BadRequestError, match="has already been continued") as caught:
            create(**common, messages=[USER], thread=again)
        assert caught.value.error_code == "thread_already_continued"
        with pytest.raises(anthropic.NotFoundError, match="no state was found"):
            create(**common, messages=[USER], thread={"type": "continue", "previous_message_id": "msg_9"})

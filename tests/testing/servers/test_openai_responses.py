"""The official client of OpenAI against the local Responses."""

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

TOOL: Any = {"type": "function", "name": "get_weather", "parameters": schema(), "strict": True}
QUESTION: Any = {"role": "user", "content": "What is the weather in Paris?"}


def connect(server: OpenAIServer) -> OpenAI:
    return OpenAI(base_url=server.url, api_key="test", max_retries=0)


def ask(client: OpenAI, *items: Any, **more: Any) -> Any:
    create: Any = client.responses.create
    return create(model="gpt-test", input=[QUESTION, *items], tools=[TOOL], **more)


def output(call_id: str, content: Any = "sunny") -> Any:
    return {"type": "function_call_output", "call_id": call_id, "output": content}


def test_a_call_is_made_gets_a_result_and_is_reported() -> None:
    with (
        OpenAIServer([tool_calls(("get_weather", {"city": "Paris"})), text("Sunny.")]) as server,
        connect(server) as client,
    ):
        first = ask(client)
        call = first.output[0]
        assert (call.type, call.id, call.call_id, call.arguments) == (
            "function_call",
            "fc_1_1",
            "call_1_1",
            '{"city":"Paris"}',
        )
        second = ask(client, *first.output, output(call.call_id))
    assert (second.output_text, second.status) == ("Sunny.", "completed")


def test_the_server_remembers_a_response_that_is_continued() -> None:
    script = [tool_calls(("get_weather", {"city": "Paris"}, "mine")), text("Sunny."), text("Bye.")]
    with OpenAIServer(script) as server, connect(server) as client:
        first = ask(client)
        second = client.responses.create(model="gpt-test", previous_response_id=first.id, input=[output("mine")])
        third = client.responses.create(model="gpt-test", previous_response_id=second.id, input="Thanks!")
    assert third.output_text == "Bye."
    assert third.previous_response_id == second.id


def test_a_stored_call_that_stays_open_is_refused() -> None:
    with OpenAIServer([tool_calls(("get_weather", "{}"))]) as server, connect(server) as client:
        first = ask(client)
        with pytest.raises(openai.BadRequestError, match="No tool output found for function call call_1_1"):
            client.responses.create(model="gpt-test", previous_response_id=first.id, input="And now?")


def test_a_call_that_was_broken_off_needs_no_result() -> None:
    with OpenAIServer([truncated("", ("get_weather", '{"ci')), text("Sorry.")]) as server, connect(server) as client:
        first = ask(client)
        again = client.responses.create(model="gpt-test", previous_response_id=first.id, input="Again, please.")
    assert again.output_text == "Sorry."


def test_a_response_that_was_not_stored_cannot_be_continued() -> None:
    with OpenAIServer([text("Hello")]) as server, connect(server) as client:
        first = ask(client, store=False)
        with pytest.raises(openai.BadRequestError, match="Previous response with id 'resp_1' not found") as caught:
            client.responses.create(model="gpt-test", previous_response_id=first.id, input="Again")
    assert caught.value.code == "previous_response_not_found"


def test_a_stored_item_can_be_referred_to() -> None:
    reply = tool_calls(("get_weather", "{}"))
    with OpenAIServer([reply, text("Sunny.")]) as server, connect(server) as client:
        item = ask(client).output[0]
        answer = ask(client, {"type": "item_reference", "id": item.id}, output(item.call_id))
        assert answer.output_text == "Sunny."
        with pytest.raises(openai.NotFoundError, match="Item with id 'fc_9' not found"):
            ask(client, {"type": "item_reference", "id": "fc_9"})


async def test_the_async_client_streams_parallel_calls_in_chunks() -> None:
    reply = text_and_calls("Let me see.", ("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Oslo"}, "mine"))
    with OpenAIServer([reply], piece=3) as server:
        client = AsyncOpenAI(base_url=server.url, api_key="test", max_retries=0)
        async with client, client.responses.stream(model="gpt-test", input="Weather?", tools=[TOOL]) as stream:
            events = [event async for event in stream]
            final = await stream.get_final_response()
    calls = [item for item in final.output if item.type == "function_call"]
    assert [(call.call_id, call.arguments) for call in calls] == [
        ("call_1_1", '{"city":"Paris"}'),
        ("mine", '{"city":"Oslo"}'),
    ]
    assert final.output_text == "Let me see."
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_the_events_of_a_text_and_a_call_are_those_of_the_api() -> None:
    reply = text_and_calls("Hello", ("get_weather", "{}"))
    with OpenAIServer([reply], piece=100) as server, connect(server) as client:
        names = [event.type for event in ask(client, stream=True)]
    assert [name.removeprefix("response.") for name in names] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]


@pytest.mark.parametrize("piece", [1, 4, 1000])
def test_a_stream_says_the_same_as_a_whole_response(piece: int) -> None:
    reply = text_and_calls("Grüße 🌤", ("get_weather", {"city": "Zürich"}), id="r", usage=ScriptedUsage(cached=2))
    with OpenAIServer([reply, reply], piece=piece) as server, connect(server) as client:
        with client.responses.stream(model="gpt-test", input=[QUESTION], tools=[TOOL]) as stream:
            streamed: Any = stream.get_final_response()
        whole = ask(client)
    assert streamed.output_text == whole.output_text == "Grüße 🌤"
    assert streamed.output[1].arguments == whole.output[1].arguments
    assert streamed.usage == whole.usage
    assert whole.usage.input_tokens_details.cached_tokens == 2


@pytest.mark.parametrize(
    ("reply", "status", "reason"),
    [
        (text("Hello"), "completed", None),
        (text(""), "completed", None),
        (tool_calls(("get_weather", "{}")), "completed", None),
        (refusal("I can't help with that."), "completed", None),
        (truncated("Hel"), "incomplete", "max_output_tokens"),
        (truncated("Well", ("get_weather", '{"city": "Pa')), "incomplete", "max_output_tokens"),
        (text("He", stop="content_filter"), "incomplete", "content_filter"),
        (text("He", stop="steered"), "incomplete", "steered"),
        (text("", stop="failed"), "failed", None),
    ],
)
def test_every_way_to_stop(reply: Reply, status: str, reason: str | None) -> None:
    with OpenAIServer([reply, reply]) as server, connect(server) as client:
        whole = ask(client)
        events = list(ask(client, stream=True))
    assert events[-1].type == f"response.{status}"
    for response in (whole, events[-1].response):
        assert response.status == status
        assert (response.incomplete_details.reason if response.incomplete_details else None) == reason
        assert (response.error is not None) == (status == "failed")
        said = [part for item in response.output if item.type == "message" for part in item.content]
        assert [part.refusal for part in said if part.type == "refusal"] == ([reply.refusal] if reply.refusal else [])
        assert [item.arguments for item in response.output if item.type == "function_call"] == [
            call.arguments for call in reply.calls
        ]
    deltas = [event.delta for event in events if event.type == "response.refusal.delta"]
    assert "".join(deltas) == (reply.refusal or "")


@pytest.mark.parametrize("after", range(12))
def test_a_stream_that_is_cut_is_an_error_of_the_connection(after: int) -> None:
    reply = text_and_calls("Hello", ("get_weather", {"city": "Paris"}), cut_after=after)
    with OpenAIServer([reply]) as server, connect(server) as client:
        got: list[Any] = []
        stream = ask(client, stream=True)
        with pytest.raises(openai.APIConnectionError):
            got.extend(stream)
    assert len(got) <= after


def test_a_stream_can_end_too_early_as_if_it_were_complete() -> None:
    with OpenAIServer([text("Hello", cut_after=5, cut_by="end")]) as server, connect(server) as client:
        names = [event.type for event in ask(client, stream=True)]
    assert names[-1] == "response.output_text.delta"


def test_a_stream_can_end_in_an_error() -> None:
    reply = text("Hello", cut_after=5, cut_by=error(500, "server_error", "It broke."))
    with OpenAIServer([reply]) as server, connect(server) as client:
        last = list(ask(client, stream=True))[-1]
    assert (last.type, last.code, last.message) == ("error", "server_error", "It broke.")


@pytest.mark.parametrize(
    ("status", "exception"),
    [(401, openai.AuthenticationError), (429, openai.RateLimitError), (500, openai.InternalServerError)],
)
def test_scripted_errors_are_the_exceptions_of_the_client(status: int, exception: type[openai.APIStatusError]) -> None:
    with (
        OpenAIServer([error(status, message="Because.")]) as server,
        connect(server) as client,
        pytest.raises(exception, match="Because"),
    ):
        ask(client)


def test_structured_output_is_parsed_by_the_client() -> None:
    described: Any = {"format": {"type": "json_schema", "name": "place", "schema": schema(), "strict": True}}
    with OpenAIServer([text('{"city":"Paris"}')]) as server, connect(server) as client:
        answer = client.responses.create(model="gpt-test", input="Where?", text=described)
    assert answer.output_text == '{"city":"Paris"}'


@pytest.mark.parametrize("option", [{"conversation": "conv_1"}, {"background": True}])
def test_what_is_not_played_here_is_501(option: Any) -> None:
    with (
        OpenAIServer([]) as server,
        connect(server) as client,
        pytest.raises(openai.APIStatusError, match="This local server has no") as caught,
    ):
        ask(client, **option)
    assert caught.value.status_code == 501

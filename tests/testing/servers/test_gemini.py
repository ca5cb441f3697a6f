"""The official client of Google against the local Gemini."""

from typing import Any

import pytest
from google import genai
from google.genai import errors, types

from handrail.testing.servers import (
    GeminiServer,
    Reply,
    ScriptedUsage,
    error,
    refusal,
    text,
    text_and_calls,
    tool_calls,
    truncated,
)

DECLARATION: Any = {
    "name": "get_weather",
    "parameters_json_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CONFIG: Any = {"tools": [{"function_declarations": [DECLARATION]}]}
USER = types.Content(role="user", parts=[types.Part(text="What is the weather in Paris?")])


def connect(server: GeminiServer) -> genai.Client:
    return genai.Client(api_key="test", http_options=types.HttpOptions(base_url=server.url))


def ask(client: genai.Client, *contents: Any) -> types.GenerateContentResponse:
    return client.models.generate_content(model="gemini-test", contents=[USER, *contents], config=CONFIG)


def stream(client: genai.Client) -> Any:
    return client.models.generate_content_stream(model="gemini-test", contents=[USER], config=CONFIG)


def answer(call: types.FunctionCall, **response: Any) -> types.Part:
    return types.Part(
        function_response=types.FunctionResponse(id=call.id, name=call.name, response=response or {"output": "sunny"})
    )


def first(response: Any) -> Any:
    return response.candidates[0]


@pytest.mark.parametrize("call_ids", [True, False])
def test_calls_are_made_get_results_and_are_reported(call_ids: bool) -> None:
    reply = text_and_calls("Let me see.", ("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Oslo"}))
    with GeminiServer([reply, text("Sunny.")], call_ids=call_ids) as server, connect(server) as client:
        response = ask(client)
        calls = response.function_calls or []
        assert [call.id for call in calls] == (["call_1_1", "call_1_2"] if call_ids else [None, None])
        assert [call.args for call in calls] == [{"city": "Paris"}, {"city": "Oslo"}]
        told = types.Content(role="user", parts=[answer(call) for call in calls])
        final = ask(client, first(response).content, told)
    assert final.text == "Sunny."
    assert final.model_version == "gemini-test"


def test_parameters_in_the_schema_of_google_are_accepted() -> None:
    declared = types.FunctionDeclaration(
        name="get_weather",
        parameters=types.Schema(
            type=types.Type.OBJECT,
            properties={
                "days": types.Schema(type=types.Type.ARRAY, items=types.Schema(type=types.Type.STRING, enum=["a"]))
            },
        ),
    )
    config = types.GenerateContentConfig(
        system_instruction="Be brief.",
        tools=[types.Tool(function_declarations=[declared])],
        tool_config=types.ToolConfig(
            function_calling_config=types.FunctionCallingConfig(
                mode=types.FunctionCallingConfigMode.ANY, allowed_function_names=["get_weather"]
            )
        ),
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
    )
    with GeminiServer([text("Sunny.")]) as server, connect(server) as client:
        assert client.models.generate_content(model="gemini-test", contents="Hi", config=config).text == "Sunny."


def test_the_automatic_calls_of_the_client_run_to_the_end() -> None:
    def get_weather(city: str) -> str:
        """The weather of a city."""
        return f"sunny in {city}"

    with (
        GeminiServer([tool_calls(("get_weather", {"city": "Paris"})), text("Sunny.")]) as server,
        connect(server) as client,
    ):
        response = client.models.generate_content(
            model="gemini-test", contents="Weather?", config=types.GenerateContentConfig(tools=[get_weather])
        )
    assert response.text == "Sunny."
    assert "sunny in Paris" in str(server.requests[1].body["contents"][-1])


async def test_the_async_client_streams_text_in_chunks_and_calls_whole() -> None:
    reply = text_and_calls("Let me see.", ("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Oslo"}, "mine"))
    with GeminiServer([reply], piece=3) as server:
        async with connect(server).aio as client:
            chunks = await client.models.generate_content_stream(model="gemini-test", contents="Hi", config=CONFIG)
            got = [chunk async for chunk in chunks]
    parts = [part for chunk in got for part in first(chunk).content.parts]
    assert [part.text for part in parts if part.text] == ["Let", " me", " se", "e."]
    assert [part.function_call.id for part in parts if part.function_call] == ["call_1_1", "mine"]
    assert [first(chunk).finish_reason for chunk in got] == [None] * 5 + ["STOP"]


@pytest.mark.parametrize("piece", [1, 4, 1000])
def test_a_stream_says_the_same_as_a_whole_response(piece: int) -> None:
    reply = text("Grüße 🌤", usage=ScriptedUsage(input=7, output=3, cached=2))
    with GeminiServer([reply, reply], piece=piece) as server, connect(server) as client:
        chunks = list(stream(client))
        whole = ask(client)
    assert "".join(chunk.text for chunk in chunks) == whole.text == "Grüße 🌤"
    assert chunks[-1].usage_metadata == whole.usage_metadata
    assert whole.usage_metadata
    assert whole.usage_metadata.cached_content_token_count == 2


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (text("Hello"), "STOP"),
        (text(""), "STOP"),
        (tool_calls(("get_weather", "")), "STOP"),
        (truncated("Hel"), "MAX_TOKENS"),
        (truncated("", ("get_weather", '{"city": "Pa')), "MAX_TOKENS"),
        (tool_calls(("get_weather", "{'city'")), "MALFORMED_FUNCTION_CALL"),
        (refusal("I can't help with that."), "SAFETY"),
        (text("He", stop="RECITATION"), "RECITATION"),
        (text("", stop="UNEXPECTED_TOOL_CALL"), "UNEXPECTED_TOOL_CALL"),
        (text("", stop="PROHIBITED_CONTENT"), "PROHIBITED_CONTENT"),
    ],
)
def test_every_way_to_stop(reply: Reply, reason: str) -> None:
    with GeminiServer([reply, reply]) as server, connect(server) as client:
        whole = ask(client)
        last = list(stream(client))[-1]
    for response in (whole, last):
        assert first(response).finish_reason == reason
        assert not reply.refusal or first(response).content.parts is None


@pytest.mark.parametrize("after", range(4))
def test_a_stream_that_is_cut_is_an_error_of_the_connection(after: int) -> None:
    reply = text_and_calls("Hello", ("get_weather", {"city": "Paris"}), cut_after=after)
    with GeminiServer([reply]) as server, connect(server) as client:
        got: list[Any] = []
        chunks = stream(client)
        with pytest.raises(Exception, match="peer closed connection"):  # this client lets the HTTP library's error pass
            got.extend(chunks)
    assert len(got) <= after


def test_a_stream_can_end_too_early_as_if_it_were_complete() -> None:
    with GeminiServer([text("Hello", cut_after=1, cut_by="end")]) as server, connect(server) as client:
        assert [first(chunk).finish_reason for chunk in stream(client)] == [None]


def test_a_stream_can_end_in_an_error() -> None:
    reply = text("Hello", cut_after=1, cut_by=error(503, message="Too busy."))
    with GeminiServer([reply]) as server, connect(server) as client, pytest.raises(errors.APIError, match="Too busy"):
        list(stream(client))


@pytest.mark.parametrize(
    ("status", "exception", "name"),
    [
        (400, errors.ClientError, "INVALID_ARGUMENT"),
        (403, errors.ClientError, "PERMISSION_DENIED"),
        (404, errors.ClientError, "NOT_FOUND"),
        (429, errors.ClientError, "RESOURCE_EXHAUSTED"),
        (500, errors.ServerError, "INTERNAL"),
        (503, errors.ServerError, "UNAVAILABLE"),
    ],
)
def test_scripted_errors_are_the_exceptions_of_the_client(
    status: int, exception: type[errors.APIError], name: str
) -> None:
    with (
        GeminiServer([error(status, message="Because.")]) as server,
        connect(server) as client,
        pytest.raises(exception, match="Because") as caught,
    ):
        ask(client)
    assert (caught.value.code, caught.value.status) == (status, name)

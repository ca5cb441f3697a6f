"""OpenAI Chat Completions."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from handrail import ToolArgsParseError, ToolResult, tool
from handrail.formats import openai_chat as wire
from tests.formats.apis import CHAT, Said
from tests.formats.streams import check_cuts, pieces, spoken, takes_anything, woven

SAID = [Said("call_1", "get", '{"city":"Ulm"}'), Said("call_2", "put", "{}")]


def chunk(delta: dict[str, Any], finish_reason: str | None = None, index: int = 0) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "finish_reason": finish_reason}
    return {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def piece(index: int, arguments: str, said: Said | None = None) -> dict[str, Any]:
    function: dict[str, Any] = {"arguments": arguments}
    if said is None:
        return chunk({"tool_calls": [{"index": index, "function": function}]})
    first = {"index": index, "id": said.id, "type": "function", "function": function | {"name": said.name}}
    return chunk({"tool_calls": [first]})


END = [
    chunk({}, "tool_calls"),
    {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [], "usage": None},
]


def completion(finish_reason: str | None = "tool_calls") -> dict[str, Any]:
    answer = CHAT.response(SAID)
    answer["choices"][0]["finish_reason"] = finish_reason
    return {**answer, "object": "chat.completion", "created": 1, "model": "m"}


def test_a_definition_wraps_the_function() -> None:
    @tool
    def add(a: int, b: int = 1) -> int:
        """Add."""
        return a + b

    assert wire.tools([add]) == [
        {
            "type": "function",
            "function": {
                "name": "add",
                "description": "Add.",
                "parameters": {
                    "additionalProperties": False,
                    "properties": {"a": {"type": "integer"}, "b": {"default": 1, "type": "integer"}},
                    "required": ["a"],
                    "type": "object",
                },
            },
        }
    ]


@pytest.mark.parametrize(
    "response",
    [
        completion(),
        ChatCompletion.model_validate(completion()),
        completion()["choices"][0]["message"],
        ChatCompletion.model_validate(completion()).choices[0].message,
    ],
    ids=["dict", "object", "message", "message object"],
)
def test_calls_are_read_from_a_completion_and_from_its_message(response: Any) -> None:
    calls = wire.calls(response)

    assert [(call.wire_id, call.name, call.arguments_json) for call in calls] == [
        (s.id, s.name, s.arguments) for s in SAID
    ]


def test_a_result_is_a_message_of_the_role_tool() -> None:
    assert wire.results([ToolResult(output=[1, "ü"], call_id="call_1", tool_name="get")]) == [
        {"role": "tool", "tool_call_id": "call_1", "content": '[1,"ü"]'}
    ]


@pytest.mark.parametrize("reason", ["length", "content_filter", None])
def test_the_last_call_of_a_response_that_was_cut_gets_a_result_and_never_runs(reason: str | None) -> None:
    whole, cut = wire.calls(completion(reason))

    assert takes_anything.parse(whole.arguments_json) == {"city": "Ulm"}
    assert cut.wire_id == "call_2"
    with pytest.raises(ToolArgsParseError):
        takes_anything.parse(cut.arguments_json)


def test_a_custom_call_gets_a_result_too() -> None:
    custom = {"id": "call_1", "type": "custom", "custom": {"name": "sql", "input": "SELECT 1"}}

    (call,) = wire.calls({"tool_calls": [custom]})

    assert (call.id, call.name, call.arguments_json) == ("call_1", "sql", "SELECT 1")


@given(spoken(), st.integers(1, 9), st.booleans(), st.booleans(), st.data())
def test_a_stream_gives_the_calls_wherever_it_breaks_off(
    said: list[Said], size: int, mixed: bool, objects: bool, data: st.DataObject
) -> None:
    threads = [
        [piece(n, "", one), *(piece(n, part) for part in pieces(one.arguments, size))] for n, one in enumerate(said)
    ]
    events = [chunk({"role": "assistant", "content": ""}), *data.draw(woven(threads, interleaved=mixed)), *END]
    if objects:
        events = [ChatCompletionChunk.model_validate(event) for event in events]

    check_cuts(events, said, wire.calls)


def test_a_call_that_has_not_begun_when_the_stream_breaks_off_does_not_run_without_arguments() -> None:
    events = [piece(0, "", SAID[0]), piece(1, "", SAID[1]), piece(1, "{}")]

    for call in wire.calls(events):
        with pytest.raises(ToolArgsParseError):
            takes_anything.parse(call.arguments_json)


def test_a_stream_that_ends_with_the_token_limit_has_a_last_call_that_does_not_run() -> None:
    (call,) = wire.calls([piece(0, '{"a":1}', SAID[0]), chunk({}, "length")])

    with pytest.raises(ToolArgsParseError):
        takes_anything.parse(call.arguments_json)


@pytest.mark.parametrize("index", [0, None], ids=["always 0", "no index"])
def test_servers_that_do_not_count_their_calls_are_understood(index: Any) -> None:
    events = [piece(index, '{"a":', SAID[0]), piece(index, "1}"), piece(index, '{"b":2}', SAID[1]), *END]

    assert [(call.wire_id, call.arguments_json) for call in wire.calls(events)] == [
        ("call_1", '{"a":1}'),
        ("call_2", '{"b":2}'),
    ]


def test_a_server_that_repeats_the_id_with_every_chunk_is_understood() -> None:
    events = [piece(0, part, SAID[0]) for part in ('{"a"', ":1}")]

    assert [call.arguments_json for call in wire.calls([*events, *END])] == ['{"a":1}']


def test_only_the_first_choice_counts() -> None:
    second = chunk({"tool_calls": [{"index": 0, "id": "x", "function": {"name": "x", "arguments": "{}"}}]}, index=1)

    assert [call.wire_id for call in wire.calls([piece(0, "{}", SAID[0]), second, *END])] == ["call_1"]


def test_events_of_the_sdks_stream_helper_carry_their_chunks() -> None:
    events = [{"type": "chunk", "chunk": item} for item in [piece(0, "{}", SAID[0]), *END]]

    assert [call.arguments_json for call in wire.calls(events)] == ["{}"]


def test_arguments_stay_text() -> None:
    strange = '{ "a" : 1.0 , "a" : 2 }'

    assert wire.calls(CHAT.response([Said("1", "t", strange)]))[0].arguments_json == strange
    assert json.loads(strange) == {"a": 2}

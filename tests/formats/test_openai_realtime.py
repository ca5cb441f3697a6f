"""OpenAI Realtime."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter

from handrail import InvalidArgumentsError, ToolCall, ToolContext, ToolRegistry, ToolResult, tool
from handrail.formats import openai_realtime as wire
from tests.formats.apis import Said, function_call
from tests.formats.streams import pieces, spoken, woven

SAID = Said("call_1", "get", '{"city":"Ulm"}')
server_event = TypeAdapter[Any](RealtimeServerEvent)


def item_event(kind: str, item: dict[str, Any], index: int = 0) -> dict[str, Any]:
    rest = {"event_id": "e", "response_id": "resp_1", "output_index": index}
    return {"type": f"response.output_item.{kind}", "item": {"object": "realtime.item", **item}, **rest}


def thread(index: int, said: Said, size: int) -> list[dict[str, Any]]:
    rest = {"event_id": "e", "response_id": "resp_1", "output_index": index, "item_id": f"fc_{said.id}"}
    kind = "response.function_call_arguments"
    return [
        item_event("added", function_call(Said(said.id, said.name, ""), "in_progress"), index),
        *(
            {"type": f"{kind}.delta", "delta": piece, "call_id": said.id, **rest}
            for piece in pieces(said.arguments, size)
        ),
        {"type": f"{kind}.done", "arguments": said.arguments, "call_id": said.id, "name": said.name, **rest},
        item_event("done", function_call(said), index),
    ]


def done(items: list[Any], status: str = "completed") -> dict[str, Any]:
    response = {"object": "realtime.response", "id": "resp_1", "status": status, "output": items}
    return {"type": "response.done", "event_id": "e", "response": response}


@tool(strict=True, examples=[{"city": "Ulm"}])
async def get(city: str, days: int = 1) -> str:
    """Look up the weather."""
    return f"Rain in {city}."


@pytest.mark.proves("PH-04", "PH-D7")
def test_a_definition_is_flat_and_has_no_strict() -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"default": 1, "type": "integer"}},
        "required": ["city"],
        "additionalProperties": False,
    }
    flat = {
        "type": "function",
        "name": "get",
        "description": 'Look up the weather.\n\nExamples of arguments:\n{"city":"Ulm"}',
        "parameters": schema,
    }

    definitions = wire.tools([get])

    assert definitions == ToolRegistry([get]).to_openai_realtime_tools() == [flat]
    assert [note.text for note in definitions.notes] == ["is sent without strict mode: Realtime has no strict mode"]


@pytest.mark.proves("PH-27")
@pytest.mark.parametrize("objects", [False, True], ids=["dict", "object"])
@pytest.mark.parametrize(
    "events",
    [
        item_event("done", function_call(SAID)),
        [item_event("done", function_call(SAID))],
        done([function_call(SAID)]),
        [*thread(0, SAID, 4), done([function_call(SAID)])],
    ],
    ids=["one event", "a list", "the end", "everything"],
)
def test_a_completed_item_is_one_call_with_its_ids(events: Any, objects: bool) -> None:
    if objects:
        many = isinstance(events, list)
        events = (
            [server_event.validate_python(event) for event in events] if many else server_event.validate_python(events)
        )

    assert wire.calls(events) == [
        ToolCall(
            id="resp_1/call_1",
            provider_id="call_1",
            name="get",
            arguments_json='{"city":"Ulm"}',
            response_id="resp_1",
            item_id="fc_call_1",
        )
    ]


@pytest.mark.parametrize(
    "events",
    [
        thread(0, SAID, 4)[:-1],
        thread(0, SAID, 4)[-2],
        [item_event("added", function_call(SAID))],
        [item_event("done", function_call(SAID, "incomplete"))],
        [item_event("done", function_call(SAID, "in_progress"))],
        [item_event("done", {key: value for key, value in function_call(SAID).items() if key != "status"})],
        done([function_call(SAID, "incomplete")], "cancelled"),
        done([], "cancelled"),
        [item_event("done", {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": []})],
        [{"type": "session.created"}, {"type": "input_audio_buffer.speech_started"}],
    ],
    ids=[
        "not done",
        "arguments done",
        "added",
        "incomplete",
        "in progress",
        "silent",
        "cancelled",
        "nothing",
        "message",
        "other",
    ],
)
def test_what_is_not_a_completed_function_call_is_no_call(events: Any) -> None:
    assert wire.calls(events) == []


def test_a_name_that_an_older_server_leaves_out_is_the_one_of_the_item_that_was_added() -> None:
    added, *_, last = thread(0, SAID, 4)
    last["item"] = {key: value for key, value in last["item"].items() if key != "name"}

    assert [call.name for call in wire.calls([added, last])] == ["get"]
    assert [(call.wire_id, call.name) for call in wire.calls([last])] == [("call_1", "")]


@given(spoken(), st.integers(1, 9), st.booleans(), st.booleans(), st.data())
def test_only_items_that_were_completed_are_calls_wherever_the_events_break_off(
    said: list[Said], size: int, mixed: bool, objects: bool, data: st.DataObject
) -> None:
    threads = [thread(index, one, size) for index, one in enumerate(said)]
    events = [*data.draw(woven(threads, interleaved=mixed)), done([function_call(text) for text in said])]
    if objects:
        events = [server_event.validate_python(event) for event in events]

    by_id = {text.id: text for text in said}
    for position in range(len(events) + 1):
        found = wire.calls(events[:position])
        assert len({item.wire_id for item in found}) == len(found)
        assert all(item.arguments_json == by_id[item.wire_id].arguments for item in found)
    assert sorted(call.wire_id for call in wire.calls(events)) == sorted(by_id)


@pytest.mark.proves("PH-28")
def test_a_result_is_a_conversation_item_under_the_id_of_its_call() -> None:
    result = ToolResult(output={"rain": True}, call_id="call_1", tool_name="get")

    assert wire.results([result]) == [
        {
            "type": "conversation.item.create",
            "item": {"type": "function_call_output", "call_id": "call_1", "output": '{"rain":true}'},
        }
    ]


@pytest.mark.proves("PH-D7")
@pytest.mark.parametrize("arguments", ["{}", '{"city": 1}', '{"city": "Ulm", "days": "many"}', '{"town": "Ulm"}'])
async def test_arguments_are_validated_here_before_anything_runs(arguments: str) -> None:
    ran: list[str] = []

    @tool(name="get")
    async def spy(city: str, days: int = 1) -> str:
        ran.append(city)
        return city

    definitions = wire.tools([spy])
    (call,) = wire.calls(item_event("done", function_call(Said("call_1", "get", arguments))), definitions)

    with pytest.raises(InvalidArgumentsError):
        spy.parse(call.arguments_json)
    result = await spy.execute(call.arguments_json, ToolContext(session_id="phone-1", call=call))
    assert ran == []
    (answer,) = wire.results([result])
    assert answer["item"]["call_id"] == "call_1"  # pyright: ignore[reportTypedDictNotRequiredAccess, reportGeneralTypeIssues]
    assert json.loads(answer["item"]["output"])["error"] == "invalid_arguments"  # pyright: ignore[reportTypedDictNotRequiredAccess, reportGeneralTypeIssues]

"""OpenAI Responses."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from handrail import ToolArgsParseError, ToolRegistry, ToolResult, tool
from handrail.formats import openai_responses as wire
from tests.formats.apis import RESPONSES, Said, function_call
from tests.formats.streams import check_cuts, pieces, spoken, takes_anything, woven

SAID = [Said("call_1", "get", '{"city":"Ulm"}'), Said("call_2", "put", "{ }")]
MESSAGE = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": []}
stream_event = TypeAdapter[Any](ResponseStreamEvent)


def response(output: list[Any], status: str = "completed") -> dict[str, Any]:
    rest = {"created_at": 1, "model": "m", "object": "response", "parallel_tool_calls": True}
    return {"id": "resp_1", "status": status, "output": output, "tool_choice": "auto", "tools": [], **rest}


def thread(index: int, said: Said, size: int) -> list[dict[str, Any]]:
    item = {"item_id": f"fc_{said.id}", "output_index": index, "sequence_number": 1}
    kind = "response.function_call_arguments"
    begun = function_call(Said(said.id, said.name, ""), "in_progress")
    return [
        {"type": "response.output_item.added", "output_index": index, "sequence_number": 1, "item": begun},
        *({"type": f"{kind}.delta", "delta": part, **item} for part in pieces(said.arguments, size)),
        {"type": f"{kind}.done", "arguments": said.arguments, "name": said.name, **item},
        {"type": "response.output_item.done", "output_index": index, "sequence_number": 1, "item": function_call(said)},
    ]


def ends(said: list[Said]) -> dict[str, Any]:
    whole = response([function_call(text) for text in said])
    return {"type": "response.completed", "sequence_number": 9, "response": whole}


CREATED = {"type": "response.created", "sequence_number": 0, "response": response([], "in_progress")}


@pytest.mark.proves("HC-14")
def test_a_definition_is_flat_and_says_whether_it_is_strict() -> None:
    @tool
    def add(a: int) -> int:
        """Add."""
        return a

    properties = {"properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
    schema = {"type": "object", **properties}
    flat = {"type": "function", "name": "add", "description": "Add.", "parameters": schema, "strict": False}
    assert wire.tools([add]) == ToolRegistry([add]).to_openai_tools() == [flat]


@pytest.mark.proves("HC-17")
@pytest.mark.parametrize("objects", [False, True], ids=["dict", "object"])
def test_each_function_call_is_read_in_order_with_its_arguments_as_text(objects: bool) -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": []}
    answer: Any = response([MESSAGE, function_call(SAID[0]), thought, function_call(SAID[1])])
    if objects:
        answer = Response.model_validate(answer)

    calls = wire.calls(answer)

    assert [(call.wire_id, call.name, call.arguments_json) for call in calls] == [
        (s.id, s.name, s.arguments) for s in SAID
    ]
    assert [(call.response_id, call.item_id) for call in calls] == [("resp_1", "fc_call_1"), ("resp_1", "fc_call_2")]


def test_calls_are_read_from_output_items_too() -> None:
    items = Response.model_validate(response([MESSAGE, *map(function_call, SAID)])).output

    assert [call.wire_id for call in wire.calls(items)] == [
        call.wire_id for call in wire.calls([MESSAGE, *map(function_call, SAID)])
    ]
    assert [call.id for call in wire.calls(items)] == ["call_1", "call_2"]


@pytest.mark.proves("HC-18")
def test_a_result_is_an_item_under_the_id_of_its_call() -> None:
    failed = ToolResult(error="No.", call_id="call_2", tool_name="put")

    assert wire.results([ToolResult(output="fine", call_id="call_1", tool_name="get"), failed]) == [
        {"type": "function_call_output", "call_id": "call_1", "output": "fine"},
        {"type": "function_call_output", "call_id": "call_2", "output": failed.for_model()},
    ]


@pytest.mark.parametrize("status", ["incomplete", "in_progress"])
def test_an_item_that_is_not_complete_gets_a_result_and_never_runs(status: str) -> None:
    (call,) = wire.calls(response([function_call(SAID[0], status)], "incomplete"))

    assert call.wire_id == "call_1"
    with pytest.raises(ToolArgsParseError):
        takes_anything.parse(call.arguments_json)


@pytest.mark.parametrize("status", ["incomplete", "failed", "cancelled", "in_progress"])
def test_the_last_item_of_a_response_that_was_cut_does_not_run_if_it_says_nothing_of_itself(status: str) -> None:
    silent = [{key: value for key, value in function_call(text).items() if key != "status"} for text in SAID]

    whole, cut = wire.calls(response(silent, status))

    assert takes_anything.parse(whole.arguments_json) == {"city": "Ulm"}
    assert (cut.wire_id, cut.item_id, cut.response_id) == ("call_2", "fc_call_2", "resp_1")
    with pytest.raises(ToolArgsParseError):
        takes_anything.parse(cut.arguments_json)
    assert [call.arguments_json for call in wire.calls(response(silent))] == [text.arguments for text in SAID]


@given(spoken(), st.integers(1, 9), st.booleans(), st.booleans(), st.data())
def test_a_stream_gives_the_calls_wherever_it_breaks_off(
    said: list[Said], size: int, mixed: bool, objects: bool, data: st.DataObject
) -> None:
    threads = [thread(index, one, size) for index, one in enumerate(said)]
    events = [CREATED, *data.draw(woven(threads, interleaved=mixed)), ends(said)]
    if objects:
        events = [stream_event.validate_python(event) for event in events]

    check_cuts(events, said, wire.calls)
    assert {call.response_id for call in wire.calls(events[:-1])} == {"resp_1"}


def test_a_stream_whose_end_repeats_no_items_has_those_that_were_done() -> None:
    events = [CREATED, *thread(0, SAID[0], 3), {"type": "response.completed", "response": response([])}]

    assert [(call.wire_id, call.arguments_json) for call in wire.calls(events)] == [("call_1", SAID[0].arguments)]


def test_a_stream_that_ends_incomplete_has_a_last_call_that_does_not_run() -> None:
    end = {"type": "response.incomplete", "response": response([function_call(SAID[0], "incomplete")], "incomplete")}

    (call,) = wire.calls([CREATED, *thread(0, SAID[0], 3)[:-2], end])

    with pytest.raises(ToolArgsParseError):
        takes_anything.parse(call.arguments_json)


def test_arguments_that_are_done_are_not_a_call_that_is_complete() -> None:
    *begun, _ = thread(0, Said("call_1", "get", "{}"), 3)

    (call,) = wire.calls([CREATED, *begun])

    with pytest.raises(ToolArgsParseError):
        takes_anything.parse(call.arguments_json)


def test_the_shape_of_the_helper_is_the_apis() -> None:
    assert [call.wire_id for call in wire.calls(RESPONSES.response(SAID))] == ["call_1", "call_2"]

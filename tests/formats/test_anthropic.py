"""Anthropic Messages."""

import json
from typing import Annotated, Any, Literal

import pytest
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, TypeAdapter

from handrail import Tool, ToolArgsParseError, ToolCall, ToolRegistry, ToolResult, build_tool, tool
from handrail.formats import anthropic as wire
from tests.formats.apis import Said
from tests.formats.streams import check_cuts, pieces, spoken, takes_anything

USAGE = {"input_tokens": 1, "output_tokens": 1}
stream_event = TypeAdapter[Any](RawMessageStreamEvent)


def use(id: str, name: str, input: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": input, "caller": {"type": "direct"}}


def message(*blocks: Any, stop_reason: str | None = "tool_use") -> dict[str, Any]:
    rest = {"type": "message", "role": "assistant", "model": "m", "stop_sequence": None, "usage": USAGE}
    return {"id": "msg_1", "content": [*blocks], "stop_reason": stop_reason, **rest}


TEXT = {"type": "text", "text": "Let me see.", "citations": None}


@pytest.mark.proves("HC-13")
def test_a_definition_has_name_description_and_input_schema_and_no_type() -> None:
    @tool
    def add(a: int) -> int:
        """Add."""
        return a

    properties = {"properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
    assert wire.tools([add]) == ToolRegistry([add]).to_anthropic_tools() == [
        {"name": "add", "description": "Add.", "input_schema": {"type": "object", **properties}}
    ]  # fmt: skip


@pytest.mark.proves("HC-15")
@pytest.mark.parametrize("objects", [False, True], ids=["dict", "object"])
def test_each_tool_use_is_read_in_order_and_the_other_blocks_are_passed_over(objects: bool) -> None:
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    search = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}, "caller": {"type": "direct"}}
    answer: Any = message(thought, TEXT, use("toolu_1", "get", {"city": "Ulm"}), search, use("toolu_2", "put", {}))
    if objects:
        answer = Message.model_validate(answer)

    get = '{"city":"Ulm"}'
    assert wire.calls(answer) == [
        ToolCall(id="msg_1/toolu_1", provider_id="toolu_1", name="get", arguments_json=get, response_id="msg_1"),
        ToolCall(id="msg_1/toolu_2", provider_id="toolu_2", name="put", arguments_json="{}", response_id="msg_1"),
    ]


def test_a_message_of_the_history_has_no_stop_reason_and_is_whole() -> None:
    (call,) = wire.calls({"role": "assistant", "content": [use("toolu_1", "get", {"city": "Ulm"})]})

    assert takes_anything.parse(call.arguments_json) == {"city": "Ulm"}


@pytest.mark.proves("HC-16")
def test_results_are_blocks_of_one_message_with_failures_marked() -> None:
    failed = ToolResult(error="No.", call_id="toolu_2", tool_name="put")

    assert wire.results([ToolResult(output="fine", call_id="toolu_1", tool_name="get"), failed]) == [
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "fine"},
                {"type": "tool_result", "tool_use_id": "toolu_2", "content": failed.for_model(), "is_error": True},
            ],
        }
    ]


@pytest.mark.parametrize(
    "reason", ["max_tokens", "model_context_window_exceeded", "refusal", "stop_sequence", "something new", None]
)
@pytest.mark.parametrize("objects", [False, True], ids=["dict", "object"])
def test_the_last_tool_use_of_a_message_that_was_cut_gets_a_result_and_never_runs(reason: Any, objects: bool) -> None:
    answer: Any = message(use("toolu_1", "get", {"a": 1}), use("toolu_2", "pay", {"amount": 1}), stop_reason=reason)
    if objects:
        answer = Message.construct(**answer | {"content": [_block(item) for item in answer["content"]]})

    whole, cut = wire.calls(answer)

    assert takes_anything.parse(whole.arguments_json) == {"a": 1}
    assert cut.wire_id == "toolu_2"
    with pytest.raises(ToolArgsParseError):
        takes_anything.parse(cut.arguments_json)


def _block(block: dict[str, Any]) -> Any:
    return Message.model_validate(message(block)).content[0]


def test_a_tool_use_before_the_text_that_was_cut_is_whole() -> None:
    (call,) = wire.calls(message(use("toolu_1", "get", {"a": 1}), TEXT, stop_reason="max_tokens"))

    assert takes_anything.parse(call.arguments_json) == {"a": 1}


# Streams.


def stream(said: list[Said], size: int, stop_reason: str = "tool_use") -> list[dict[str, Any]]:
    start = {**message(stop_reason=None), "usage": USAGE}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": start}]
    events += [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "", "citations": None}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Let me see."}},
        {"type": "content_block_stop", "index": 0},
    ]
    for index, one in enumerate(said, start=1):
        events.append({"type": "content_block_start", "index": index, "content_block": use(one.id, one.name, {})})
        for part in ["", *pieces(one.arguments, size)]:
            delta = {"type": "input_json_delta", "partial_json": part}
            events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events.append({"type": "content_block_stop", "index": index})
    end = {"stop_reason": stop_reason, "stop_sequence": None}
    return [*events, {"type": "message_delta", "delta": end, "usage": USAGE}, {"type": "message_stop"}]


@given(spoken(), st.integers(1, 9), st.booleans())
def test_a_stream_gives_the_calls_wherever_it_breaks_off(said: list[Said], size: int, objects: bool) -> None:
    events: list[Any] = stream(said, size)
    if objects:
        events = [stream_event.validate_python(event) for event in events]

    check_cuts(events, said, wire.calls)
    assert {call.response_id for call in wire.calls(events)} == {"msg_1"}


@pytest.mark.parametrize("reason", ["max_tokens", "refusal"])
def test_a_stream_that_was_cut_has_a_last_call_that_does_not_run(reason: str) -> None:
    whole, cut = wire.calls(stream([Said("toolu_1", "a", "{}"), Said("toolu_2", "b", '{"x":1}')], 3, reason))

    assert takes_anything.parse(whole.arguments_json) == {}
    with pytest.raises(ToolArgsParseError):
        takes_anything.parse(cut.arguments_json)


def test_a_tool_use_without_chunks_has_no_arguments() -> None:
    events = [
        item for item in stream([Said("toolu_1", "a", "")], 3) if item.get("delta", {}).get("partial_json") is None
    ]

    assert [call.arguments_json for call in wire.calls(events)] == ["{}"]


def test_a_block_that_nobody_has_closed_does_not_run() -> None:
    said = [Said("toolu_1", "a", "{}"), Said("toolu_2", "b", "{}")]
    stop = {"type": "content_block_stop", "index": 1}

    never_closed, whole = wire.calls([item for item in stream(said, 3) if item != stop])

    assert takes_anything.parse(whole.arguments_json) == {}
    with pytest.raises(ToolArgsParseError):
        takes_anything.parse(never_closed.arguments_json)


def test_a_stream_that_an_error_ends_has_a_last_call_that_does_not_run() -> None:
    *begun, _, _ = stream([Said("toolu_1", "a", '{"x":1}')], 3)

    (call,) = wire.calls([*begun, {"type": "error", "error": {"type": "overloaded_error", "message": "Later."}}])

    with pytest.raises(ToolArgsParseError):
        takes_anything.parse(call.arguments_json)


# Examples.


@pytest.mark.proves("PH-77")
def test_examples_have_a_field_of_their_own() -> None:
    @tool(examples=[{"city": "Ulm"}, {"city": "Bonn", "days": 2}])
    def get(city: str, days: int = 1) -> str:
        """Look up the weather."""
        return ""

    (definition,) = wire.tools([get])

    assert definition["input_examples"] == [{"city": "Ulm"}, {"city": "Bonn", "days": 2}]  # pyright: ignore[reportTypedDictNotRequiredAccess]
    assert definition["description"] == "Look up the weather."  # pyright: ignore[reportTypedDictNotRequiredAccess]


@pytest.mark.parametrize("strict", [False, True])
def test_an_example_that_does_not_fit_is_left_out_because_the_api_would_refuse_the_request(strict: bool) -> None:
    @tool(examples=[{"city": 1}, {"city": "Ulm"}, {"town": "Bonn"}], strict=strict)
    def get(city: str) -> str:
        """Look up the weather."""
        return ""

    definitions = wire.tools([get])

    assert definitions[0]["input_examples"] == [{"city": "Ulm"}]  # pyright: ignore[reportTypedDictNotRequiredAccess]
    assert [(note.tool, "does not fit" in note.text) for note in definitions.notes] == [("get", True)] * 2


# The budget for strictness.


def strict_tool(name: str, properties: dict[str, Any], required: list[str]) -> Tool[..., Any]:
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return build_tool({"name": name, "input_schema": schema, "execute": lambda payload: "", "strict": True})


NUMBER = {"type": "integer", "minimum": 1}
BUDGETS = {
    "20 strict tools": [strict_tool(f"größe {n}", {"a": NUMBER}, ["a"]) for n in range(22)],
    "24 optional parameters": [strict_tool(f"größe {n}", {"a": NUMBER, "b": NUMBER}, []) for n in range(14)],
    "16 parameters with unions": [
        strict_tool(f"größe {n}", {"a": {"anyOf": [NUMBER, {"type": "null"}]}}, ["a"]) for n in range(18)
    ],
}


@pytest.mark.parametrize(("budget", "tools"), BUDGETS.items(), ids=BUDGETS)
def test_tools_beyond_the_budget_go_out_non_strict_with_their_whole_schema(budget: str, tools: list[Any]) -> None:
    definitions = wire.tools(tools)

    assert [bool(definition.get("strict")) for definition in definitions] == [True] * (len(tools) - 2) + [False] * 2
    assert json.dumps(definitions[-1]["input_schema"]) == json.dumps(tools[-1].input_schema)
    late = [note.text for note in definitions.notes if note.tool == tools[-1].name]
    assert f"is sent without strict mode: a request takes at most {budget}" in late
    assert not any("checked here only" in text for text in late)
    assert any("checked here only" in note.text for note in definitions.notes if note.tool == tools[0].name)


def test_a_small_strict_tool_fits_after_a_large_one_that_did_not() -> None:
    optional = {f"p{n}": NUMBER for n in range(25)}

    definitions = wire.tools([strict_tool("large", optional, []), strict_tool("small", {"a": NUMBER}, ["a"])])

    assert [bool(definition.get("strict")) for definition in definitions] == [False, True]


def test_a_fixed_value_comes_back_in_its_own_spelling_from_a_strict_tool() -> None:
    @tool(strict=True)
    def dye(color: Literal["Red", "Blue"], depth: Annotated[int, Field(ge=1)] = 1) -> str:
        return ""

    definitions = wire.tools([dye])

    (call,) = wire.calls(message(use("toolu_1", "dye", {"color": "red"})), definitions)

    assert dye.parse(call.arguments_json) == {"color": "Red", "depth": 1}
    (cut,) = wire.calls(message(use("toolu_1", "dye", {"color": "red"}), stop_reason="max_tokens"), definitions)
    with pytest.raises(ToolArgsParseError):
        dye.parse(cut.arguments_json)

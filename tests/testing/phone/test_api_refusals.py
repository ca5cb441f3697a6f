"""What the API would refuse, it refuses: events and sessions of clients that get a form wrong."""

from typing import Any

import openai
import pytest

from handrail.testing.phone import SimulatedCall, run_warped

from .wrong import TOOLS, open_call, simulated_api

REALTIME = {"type": "realtime"}
ITEM = "conversation.item.create"
STRICT = {"type": "function", "name": "lookup", "parameters": {"type": "object"}, "strict": True}

BAD_EVENTS: list[tuple[Any, str, str | None]] = [
    ({}, "missing_required_parameter", "type"),
    ({"type": "response.creat"}, "invalid_value", "type"),
    ({"type": "response.create", "respnse": {}}, "unknown_parameter", "respnse"),
    ({"type": "response.create", "event_id": 7}, "invalid_type", "event_id"),
    ({"type": "response.create", "response": "now"}, "invalid_type", "response"),
    ({"type": "response.create", "response": {"instruction": ""}}, "unknown_parameter", "response.instruction"),
    ({"type": "response.create", "response": {"tool_choice": "lookup"}}, "invalid_value", "response.tool_choice"),
    ({"type": "response.create", "response": {"conversation": "other"}}, "invalid_value", "response.conversation"),
    ({"type": "response.create", "response": {"metadata": {"n": 1}}}, "invalid_value", "response.metadata"),
    (
        {"type": "response.create", "response": {"output_modalities": ["audio", "text"]}},
        "invalid_value",
        "response.output_modalities",
    ),
    ({"type": "response.cancel", "response_id": 3}, "invalid_type", "response_id"),
    ({"type": "session.update"}, "missing_required_parameter", "session"),
    ({"type": "session.update", "session": {"instructions": "x"}}, "missing_required_parameter", "session.type"),
    ({"type": "session.update", "session": {"type": "transcription"}}, "invalid_value", "session.type"),
    ({"type": "session.update", "session": {**REALTIME, "voice": "marin"}}, "unknown_parameter", "session.voice"),
    (
        {"type": "session.update", "session": {**REALTIME, "tools": [STRICT]}},
        "unknown_parameter",
        "session.tools[0].strict",
    ),
    (
        {"type": "session.update", "session": {**REALTIME, "tools": [*TOOLS, *TOOLS]}},
        "invalid_value",
        "session.tools[1].name",
    ),
    (
        {"type": "session.update", "session": {**REALTIME, "max_output_tokens": 0}},
        "invalid_value",
        "session.max_output_tokens",
    ),
    ({"type": ITEM}, "missing_required_parameter", "item"),
    (
        {"type": ITEM, "item": {"type": "function_call_output", "output": "x"}},
        "missing_required_parameter",
        "item.call_id",
    ),
    (
        {"type": ITEM, "item": {"type": "function_call_output", "call_id": "c", "output": {"a": 1}}},
        "invalid_type",
        "item.output",
    ),
    ({"type": ITEM, "item": {"type": "tool_result"}}, "invalid_value", "item.type"),
    ({"type": ITEM, "item": {"type": "message", "role": "tool", "content": [{}]}}, "invalid_value", "item.role"),
    (
        {"type": ITEM, "item": {"type": "message", "role": "system", "content": [{"type": "text", "text": "x"}]}},
        "invalid_value",
        "item.content[0].type",
    ),
    (
        {
            "type": ITEM,
            "previous_item_id": "item_99",
            "item": {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]},
        },
        "invalid_value",
        "previous_item_id",
    ),
    ({"type": "conversation.item.retrieve", "item_id": "item_99"}, "invalid_value", "item_id"),
    ({"type": "conversation.item.delete"}, "missing_required_parameter", "item_id"),
    (
        {"type": "conversation.item.truncate", "item_id": "item_1", "content_index": 0},
        "missing_required_parameter",
        "audio_end_ms",
    ),
]


@pytest.mark.parametrize(
    ("event", "code", "param"), BAD_EVENTS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_wrong_event_is_answered_with_an_error_that_names_the_place(event: Any, code: str, param: str | None) -> None:
    call = open_call()
    call.feed(event)
    errors = [frame.event["error"] for frame in call.take() if frame.event and frame.event["type"] == "error"]
    assert [(error["code"], error["param"]) for error in errors] == [(code, param)]
    assert call.phase == "open"


@pytest.mark.parametrize("message", ["{not json", b"\xff\xfe", "[]", "null", "[" * 100_000])
def test_a_message_that_is_no_event_is_an_error_and_the_session_continues(message: str | bytes) -> None:
    call = open_call({"model": [{"say": "Bonjour."}]})
    call.feed(message)
    assert call.report().error_codes == ("invalid_json",)
    call.feed({"type": "response.create"})
    assert call.is_response_active


@pytest.mark.parametrize(
    ("session", "param"),
    [
        ({}, "type"),
        ({"type": "realtime", "tool_choice": "request_transfer"}, "tool_choice"),
        ({"type": "realtime", "tools": TOOLS, "tool_choice": {"type": "function", "name": "other"}}, "tool_choice"),
        ({"type": "realtime", "tool_choice": {"type": "function"}}, "tool_choice.name"),
        ({"type": "realtime", "tools": [STRICT]}, "tools[0].strict"),
        ({"type": "realtime", "tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
        ({"type": "realtime", "tools": [{"type": "function", "name": "a", "parameters": {}}]}, "tools[0].parameters"),
        (
            {"type": "realtime", "audio": {"input": {"turn_detection": {"type": "vad"}}}},
            "audio.input.turn_detection.type",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_accept_refuses_a_session_that_is_wrong_and_the_call_keeps_ringing(session: Any, param: str) -> None:
    call = SimulatedCall()
    response = call.request("accept", session)
    assert (response.status, (response.body or {})["error"]["param"]) == (400, param)
    assert call.phase == "ringing"


def test_the_sdk_raises_what_the_simulator_refuses() -> None:
    async def main() -> None:
        async with simulated_api() as (simulator, client):
            call = simulator.add_call()
            bad_choice: Any = "request_transfer"
            with pytest.raises(openai.BadRequestError, match="Supported values are: 'none', 'auto', and 'required'"):
                await client.realtime.calls.accept(call.id, type="realtime", tool_choice=bad_choice)
            with pytest.raises(openai.BadRequestError, match="Expected a SIP status"):
                await client.realtime.calls.reject(call.id, status_code=42)
            await client.realtime.calls.accept(call.id, type="realtime", tools=TOOLS, tool_choice="auto")
            with pytest.raises(openai.BadRequestError, match="Expected a tel: or sip: URI"):
                await client.realtime.calls.refer(call.id, target_uri="+33155550100")

    run_warped(main())


def test_an_item_id_is_used_once() -> None:
    call = open_call()
    message = {"type": "message", "role": "system", "content": [{"type": "input_text", "text": "x"}], "id": "mine"}
    for _ in range(2):
        call.feed({"type": ITEM, "item": message})
    assert call.report().error_codes == ("item_create_duplicate_item_id",)


def test_a_model_without_tools_or_with_tool_choice_none_makes_no_call() -> None:
    entry = {"say": "Un instant.", "calls": [{"name": "lookup"}]}
    call = open_call({"model": [entry, entry], "caller": [{"sleep": 60}]})
    call.feed({"type": "response.create", "response": {"tool_choice": "none"}})
    call.advance(5)
    call.feed({"type": "session.update", "session": {"type": "realtime", "tools": []}})
    call.feed({"type": "response.create"})
    call.advance(5)
    report = call.report()
    assert (report.calls, report.suppressed_calls) == ((), ("lookup", "lookup"))

"""`calls()` of every format gets whatever a server, or a proxy before it, may send."""

import copy
import random
import sys
from typing import Any

import pytest

from handrail.formats import anthropic, gemini, openai_chat, openai_responses
from tests.formats.apis import Api, Said, every_api

ODD: list[Any] = [None, True, 0, -1, 3.5, "", "text", "{", [], {}, [[]], {"a": {"b": None}}, ["x", 1], b"x", object()]

STREAMS: dict[Any, list[Any]] = {
    anthropic: [
        {"type": "message_start", "message": {"id": "m-1"}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "c-1", "name": "pay"}},
        {"type": "content_block_delta", "index": 0, "delta": {"partial_json": '{"amount":'}},
        {"type": "content_block_delta", "index": 0, "delta": {"partial_json": " 1}"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
    ],
    openai_chat: [
        {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "id": "c-1", "function": {"name": "pay"}}]}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
    ],
    openai_responses: [
        {"type": "response.created", "response": {"id": "r-1"}},
        {"type": "response.output_item.added", "output_index": 0, "item": {"type": "function_call", "call_id": "c-1"}},
        {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": "{}"},
        {"type": "response.output_item.done", "output_index": 0, "item": {"type": "function_call", "call_id": "c-1"}},
    ],
    gemini: [
        {"candidates": [{"content": {"parts": [{"functionCall": {"name": "pay", "willContinue": True}}]}}]},
        {
            "candidates": [
                {"content": {"parts": [{"functionCall": {"partialArgs": [{"jsonPath": "$.a", "stringValue": "b"}]}}]}}
            ]
        },
    ],
}


def build_response(api: Api) -> Any:
    return api.response([api.says(f"c-{number}", "pay", {"amount": number}) for number in range(3)])


def mutate(value: Any, chance: random.Random) -> Any:
    """A copy of a JSON value in which some parts are something else, missing, or there twice."""
    if chance.random() < 0.08:
        return chance.choice(ODD)
    if isinstance(value, dict):
        return {key: mutate(one, chance) for key, one in value.items() if chance.random() > 0.05}
    if isinstance(value, list):
        items = [mutate(part, chance) for part in value if chance.random() > 0.05]
        return items + items[:1] if chance.random() < 0.1 else items
    return value


def check_calls(wire: Any, original: Any, *, times: int) -> None:
    chance = random.Random(wire.__name__)
    for _ in range(times):
        for call in wire.calls(mutate(copy.deepcopy(original), chance)):
            fields = (call.id, call.name, call.arguments_json, call.response_id or "", call.item_id or "")
            assert all(type(field) is str for field in fields)


@every_api
def test_no_mutated_response_makes_calls_raise(api: Api) -> None:
    check_calls(api.wire, build_response(api), times=1_000)


@pytest.mark.parametrize("wire", STREAMS, ids=lambda wire: wire.__name__)
def test_no_mutated_stream_makes_calls_raise(wire: Any) -> None:
    check_calls(wire, STREAMS[wire], times=1_000)


@every_api
@pytest.mark.parametrize("field", ["id", "name", "arguments"])
def test_a_call_with_an_odd_field_gets_a_result(api: Api, field: str) -> None:
    for odd in ODD:
        fields = {"id": "c-1", "name": "pay", "arguments": "{}" if api.sends_text else {}, field: odd}
        calls = api.wire.calls(api.response([Said(**fields), api.says("c-2", "pay", {})]))

        assert len(calls) == 2, odd


@every_api
def test_calls_with_equal_ids_are_all_there(api: Api) -> None:
    calls = api.wire.calls(api.response([api.says("c-1", "pay", {"amount": 1}), api.says("c-1", "refund", {})]))

    assert api.name == "openai_realtime" or [call.name for call in calls] == ["pay", "refund"]


def test_many_open_calls_of_gemini_take_linear_time() -> None:
    looked_up = 0

    class Counted(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            nonlocal looked_up
            looked_up += 1
            return super().get(key, default)

    parts = [{"functionCall": Counted(name="pay", willContinue=True, id=f"c-{n}")} for n in range(3_000)]
    response = {"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}]}

    assert len(gemini.calls(response)) == 3_000
    assert looked_up < 3_000 * 30


@every_api
def test_ten_times_as_many_calls_take_ten_times_as_many_steps(api: Api) -> None:
    def count_steps(count: int) -> int:
        response = api.response([api.says(f"c-{number}", "pay", {"amount": number}) for number in range(count)])
        steps = 0

        def count_step(frame: Any, event: str, argument: Any) -> None:
            nonlocal steps
            steps += 1

        sys.setprofile(count_step)
        try:
            calls = api.wire.calls(response)
        finally:
            sys.setprofile(None)
        assert [call.provider_id or call.id for call in calls] == [f"c-{number}" for number in range(count)]
        return steps

    assert count_steps(2_000) < 12 * count_steps(200)


@pytest.mark.parametrize("item", [[[]], "text", None, 5, {"type": "function_call", "call_id": "c-1", "name": "pay"}])
def test_arguments_that_come_after_an_item_is_done_change_nothing(item: Any) -> None:
    done = {"type": "response.output_item.done", "output_index": 0, "item": item}
    late = {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": '{"amount": 9}'}
    before = copy.deepcopy(item)

    calls = openai_responses.calls([late, done, late])

    assert [call.arguments_json for call in calls] == [""] * isinstance(item, dict)
    assert item == before

"""What holds for calls and results in every wire format: bad input is answered, under the right id."""

import json
from typing import Any

import pytest

from handrail import Failure, ToolRegistry, ToolResult, tool
from tests.formats.apis import ALL, ANTHROPIC, GEMINI, MCP, Api, Said, answer, every_api

WITH_TEXT = [api for api in ALL if api.sends_text]
WITH_MARK = (ANTHROPIC, GEMINI, MCP)


@tool(read_only=True)
async def greet(name: str, times: int = 1) -> str:
    """Say hello."""
    return f"Hello, {name}!" * times


@tool
async def pay(amount: float) -> dict[str, float]:
    """Pay."""
    return {"paid": amount}


registry = ToolRegistry([greet, pay])


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


BAD_VALUES: dict[str, tuple[str, Any, str]] = {
    "an unknown tool": ("greeet", {}, "tool_not_found"),
    "a missing argument": ("greet", {}, "invalid_arguments"),
    "an argument of the wrong type": ("greet", {"name": "Ann", "times": "often"}, "invalid_arguments"),
    "an argument too many": ("greet", {"name": "Ann", "loud": True}, "invalid_arguments"),
    "an array": ("greet", ["Ann"], "tool_args_parse_error"),
    "no values in an array": ("greet", [], "tool_args_parse_error"),
    "a text": ("greet", "Ann", "tool_args_parse_error"),
    "an empty text": ("greet", "", "tool_args_parse_error"),
    "a number": ("greet", 0, "tool_args_parse_error"),
    "false": ("greet", False, "tool_args_parse_error"),
    "half a character": ("greet", {"name": "\ud800"}, "tool_args_parse_error"),
    "300 levels": ("greet", {"name": deep(300)}, "tool_args_parse_error"),
    "a number that is not finite": ("pay", {"amount": float("nan")}, "tool_args_parse_error"),
}
BAD_TEXTS = {
    "no JSON": "name=Ann",
    "half of it": '{"name": "Ann',
    "two objects": '{"name": "Ann"}{"name": "Bob"}',
    "a control character": '{"name": "\x00"}',
    "1 MB of nesting": "[" * 1_000_000,
    "1 MB of objects": '{"a":' * 200_000,
    "null": "null",
    "a byte order mark": '\ufeff{"name": "Ann"}',
}


@every_api
@pytest.mark.parametrize(("name", "value", "code"), BAD_VALUES.values(), ids=BAD_VALUES)
async def test_bad_input_gets_a_result_under_the_id_of_its_call(api: Api, name: str, value: Any, code: str) -> None:
    said = [api.says("before", "greet", {"name": "Ann"}), api.says("bad", name, value)]
    said.append(api.says("after", "greet", {"name": "Bob"}))
    definitions = api.wire.tools(registry)

    calls = api.wire.calls(api.response(said), definitions)
    results = [await answer(registry, call) for call in calls]

    assert [call.id for call in calls] == [result.call_id for result in results]
    assert [call.wire_id for call in calls] == ["before", "bad", "after"]
    assert [result.error.code if result.error else "" for result in results] == ["", code, ""]
    told = api.answers(api.wire.results(results, definitions))
    assert [event.id for event in told] == (["before", "bad", "after"] if api is not MCP else [None] * 3)
    assert [event.text for event in told[::2]] == ["Hello, Ann!", "Hello, Bob!"]
    assert json.loads(told[1].text) == {"ok": False, "error": code, "tool": name, "message": results[1].error.message}  # pyright: ignore[reportOptionalMemberAccess]
    assert [event.failed for event in told] == ([False, True, False] if api in WITH_MARK else [None] * 3)


@every_api
async def test_arguments_that_are_nested_too_deeply_are_refused_with_the_reason(api: Api) -> None:
    (call,) = api.wire.calls(api.response([api.says("c-1", "greet", {"name": deep(300)})]))

    result = await answer(registry, call)

    assert result.error is not None
    assert "recursion limit" in result.error.message


@pytest.mark.parametrize("api", WITH_MARK, ids=lambda api: api.name)
@pytest.mark.parametrize("value", [{"name": deep(2_000)}, {"name": object()}], ids=["2,000 levels", "an object"])
async def test_values_that_no_text_can_hold_get_results_too(api: Api, value: Any) -> None:
    (call,) = api.wire.calls(api.response([Said("c-1", "greet", value)]))

    result = await answer(registry, call)

    assert result.error is not None
    assert (result.wire_id, result.error.code) == ("c-1", "tool_args_parse_error")


@pytest.mark.proves("PH-42", "PH-43")
@pytest.mark.parametrize("api", WITH_TEXT, ids=lambda api: api.name)
@pytest.mark.parametrize("text", BAD_TEXTS.values(), ids=BAD_TEXTS)
async def test_text_that_is_no_json_object_gets_a_result_under_the_id_of_its_call(api: Api, text: str) -> None:
    definitions = api.wire.tools(registry)

    (call,) = api.wire.calls(api.response([Said("c-1", "greet", text)]), definitions)
    (told,) = api.answers(api.wire.results([await answer(registry, call)], definitions))

    assert call.arguments_json == text
    assert told.id == "c-1"
    assert json.loads(told.text)["error"] == "tool_args_parse_error"


@pytest.mark.proves("PH-44")
@every_api
@pytest.mark.parametrize("nothing", ["", None, {}], ids=["empty", "null", "an object"])
def test_no_arguments_are_an_empty_object(api: Api, nothing: Any) -> None:
    if nothing == "" and not api.sends_text:
        nothing = None
    if nothing == {} and api.sends_text:
        nothing = "{}"
    (call,) = api.wire.calls(api.response([Said("c-1", "greet", nothing)]))

    assert json.loads(call.arguments_json or "{}") == {}


@every_api
def test_arguments_come_back_as_they_were_said(api: Api) -> None:
    value = {"name": "Ännchen 👋 \u0000", "times": 2}
    (call,) = api.wire.calls(api.response([api.says("c-1", "greet", value)]), api.wire.tools(registry))

    assert (call.wire_id, call.name, json.loads(call.arguments_json)) == ("c-1", "greet", value)


@every_api
def test_a_call_comes_back_under_the_tools_own_name_and_its_result_under_the_providers(api: Api) -> None:
    odd = tool(name="größe?", read_only=True)(greet.function)
    definitions = api.wire.tools([odd])
    (shown,) = api.shown(definitions)

    (call,) = api.wire.calls(api.response([api.says("c-1", shown.name, {"name": "Ann"})]), definitions)

    assert call.name == "größe?"
    sent = json.dumps(api.wire.results([ToolResult(output="x", call_id="c-1", tool_name="größe?")], definitions))
    assert (shown.name in sent) is (api is GEMINI)
    assert "größe?" not in sent


@every_api
def test_without_definitions_calls_stay_in_the_providers_terms(api: Api) -> None:
    (call,) = api.wire.calls(api.response([api.says("c-1", "other", {})]), [{"name": "other"}])

    assert call.name == "other"


@every_api
def test_a_response_without_calls_has_none(api: Api) -> None:
    if api is MCP:
        assert api.wire.calls([]) == []
    else:
        assert api.wire.calls(api.response([])) == api.wire.calls({}) == api.wire.calls([]) == []


@every_api
def test_results_keep_their_order_and_their_ids(api: Api) -> None:
    results = [ToolResult(output=n, call_id=f"c-{n}", tool_name="greet") for n in range(3)]

    told = api.answers(api.wire.results(results))

    assert [event.text for event in told] == ["0", "1", "2"]
    assert [event.id for event in told] == (["c-0", "c-1", "c-2"] if api is not MCP else [None] * 3)
    assert api.wire.results([]) == []


@every_api
def test_failures_are_marked_where_the_api_can(api: Api) -> None:
    results = [
        ToolResult(output={"fine": True}, call_id="1", tool_name="t"),
        ToolResult(error=Failure(code="rate_limited", message="Later."), call_id="2", tool_name="t"),
        ToolResult(output=object(), call_id="3", tool_name="t"),
    ]

    told = api.answers(api.wire.results(results))

    assert [event.failed for event in told] == ([False, True, True] if api in WITH_MARK else [None] * 3)
    assert [json.loads(event.text).get("error") for event in told] == [None, "rate_limited", "tool_execution_failed"]


@every_api
def test_metadata_and_context_are_in_no_result(api: Api) -> None:
    result = ToolResult(output="x", call_id="1", tool_name="t", metadata={"m": "SECRET"}, context={"c": "SECRET"})

    assert "SECRET" not in json.dumps(api.wire.results([result]))


@every_api
def test_a_call_without_id_or_name_gets_a_result_too(api: Api) -> None:
    for missing in ("id", "call_id", "name", "arguments", "input", "args", "function", "params"):
        response = _without(api.response([api.says("c-1", "greet", {"name": "Ann"})]), missing)
        for call in api.wire.calls(response):
            refused = ToolResult(
                error=Failure(code="tool_not_found", message="m"), call_id=call.id, tool_name=call.name
            )
            assert len(api.answers(api.wire.results([refused]))) == 1
            assert call.arguments_json.startswith("{") or missing in ("arguments", "input", "args", "function")


def _without(value: Any, key: str) -> Any:
    if isinstance(value, list):
        return [_without(part, key) for part in value]
    if isinstance(value, dict):
        return {name: _without(one, key) for name, one in value.items() if name != key}
    return value

"""Ids of calls: unique in a conversation, the same on every parse, and the provider gets its own back."""

import json
from typing import Any

import pytest

from handrail import Executor, Policy, Rule, ToolContext, ToolRegistry, ToolResult, tool
from handrail.execute import run_until_done
from handrail.formats import openai_chat
from handrail.formats.call_parsing import is_random_id
from handrail.phone.realtime import RealtimeAdapter
from handrail.phone.signals import OutputAdded, SendOutput, ToolCalled
from tests.formats.apis import ALL, MCP, Api, answer

WITH_IDS = [api for api in ALL if api is not MCP]
every_api = pytest.mark.parametrize("api", WITH_IDS, ids=lambda api: api.name)


@tool(read_only=True)
async def look(what: str = "") -> str:
    """Look at something."""
    return what


def respond(api: Api, response_id: str, *call_ids: str) -> Any:
    text = json.dumps(api.response([api.says(item, "look", {}) for item in call_ids]))
    return json.loads(
        text.replace("resp_1", response_id).replace("msg_1", response_id).replace("chatcmpl_1", response_id)
    )


@every_api
async def test_a_server_that_counts_anew_gives_unique_ids_and_gets_its_own_back(api: Api) -> None:
    responses = [respond(api, f"r{number}", "call_0", "call_1") for number in range(3)]

    calls = [call for response in responses for call in api.wire.calls(response)]

    assert len({call.id for call in calls}) == 6
    assert [call.id for call in calls[:2]] == ["r0/call_0", "r0/call_1"]
    assert calls == [call for response in responses for call in api.wire.calls(response, api.wire.tools([look]))]
    registry = ToolRegistry([look])
    results = [await answer(registry, call) for call in calls]
    results += await Executor([look]).run_all(calls, ToolContext(session_id="s-1"))
    assert [result.call_id for result in results] == [call.id for call in calls] * 2
    assert [item.id for item in api.answers(api.wire.results(results))] == ["call_0", "call_1"] * 6


@every_api
def test_a_random_id_stays_as_it_is(api: Api) -> None:
    (call,) = api.wire.calls(respond(api, "r1", "call_Ab3dEf6hIj9kLmNoPq2sTu5w"))

    assert (call.id, call.provider_id) == ("call_Ab3dEf6hIj9kLmNoPq2sTu5w", None)


@pytest.mark.parametrize("api", [api for api in WITH_IDS if api.name != "openai_realtime"], ids=lambda api: api.name)
def test_calls_of_one_response_under_one_id_or_none_are_several_calls(api: Api) -> None:
    response = respond(api, "r1", "x", "x", "", "")

    calls = api.wire.calls(response)

    assert len({call.id for call in calls}) == 4
    assert api.wire.calls(response) == calls
    assert [call.wire_id for call in calls] == ["x", "x", "", ""]


@pytest.mark.parametrize(
    "call_id",
    [
        "call_Ab3dEf6hIj9kLmNoPq2sTu5w",
        "call_zfZ9A7mFUmNS0lAb",
        "toolu_01A09q90qw90lq917835lq9a",
        "toolu_bdrk_01Ab3dEf6hIj9kLmNoPq2sTu",
        "tooluse_kZJMlvQmRJ6eAyJE5GIl7Q",
        "chatcmpl-tool-8f1a2b3c4d5e4f60a1b2c3d4e5f60718",
        "call_0_0c9d1a44-7b7c-4b1a-9d3f-1f5f2a0b9c8d",
        "0c9d1a44-7b7c-4b1a-9d3f-1f5f2a0b9c8d",
        "function-call-14336847574026984983",
    ],
)
def test_ids_that_providers_draw_at_random_are_recognised(call_id: str) -> None:
    assert is_random_id(call_id)


@pytest.mark.parametrize(
    "call_id",
    [
        *("", "0", "c-1", "call_0", "call_1_1", "call_36474352", "toolu_01", "functions.get_weather:0"),
        *("call_getCurrentWeatherToday", "call_0000000000000001", "00000000-0000-0000-0000-000000000001"),
    ],
)
def test_ids_that_may_come_again_are_not_taken_for_random(call_id: str) -> None:
    assert not is_random_id(call_id)


async def test_a_loop_over_a_server_that_counts_anew_reads_the_new_balance_and_pays_twice() -> None:
    balances = iter([100, 60])
    paid: list[int] = []

    @tool(read_only=True)
    async def balance() -> int:
        """Look up the balance."""
        return next(balances)

    @tool
    async def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    script = iter([("balance", {}), ("pay", {"amount": 40}), ("balance", {}), ("pay", {"amount": 60}), None])
    sent: list[list[Any]] = []

    def step(messages: list[Any], definitions: Any) -> Any:
        sent.append(list(messages))
        wants = next(script)
        message: dict[str, Any] = {"role": "assistant", "content": "Done."}
        if wants is not None:
            function = {"name": wants[0], "arguments": json.dumps(wants[1])}
            message = {"role": "assistant", "tool_calls": [{"id": "call_0", "type": "function", "function": function}]}
        choice = {"index": 0, "finish_reason": "stop" if wants is None else "tool_calls", "message": message}
        return {"id": f"chatcmpl-{len(sent)}", "choices": [choice]}

    executor = Executor([balance, pay], policy=Policy([Rule.allow("*")]))
    done = await run_until_done(step, executor, ToolContext(session_id="s-1"), wire=openai_chat)

    assert [result.output for result in done.results] == [100, "paid", 60, "paid"]
    assert paid == [40, 60]
    assert {item["tool_call_id"] for item in done.messages if item["role"] == "tool"} == {"call_0"}


def test_a_phone_call_sends_the_output_under_the_providers_id_and_recognises_it_again() -> None:
    adapter = RealtimeAdapter()
    events = [
        {
            "type": "response.output_item.done",
            "response_id": f"resp_{number}",
            "item": {
                "type": "function_call",
                "id": f"item_{number}",
                "call_id": "call_0",
                "name": "look",
                "arguments": "{}",
                "status": "completed",
            },
        }
        for number in range(2)
    ]
    called = [item.call for event in events for item in adapter.read(event) if isinstance(item, ToolCalled)]

    assert [call.id for call in called] == ["resp_0/call_0", "resp_1/call_0"]
    for call in called:
        command = SendOutput(request_id=f"r-{call.id}", call_id=call.id, provider_id=call.provider_id, output="x")
        event = adapter.write(command)
        assert event is not None
        assert event["item"]["call_id"] == "call_0"
        (added,) = adapter.read({"type": "conversation.item.added", "item": event["item"], "previous_item_id": None})
        assert added == OutputAdded(call_id=call.id)
    # The response that ends repeats its items, and they are not called again.
    done = {"type": "response.done", "response": {"id": "resp_1", "status": "completed", "output": [events[1]["item"]]}}
    assert not [item for item in adapter.read(done) if isinstance(item, ToolCalled)]


def test_a_result_written_by_hand_names_the_providers_id() -> None:
    (call,) = openai_chat.calls(respond(ALL[0], "r1", "call_0"))
    result = ToolResult(output="x", call_id=call.id, provider_id=call.provider_id)

    assert openai_chat.results([result])[0]["tool_call_id"] == "call_0"

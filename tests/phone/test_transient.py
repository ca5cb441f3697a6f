"""Results that are for one reply only (`Control(lifespan="response")`) leave the conversation after it."""

import asyncio
from typing import Any

import pytest
from msgspec import structs

from handrail import Control, Failure, ToolCall, ToolResult, tool
from handrail.phone import MachineOptions
from handrail.phone import signals as s
from handrail.phone.state_machine import CallMachine
from handrail.tenants import BuiltTool
from tests.phone.calls import play
from tests.tenants.samples import acme

CALL = ToolCall(id="c1", name="look", arguments_json="{}", response_id="r1", item_id="i1")
BOTH = [s.DeleteItem(sent_as="c1"), s.DeleteItem(item_id="i1")]


@tool(read_only=True)
async def read_code() -> ToolResult:
    """Read the door code."""
    return ToolResult(output="4711", control=Control(lifespan="response"))


def test_a_result_for_one_reply_is_deleted_with_its_call_after_the_reply() -> None:
    played = play(
        {
            "model": [
                {"say": "Hello."},
                {"calls": [{"id": "c1", "name": "read_code"}]},
                {"say": "It is 4711."},
                {"say": "You are welcome."},
            ],
            "caller": [{"say": "The code, please."}, {"say": "Thank you."}, {"sleep": 5}],
        },
        tenants=[acme(greeting="Hello.")],
        tools=[read_code],
    )

    kinds = ("conversation.item.deleted", "response.done")
    assert [item.type for item in played.report.timeline if item.type in kinds] == [
        *["response.done"] * 3,
        *["conversation.item.deleted"] * 2,
        "response.done",
    ]
    [output] = played.report.client_events("conversation.item.create")
    [first, second] = played.report.client_events("conversation.item.delete")
    assert first["item_id"] == output["item"]["id"]
    done = [item.data["item"] for item in played.report.timeline if item.type == "response.output_item.done"]
    assert [second["item_id"]] == [item["id"] for item in done if item["type"] == "function_call"]
    assert played.report.errors == ()


def test_the_late_result_of_a_call_in_the_background_is_deleted_with_what_was_told_before() -> None:
    @tool(read_only=True, concurrency_safe=True, timeout=60)
    async def search() -> ToolResult:
        """Search."""
        await asyncio.sleep(10)
        return ToolResult(output="4711", control=Control(lifespan="response"))

    played = play(
        {
            "model": [
                {"say": "Hello."},
                {"calls": [{"id": "c1", "name": "search"}]},
                {"say": "That takes a moment."},
                {"say": "It is 4711."},
            ],
            "caller": [{"say": "Search."}, {"sleep": 40}],
        },
        tenants=[acme(greeting="Hello.")],
        tools=[BuiltTool(search, background=2.0)],
    )

    created = [event["item"]["id"] for event in played.report.client_events("conversation.item.create")]
    deleted = [event["item_id"] for event in played.report.client_events("conversation.item.delete")]
    assert (len(created), deleted[:2]) == (2, created)
    assert (len(deleted), played.report.errors) == (3, ())


def test_an_error_stays_in_the_conversation() -> None:
    @tool(read_only=True)
    async def fail() -> ToolResult:
        """Fail."""
        return ToolResult(error=Failure(message="no code is set"), control=Control(lifespan="response"))

    played = play(
        {
            "model": [{"say": "Hello."}, {"calls": [{"id": "c1", "name": "fail"}]}, {"say": "There is none."}],
            "caller": [{"say": "The code, please."}, {"sleep": 10}],
            "expect": [{"result": "c1", "ok": False}],
        },
        tenants=[acme(greeting="Hello.")],
        tools=[fail],
    )

    assert played.report.client_events("conversation.item.delete") == []


def answered(*, is_silent: bool = False) -> CallMachine:
    """A machine whose one call has a result for one reply."""
    machine = CallMachine()
    machine.handle(s.Connected())
    machine.handle(s.ResponseStarted(response_id="r1"))
    machine.handle(s.ToolCalled(call=CALL))
    machine.handle(s.ResponseFinished(response_id="r1", status="completed"))
    machine.handle(s.ToolFinished(call_id="c1", output="4711", is_silent=is_silent, is_transient=True))
    machine.handle(s.OutputAdded(call_id="c1"))
    return machine


def finish(machine: CallMachine, response_id: str, status: Any = "completed") -> list[s.DeleteItem]:
    commands = machine.handle(s.ResponseFinished(response_id=response_id, status=status))
    return [command for command in commands if isinstance(command, s.DeleteItem)]


def start(machine: CallMachine, response_id: str) -> None:
    machine.handle(s.ResponseStarted(response_id=response_id))


@pytest.mark.parametrize("is_silent", [True, False])
def test_it_is_deleted_once_after_a_reply_that_knew_it(is_silent: bool) -> None:
    machine = answered(is_silent=is_silent)
    start(machine, "r2")

    assert finish(machine, "r2") == BOTH
    start(machine, "r3")
    assert finish(machine, "r3") == []


def test_it_stays_until_a_reply_is_complete_and_makes_no_further_call() -> None:
    machine = answered()
    start(machine, "r2")
    assert finish(machine, "r2", "cancelled") == []
    start(machine, "r3")
    machine.handle(s.ToolCalled(call=ToolCall(id="c2", name="look", arguments_json="{}", response_id="r3")))
    assert finish(machine, "r3") == []
    machine.handle(s.ToolFinished(call_id="c2", output="42"))
    machine.handle(s.OutputAdded(call_id="c2"))
    start(machine, "r4")

    assert finish(machine, "r4") == BOTH


def test_an_output_that_the_provider_refused_is_deleted_as_the_message_that_took_its_place() -> None:
    machine = answered()
    machine.handle(s.RequestRejected(request_id="output_c1", code="invalid_value"))
    start(machine, "r2")

    assert finish(machine, "r2") == [s.DeleteItem(sent_as="gone_c1")]


def test_a_filler_that_says_nothing_about_it_does_not_delete_it() -> None:
    machine = CallMachine(MachineOptions(filler_after=1.0))
    machine.handle(s.Connected())
    machine.handle(s.ResponseStarted(response_id="r1"))
    for call_id in ("c1", "c2"):
        machine.handle(s.ToolCalled(call=structs.replace(CALL, id=call_id, item_id=f"i_{call_id}")))
    machine.handle(s.ResponseFinished(response_id="r1", status="completed"))
    machine.handle(s.ToolFinished(call_id="c1", output="4711", is_transient=True))
    machine.handle(s.OutputAdded(call_id="c1"))
    [filler] = [
        command for command in machine.handle(s.TimerFired(name="filler")) if isinstance(command, s.RequestResponse)
    ]
    machine.handle(s.ResponseStarted(response_id="f1", request_id=filler.request_id))
    assert finish(machine, "f1") == []

    commands = machine.handle(s.ToolFinished(call_id="c2", output="42"))
    [reply] = [command for command in commands if isinstance(command, s.RequestResponse)]
    machine.handle(s.ResponseStarted(response_id="r2", request_id=reply.request_id))
    assert finish(machine, "r2") == [s.DeleteItem(sent_as="c1"), s.DeleteItem(item_id="i_c1")]

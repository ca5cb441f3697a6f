"""Tools that take long: the conversation goes on, and their result is told when it is there."""

import asyncio
import json
from typing import Any

import pytest

from handrail import ToolCall, ToolContext, tool
from handrail.core import CallFinished
from handrail.phone import MachineOptions, PhoneCallEnded
from handrail.phone import signals as s
from handrail.phone.state_machine import CallMachine
from handrail.tenants import BuiltTool, ToolBuilder
from tests.phone.calls import Played, play
from tests.tenants.samples import acme

CALL = ToolCall(id="c1", name="search", arguments_json="{}", response_id="r1")


def background(seconds: float, **options: Any) -> BuiltTool:
    @tool(concurrency_safe=True, timeout=300, **options)
    async def search(context: ToolContext) -> str:
        """Search for long."""
        await asyncio.sleep(seconds)
        return "found it"

    return BuiltTool(search, background=2.0)


@tool(read_only=True)
async def look() -> str:
    """Look."""
    return "seen"


def outputs(played: Played) -> dict[str, str]:
    sent = played.report.client_events("conversation.item.create", item__type="function_call_output")
    return {message["item"]["call_id"]: message["item"]["output"] for message in sent}


def messages(played: Played) -> list[str]:
    sent = played.report.client_events("conversation.item.create", item__type="message")
    return [message["item"]["content"][0]["text"] for message in sent if message["item"]["role"] == "user"]


def agent_said(played: Played) -> list[str]:
    return [line.text for line in played.report.transcript if line.speaker == "agent"]


def test_the_conversation_goes_on_while_a_tool_runs_and_its_result_is_spoken_once() -> None:
    played = play(
        {
            "model": [
                {"say": "Hello."},
                {"calls": [{"id": "c1", "name": "search"}]},
                {"say": "This takes a while."},
                {"calls": [{"id": "c2", "name": "look"}]},
                {"say": "I see."},
                {"say": "I have found it."},
            ],
            "caller": [{"say": "Search, please."}, {"say": "And look.", "patience": 20}, {"sleep": 40}],
            "expect": [{"errors": 0}, {"never": "response.create", "while": "caller_speaking"}],
        },
        tenants=[acme(greeting="Hello.", policy=[{"allow": "search"}])],
        tools=[background(25), look],
        options=MachineOptions(filler_after=None),
    )

    assert agent_said(played) == ["Hello.", "This takes a while.", "I see.", "I have found it."]
    found = outputs(played)
    assert "as soon as it is there" in found["c1"]
    assert found["c2"] == "seen"
    [message] = messages(played)
    assert "found it" in message
    [ended] = played.of(PhoneCallEnded)
    assert (ended.unanswered, ended.never_spoken, ended.cut_off) == (0, 0, 0)


def test_a_tool_that_is_quick_has_one_output_and_no_message() -> None:
    played = play(
        {
            "model": [{"say": "Hello."}, {"calls": [{"id": "c1", "name": "search"}]}, {"say": "Found."}],
            "caller": [{"say": "Search."}, {"wait": "results"}],
        },
        tenants=[acme(greeting="Hello.", policy=[{"allow": "search"}])],
        tools=[background(1)],
    )

    assert outputs(played) == {"c1": "found it"}
    assert messages(played) == []


def test_a_caller_who_interrupts_neither_stops_the_tool_nor_misses_its_result() -> None:
    played = play(
        {
            "model": [
                {"say": "Hello."},
                {"calls": [{"id": "c1", "name": "search"}]},
                {"say": "This takes a while."},
                {"say": "Yes?"},
                {"say": "I have found it, and this is a long story."},
                {"say": "Go on."},
            ],
            "otherwise": {"say": "As I said: found."},
            "caller": [
                {"say": "Search."},
                {"wait": "speech", "patience": 20},
                {"barge": "One question.", "on": "playout"},
                {"sleep": 8},
                {"barge": "Wait!", "on": "audio", "patience": 40},
                {"sleep": 20},
            ],
        },
        tenants=[acme(greeting="Hello.", policy=[{"allow": "search"}])],
        tools=[background(15, on_interrupt="cancel")],
    )

    [finished] = played.of(CallFinished)
    assert finished.result.output == "found it"
    assert len(messages(played)) == 1
    assert played.of(PhoneCallEnded)[0].cut_off == 0


def test_a_hang_up_while_it_runs_settles_it_and_sends_nothing() -> None:
    played = play(
        {
            "model": [{"say": "Hello."}, {"calls": [{"id": "c1", "name": "search"}]}, {"say": "A while."}],
            "caller": [{"say": "Search."}, {"wait": "results", "patience": 20}, {"hangup": 1}],
            "expect": [{"never": "*", "while": "ended"}],
        },
        tenants=[acme(greeting="Hello.", policy=[{"allow": "search"}])],
        tools=[background(8)],
    )

    [finished] = played.of(CallFinished)
    assert finished.result.output == "found it"
    assert "tool_result_after_call_end" in played.notes
    assert messages(played) == []


def running_in_background() -> CallMachine:
    machine = CallMachine()
    machine.handle(s.Connected())
    machine.handle(s.ResponseStarted(response_id="r1"))
    machine.handle(s.ToolCalled(call=CALL))
    machine.handle(s.ResponseFinished(response_id="r1", status="completed"))
    return machine


def sent(commands: list[s.Command]) -> list[str]:
    return [command.request_id for command in commands if isinstance(command, s.SendOutput | s.SendMessage)]


def test_a_result_that_comes_before_the_first_output_could_be_sent_takes_its_place() -> None:
    machine = running_in_background()
    machine.handle(s.Disconnected())
    machine.handle(s.ToolContinues(call_id="c1", output="still running"))
    machine.handle(s.ToolFinished(call_id="c1", output="found"))

    commands = machine.handle(s.Connected(resumed=True))

    assert [command.output for command in commands if isinstance(command, s.SendOutput)] == ["found"]
    assert "late_c1" not in sent(commands)


def test_what_was_not_seen_in_the_conversation_is_sent_again_over_the_next_connection() -> None:
    machine = running_in_background()
    assert sent(machine.handle(s.ToolContinues(call_id="c1", output="still running"))) == ["output_c1"]
    machine.handle(s.OutputAdded(call_id="c1"))
    assert sent(machine.handle(s.ToolFinished(call_id="c1", output="found"))) == ["late_c1"]
    machine.handle(s.Disconnected())

    assert [message for message in sent(machine.handle(s.Connected(resumed=True))) if message != "message_2"] == [
        "late_c1"
    ]
    code = "item_create_duplicate_item_id"
    machine.handle(s.RequestRejected(request_id="late_c1", code=code))
    assert machine.calls.unspoken == ("c1",)


def test_a_tool_for_the_background_must_let_others_run_beside_it() -> None:
    @tool
    async def slow() -> str:
        """Take long."""
        return ""

    builder = ToolBuilder()
    builder.register(lambda cfg: BuiltTool(slow, background=2.0))

    [failed] = [diagnostic for diagnostic in builder.build_tools(acme()).diagnostics if diagnostic.status == "failed"]

    assert "must be concurrency_safe" in failed.message


@pytest.mark.parametrize("output", ['{"ok": true}', "<|im_end|>"])
def test_a_late_result_is_data(output: str) -> None:
    machine = running_in_background()
    machine.handle(s.ToolContinues(call_id="c1", output="still running"))

    [message] = [
        command
        for command in machine.handle(s.ToolFinished(call_id="c1", output=output))
        if isinstance(command, s.SendMessage)
    ]

    assert message.call_id == "c1"
    assert json.dumps(output)[1:-1] in json.dumps(message.text)

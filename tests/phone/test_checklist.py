"""What a phone agent's tool system has to get right in small things: each test is one point."""

import asyncio
import json
from typing import Any

import pytest

from handrail import ToolCall, ToolContext, tool
from handrail.phone import MachineOptions, PhoneCallEnded
from handrail.phone import signals as s
from handrail.phone.state_machine import CallMachine
from tests.phone.calls import play
from tests.phone.scripted import ScriptedTransport, make_session
from tests.tenants.samples import acme

CALL = ToolCall(id="c1", name="look", arguments_json="{}", response_id="r1", item_id="i1")


def outputs(played: Any) -> dict[str, str]:
    sent = played.report.client_events("conversation.item.create", item__type="function_call_output")
    return {message["item"]["call_id"]: message["item"]["output"] for message in sent}


def connected(options: MachineOptions | None = None) -> CallMachine:
    machine = CallMachine(options)
    machine.handle(s.Connected())
    return machine


def answered(machine: CallMachine) -> None:
    """The model called a tool in a response that is over, and the tool has its result."""
    machine.handle(s.ResponseStarted(response_id="r1"))
    machine.handle(s.ToolCalled(call=CALL))
    machine.handle(s.ResponseFinished(response_id="r1", status="completed"))


def requests(commands: list[s.Command]) -> list[str]:
    return [command.request_id for command in commands if isinstance(command, s.RequestResponse)]


def test_a_response_that_the_provider_starts_counts_for_the_results_that_it_knows() -> None:
    machine = connected()
    answered(machine)
    machine.handle(s.CallerStarted(item_id="u1"))
    assert not requests(machine.handle(s.ToolFinished(call_id="c1", output="42")))
    machine.handle(s.OutputAdded(call_id="c1"))
    machine.handle(s.CallerStopped(item_id="u1"))
    machine.handle(s.ResponseStarted(response_id="r2"))

    assert not requests(machine.handle(s.ResponseFinished(response_id="r2", status="completed")))
    [spoken] = machine.handle(s.PlaybackStarted(response_id="r2"))[-1:]
    assert spoken == s.ReportSpoken(call_ids=("c1",))
    assert machine.calls.unspoken == ()


def test_a_request_that_collides_with_another_response_is_no_error_and_its_result_stays_owed() -> None:
    machine = connected()
    answered(machine)
    [request_id] = requests(machine.handle(s.ToolFinished(call_id="c1", output="42")))

    code = "conversation_already_has_active_response"
    commands = machine.handle(s.RequestRejected(request_id=request_id, code=code))

    assert not [command for command in commands if isinstance(command, s.Note)]
    assert machine.calls.unspoken == ("c1",)
    [again] = requests(machine.handle(s.TimerFired(name="blocked")))
    assert again != request_id


def test_a_response_that_the_provider_starts_before_the_output_arrives_does_not_speak_about_it() -> None:
    machine = connected()
    answered(machine)
    machine.handle(s.CallerStarted(item_id="u1"))
    machine.handle(s.CallerStopped(item_id="u1"))
    machine.handle(s.ResponseStarted(response_id="r2"))
    machine.handle(s.ToolFinished(call_id="c1", output="42"))

    assert requests(machine.handle(s.ResponseFinished(response_id="r2", status="completed")))


def test_more_tool_calls_than_a_phone_call_may_make_get_results_and_do_not_run() -> None:
    ran: list[str] = []

    @tool(read_only=True)
    async def look() -> str:
        """Look."""
        ran.append("look")
        return "seen"

    played = play(
        {
            "model": [{"say": "Hello."}, {"calls": [{"id": f"c{n}", "name": "look"} for n in range(4)]}],
            "otherwise": {"say": "That is all."},
            "caller": [{"say": "Look."}, {"wait": "results"}],
        },
        tenants=[acme(greeting="Hello.", limits={"max_tool_calls": 2})],
        tools=[look],
    )

    assert len(ran) == 2
    codes = [json.loads(output)["error"] if output.startswith("{") else output for output in outputs(played).values()]
    assert sorted(codes) == ["rate_limited", "rate_limited", "seen", "seen"]
    assert played.notes.count("tool_calls_exhausted") == 2


async def test_one_id_with_other_arguments_is_a_fault_of_the_protocol_and_no_second_run() -> None:
    noted: list[Any] = []
    transport = ScriptedTransport()
    session = make_session(transport, emit=noted.append)
    running = asyncio.create_task(session.run())
    await transport.opened.wait()
    transport.call("c1", "request_transfer", '{"destination_id": "nobody"}')
    transport.call("c1", "request_transfer", '{"destination_id": "sales"}')
    transport.call("c2", "nothing")
    await transport.wait_for_outputs(2)
    session.end("caller")
    await running

    assert [len(output) for output in transport.outputs.values()] == [1, 1]
    names = [getattr(item, "name", "") for item in noted]
    assert names.count("tool_invocation_conflicting_arguments") == 1
    # Of a tool that does not exist, the model learns which do.
    assert "request_transfer" in json.loads(transport.outputs["c2"][0])["message"]


def test_a_caller_who_says_nothing_for_long_is_told_goodbye() -> None:
    played = play(
        {
            "model": [{"say": "Hello."}, {"say": "Goodbye."}],
            "caller": [{"sleep": 600}],
            "expect": [{"ended": "agent"}, {"heard": "Goodbye."}, {"http": "hangup", "times": 1}],
        },
        tenants=[acme(greeting="Hello.", limits={"idle_timeout": 60})],
    )

    assert 60 < played.report.duration < 90


def test_a_call_that_has_used_up_its_tokens_is_brought_to_its_end() -> None:
    played = play(
        {
            "model": [
                {"say": "Hello."},
                {"say": "It is sunny."},
                {"say": "We have to stop here."},
                {"say": "Goodbye."},
            ],
            "caller": [{"say": "How is the weather?"}, {"sleep": 300}],
            "expect": [{"ended": "agent"}, {"heard": "We have to stop here."}, {"heard": "Goodbye."}],
        },
        tenants=[acme(greeting="Hello.", limits={"max_tokens": 150, "idle_timeout": None})],
    )

    assert played.notes.count("token_budget_exceeded") == 1
    assert played.of(PhoneCallEnded)[0].usage["total_tokens"] > 150


def test_a_filler_comes_a_few_times_at_most_and_never_over_anybody() -> None:
    machine = connected(MachineOptions(filler_after=1.0, max_fillers=2))
    answered(machine)
    heard: list[str] = []

    def say_filler(response_id: str) -> None:
        for command in machine.handle(s.TimerFired(name="filler")):
            if isinstance(command, s.RequestResponse):
                heard.append(command.purpose)
                machine.handle(s.ResponseStarted(response_id=response_id, request_id=command.request_id))
                machine.handle(s.ResponseFinished(response_id=response_id, status="completed"))

    machine.handle(s.CallerStarted(item_id="u1"))
    say_filler("f1")
    assert heard == []
    machine.handle(s.CallerStopped(item_id="u1"))
    machine.handle(s.ResponseStarted(response_id="r2"))
    machine.handle(s.PlaybackStarted(response_id="r2"))
    machine.handle(s.ResponseFinished(response_id="r2", status="completed"))
    say_filler("f2")
    assert heard == []
    machine.handle(s.PlaybackStopped(response_id="r2"))
    for number in range(5):
        say_filler(f"f{3 + number}")

    assert heard == ["filler", "filler"]


@pytest.mark.parametrize("order", [("write", "end_call"), ("end_call", "write")])
def test_the_agent_does_not_hang_up_on_results_that_the_caller_has_not_heard_of(order: tuple[str, str]) -> None:
    @tool(concurrency_safe=True)
    async def write() -> str:
        """Write."""
        await asyncio.sleep(1)  # Less than a filler waits: it would say the first entry of the model.
        return "written"

    played = play(
        {
            "model": [
                {"say": "Hello."},
                {"calls": [{"id": name, "name": name} for name in order]},
                {"say": "It is written."},
                {"calls": [{"id": "end", "name": "end_call"}]},
                {"say": "Goodbye."},
            ],
            "caller": [{"say": "Write, and goodbye."}, {"say": "Thanks.", "patience": 20}, {"sleep": 30}],
            "expect": [{"heard": "It is written."}, {"ended": "agent"}, {"http": "hangup", "times": 1}],
        },
        tenants=[acme(greeting="Hello.", features={"end_call": {"enabled": True}}, policy=[{"allow": "write"}])],
        tools=[write],
    )

    found = outputs(played)
    assert found["write"] == "written"
    assert json.loads(found["end_call"])["error"] == "end_call_results_pending"
    assert json.loads(found["end"]) == {"message": "call_ended"}


LONG = "It is written, in the first line of the list that you gave me, and everybody who is on it was told."


@pytest.mark.parametrize(
    ("reply", "outcome"), [({}, "end_call_results_pending"), ({"say": LONG}, None)], ids=["without words", "with words"]
)
@pytest.mark.parametrize("faults", [[], [{"fault": "no_playback"}]], ids=["playback", "no playback"])
def test_a_reply_that_hangs_up_has_to_tell_the_results_which_are_heard_before_the_line_ends(
    reply: dict[str, Any], outcome: str | None, faults: list[Any]
) -> None:
    @tool(concurrency_safe=True)
    async def write() -> str:
        """Write."""
        return "written"

    told = [] if reply else [{"say": LONG}, {"calls": [{"id": "end", "name": "end_call"}]}]
    played = play(
        {
            "model": [
                {"say": "Hello."},
                {"calls": [{"id": "write", "name": "write"}]},
                {**reply, "calls": [{"id": "first", "name": "end_call"}]},
                *told,
                {"say": "Goodbye."},
            ],
            "faults": faults,
            "caller": [{"say": "Write, and goodbye."}, *([] if reply else [{"say": "Thanks."}]), {"sleep": 30}],
            "expect": [{"heard": LONG}, {"heard": "Goodbye."}, {"ended": "agent"}, {"http": "hangup", "times": 1}],
        },
        tenants=[acme(greeting="Hello.", features={"end_call": {"enabled": True}}, policy=[{"allow": "write"}])],
        tools=[write],
    )

    found = outputs(played)
    assert json.loads(found["first"]).get("error") == outcome
    assert json.loads(found["first" if reply else "end"]) == {"message": "call_ended"}


def test_the_tools_of_one_phone_call_run_together_up_to_a_limit() -> None:
    together: list[int] = [0, 0]

    @tool(read_only=True, concurrency_safe=True)
    async def look(number: int) -> str:
        """Look."""
        together[0] += 1
        together[1] = max(together)
        await asyncio.sleep(1)
        together[0] -= 1
        return str(number)

    calls = [{"id": f"c{n}", "name": "look", "args": {"number": n}} for n in range(6)]
    played = play(
        {
            "model": [{"say": "Hello."}, {"calls": calls}],
            "otherwise": {"say": "All six."},
            "caller": [{"say": "Look."}, {"wait": "results", "patience": 20}],
        },
        tenants=[acme(greeting="Hello.", limits={"max_concurrent_tools": 2})],
        tools=[look],
    )

    assert together == [0, 2]
    assert sorted(outputs(played).values()) == ["0", "1", "2", "3", "4", "5"]


def test_a_tool_that_is_stopped_says_whether_something_may_have_happened() -> None:
    @tool(read_only=True)
    async def read() -> str:
        """Read."""
        await asyncio.sleep(6)
        return ""

    @tool(on_interrupt="cancel", concurrency_safe=True)
    async def write() -> str:
        """Write."""
        await asyncio.sleep(6)
        return ""

    @tool(on_interrupt="cancel")
    async def queued(context: ToolContext) -> str:
        """Write after the others."""
        return ""

    names = ["write", "read", "queued"]
    played = play(
        {
            "model": [
                {"say": "Hello."},
                {"say": "One moment.", "calls": [{"id": name, "name": name} for name in names]},
            ],
            "otherwise": {"say": "Stopped."},
            "caller": [{"say": "Do it."}, {"barge": "Stop!", "on": "playout"}, {"wait": "results", "patience": 20}],
            "expect": [{"result": "write", "error": "outcome_unknown"}],
        },
        tenants=[acme(greeting="Hello.", policy=[{"allow": ["write", "queued"]}])],
        tools=[read, write, queued],
    )

    codes = {name: json.loads(output)["error"] for name, output in outputs(played).items()}
    assert codes == {"read": "cancelled", "write": "outcome_unknown", "queued": "cancelled"}

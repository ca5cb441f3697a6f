"""One session over a provider that the test writes by hand: what is told, and what happens when everything fails."""

import asyncio
import errno
import io
import json
from pathlib import Path
from typing import Any

import pytest

from handrail import ToolCall
from handrail.core import Event, LogEvent
from handrail.phone import ConnectionLost, MachineOptions, PhoneCallEnded
from handrail.phone.events import Listeners
from handrail.phone.recording import CallRecorder
from tests.phone.scripted import BrokenExecutor, ScriptedTransport, make_session
from tests.tenants.samples import acme, refer
from tests.warped import warped

FREE = acme(features={"refer": refer(require_confirmation=False, handoff_phrase="")})


class Heard(list[Event]):
    def notes(self, name: str) -> list[LogEvent]:
        return [item for item in self if isinstance(item, LogEvent) and item.name == name]


@pytest.mark.proves("PH-29", "PH-30")
async def test_a_call_is_reported_when_it_arrives_is_built_and_is_handed_over() -> None:
    transport, heard = ScriptedTransport(), Heard()
    session = make_session(transport, cfg=FREE, emit=heard.append)
    running = asyncio.create_task(session.run())
    transport.call("c1", "request_transfer", '{"destination_id": "sales"}', response_id="r7")
    await transport.wait_for_outputs(1)
    session.end("caller")
    await running

    for name in ("ws_tool_call_received", "ws_tool_invocation_built", "ws_tool_invocation_submitting_to_dispatcher"):
        [note] = heard.notes(name)
        assert note.call == ToolCall(
            id="r7/c1",
            provider_id="c1",
            name="request_transfer",
            arguments_json='{"destination_id": "sales"}',
            response_id="r7",
            item_id="item_c1",
        )
        assert (note.session_id, note.tenant_id, note.sip_call_id) == ("rtc_1", "acme-corp", "sip-1")
    assert transport.requests == ["refer sip:sales@acme.example"]


@pytest.mark.proves("PH-57")
async def test_a_call_whose_run_fails_gets_a_fallback_output() -> None:
    transport, heard = ScriptedTransport(), Heard()
    session = make_session(transport, executor=BrokenExecutor, emit=heard.append)
    running = asyncio.create_task(session.run())
    transport.call("c1", "request_transfer")
    await transport.wait_until(lambda: any(message["type"] == "response.create" for message in transport.sent))
    session.end("caller")
    await running

    [output] = transport.outputs["c1"]
    assert json.loads(output)["error"] == "tool_execution_failed"
    assert "a bug" not in output
    assert [note.call.wire_id for note in heard.notes("tool_run_and_respond_fallback_output_sent") if note.call] == [
        "c1"
    ]


@pytest.mark.proves("PH-58")
async def test_a_fallback_output_that_cannot_be_sent_is_reported_and_sent_over_the_next_connection() -> None:
    transport, heard = ScriptedTransport(is_cut=True), Heard()
    session = make_session(transport, executor=BrokenExecutor, emit=heard.append)
    running = asyncio.create_task(session.run())
    transport.call("c1", "request_transfer")
    await transport.wait_until(lambda: len(transport.outputs.get("c1", [])) == 1)
    transport.is_cut = False
    await transport.wait_until(lambda: len(transport.outputs["c1"]) == 2)
    transport.call("c2", "request_transfer")
    await transport.wait_for_outputs(2)
    session.end("caller")
    await running

    assert len(heard.notes("tool_run_and_respond_fallback_output_failed")) == 1
    assert len(heard.notes("tool_run_and_respond_fallback_output_sent")) == 2
    item_ids = [message["item"]["id"] for message in transport.sent if message.get("item", {}).get("call_id") == "c1"]
    assert len(set(item_ids)) == 1  # The provider can tell that it is the same output.


async def test_the_end_of_a_call_is_reported_once_with_what_was_cut_off() -> None:
    transport, heard = ScriptedTransport(), Heard()
    session = make_session(transport, emit=heard.append)
    running = asyncio.create_task(session.run())
    await transport.opened.wait()
    transport.close(is_over=True)
    await running
    session.end("shutdown")

    [ended] = [event for event in heard if isinstance(event, PhoneCallEnded)]
    assert (ended.reason, ended.tool_calls, ended.cut_off) == ("caller", 0, 0)
    assert session.end_reason == "caller"


async def test_a_call_that_cannot_be_reached_again_is_lost() -> None:
    class Unreachable(ScriptedTransport):
        def connect(self, session_id: str) -> Any:
            if self.connections:
                raise ConnectionLost(is_over=False)
            return super().connect(session_id)

    transport, heard = Unreachable(), Heard()
    session = make_session(transport, emit=heard.append, reconnect_delays=(0.0, 0.0))
    running = asyncio.create_task(session.run())
    await transport.opened.wait()
    transport.close(is_over=False)
    await running

    assert session.end_reason == "lost"
    assert len(heard.notes("sideband_reconnecting")) == 2


async def test_two_tools_of_one_call_cannot_transfer_it_twice() -> None:
    transport = ScriptedTransport()
    session = make_session(transport, cfg=FREE)
    running = asyncio.create_task(session.run())
    await transport.opened.wait()
    first = asyncio.create_task(session.transfer("tel:+14155552000", announcement=""))
    second = asyncio.create_task(session.transfer("tel:+14155552001", announcement=""))
    assert await second == "in_progress"
    with pytest.raises(ValueError, match="must be"):
        await session.transfer("javascript:alert(1)")
    session.end("caller")
    assert await first == "transferred"
    await running
    assert transport.requests == ["refer tel:+14155552000"]
    assert await session.transfer("tel:+14155552002", announcement="") == "ended"


@warped
async def test_a_filler_is_spoken_while_a_tool_takes_long() -> None:
    transport = ScriptedTransport()
    cfg = acme(features={"collect_digits": {"enabled": True}})
    session = make_session(transport, cfg=cfg, options=MachineOptions(filler_after=0.01, max_fillers=1))
    running = asyncio.create_task(session.run())
    transport.call("c1", "collect_digits", '{"purpose": "pin"}')
    await transport.wait_until(lambda: any(message["type"] == "response.create" for message in transport.sent))
    session.end("caller")
    await running

    [filler] = [message for message in transport.sent if message["type"] == "response.create"]
    assert "still working" in filler["response"]["instructions"]
    assert filler["response"]["tool_choice"] == "none"


@pytest.mark.parametrize("fault", ["the first handshake finds no call", "the first socket closes at once"])
async def test_a_call_that_the_provider_does_not_know_yet_is_tried_again(fault: str) -> None:
    class Late(ScriptedTransport):
        def connect(self, session_id: str) -> Any:
            if self.connections == 0 and "handshake" in fault:
                self.connections += 1
                raise ConnectionLost(is_over=True)
            return super().connect(session_id)

    transport = Late()
    session = make_session(transport, reconnect_delays=(0.0, 0.0))
    running = asyncio.create_task(session.run())
    await transport.opened.wait()
    if "closes" in fault:
        transport.opened.clear()
        transport.close(is_over=True)
        transport.is_over = False
        await transport.opened.wait()
    assert not session.is_over
    transport.close(is_over=True)
    await running

    assert session.end_reason == "caller"
    assert transport.connections >= 2


@pytest.mark.parametrize("reason", ["caller", "agent", "shutdown", "lost", "failed", "expired", "transferred"])
async def test_whatever_ends_a_call_it_is_hung_up_once(reason: Any) -> None:
    transport = ScriptedTransport()
    session = make_session(transport)
    running = asyncio.create_task(session.run())
    await transport.opened.wait()
    session.end(reason)
    await running

    # A call that was transferred belongs to somebody else.
    assert transport.requests == ([] if reason == "transferred" else ["hangup"])


async def test_a_recording_that_cannot_be_written_is_an_event_and_not_the_end_of_the_call(tmp_path: Path) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    recorder = CallRecorder(tmp_path / "call.jsonl", about={}, options=MachineOptions())
    recorder._file.close()
    recorder._file = Full()  # type: ignore[assignment]  # the disk is full from now on
    transport, heard = ScriptedTransport(), Heard()
    session = make_session(transport, emit=heard.append, recorder=recorder)
    running = asyncio.create_task(session.run())
    await transport.opened.wait()
    transport.call("c1", "nothing")
    await transport.wait_for_outputs(1)
    session.end("caller")
    await running

    assert session.end_reason == "caller"
    [note] = heard.notes("recording_failed")
    assert (note.severity, note.fields["reason"]) == ("error", "No space left on device")


async def test_a_listener_that_raises_cancelled_error_ends_no_call() -> None:
    transport, heard = ScriptedTransport(), Heard()

    def cancel(event: Event) -> None:
        raise asyncio.CancelledError

    session = make_session(transport, emit=Listeners([cancel, heard.append]).emit)
    running = asyncio.create_task(session.run())
    transport.call("c1", "nothing")
    await transport.wait_for_outputs(1)
    session.end("caller")
    await running

    assert session.end_reason == "caller"
    assert len(heard.notes("ws_tool_call_received")) == 1


class NoToken(ScriptedTransport):
    """A client whose `api_key` function fails: no request of call control is sent."""

    async def transfer(self, session_id: str, target_uri: str) -> Any:
        self.requests.append("refer")
        raise RuntimeError("no token")

    async def hang_up(self, session_id: str) -> bool:
        self.requests.append("hangup")
        raise RuntimeError("no token")


async def test_a_hang_up_that_raises_is_repeated_and_the_call_is_settled_and_reported() -> None:
    transport, heard = NoToken(), Heard()
    session = make_session(transport, emit=heard.append)
    running = asyncio.create_task(session.run())
    await transport.opened.wait()
    session.end("shutdown")
    await running

    assert transport.requests == ["hangup", "hangup"]
    assert len(heard.notes("phone_call_not_hung_up")) == 1
    assert [event.reason for event in heard if isinstance(event, PhoneCallEnded)] == ["shutdown"]


@warped
async def test_a_transfer_that_raises_has_failed_for_the_tool_unless_the_call_leaves() -> None:
    transport = NoToken()
    session = make_session(transport)
    running = asyncio.create_task(session.run())
    await transport.opened.wait()
    assert await session.transfer("tel:+14155552000") == "failed"
    session.end("caller")
    await running

    assert transport.requests[0] == "refer"


@warped
async def test_a_line_on_which_the_caller_never_stops_speaking_is_hung_up_after_the_longest_duration() -> None:
    transport = ScriptedTransport()
    session = make_session(transport, options=MachineOptions(max_duration=60, wrap_up=20))
    running = asyncio.create_task(session.run())
    await transport.opened.wait()
    transport.tell("input_audio_buffer.speech_started", item_id="music")
    async with asyncio.timeout(110):
        await running

    assert session.end_reason == "agent"
    assert transport.requests == ["hangup"]

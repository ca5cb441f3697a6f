"""The promises of a phone call as properties over random calls."""

import os
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from handrail import ToolCall
from handrail.phone import MachineOptions
from handrail.phone import signals as s
from handrail.phone.state_machine import CallMachine
from tests.phone.drive import Drive

FULL = os.environ.get("HYPOTHESIS_PROFILE") == "full"
MANY = settings(max_examples=3_000 if FULL else 300, deadline=None, derandomize=not FULL)
SETTINGS = settings(MANY, max_examples=2_000 if FULL else 120, suppress_health_check=[HealthCheck.too_slow])

seconds = st.sampled_from([0.0, 0.1, 0.3, 0.7, 1.5, 4.0, 12.0])


@st.composite
def scripts(draw: st.DrawFn, *, faults: bool = False) -> dict[str, Any]:
    """A call in which the model talks and calls tools, and the caller talks, interrupts and hangs up."""
    numbers = iter(range(1000))

    def entry() -> dict[str, Any]:
        calls = [{"id": f"c{next(numbers)}", "name": "t"} for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2, 3])))]
        status = draw(st.sampled_from(["completed"] * 8 + ["failed", "incomplete"]))
        return {
            "say": draw(st.sampled_from(["", "Yes.", "One moment, I am looking."])),
            "calls": calls,
            "status": status,
        }

    actions = st.one_of(
        st.builds(lambda text: {"say": text, "patience": 4}, st.sampled_from(["Hello?", "How much is it, please?"])),
        st.builds(
            lambda on, after: {"barge": "No, wait!", "on": on, "after": after, "patience": 4},
            st.sampled_from(["audio", "args", "response", "playout"]),
            seconds,
        ),
        st.builds(lambda t: {"sleep": t}, seconds),
        st.builds(lambda code: {"drop": code}, st.sampled_from([1006, 1012])),
    )
    caller = draw(st.lists(actions, min_size=1, max_size=6))
    if draw(st.integers(0, 5)) == 0:
        caller.append({"hangup": draw(seconds)})
    return {
        "model": [{"say": "Hello."}, *(entry() for _ in range(draw(st.integers(1, 6))))],
        "otherwise": {"say": "All right."},
        "caller": caller,
        "faults": draw(fault_lists) if faults else [],
    }


fault_lists = st.lists(
    st.builds(
        lambda fault, event, probability: {"fault": fault, "event": event, "probability": probability},
        st.sampled_from(["drop", "delay", "duplicate", "reorder", "garbage", "unknown", "close", "slow"]),
        st.sampled_from(["*", "response.*", "response.created", "response.done", "output_audio_buffer.*"]),
        st.sampled_from([0.02, 0.1, 0.3]),
    ),
    min_size=1,
    max_size=3,
)


@st.composite
def drives(draw: st.DrawFn, *, faults: bool = False) -> Drive:
    durations: dict[str, float] = {}
    takes = draw(st.lists(seconds, min_size=3, max_size=3))

    def work(call: ToolCall) -> tuple[float, str]:
        return durations.setdefault(call.id, takes[len(durations) % 3]), f"result of {call.id}"

    background = draw(st.sampled_from([None, None, 0.0, 1.0]))
    script = draw(scripts(faults=faults))
    interrupts, is_transient = draw(st.booleans()), draw(st.booleans())
    return Drive(script, work=work, interrupts=interrupts, background_after=background, is_transient=is_transient)


def sent_outputs(drive: Drive) -> Counter[str]:
    return Counter(command.call_id for command in drive.commands if isinstance(command, s.SendOutput))


@SETTINGS
@given(drive=drives())
@pytest.mark.proves("PH-D5", "PH-D1", "PH-74")
def test_every_call_gets_one_output_and_is_spoken_about_and_there_are_never_two_responses(drive: Drive) -> None:
    report = drive.play().call.report()

    caller = drive.call.script.model_dump()["caller"]
    # Of several calls that were all made while there was no connection, only the last one can be found.
    missed = set(report.unanswered) - set(drive.runs) if any("drop" in text for text in caller) else set[str]()
    assert set(report.unanswered) == missed
    if not any("hangup" in text for text in caller):  # Who hangs up does not wait for what is left to say.
        assert report.never_voiced == ()
    assert report.duplicate_outputs == ()
    assert report.unknown_outputs == ()
    assert set(drive.runs) <= {call.call_id for call in report.calls}
    assert all(count == 1 for count in drive.runs.values())
    assert drive.after_the_end == []
    assert drive.machine.calls.never_spoken == []
    deleted = [command for command in drive.commands if isinstance(command, s.DeleteItem)]
    assert len(set(deleted)) == len(deleted)
    assert not [error for error in report.errors if "does not exist" in error.message and deleted]
    if report.ended == "caller" and not any("hangup" in text or "drop" in text for text in caller):
        late = {command.call_id for command in drive.commands if isinstance(command, s.SendMessage) and command.call_id}
        assert not late & set(drive.machine.calls.unspoken)
    if not any("drop" in text for text in caller):  # Who begins to speak while there is no connection is not heard,
        begun = {item.at for item in report.timeline if item.type == "speech.started"}  # nor who does in this moment.
        created = [item for item in report.timeline if item.type == "response.create" and item.caller_speaking]
        assert [item for item in created if item.at not in begun] == []
        assert report.created_while_active == 0


@SETTINGS
@given(drive=drives(faults=True))
def test_whatever_happens_to_the_events_nothing_runs_twice_and_nothing_is_answered_twice(drive: Drive) -> None:
    report = drive.play().call.report()

    assert all(count == 1 for count in drive.runs.values())
    assert report.duplicate_outputs == ()
    assert set(drive.runs) <= {call.call_id for call in report.calls}
    assert drive.after_the_end == []


ids = st.sampled_from(["a", "b", "c"])
signals = st.one_of(
    st.builds(s.Connected, resumed=st.booleans()),
    st.builds(s.Disconnected),
    st.builds(s.ResponseStarted, response_id=ids, request_id=st.sampled_from([None, "response_1", "response_2"])),
    st.builds(
        s.ResponseFinished,
        response_id=ids,
        status=st.sampled_from(["completed", "cancelled", "failed", "incomplete"]),
        request_id=st.sampled_from([None, "response_1", "response_3"]),
        has_speech=st.booleans(),
    ),
    st.builds(s.ToolCallOpened, item_id=ids),
    st.builds(s.ToolCallDropped, item_id=ids),
    st.builds(
        s.ToolCalled,
        call=st.builds(
            ToolCall,
            id=ids,
            name=st.just("t"),
            arguments_json=st.sampled_from(["{}", "[]"]),
            response_id=ids,
            item_id=ids,
        ),
    ),
    st.builds(s.OutputAdded, call_id=ids),
    st.builds(
        s.RequestRejected,
        request_id=st.sampled_from([None, "response_1", "response_2", "output_a", "output_b"]),
        code=st.sampled_from(["conversation_already_has_active_response", "item_create_duplicate_item_id", "x"]),
    ),
    st.builds(s.CallerStarted, item_id=ids),
    st.builds(s.CallerStopped, item_id=ids),
    st.builds(s.CallerTranscribed, item_id=ids, transcript=st.sampled_from([None, "yes", "no"])),
    st.builds(s.SilenceNoticed),
    st.builds(s.PlaybackStarted, response_id=ids),
    st.builds(s.PlaybackStopped, response_id=ids),
    st.builds(s.PlaybackCleared, response_id=ids),
    st.builds(
        s.ToolFinished,
        call_id=ids,
        output=st.just("x"),
        is_silent=st.booleans(),
        is_transient=st.booleans(),
        hands_off=st.sampled_from([False, False, True]),
        approval=st.sampled_from([None, None, "token"]),
    ),
    st.builds(s.ToolContinues, call_id=ids, output=st.just("x")),
    st.builds(
        s.TransferRequested,
        request_id=st.just("t1"),
        target_uri=st.just("tel:+1"),
        announcement=st.sampled_from(["", "x"]),
    ),
    st.builds(s.TransferAnswered, outcome=st.sampled_from(["transferred", "failed", "unknown"])),
    st.builds(
        s.HangUpRequested, request_id=st.sampled_from([None, "h1"]), goodbye=st.sampled_from(["", "x"]), call_id=ids
    ),
    st.builds(s.OperatorReplied, text=st.just("x")),
    st.builds(s.HandedBack),
    st.builds(
        s.TimerFired,
        name=st.sampled_from(
            [
                "request",
                "response",
                "turn",
                "blocked",
                "playout",
                "transfer",
                "hang_up",
                "filler",
                "idle",
                "max_duration",
                "wrap_up",
            ]
        ),
    ),
)


@MANY
@given(events=st.lists(signals, max_size=60), end=st.integers(0, 60))
def test_events_in_any_order_break_no_promise(events: list[s.Signal], end: int) -> None:
    machine = CallMachine(MachineOptions(filler_after=1.0, has_transcripts=True, max_tool_calls=2))
    called: set[str] = set()
    ran: Counter[str] = Counter()
    is_connected = is_speaking = is_over = False
    sent_since_connected: Counter[str] = Counter()
    refers = 0
    for number, event in enumerate([*events[:end], s.Ended(reason="caller"), *events[end:]]):
        match event:
            case s.ToolCalled(call=call):
                called.add(call.id)
            case s.Connected():
                is_connected = True
                sent_since_connected.clear()
            case s.Disconnected():
                is_connected = is_speaking = False
            case s.CallerStarted():
                is_speaking = True
            case s.CallerStopped():
                is_speaking = False
            case _:
                pass
        commands = machine.handle(event)
        requests = [item for item in commands if isinstance(item, s.RequestResponse)]
        for command in commands:
            if is_over:
                assert isinstance(command, s.Note | s.FinishTransfer | s.FinishHangUp)
            if isinstance(command, s.SendOutput):
                sent_since_connected[command.call_id] += 1
                assert command.call_id in called
            if isinstance(command, s.RunTool):
                ran[command.call.id] += 1
            if isinstance(command, s.SendOutput | s.RequestResponse | s.RetrieveItem | s.DeleteItem):
                assert is_connected
            refers += isinstance(command, s.TransferCall)
        if machine.is_handed_off:
            assert all(request.purpose in ("operator", "announcement", "goodbye") for request in requests)
        assert len(requests) <= 1
        assert not (requests and (is_speaking or machine.active is not None))
        assert all(count == 1 for count in ran.values())
        assert all(count == 1 for count in sent_since_connected.values())
        is_over = is_over or number >= min(end, len(events))
    assert set(ran) <= called
    assert refers <= sum(isinstance(item, s.TransferRequested) for item in events)

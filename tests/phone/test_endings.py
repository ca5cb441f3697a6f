"""How a call ends, told to the state machine step by step."""

import pytest

from handrail import ToolCall
from handrail.phone import signals as s
from tests.phone.machine_call import Call


def want_end(call: Call, request_id: str = "h1") -> None:
    call.feed(s.HangUpRequested(request_id=request_id, call_id="e1", goodbye="Goodbye."))


def test_a_tool_cannot_hang_up_before_the_caller_has_spoken() -> None:
    call = Call()
    want_end(call)
    assert [command.outcome for command in call.of(s.FinishHangUp)] == ["too_early"]
    call.hear("Hello?")
    want_end(call, "h2")

    assert call.requests[-1] == "goodbye"
    assert [command.outcome for command in call.of(s.FinishHangUp)] == ["too_early"]  # The second one is under way.


def ask_during_reply(call: Call) -> str:
    """A tool asks to hang up while the reply to a result is requested, and has not begun; the id of the request."""
    call.hear("Pay, and goodbye.")
    call.feed(s.ResponseStarted(response_id="r"), s.ToolCalled(call=ToolCall(id="c", name="t", response_id="r")))
    call.feed(s.ToolFinished(call_id="c", output="done"), s.OutputAdded(call_id="c"))
    call.feed(s.ResponseFinished(response_id="r", status="completed", has_speech=False))
    assert call.requests[-1] == "reply"
    want_end(call)
    assert call.of(s.FinishHangUp) == []
    return str(call.of(s.RequestResponse)[-1].request_id)


@pytest.mark.parametrize(
    ("status", "has_speech", "is_told"),
    [("completed", True, True), ("completed", False, False), ("incomplete", True, False), ("failed", False, False)],
)
def test_whether_the_agent_may_hang_up_is_decided_by_how_its_reply_ends(
    status: s.ResponseStatus, has_speech: bool, is_told: bool
) -> None:
    call = Call()
    request = ask_during_reply(call)
    call.feed(s.ResponseStarted(response_id="answer", request_id=request))
    want_end(call, "h2")
    call.feed(s.ResponseFinished(response_id="answer", status=status, request_id=request, has_speech=has_speech))

    outcomes = {command.request_id: command.outcome for command in call.of(s.FinishHangUp)}
    assert outcomes == {"h2": "failed"} | ({} if is_told else {"h1": "results_pending"})
    assert ("goodbye" in call.requests) is is_told


@pytest.mark.parametrize(
    ("signal", "outcome"),
    [
        (s.CallerStarted(item_id="i9"), "interrupted"),
        (s.Ended(reason="caller"), "ended"),
        (s.Disconnected(), "results_pending"),
        (s.TimerFired(name="request"), "results_pending"),
    ],
)
def test_a_hang_up_that_waits_for_a_reply_is_answered_when_something_else_happens(
    signal: s.Signal, outcome: str
) -> None:
    call = Call()
    ask_during_reply(call)
    call.feed(signal)

    assert [(command.request_id, command.outcome) for command in call.of(s.FinishHangUp)] == [("h1", outcome)]
    assert "goodbye" not in call.requests


def test_the_agent_does_not_hang_up_while_a_tool_runs_in_the_background() -> None:
    call = Call()
    call.hear("Search, and goodbye.")
    call.feed(s.ResponseStarted(response_id="r"), s.ToolCalled(call=ToolCall(id="c", name="t", response_id="r")))
    call.feed(s.ToolContinues(call_id="c", output="It takes longer."), s.OutputAdded(call_id="c"))
    call.feed(s.ResponseFinished(response_id="r", status="completed", has_speech=False))
    call.speak("It takes longer.")
    want_end(call)
    call.feed(s.ToolFinished(call_id="c", output="found"))
    want_end(call, "h2")
    call.speak("I have found it.")
    assert "goodbye" not in call.requests[:-1]

    outcomes = {command.request_id: command.outcome for command in call.of(s.FinishHangUp)}
    assert outcomes == {"h1": "results_pending"}
    assert call.requests[-1] == "goodbye"  # h2 was asked for while it was told.


@pytest.mark.parametrize("after", ["the caller hangs up", "the goodbye is reported twice", "the timer fires as well"])
def test_whoever_wants_to_hang_up_is_told_once(after: str) -> None:
    call = Call()
    call.hear("That is all.")
    want_end(call)
    call.speak("Goodbye.")
    if after == "the goodbye is reported twice":
        call.feed(s.PlaybackStopped(response_id="r3"), s.TimerFired(name="playout"))
    elif after == "the timer fires as well":
        call.feed(s.TimerFired(name="hang_up"))
    call.feed(s.Ended(reason="caller"))

    assert [command.outcome for command in call.of(s.FinishHangUp)] == ["ended"]
    assert len(call.of(s.HangUp)) == 1
    assert call.machine.ended == "agent"


def test_a_late_duplicate_of_a_responses_beginning_changes_nothing() -> None:
    call = Call()
    call.feed(s.ResponseStarted(response_id="r"), s.ToolCalled(call=ToolCall(id="c", name="t", response_id="r")))
    call.feed(s.ToolFinished(call_id="c", output="done"), s.OutputAdded(call_id="c"))
    call.feed(s.ResponseFinished(response_id="r", status="completed", has_speech=False))
    assert call.requests[-1] == "reply"
    request = call.of(s.RequestResponse)[-1].request_id
    call.feed(s.ResponseStarted(response_id="answer", request_id=request))
    call.feed(s.ResponseStarted(response_id="r"))  # Over long ago.
    call.feed(s.ResponseStarted(response_id="answer", request_id=request))
    assert call.machine.active == "answer"
    call.feed(s.ResponseFinished(response_id="answer", status="completed", words="Done."))
    call.feed(s.ResponseStarted(response_id="answer"), s.TimerFired(name="response"))

    assert call.machine.active is None
    assert call.requests.count("reply") == 1
    assert call.machine.calls.unspoken == ()

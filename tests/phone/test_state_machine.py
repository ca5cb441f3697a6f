"""The state machine of a call, step by step: what it asks for next, and which timers run."""

from typing import Any

import pytest

from handrail import ToolCall
from handrail.phone import signals as s
from tests.phone.machine_call import Call


def a_call(id: str = "c1", response_id: str | None = "r", **fields: Any) -> ToolCall:
    return ToolCall(id=id, name="pay", response_id=response_id, item_id=f"i-{id}", **fields)


def speak_to(call: Call, item: str = "i1") -> None:
    """The caller says something, and it is the provider's turn."""
    call.feed(s.CallerStarted(item_id=item), s.CallerStopped(item_id=item))


def new(call: Call, *signals: s.Signal) -> list[Any]:
    """The commands that these signals lead to."""
    before = len(call.commands)
    call.feed(*signals)
    return call.commands[before:]


def timers(commands: list[Any]) -> dict[str, float | None]:
    """The timers that were started, and stopped (None)."""
    found: dict[str, float | None] = {}
    for command in commands:
        if isinstance(command, s.StartTimer):
            found[command.name] = command.seconds
        elif isinstance(command, s.StopTimer):
            found[command.name] = None
    return found


# The connection


def test_a_response_of_the_old_connection_holds_nothing_back_after_it() -> None:
    call = Call()
    call.feed(s.ResponseStarted(response_id="old"))
    call.feed(s.Disconnected())
    assert call.machine.active is None
    call.feed(s.Connected(resumed=True))
    call.feed(s.OperatorReplied(text="One moment."))
    assert call.requests == ["greeting"]  # A moment, in case the provider is at something.
    call.feed(s.TimerFired(name="blocked"))

    assert call.requests == ["greeting", "operator"]


def test_a_caller_who_spoke_when_the_connection_was_lost_is_not_waited_for() -> None:
    call = Call()
    call.feed(s.CallerStarted(item_id="i1"), s.Disconnected(), s.Connected(resumed=True))
    call.feed(s.OperatorReplied(text="One moment."), s.TimerFired(name="blocked"))

    assert call.requests == ["greeting", "operator"]


def test_a_new_connection_looks_for_calls_that_were_being_written_and_for_no_others() -> None:
    call = Call()
    call.feed(s.ToolCallOpened(item_id="i-1"), s.ToolCallOpened(item_id="i-2"), s.ToolCallOpened(item_id="i-c1"))
    call.feed(s.ToolCallDropped(item_id="i-1"), s.ToolCalled(call=a_call()))
    found = new(call, s.Disconnected(), s.Connected(resumed=True))

    assert [item.item_id for item in found if isinstance(item, s.RetrieveItem)] == ["i-2"]


def test_what_was_asked_for_when_the_connection_was_lost_is_asked_for_again() -> None:
    call = Call()
    speak_to(call)
    call.feed(s.TimerFired(name="turn"))
    assert call.requests == ["greeting", "reply"]
    call.feed(s.Disconnected(), s.Connected(resumed=True), s.TimerFired(name="blocked"))

    assert call.requests == ["greeting", "reply", "reply"]


def test_only_the_first_connection_is_greeted_and_starts_the_clock() -> None:
    call = Call(is_new=True, max_duration=100)
    assert timers(call.commands)["max_duration"] == 100
    assert call.requests == ["greeting"]
    found = new(call, s.Disconnected(), s.Connected(resumed=True))

    assert "max_duration" not in timers(found)
    assert not [item for item in found if isinstance(item, s.SendMessage) and not item.text]


def test_without_a_greeting_the_caller_speaks_first() -> None:
    assert Call(is_new=True, greeting="").requests == []


def test_an_item_that_was_missed_is_fetched_while_there_is_a_connection() -> None:
    call = Call()
    assert [item.item_id for item in new(call, s.ItemMissed(item_id="i9"))] == ["i9"]
    assert not [
        item for item in new(call, s.Disconnected(), s.ItemMissed(item_id="i8")) if isinstance(item, s.RetrieveItem)
    ]


# Replies


def test_a_reply_that_was_given_up_is_asked_for_again() -> None:
    call = Call()
    speak_to(call)
    call.feed(s.TimerFired(name="turn"), s.TimerFired(name="request"))

    assert call.requests == ["greeting", "reply", "reply"]


@pytest.mark.parametrize(("code", "waits"), [("conversation_already_has_active_response", 1.0), ("server_error", 1.0)])
def test_a_request_that_is_refused_is_made_again_after_a_while(code: str, waits: float) -> None:
    call = Call()
    speak_to(call)
    call.feed(s.TimerFired(name="turn"))
    request = call.of(s.RequestResponse)[-1].request_id
    found = new(call, s.RequestRejected(request_id=request, code=code))
    assert timers(found)["blocked"] == waits
    assert call.requests == ["greeting", "reply"]
    assert call.notes == ([] if "already" in code else ["provider_error"])
    call.feed(s.TimerFired(name="blocked"))

    assert call.requests == ["greeting", "reply", "reply"]


def test_the_provider_is_about_to_answer_a_silence_by_itself_and_if_it_does_not_we_ask() -> None:
    call = Call()
    assert timers(new(call, s.SilenceNoticed()))["turn"] == 2
    call.feed(s.OperatorReplied(text="One moment."))
    assert call.requests == ["greeting"]
    call.feed(s.TimerFired(name="turn"))
    assert call.requests == ["greeting", "operator"]

    busy = Call()
    busy.feed(s.ResponseStarted(response_id="own"))
    assert new(busy, s.SilenceNoticed()) == []


def test_a_refusal_without_a_name_during_the_callers_turn_is_the_providers_own() -> None:
    call = Call()
    speak_to(call)
    code = "conversation_already_has_active_response"
    found = new(call, s.RequestRejected(request_id=None, code=code))
    assert timers(found)["turn"] is None
    assert call.requests == ["greeting", "reply"]

    idle = Call()
    idle.feed(s.RequestRejected(request_id=None, code=code))
    assert idle.requests == ["greeting"]


@pytest.mark.parametrize("covers", [True, False])
def test_a_failed_reply_owes_a_turn_or_the_results_that_it_was_about(covers: bool) -> None:
    call = Call()
    if covers:
        call.feed(s.ResponseStarted(response_id="r"), s.ToolCalled(call=a_call()))
        call.feed(s.ResponseFinished(response_id="r", status="completed", has_speech=False))
        call.feed(s.ToolFinished(call_id="c1", output="paid"), s.OutputAdded(call_id="c1"))
    else:
        speak_to(call)
        call.feed(s.TimerFired(name="turn"))
    assert call.requests == ["greeting", "reply"]
    request = call.of(s.RequestResponse)[-1].request_id
    call.feed(s.ResponseStarted(response_id="f", request_id=request))
    call.feed(s.ResponseFinished(response_id="f", status="failed", request_id=request, has_speech=False))
    call.feed(s.TimerFired(name="blocked"))
    assert call.requests == ["greeting", "reply", "reply"]
    request = call.of(s.RequestResponse)[-1].request_id
    call.feed(s.ResponseStarted(response_id="g", request_id=request))
    call.feed(s.ResponseFinished(response_id="g", status="completed", request_id=request, words="Done."))

    assert call.requests == ["greeting", "reply", "reply"]


def test_a_response_whose_end_was_missed_is_over_after_its_time() -> None:
    call = Call(response_timeout=20, call_timeout=3)
    call.feed(s.ResponseStarted(response_id="r"))
    assert timers(new(call, s.ResponseContinued(response_id="r"))) == {"response": 20}
    assert new(call, s.ResponseContinued(response_id="other")) == []
    assert timers(new(call, s.ToolCalled(call=a_call())))["response"] == 3
    assert "response" not in timers(new(call, s.ToolCalled(call=a_call("c2", "other"))))
    call.feed(s.TimerFired(name="response"))

    assert call.machine.active is None


def test_a_response_is_begun_once_and_after_its_end_not_again() -> None:
    call = Call()
    call.feed(s.ResponseStarted(response_id="r"))
    assert new(call, s.ResponseStarted(response_id="r")) == []
    call.feed(s.ResponseFinished(response_id="r", status="completed"))
    assert new(call, s.ResponseStarted(response_id="r")) == []
    assert new(call, s.ResponseFinished(response_id="r", status="completed")) == []
    assert call.machine.active is None


def test_so_many_calls_without_a_word_of_the_caller_and_then_the_agent_speaks() -> None:
    call = Call(max_consecutive_calls=2)

    def reply_to(number: int) -> bool:
        call.feed(s.ResponseStarted(response_id=f"r{number}-"), s.ToolCalled(call=a_call(f"c{number}", f"r{number}-")))
        call.feed(s.ResponseFinished(response_id=f"r{number}-", status="completed", has_speech=False))
        call.feed(s.ToolFinished(call_id=f"c{number}", output="paid"), s.OutputAdded(call_id=f"c{number}"))
        request = call.of(s.RequestResponse)[-1]
        call.feed(s.ResponseStarted(response_id=f"a{number}", request_id=request.request_id))
        call.feed(s.ResponseFinished(response_id=f"a{number}", status="completed", request_id=request.request_id))
        return request.allow_tools

    assert [reply_to(number) for number in range(3)] == [True, False, False]
    speak_to(call)
    call.feed(s.ResponseStarted(response_id="own"), s.ResponseFinished(response_id="own", status="completed"))
    assert reply_to(9) is True


def test_too_many_calls_are_refused_in_words() -> None:
    call = Call(max_tool_calls=1)
    found = new(call, s.ToolCalled(call=a_call("c1")), s.ToolCalled(call=a_call("c2")))

    assert [item.call.id for item in found if isinstance(item, s.RunTool)] == ["c1"]
    [output] = [item for item in found if isinstance(item, s.SendOutput)]
    assert (output.call_id, "rate_limited" in output.output) == ("c2", True)
    assert call.notes == ["tool_calls_exhausted"]


# Speaking and hearing


def announce(call: Call, **fields: Any) -> None:
    given = {"request_id": "q", "target_uri": "tel:+1", "announcement": "I put you through.", **fields}
    call.feed(s.TransferRequested(**given))


def test_what_ends_a_call_does_so_without_words_if_they_were_tried_too_often() -> None:
    call = Call(max_attempts=2)
    speak_to(call)
    call.feed(s.ResponseStarted(response_id="own"), s.ResponseFinished(response_id="own", status="completed"))
    call.feed(s.TimerFired(name="playout"))
    call.feed(s.HangUpRequested(request_id="h", goodbye="Bye."))
    for number in range(2):
        request = call.of(s.RequestResponse)[-1]
        assert request.purpose == "goodbye"
        call.feed(s.ResponseStarted(response_id=f"g{number}", request_id=request.request_id))
        call.feed(s.ResponseFinished(response_id=f"g{number}", status="failed", request_id=request.request_id))
        call.feed(s.TimerFired(name="blocked"))

    assert [command.outcome for command in call.of(s.FinishHangUp)] == ["ended"]
    assert len(call.of(s.HangUp)) == 1


def test_a_transfer_whose_announcement_was_tried_too_often_has_failed_and_the_call_goes_on() -> None:
    call = Call(max_attempts=1)
    announce(call)
    request = call.of(s.RequestResponse)[-1]
    call.feed(s.ResponseStarted(response_id="a", request_id=request.request_id))
    call.feed(s.ResponseFinished(response_id="a", status="failed", request_id=request.request_id))

    assert [command.outcome for command in call.of(s.FinishTransfer)] == ["failed"]
    assert call.of(s.TransferCall) == call.of(s.HangUp) == []


def test_a_transfer_without_words_begins_when_nothing_is_heard_any_more() -> None:
    call = Call()
    call.feed(s.ResponseStarted(response_id="own"), s.PlaybackStarted(response_id="own"))
    announce(call, announcement="")
    call.feed(s.ResponseFinished(response_id="own", status="completed"))
    assert call.of(s.TransferCall) == []
    found = new(call, s.PlaybackStopped(response_id="own"))

    assert [item.target_uri for item in found if isinstance(item, s.TransferCall)] == ["tel:+1"]
    assert timers(found)["playout"] is None


def test_a_transfer_that_did_not_come_about_is_told_and_what_was_to_be_said_about_it_is_not() -> None:
    call = Call(trying_after=3)
    announce(call)
    call.speak("I put you through.")
    call.feed(s.TransferAnswered(outcome="unknown"))  # The caller is told that it is tried, once nobody speaks.
    call.feed(s.CallerStarted(item_id="i1"))
    call.feed(s.TimerFired(name="trying"))
    found = new(call, s.TimerFired(name="transfer"))
    assert [item.text for item in found if isinstance(item, s.SendMessage)] != []
    assert [command.outcome for command in call.of(s.FinishTransfer)] == ["failed"]
    before = len(call.requests)
    call.feed(s.CallerStopped(item_id="i1"), s.TimerFired(name="turn"))

    assert "announcement" not in call.requests[before:]


def test_how_long_something_takes_to_be_heard_is_estimated_by_its_length() -> None:
    quiet = Call(is_new=True)
    quiet.feed(s.ResponseStarted(response_id="r1", request_id="response_1"))
    found = new(
        quiet, s.ResponseFinished(response_id="r1", status="completed", request_id="response_1", audio_seconds=3)
    )
    assert timers(found)["playout"] == 4.0  # Nobody tells what is heard.

    call = Call(playout_timeout=20)
    call.feed(s.OperatorReplied(text="One moment."))
    request = call.of(s.RequestResponse)[-1].request_id
    call.feed(s.ResponseStarted(response_id="r", request_id=request))
    found = new(call, s.ResponseFinished(response_id="r", status="completed", request_id=request, audio_seconds=4))
    assert timers(found)["playout"] == 10.0
    call.feed(s.PlaybackStopped(response_id="r"), s.OperatorReplied(text="Another."))
    request = call.of(s.RequestResponse)[-1].request_id
    call.feed(s.ResponseStarted(response_id="q", request_id=request))
    found = new(call, s.ResponseFinished(response_id="q", status="completed", request_id=request))
    assert timers(found)["playout"] == 20.0


def test_results_that_are_heard_are_reported_once() -> None:
    call = Call()
    call.feed(s.ResponseStarted(response_id="r"), s.ToolCalled(call=a_call()))
    call.feed(s.ResponseFinished(response_id="r", status="completed", has_speech=False))
    call.feed(s.ToolFinished(call_id="c1", output="paid"), s.OutputAdded(call_id="c1"))
    call.speak("It is paid.")
    call.feed(s.PlaybackStarted(response_id="r9"))

    assert [command.call_ids for command in call.of(s.ReportSpoken)] == [("c1",)]


def test_a_playback_that_ends_says_that_its_response_was_complete() -> None:
    call = Call()
    call.feed(s.ResponseStarted(response_id="own"), s.PlaybackStarted(response_id="own"))
    call.feed(s.PlaybackStopped(response_id="own"))

    assert call.machine.active is None


# Timers and limits


def test_every_word_and_every_key_begins_the_silence_anew() -> None:
    call = Call(idle_timeout=30)
    for signals in (
        [s.CallerStarted(item_id="i1")],
        [s.CallerStopped(item_id="i1")],
        [s.KeyPressed(key="5")],
        [s.PlaybackStarted(response_id="x")],
        [s.PlaybackStopped(response_id="x")],
    ):
        assert timers(new(call, *signals))["idle"] == 30, signals


@pytest.mark.parametrize("timer", ["idle", "wrap_up"])
def test_a_call_that_is_over_its_limits_ends_with_a_goodbye(timer: str) -> None:
    call = Call()
    speak_to(call)
    call.feed(s.ResponseStarted(response_id="own"), s.ResponseFinished(response_id="own", status="completed"))
    call.feed(s.TimerFired(name=timer))
    assert call.requests[-1] == "goodbye"
    call.speak("Bye.")

    assert len(call.of(s.HangUp)) == 1


def test_a_transfer_has_the_last_word_when_the_time_is_over() -> None:
    call = Call(wrap_up=60)
    announce(call)
    found = new(call, s.TimerFired(name="wrap_up"))

    assert timers(found)["wrap_up"] == 60
    assert "goodbye" not in call.requests


def test_a_filler_is_said_while_a_call_runs_and_nobody_else_speaks() -> None:
    call = Call(filler_after=4, filler_every=6)
    assert timers(new(call, s.TimerFired(name="filler"))) == {}  # Nothing runs.
    call.feed(s.ResponseStarted(response_id="r"))
    assert timers(new(call, s.ToolCalled(call=a_call())))["filler"] == 4
    call.feed(s.TimerFired(name="filler"))
    assert "filler" not in call.requests  # A response is being generated.
    call.feed(s.ResponseFinished(response_id="r", status="completed", has_speech=False))
    call.feed(s.TimerFired(name="filler"))
    assert call.requests[-1] == "filler"


@pytest.mark.parametrize("why", ["a person has taken over", "the call is being transferred"])
def test_no_filler_is_said_where_the_agent_has_nothing_more_to_say(why: str) -> None:
    call = Call()
    call.feed(s.ResponseStarted(response_id="r"), s.ToolCalled(call=a_call()), s.ToolCalled(call=a_call("c2")))
    call.feed(s.ResponseFinished(response_id="r", status="completed", has_speech=False))
    if "person" in why:
        call.feed(s.ToolFinished(call_id="c2", output="ok", hands_off=True))
    else:
        announce(call)
    call.feed(s.TimerFired(name="filler"))

    assert "filler" not in call.requests


# Handing off


def test_while_a_person_has_taken_over_the_agent_is_silent_and_answers_afterwards() -> None:
    call = Call()
    call.feed(s.ResponseStarted(response_id="r"), s.ToolCalled(call=a_call()))
    call.feed(s.ToolFinished(call_id="c1", output="ok", hands_off=True), s.OutputAdded(call_id="c1"))
    call.feed(s.ResponseFinished(response_id="r", status="completed", has_speech=False))
    assert call.machine.is_handed_off
    call.feed(s.ResponseStarted(response_id="own"))
    assert [command.response_id for command in call.of(s.CancelResponse)] == ["own"]
    found = new(call, s.ToolCalled(call=a_call("c2", "own")))
    assert not [item for item in found if isinstance(item, s.RunTool)]
    call.feed(s.ResponseFinished(response_id="own", status="cancelled", has_speech=False))
    speak_to(call)
    assert "reply" not in call.requests
    call.feed(s.OperatorReplied(text="Hello, Ann here."))
    assert call.requests[-1] == "operator"
    call.speak("Hello, Ann here.")
    call.feed(s.HandedBack())

    assert call.requests[-1] == "reply"
    assert not call.machine.is_handed_off


# The end


def test_after_the_end_nothing_is_asked_for_and_late_results_are_noted() -> None:
    call = Call()
    call.feed(s.ResponseStarted(response_id="r"), s.ToolCalled(call=a_call()))
    call.feed(s.Ended(reason="caller"))
    assert [command.reason for command in call.of(s.FinishCall)] == ["caller"]
    found = new(call, s.ToolFinished(call_id="c1", output="paid"), s.CallerStarted(item_id="i"), s.Connected())

    assert [type(item).__name__ for item in found] == ["Note"]
    found = new(call, s.HangUpRequested(request_id="h", goodbye=""), s.OperatorReplied(text="x"))
    assert [type(item).__name__ for item in found] == ["FinishHangUp"]


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        ("before the first turn", "too_early"),
        ("while the caller speaks", "interrupted"),
        ("while a call runs", "results_pending"),
    ],
)
def test_a_tool_may_not_hang_up_on_somebody(state: str, outcome: str) -> None:
    call = Call()
    if state != "before the first turn":
        call.feed(s.CallerStarted(item_id="i1"))
    if state == "while a call runs":
        call.feed(s.CallerStopped(item_id="i1"), s.ToolCalled(call=a_call()))
    call.feed(s.HangUpRequested(request_id="h", goodbye="Bye."))

    assert [command.outcome for command in call.of(s.FinishHangUp)] == [outcome]
    assert call.of(s.HangUp) == []


def test_where_the_agents_words_are_known_a_read_back_without_them_was_not_heard() -> None:
    call = Call()  # The greeting came with its words.
    call.want()
    call.speak("")

    assert len(call.asked) == 2
    assert call.state() == "no"


@pytest.mark.parametrize("is_duplicate", [True, False])
def test_an_output_that_is_refused_is_told_as_a_message_and_spoken_about(is_duplicate: bool) -> None:
    call = Call()
    call.feed(s.ResponseStarted(response_id="r"), s.ToolCalled(call=a_call()))
    call.feed(s.ToolFinished(call_id="c1", output="paid", is_silent=True))
    call.feed(s.ResponseFinished(response_id="r", status="completed", has_speech=False))
    code = "item_create_duplicate_item_id" if is_duplicate else "invalid_call_id"
    found = new(call, s.RequestRejected(request_id="output_c1", code=code))

    assert len([item for item in found if isinstance(item, s.SendMessage)]) == (not is_duplicate)
    assert call.requests[1:] == ([] if is_duplicate else ["reply"])
    assert call.notes == ([] if is_duplicate else ["provider_error"])

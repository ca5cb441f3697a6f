"""Nobody waits in silence: failed replies, servers that leave things out, and transfers that take long."""

from typing import Any

import pytest

from handrail import ToolCall
from handrail.phone import signals as s
from handrail.phone.realtime import RealtimeAdapter
from tests.phone.machine_call import SPOKEN, Call


def fail(call: Call, response_id: str, status: s.ResponseStatus = "failed", *, request: bool = False) -> None:
    """A response says nothing: the provider's own, or the one that was requested last."""
    request_id = call.of(s.RequestResponse)[-1].request_id if request else None
    call.feed(s.ResponseStarted(response_id=response_id, request_id=request_id))
    call.feed(
        s.ResponseFinished(response_id=response_id, status=status, request_id=request_id, has_speech=False),
    )


@pytest.mark.parametrize("status", ["failed", "incomplete", "completed"])
def test_a_reply_of_the_provider_that_says_nothing_is_asked_for_again_and_then_apologised_for(
    status: s.ResponseStatus,
) -> None:
    call = Call()
    call.feed(s.CallerStarted(item_id="i1"), s.CallerStopped(item_id="i1"))
    fail(call, "own", status)
    assert call.requests == ["greeting"]  # Not at once: the provider has a rate limit.
    call.feed(s.TimerFired(name="blocked"))
    assert call.requests == ["greeting", "reply"]
    fail(call, "again", status, request=True)
    call.feed(s.TimerFired(name="blocked"))
    assert call.requests == ["greeting", "reply", "apology"]
    assert "technical problem" in call.of(s.RequestResponse)[-1].instructions
    call.speak("I am sorry.")

    assert call.requests == ["greeting", "reply", "apology", "reply"]


def test_a_reply_that_only_calls_a_tool_or_was_interrupted_has_not_failed() -> None:
    call = Call()
    call.feed(s.ResponseStarted(response_id="r"), s.ToolCalled(call=ToolCall(id="c", name="t", response_id="r")))
    call.feed(s.ResponseFinished(response_id="r", status="completed", has_speech=False))
    call.feed(s.ResponseStarted(response_id="cut"))
    call.feed(s.ResponseFinished(response_id="cut", status="cancelled", has_speech=False))
    call.feed(s.TimerFired(name="blocked"))

    assert call.requests == ["greeting"]


def test_a_response_that_names_no_request_is_the_one_that_is_out() -> None:
    call = Call(is_new=True)
    call.feed(s.ResponseStarted(response_id="r1"))
    call.feed(s.ResponseFinished(response_id="r1", status="completed", words="Hello."))
    call.feed(s.TimerFired(name="request"), s.TimerFired(name="playout"))

    assert call.requests == ["greeting"]


def test_a_response_that_names_no_request_is_the_providers_own_where_others_name_theirs() -> None:
    call = Call()
    call.want()
    assert call.requests[-1] == "read_back"
    call.feed(s.ResponseStarted(response_id="own"))
    call.feed(
        s.ResponseFinished(response_id="own", status="completed", words=SPOKEN), s.PlaybackStopped(response_id="own")
    )
    call.hear("Yes.")

    assert call.state() == "no"


def test_a_response_that_names_no_request_answers_the_caller_who_waits_for_one() -> None:
    call = Call(is_new=True)
    call.feed(s.CallerStarted(item_id="i1"), s.CallerStopped(item_id="i1"))
    call.feed(s.ResponseStarted(response_id="own"))
    call.feed(s.ResponseFinished(response_id="own", status="completed", words="Yes?"))
    call.feed(s.TimerFired(name="request"))

    assert call.requests == ["greeting", "greeting"]


@pytest.mark.parametrize("is_interrupted", [True, False])
def test_without_events_about_playback_a_read_back_counts_when_its_audio_must_have_ended(is_interrupted: bool) -> None:
    call = Call(is_new=True)
    call.feed(s.ResponseStarted(response_id="hi", request_id=call.of(s.RequestResponse)[-1].request_id))
    call.feed(s.ResponseFinished(response_id="hi", status="completed", words="Hello.", audio_seconds=1.0))
    call.feed(s.TimerFired(name="playout"))
    call.want()
    request = call.of(s.RequestResponse)[-1].request_id
    call.feed(s.ResponseStarted(response_id="rb", request_id=request))
    call.feed(
        s.ResponseFinished(response_id="rb", status="completed", request_id=request, words=SPOKEN, audio_seconds=4.0)
    )
    [timer] = [command.seconds for command in call.of(s.StartTimer) if command.name == "playout"][-1:]
    assert timer == 5.0
    if is_interrupted:
        call.hear("Yes.")
    else:
        call.feed(s.TimerFired(name="playout"))
        call.hear("Yes.")

    assert call.state() == ("no" if is_interrupted else "yes")


@pytest.mark.parametrize(
    ("events", "usage", "seconds"),
    [
        (("A" * 64_000,) * 2, None, 2.0),
        ((), {"output_token_details": {"audio_tokens": 60}}, 3.0),
        ((), None, 2.0),
    ],
)
def test_the_length_of_the_audio_is_told_by_its_bytes_its_tokens_or_its_words(
    events: tuple[str, ...], usage: Any, seconds: float
) -> None:
    adapter = RealtimeAdapter()
    for delta in events:
        adapter.read({"type": "response.output_audio.delta", "response_id": "r", "delta": delta})
    content = [{"type": "output_audio", "transcript": "x" * 24}]
    response = {"id": "r", "status": "completed", "output": [{"type": "message", "content": content}], "usage": usage}
    [finished] = adapter.read({"type": "response.done", "response": response})

    assert isinstance(finished, s.ResponseFinished)
    assert (finished.words, finished.audio_seconds) == ("x" * 24, seconds)


def test_a_response_that_goes_on_for_long_is_waited_for() -> None:
    call = Call()
    call.feed(s.ResponseStarted(response_id="long"))
    before = len([command for command in call.of(s.StartTimer) if command.name == "response"])
    call.feed(s.ResponseContinued(response_id="long"), s.ResponseContinued(response_id="other"))

    assert len([command for command in call.of(s.StartTimer) if command.name == "response"]) == before + 1


def test_a_forced_tool_choice_holds_for_one_response() -> None:
    call = Call(is_tool_choice_forced=True)
    assert not call.of(s.ReleaseToolChoice)
    call.feed(s.ResponseStarted(response_id="r"), s.ToolCalled(call=ToolCall(id="c", name="t", response_id="r")))
    call.feed(s.ResponseFinished(response_id="r", status="completed", has_speech=False))
    call.feed(s.ResponseStarted(response_id="r2"), s.ResponseFinished(response_id="r2", status="completed"))

    assert len(call.of(s.ReleaseToolChoice)) == 1


def announce(call: Call) -> None:
    call.feed(s.TransferRequested(request_id="t1", target_uri="tel:+33100000000", announcement="I put you through."))


@pytest.mark.parametrize(
    ("words", "stops"), [("Okay, thanks.", False), ("Mm-hm", False), ("No.", True), ("No, wait!", True), (None, True)]
)
def test_a_transfer_that_announces_itself_is_stopped_by_what_the_caller_says_and_not_by_a_sound(
    words: str | None, stops: bool
) -> None:
    call = Call()
    announce(call)
    request = call.of(s.RequestResponse)[-1].request_id
    call.feed(s.ResponseStarted(response_id="a", request_id=request), s.PlaybackStarted(response_id="a"))
    call.feed(s.CallerStarted(item_id="i1"))
    call.feed(s.ResponseFinished(response_id="a", status="cancelled", request_id=request))
    call.feed(s.PlaybackCleared(response_id="a"), s.CallerStopped(item_id="i1"))
    assert not call.of(s.TransferCall)
    call.feed(s.CallerTranscribed(item_id="i1", transcript=words) if words else s.TimerFired(name="words"))
    call.feed(s.TimerFired(name="turn"))

    assert bool(call.of(s.TransferCall)) is not stops
    assert [command.outcome for command in call.of(s.FinishTransfer)] == (["interrupted"] if stops else [])


@pytest.mark.parametrize("how", ["it takes long", "the provider failed"])
def test_a_transfer_that_takes_long_is_told_to_the_caller_every_few_seconds(how: str) -> None:
    call = Call()
    announce(call)
    call.speak("I put you through.")
    assert call.of(s.TransferCall)
    if how == "it takes long":
        call.feed(s.TimerFired(name="trying"))
    call.feed(s.TransferAnswered(outcome="unknown"))
    assert "still trying" in call.of(s.RequestResponse)[-1].instructions
    call.speak("One moment.")
    assert call.requests.count("announcement") == 2
    call.feed(s.TimerFired(name="trying"))
    assert call.requests.count("announcement") == 3
    call.speak("One moment.")
    call.feed(s.TimerFired(name="transfer"), s.TimerFired(name="trying"))

    assert call.requests.count("announcement") == 3
    assert [command.outcome for command in call.of(s.FinishTransfer)] == ["failed"]
    assert len(call.of(s.TransferCall)) == 1

"""What the report says about agents that leave something undone."""

from collections.abc import Callable
from typing import Any

import pytest

from handrail.testing.phone import CallReport, Frame, SimulatedCall, format_timeline, summarise

from .wrong import TOOLS, answering, open_call, output

CALL = {"calls": [{"id": "c1", "name": "lookup", "args": {"q": "x"}}]}
SCRIPT: dict[str, Any] = {"model": [{"say": "Bonjour."}, CALL, {"say": "42."}], "caller": [{"say": "Combien ?"}]}


def play(script: dict[str, Any], client: Callable[[SimulatedCall, Frame], None]) -> CallReport:
    call = SimulatedCall(script)
    call.request("accept", {"type": "realtime", "tools": TOOLS})
    call.connect()
    return call.play(client)


def greeting_only(call: SimulatedCall, frame: Frame) -> None:
    if frame.event and frame.event["type"] == "session.created":
        call.feed({"type": "response.create"})


def answers_without_speaking(call: SimulatedCall, frame: Frame) -> None:
    greeting_only(call, frame)
    event = frame.event or {"type": ""}
    if event["type"] == "response.output_item.done" and event["item"]["type"] == "function_call":
        call.feed(output(event["item"]["call_id"]))


def test_a_correct_agent_has_nothing_against_it() -> None:
    report = play(SCRIPT, answering(delay=0.5))
    report.check()
    assert (report.unanswered, report.never_voiced, report.errors) == ((), (), ())
    assert report.time_to_voice == {"c1": pytest.approx(0.3)}
    assert [call.answered_at - call.at for call in report.calls if call.answered_at] == [pytest.approx(0.54)]


def test_what_the_client_sent_can_be_asked_for() -> None:
    report = play(SCRIPT, answering())
    assert len(report.client_events("response.*")) == 2
    (sent,) = report.client_events("conversation.item.create", item__call_id="c1")
    assert sent["item"]["output"] == "42"
    assert report.client_events(item__call_id="c9") == []


def test_a_call_that_is_never_answered_is_unanswered() -> None:
    report = play({**SCRIPT, "timing": {"linger": 40}}, greeting_only)
    assert report.unanswered == ("c1",)
    with pytest.raises(AssertionError, match="unanswered: c1"):
        report.check()


def test_a_call_that_the_caller_cut_off_is_not_the_agents_fault() -> None:
    report = play({**SCRIPT, "caller": [{"say": "Combien ?"}, {"sleep": 1}, {"hangup": True}]}, greeting_only)
    assert (report.unanswered, report.cut_off) == ((), ("c1",))
    assert report.ok


def test_a_call_that_no_socket_was_offered_is_not_the_agents_fault() -> None:
    call = open_call({"model": [CALL], "caller": [{"sleep": 60}]})
    call.feed({"type": "response.create"})
    call.advance(0.1)
    call.drop()
    call.advance(50)
    call.connect()
    report = call.report()
    assert (report.unanswered, report.unseen) == ((), ("c1",))


def test_an_agent_that_hangs_up_with_a_call_open_has_left_it_unanswered() -> None:
    def hangs_up(call: SimulatedCall, frame: Frame) -> None:
        greeting_only(call, frame)
        if frame.event and frame.event["type"] == "response.output_item.done" and call.now > 2:
            call.request("hangup")

    report = play(SCRIPT, hangs_up)
    assert (report.ended, report.unanswered) == ("agent", ("c1",))


def test_an_output_that_nothing_is_said_about_is_never_voiced() -> None:
    report = play(SCRIPT, answers_without_speaking)
    assert (report.unanswered, report.never_voiced, report.time_to_voice) == ((), ("c1",), {})
    assert report.longest_silence > 5


def test_an_output_just_before_the_caller_hangs_up_had_no_time_to_be_voiced() -> None:
    script = {**SCRIPT, "caller": [{"say": "Combien ?"}, {"sleep": 1}, {"hangup": True}]}
    assert play(script, answers_without_speaking).never_voiced == ()


def test_a_response_that_began_before_the_output_does_not_voice_it() -> None:
    call = open_call({"model": [CALL, {"say": "Une longue phrase. " * 5}], "caller": [{"sleep": 60}]})
    call.feed({"type": "response.create"})
    call.advance(1)
    call.feed({"type": "response.create"})  # too early: the output is not there yet
    call.advance(0.1)
    call.feed(output("c1"))
    call.advance(20)
    assert call.report().never_voiced == ("c1",)


def test_a_response_that_only_calls_again_does_not_voice_but_the_one_after_it_does() -> None:
    again = {"calls": [{"id": "c2", "name": "lookup"}]}
    report = play({**SCRIPT, "model": [{"say": "Bonjour."}, CALL, again, {"say": "42."}]}, answering())
    assert set(report.time_to_voice) == {"c1", "c2"}
    assert report.time_to_voice["c1"] > report.time_to_voice["c2"]


def test_a_barge_in_over_the_voicing_response_leaves_it_to_the_next() -> None:
    barge = {"barge": "Attendez.", "on": "response"}
    script = {
        "model": [{"say": "Bonjour."}, CALL, {"say": "Quarante-deux."}, {"say": "Donc, 42."}],
        "caller": [{"say": "Combien ?"}, {"wait": "response"}, {"sleep": 0.6}, barge],
    }
    report = play(script, answering(delay=0.2))
    assert [line.text for line in report.transcript if line.speaker == "agent"] == ["Bonjour.", "Donc, 42."]
    report.check()


@pytest.mark.parametrize(
    ("expectation", "is_met"),
    [
        ({"client": "conversation.item.create", "where": {"item.call_id": "c1"}, "within": 2.0}, True),
        ({"client": "conversation.item.create", "where": {"item.call_id": "c1"}, "within": 0.1}, False),
        ({"client": "conversation.item.create", "where": {"item.call_id": "c9"}}, False),
        ({"client": "response.create", "times": 2}, True),
        ({"client": "response.create", "times": 1}, False),
        ({"client": "session.update", "times": 0}, True),
        ({"never": "response.create", "while": "response_active"}, True),
        ({"never": "response.create"}, False),
        ({"never": "response.cancel"}, True),
        ({"http": "accept", "times": 1}, True),
        ({"http": "accept", "where": {"type": "realtime"}}, True),
        ({"http": "refer", "times": 1}, False),
        ({"http": "refer", "times": 0}, True),
        ({"unanswered": 0}, True),
        ({"unanswered": 1}, False),
        ({"never_voiced": 0}, True),
        ({"duplicate_outputs": 0}, True),
        ({"errors": 0}, True),
        ({"errors": ["session_expired"]}, False),
        ({"ended": "caller"}, True),
        ({"ended": "agent"}, False),
        ({"heard": "42"}, True),
        ({"heard": "43"}, False),
        ({"max_silence": 60}, True),
        ({"max_silence": 0.1}, False),
    ],
    ids=str,
)
def test_an_expectation_is_met_or_says_what_was_found(expectation: dict[str, Any], is_met: bool) -> None:
    report = play({**SCRIPT, "expect": [expectation]}, answering())
    (outcome,) = report.outcomes
    assert (outcome.is_met, report.ok) == (is_met, is_met)
    assert len(report.failures) == (not is_met)


def test_the_timeline_is_text_in_order_of_time() -> None:
    report = play({**SCRIPT, "expect": [{"heard": "43"}], "http": [{"verb": "refer", "drop": "after"}]}, answering())
    lines = format_timeline(report).splitlines()
    times = [float(line[:7]) for line in lines if line[:7].strip()]
    assert times == sorted(times)
    assert any('caller  "Combien ?"' in line for line in lines)
    assert any('model   calls lookup {"q":"x"} as c1' in line for line in lines)
    assert any("FAIL heard: 43 (heard ['Bonjour.', '42.'])" in line for line in lines)
    assert len(format_timeline(report, verbose=True).splitlines()) > 2 * len(lines)


def test_many_reports_are_one_summary() -> None:
    reports = [play(SCRIPT, answering()), play({**SCRIPT, "timing": {"linger": 40}}, greeting_only)]
    summary = summarise(reports)
    assert (summary.calls, summary.tool_calls, summary.unanswered, summary.ok) == (2, 2, 1, False)
    assert summary.call_to_output.count == 1
    assert summarise([]).ok


def test_scripts_can_expect_results_and_a_tool_that_failed_does_not_pass_without_a_word() -> None:
    script = {
        "model": [{"say": "Hi."}, {"calls": [{"id": "c1", "name": "book"}, {"id": "c2", "name": "pay"}]}],
        "caller": [{"say": "Book it."}, {"sleep": 5}],
    }
    outputs = {"c1": '{"booked": true}', "c2": '{"ok": false, "error": "outcome_unknown", "message": "?"}'}

    def report(*expect: dict[str, object]) -> CallReport:
        call = SimulatedCall({**script, "expect": list(expect)})
        tools = [{"type": "function", "name": name} for name in ("book", "pay")]
        call.request("accept", {"type": "realtime", "model": "m", "tools": tools})
        call.connect()
        call.feed({"type": "response.create"})
        while (due := call.next_due()) is not None and not call.is_ended:
            call.run_until(due)
            for frame in call.take():
                item = (frame.event or {}).get("item", {})
                if (frame.event or {}).get("type") == "response.output_item.done" and item.get("call_id") in outputs:
                    output = {
                        "type": "function_call_output",
                        "call_id": item["call_id"],
                        "output": outputs[item["call_id"]],
                    }
                    call.feed({"type": "conversation.item.create", "item": output})
        return call.report()

    plain = report()
    assert plain.broken == ("c2",)
    assert not plain.ok
    met = report(
        {"result": "c1"},
        {"result": "c2", "error": "outcome_unknown"},
        {"ran": "book"},
        {"ran": "pay", "times": 0},
        {"said": "hi"},
    )
    assert (met.failures, met.broken) == ((), ())
    missed = report({"result": "c2"}, {"result": "c9"}, {"ran": "book", "times": 2}, {"said": "booked"})
    assert len(missed.failures) == 4

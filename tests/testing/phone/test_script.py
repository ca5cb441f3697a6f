"""Scripts: what they may say, and what a wrong one is told."""

from pathlib import Path
from typing import Any

import pytest

from handrail.testing.phone import ModelEntry, Script, ScriptedRequest, ScriptError, SimulatedCall, load_script

from .wrong import TOOLS, answering, open_call, types

GOOD = """
name: transfer
call: {id: rtc_1, from: "+33600000001", to: "+33100000000"}
model:
  - {say: "Bonjour"}
  - {say: "Je vous transfère.", calls: [{id: c1, name: request_transfer, args: {destination_id: sales}}]}
  - {calls: [{id: c2, name: lookup, args: '{"q":'}]}
caller:
  - {say: "le service commercial"}
  - {barge: "non, attendez", on: args}
  - {dtmf: "5"}
  - {sleep: 0.3}
  - {drop: 1012}
  - {idle: 0.5}
  - {hangup: 1}
http: [{verb: refer, status: 503, times: 2}, {verb: refer, outcome: refused}]
expect: [{client: conversation.item.create, where: {item.call_id: c1}, within: 2.0},
         {never: response.create, while: response_active}, {http: refer, times: 1}, {unanswered: 0}, {never_voiced: 0}]
"""


def test_a_script_in_yaml_is_read(tmp_path: Path) -> None:
    file = tmp_path / "call.yaml"
    file.write_text(GOOD, encoding="utf-8")
    script = load_script(file)
    assert (script.call.id, script.call.from_) == ("rtc_1", "+33600000001")
    assert script.model[2].calls[0].args == '{"q":'
    assert [type(entry).__name__ for entry in script.caller] == [
        "Say",
        "Barge",
        "Dtmf",
        "Sleep",
        "Drop",
        "Idle",
        "Hangup",
    ]
    assert len(script.expect) == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("caller:\n  - {shout: hey}\n", "call.yaml:2: caller[0]: has none of the keys say, barge, dtmf"),
        (
            "caller:\n  - {say: a}\n  - {say: b, volume: 3}\n",
            "call.yaml:3: caller[1].volume: unknown key; allowed are say, patience, transcript",
        ),
        ("model:\n  - say: a\n    calls:\n      - {args: {}}\n", "call.yaml:4: model[0].calls[0].name: field required"),
        ("modell: []\n", "call.yaml:1: modell: unknown key; allowed are name, call, model"),
        ("caller: [{dtmf: x}]\n", "caller[0].dtmf: string should match pattern"),
        ("http: [{verb: transfer}]\n", "http[0].verb: input should be 'accept', 'reject', 'refer', 'hangup' or"),
        ("expect: [{never: response.create, while: sleeping}]\n", "expect[0].while: input should be 'response_active'"),
        ("caller: [{sleep: -1}]\n", "caller[0].sleep: input should be greater than or equal to 0, got -1"),
        ("caller: [{drop: 99}]\n", "caller[0].drop: input should be greater than or equal to 1000, got 99"),
        ("faults: [{fault: explode}]\n", "faults[0].fault: input should be 'drop', 'delay'"),
        ("- a\n", "a script is a mapping with the keys name, call, model"),
        ("a: [\n", "call.yaml: is not YAML"),
    ],
)
def test_a_wrong_script_names_the_place_and_what_would_be_right(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "call.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ScriptError) as caught:
        load_script(file)
    assert message in str(caught.value)


def test_a_script_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match=r"missing\.yaml: cannot be read: No such file"):
        load_script(tmp_path / "missing.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ScriptError, match="is not UTF-8 text"):
        load_script(tmp_path / "binary.yaml")


def test_every_response_takes_the_next_entry_whoever_created_it() -> None:
    script = {"model": [{"say": "Un."}, {"say": "Deux."}, {"say": "Trois."}], "caller": [{"say": "Oui."}]}
    report = play(script)
    said = [line.text for line in report.transcript if line.speaker == "agent"]
    assert said == ["Un.", "Deux."]
    assert (report.unused_model_entries, report.unscripted_responses) == (1, 0)


def test_a_model_may_be_a_function_of_what_it_sees() -> None:
    def model(request: ScriptedRequest) -> ModelEntry:
        last = request.items[-1] if request.items else {}
        if last.get("type") == "function_call_output":
            return ModelEntry(say=f"The answer is {last['output']}.")
        if request.created_by == "caller":
            return ModelEntry.model_validate({"calls": [{"name": request.tools[0]}]})
        return ModelEntry(say="Hello.")

    call = SimulatedCall({"caller": [{"say": "What is it?"}]}, model=model)
    call.request("accept", {"type": "realtime", "tools": TOOLS})
    call.connect()
    report = call.play(answering())
    assert [line.text for line in report.transcript] == ["Hello.", "What is it?", "The answer is 42."]


def test_a_polite_caller_waits_for_the_answer_and_loses_patience_without_one() -> None:
    script = {"caller": [{"say": "Allô ?"}, {"say": "Il y a quelqu'un ?", "patience": 3}, {"hangup": True}]}
    vad = {"input": {"turn_detection": {"type": "server_vad", "create_response": False}}}
    call = open_call(script, audio=vad)
    call.advance(60)
    first, second = call.report().transcript
    assert first.at == pytest.approx(8.0)
    assert second.at - first.at == pytest.approx(0.4 + 0.5 + 3.0)


def test_what_the_script_asked_for_and_did_not_happen_is_a_problem() -> None:
    report = play({"model": [{"say": "Bonjour."}], "caller": [{"barge": "non", "on": "args"}, {"wait": "results"}]})
    assert report.problems == ("caller[0]: there was no args to speak over.",)
    assert not report.ok


def test_keys_have_no_event_id_and_no_turn() -> None:
    call = open_call({"caller": [{"sleep": 0.1}, {"dtmf": "12#"}, {"sleep": 60}]})
    keys = [frame.event for frame in call.advance(5) if types([frame]) == ["input_audio_buffer.dtmf_event_received"]]
    assert ["event_id" in (key or {}) for key in keys] == [False] * 3
    assert "".join(key["event"] for key in keys if key) == "12#"


def test_a_call_that_nobody_accepts_rings_for_a_minute() -> None:
    call = SimulatedCall()
    call.advance(61)
    assert call.report().ended == "unanswered"
    assert call.request("accept", {"type": "realtime"}).status == 404


def play(script: dict[str, Any]) -> Any:
    call = SimulatedCall(Script.parse(script))
    call.request("accept", {"type": "realtime", "tools": TOOLS})
    call.connect()
    return call.play(answering())

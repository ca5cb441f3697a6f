"""What is decided per call and per tenant: `prepare`, instructions, audio, keys, and the number that was dialled."""

import asyncio
import json
from typing import Any

import pytest
from pydantic import ValidationError

from handrail import ToolCall, ToolContext, tool
from handrail.core import LogEvent
from handrail.errors import ConfigError
from handrail.phone import CallSession, CallSetup, IncomingCall, PhoneGateway, Reject
from handrail.phone import signals as s
from handrail.tenants import TenantConfig, TenantDirectory
from tests.phone.calls import Played, play
from tests.phone.machine_call import Call
from tests.tenants.samples import acme

HELLO: dict[str, Any] = {"model": [{"say": "Hello."}], "caller": [{"sleep": 3}]}


def accepted(played: Played) -> dict[str, Any]:
    return next(entry.data["body"] for entry in played.report.timeline if entry.type == "accept")


@tool(read_only=True)
async def whoami(context: ToolContext[Any]) -> dict[str, Any]:
    """Say who calls."""
    return {"customer": context.customer_id, "deps": context.deps}


def test_each_call_has_its_own_instructions_greeting_customer_and_tools() -> None:
    seen: list[IncomingCall] = []

    async def prepare(call: IncomingCall) -> CallSetup:
        seen.append(call)
        return CallSetup(
            instructions="The caller is Ann.",
            customer_id="c-7",
            deps={"crm": 1},
            greeting="Hello Ann!",
            exclude=["request_transfer"],
        )

    played = play(
        {
            "model": [{"say": "Hello Ann!"}, {"calls": [{"id": "c1", "name": "whoami"}]}, {"say": "You are Ann."}],
            "caller": [{"say": "Who am I?"}, {"wait": "results"}],
        },
        tenants=[acme(greeting="Hello.", instructions="Be kind.", timezone="Europe/Paris")],
        tools=[whoami],
        prepare=prepare,
    )

    session = accepted(played)
    assert session["instructions"].startswith("Be kind.\n\nThe caller is Ann.\n\nThe date and time now: ")
    assert "(Europe/Paris)" in session["instructions"]
    assert [definition["name"] for definition in session["tools"]] == ["whoami"]
    greeting = played.report.client_events("response.create")[0]["response"]["instructions"]
    assert greeting.startswith("Be kind.")  # What is said by us keeps the persona.
    assert greeting.endswith("Hello Ann!")
    [output] = played.report.client_events("conversation.item.create", item__type="function_call_output")
    assert json.loads(output["item"]["output"]) == {"customer": "c-7", "deps": {"crm": 1}}
    assert seen[0].tenant_id == "acme-corp"


def test_an_excluded_tool_cannot_be_called_either() -> None:
    script = {
        "model": [{"say": "Hi."}, {"calls": [{"id": "c1", "name": "whoami"}]}, {"say": "No."}],
        "caller": [{"say": "Who am I?"}, {"wait": "results"}],
    }
    played = play(
        script, tenants=[acme(greeting="Hi.")], tools=[whoami], prepare=lambda call: CallSetup(exclude=["whoami"])
    )

    [output] = played.report.client_events("conversation.item.create", item__type="function_call_output")
    assert json.loads(output["item"]["output"])["error"] == "tool_not_found"


def test_rules_about_a_tool_that_one_call_does_not_have_are_no_problem(caplog: pytest.LogCaptureFixture) -> None:
    cfg = acme(greeting="Hi.", policy=[{"deny": "whoami"}])
    with caplog.at_level("WARNING", logger="handrail"):
        play(
            {"model": [{"say": "Hi."}], "caller": [{"sleep": 3}]},
            tenants=[cfg],
            tools=[whoami],
            prepare=lambda call: CallSetup(exclude=["whoami"]),
        )

    assert not [record.getMessage() for record in caplog.records if "policy" in record.getMessage()]


def test_a_caller_can_be_rejected_before_anybody_answers() -> None:
    played = play(HELLO, tenants=[acme(greeting="Hello.")], prepare=lambda call: Reject(603), check=False)

    assert [(request.verb, request.body) for request in played.report.http] == [("reject", {"status_code": 603})]
    assert "phone_call_rejected" in played.notes
    with pytest.raises(ConfigError, match="got 200"):
        Reject(200)


async def hang(call: IncomingCall) -> CallSetup:
    await asyncio.Event().wait()
    raise AssertionError


def cancel(call: IncomingCall) -> CallSetup:
    raise asyncio.CancelledError


def fail(call: IncomingCall) -> CallSetup:
    raise RuntimeError("no CRM")


def exclude_letters(call: IncomingCall) -> CallSetup:
    return CallSetup(exclude="whoami")  # type: ignore[arg-type]


def say_nothing(call: IncomingCall) -> CallSetup:
    return CallSetup(instructions=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["accept", "reject"])
@pytest.mark.parametrize("prepare", [hang, cancel, fail, lambda call: "Ann", exclude_letters, say_nothing])
def test_a_preparation_that_fails_or_hangs_is_what_the_tenant_says(prepare: Any, how: str) -> None:
    played = play(HELLO, tenants=[acme(greeting="Hello.", on_prepare_failure=how)], prepare=prepare, check=False)

    verbs = [request.verb for request in played.report.http]
    assert verbs[0] == how
    [note] = [event for event in played.of(LogEvent) if event.name == "phone_call_unprepared"]
    assert note.severity == "error"
    # The tenant is known from the first webhook on, and no tool call has to name it.
    nameless = [
        event
        for event in played.events
        if (event.tenant_id, event.sip_call_id) != ("acme-corp", "sip-rtc_1@carrier.example")
    ]
    assert [getattr(item, "name", "") for item in nameless] == ["webhook_incoming"]


def test_the_dialled_number_is_read_from_the_header_that_the_carrier_uses() -> None:
    other = TenantConfig(tenant_id="other", numbers=("+33200000000",), greeting="Hi.")
    script = {
        **HELLO,
        "call": {"to": "+33100000000", "headers": [["X-Original-To", "<sip:+33200000000@carrier.example>"]]},
    }

    played = play(script, tenants=[acme(greeting="Hi."), other], dialled_number_header="x-original-to")

    assert {event.tenant_id for event in played.of(LogEvent) if event.name == "phone_call_accepted"} == {"other"}


def test_audio_and_model_are_what_the_tenant_says() -> None:
    audio = {
        "turn_detection": {"type": "semantic_vad", "eagerness": "low"},
        "noise_reduction": "far_field",
        "speed": 1.1,
        "voice": "marin",
        "transcription": {"model": "gpt-4o-transcribe", "prompt": "Handrail"},
    }
    cfg = acme(
        greeting="Hi.", locale="fr", audio=audio, max_output_tokens=500, truncation="auto", reasoning_effort="low"
    )

    session = accepted(play(HELLO, tenants=[cfg]))

    assert session["audio"] == {
        "input": {
            "turn_detection": {"type": "semantic_vad", "eagerness": "low"},
            "noise_reduction": {"type": "far_field"},
            "transcription": {"language": "fr", "model": "gpt-4o-transcribe", "prompt": "Handrail"},
        },
        "output": {"voice": "marin", "speed": 1.1},
    }
    assert (session["max_output_tokens"], session["truncation"]) == (500, "auto")
    assert session["reasoning"] == {"effort": "low"}


@pytest.mark.parametrize(
    "audio",
    [
        {"turn_detection": {"type": "server_vad", "eagerness": "low"}},
        {"turn_detection": {"type": "semantic_vad", "threshold": 0.5}},
        {"turn_detection": {"type": "push_to_talk"}},
        {"noise_reduction": "studio"},
        {"speed": 9},
        {"volume": 1},
        {"transcription": {"language": "fr"}},
    ],
)
def test_audio_that_the_api_does_not_have_is_refused(audio: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        acme(audio=audio)


def test_what_is_said_twice_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"either voice or audio\.voice"):
        acme(voice="marin", audio={"voice": "cedar"})
    with pytest.raises(ConfigError, match="either context or prepare"):
        PhoneGateway(client=None, tenants=TenantDirectory(), context=fail, prepare=fail)  # type: ignore[arg-type]


def test_keys_that_are_typed_while_the_agent_speaks_are_kept() -> None:
    played = play(
        {
            "model": [
                {"say": "Please type your customer number, all of it, and then the hash key."},
                {"calls": [{"id": "c1", "name": "collect_digits", "args": {"purpose": "number", "max_digits": 3}}]},
                {"say": "Thank you."},
            ],
            "caller": [{"sleep": 1}, {"dtmf": "471"}, {"say": "There."}, {"wait": "results", "patience": 60}],
        },
        tenants=[acme(greeting="Hi.", features={"collect_digits": {"enabled": True}})],
    )

    [output] = played.report.client_events("conversation.item.create", item__type="function_call_output")
    assert json.loads(output["item"]["output"])["digits"] == "471"


def test_keys_that_nobody_collects_reach_the_program_or_the_model() -> None:
    pressed: list[tuple[str, str]] = []

    def on_digits(session: CallSession, key: str) -> None:
        pressed.append((session.session_id, key))

    script = {**HELLO, "caller": [{"sleep": 2}, {"dtmf": "5"}, {"sleep": 3}], "otherwise": {"say": "Five."}}
    play(script, tenants=[acme(greeting="Hi.")], on_digits=on_digits)
    assert pressed == [("rtc_1", "5")]

    played = play(script, tenants=[acme(greeting="Hi.", keys="model")])
    [message] = played.report.client_events("conversation.item.create", item__type="message")
    assert "pressed the key 5" in json.dumps(message)


def test_typing_is_no_silence() -> None:
    call = Call(idle_timeout=30.0)
    before = len([command for command in call.of(s.StartTimer) if command.name == "idle"])
    call.feed(s.KeyPressed(key="1"))

    assert len([command for command in call.of(s.StartTimer) if command.name == "idle"]) == before + 1


@pytest.mark.parametrize(
    ("words", "interrupts"),
    [("Mm-hm.", False), ("Okay.", False), ("No.", True), ("Actually, tell me your hours.", True)],
)
def test_a_lookup_goes_on_while_the_caller_only_says_that_they_listen(words: str, interrupts: bool) -> None:
    call = Call()
    call.feed(s.ResponseStarted(response_id="r"), s.ToolCalled(call=ToolCall(id="c", name="t", response_id="r")))
    call.feed(s.CallerStarted(item_id="i"), s.CallerStopped(item_id="i"))
    assert not call.of(s.InterruptTools)
    call.feed(s.CallerTranscribed(item_id="i", transcript=words))

    assert bool(call.of(s.InterruptTools)) is interrupts


@pytest.mark.parametrize(("make_context", "reason"), [(hang, "TimeoutError"), (cancel, "CancelledError")])
def test_a_context_that_hangs_or_cancels_turns_the_call_away_and_keeps_no_line_busy(
    make_context: Any, reason: str
) -> None:
    played = play(HELLO, tenants=[acme(greeting="Hello.")], context=make_context, check=False)

    assert [(request.verb, request.body) for request in played.report.http] == [("reject", {"status_code": 480})]
    [note] = [event for event in played.of(LogEvent) if event.name == "phone_call_failed"]
    assert note.fields["reason"] == reason


@pytest.mark.parametrize("is_open", [True, False])
def test_opening_hours_choose_the_greeting_the_instructions_and_the_tools(is_open: bool) -> None:
    hours = dict.fromkeys(("mon", "tue", "wed", "thu", "fri", "sat", "sun"), "00:00-24:00") if is_open else {}
    cfg = acme(
        greeting="Hello.",
        opening_hours=hours,
        out_of_hours={"greeting": "We are closed.", "instructions": "Offer to call back.", "exclude": ["whoami"]},
    )

    played = play({**HELLO, "model": [{"say": "Hello."}]}, tenants=[cfg], tools=[whoami])

    session = accepted(played)
    names = [definition["name"] for definition in session["tools"]]
    greeting = played.report.client_events("response.create")[0]["response"]["instructions"]
    assert ("whoami" in names) is is_open
    assert ("Offer to call back." in session["instructions"]) is not is_open
    assert greeting.endswith("Hello." if is_open else "We are closed.")

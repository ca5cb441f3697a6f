"""Calls with a fault in a certain state: which states there are, which faults, and what has to hold all the same.

A state is a moment of a call that goes well: it is found in a first play of the same call without the fault.
"""

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec import Struct
from openai import AsyncOpenAI

from handrail import Control, ToolError, ToolResult, tool
from handrail.core import Event
from handrail.phone import PhoneCallEnded, PhoneGateway
from handrail.tenants import TenantConfig, TenantDirectory, ToolBuilder
from handrail.testing.phone import CallReport, ModelEntry, PhoneSimulator, ScriptedRequest, SimulatedCall, run_warped

MAX_SILENCE = 8.0
"""Seconds for which a caller who waits for the agent may hear nothing."""
SLOT = "Tuesday 9:30"
TENANT: dict[str, Any] = {
    "tenant_id": "practice",
    "numbers": ["+33100000000"],
    "instructions": "You work for a dental practice.",
    "greeting": "Hello, this is the practice.",
    "transcription_model": "gpt-4o-transcribe",
    "features": {
        "end_call": {"enabled": True},
        "collect_digits": {"enabled": True, "timeout": 6},
        "refer": {
            "enabled": True,
            "require_confirmation": False,
            "handoff_phrase": "I put you through to {{label}}.",
            "destinations": [{"destination_id": "desk", "label": "the desk", "target_uri": "tel:+33100000001"}],
        },
    },
    "policy": [{"ask": "book", "by": "customer"}, {"allow": "take_person"}],
}


class Scenario(Struct, frozen=True, kw_only=True):
    """A call in which the model tries to do one thing, in every turn of the caller until it has."""

    goal: Mapping[str, Any] | None
    caller: tuple[Mapping[str, Any], ...]


SCENARIOS: dict[str, Scenario] = {
    "lookup": Scenario(
        goal={"name": "look", "args": {"what": "prices"}},
        caller=({"say": "How much is a cleaning?"}, {"wait": "results", "patience": 60}, {"say": "Thank you."}),
    ),
    "booking": Scenario(
        goal={"name": "book", "args": {"slot": SLOT}},
        caller=(
            {"say": "An appointment, please."},
            {"say": "Yes."},
            {"wait": "results", "patience": 60},
            {"say": "Yes, please."},
            {"say": "Yes."},
        ),
    ),
    "digits": Scenario(
        goal={"name": "collect_digits", "args": {"purpose": "customer number", "max_digits": 3}},
        caller=({"say": "I have a customer number."}, {"sleep": 2}, {"dtmf": "123"}, {"say": "That is all."}),
    ),
    "transfer": Scenario(
        goal={"name": "request_transfer", "args": {"destination_id": "desk"}},
        caller=({"say": "Put me through to the desk."}, {"sleep": 45}, {"say": "Are you still there?"}, {"sleep": 20}),
    ),
    "goodbye": Scenario(
        goal={"name": "end_call", "args": {}}, caller=({"say": "That is all, goodbye."}, {"sleep": 30})
    ),
    "person": Scenario(
        goal={"name": "take_person", "args": {}}, caller=({"say": "A person, please."}, {"say": "Hello?"}, {"sleep": 5})
    ),
}


def _find(report: CallReport, kind: str, nth: int = 1, *, source: str = "server") -> float:
    found = [entry.at for entry in report.timeline if entry.type == kind and entry.source == source]
    return found[nth - 1]


def _find_call(report: CallReport, nth: int = 1) -> float:
    return report.calls[nth - 1].at


def _find_speech(report: CallReport, words: str) -> float:
    return next(line.at for line in report.transcript if words in line.text)


STATES: dict[str, tuple[str, Callable[[CallReport], float]]] = {
    "ringing": ("lookup", lambda report: 0.0),
    "greeting": ("lookup", lambda report: _find(report, "output_audio_buffer.started") + 0.3),
    "caller speaks": ("lookup", lambda report: _find(report, "input_audio_buffer.speech_started") + 0.3),
    "model writes": ("lookup", lambda report: _find_call(report) - 0.01),
    "tool runs": ("lookup", lambda report: _find_call(report) + 1.0),
    "result is spoken": ("lookup", lambda report: _find_speech(report, "The result") + 0.3),
    "read-back": ("booking", lambda report: _find_speech(report, SLOT) + 0.5),
    "yes is awaited": ("booking", lambda report: _find(report, "input_audio_buffer.speech_started", 2) - 0.1),
    "yes is said": ("booking", lambda report: _find(report, "input_audio_buffer.speech_started", 2) + 0.1),
    "booking": ("booking", lambda report: _find_call(report, 2) + 0.5),
    "keys are collected": ("digits", lambda report: _find_call(report) + 0.5),
    "announcement": ("transfer", lambda report: _find_speech(report, "I put you through") + 0.3),
    "transfer": ("transfer", lambda report: _find(report, "refer", source="http") + 0.2),
    "goodbye": ("goodbye", lambda report: _find_speech(report, "Goodbye") + 0.2),
    "handed off": ("person", lambda report: _find_call(report) + 1.0),
}
"""Each state of a call: the scenario that has it, and when that is."""

Act = Callable[[SimulatedCall, PhoneGateway], None]


class Trouble(Struct, frozen=True, kw_only=True):
    """Something that goes wrong, from the moment of a state on."""

    fault: Mapping[str, Any] | None = None
    http: tuple[Mapping[str, Any], ...] = ()
    act: Act | None = None
    is_abrupt: bool = False
    """Whether the program ends the call without a word: then nothing more is sent, outputs included."""
    tool: str = ""
    """What the tools of the call do: raise, or hang."""
    is_recorded: bool = False


def _fill_disk(call: SimulatedCall, gateway: PhoneGateway) -> None:
    for session in gateway.calls.values():
        recorder: Any = session._recorder  # pyright: ignore[reportPrivateUsage]
        recorder._file.close()
        recorder._file = Path("/dev/full").open("w", encoding="utf-8")  # noqa: SIM115  # as the recorder's own


def _drain(call: SimulatedCall, gateway: PhoneGateway) -> None:
    asyncio.get_running_loop().create_task(gateway.drain(grace=0))


def _end(call: SimulatedCall, gateway: PhoneGateway) -> None:
    for session in gateway.calls.values():
        asyncio.get_running_loop().call_soon(session.end)


TROUBLES: dict[str, Trouble] = {
    "nothing": Trouble(),
    "events twice": Trouble(fault={"fault": "duplicate"}),
    "events late": Trouble(fault={"fault": "delay", "event": "response.*", "probability": 0.3, "seconds": 0.4}),
    "events slow": Trouble(fault={"fault": "slow", "seconds": 0.03}),
    "events out of order": Trouble(fault={"fault": "reorder", "probability": 0.2}),
    "garbage": Trouble(fault={"fault": "garbage", "probability": 0.5}),
    "unknown events": Trouble(fault={"fault": "unknown"}),
    "no beginnings": Trouble(fault={"fault": "drop", "event": "response.created"}),
    "an end is lost": Trouble(fault={"fault": "drop", "event": "response.done", "nth": 1}),
    "no metadata": Trouble(fault={"fault": "no_metadata"}),
    "no playback": Trouble(fault={"fault": "no_playback"}),
    "a reply fails": Trouble(fault={"fault": "failed_reply", "nth": 1}),
    "two replies fail": Trouble(fault={"fault": "failed_reply", "probability": 0.4}),
    "late transcripts": Trouble(fault={"fault": "late_transcript", "seconds": 2.5}),
    "failed transcripts": Trouble(fault={"fault": "failed_transcript"}),
    "socket 1012": Trouble(act=lambda call, gateway: call.drop(1012)),
    "socket 1006": Trouble(act=lambda call, gateway: call.drop(1006)),
    "handshake 404": Trouble(
        act=lambda call, gateway: call.drop(1012), http=({"verb": "connect", "status": 404, "times": 2},)
    ),
    "accept 500": Trouble(http=({"verb": "accept", "status": 500},)),
    "REFER 500": Trouble(http=({"verb": "refer", "status": 500},)),
    "REFER 603": Trouble(http=({"verb": "refer", "status": 603},)),
    "REFER is not taken": Trouble(http=({"verb": "refer", "outcome": "refused"},)),
    "REFER is slow": Trouble(http=({"verb": "refer", "delay": 9},)),
    "hang-up 500": Trouble(http=({"verb": "hangup", "status": 500},)),
    "disk full": Trouble(is_recorded=True, act=_fill_disk),
    "a tool fails": Trouble(tool="raise"),
    "a tool hangs": Trouble(tool="hang"),
    "the caller interrupts": Trouble(act=lambda call, gateway: call.speak("Wait, one more thing.")),
    "the caller says no": Trouble(act=lambda call, gateway: call.speak("No, stop!")),
    "the caller says mm-hm": Trouble(act=lambda call, gateway: call.speak("Mm-hm.")),
    "the caller types": Trouble(act=lambda call, gateway: call.press("12#")),
    "the caller hangs up": Trouble(act=lambda call, gateway: call.hang_up()),
    "the process is drained": Trouble(act=_drain),
    "the session is ended": Trouble(act=_end, is_abrupt=True),
}


class FaultyCall(Struct, kw_only=True):
    """What came of one call."""

    trouble: Trouble
    report: CallReport
    ended: PhoneCallEnded | None
    alive_after_end: bool
    booked_at: list[float]
    """When the tool that needs a yes ran, in the time of the call."""
    tool_runs: list[str]


@cache
def find_moment(state: str) -> float:
    """When a call that goes well is in this state."""
    scenario, find = STATES[state]
    return find(_play_well(scenario).report)


@cache
def _play_well(scenario: str) -> FaultyCall:
    return run_warped(_play(SCENARIOS[scenario], Trouble(), 0.0))


def play_faulty(state: str, trouble: str) -> FaultyCall:
    """Play the call of a state through the official SDK, with this trouble from there on."""
    scenario, _ = STATES[state]
    return run_warped(_play(SCENARIOS[scenario], TROUBLES[trouble], find_moment(state)))


def _make_model(goal: Mapping[str, Any] | None) -> Callable[[ScriptedRequest], ModelEntry]:
    """A model that says what it is told to say, and else tries to reach its goal when the caller has spoken."""

    def model(request: ScriptedRequest) -> ModelEntry:
        told = re.search(r"(?:nothing else|exactly these words): (.*)$", request.instructions or "", re.DOTALL)
        if told:
            return ModelEntry(say=told.group(1))
        if "still working" in (request.instructions or ""):
            return ModelEntry(say="One moment, please.")
        outputs = [str(item.get("output")) for item in request.items if item["type"] == "function_call_output"]
        calls = [item for item in request.items if item["type"] == "function_call" and item["status"] == "completed"]
        is_reached = any('"ok":false' not in output for output in outputs)
        last = request.items[-1] if request.items else {}
        has_spoken = last.get("role") == "user" and last["content"][0]["type"] == "input_audio"
        may_call = request.tool_choice != "none" and goal is not None
        if may_call and has_spoken and not is_reached and len(calls) <= len(outputs):
            return ModelEntry(calls=({"id": f"c{len(calls) + 1}", **goal},))  # pyright: ignore[reportArgumentType]
        if last.get("type") == "function_call_output":
            return ModelEntry(say=f"The result is there: {len(outputs)}.")
        return ModelEntry(say="Is there anything else?")

    return model


async def _play(scenario: Scenario, trouble: Trouble, moment: float) -> FaultyCall:
    loop = asyncio.get_running_loop()
    runs: list[str] = []
    booked_at: list[float] = []
    ended: list[PhoneCallEnded] = []
    alive: list[bool] = []
    started = 0.0

    async def misbehave(name: str) -> None:
        runs.append(name)
        if trouble.tool == "hang":
            await asyncio.sleep(600)
        if trouble.tool == "raise":
            raise ToolError("The calendar is closed.", retryable=True)

    @tool(read_only=True, concurrency_safe=True, timeout=20)
    async def look(what: str) -> str:
        """Look something up."""
        await misbehave("look")
        await asyncio.sleep(6)
        return f"{what}: 42"

    @tool(timeout=12)
    async def book(slot: str) -> str:
        """Book an appointment."""
        booked_at.append(loop.time() - started)
        await misbehave("book")
        await asyncio.sleep(2)
        return f"booked for {slot}"

    @tool
    async def take_person() -> ToolResult:
        """Have a person take over."""
        return ToolResult(output="A person takes over.", control=Control(mode="manual"))

    builder = ToolBuilder()
    for made in (look, book, take_person):
        builder.register(type("Build", (), {"__name__": made.name, "__call__": lambda self, cfg, made=made: made})())

    def listen(event: Event) -> None:
        if isinstance(event, PhoneCallEnded):
            ended.append(event)
            alive.append(not call.is_ended)

    script = {
        "timing": {"patience": 40, "linger": 3},
        "caller": [dict(entry) for entry in scenario.caller],
        "http": [dict(entry) for entry in trouble.http],
        "faults": [{**trouble.fault, "since": moment}] if trouble.fault is not None else [],
    }
    with TemporaryDirectory() as folder:
        async with PhoneSimulator() as simulator:
            client = AsyncOpenAI(base_url=simulator.url, api_key="sk-test", webhook_secret=simulator.webhook_secret)
            async with (
                client,
                PhoneGateway(
                    client=client,
                    tenants=TenantDirectory([TenantConfig.model_validate(TENANT)]),
                    tools=builder,
                    listeners=[listen],
                    recordings=Path(folder) if trouble.is_recorded else None,
                ) as gateway,
            ):
                started = loop.time()
                call = simulator.add_call(script, model=_make_model(scenario.goal))
                if trouble.act is not None:
                    act = trouble.act
                    call.after(moment, lambda: act(call, gateway))
                await simulator._announce(call, gateway.handle_webhook)  # pyright: ignore[reportPrivateUsage]
                report = await simulator.wait(call.id)
                await gateway.drain(grace=60)
    return FaultyCall(
        trouble=trouble,
        report=report,
        ended=ended[0] if ended else None,
        alive_after_end=any(alive),
        booked_at=booked_at,
        tool_runs=runs,
    )


# What has to hold.


def find_wrong(played: FaultyCall) -> Iterator[str]:
    """What is not as it should be, in words."""
    report = played.report
    if report.ended is None or played.alive_after_end:
        yield f"the call is alive at the provider after its end here ({report.ended})"
    if report.unanswered and not played.trouble.is_abrupt:
        yield f"unanswered: {report.unanswered}"
    if report.duplicate_outputs:
        yield f"answered twice: {report.duplicate_outputs}"
    if played.ended is not None and played.ended.unanswered != len(report.unanswered):
        yield f"unanswered in the metrics: {played.ended.unanswered}, in fact: {len(report.unanswered)}"
    if len(played.booked_at) > 1 and not _has_failed(report, "book"):
        yield f"booked {len(played.booked_at)} times"
    for at in played.booked_at:
        if not _has_agreed(report, at):
            yield f"booked at {at:.1f} s without a read-back and a yes"
    if not any(call.name == "take_person" for call in report.calls):
        for start, end in find_silences(report):
            if end - start > MAX_SILENCE:
                yield f"nobody spoke from {start:.1f} to {end:.1f} s, and the caller waited"


def _has_failed(report: CallReport, name: str) -> bool:
    return any(call.name == name and call.error not in (None, "approval_required") for call in report.calls)


def _has_agreed(report: CallReport, at: float) -> bool:
    """Whether the caller heard the values to their end and then said yes, before this moment."""
    read_backs = [
        entry.at
        for entry in report.timeline
        if entry.type == "speech" and entry.source == "agent" and SLOT in entry.data["text"] and entry.at <= at
        and not entry.data["text"].endswith("—")
    ]  # fmt: skip
    answers = [
        entry.data["started_at"]
        for entry in report.timeline
        if entry.type == "speech"
        and entry.source == "caller"
        and "yes" in entry.data["text"].lower()
        and entry.at <= at
    ]
    return any(heard <= said + 1e-6 for heard in read_backs for said in answers)


def find_silences(report: CallReport) -> Iterator[tuple[float, float]]:
    """When nobody spoke although the caller waited for the agent: for an answer, a result or a transfer."""
    changes: list[tuple[float, str]] = []
    for entry in report.timeline:
        if entry.type == "output_audio_buffer.started" and entry.source == "server":
            changes.append((entry.at, "agent"))
        elif entry.type in ("output_audio_buffer.stopped", "output_audio_buffer.cleared") and entry.source == "server":
            changes.append((entry.at, "agent ends"))
        elif entry.type == "speech.started":
            changes.append((entry.at, "caller"))
        elif entry.type == "speech" and entry.source == "caller":
            changes.append((entry.at, "caller ends"))
        elif entry.type == "accept" and entry.data["status"] == 200:
            changes.append((entry.at, "caller ends"))  # They wait for the greeting.
    for call in report.calls:
        # While keys are collected it is the caller's turn.
        since = call.answered_at if call.name == "collect_digits" else call.at
        if since is not None:
            changes.append((since, "asked"))
            changes.append((call.voiced_at if call.voiced_at is not None else report.duration, "told"))
    waits, open_calls, speaking, since = False, 0, 0, None
    for at, what in sorted(changes, key=lambda change: change[0]):
        was = (waits or open_calls > 0) and not speaking
        if what in ("agent", "caller"):
            speaking += 1
            waits = waits and what != "agent"
        elif what in ("agent ends", "caller ends"):
            speaking = max(speaking - 1, 0)
            waits = waits or what == "caller ends"
        else:
            open_calls += 1 if what == "asked" else -1
        now = (waits or open_calls > 0) and not speaking
        if now and not was:
            since = at
        elif was and not now and since is not None:
            yield since, at
            since = None
    if since is not None:
        yield since, report.duration


def describe(played: FaultyCall) -> str:
    """The call in words, for a failure."""
    return json.dumps([(round(line.at, 1), line.speaker, line.text) for line in played.report.transcript])

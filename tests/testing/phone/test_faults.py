"""What can go wrong on the way: faults of events, of sockets and of call control."""

from collections.abc import Mapping
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosedError

from handrail.testing.phone import Refused, Script, SimulatedCall, format_timeline, run_warped

from .wrong import TOOLS, answering, open_call, output, read_until, simulated_api, types

GREETING = {"model": [{"say": "Bonjour."}], "caller": [{"sleep": 60}]}


def greeting_with(*faults: dict[str, Any]) -> list[str]:
    call = open_call({**GREETING, "faults": list(faults)})
    call.feed({"type": "response.create"})
    return types(call.advance(10))


NORMAL = greeting_with()


def test_an_event_is_dropped() -> None:
    assert greeting_with({"fault": "drop", "event": "response.done"}) == [k for k in NORMAL if k != "response.done"]


def test_an_event_is_sent_twice() -> None:
    kinds = greeting_with({"fault": "duplicate", "event": "response.output_item.done"})
    at = NORMAL.index("response.output_item.done")
    assert kinds == [*NORMAL[:at], "response.output_item.done", *NORMAL[at:]]


def test_an_event_is_overtaken_by_the_next() -> None:
    kinds = greeting_with({"fault": "reorder", "event": "response.created"})
    assert kinds == [NORMAL[1], NORMAL[0], *NORMAL[2:]]


def test_the_last_event_is_not_held_for_ever_by_a_fault_of_order() -> None:
    assert greeting_with({"fault": "reorder", "event": "output_audio_buffer.stopped"}) == NORMAL


def test_a_late_event_holds_those_behind_it() -> None:
    call = open_call({**GREETING, "faults": [{"fault": "delay", "event": "response.created", "seconds": 2}]})
    call.feed({"type": "response.create"})
    assert types(call.advance(1.9)) == []
    assert types(call.advance(8)) == NORMAL


def test_a_slow_socket_keeps_the_order_and_takes_its_time() -> None:
    call = open_call({**GREETING, "faults": [{"fault": "slow", "seconds": 1}]})
    call.feed({"type": "response.create"})
    assert types(call.advance(3.5)) == NORMAL[:3]
    assert types(call.advance(60)) == NORMAL[3:]


def test_garbage_and_unknown_events_come_in_between() -> None:
    faults = [
        {"fault": "garbage", "event": "response.created"},
        {"fault": "unknown", "event": "response.done", "nth": 1},
    ]
    call = open_call({**GREETING, "faults": faults})
    call.feed({"type": "response.create"})
    frames = call.advance(10)
    assert frames[0].text is not None
    assert types(frames)[: len(NORMAL) - 1].count("simulator.unknown_event") == 1


def test_by_chance_means_the_same_chance_for_the_same_seed() -> None:
    fault = {"fault": "drop", "probability": 0.5}
    runs = [greeting_with(fault) for _ in range(2)]
    assert runs[0] == runs[1]
    assert 0 < len(runs[0]) < len(NORMAL)


def test_the_sdk_reconnects_after_1012_and_misses_what_happened_meanwhile() -> None:
    async def main() -> None:
        async with simulated_api() as (simulator, client):
            script = {
                "model": [{"say": "Bonjour."}],
                "caller": [
                    {"sleep": 5},
                    {"drop": 1012},
                    {"say": "Allô ?", "patience": 0},
                    {"sleep": 9},
                    {"hangup": True},
                ],
            }
            call = simulator.add_call(script)
            await client.realtime.calls.accept(call.id, type="realtime")
            kinds: list[str] = []
            async with client.realtime.connect(call_id=call.id, on_reconnecting=lambda event: None) as connection:
                kinds.extend([event.type async for event in connection])
            assert kinds.count("session.created") == 2
            assert kinds[-1] == "output_audio_buffer.stopped"
            assert "input_audio_buffer.speech_started" not in kinds

    run_warped(main())


@pytest.mark.parametrize("code", [1006, 1011, 4000])
def test_a_sideband_is_lost_with_a_code(code: int) -> None:
    async def main() -> None:
        async with simulated_api() as (simulator, client):
            call = simulator.add_call({"caller": [{"sleep": 1}, {"drop": code}, {"sleep": 60}]})
            await client.realtime.calls.accept(call.id, type="realtime")
            async with client.realtime.connect(call_id=call.id) as connection:
                with pytest.raises(ConnectionClosedError) as caught:
                    await read_until(connection, "never")
            assert (caught.value.rcvd.code if caught.value.rcvd else 1006) == code
            assert call.phase == "open"

    run_warped(main())


@pytest.mark.parametrize(("drop", "ended"), [("before", None), ("after", "transferred")])
def test_a_transfer_whose_response_was_lost_may_have_happened(drop: str, ended: str | None) -> None:
    async def main() -> None:
        async with simulated_api() as (simulator, client):
            call = simulator.add_call({"http": [{"verb": "refer", "drop": drop}], "caller": [{"sleep": 10}]})
            await client.realtime.calls.accept(call.id, type="realtime")
            with pytest.raises(openai.APIConnectionError):
                await client.realtime.calls.refer(call.id, target_uri="tel:+33155550100")
            call.advance(5)
            assert call.report().ended == ended
            assert call.report().http[-1].status is None

    run_warped(main())


def test_a_slow_response_of_call_control_runs_into_the_clients_timeout() -> None:
    async def main() -> None:
        async with simulated_api() as (simulator, client):
            call = simulator.add_call({"http": [{"verb": "accept", "delay": 30}], "caller": [{"sleep": 90}]})
            with pytest.raises(openai.APITimeoutError):
                await client.with_options(timeout=10).realtime.calls.accept(call.id, type="realtime")
            assert call.phase == "open"  # it was accepted all the same

    run_warped(main())


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"type": 7},
        {"type": "error"},
        {"type": "error", "error": "x"},
        {"type": "response.done", "response": None},
        {"type": "response.done", "response": {"output": [1, {"id": []}]}},
        {"type": "response.output_item.done", "item": []},
        {"type": "response.output_item.done", "item": {"type": "function_call"}},
        {"type": "conversation.item.added", "item_id": {}, "item": None},
    ],
    ids=str,
)
def test_a_script_may_send_whatever_it_likes(event: dict[str, Any]) -> None:
    faults = [{"fault": "drop", "event": "response.created"}]
    call = open_call({"caller": [{"sleep": 1}, {"event": event}, {"sleep": 1}, {"hangup": True}], "faults": faults})
    frames = call.advance(10)
    assert frames[0].event == event
    assert frames[-1].close == 1000
    assert format_timeline(call.report(), verbose=True)


KINDS = ("drop", "delay", "duplicate", "reorder", "garbage", "unknown", "slow")
ACTIONS = st.one_of(
    st.tuples(st.just("advance"), st.floats(0, 3)),
    st.tuples(st.just("speak"), st.text(max_size=20)),
    st.tuples(st.just("create"), st.sampled_from([{}, {"conversation": "none"}, {"tool_choice": "none"}])),
    st.tuples(st.just("cancel"), st.none()),
    st.tuples(st.just("clear"), st.none()),
    st.tuples(st.just("output"), st.sampled_from(["call_1", "call_2", "nobody"])),
    st.tuples(st.just("garbage"), st.text(max_size=8)),
    st.tuples(st.just("drop"), st.none()),
    st.tuples(st.just("connect"), st.none()),
    st.tuples(st.just("press"), st.sampled_from("0123456789*#")),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(ACTIONS, max_size=30),
    st.lists(st.sampled_from(KINDS), max_size=3),
    st.integers(0, 1000),
)
def test_whatever_a_client_does_the_server_keeps_its_own_rules(
    actions: list[tuple[str, Any]], faults: list[str], seed: int
) -> None:
    entries = [{"say": "Un instant.", "calls": [{"name": "lookup"}, {"name": "lookup", "args": {"q": "x" * 40}}]}, {}]
    plan = [{"fault": fault, "probability": 0.2} for fault in faults]
    script = {"model": entries * 20, "caller": [{"sleep": 500}], "faults": plan, "seed": seed}
    call = open_call(script)
    for action, value in actions:
        match action:
            case "advance":
                call.advance(value)
            case "speak":
                call.speak(value)
            case "create":
                call.feed({"type": "response.create", "response": value})
            case "cancel":
                call.feed({"type": "response.cancel"})
            case "clear":
                call.feed({"type": "output_audio_buffer.clear"})
            case "output":
                call.feed(output(value))
            case "garbage":
                call.feed(value)
            case "drop":
                call.drop()
            case "connect":
                call.connect()
            case "press":
                call.press(value)
    call.advance(100)
    sent = [entry for entry in call.report().timeline if entry.source == "server" and entry.type != "garbage"]
    active: set[str] = set()
    ids = [entry.data["event_id"] for entry in sent if "event_id" in entry.data]
    assert len(ids) == len(set(ids))
    for entry in sent:
        if entry.type in ("response.created", "response.done"):
            response = entry.data["response"]
            if entry.type == "response.created":
                assert not (active and response["conversation_id"])
                if response["conversation_id"]:
                    active.add(response["id"])
            else:
                active.discard(response["id"])
    assert not active
    created = [entry.data["response"]["id"] for entry in sent if entry.type == "response.created"]
    done = [entry.data["response"]["id"] for entry in sent if entry.type == "response.done"]
    assert sorted(created) == sorted(done)


def test_a_client_that_does_not_look_at_call_ids_answers_a_repeated_event_twice() -> None:
    script = Script.parse(
        {
            "model": [{"say": "Bonjour."}, {"calls": [{"id": "c1", "name": "lookup"}]}, {"say": "42."}],
            "caller": [{"say": "Combien ?"}, {"wait": "results"}],
            "faults": [{"fault": "duplicate", "event": "response.output_item.done"}],
        }
    )
    call = SimulatedCall(script)
    call.request("accept", {"type": "realtime", "tools": TOOLS})
    call.connect()
    report = call.play(answering())
    assert report.duplicate_outputs == ("c1",)


def fault(**given: Any) -> dict[str, Any]:
    return {"faults": [given], "model": [{"say": "One."}, {"say": "Two."}], "caller": [{"say": "Yes."}, {"sleep": 30}]}


TRANSCRIBED = {"type": "realtime", "audio": {"input": {"transcription": {"model": "whisper-1"}}}}


def hear(script: dict[str, Any]) -> list[tuple[float, Mapping[str, Any]]]:
    """What a client is told that only asks for one response."""
    call = SimulatedCall(script)
    call.request("accept", TRANSCRIBED)
    call.connect()
    call.feed({"type": "response.create", "response": {"metadata": {"mine": "1"}}})
    return [(frame.at, frame.event) for frame in call.advance(30) if frame.event is not None]


def test_a_server_may_leave_metadata_and_playback_out() -> None:
    plain = [event["response"]["metadata"] for _, event in hear(fault(fault="slow", seconds=0)) if "response" in event]
    bare = [event["response"]["metadata"] for _, event in hear(fault(fault="no_metadata")) if "response" in event]
    kinds = {event["type"] for _, event in hear(fault(fault="no_playback"))}

    assert {"mine": "1"} in plain
    assert set(bare) == {None}
    assert "response.done" in kinds
    assert not any(kind.startswith("output_audio_buffer") for kind in kinds)


def test_a_reply_fails_whoever_asked_for_it() -> None:
    done = [
        event["response"] for _, event in hear(fault(fault="failed_reply", nth=2)) if event["type"] == "response.done"
    ]

    assert [response["status"] for response in done] == ["completed", "failed"]


def test_a_transcript_comes_late_or_not_at_all() -> None:
    def find(script: dict[str, Any]) -> tuple[float, str]:
        [(at, event)] = [(at, event) for at, event in hear(script) if "transcription" in event["type"]]
        return at, event["type"].rpartition(".")[2]

    at, kind = find(fault(fault="late_transcript", seconds=0))
    assert kind == "completed"
    assert find(fault(fault="late_transcript", seconds=5)) == (pytest.approx(at + 5), "completed")
    assert find(fault(fault="failed_transcript"))[1] == "failed"


def test_a_handshake_is_refused_as_often_as_the_script_says() -> None:
    call = SimulatedCall({"http": [{"verb": "connect", "status": 404, "times": 2}]})
    call.request("accept", {"type": "realtime"})
    for _ in range(2):
        with pytest.raises(Refused):
            call.connect()
    assert call.connect() == 1

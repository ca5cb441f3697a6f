"""Each rule of the API with a client that breaks it, through the official SDK where it can be broken there."""

import asyncio
import re
from pathlib import Path
from typing import Any

import openai
import pytest
from websockets.exceptions import ConnectionClosedError, InvalidStatus

import handrail.testing.phone
from handrail.testing.phone import RULES, UNCONFIRMED_RULES, PhoneSimulator, Refused, SimulatedCall, run_warped

from .wrong import TOOLS, answering, open_call, output, read_until, simulated_api, types

CALL = {"say": "Un instant.", "calls": [{"id": "c1", "name": "lookup", "args": {"q": "a long question about it"}}]}


def test_r1_the_sideband_is_refused_before_the_call_is_accepted() -> None:
    async def main() -> None:
        async with simulated_api() as (simulator, client):
            call = simulator.add_call()
            with pytest.raises(InvalidStatus) as caught:
                await client.realtime.connect(call_id=call.id).enter()
            assert caught.value.response.status_code == 404
            await client.realtime.calls.accept(call.id, type="realtime")
            async with client.realtime.connect(call_id=call.id) as connection:
                assert (await connection.recv()).type == "session.created"

    run_warped(main())


@pytest.mark.parametrize("verb", ["accept", "reject", "refer", "hangup"])
def test_r2_call_control_of_an_ended_call_is_not_found(verb: str) -> None:
    async def main() -> None:
        async with simulated_api() as (simulator, client):
            call = simulator.add_call()
            await client.realtime.calls.accept(call.id, type="realtime")
            await client.realtime.calls.hangup(call.id)
            arguments: dict[str, Any] = {"accept": {"type": "realtime"}, "refer": {"target_uri": "tel:+331"}}.get(
                verb, {}
            )
            with pytest.raises(openai.NotFoundError) as caught:
                await getattr(client.realtime.calls, verb)(call.id, **arguments)
            assert caught.value.code == "call_id_not_found"
            assert simulator.report(call.id).ended == "agent"

    run_warped(main())


def test_r3_creating_a_response_while_one_is_active_is_an_error_that_names_the_event() -> None:
    async def main() -> None:
        async with simulated_api() as (simulator, client):
            call = simulator.add_call({"model": [{"say": "Bonjour à vous."}]})
            await client.realtime.calls.accept(call.id, type="realtime")
            async with client.realtime.connect(call_id=call.id) as connection:
                await connection.response.create()
                await connection.response.create(event_id="mine")
                error = (await read_until(connection, "error"))[-1].error
                assert (error.code, error.event_id) == ("conversation_already_has_active_response", "mine")
                await read_until(connection, "response.done")  # the first one goes on
            assert simulator.report(call.id).created_while_active == 1

    run_warped(main())


def test_r3_a_response_beside_the_conversation_does_not_take_the_place() -> None:
    call = open_call({"model": [{"say": "Bonjour."}, {"say": "Résumé."}]})
    call.feed({"type": "response.create"})
    call.feed({"type": "response.create", "response": {"conversation": "none", "metadata": {"topic": "summary"}}})
    done = [frame.event for frame in call.advance(10) if frame.event and frame.event["type"] == "response.done"]
    assert [event["response"]["conversation_id"] is None for event in done] == [False, True]
    assert done[1]["response"]["metadata"] == {"topic": "summary"}
    assert call.report().error_codes == ()


def test_r4_an_output_for_an_unknown_call_is_an_error() -> None:
    async def main() -> None:
        async with simulated_api() as (simulator, client):
            call = simulator.add_call()
            await client.realtime.calls.accept(call.id, type="realtime", tools=TOOLS)
            async with client.realtime.connect(call_id=call.id) as connection:
                await connection.conversation.item.create(
                    item={"type": "function_call_output", "call_id": "call_nobody", "output": "42"}
                )
                error = (await read_until(connection, "error"))[-1].error
                assert "call_nobody" in error.message
            assert simulator.report(call.id).unknown_outputs == ("call_nobody",)

    run_warped(main())


def test_r5_cancelling_with_nothing_active_is_an_error() -> None:
    async def main() -> None:
        async with simulated_api() as (simulator, client):
            call = simulator.add_call({"model": [{"say": "Bonjour."}]})
            await client.realtime.calls.accept(call.id, type="realtime")
            async with client.realtime.connect(call_id=call.id) as connection:
                await connection.response.cancel()
                error = (await read_until(connection, "error"))[-1].error
                assert error.code == "response_cancel_not_active"
                await connection.response.create()
                await read_until(connection, "output_audio_buffer.started")
                await connection.response.cancel()
                done = (await read_until(connection, "response.done"))[-1].response
                assert (done.status, done.status_details.reason) == ("cancelled", "client_cancelled")

    run_warped(main())


def test_r6_a_barge_in_leaves_a_half_written_call_that_a_careless_client_runs() -> None:
    call = open_call({"model": [CALL], "caller": [{"barge": "non", "on": "args"}, {"sleep": 60}]})
    call.feed({"type": "response.create"})
    frames = call.advance(1.5)
    kinds = types(frames)
    order = [
        "input_audio_buffer.speech_started",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.done",
        "output_audio_buffer.cleared",
    ]
    places = [kinds.index(kind, kinds.index(order[0])) for kind in order]
    assert places == sorted(places)
    arguments, item, response = (frames[place].event or {} for place in places[1:4])
    assert arguments["arguments"] == '{"q":"a long'
    assert item["item"]["status"] == "incomplete"
    assert response["response"]["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
    # The wrong client ran it all the same: nobody waits for its output, and the report does not count the call.
    call.feed(output("c1"))
    assert call.report().calls == ()


def test_r6_a_session_can_ask_not_to_be_interrupted() -> None:
    vad = {"type": "server_vad", "interrupt_response": False, "create_response": False}
    script = {"model": [CALL], "caller": [{"barge": "non", "on": "args"}, {"sleep": 60}]}
    call = open_call(script, audio={"input": {"turn_detection": vad}})
    call.feed({"type": "response.create"})
    call.advance(5)
    assert [record.call_id for record in call.report().calls] == ["c1"]


def test_r7_the_end_of_a_turn_creates_a_response_so_that_a_client_which_creates_one_too_collides() -> None:
    call = open_call({"model": [{"say": "Oui ?"}], "caller": [{"say": "Bonjour", "patience": 0}, {"sleep": 60}]})
    kinds = types(call.advance(1.2))
    assert kinds[-3:] == ["conversation.item.done", "response.created", "rate_limits.updated"]
    call.feed({"type": "response.create"})
    assert call.report().error_codes == ("conversation_already_has_active_response",)


def test_r7_can_be_turned_off() -> None:
    vad = {"type": "server_vad", "create_response": False}
    call = open_call({"caller": [{"say": "Bonjour", "patience": 0}]}, audio={"input": {"turn_detection": vad}})
    kinds = types(call.advance(3))
    assert "input_audio_buffer.committed" in kinds
    assert "response.created" not in kinds


def test_r8_a_client_that_hangs_up_on_response_done_cuts_its_own_goodbye() -> None:
    goodbye = "Au revoir, et bonne journée à vous."

    async def main(event: str) -> str:
        async with simulated_api() as (simulator, client):
            call = simulator.add_call({"model": [{"say": goodbye}]})
            await client.realtime.calls.accept(call.id, type="realtime")
            async with client.realtime.connect(call_id=call.id) as connection:
                await connection.response.create()
                await read_until(connection, event)
                await client.realtime.calls.hangup(call.id)
            return "".join(line.text for line in simulator.report(call.id).transcript)

    assert run_warped(main("response.done")) == ""
    assert run_warped(main("output_audio_buffer.stopped")) == goodbye


def test_r9_two_workers_on_one_call_both_answer_and_the_report_says_so() -> None:
    async def worker(client: openai.AsyncOpenAI, call_id: str, ready: asyncio.Barrier) -> None:
        async with client.realtime.connect(call_id=call_id) as connection:
            await ready.wait()
            async for event in connection:
                if event.type == "response.output_item.done" and event.item.type == "function_call":
                    item: Any = {"type": "function_call_output", "call_id": event.item.call_id, "output": "42"}
                    await connection.conversation.item.create(item=item)

    async def main() -> None:
        async with simulated_api() as (simulator, client):
            script = {"model": [CALL], "caller": [{"say": "Bonjour", "patience": 0}, {"sleep": 2}, {"hangup": True}]}
            call = simulator.add_call(script)
            await client.realtime.calls.accept(call.id, type="realtime", tools=TOOLS)
            ready = asyncio.Barrier(2)
            await asyncio.gather(worker(client, call.id, ready), worker(client, call.id, ready))
            report = simulator.report(call.id)
            assert report.duplicate_outputs == ("c1",)
            assert not report.ok

    run_warped(main())


@pytest.mark.parametrize("outcome", ["ok", "refused"])
def test_r10_a_transfer_ends_the_call_a_moment_later_unless_the_target_refuses(outcome: str) -> None:
    call = open_call({"http": [{"verb": "refer", "outcome": outcome}], "caller": [{"sleep": 100}]})
    assert call.request("refer", {"target_uri": "tel:+33155550100"}).status == 200
    assert call.phase == "open"
    closes = [frame.close for frame in call.advance(5) if frame.close is not None]
    assert (closes, call.report().ended) == (([1000], "transferred") if outcome == "ok" else ([], None))


def test_r10_the_sdk_repeats_a_transfer_that_failed_with_503_and_the_log_has_each_attempt() -> None:
    async def main() -> None:
        async with simulated_api() as (simulator, client):
            call = simulator.add_call({"http": [{"verb": "refer", "status": 503, "times": 2}]})
            await client.realtime.calls.accept(call.id, type="realtime")
            retrying = client.with_options(max_retries=2)
            await retrying.realtime.calls.refer(call.id, target_uri="tel:+33155550100")
            assert [request.status for request in simulator.report(call.id).http] == [200, 503, 503, 200]

    run_warped(main())


def test_r11_a_session_expires_after_an_hour_without_a_warning() -> None:
    async def main() -> None:
        async with simulated_api() as (simulator, client):
            call = simulator.add_call({"caller": [{"sleep": 5000}]})
            await client.realtime.calls.accept(call.id, type="realtime")
            async with client.realtime.connect(call_id=call.id) as connection:
                events = [event async for event in connection]
            assert [event.type for event in events] == ["session.created", "error"]
            assert events[1].error.code == "session_expired"
            report = simulator.report(call.id)
            assert (report.ended, round(report.duration)) == ("expired", 3600)

    run_warped(main())


def test_r12_time_moves_only_when_the_clock_is_advanced() -> None:
    script = {"model": [CALL, {"say": "42."}], "caller": [{"say": "Combien ?"}, {"hangup": 1}]}
    reports = [open_and_play(script) for _ in range(2)]
    assert reports[0].timeline == reports[1].timeline
    assert reports[0].duration > 3


def open_and_play(script: dict[str, Any]) -> Any:
    call = SimulatedCall(script)
    call.request("accept", {"type": "realtime", "tools": TOOLS})
    call.connect()
    return call.play(answering())


def test_s1_a_client_that_speaks_over_the_caller_leaves_the_callers_turn_without_a_response() -> None:
    call = open_call({"model": [{"say": "Une phrase. " * 20}], "caller": [{"sleep": 60}]})
    call.speak("Bonjour")
    call.advance(0.8)
    call.feed({"type": "response.create"})  # the caller is still speaking
    call.advance(5)
    report = call.report()
    assert [(error.code, error.event_id) for error in report.errors] == [
        ("conversation_already_has_active_response", None)
    ]
    assert sum(entry.type == "response.created" for entry in report.timeline) == 1


def test_s2_a_second_output_is_taken_and_counted() -> None:
    call = open_call({"model": [CALL], "caller": [{"sleep": 60}]})
    call.feed({"type": "response.create"})
    call.advance(3)
    call.feed(output("c1"))
    call.feed(output("c1", "43"))
    report = call.report()
    assert (report.duplicate_outputs, report.error_codes) == (("c1",), ())


def test_s3_a_call_is_accepted_once() -> None:
    async def main() -> None:
        async with simulated_api() as (simulator, client):
            call = simulator.add_call()
            await client.realtime.calls.accept(call.id, type="realtime")
            for attempt in (
                client.realtime.calls.accept(call.id, type="realtime"),
                client.realtime.calls.reject(call.id),
            ):
                with pytest.raises(openai.BadRequestError) as caught:
                    await attempt
                assert caught.value.code == "call_already_accepted"

    run_warped(main())


def test_s4_what_happened_while_nobody_was_connected_is_lost() -> None:
    async def main() -> None:
        async with simulated_api() as (simulator, client):
            script = {
                "model": [CALL],
                "caller": [{"say": "Bonjour", "patience": 0}, {"wait": "response"}, {"drop": 1012}, {"sleep": 60}],
            }
            call = simulator.add_call(script)
            await client.realtime.calls.accept(call.id, type="realtime", tools=TOOLS)
            async with client.realtime.connect(call_id=call.id) as connection:
                with pytest.raises(ConnectionClosedError):
                    await read_until(connection, "response.done")
            await asyncio.sleep(5)
            async with client.realtime.connect(call_id=call.id) as connection:
                assert (await connection.recv()).type == "session.created"
                await connection.conversation.item.retrieve(item_id="item_3")
                item = (await read_until(connection, "conversation.item.retrieved"))[-1].item
                assert (item.type, item.call_id, item.status) == ("function_call", "c1", "completed")
            await asyncio.sleep(30)
            assert simulator.report(call.id).unanswered == ("c1",)

    run_warped(main())


def test_s5_audio_does_not_cross_the_sideband() -> None:
    call = open_call()
    call.feed({"type": "input_audio_buffer.append", "audio": "AAAA"})
    assert call.report().error_codes == ("invalid_value",)


def test_s6_neither_the_model_nor_a_voice_that_was_heard_can_change() -> None:
    call = open_call({"model": [{"say": "Bonjour."}], "caller": [{"sleep": 60}]}, audio={"output": {"voice": "marin"}})
    change: dict[str, Any] = {"type": "realtime", "audio": {"output": {"voice": "cedar"}}}
    call.feed({"type": "session.update", "session": {**change, "model": "gpt-realtime-mini"}})
    call.feed({"type": "session.update", "session": change})
    call.feed({"type": "response.create"})
    call.advance(5)
    call.feed({"type": "session.update", "session": {"type": "realtime", "audio": {"output": {"voice": "marin"}}}})
    call.feed({"type": "session.update", "session": {"type": "realtime", "instructions": "Vouvoyez."}})
    assert call.report().error_codes == ("cannot_update_model", "cannot_update_voice")
    last = [frame.event for frame in call.take() if frame.event and frame.event["type"] == "session.updated"][-1]
    assert last["session"]["audio"]["output"]["voice"] == "cedar"
    assert [tool["name"] for tool in last["session"]["tools"]] == ["lookup"]


def test_s7_a_request_without_the_right_key_is_refused() -> None:
    async def main() -> None:
        async with PhoneSimulator(api_key="sk-right") as simulator:
            call = simulator.add_call()
            async with openai.AsyncOpenAI(base_url=simulator.url, api_key="sk-wrong") as client:
                with pytest.raises(openai.AuthenticationError):
                    await client.realtime.calls.accept(call.id, type="realtime")
                with pytest.raises(InvalidStatus) as caught:
                    await client.realtime.connect(call_id=call.id).enter()
                assert caught.value.response.status_code == 401
            async with openai.AsyncOpenAI(base_url=simulator.url, api_key="sk-right") as client:
                await client.realtime.calls.accept(call.id, type="realtime")

    run_warped(main())


def test_every_rule_has_a_test_and_is_cited_where_it_is_enforced() -> None:
    tests = Path(__file__).read_text()
    package = Path(handrail.testing.phone.__file__).parent
    code = "\n".join(file.read_text() for file in package.glob("*.py") if file.name != "protocol_rules.py")
    assert [rule.id for rule in RULES[:12]] == [f"R{number}" for number in range(1, 13)]
    for rule in RULES:
        assert f"def test_{rule.id.lower()}_" in tests, rule
        assert re.search(rf"\b{rule.id}\b", code), rule
    assert {"R4", "R10", "R11"} <= {rule.id for rule in UNCONFIRMED_RULES}
    assert all(rule.unconfirmed for rule in UNCONFIRMED_RULES)


def test_r1_holds_in_memory_too() -> None:
    with pytest.raises(Refused, match="No session found"):
        SimulatedCall().connect()

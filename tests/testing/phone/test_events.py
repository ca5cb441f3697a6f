"""The events have the shapes that the official SDK declares."""

from typing import Any

from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter

from handrail.testing.phone import SimulatedCall

from .wrong import TOOLS, answering, open_call, types

CALLS = [
    {"id": "c1", "name": "lookup", "args": {"q": "one"}},
    {"id": "c2", "name": "lookup", "args": {"q": "a second, longer question"}},
]
SESSION: dict[str, Any] = {
    "type": "realtime",
    "tools": TOOLS,
    "audio": {
        "input": {
            "transcription": {"model": "gpt-realtime-whisper"},
            "turn_detection": {"type": "server_vad", "idle_timeout_ms": 6000},
        }
    },
}
SCRIPT: dict[str, Any] = {
    "model": [
        {"say": "Bonjour."},
        {"say": "Un instant.", "calls": CALLS},
        {"say": "Voilà ce que j'ai trouvé pour vous."},
        {"status": "failed"},
        {"say": "Pardon ?"},
        {"calls": [{"name": "lookup", "args": '{"q":'}], "status": "incomplete"},
    ],
    "caller": [
        {"say": "Deux questions."},
        {"wait": "speech"},
        {"barge": "Non.", "on": "playout", "transcript": ""},
        {"dtmf": "1#"},
        {"wait": "silence"},
        {"sleep": 20},
        {"say": "Encore une."},
        {"sleep": 2},
        {"expire": True},
    ],
}


def test_every_event_is_valid_for_the_types_of_the_sdk() -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)
    call = SimulatedCall(SCRIPT)
    call.request("accept", SESSION)
    call.connect()
    seen: list[str] = []
    answer = answering()

    def client(call: SimulatedCall, frame: Any) -> None:
        if frame.event is not None:
            event = adapter.validate_python(frame.event)
            assert event.type == frame.event["type"]
            seen.append(event.type)
        answer(call, frame)
        if frame.event and frame.event["type"] == "session.created":
            call.feed({"type": "session.update", "session": {"type": "realtime", "instructions": "Vouvoyez."}})
            call.feed({"type": "conversation.item.retrieve", "item_id": "nobody"})

    call.play(client)
    assert {
        "session.created",
        "session.updated",
        "error",
        "rate_limits.updated",
        "response.created",
        "response.output_item.added",
        "response.output_item.done",
        "response.content_part.added",
        "response.content_part.done",
        "response.output_audio_transcript.delta",
        "response.output_audio_transcript.done",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.done",
        "conversation.item.added",
        "conversation.item.done",
        "conversation.item.truncated",
        "conversation.item.input_audio_transcription.completed",
        "conversation.item.input_audio_transcription.failed",
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "input_audio_buffer.timeout_triggered",
        "input_audio_buffer.dtmf_event_received",
        "output_audio_buffer.started",
        "output_audio_buffer.stopped",
        "output_audio_buffer.cleared",
    } <= set(seen)


def test_parallel_calls_interleave_and_each_is_closed_when_it_is_complete() -> None:
    call = open_call({"model": [{"calls": CALLS}], "caller": [{"sleep": 60}]})
    call.feed({"type": "response.create"})
    frames = [frame.event for frame in call.advance(5) if frame.event]
    pieces = [event["output_index"] for event in frames if event["type"] == "response.function_call_arguments.delta"]
    assert pieces[:4] == [0, 1, 1, 1]
    closed = [event for event in frames if event["type"] == "response.output_item.done"]
    assert [event["item"]["arguments"] for event in closed] == ['{"q":"one"}', '{"q":"a second, longer question"}']
    assert frames.index(closed[0]) < len(frames) - 1 - types_after(frames, "response.function_call_arguments.delta")


def types_after(frames: list[Any], kind: str) -> int:
    """How far from the end the last event of a type is."""
    return next(index for index, event in enumerate(reversed(frames)) if event["type"] == kind)


def test_an_older_server_leaves_the_name_out() -> None:
    call = open_call({"model": [{"calls": [{"name": "lookup", "omit_name": True}]}], "caller": [{"sleep": 60}]})
    call.feed({"type": "response.create"})
    done = [frame.event for frame in call.advance(5) if types([frame]) == ["response.function_call_arguments.done"]]
    assert done[0] is not None
    assert "name" not in done[0]


def test_a_text_response_is_not_heard() -> None:
    call = open_call({"model": [{"say": "Bonjour."}], "caller": [{"sleep": 60}]})
    call.feed({"type": "response.create", "response": {"output_modalities": ["text"]}})
    kinds = types(call.advance(5))
    assert "response.output_text.done" in kinds
    assert "output_audio_buffer.started" not in kinds
    assert call.report().transcript == ()

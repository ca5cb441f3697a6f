"""The caller's side of the audio: turn detection, transcription, keys, and what the session makes of silence."""

from collections.abc import Callable, Mapping
from typing import Any

from .call_record import TranscriptLine
from .clock import Timer
from .responses import Creator, Responses, Voice
from .state import CallState

_EPOCH = 1_700_000_000


class Turns:
    """What the server hears of the caller."""

    def __init__(self, state: CallState, voice: Voice, responses: Responses) -> None:
        self._state = state
        self._voice = voice
        self._responses = responses
        self._item_id = ""
        self._started_at = 0.0
        self._idle: Timer | None = None
        self._spoken_before_idle = -1

    def start(self) -> None:
        """The caller begins to speak; by default that cancels the active response and its audio (R6)."""
        state = self._state
        state.caller_speaking = True
        self._item_id, self._started_at = state.new_id("item"), state.clock.now
        state.note("caller", "speech.started", {})
        if (detection := self._detection()) is None:
            return
        state.emit("input_audio_buffer.speech_started", audio_start_ms=self._milliseconds(), item_id=self._item_id)
        if detection.get("interrupt_response", True):
            if self._responses.active is not None:
                self._responses.cancel(self._responses.active, "turn_detected")
            self._voice.clear()

    @property
    def pause(self) -> float:
        """How long a silence ends a turn."""
        return float((self._detection() or {}).get("silence_duration_ms", 500)) / 1000

    def stop(self, text: str, transcript: str | None) -> None:
        """The caller's turn ends; by default that creates a response (R7)."""
        state = self._state
        state.caller_speaking = False
        state.record.transcript.append(TranscriptLine(at=self._started_at, speaker="caller", text=text))
        state.note("caller", "speech", {"text": text, "started_at": self._started_at})
        if (detection := self._detection()) is None:
            return
        item_id = self._item_id
        state.emit("input_audio_buffer.speech_stopped", audio_end_ms=self._milliseconds(), item_id=item_id)
        self._commit(item_id, text)
        self._transcribe(item_id, text if transcript is None else transcript)
        if detection.get("create_response", True):
            self._respond("caller")

    def press(self, key: str) -> None:
        """The caller presses a key."""
        self._state.note("caller", "dtmf", {"key": key})
        received_at = _EPOCH + int(self._state.clock.now)
        self._state.emit("input_audio_buffer.dtmf_event_received", event=key, received_at=received_at)

    def watch_silence(self) -> None:
        """With an idle timeout, silence after the agent's words creates a response by itself, once."""
        state = self._state
        timeout = (self._detection() or {}).get("idle_timeout_ms")
        if timeout is None or state.quiet_since is None or self._spoken_before_idle == self._voice.started:
            return
        due = state.quiet_since + timeout / 1000
        if self._voice.started and (self._idle is None or not self._idle.is_pending):
            self._idle = state.clock.after(due - state.clock.now, self._on_idle)

    def _on_idle(self) -> None:
        state = self._state
        timeout = (self._detection() or {}).get("idle_timeout_ms")
        if timeout is None or state.quiet_since is None or state.clock.now + 1e-9 < state.quiet_since + timeout / 1000:
            return  # somebody spoke; the silence after that is watched anew
        self._spoken_before_idle = self._voice.started
        item_id = state.new_id("item")
        end = self._milliseconds()
        state.emit(
            "input_audio_buffer.timeout_triggered", audio_start_ms=end - timeout, audio_end_ms=end, item_id=item_id
        )
        self._commit(item_id, "")
        self._respond("timeout")

    def _commit(self, item_id: str, text: str) -> None:
        state = self._state
        previous = next(reversed(state.items), None)
        state.emit("input_audio_buffer.committed", item_id=item_id, previous_item_id=previous)
        content = [{"type": "input_audio", "transcript": None}]
        item = {
            "id": item_id,
            "object": "realtime.item",
            "type": "message",
            "status": "completed",
            "role": "user",
            "content": content,
        }
        state.items[item_id] = item
        state.emit("conversation.item.added", previous_item_id=previous, item=item)
        state.emit("conversation.item.done", previous_item_id=previous, item=item)

    def _transcribe(self, item_id: str, transcript: str) -> None:
        """The transcript is made apart from the model, and comes when it comes."""
        if not self._state.audio("input").get("transcription"):
            return
        delay = self._state.faults.delay_transcript()
        if delay is None:
            transcript, delay = "", 0.0
        place = {"item_id": item_id, "content_index": 0}
        kind = "conversation.item.input_audio_transcription"
        send: Callable[[], None]
        if transcript:
            usage = {"type": "duration", "seconds": 1.0}

            def send() -> None:
                self._state.emit(f"{kind}.completed", **place, transcript=transcript, usage=usage)
        else:
            error = {"type": "transcription_error", "code": "audio_unintelligible", "message": "Not understood."}

            def send() -> None:
                self._state.emit(f"{kind}.failed", **place, error=error)

        self._state.clock.after(self._state.timing.transcription + delay, send)

    def _respond(self, created_by: Creator) -> None:
        if self._responses.active is not None:
            message = "Conversation already has an active response in progress."
            self._state.send_error(message, code="conversation_already_has_active_response")  # S1
            return
        self._responses.create(created_by, {})

    def _detection(self) -> Mapping[str, Any] | None:
        return self._state.audio("input").get("turn_detection", {"type": "server_vad"})

    def _milliseconds(self) -> int:
        return int((self._state.clock.now - (self._state.record.accepted_at or 0.0)) * 1000)

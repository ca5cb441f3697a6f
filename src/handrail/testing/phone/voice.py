"""What the caller hears of the agent: responses are played one after the other, slower than they are generated."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from .call_record import TranscriptLine
from .clock import Timer
from .state import CallState


@dataclass(slots=True, eq=False)
class Playout:
    """The audio of one response."""

    response_id: str
    item_id: str
    on_start: Callable[[], None]
    text: str = ""
    complete: bool = False
    started_at: float | None = None
    timer: Timer | None = None


class Voice:
    """The output audio buffer of the call."""

    def __init__(self, state: CallState) -> None:
        self._state = state
        self._queue: deque[Playout] = deque()
        self.started = 0
        """How many responses the caller has begun to hear."""

    def add(self, playout: Playout) -> None:
        """Play this after what is being played."""
        self._queue.append(playout)
        if len(self._queue) == 1:
            self._start(playout)

    def complete(self, playout: Playout) -> None:
        """Say that no more audio is coming for it."""
        playout.complete = True
        if playout.started_at is not None and playout in self._queue:
            self._schedule_stop(playout)

    def clear(self) -> None:
        """Drop what was not played yet."""
        if not self._queue:
            return
        current = self._queue[0]
        played = self._state.clock.now - (current.started_at or 0.0)
        for playout in self._queue:
            if playout.timer is not None:
                playout.timer.cancel()
        self._queue.clear()
        self._state.playing = False
        characters = int(played * self._state.timing.speech_rate)
        if text := current.text[:characters]:
            self._note(current, f"{text}—" if characters < len(current.text) else text)
        self._state.emit("output_audio_buffer.cleared", response_id=current.response_id)
        if current.item_id in self._state.items:
            self._state.emit(
                "conversation.item.truncated", item_id=current.item_id, content_index=0, audio_end_ms=int(played * 1000)
            )

    def _start(self, playout: Playout) -> None:
        playout.started_at = self._state.clock.now
        self._state.playing = True
        self.started += 1
        self._state.emit("output_audio_buffer.started", response_id=playout.response_id)
        playout.on_start()
        if playout.complete:
            self._schedule_stop(playout)

    def _schedule_stop(self, playout: Playout) -> None:
        """R8: the end of playing comes after the end of the response."""
        now = self._state.clock.now
        ends = (playout.started_at or now) + len(playout.text) / self._state.timing.speech_rate
        playout.timer = self._state.clock.after(max(ends - now, 0.05), lambda: self._stop(playout))

    def _stop(self, playout: Playout) -> None:
        self._queue.popleft()
        self._state.playing = bool(self._queue)
        self._note(playout, playout.text)
        self._state.emit("output_audio_buffer.stopped", response_id=playout.response_id)
        if self._queue:
            self._start(self._queue[0])

    def _note(self, playout: Playout, text: str) -> None:
        at = playout.started_at or 0.0
        self._state.record.transcript.append(TranscriptLine(at=at, speaker="agent", text=text))
        self._state.note("agent", "speech", {"text": text, "started_at": at})

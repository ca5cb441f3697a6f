"""The caller: plays the timeline of the script."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeAlias

from .clock import Timer
from .responses import Voice
from .script import (
    Barge,
    CallerEntry,
    Drop,
    Dtmf,
    Expire,
    Garbage,
    Hangup,
    Idle,
    Say,
    Send,
    Sleep,
    Wait,
)
from .state import CallState
from .turns import Turns

_PAUSE = 0.3
"""How long a polite caller lets pass after the agent's last word."""


@dataclass(frozen=True, slots=True)
class _Until:
    """Something that the caller waits for: when it is so (maybe in the future), and how long at most."""

    ready: Callable[[], float | None]
    deadline: float | None = None


_Play: TypeAlias = Generator["_Until", bool, None]


class Caller:
    """The person who called."""

    def __init__(self, state: CallState, voice: Voice, turns: Turns) -> None:
        self._state = state
        self._voice = voice
        self._turns = turns
        self._play: _Play | None = None
        self._until: _Until | None = None
        self._timer: Timer | None = None
        self._heard_before = 0
        self._is_resuming = False

    def answer(self) -> None:
        """The call was accepted: play the timeline."""
        self._play = self._entries()
        self._resume(True)

    def check_wait(self) -> None:
        """Look whether what the caller waits for has come."""
        if self._is_resuming:
            return
        while self._until is not None and self._state.phase == "open":
            until, now = self._until, self._state.clock.now
            due = until.ready()
            if due is not None and due <= now + 1e-9:
                self._resume(True)
            elif until.deadline is not None and until.deadline <= now + 1e-9:
                self._resume(False)
            else:
                moments = [moment for moment in (due, until.deadline) if moment is not None]
                if moments and (self._timer is None or not self._timer.is_pending or self._timer.when != min(moments)):
                    if self._timer is not None:
                        self._timer.cancel()
                    self._timer = self._state.clock.after(min(moments) - now, lambda: None)
                return

    def _resume(self, is_ready: bool) -> None:
        if self._play is None:
            return
        self._is_resuming = True
        try:
            starting = self._until is None
            self._until = None
            self._until = next(self._play) if starting else self._play.send(is_ready)
        except StopIteration:
            self._until, self._play = None, None
        finally:
            self._is_resuming = False

    def _entries(self) -> _Play:
        for index, entry in enumerate(self._state.script.caller):
            yield from self._one(entry, f"caller[{index}]")
            if self._state.phase != "open":
                return
        linger = self._state.timing.linger
        yield _Until(
            lambda: self._quiet_for(linger) if self._has_results() else None,
            self._state.clock.now + max(6 * linger, 30.0),
        )
        self._state.end("caller")

    def _one(self, entry: CallerEntry, path: str) -> _Play:
        state = self._state
        match entry:
            case Say():
                yield from self._wait_for_turn(self._patience(entry.patience))
                yield from self._speak(entry.say, entry.transcript)
            case Barge():
                came = yield self._until_overlap(entry)
                if not came:
                    state.record.problems.append(f"{path}: there was no {entry.on} to speak over.")
                if entry.after:
                    yield self._sleep(entry.after)
                yield from self._speak(entry.barge, entry.transcript)
            case Dtmf():
                for key in entry.dtmf:
                    self._turns.press(key)
                    yield self._sleep(entry.gap)
            case Sleep():
                yield self._sleep(entry.sleep)
            case Idle():
                seconds = entry.idle
                yield _Until(lambda: self._quiet_for(seconds))
            case Wait():
                if not (yield self._until_event(entry)):
                    state.record.problems.append(f"{path}: there was no {entry.wait} within the caller's patience.")
            case Drop():
                state.close_sidebands(entry.drop)
            case Send():
                state.send(entry.event)
            case Garbage():
                state.send_text(entry.garbage)
            case Expire():
                self.expire()
            case Hangup():
                if entry.hangup:
                    yield self._sleep(entry.hangup)
                state.end("caller")

    def expire(self) -> None:
        """R11: the session has reached its maximum duration, which nothing announced."""
        minutes = round(self._state.timing.maximum / 60)
        message = f"Your session hit the maximum duration of {minutes} minutes."
        self._state.send_error(message, code="session_expired")
        self._state.end("expired")

    def _speak(self, text: str, transcript: str | None) -> _Play:
        self._turns.start()
        yield self._sleep(max(len(text) / self._state.timing.speech_rate, 0.3))
        yield self._sleep(self._turns.pause)
        self._turns.stop(text, transcript)
        self._heard_before = self._voice.started

    def _wait_for_turn(self, patience: float) -> _Play:
        """A polite caller waits for an answer, then for silence."""

        def answered() -> float | None:
            return self._quiet_for(_PAUSE) if self._voice.started > self._heard_before else None

        yield _Until(answered, self._state.clock.now + patience)
        yield _Until(lambda: self._quiet_for(0.0), self._state.clock.now + 300)

    def _until_overlap(self, entry: Barge) -> _Until:
        state = self._state

        def ready() -> float | None:
            is_time = {
                "audio": state.playing,
                "args": state.writing_arguments,
                "response": state.response_active,
                "playout": state.playing and not state.response_active,
            }[entry.on]
            return state.clock.now if is_time else None

        return _Until(ready, state.clock.now + self._patience(entry.patience))

    def _until_event(self, entry: Wait) -> _Until:
        state = self._state

        def ready() -> float | None:
            match entry.wait:
                case "silence":
                    return self._quiet_for(_PAUSE)
                case "results":
                    return self._quiet_for(0.0) if self._has_results() else None
                case "speech":
                    return state.clock.now if state.playing else None
                case "response":
                    return state.clock.now if state.response_active else None

        return _Until(ready, state.clock.now + self._patience(entry.patience))

    def _has_results(self) -> bool:
        """Whether every completed call was answered and its result spoken about."""
        return all(call.voiced_at is not None for call in self._state.record.calls.values())

    def _quiet_for(self, seconds: float) -> float | None:
        since = self._state.quiet_since
        return None if since is None else since + seconds

    def _sleep(self, seconds: float) -> _Until:
        until = self._state.clock.now + seconds
        return _Until(lambda: until)

    def _patience(self, own: float | None) -> float:
        return self._state.timing.patience if own is None else own

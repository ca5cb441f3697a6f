"""What was said in a phone call, in writing: who, when, and whether the caller heard it to its end."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, structs

from handrail.phone import signals as s
from handrail.phone.realtime import RealtimeAdapter
from handrail.phone.recording import read_recording


class SpokenLine(Struct, frozen=True, kw_only=True):
    """Something that was said."""

    at: float
    """Seconds since the beginning of the call."""
    speaker: Literal["agent", "caller"]
    text: str
    is_interrupted: bool = False
    """Whether the caller did not hear it to its end."""

    def __str__(self) -> str:
        return f"{self.at:8.2f}  {self.speaker:6}  {self.text}{'  [interrupted]' if self.is_interrupted else ''}"


class Transcript:
    """Collects what is said, from the signals of a call."""

    def __init__(
        self, *, redact: Callable[[str], str] = str, on_line: Callable[[SpokenLine], None] | None = None
    ) -> None:
        """`on_line` is told each line once it is known whether it was heard to its end."""
        self._redact = redact
        self._on_line = on_line
        self._lines: dict[str, SpokenLine] = {}
        """By the response or the caller's item that it belongs to."""
        self._playing: set[str] = set()

    @property
    def lines(self) -> tuple[SpokenLine, ...]:
        """What was said so far, in its order."""
        return tuple(sorted(self._lines.values(), key=lambda line: line.at))

    def take(self, signal: s.Signal, *, at: float) -> None:
        """Learn from a signal."""
        match signal:
            case s.CallerStarted():
                self._lines.setdefault(signal.item_id, SpokenLine(at=at, speaker="caller", text=""))
            case s.CallerTranscribed(transcript=str(text)):
                begun = self._lines.get(signal.item_id)
                line = SpokenLine(at=begun.at if begun is not None else at, speaker="caller", text=self._redact(text))
                self._lines[signal.item_id] = line
                self._tell(line)
            case s.PlaybackStarted():
                self._playing.add(signal.response_id)
                self._lines.setdefault(signal.response_id, SpokenLine(at=at, speaker="agent", text=""))
            case s.ResponseFinished() if signal.words:
                begun = self._lines.get(signal.response_id)
                line = SpokenLine(
                    at=begun.at if begun is not None else at,
                    speaker="agent",
                    text=self._redact(signal.words),
                    is_interrupted=signal.status == "cancelled",
                )
                self._lines[signal.response_id] = line
                if signal.response_id not in self._playing:
                    self._tell(line)
            case s.PlaybackStopped() | s.PlaybackCleared() if signal.response_id in self._playing:
                self._playing.discard(signal.response_id)
                is_cut = isinstance(signal, s.PlaybackCleared)
                line = self._lines[signal.response_id]
                line = structs.replace(line, is_interrupted=line.is_interrupted or is_cut)
                self._lines[signal.response_id] = line
                self._tell(line)
            case _:
                pass

    def _tell(self, line: SpokenLine) -> None:
        if self._on_line is not None and line.text:
            self._on_line(line)


def read_transcript(path: str | Path) -> tuple[SpokenLine, ...]:
    """Read what was said from a recording of a call."""
    adapter, transcript = RealtimeAdapter(), Transcript()
    for at, event in _list_events(read_recording(Path(path))):
        for signal in adapter.read(event):
            transcript.take(signal, at=at)
    return tuple(line for line in transcript.lines if line.text)


def _list_events(lines: Iterator[dict[str, Any]]) -> Iterator[tuple[float, Mapping[str, Any]]]:
    for line in lines:
        if isinstance(line.get("received"), dict):
            yield float(line.get("at", 0.0)), line["received"]

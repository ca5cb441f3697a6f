"""The state of one simulated call that its parts share: time, session, conversation, sidebands, and the record."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal, TypeAlias, cast

from .call_record import EntrySource, ErrorRecord, Record, TimelineEntry
from .clock import Clock
from .faults import FaultEffect, FaultPlan
from .script import Script

Phase: TypeAlias = Literal["ringing", "open", "ended"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What goes out to one sideband: an event, a text that is no event, or the close of the socket."""

    at: float
    sideband: int
    event: Mapping[str, Any] | None = None
    text: str | None = None
    close: int | None = None


class CallState:
    """What is true of the call now, and the way out to its sidebands."""

    def __init__(self, script: Script, call_id: str) -> None:
        self.script = script
        self.call_id = call_id
        self.timing = script.timing
        self.clock = Clock()
        self.record = Record()
        self.phase: Phase = "ringing"
        self.session: dict[str, Any] = {}
        self.items: dict[str, dict[str, Any]] = {}
        self.call_items: dict[str, str] = {}
        """The item of each call, by the id of the call."""
        self.told_items: set[str] = set()
        """The items that some sideband was told of."""
        self.caller_speaking = False
        self.response_active = False
        self.writing_arguments = False
        self.side_responses = 0
        self.playing = False
        self.quiet_since: float | None = None
        self.frames: list[Frame] = []
        self.sidebands: set[int] = set()
        self.faults = FaultPlan(script.faults, script.seed, self.clock)
        self._numbers = {name: count(1) for name in ("event", "item", "resp", "call", "sideband")}
        self._not_before = 0.0
        self._overtaken: list[FaultEffect] = []

    def audio(self, direction: Literal["input", "output"]) -> dict[str, Any]:
        """The session's configuration of what is heard or said."""
        audio = cast(dict[str, Any], self.session.get("audio") or {})
        return cast(dict[str, Any], audio.get(direction) or {})

    def new_id(self, prefix: str) -> str:
        return f"{prefix}_{next(self._numbers[prefix])}"

    def emit(self, kind: str, **fields: Any) -> None:
        """Send an event to every sideband (R9)."""
        event: dict[str, Any] = {"type": kind, **fields}
        if not kind.endswith("dtmf_event_received"):  # the one event without an id
            event["event_id"] = self.new_id("event")
        self.send(event)

    def send(self, event: Mapping[str, Any]) -> None:
        """Send an event as it is, through the faults of the script."""
        self.note("server", str(event.get("type", "?")), cast(dict[str, Any], event))
        effect = self.faults.apply(event)
        if effect is None and self._not_before <= self.clock.now and not self._overtaken:
            self._broadcast(event)
            return
        effect = effect or FaultEffect((event,))
        if effect.delay:
            self._not_before = max(self._not_before, self.clock.now) + effect.delay
        if self._not_before > self.clock.now:
            self.clock.after(self._not_before - self.clock.now, lambda: self._carry_out(effect))
        else:
            self._carry_out(effect)

    def send_error(
        self, message: str, *, code: str | None, param: str | None = None, event_id: str | None = None
    ) -> None:
        """Send an error; most leave the session open."""
        self.record.errors.append(ErrorRecord(at=self.clock.now, code=code, message=message, event_id=event_id))
        kind = "invalid_request_error"
        error = {"type": kind, "code": code, "message": message, "param": param, "event_id": event_id}
        self.emit("error", error=error)

    def connect(self) -> int:
        """Open a sideband, which first hears what the session is. Nothing earlier is replayed (S4)."""
        sideband = next(self._numbers["sideband"])
        self.sidebands.add(sideband)
        created = {"type": "session.created", "event_id": self.new_id("event"), "session": dict(self.session)}
        self.note("call", "sideband.opened", {"sideband": sideband})
        self.frames.append(Frame(at=self.clock.now, sideband=sideband, event=created))
        return sideband

    def disconnect(self, sideband: int) -> None:
        """Forget a sideband that the client closed."""
        if sideband in self.sidebands:
            self.sidebands.discard(sideband)
            self.note("call", "sideband.closed", {"sideband": sideband, "by": "client"})

    def close_sidebands(self, code: int) -> None:
        """Close every sideband."""
        for sideband in sorted(self.sidebands):
            self.frames.append(Frame(at=self.clock.now, sideband=sideband, close=code))
            self.note("call", "sideband.closed", {"sideband": sideband, "by": "server", "code": code})
        self.sidebands.clear()

    def send_text(self, text: str) -> None:
        """Send a text that need not be an event."""
        self.note("server", "garbage", {"text": text})
        for sideband in sorted(self.sidebands):
            self.frames.append(Frame(at=self.clock.now, sideband=sideband, text=text))

    def note(self, source: EntrySource, kind: str, data: dict[str, Any]) -> None:
        """Write down what happened."""
        self.record.timeline.append(
            TimelineEntry(
                at=self.clock.now,
                source=source,
                type=kind,
                data=data,
                response_active=self.response_active,
                caller_speaking=self.caller_speaking,
                playing=self.playing,
                ended=self.phase == "ended",
            )
        )

    def update_quiet(self) -> None:
        """Note since when nobody speaks and nothing is generated."""
        if self.phase != "open":
            return
        is_quiet = not (self.caller_speaking or self.response_active or self.side_responses or self.playing)
        if is_quiet and self.quiet_since is None:
            self.quiet_since = self.clock.now
        elif not is_quiet and self.quiet_since is not None:
            self._end_silence()

    def end(self, reason: str, *, code: int = 1000) -> None:
        """End the call: sidebands close, and nothing happens any more."""
        if self.phase == "ended":
            return
        self.phase = "ended"
        self.record.ended, self.record.ended_at = reason, self.clock.now
        if self.quiet_since is not None:
            self._end_silence()
        self.note("call", "call.ended", {"reason": reason})
        self.close_sidebands(code)
        self.clock.clear()

    def _end_silence(self) -> None:
        if self.quiet_since is not None and self.clock.now > self.quiet_since:
            self.record.silences.append((self.quiet_since, self.clock.now))
        self.quiet_since = None

    def _carry_out(self, effect: FaultEffect) -> None:
        if effect.overtaken:
            self._overtaken.append(effect)
            self.clock.after(0.2, self._send_overtaken)
            return
        self._deliver(effect)
        self._send_overtaken()

    def _send_overtaken(self) -> None:
        waiting, self._overtaken = self._overtaken, []
        for effect in waiting:
            self._deliver(effect)

    def _deliver(self, effect: FaultEffect) -> None:
        for payload in effect.payloads:
            if isinstance(payload, str):
                self.send_text(payload)
            else:
                self._broadcast(payload)
        if effect.close is not None:
            self.close_sidebands(effect.close)

    def _broadcast(self, event: Mapping[str, Any]) -> None:
        if self.sidebands:
            self._note_items(event)
        for sideband in sorted(self.sidebands):
            self.frames.append(Frame(at=self.clock.now, sideband=sideband, event=event))

    def _note_items(self, event: Mapping[str, Any]) -> None:
        """Remember the items that an event names; one that a script sends may have any form."""
        named = [event.get("item_id"), find(event, "item", "id")]
        if event.get("type") == "response.done":
            output = find(event, "response", "output")
            named += [find(item, "id") for item in cast(list[object], output)] if isinstance(output, list) else []
        self.told_items.update(item_id for item_id in named if isinstance(item_id, str))


def find(value: object, *names: str) -> object:
    """What is at a place in nested mappings, or None."""
    for name in names:
        if not isinstance(value, Mapping):
            return None
        value = cast(Mapping[str, object], value).get(name)
    return value

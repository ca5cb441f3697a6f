"""Everything that happened in a phone call as lines of JSON, redacted; and the same call again."""

import asyncio
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

import msgspec
from msgspec import Struct

from handrail.core.redact import Redactor
from handrail.core.text import compact_json
from handrail.errors import ConfigError
from handrail.phone import signals as s
from handrail.phone.call_limits import MachineOptions
from handrail.phone.realtime import RealtimeAdapter
from handrail.phone.state_machine import CallMachine
from handrail.tenants.texts import Texts

_OWN: Final = (
    s.Connected,
    s.Disconnected,
    s.ToolFinished,
    s.ToolContinues,
    s.TransferRequested,
    s.TransferAnswered,
    s.HangUpRequested,
    s.OperatorReplied,
    s.HandedBack,
    s.TimerFired,
)
"""Signals that no event of the socket leads to; `Ended` is among them where the socket did not say it."""
_Line = tuple[float, str, Mapping[str, Any]]
"""When something happened, what it is, and its values."""
_KINDS: Final = {kind.__name__: kind for kind in (*_OWN, s.Ended)}


class CallRecorder:
    """Writes one call to a file. Keys that were pressed and addresses are never written."""

    def __init__(
        self, path: str | Path, *, about: Mapping[str, Any], options: MachineOptions, redactor: Redactor | None = None
    ) -> None:
        self._redactor = redactor or Redactor()
        self._file = Path(path).open("x", encoding="utf-8")  # noqa: SIM115  # open for as long as the call
        self._began = time.monotonic()
        self._is_reading = False
        self._lines: list[_Line] = []
        self._flushing: asyncio.Task[None] | None = None
        self._is_closed = False
        self.error: str | None = None
        """Why nothing more is written; None as long as it is."""
        self._write("call", {**about, "options": msgspec.to_builtins(options)})

    def record_event(self, event: Mapping[str, Any]) -> None:
        """An event of the provider; the signals that it leads to are not written again."""
        if event["type"] == "input_audio_buffer.dtmf_event_received":
            event = {**event, "event": "*"}
        self._is_reading = True
        self._write("received", event)

    def read(self) -> None:
        """The event's signals were taken."""
        self._is_reading = False

    def record_signal(self, signal: s.Signal) -> None:
        """A signal that came from elsewhere."""
        if self._is_reading or not isinstance(signal, (*_OWN, s.Ended)):
            return
        fields = msgspec.to_builtins(signal)
        if isinstance(signal, s.TransferRequested):
            fields["target_uri"] = ""
        self._write("signal", {"kind": type(signal).__name__, **fields})

    def record_sent_event(self, event: Mapping[str, Any]) -> None:
        """An event to the provider."""
        self._write("sent", event)

    def record_request(self, verb: str) -> None:
        """A request of call control."""
        self._write("requested", {"verb": verb})

    async def aclose(self) -> None:
        """No more comes: write what is left, and close the file."""
        self._is_closed = True
        if self._flushing is not None:
            await self._flushing
        await asyncio.to_thread(self._write_lines, self._take_lines())
        await asyncio.to_thread(self._file.close)

    def _write(self, kind: str, value: Mapping[str, Any]) -> None:
        if self._is_closed or self.error is not None:
            return
        self._lines.append((time.monotonic() - self._began, kind, value))
        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().create_task(self._flush())

    async def _flush(self) -> None:
        """Redact and write the lines that wait, in a thread: neither a slow disk nor a long text delays a call."""
        try:
            while self._lines and self.error is None:
                await asyncio.to_thread(self._write_lines, self._take_lines())
        finally:
            self._flushing = None

    def _take_lines(self) -> list[_Line]:
        lines, self._lines = self._lines, []
        return lines

    def _write_lines(self, lines: list[_Line]) -> None:
        try:
            for at, kind, value in lines:
                self._file.write(compact_json({"at": round(at, 6), kind: self._redactor.value(value)}) + "\n")
            self._file.flush()
        except (OSError, ValueError) as error:
            self.error = self.error or getattr(error, "strerror", None) or str(error)


class Replay(Struct, frozen=True, kw_only=True):
    """What the same signals led to this time."""

    sent: tuple[Mapping[str, Any], ...]
    recorded: tuple[Mapping[str, Any], ...]

    @property
    def differences(self) -> tuple[str, ...]:
        """Events that are not the recorded ones, by their numbers; empty if the code does what it did."""
        found = [
            f"event {number}: recorded {_brief(old)}, now {_brief(new)}"
            for number, (old, new) in enumerate(zip(self.recorded, self.sent, strict=False), start=1)
            if _brief(old) != _brief(new)
        ]
        if len(self.sent) != len(self.recorded):
            found.append(f"recorded {len(self.recorded)} events, now {len(self.sent)}")
        return tuple(found)


def replay(path: str | Path) -> Replay:
    """Run a recorded call through the state machine of today, without a provider and without tools."""
    lines = list(read_recording(Path(path)))
    if not lines or not isinstance(lines[0].get("call"), dict):
        raise ConfigError(f"{path}:1: a recording begins with a line `call`.")
    about: dict[str, Any] = lines[0]["call"]
    adapter = RealtimeAdapter()
    sent: list[Mapping[str, Any]] = []
    recorded: list[Mapping[str, Any]] = []
    try:
        options = msgspec.convert(about["options"], MachineOptions)
    except (KeyError, msgspec.ValidationError) as error:
        raise ConfigError(f"{path}:1: call.options must be the limits of the call: {error}.") from error
    machine = CallMachine(options, texts=Texts(about.get("locale", "en")))
    for number, line in enumerate(lines[1:], start=2):
        try:
            taken = _take(line, adapter)
        except (KeyError, TypeError, msgspec.ValidationError) as error:
            raise ConfigError(f"{path}:{number}: this line cannot be read: {error}.") from error
        if "sent" in line:
            recorded.append(line["sent"])
        for signal in taken:
            for command in machine.handle(signal):
                if isinstance(command, s.ProviderCommand):
                    sent.append(adapter.write(command))
    return Replay(sent=tuple(sent), recorded=tuple(recorded))


def _take(line: Mapping[str, Any], adapter: RealtimeAdapter) -> list[s.Signal]:
    """The signals of one line of a recording."""
    if "received" in line:
        return adapter.read(line["received"])
    if "signal" in line:
        fields = dict(line["signal"])
        return [msgspec.convert(fields, _KINDS[fields.pop("kind")])]
    return []


def read_recording(path: Path) -> Iterator[dict[str, Any]]:
    """Read the lines of a recording."""
    for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
        try:
            value = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{path}:{number}: this is not JSON.") from error
        if not isinstance(value, dict):
            raise ConfigError(f"{path}:{number}: a line of a recording is an object.")
        yield cast(dict[str, Any], value)


def _brief(event: Mapping[str, Any]) -> str:
    """What matters of an event: its type, the call it answers, and what it asks for; not words that were redacted."""
    item: Mapping[str, Any] = event.get("item") or {}
    response: Mapping[str, Any] = event.get("response") or {}
    parts = (
        event.get("type"),
        item.get("type"),
        item.get("call_id"),
        response.get("tool_choice"),
        event.get("item_id"),
    )
    return " ".join(str(part) for part in parts if part is not None)

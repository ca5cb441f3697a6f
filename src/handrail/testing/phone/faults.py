"""What goes wrong with events on their way to the client, as the script asks for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from random import Random
from typing import Any, cast

from .clock import Clock
from .script import Fault

_OF_PROVIDER = ("failed_reply", "late_transcript", "failed_transcript")
"""Faults of what the provider does; the others happen to events on their way."""


@dataclass(frozen=True, slots=True)
class FaultEffect:
    """How one event goes out: what is sent in its place, how late, and how the sockets are closed after it."""

    payloads: tuple[Mapping[str, Any] | str, ...]
    delay: float = 0.0
    close: int | None = None
    overtaken: bool = False
    """The next event goes out first."""


class FaultPlan:
    """The faults of a script, and how often each event type has been seen."""

    def __init__(self, faults: Sequence[Fault], seed: int, clock: Clock) -> None:
        self._faults = faults
        self._clock = clock
        self._seen = [0] * len(faults)
        self._random = Random(seed)

    def fails_reply(self) -> bool:
        """Whether the response that begins now fails."""
        return bool(self._take("failed_reply"))

    def delay_transcript(self) -> float | None:
        """How much later the transcript that is due comes; None if it fails."""
        if self._take("failed_transcript"):
            return None
        return sum(fault.seconds for fault in self._take("late_transcript"))

    def _take(self, kind: str) -> list[Fault]:
        """The faults of a kind that happen now."""
        return [
            fault for index, fault in enumerate(self._faults) if fault.fault == kind and self._happens(index, fault)
        ]

    def _happens(self, index: int, fault: Fault) -> bool:
        if self._clock.now < fault.since:
            return False
        self._seen[index] += 1
        if fault.nth not in (None, self._seen[index]):
            return False
        return fault.probability >= 1 or self._random.random() < fault.probability

    def apply(self, event: Mapping[str, Any]) -> FaultEffect | None:
        """Decide what happens to an event; None: nothing."""
        if not self._faults:
            return None
        payloads: list[Mapping[str, Any] | str] = [event]
        delay, close, overtaken = 0.0, None, False
        kind = str(event.get("type"))
        for index, fault in enumerate(self._faults):
            if fault.fault in _OF_PROVIDER or not fnmatchcase(kind, fault.event) or not self._happens(index, fault):
                continue
            match fault.fault:
                case "drop":
                    payloads = []
                case "duplicate":
                    payloads = [*payloads, event]
                case "garbage":
                    payloads = ['{"type": "response.created", "resp', *payloads]
                case "unknown":
                    payloads = [{"type": "simulator.unknown_event", "event_id": "event_unknown", "x": [1]}, *payloads]
                case "delay" | "slow":
                    delay += fault.seconds
                case "close":
                    close = fault.code
                case "reorder":
                    overtaken = True
                case "no_playback":
                    payloads = [] if kind.startswith("output_audio_buffer.") else payloads
                case _:
                    payloads = [_drop_metadata(payload) for payload in payloads]
        return FaultEffect(tuple(payloads), delay, close, overtaken)


def _drop_metadata(payload: Mapping[str, Any] | str) -> Mapping[str, Any] | str:
    """The event of a server that does not say which request a response answers."""
    response = None if isinstance(payload, str) else payload.get("response")
    if isinstance(payload, str) or not isinstance(response, Mapping):
        return payload
    return {**payload, "response": {**cast(Mapping[str, Any], response), "metadata": None}}

"""What goes wrong with events on their way to the client, as the script asks for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from random import Random
from typing import Any

from .script import Fault


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

    def __init__(self, faults: Sequence[Fault], seed: int) -> None:
        self._faults = faults
        self._seen = [0] * len(faults)
        self._random = Random(seed)

    def apply(self, event: Mapping[str, Any]) -> FaultEffect | None:
        """Decide what happens to an event; None: nothing."""
        if not self._faults:
            return None
        payloads: list[Mapping[str, Any] | str] = [event]
        delay, close, overtaken = 0.0, None, False
        for index, fault in enumerate(self._faults):
            if not fnmatchcase(str(event.get("type")), fault.event):
                continue
            self._seen[index] += 1
            if fault.nth not in (None, self._seen[index]):
                continue
            if fault.probability < 1 and self._random.random() >= fault.probability:
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
        return FaultEffect(tuple(payloads), delay, close, overtaken)

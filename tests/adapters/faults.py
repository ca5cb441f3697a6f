"""The faults of `benchmarks/faults`, as a test of one host with its adapter."""

from pathlib import Path

from benchmarks.faults.cells import SCRIPTS, play
from benchmarks.faults.outcome import Outcome, judge

FAULTS = list(SCRIPTS)
FINE = Outcome(letters="✓", double=0, lost=0, falsely_reported=0)
HELD = Outcome(letters="H", double=0, lost=0, falsely_reported=0)
"""In doubt until an operator resolved it; after that the model was told the truth."""
IN_DOUBT = ("F4", "F5", "F6", "F7", "F10", "F13")
"""The faults after which nobody can know by itself whether the payment happened."""


async def play_fault(host: str, fault: str, directory: Path, *, guarded: bool = True) -> Outcome:
    """Play one fault, and judge what happened."""
    return judge(await play(host, fault, directory, guarded=guarded))


def expected(fault: str) -> Outcome:
    """What has to come out of a fault with an adapter."""
    return HELD if fault in IN_DOUBT else FINE

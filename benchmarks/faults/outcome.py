"""What a cell of the matrix says: the effects in the world, against what people agreed to and the model was told."""

from dataclasses import dataclass

from benchmarks.faults.world import DONE, World

LETTERS = {
    "✓": "fine",
    "H": "the call was held as in doubt until an operator recorded what had happened; then the model was told that",
    "A": "the person was asked again, without a hint that the payment had been made; their yes caused a second one",
    "D": "done twice, and nobody was asked the second time",
    "F": "it happened and the model was told that it failed, or the other way round",
    "L": "approved, did not happen, and nobody was told",
    "X": "something ran that nobody had approved, or with arguments that nobody had meant",
    "–": "not run",
}

FAILURES = ("error", "fail", "timed out", "timeout", "broke", "did not take effect")
REFUSALS = ("permission_denied", "denied", "not approved", "rejected")
"""A person said no: true, whatever happened before."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One cell."""

    letters: str
    double: int
    """Payments beyond the one that was wanted."""
    lost: int
    """1 if a person agreed, nothing happened, and neither the model nor the application was told so."""
    falsely_reported: int
    """Results that told the model something that is not so."""


def judge(world: World) -> Outcome:
    """Read the journal of a cell."""
    effects, asked = world.entries("effect"), world.entries("asked")
    told = [entry["text"].lower() for entry in world.entries("told")]
    approved = [call for call in asked if call["yes"]]
    agreed = [item["arguments"] for item in approved if not world.plan.is_cut]
    unasked = [effect for effect in effects if {key: effect[key] for key in ("invoice_id", "amount")} not in agreed]
    false = sum(_is_failure(text) for text in told) if effects else sum("paid" in text for text in told)
    double = max(0, len(effects) - 1)
    is_known = bool(world.entries("raised")) or any(_is_failure(text) or _is_refusal(text) for text in told)
    lost = int(bool(approved) and not effects and not is_known)
    found = {
        "X": bool(unasked),
        "D": not unasked and len(effects) > len(approved),
        "F": bool(false),
        "L": bool(lost),
        "A": not unasked and 1 < len(effects) <= len(approved),
        "H": bool(world.entries("paused")) or any(_is_doubt(text) for text in told),
    }
    letters = ",".join(letter for letter, is_so in found.items() if is_so) or "✓"
    return Outcome(letters=letters, double=double, lost=lost, falsely_reported=false)


def _is_doubt(text: str) -> bool:
    return "outcome_unknown" in text or "in_progress" in text


def _is_failure(text: str) -> bool:
    """Whether a text says that nothing was done, or that something went wrong, as the last word."""
    if DONE in text or _is_doubt(text) or "took effect" in text.replace("did not take effect", ""):
        return False
    return not _is_refusal(text) and any(word in text for word in FAILURES)


def _is_refusal(text: str) -> bool:
    return any(word in text for word in REFUSALS)

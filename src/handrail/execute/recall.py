"""The ledger's state table: what to do with a call, given what is known. Pure, and read from top to bottom."""

from typing import Final, Literal

from msgspec import Struct

from handrail.execute.ledger import Entry


class Verdict(Struct, frozen=True, kw_only=True, gc=False):
    """What the table says."""

    do: Literal["run", "replay", "busy", "clash", "unknown", "ask_again"]
    entry: Entry | None = None
    """The entry that decided; for `run`, the newest one of the key, after which this call is numbered."""
    number: int = 0
    repeat: int = 0


_NOTHING_KNOWN: Final = Verdict(do="run")


def verdict(
    by_id: Entry | None,
    by_key: Entry | None,
    *,
    identity: str,
    session_id: str,
    turn: int,
    now: float,
    window: float,
    idempotent: bool = False,
) -> Verdict:
    """Read the table of the design.

    `run`: nothing is in the way. `replay`: give the recorded answer. `busy`: it is running. `clash`: this id was
    another call. `unknown`: it may have happened; never run it, ask `verify`. `ask_again`: it was done; somebody must
    want it twice.
    """
    if by_id is not None:
        if by_id.identity != identity:
            return Verdict(do="clash", entry=by_id)
        match by_id.state_at(now):
            case "committed" | "failed":
                return Verdict(do="replay", entry=by_id)
            case "running":
                return Verdict(do="busy", entry=by_id)
            case "unknown":
                return Verdict(do="unknown", entry=by_id)
    if by_key is None:
        return _NOTHING_KNOWN
    after = by_key.number + 1
    match by_key.state_at(now):
        case "running":
            return Verdict(do="busy", entry=by_key)
        case "unknown":
            if idempotent:
                return Verdict(do="run", entry=by_key, number=after, repeat=by_key.repeat)
            return Verdict(do="unknown", entry=by_key)
        case "failed":  # Nothing happened: the same effect, tried again.
            if by_key.repeat and now - (by_key.settled_at or by_key.claimed_at) < window:
                # It was wanted once more, and that was used up: a repetition that failed is not a first time.
                return Verdict(do="ask_again", entry=by_key, number=after, repeat=by_key.repeat)
            return Verdict(do="run", entry=by_key, number=after, repeat=by_key.repeat)
        case "committed":
            if by_key.session_id == session_id and by_key.turn == turn:
                return Verdict(do="replay", entry=by_key)
            if now - (by_key.settled_at or by_key.claimed_at) < window:
                return Verdict(do="ask_again", entry=by_key, number=after, repeat=by_key.repeat + 1)
            return Verdict(do="run", entry=by_key, number=after, repeat=by_key.repeat + 1)

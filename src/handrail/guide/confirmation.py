"""Confirmation in words: what the judge's verdicts say about the calls that wait for the customer's yes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from handrail.chat.conversation import PendingCall
from handrail.guide.values import ToolVerdict


class PendingDecision(Struct, frozen=True, kw_only=True):
    """What to do with a pending call."""

    pending: PendingCall
    action: Literal["run", "keep", "deny", "withdraw"]
    """`run`: the customer agreed. `deny`: they said no. `withdraw`: they want something else, or changed the subject.
    """
    reason: str
    verdict: ToolVerdict | None = None


def decide_pending(
    pending: Sequence[PendingCall],
    verdicts: Sequence[ToolVerdict],
    keys: Mapping[int, str],
    pending_keys: Mapping[str, str],
    *,
    can_confirm: Mapping[str, bool],
) -> tuple[list[PendingDecision], set[int]]:
    """Decide about every pending call; the second value has the places of the verdicts that were only about one.

    `keys` has the key of the arguments of each verdict (by its place) that is valid, `pending_keys` that of each
    pending call (by its id). `can_confirm` says whether words may confirm a call: it was read back, the customer has
    spoken since, it is the customer who is asked, and no guideline of it was found not to apply.
    """
    counts = Counter(one.call.name for one in pending)
    decisions: list[PendingDecision] = []
    used: set[int] = set()
    for one in pending:
        about = [item for item in enumerate(verdicts) if item[1].tool == one.call.name]
        key = pending_keys.get(one.call.id)
        equal = [item for item in about if key is not None and keys.get(item[0]) == key]
        decision, place = _decide(
            one, about, equal, is_only_one=counts[one.call.name] == 1, can_confirm=can_confirm.get(one.call.id, False)
        )
        decisions.append(decision)
        if place is not None:
            used.add(place)
    return decisions, used


_Item = tuple[int, ToolVerdict]


def _decide(
    one: PendingCall, about: Sequence[_Item], equal: Sequence[_Item], *, is_only_one: bool, can_confirm: bool
) -> tuple[PendingDecision, int | None]:
    def decision(action: Literal["run", "keep", "deny", "withdraw"], reason: str, verdict: ToolVerdict | None = None):
        return PendingDecision(pending=one, action=action, reason=reason, verdict=verdict)

    # A no counts wherever it can mean this call: nothing is lost by not running it.
    for place, verdict in [*equal, *about]:
        if verdict.confirmation == "no" and ((place, verdict) in equal or is_only_one or not verdict.arguments):
            return decision("deny", "the customer said no", verdict), place
    for place, verdict in equal:
        if verdict.state != "needs_to_run":
            continue
        if verdict.confirmation == "yes" and can_confirm:
            return decision("run", "the customer agreed in words", verdict), place
        reason = "a yes does not count for it yet" if verdict.confirmation else "nobody has agreed yet"
        return decision("keep", reason, verdict), place
    if one.approval.by != "customer":
        return decision("keep", f"it waits for the {one.approval.by}"), None
    for place, verdict in about:
        if verdict.confirmation == "yes" and not verdict.arguments:
            return decision("keep", "the yes did not repeat its arguments", verdict), place
    changed = any(verdict.state == "needs_to_run" for _, verdict in about)
    return decision("withdraw", "the customer wants something else" if changed else "it was not confirmed"), None

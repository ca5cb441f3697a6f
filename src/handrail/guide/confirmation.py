"""Decides about pending calls: which of them the customer confirmed, rejected or dropped in a message."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from handrail.authorize.approvals import Approvals, get_subject
from handrail.chat.conversation import PendingCall
from handrail.guide.values import ToolVerdict


class PendingDecision(Struct, frozen=True, kw_only=True):
    """What to do with a pending call, and why."""

    pending: PendingCall
    action: Literal["run", "keep", "deny", "withdraw"]
    """`run`: the customer confirmed it. `deny`: they rejected it. `withdraw`: they want something else."""
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
    """Decide about every pending call; also return the indexes of the verdicts that were only about a pending call.

    `keys` has the key of the arguments of each valid verdict, by its index; `pending_keys` that of each pending call,
    by its id. `can_confirm` says whether a message of the customer can confirm a call.
    """
    counts = Counter(pending_call.call.name for pending_call in pending)
    decisions: list[PendingDecision] = []
    used: set[int] = set()
    for pending_call in pending:
        about = [item for item in enumerate(verdicts) if item[1].tool == pending_call.call.name]
        key = pending_keys.get(pending_call.call.id)
        equal = [item for item in about if key is not None and keys.get(item[0]) == key]
        decision, index = _decide(
            pending_call,
            about,
            equal,
            is_only_one=counts[pending_call.call.name] == 1,
            can_confirm=can_confirm.get(pending_call.call.id, False),
        )
        decisions.append(decision)
        if index is not None:
            used.add(index)
    return decisions, used


_Item = tuple[int, ToolVerdict]


def _decide(
    one: PendingCall, about: Sequence[_Item], equal: Sequence[_Item], *, is_only_one: bool, can_confirm: bool
) -> tuple[PendingDecision, int | None]:
    def build(action: Literal["run", "keep", "deny", "withdraw"], reason: str, verdict: ToolVerdict | None = None):
        return PendingDecision(pending=one, action=action, reason=reason, verdict=verdict)

    # A "no" counts for every call that it can be about: not running a call loses nothing.
    for index, verdict in [*equal, *about]:
        if verdict.confirmation == "no" and ((index, verdict) in equal or is_only_one or not verdict.arguments):
            return build("deny", "the customer rejected it", verdict), index
    for index, verdict in equal:
        if verdict.state != "needs_to_run":
            continue
        if verdict.confirmation == "yes" and can_confirm:
            return build("run", "the customer agreed in words", verdict), index
        reason = "a yes does not count for it yet" if verdict.confirmation else "it is not confirmed yet"
        return build("keep", reason, verdict), index
    if one.approval.by != "customer":
        return build("keep", f"it waits for the {one.approval.by}"), None
    for index, verdict in about:
        if verdict.confirmation == "yes" and not verdict.arguments:
            return build("keep", "the yes did not repeat its arguments", verdict), index
    changed = any(verdict.state == "needs_to_run" for _, verdict in about)
    return build("withdraw", "the customer wants something else" if changed else "it was not confirmed"), None


async def find_approval_state(approvals: Approvals, pending: PendingCall) -> str | None:
    """Find the state of a pending call's approval; None if it has expired."""
    found = await approvals.find(**get_subject(pending.approval), now=time.time())
    return found.state if found is not None else None

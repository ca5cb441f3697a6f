"""Decides about pending calls: which of them the customer confirmed in their own words, rejected or dropped."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from handrail.authorize.approvals import Approvals, get_subject
from handrail.chat.conversation import PendingCall
from handrail.core.consent import Answer, read_answer
from handrail.core.value_mentions import split_words
from handrail.guide.parameters import GuidedTool
from handrail.guide.read_back import format_read_back
from handrail.guide.values import ToolVerdict
from handrail.providers.messages import Message, UserMessage


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
    objections: Mapping[str, str],
    removed: Mapping[str, str],
) -> tuple[list[PendingDecision], set[int]]:
    """Decide about every pending call; also return the indexes of the verdicts that were only about a pending call.

    `keys` has the key of the arguments of each valid verdict, by its index; `pending_keys` that of each pending call,
    by its id. `objections` says why a yes does not count for a call, and `removed` why no guideline of a call applies
    any more, both by the call's id.
    """
    counts = Counter(waiting.call.name for waiting in pending)
    decisions: list[PendingDecision] = []
    used: set[int] = set()
    for waiting in pending:
        call = waiting.call
        about = [item for item in enumerate(verdicts) if item[1].tool == call.name]
        key = pending_keys.get(call.id)
        equal = [item for item in about if key is not None and keys.get(item[0]) == key]
        decision, index = _decide(
            waiting,
            about,
            equal,
            is_only_one=counts[call.name] == 1,
            objection=objections.get(call.id),
            removed=removed.get(call.id),
        )
        decisions.append(decision)
        if index is not None:
            used.add(index)
    return decisions, used


_Item = tuple[int, ToolVerdict]


def _decide(
    waiting: PendingCall,
    about: Sequence[_Item],
    equal: Sequence[_Item],
    *,
    is_only_one: bool,
    objection: str | None,
    removed: str | None,
) -> tuple[PendingDecision, int | None]:
    def build(action: Literal["run", "keep", "deny", "withdraw"], reason: str, verdict: ToolVerdict | None = None):
        return PendingDecision(pending=waiting, action=action, reason=reason, verdict=verdict)

    # A "no" counts for every call that it can be about: not running a call loses nothing.
    for index, verdict in [*equal, *about]:
        if verdict.confirmation == "no" and ((index, verdict) in equal or is_only_one or not verdict.arguments):
            return build("deny", "the customer rejected it", verdict), index
    if removed is not None:
        return build("withdraw", removed), next((index for index, _ in equal), None)
    for index, verdict in equal:
        if verdict.state != "needs_to_run":
            continue
        if verdict.confirmation != "yes":
            return build("keep", "it is not confirmed yet", verdict), index
        if objection is None:
            return build("run", "the customer agreed in words", verdict), index
        return build("keep", objection, verdict), index
    changed = [verdict for _, verdict in about if verdict.state == "needs_to_run"]
    if waiting.approval.by != "customer":
        if any(_is_change(waiting, verdict) for verdict in changed):
            return build("withdraw", "the customer wants it with other values"), None
        return build("keep", f"it waits for the {waiting.approval.by}"), None
    for index, verdict in about:
        if verdict.confirmation == "yes" and not verdict.arguments:
            return build("keep", "the yes did not repeat its arguments", verdict), index
    return build("withdraw", "the customer wants something else" if changed else "it was not confirmed"), None


def _is_change(waiting: PendingCall, verdict: ToolVerdict) -> bool:
    """Whether a verdict changes a pending call, rather than being about another one: they have a value in common."""
    known = waiting.approval.arguments
    return len(known) <= 1 or any(name in known and known[name] == value for name, value in verdict.arguments.items())


def find_objection(
    waiting: PendingCall,
    *,
    pending: Sequence[PendingCall],
    tools: Mapping[str, GuidedTool],
    messages: Sequence[Message],
    turn: int,
    locale: str,
) -> str | None:
    """Find why a yes of the judge does not confirm a pending call; None if the customer's own words confirm it.

    The call must have been read back in an earlier turn. Everything that the customer wrote since then counts: the last
    message must be a yes to this call, and none may be a refusal.
    """
    if waiting.approval.by != "customer":
        return f"it waits for the {waiting.approval.by}"
    if waiting.read_back_at == 0 or waiting.approval.turn >= turn:
        return "it was not read back in an earlier turn"
    texts = [message.own_words for message in messages[waiting.read_back_at :] if isinstance(message, UserMessage)]
    if not texts:
        return "the customer has not answered since it was read back"
    lines = {
        shown.call.id: format_read_back(shown, tools.get(shown.call.name), locale)
        for shown in pending
        if shown.approval.by == "customer"
    }
    answers = [_read_answer(text, waiting, lines) for text in texts]
    if "no" in answers:
        return "the customer refused it"
    return None if answers[-1] == "yes" else "the customer's words are not a clear yes to it"


def _read_answer(text: str, waiting: PendingCall, lines: Mapping[str, str]) -> Answer:
    """Read the answer to one of the calls that were read back together: a yes names it, or all of them, or none."""
    line, action = lines[waiting.call.id], waiting.call.name
    repeats = waiting.approval.repeat > 0
    answer = read_answer(text, shown=line, action=action, repeats=repeats)
    if answer == "unclear" and len(lines) > 1:
        others = {word for call_id, other in lines.items() if call_id != waiting.call.id for word in split_words(other)}
        own = set(split_words(line)) - others
        if own & set(split_words(text)):  # It names this call, and another one as well.
            return read_answer(text, shown="\n".join(lines.values()), action=action, repeats=repeats)
    return answer


async def find_approval_state(approvals: Approvals, pending: PendingCall) -> str | None:
    """Find the state of a pending call's approval; None if it has expired."""
    found = await approvals.find(**get_subject(pending.approval), now=time.time())
    return found.state if found is not None else None

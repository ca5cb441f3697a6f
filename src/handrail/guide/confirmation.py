"""The read-back of pending calls, with every value that will run; and which of them the customer confirmed."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import Struct

from handrail.authorize.approvals import Approvals, get_subject
from handrail.chat.conversation import PendingCall
from handrail.core.consent import Answer, read_answer
from handrail.core.lazy_loading import LazyPattern
from handrail.core.locale_texts import load_locale
from handrail.core.redact import HIDDEN
from handrail.core.text import UNSEEN, compact_json, escape_invisible
from handrail.core.value_mentions import split_words
from handrail.core.values import Approval
from handrail.formats.call_parsing import parse_object
from handrail.guide.parameters import GuidedTool, ParameterOptions
from handrail.guide.values import ToolVerdict
from handrail.providers.messages import Message, UserMessage

_SECRET_TYPE: Final = "**********"
"""How Pydantic writes a value of a secret type."""
_MIN_MASKED: Final = 8
"""The fewest characters of a value whose last four are shown."""
_HIDDEN: Final = LazyPattern(f"[{UNSEEN}]")
"""What nobody reads as it is. The joiners of scripts and emoji stay."""
_SEPARATORS: Final = LazyPattern(r"[;:()\"]|[^\S ]|[\x00-\x1f\x7f-\x9f\u200c\u200d]")


def list_shown_arguments(pending: PendingCall, tool: GuidedTool | None) -> dict[str, Any]:
    """List the arguments of a pending call that the customer sees, by their display names: all but hidden ones.

    They are whole, because the customer agrees to them, but for secret types and those with `display="masked"`.
    """
    sent = parse_object(pending.call.arguments_json)
    labels = _name_arguments(pending.approval, tool)
    shown: dict[str, Any] = {}
    for name, label in labels.items():
        value, options = pending.approval.arguments[name], _get_options(name, tool)
        is_secret = value == _SECRET_TYPE  # Not a text around it: all of that would be masked.
        if is_secret or HIDDEN in compact_json(
            value
        ):  # A secret type and a store write a mark: the value that was sent will run.
            value = sent.get(name, value)
        value = pending.said.get(name, value)
        is_masked = is_secret or options.display == "masked"
        shown[label] = mask(value) if is_masked else value
    return shown


def _name_arguments(approval: Approval, tool: GuidedTool | None) -> dict[str, str]:
    """What each argument that the customer sees is called; no two are called the same."""
    labels: dict[str, str] = {}
    for name in approval.arguments:
        if _get_options(name, tool).hidden:
            continue
        label = _get_display_name(name, tool)
        while label in labels.values():
            label = f"{label} ({name})"
        labels[name] = label
    return labels


def _get_options(name: str, tool: GuidedTool | None) -> ParameterOptions:
    return tool.get_options(name) if tool is not None else ParameterOptions()


def _get_display_name(name: str, tool: GuidedTool | None) -> str:
    return _get_options(name, tool).display_name or name.replace("_", " ")


def mask(value: Any) -> str:
    """Mask a value but for its last four characters, if it has enough of them."""
    text = format_value(value)
    return f"•••• {text[-4:]}" if len(text) >= _MIN_MASKED else "••••"


def format_read_back(pending: PendingCall, tool: GuidedTool | None, locale: str = "en") -> str:
    """Format a pending call in one line, with every value that will run."""
    texts = load_locale(locale)
    labels = _name_arguments(pending.approval, tool)
    # A rule wants them from the customer's own words, and they are not.
    unsaid = {labels[name] for name in pending.approval.unsaid if name in labels}
    values = "; ".join(
        texts["confirm.argument"].format(name=name, value=format_value(value, texts))
        + (f" [{texts['confirm.unsaid']}]" if name in unsaid else "")
        for name, value in list_shown_arguments(pending, tool).items()
    )
    return f"{pending.call.name.replace('_', ' ')}" + (f" ({values})" if values else "")


def format_pending(pending: PendingCall, tools: Mapping[str, GuidedTool], locale: str) -> str:
    """The same for one of an agent's tools; only its name if the tool is gone: nobody knows what of it is hidden."""
    tool = tools.get(pending.call.name)
    return pending.call.name.replace("_", " ") if tool is None else format_read_back(pending, tool, locale)


def add_read_back(
    text: str,
    pending: Sequence[PendingCall],
    tools: Mapping[str, GuidedTool],
    locale: str,
    *,
    withdrawn: Sequence[str] = (),
) -> str:
    """Return the text, followed by the calls that were withdrawn, and by a question that reads back those that await
    the customer's confirmation; those that would be done once more are named before it."""
    texts = load_locale(locale)
    dropped = texts["confirm.withdrawn"].format(calls="; ".join(withdrawn)) if withdrawn else ""
    asked = [waiting for waiting in pending if waiting.approval.by == "customer"]
    lines = [format_pending(waiting, tools, locale) for waiting in asked]
    if not lines:
        question = ""
    elif len(lines) == 1:
        question = texts["confirm.one"].format(calls=lines[0])
    else:
        listed = "\n".join(f"- {line}" for line in lines)
        question = (
            f"{texts['confirm.several']}\n{listed}\n{texts['confirm.both' if len(lines) == 2 else 'confirm.all']}"
        )
    repeated = _list_repeated(asked, lines)
    if repeated:
        question = f"{texts['confirm.repeat'].format(calls='; '.join(repeated))}\n{question}"
    return "\n\n".join(filter(None, [text.strip(), dropped, question])) if dropped or question else text


def _list_repeated(asked: Sequence[PendingCall], lines: Sequence[str]) -> list[str]:
    """List the calls whose effect was done before: by their names, or as they are read back if others have the name."""
    names = Counter(waiting.call.name for waiting in asked)
    return [
        line if names[waiting.call.name] > 1 else waiting.call.name.replace("_", " ")
        for waiting, line in zip(asked, lines, strict=True)
        if waiting.approval.repeat
    ]


def format_value(value: Any, texts: Mapping[str, str] | None = None) -> str:
    """Format a value for the customer; a text that could be taken for more than a value is quoted."""
    texts = texts or load_locale("en")
    if value is None:
        return texts["value.none"]
    if isinstance(value, bool):
        return texts["value.true" if value else "value.false"]
    text = compact_json(value)
    if _HIDDEN.compiled.search(text) is not None:
        return escape_invisible(text)
    if isinstance(value, str) and value.strip() == value and value and not _SEPARATORS.compiled.search(value):
        return value
    return text


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
        shown.call.id: format_pending(shown, tools, locale) for shown in pending if shown.approval.by == "customer"
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

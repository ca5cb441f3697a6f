"""The read-back of calls that a customer has to agree to: every value that will run, in the customer's language."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from handrail.chat.conversation import PendingCall
from handrail.core.lazy_loading import LazyPattern
from handrail.core.locale_texts import load_locale
from handrail.core.redact import HIDDEN
from handrail.core.text import UNSEEN, compact_json, escape_invisible
from handrail.core.values import Approval
from handrail.formats.call_parsing import parse_object
from handrail.guide.parameters import GuidedTool, ParameterOptions

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
        text = compact_json(value)
        is_secret = _SECRET_TYPE in text
        if is_secret or HIDDEN in text:  # A secret type and a store write a mark: the value that was sent will run.
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
    lines = [format_read_back(waiting, tools.get(waiting.call.name), locale) for waiting in asked]
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

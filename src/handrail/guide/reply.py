"""The texts that code writes: reading a call back, and a plain reply where a draft cannot be used."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from handrail.chat.conversation import PendingCall
from handrail.core.redact import HIDDEN, Redactor
from handrail.core.text import compact_json
from handrail.core.values import ToolResult
from handrail.errors import shorten
from handrail.guide.checking import normalised
from handrail.guide.parameters import GuidedTool
from handrail.guide.values import InvalidData, MissingData, ToolInsights

_MAX_OUTPUT = 500


@cache
def _redactor() -> Redactor:
    return Redactor()


def visible_arguments(pending: PendingCall, tool: GuidedTool | None) -> dict[str, Any]:
    """The arguments of a pending call that the customer is shown, by the names that they know."""
    return {
        (tool.option(name).display_name if tool else "") or name.replace("_", " "): value
        for name, value in _redactor().value(dict(pending.approval.arguments)).items()
        if tool is None or not tool.option(name).hidden
    }


def ensure_read_back(text: str, pending: Sequence[PendingCall], tools: Mapping[str, GuidedTool]) -> str:
    """The text, with every call that waits for the customer read back: by the judge's words, or else in plain ones."""
    missing = [
        one
        for one in pending
        if one.approval.by == "customer"
        and not _reads_back(text, visible_arguments(one, tools.get(one.call.name)).values())
    ]
    if not missing:
        return text
    return "\n\n".join(filter(None, [text.strip(), confirmation_question(missing, tools)]))


def _reads_back(text: str, values: Iterable[Any]) -> bool:
    words = normalised(re.sub(r"(?<=\d)[,’' ](?=\d{3}\b)", "", text))
    if "?" not in text:
        return False
    for value in values:
        match value:
            case str() if value == HIDDEN:
                pass
            case str():
                if normalised(value) not in words:
                    return False
            case bool() | None:
                return False
            case int() | float():
                if normalised(f"{value:g}" if isinstance(value, float) else str(value)) not in words:
                    return False
            case _:
                return False
    return True


def confirmation_question(pending: Sequence[PendingCall], tools: Mapping[str, GuidedTool]) -> str:
    """Exactly what would be done, as a question."""
    lines = [read_back(one, tools.get(one.call.name)) for one in pending]
    if len(lines) == 1:
        return f"Please confirm: {lines[0]}. Shall I go ahead?"
    return "Please confirm:\n" + "\n".join(f"- {line}" for line in lines) + "\nShall I go ahead?"


def read_back(pending: PendingCall, tool: GuidedTool | None) -> str:
    """A pending call, in one line."""
    values = "; ".join(f"{name}: {_text(value)}" for name, value in visible_arguments(pending, tool).items())
    return f"{pending.call.name.replace('_', ' ')}" + (f" ({values})" if values else "")


def plain_reply(
    *,
    results: Sequence[ToolResult],
    insights: ToolInsights,
    pending: Sequence[PendingCall],
    tools: Mapping[str, GuidedTool],
) -> str:
    """What can be said without a judge: what was found out, what was done, what is missing, what waits for a yes."""
    parts = [_outcome(one, tools.get(one.tool_name)) for one in results]
    if insights.missing_data:
        parts.append(f"To go on I still need: {', '.join(_named(insights.missing_data))}.")
    for one in insights.invalid_data:
        choices = f" Possible values: {', '.join(_text(choice) for choice in one.choices)}." if one.choices else ""
        value = f" ({_text(one.value)})" if one.value is not None else ""
        parts.append(f"The {one.display_name or one.parameter}{value} cannot be used.{choices}")
    mine = [one for one in pending if one.approval.by == "customer"]
    if any(one.approval.by != "customer" for one in pending):
        parts.append("A colleague has to agree first; nothing was done yet.")
    if mine:
        parts.append(confirmation_question(mine, tools))
    return "\n".join(parts) or "Nothing was done. How can I help you?"


def _outcome(result: ToolResult, tool: GuidedTool | None) -> str:
    name = result.tool_name.replace("_", " ")
    if result.error is not None:
        return f"{name}: this did not work. {shorten(result.error.message, _MAX_OUTPUT)}"
    return f"{name}: {shorten(result.for_model(), _MAX_OUTPUT)}"


def _named(missing: Iterable[MissingData | InvalidData]) -> list[str]:
    return list(dict.fromkeys(one.display_name or one.parameter for one in missing))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else compact_json(value)

"""Texts that are not written by a model: reading a call back, and the reply if no draft can be used."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from handrail.chat.conversation import PendingCall
from handrail.core.redact import HIDDEN, Redactor
from handrail.core.text import compact_json
from handrail.core.values import ToolResult
from handrail.errors import shorten
from handrail.guide.checking import normalize_text
from handrail.guide.parameters import GuidedTool
from handrail.guide.values import InvalidData, MissingData, ToolInsights

_MAX_OUTPUT = 500


@cache
def _redactor() -> Redactor:
    return Redactor()


def select_visible_arguments(pending: PendingCall, tool: GuidedTool | None) -> dict[str, Any]:
    """Select the arguments of a pending call that the customer may see, by their display names."""
    return {
        (tool.get_options(name).display_name if tool else "") or name.replace("_", " "): value
        for name, value in _redactor().value(dict(pending.approval.arguments)).items()
        if tool is None or not tool.get_options(name).hidden
    }


def ensure_read_back(text: str, pending: Sequence[PendingCall], tools: Mapping[str, GuidedTool]) -> str:
    """Return the text, with a confirmation question for the pending calls that it does not read back."""
    missing = [
        one
        for one in pending
        if one.approval.by == "customer"
        and not _is_read_back(text, select_visible_arguments(one, tools.get(one.call.name)).values())
    ]
    if not missing:
        return text
    return "\n\n".join(filter(None, [text.strip(), build_confirmation_question(missing, tools)]))


def _is_read_back(text: str, values: Iterable[Any]) -> bool:
    words = normalize_text(re.sub(r"(?<=\d)[,’' ](?=\d{3}\b)", "", text))
    if "?" not in text:
        return False
    for value in values:
        match value:
            case str() if value == HIDDEN:
                pass
            case str():
                if normalize_text(value) not in words:
                    return False
            case bool() | None:
                return False
            case int() | float():
                if normalize_text(f"{value:g}" if isinstance(value, float) else str(value)) not in words:
                    return False
            case _:
                return False
    return True


def build_confirmation_question(pending: Sequence[PendingCall], tools: Mapping[str, GuidedTool]) -> str:
    """Build the question that asks the customer to confirm exactly these calls."""
    lines = [format_read_back(one, tools.get(one.call.name)) for one in pending]
    if len(lines) == 1:
        return f"Please confirm: {lines[0]}. Shall I go ahead?"
    return "Please confirm:\n" + "\n".join(f"- {line}" for line in lines) + "\nShall I go ahead?"


def format_read_back(pending: PendingCall, tool: GuidedTool | None) -> str:
    """Format a pending call in one line."""
    values = "; ".join(
        f"{name}: {_format_value(value)}" for name, value in select_visible_arguments(pending, tool).items()
    )
    return f"{pending.call.name.replace('_', ' ')}" + (f" ({values})" if values else "")


def build_plain_reply(
    *,
    results: Sequence[ToolResult],
    insights: ToolInsights,
    pending: Sequence[PendingCall],
    tools: Mapping[str, GuidedTool],
) -> str:
    """Build a reply without a judge: results, missing and invalid values, and pending calls."""
    parts = [_describe_outcome(one, tools.get(one.tool_name)) for one in results]
    if insights.missing_data:
        parts.append(f"To go on I still need: {', '.join(_list_names(insights.missing_data))}.")
    for one in insights.invalid_data:
        choices = (
            f" Possible values: {', '.join(_format_value(choice) for choice in one.choices)}." if one.choices else ""
        )
        value = f" ({_format_value(one.value)})" if one.value is not None else ""
        parts.append(f"The {one.display_name or one.parameter}{value} cannot be used.{choices}")
    mine = [one for one in pending if one.approval.by == "customer"]
    if any(one.approval.by != "customer" for one in pending):
        parts.append("A colleague has to agree first; nothing was done yet.")
    if mine:
        parts.append(build_confirmation_question(mine, tools))
    return "\n".join(parts) or "Nothing was done. How can I help you?"


def _describe_outcome(result: ToolResult, tool: GuidedTool | None) -> str:
    name = result.tool_name.replace("_", " ")
    if result.error is not None:
        return f"{name}: this did not work. {shorten(result.error.message, _MAX_OUTPUT)}"
    return f"{name}: {shorten(result.for_model(), _MAX_OUTPUT)}"


def _list_names(missing: Iterable[MissingData | InvalidData]) -> list[str]:
    return list(dict.fromkeys(one.display_name or one.parameter for one in missing))


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else compact_json(value)

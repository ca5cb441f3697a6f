"""Why a call would run or not: the rules that were looked at, and the one that decided."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from handrail.authorize.policy import Plan
from handrail.core.context import ToolContext
from handrail.core.tool import Tool
from handrail.core.values import Decision, ToolCall
from handrail.errors import ToolError


class Explanation(Struct, frozen=True, kw_only=True):
    """An answer to "why?"; printed, it is for people."""

    decision: Decision | None
    lines: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.lines)


def explained(
    call: ToolCall, tool: Tool[..., Any] | None, plan: Plan | None, context: ToolContext[Any], *, observed: bool
) -> Explanation:
    """Look at a call as the executor would, without running or asking anything."""
    if tool is None or plan is None:
        return Explanation(decision=None, lines=(f"{call.name}: there is no tool of this name.",))
    try:
        arguments: Mapping[str, Any] = tool.dump(tool.parse(call.arguments_json))
    except ToolError as error:
        return Explanation(decision=None, lines=(f"{call.name}: {error.code}.", error.message))
    decision = plan.decide(context, lambda: arguments)
    asked = f" the {decision.by}" if decision.by else ""
    lines = [f"{call.name}: {decision.action}{asked}, by {decision.rule} ({decision.source})."]
    if decision.reason:
        lines.append(f"  because: {decision.reason}")
    if observed:
        lines.append("  observed only: the call would run all the same")
    if tool.permission_check is not None:
        lines.append("  before that, the tool's own permission check is asked")
    for other, holds in plan.looked_at(context, arguments):
        mark = "=>" if other is decision else "  "
        lines.append(f"  {mark} {other.rule} ({other.source}): {'holds' if holds else 'does not hold'}")
    return Explanation(decision=decision, lines=tuple(lines))

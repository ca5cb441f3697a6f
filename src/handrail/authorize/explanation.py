"""Explains why a call would run or not: the rules that were evaluated, and the one that decided."""

from collections.abc import Mapping
from typing import Any, cast

from msgspec import Struct

from handrail.authorize.policy import CompiledPolicy
from handrail.core.context import ToolContext
from handrail.core.display import format_lines
from handrail.core.redact import Redactor
from handrail.core.secret_patterns import MAX_PIECE
from handrail.core.values import Decision, ToolCall
from handrail.errors import ToolError, shorten


class Explanation(Struct, frozen=True, kw_only=True):
    """Why a call would run or not; `str()` is for people."""

    decision: Decision | None
    lines: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def __repr__(self) -> str:
        return f"<Explanation: {shorten(self.lines[0] if self.lines else '', 200)}>"

    def _repr_html_(self) -> str:
        return format_lines(self.lines)


def explain_call(
    call: ToolCall, policy: CompiledPolicy | None, context: ToolContext[Any], *, is_observed: bool, redactor: Redactor
) -> Explanation:
    """Decide about a call as the executor would, without running or asking anything. Values are redacted."""
    if policy is None:
        return Explanation(decision=None, lines=(f"{call.name}: there is no tool of this name.",))
    tool = policy.tool
    try:
        arguments: Mapping[str, Any] = tool.dump(tool.parse(call.arguments_json))
    except ToolError as error:
        return Explanation(decision=None, lines=(f"{call.name}: {error.code}.", error.message))
    decision = policy.decide(context, lambda: arguments)
    by = f" the {decision.by}" if decision.by else ""
    lines = [f"{call.name}: {decision.action}{by}, by {decision.rule} ({decision.source})."]
    if decision.reason:
        lines.append(f"  because: {decision.reason}")
    if is_observed:
        lines.append("  observed only: the call would run all the same")
    if tool.permission_check is not None:
        lines.append("  before that, the tool's own permission check is asked")
    for other, failure in policy.explain_rules(context, arguments, shown=_redact(arguments, redactor)):
        mark = "=>" if other is decision else "  "
        lines.append(f"  {mark} {other.rule} ({other.source}): {f'does not hold: {failure}' if failure else 'holds'}")
    if policy.has_origins:
        lines += [f"  {origin.path}: {origin.describe()}" for origin in policy.find_origins(context, arguments)]
    return Explanation(decision=decision, lines=tuple(lines))


def _redact(arguments: Mapping[str, Any], redactor: Redactor) -> Mapping[str, Any]:
    redacted = redactor.arguments(arguments, max_chars=MAX_PIECE)
    return cast(Mapping[str, Any], redacted) if isinstance(redacted, Mapping) else {}

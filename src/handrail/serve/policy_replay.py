"""Decides recorded calls again, under other rules: what would change, and why."""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from handrail.authorize.policy import CompiledPolicy, Policy
from handrail.core.context import ToolContext
from handrail.core.redact import HIDDEN
from handrail.core.tool import Tool
from handrail.core.values import Decision
from handrail.errors import ToolError

if TYPE_CHECKING:  # `handrail policy check` needs no database.
    from handrail.store import SqlStore
    from handrail.store.audit_rows import AuditRow

NO_VALUES: Final = "its arguments are not stored: the store was opened without audit_values"
_PAGE: Final = 500


class ChangedCall(Struct, frozen=True, kw_only=True):
    """A recorded call that the other rules decide differently."""

    row: "AuditRow"
    before: str
    """What was decided: `allow`, `deny`, `ask the operator`."""
    after: Decision
    lines: tuple[str, ...]
    """Why: each rule about the tool, and what holds of it."""

    @property
    def after_text(self) -> str:
        """What would be decided."""
        return describe_action(self.after.action, self.after.by)


class PolicyReplay(Struct, frozen=True, kw_only=True):
    """What other rules would have decided about the calls that were recorded."""

    decided: int
    changed: tuple[ChangedCall, ...]
    undecided: Mapping[str, int]
    """How many calls could not be decided again, by the reason."""


def describe_action(action: str | None, by: str | None) -> str:
    """A decision in a few words."""
    return f"ask the {by}" if action == "ask" else str(action)


async def replay_policy(
    store: "SqlStore",
    tools: Mapping[str, Tool[..., Any]],
    policy: Policy,
    *,
    tenant_id: str | None = None,
    since: float | None = None,
    max_calls: int = 10_000,
) -> PolicyReplay:
    """Decide the newest recorded calls again. Nothing runs, and nobody is asked.

    A call is decided by its recorded arguments, which a store keeps with `audit_values`; one with a redacted value, or
    whose tool is not there, is counted as undecided. Only rules are compared: what a tool's own check, a hook, or the
    ledger refused stays out.
    """
    undecided: Counter[str] = Counter()
    changed: list[ChangedCall] = []
    seen: set[tuple[str, str | None]] = set()
    compiled: dict[str, CompiledPolicy] = {}
    """For the tools that were called: a thousand rules for a thousand tools take seconds."""
    decided, left, before = 0, max_calls, None
    while left > 0:
        rows = await store.audit.query(
            kind="call_finished", tenant_id=tenant_id, since=since, limit=min(left, _PAGE), before=before
        )
        for row in reversed(rows):
            ref = (row.session_id, row.call_id)
            if ref in seen or not _is_of_policy(row):
                continue
            seen.add(ref)
            tool = tools.get(row.tool or "")
            problem = _find_problem(row, tool)
            if problem or tool is None:
                undecided[problem] += 1
                continue
            arguments: dict[str, Any] = tool.dump(tool.parse(json.dumps(row.arguments)))
            context = ToolContext[Any](session_id=row.session_id, tenant_id=row.tenant_id, customer_id=row.customer_id)
            rules = compiled.get(tool.name)
            if rules is None:
                rules = compiled[tool.name] = policy.compile(tool)
            await asyncio.sleep(0)  # Thousands of calls under a thousand rules take seconds: others have their turn.
            after = rules.decide(context, lambda arguments=arguments: arguments)
            decided += 1
            was = describe_action("ask" if row.action == "deny" and row.by else row.action, row.by)
            if was != describe_action(after.action, after.by):
                lines = tuple(
                    f"{'=>' if rule is after else '  '} {rule.rule} ({rule.source}): "
                    f"{f'does not hold: {failure}' if failure else 'holds'}"
                    for rule, failure in rules.explain_rules(context, arguments, shown=arguments)
                )
                changed.append(ChangedCall(row=row, before=was, after=after, lines=lines))
        left -= len(rows)
        if len(rows) < _PAGE:
            break
        before = rows[0]
    return PolicyReplay(decided=decided, changed=tuple(changed), undecided=dict(undecided))


def _is_of_policy(row: "AuditRow") -> bool:
    """Whether a rule decided, and not the ledger, a program or the tool's own check."""
    return row.action is not None and row.source != "ledger" and row.rule not in ("permission_check", "ask_operator")


def _find_problem(row: "AuditRow", tool: Tool[..., Any] | None) -> str:
    if row.erased_at is not None:
        return "its values were erased"
    if tool is None:
        return f"the tool {row.tool} is not among the tools"
    if row.arguments is None and row.argument_keys:
        return NO_VALUES
    arguments: Any = row.arguments
    if not isinstance(arguments, dict):
        return NO_VALUES if arguments is None else "its arguments are no JSON object, or are too long"
    text = json.dumps(arguments, ensure_ascii=False)
    if HIDDEN in text:
        return "a value is redacted"
    try:
        tool.parse(text)
    except ToolError as error:
        return f"its arguments are not valid now ({error.code})"
    return ""

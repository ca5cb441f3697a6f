"""Deciding about one call: the tool's own check, the policy, and whether somebody has agreed."""

import inspect
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from msgspec import Struct

from handrail.authorize.approvals import Approvals, new_token
from handrail.authorize.policy import DEFAULT, Plan, Policy
from handrail.core.context import ToolContext
from handrail.core.events import DecisionMade, Event
from handrail.core.log import log
from handrail.core.passing import must_pass
from handrail.core.redact import Redactor
from handrail.core.select import any_of
from handrail.core.tool import Tool
from handrail.core.values import Approval, Decision, Failure, ToolCall, ToolResult
from handrail.errors import ConfigError, ToolError

Mode = Literal["enforce", "observe"]

_MOST_NAMED = 1_000


class Refusal(Exception):
    """The call does not run; the result says why."""

    def __init__(self, result: ToolResult, decision: Decision | None = None) -> None:
        super().__init__(result.error.message if result.error else "")
        self.result = result
        self.decision = decision


class Granted(Struct, frozen=True, kw_only=True):
    """The call may run."""

    decision: Decision
    approval: Approval | None = None
    """To be used up by this call."""


class Again(Struct, frozen=True, kw_only=True):
    """The effect was wanted before; somebody must want it once more."""

    repeat: int
    done_at: str | None
    """When it was done; None if that was before a repetition that came to nothing."""

    @property
    def question(self) -> str:
        """What somebody has to agree to."""
        return f"it was already done{f' at {self.done_at}' if self.done_at else ''}; it must be wanted once more"


class Authoriser:
    """Decides about calls, and keeps the questions that it asks."""

    def __init__(
        self,
        *,
        policy: Policy,
        approvals: Approvals,
        redactor: Redactor,
        tell: Callable[[Event], None],
        mode: Mode | Mapping[str, Mode] = "enforce",
        approval_timeout: float = 900.0,
    ) -> None:
        self.policy = policy
        self.approvals = approvals
        self._redactor = redactor
        self._tell = tell
        self._approval_timeout = approval_timeout
        self._observes = _observed(mode)
        self._named: set[str] = set()
        """Tools that no rule speaks of, and whose developer has been told."""

    def plan(self, tool: Tool[..., Any]) -> Plan:
        """What the policy says of a tool."""
        return self.policy.plan(tool)

    def observes(self, tool: Tool[..., Any]) -> bool:
        """Whether decisions about this tool are recorded only, and block nothing."""
        return self._observes(tool)

    async def decide(
        self,
        tool: Tool[..., Any],
        plan: Plan,
        call: ToolCall,
        arguments: Callable[[], dict[str, Any]],
        context: ToolContext[Any],
        *,
        digest: Callable[[], str],
        again: Again | None = None,
    ) -> Granted:
        """Let the call run, or raise `Refusal`."""
        decision = await self._decision(tool, plan, arguments, context)
        if again is not None and decision.action != "deny":
            decision = _asked_again(decision, again)
        if decision.action == "allow":
            return Granted(decision=decision)
        observed = self.observes(tool)
        if decision.action == "deny" or observed:
            self._say(call, decision, context, observed=observed)
            if observed:
                return Granted(decision=decision)
            raise Refusal(_refused(tool, decision), decision)
        self._name(tool, decision)
        approval = await self._agreed(tool, decision, call, arguments, context, digest(), again)
        return Granted(decision=decision, approval=approval)

    async def _decision(
        self, tool: Tool[..., Any], plan: Plan, arguments: Callable[[], dict[str, Any]], context: ToolContext[Any]
    ) -> Decision:
        objection = await _objection(tool, arguments, context)
        if objection is not None:
            return Decision(action="deny", rule="permission_check", source=tool.name, reason=objection)
        return plan.decide(context, arguments)

    async def still_allowed(
        self,
        tool: Tool[..., Any],
        plan: Plan,
        arguments: Callable[[], dict[str, Any]],
        context: ToolContext[Any],
        *,
        by: str,
    ) -> None:
        """Raise `Refusal` if the arguments that an approver wants instead are not this person's to allow."""
        decision = await self._decision(tool, plan, arguments, context)
        if decision.action == "ask" and decision.by not in (None, by):
            reason = f"with the arguments that the {by} wants instead, the {decision.by} has to agree"
            decision = Decision(
                action="deny", by=decision.by, rule=decision.rule, source=decision.source, reason=reason
            )
        if decision.action == "deny":
            raise Refusal(_refused(tool, decision), decision)

    def _name(self, tool: Tool[..., Any], decision: Decision) -> None:
        """Tell the developer, once, what would allow a tool that no rule speaks of."""
        if decision.source == DEFAULT and tool.name not in self._named and len(self._named) < _MOST_NAMED:
            self._named.add(tool.name)
            log.warning("somebody has to agree to every call of %s: %s", tool.name, decision.reason)

    async def _agreed(
        self,
        tool: Tool[..., Any],
        decision: Decision,
        call: ToolCall,
        arguments: Callable[[], dict[str, Any]],
        context: ToolContext[Any],
        digest: str,
        again: Again | None,
    ) -> Approval:
        """The approval of exactly this call, or a refusal that names the open question."""
        now = time.time()
        asked = Approval(
            token=new_token(),
            tool=tool.name,
            digest=digest,
            session_id=context.session_id,
            tenant_id=context.tenant_id,
            customer_id=context.customer_id,
            by=decision.by or "customer",
            turn=context.turn,
            arguments=self._redactor.value(arguments()),
            question=decision.reason,
            repeat=again.repeat if again else 0,
            created_at=now,
            expires_at=now + self._approval_timeout,
        )
        known = await self.approvals.ask(asked)
        if known.state == "denied":
            denied = Decision(
                action="deny", by=known.by, rule=decision.rule, source=decision.source, reason=_said_no(known)
            )
            self._say(call, denied, context)
            raise Refusal(_refused(tool, denied), denied)
        if known.state == "approved" and (known.by != "customer" or context.turn > known.turn):
            return known
        self._say(call, decision, context)
        raise Refusal(_must_be_asked(tool, decision, known), decision)

    def _say(self, call: ToolCall, decision: Decision, context: ToolContext[Any], *, observed: bool = False) -> None:
        self._tell(
            DecisionMade(
                at=time.time(),
                session_id=context.session_id,
                tenant_id=context.tenant_id,
                call=call,
                decision=decision,
                observed=observed,
            )
        )


def _observed(mode: Mode | Mapping[str, Mode]) -> Callable[[Tool[..., Any]], bool]:
    if isinstance(mode, Mapping):
        wrong = [one for one in mode.values() if one not in ("enforce", "observe")]
        test = any_of([selector for selector, one in mode.items() if one == "observe"])
    else:
        wrong = [mode] if mode not in ("enforce", "observe") else []
        everything: Iterable[str] = ["*"] if mode == "observe" else []
        test = any_of(everything)
    if wrong:
        raise ConfigError(f"A mode is 'enforce' or 'observe', not {wrong[0]!r}.")
    return test


async def _objection(
    tool: Tool[..., Any], arguments: Callable[[], dict[str, Any]], context: ToolContext[Any]
) -> str | None:
    """What the tool's own check has against the call."""
    if tool.permission_check is None:
        return None
    try:
        verdict = tool.permission_check(arguments(), context)
        if inspect.isawaitable(verdict):
            verdict = await verdict
    except ToolError as error:
        return error.message
    except PermissionError as error:
        return str(error) or "its own check refused it"
    except BaseException as error:
        if must_pass(error):
            raise
        log.error("the permission check of %s failed", tool.name, exc_info=error)
        return "its own check failed"
    return "its own check refused it" if verdict is False else None


def _asked_again(decision: Decision, again: Again) -> Decision:
    """A decision about an effect that was wanted before: whoever is asked is told so."""
    if decision.action == "allow" or decision.source == DEFAULT:
        by = decision.by or "customer"
        return Decision(action="ask", by=by, rule="at most once", source="ledger", reason=again.question)
    reason = f"{decision.reason}; {again.question}" if decision.reason else again.question
    return Decision(action="ask", by=decision.by, rule=decision.rule, source=decision.source, reason=reason)


def _refused(tool: Tool[..., Any], decision: Decision) -> ToolResult:
    reason = decision.reason or f"the rule {decision.rule} denies it"
    failure = Failure(code="permission_denied", message=f"`{tool.name}` is not allowed: {reason}.")
    return ToolResult(error=failure, decision=decision)


def _must_be_asked(tool: Tool[..., Any], decision: Decision, approval: Approval) -> ToolResult:
    # What the default says is for the developer.
    why = f" ({decision.reason})" if decision.reason and decision.source != DEFAULT else ""
    if approval.state == "approved":  # In this very turn: it counts from the next one on.
        text = f"`{tool.name}` was approved in this turn, which counts from the next one on. Call it again then."
    else:
        text = (
            f"`{tool.name}` needs the approval of the {approval.by} first{why}. Nothing was done. "
            f"Call it again with exactly these arguments once they have agreed."
        )
    failure = Failure(code="approval_required", message=text, retryable=True)
    return ToolResult(error=failure, decision=decision, approval=approval)


def _said_no(approval: Approval) -> str:
    return f"the {approval.by} said no" + (f": {approval.reason}" if approval.reason else "")

"""Answers whether a call may run: the tool's own check, the policy, whoever has to approve it, and the hooks."""

import time
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any, Literal, NoReturn, TypeVar, cast

from msgspec import Struct, structs

from handrail.authorize import hooks as hook_calls
from handrail.authorize.approvals import Approvals, can_be_used, new_token
from handrail.authorize.effect_keys import CallDigests
from handrail.authorize.from_condition import ValueOrigin, list_changed_values
from handrail.authorize.hooks import CallbackRunner
from handrail.authorize.policy import ADVICE, DEFAULT, By, CompiledPolicy
from handrail.core import failure_results
from handrail.core.context import ToolContext
from handrail.core.display import format_lines
from handrail.core.events import DecisionMade, Event
from handrail.core.log import log
from handrail.core.redact import Redactor
from handrail.core.secret_patterns import MAX_PIECE
from handrail.core.selectors import SelectorTable
from handrail.core.text import copy_json, faithful_json
from handrail.core.time_budget import TimeBudget
from handrail.core.tool import Tool
from handrail.core.values import Approval, Decision, ToolCall, ToolResult
from handrail.errors import ConfigError, ToolError, must_propagate, shorten

T = TypeVar("T")
Mode = Literal["enforce", "observe"]
GetArguments = Callable[[], dict[str, Any]]
"""The validated arguments as JSON values; only built where something looks at them."""

_MAX_NOTES = 1_000
_MAX_ASKED = 10_000
_WITHDRAWAL_TIMEOUT = 2.0
"""Seconds that a call waits until a question about it, which nobody needs an answer to any more, is withdrawn."""


class Refusal(Exception):
    """The call does not run; the result says why."""

    def __init__(self, result: ToolResult, decision: Decision | None = None) -> None:
        super().__init__(result.error.message if result.error else "")
        self.result = result
        self.decision = decision


class Repetition(Struct, frozen=True, kw_only=True):
    """The effect was done before; somebody has to approve doing it again."""

    number: int
    done_at: str | None
    """When it was done; None if that was before a repetition that failed."""
    done_with: str | None = None
    """The arguments of the earlier call, redacted, if they were other ones."""

    @property
    def question(self) -> str:
        """What has to be approved."""
        done_at = f" at {self.done_at}" if self.done_at else ""
        done_with = f" with other arguments ({self.done_with})" if self.done_with else ""
        return f"it was already done{done_at}{done_with}; it must be wanted once more"


class Authorization(Struct, frozen=True, kw_only=True, gc=False):
    """The call may run, with these arguments."""

    decision: Decision
    approval: Approval | None = None
    """To be consumed by this call."""
    call: ToolCall
    """The call as it may run: with the arguments of the approver, if they changed them."""
    value: Any
    """The validated arguments of that call."""


class Authorizer:
    """Decides about calls, and keeps the questions that it asks.

    In this order: the tool's `permission_check`, the policy, the repetition of an effect, the approval, the arguments
    that an approver changed, the hooks. The first objection refuses the call.
    """

    def __init__(
        self,
        *,
        approvals: Approvals,
        hooks: Iterable[Any],
        digests: CallDigests,
        emit: Callable[[Event], None],
        callbacks: CallbackRunner,
        mode: Mode | Mapping[str, Mode] = "enforce",
        approval_timeout: float = 900.0,
    ) -> None:
        self._approvals = approvals
        self._hooks = tuple(hook for hook in hooks if hasattr(hook, "authorised"))
        self._digests = digests
        self._emit = emit
        self._callbacks = callbacks
        self._approval_timeout = approval_timeout
        self._observed = None if mode == "enforce" else _parse_mode(mode)
        self._has_warned_of_turn = False
        self._noted: set[str] = set()
        """Tools that no rule is about, and that were logged."""
        self.asked: dict[tuple[str, str], None] = {}
        """The calls, by session and id, that somebody was asked about here and that are not decided yet."""
        self.has_hooks = bool(self._hooks)
        """Whether some hook looks at every call."""

    def is_observed(self, tool: Tool[..., Any]) -> bool:
        """Whether decisions about this tool are recorded only, and block nothing."""
        return self._observed is not None and bool(self._observed.find(tool))

    def apply_rules(
        self, policy: CompiledPolicy, call: ToolCall, arguments: GetArguments, context: ToolContext[Any]
    ) -> Decision | None:
        """The policy's decision to allow a call, if nothing but its rules and the arguments has a say in it."""
        if self.has_hooks or call.ask_operator or policy.tool.permission_check is not None or policy.has_origins:
            return None
        if (context.session_id, call.id) in self.asked:  # The question is withdrawn when it is decided.
            return None
        try:
            decision = policy.decide(context, arguments)
        except Exception:  # noqa: BLE001  # `authorize` refuses it, and says why
            return None
        return decision if decision.action == "allow" else None

    async def authorize(
        self,
        policy: CompiledPolicy,
        call: ToolCall,
        value: Any,
        arguments: GetArguments,
        context: ToolContext[Any],
        repetition: Repetition | None = None,
    ) -> Authorization:
        """Allow the call, or raise `Refusal`."""
        if policy.always_allowed is not None and repetition is None and not call.ask_operator:
            authorization = Authorization(decision=policy.always_allowed, call=call, value=value)
            if self.asked:
                await self._withdraw_asked(call, context)
        else:
            with refuse_on_error(call.name):
                authorization = await self._decide(policy, call, value, arguments, context, repetition)
        await self._check_hooks(policy, authorization.call, authorization.decision, context)
        return authorization

    def _can_wait(self, tool: Tool[..., Any]) -> bool:
        """Whether a look at a call of this tool runs code that could take its time: a permission check, or a hook."""
        return self.has_hooks or tool.permission_check is not None

    async def check_access(
        self,
        policy: CompiledPolicy,
        call: ToolCall,
        arguments: GetArguments,
        context: ToolContext[Any],
        budget: TimeBudget,
    ) -> None:
        """Raise `Refusal` unless this caller may have the result of another call of the same effect.

        Nothing runs, so nobody is asked: only a decision to deny, a hook, and a check that takes too long refuse.
        """
        checking = self._check_access(policy, call, arguments, context)
        if self._can_wait(policy.tool):
            await decide_within(budget, checking, call.name)
        else:  # It needs no task.
            await checking

    async def _check_access(
        self, policy: CompiledPolicy, call: ToolCall, arguments: GetArguments, context: ToolContext[Any]
    ) -> None:
        decision = policy.always_allowed
        if decision is None:
            with refuse_on_error(call.name):
                decision = await self._apply_policy(policy, arguments, context)
            if decision.action == "deny" and not self.is_observed(policy.tool):
                self._emit_decision(call, decision, context)
                raise Refusal(failure_results.permission_denied(call.name, decision), decision)
        await self._check_hooks(policy, call, decision, context)

    async def _check_hooks(
        self, policy: CompiledPolicy, call: ToolCall, decision: Decision, context: ToolContext[Any]
    ) -> None:
        if not self._hooks:
            return
        try:
            await hook_calls.check_authorised(self._hooks, call, policy.tool, decision, context, self._callbacks)
        except hook_calls.HookRefusal as refused:
            raise Refusal(failure_results.refused_by_hook(str(refused)), decision) from refused

    async def _decide(
        self,
        policy: CompiledPolicy,
        call: ToolCall,
        value: Any,
        arguments: GetArguments,
        context: ToolContext[Any],
        repetition: Repetition | None,
    ) -> Authorization:
        tool = policy.tool
        decision = await self._apply_policy(policy, arguments, context)
        if repetition is not None and decision.action != "deny":
            decision = _ask_about_repetition(decision, repetition, asks=policy.asks)
        if call.ask_operator and decision.action != "deny" and decision.by != "operator":
            decision = Decision(action="ask", by="operator", rule="ask_operator", reason=call.ask_operator)
        if self.asked and decision.action != "ask":
            await self._withdraw_asked(call, context)
        if decision.action == "allow":
            return Authorization(decision=decision, call=call, value=value)
        is_observed = self._observed is not None and self.is_observed(tool)
        if decision.action == "deny" or is_observed:
            origins = policy.find_origins(context, arguments()) if policy.has_origins else ()
            self._emit_decision(call, decision, context, is_observed=is_observed, origins=origins)
            if is_observed:
                return Authorization(decision=decision, call=call, value=value)
            raise Refusal(failure_results.permission_denied(tool.name, decision), decision)
        self._note_if_undeclared(tool, decision)
        approval = await self._find_approval(policy, decision, call, value, arguments, context, repetition)
        if approval.changed_arguments is not None:
            context = _add_approver(context, approval, arguments)
            call, value = await self._check_changed_arguments(policy, call, decision, approval, context)
        return Authorization(decision=decision, approval=approval, call=call, value=value)

    async def _apply_policy(
        self, policy: CompiledPolicy, arguments: GetArguments, context: ToolContext[Any]
    ) -> Decision:
        objection = await _run_permission_check(policy.tool, arguments, context, self._callbacks)
        if objection is not None:
            return Decision(action="deny", rule="permission_check", source=policy.tool.name, reason=objection)
        return policy.decide(context, arguments)

    def _note_if_undeclared(self, tool: Tool[..., Any], decision: Decision) -> None:
        """Tell the developer, once, about a tool that no rule is about: the default is right, and may surprise."""
        if decision.source == DEFAULT and tool.name not in self._noted and len(self._noted) < _MAX_NOTES:
            self._noted.add(tool.name)
            log.info("somebody has to agree to every call of %s: %s", tool.name, decision.reason)

    # Approvals.

    async def _withdraw_asked(self, call: ToolCall, context: ToolContext[Any]) -> None:
        """Withdraw a question about a call that the policy now decides without an answer."""
        if self.asked.pop((context.session_id, call.id), call) is not None:
            return  # Nobody was asked.
        try:
            withdrawing = self._approvals.withdraw_pending(session_id=context.session_id, call_id=call.id)
            await TimeBudget(_WITHDRAWAL_TIMEOUT).run(withdrawing)
        except Exception:
            log.exception("a question about %s could not be withdrawn", call.name)

    async def _find_approval(
        self,
        policy: CompiledPolicy,
        decision: Decision,
        call: ToolCall,
        value: Any,
        arguments: GetArguments,
        context: ToolContext[Any],
        repetition: Repetition | None,
    ) -> Approval:
        """The approval of exactly this call; raises a `Refusal` that names the open question if there is none."""
        now, tool = time.time(), policy.tool
        values = arguments()
        origins = policy.find_origins(context, values) if policy.has_origins else ()
        digest = self._digests.digest_for_approval(tool, call, value, values, context)
        question = Approval(
            token=new_token(),
            tool=tool.name,
            digest=digest,
            session_id=context.session_id,
            tenant_id=context.tenant_id,
            customer_id=context.customer_id,
            by=decision.by or "customer",
            turn=context.turn,
            wakes=context.wakes,
            arguments=values,
            question=_add_host(decision.reason.replace(ADVICE, ""), tool),
            repeat=repetition.number if repetition else 0,
            created_at=now,
            expires_at=now + self._approval_timeout,
            call_id=call.id,
            seen={origin.path: origin.describe(with_value=True) for origin in origins},
            unsaid=tuple(sorted({origin.argument for origin in origins if origin.is_unsaid})),
        )
        known = await self._approvals.ask(question)
        if known.state == "denied":
            self._refuse_denied(known, decision, call, context)
        is_approved = known.state == "approved"
        if is_approved and can_be_used(known, at=(context.turn, context.wakes), now=now):
            self.asked.pop((context.session_id, call.id), None)
            return known
        if is_approved and not self._has_warned_of_turn:
            self._has_warned_of_turn = True
            log.warning(
                "the customer approved %s, but a customer's approval counts from a later turn on, and it was asked for "
                "in turn %d and is used in turn %d: raise ToolContext(turn=…) by 1 with every message of the customer",
                *(tool.name, known.turn, context.turn),
            )
        if known.call_id:
            if len(self.asked) >= _MAX_ASKED:
                del self.asked[next(iter(self.asked))]
            self.asked[(context.session_id, known.call_id)] = None
        self._emit_decision(call, decision, context, origins=origins)
        reason = "" if decision.source == DEFAULT else decision.reason  # The default's reason is for the developer.
        raise Refusal(failure_results.approval_required(tool.name, decision, known, reason=reason), decision)

    def _refuse_denied(
        self, denied: Approval, decision: Decision, call: ToolCall, context: ToolContext[Any]
    ) -> NoReturn:
        denial = build_denial(denied, decision)
        self._emit_decision(call, denial, context)
        raise Refusal(failure_results.permission_denied(denied.tool, denial), denial)

    async def use_approval(
        self,
        policy: CompiledPolicy,
        decision: Decision,
        token: str,
        call: ToolCall,
        value: Any,
        arguments: GetArguments,
        context: ToolContext[Any],
    ) -> Authorization:
        """Authorise a call with the approval that it was stored with; nobody is asked again."""
        tool, approval = policy.tool, await self._approvals.get(token)
        digest = self._digests.digest_for_approval(tool, call, value, arguments(), context)
        if approval is None or approval.digest != digest:  # Deleted, or given for something else.
            raise Refusal(failure_results.approval_gone(tool.name), decision)
        if approval.state == "denied":
            self._refuse_denied(approval, decision, call, context)
        now = time.time()
        if approval.is_open(now):
            raise Refusal(
                failure_results.approval_required(tool.name, decision, approval, reason=decision.reason), decision
            )
        if not can_be_used(approval, at=(context.turn, context.wakes), now=now):
            raise Refusal(failure_results.approval_gone(tool.name), decision)
        if approval.changed_arguments is not None:
            call, value = await self._check_changed_arguments(policy, call, decision, approval, context)
        return Authorization(decision=decision, approval=approval, call=call, value=value)

    async def _check_changed_arguments(
        self,
        policy: CompiledPolicy,
        call: ToolCall,
        decision: Decision,
        approval: Approval,
        context: ToolContext[Any],
    ) -> tuple[ToolCall, Any]:
        """The call with the arguments that an approver wants instead, validated and judged by the policy."""
        tool = policy.tool
        try:
            call = structs.replace(call, arguments_json=faithful_json(dict(approval.changed_arguments or {})))
            value = tool.parse(call.arguments_json)
        except (ToolError, ValueError) as error:
            log.error("the arguments that were approved for %s instead of the model's are not valid", tool.name)
            raise Refusal(failure_results.invalid_changed_arguments(tool.name, approval.by), decision) from error
        changed = await self._apply_policy(policy, lambda: tool.dump(value), context)
        if changed.action == "ask" and changed.by not in (None, approval.by):
            reason = f"with the arguments that the {approval.by} wants instead, the {changed.by} has to agree"
            changed = Decision(action="deny", by=changed.by, rule=changed.rule, source=changed.source, reason=reason)
        if changed.action == "deny":
            raise Refusal(failure_results.permission_denied(tool.name, changed), changed)
        return call, value

    async def consume_approval(self, authorization: Authorization, tool: Tool[..., Any], budget: TimeBudget) -> bool:
        """Consume the approval of a read-only call, which has no ledger entry; False if another call did so first.

        The approval of a consequential call is consumed by `Ledger.claim`, in one transaction with its entry.
        """
        if authorization.approval is None:
            return True
        token, call_id = authorization.approval.token, authorization.call.id or None
        try:
            return await budget.run(self._approvals.consume(token, now=time.time(), call_id=call_id))
        except Exception as error:
            log.exception("the approval of %s could not be consumed", tool.name)
            raise Refusal(failure_results.unavailable(tool.name), authorization.decision) from error

    def _emit_decision(
        self,
        call: ToolCall,
        decision: Decision,
        context: ToolContext[Any],
        *,
        is_observed: bool = False,
        origins: Iterable[ValueOrigin] = (),
    ) -> None:
        self._emit(
            DecisionMade(
                at=time.time(),
                session_id=context.session_id,
                tenant_id=context.tenant_id,
                customer_id=context.customer_id,
                call=call,
                decision=decision,
                observed=is_observed,
                seen={origin.path: origin.describe() for origin in origins},
            )
        )


def _add_approver(context: ToolContext[Any], approval: Approval, arguments: GetArguments) -> ToolContext[Any]:
    """The context for arguments that an approver changed: what they changed comes from them."""
    if context.provenance is None:
        return context
    changed = list_changed_values(arguments(), approval.changed_arguments or {})
    return structs.replace(context, provenance=context.provenance.with_approver(approval.by, changed))


def build_denial(denied: Approval, decision: Decision) -> Decision:
    """The decision about a call that somebody said no to."""
    reason = f"the {denied.by} said no" + (f": {denied.reason}" if denied.reason else "")
    return Decision(action="deny", by=denied.by, rule=decision.rule, source=decision.source, reason=reason)


@contextmanager
def refuse_on_error(tool: str) -> Generator[None]:
    """What fails while a decision is made refuses the call."""
    try:
        yield
    except Refusal:
        raise
    except Exception as error:
        log.exception("the decision about %s failed", tool)
        raise Refusal(failure_results.unavailable(tool)) from error


async def decide_within(budget: TimeBudget, deciding: Awaitable[T], tool: str) -> T:
    """Await a decision about a call; raise `Refusal` if it takes longer than the budget."""
    try:
        return await budget.run(deciding)
    except TimeoutError as error:
        log.error("the decision about %s took too long", tool)
        raise Refusal(failure_results.unavailable(tool)) from error


def _parse_mode(mode: Mode | Mapping[str, Mode]) -> SelectorTable[Mode]:
    """What is found for the tools whose decisions are only observed."""
    modes = mode if isinstance(mode, Mapping) else {"*": mode}
    for selected in modes.values():
        if selected not in ("enforce", "observe"):
            raise ConfigError(f"mode must be 'enforce' or 'observe', got {selected!r}.")
    return SelectorTable(((selector,), selected) for selector, selected in modes.items() if selected == "observe")


async def _run_permission_check(
    tool: Tool[..., Any], arguments: GetArguments, context: ToolContext[Any], callbacks: CallbackRunner
) -> str | None:
    """What the tool's own check has against the call; None if it has no objection."""
    if tool.permission_check is None:
        return None
    try:
        owner = f"the permission check of {tool.name}"
        # A copy: the policy decides about the arguments that run, whatever the check does with its own.
        passed = await callbacks.call(tool.permission_check, copy_json(arguments()), context, owner=owner)
    except ToolError as error:
        return error.message
    except PermissionError as error:
        return str(error) or "its own check refused it"
    except BaseException as error:
        if must_propagate(error):
            raise
        log.error("the permission check of %s failed", tool.name, exc_info=error)
        return "its own check failed"
    # Only None and True pass: 0, "deny" and {"behavior": "deny"} are refusals in somebody's terms.
    return None if passed is None or passed is True else "its own check refused it"


def _ask_about_repetition(decision: Decision, repetition: Repetition, *, asks: By) -> Decision:
    """Ask before an effect is repeated, whatever the policy says about a first time."""
    if decision.action == "allow" or decision.source == DEFAULT:
        by = decision.by or asks
        return Decision(action="ask", by=by, rule="at most once", source="ledger", reason=repetition.question)
    reason = f"{decision.reason}; {repetition.question}" if decision.reason else repetition.question
    return Decision(action="ask", by=decision.by, rule=decision.rule, source=decision.source, reason=reason)


def _add_host(reason: str, tool: Tool[..., Any]) -> str:
    """The reason, and where the call goes, if its tool lives elsewhere: whoever decides has to know."""
    host = tool.metadata.get("host")
    return f"{reason} (sent to {host})".strip() if isinstance(host, str) and host else reason


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
        return Explanation(decision=None, lines=(f"{shorten(call.name)}: there is no tool of this name.",))
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

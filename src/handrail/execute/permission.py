"""Whether a call may run: the tool's own check, the policy, whoever has to agree, and the hooks."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from handrail.authorize.authoriser import Again, Authoriser, Granted, Refusal
from handrail.core.context import ToolContext
from handrail.core.log import log
from handrail.core.text import faithful_json
from handrail.core.values import Approval, Decision, ToolCall
from handrail.errors import ToolError
from handrail.execute import answers, hooks
from handrail.execute.desk import Desk
from handrail.execute.identity import Identities


class Permitted(Struct, frozen=True, kw_only=True, gc=False):
    """The call may run, with these arguments."""

    decision: Decision
    approval: Approval | None = None
    """To be used up by this call."""
    value: Any
    """The validated arguments, or those that the approver put in their place, validated again."""


class Permission:
    """Asks everybody who has a say in a call; raises `Refusal` if one of them says no."""

    def __init__(self, *, authoriser: Authoriser, hooks: Sequence[Any], identities: Identities) -> None:
        self._authoriser = authoriser
        self._hooks = tuple(hook for hook in hooks if hasattr(hook, "authorised"))
        self._identities = identities
        self.is_shown = bool(self._hooks)
        """Whether some hook wants to look at every call."""

    def observes(self, desk: Desk) -> bool:
        """Whether decisions about this tool are recorded only, and block nothing."""
        return self._authoriser.observes(desk.tool)

    def at_once(self, desk: Desk, value: Any) -> Permitted | None:
        """The permission of a call that nobody has to be asked about."""
        if desk.decision is None or self._hooks:
            return None
        return Permitted(decision=desk.decision, value=value)

    async def of(
        self,
        desk: Desk,
        call: ToolCall,
        value: Any,
        arguments: Callable[[], dict[str, Any]],
        context: ToolContext[Any],
        again: Again | None = None,
    ) -> Permitted:
        """Let the call run, or raise `Refusal`."""
        if desk.decision is not None and again is None:
            permitted = Permitted(decision=desk.decision, value=value)
        else:
            permitted = await self._decided(desk, call, value, arguments, context, again)
        if self._hooks:
            try:
                await hooks.look(self._hooks, call, desk.tool, permitted.decision, context)
            except hooks.Refused as refused:
                raise Refusal(answers.failed("refused_by_hook", str(refused)), permitted.decision) from refused
        return permitted

    async def _decided(
        self,
        desk: Desk,
        call: ToolCall,
        value: Any,
        arguments: Callable[[], dict[str, Any]],
        context: ToolContext[Any],
        again: Again | None,
    ) -> Permitted:
        tool = desk.tool

        def digest() -> str:
            return self._identities.of(tool, call, arguments(), context)[0]

        try:
            granted = await self._authoriser.decide(
                tool, desk.plan, call, arguments, context, digest=digest, again=again
            )
            if granted.approval is not None and granted.approval.changed_arguments is not None:
                value = await self._changed(desk, granted, granted.approval, context)
        except Refusal:
            raise
        except Exception as error:
            log.exception("the decision about %s failed", tool.name)
            raise Refusal(answers.unavailable(tool.name)) from error
        return Permitted(decision=granted.decision, approval=granted.approval, value=value)

    async def _changed(self, desk: Desk, granted: Granted, approval: Approval, context: ToolContext[Any]) -> Any:
        """The arguments that an approver wants instead: they must be valid, and this person's to allow."""
        tool = desk.tool
        try:
            value = tool.parse(faithful_json(dict(approval.changed_arguments or {})))
        except (ToolError, ValueError) as error:
            log.error("the arguments that were approved for %s instead of the model's are not valid", tool.name)
            text = f"The arguments that the {approval.by} wants for `{tool.name}` instead are not valid. "
            raise Refusal(
                answers.failed("invalid_arguments", text + answers.NOTHING_HAPPENED), granted.decision
            ) from error
        await self._authoriser.still_allowed(tool, desk.plan, lambda: tool.dump(value), context, by=approval.by)
        return value

    async def use_up(self, desk: Desk, permitted: Permitted) -> bool:
        """Use up the approval of a call that has no ledger; False if somebody else was faster."""
        if permitted.approval is None:
            return True
        try:
            return await self._authoriser.approvals.consume(permitted.approval.token, now=time.time())
        except Exception as error:
            log.exception("the approval of %s could not be used up", desk.tool.name)
            raise Refusal(answers.unavailable(desk.tool.name), permitted.decision) from error

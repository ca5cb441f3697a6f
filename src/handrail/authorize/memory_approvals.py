"""Keeps approvals in memory."""

import itertools
import time
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final, Literal, Unpack

from msgspec import structs

from handrail.authorize.approvals import (
    ApprovalEvents,
    ApprovalFilters,
    can_be_used,
    check_limit,
    decide_approval,
    get_subject,
    history_position,
    is_denial_of,
    pending_position,
    read_filters,
    wait_for_decision,
)
from handrail.core.values import Approval

_INTERVAL: Final = 0.02
"""Seconds between two looks at an approval that somebody waits for."""
_MAX_HISTORY: Final = 10_000
"""Approvals that are kept; beyond that, the oldest ones that have expired are forgotten."""


class MemoryApprovals:
    """Approvals in memory."""

    is_immediate: ClassVar[bool] = True

    def __init__(self) -> None:
        self.events = ApprovalEvents()
        self._approvals: dict[str, Approval] = {}
        self._open: dict[tuple[object, ...], str] = {}
        """The token of each question that is not closed."""
        self.by_session: dict[str, dict[str, None]] = {}
        """The tokens of each session in which anything was asked."""

    async def ask(self, approval: Approval) -> Approval:
        for token in self.by_session.get(approval.session_id, ()):
            if is_denial_of(known := self._approvals[token], approval):
                return known
        known = self._find_open(_subject_key(approval), approval.created_at)
        if known is not None and (known.state != "denied" or not approval.call_id):
            return known
        self._forget_expired(approval.created_at)
        self._approvals[approval.token] = approval
        self._open[_subject_key(approval)] = approval.token
        self.by_session.setdefault(approval.session_id, {})[approval.token] = None
        self.events.emit_requested(approval)
        return approval

    async def find(
        self, *, session_id: str, tool: str, digest: str, by: str, repeat: int, now: float
    ) -> Approval | None:
        return self._find_open((session_id, tool, digest, by, repeat), now)

    def _find_open(self, question: tuple[object, ...], now: float) -> Approval | None:
        known = self._approvals.get(self._open.get(question, ""))
        return None if known is None or known.is_expired(now) else known

    def _close(self, approval: Approval) -> None:
        if self._open.get(_subject_key(approval)) == approval.token:
            del self._open[_subject_key(approval)]

    async def get(self, token: str) -> Approval | None:
        return self._approvals.get(token)

    async def consume(self, token: str, *, now: float) -> bool:
        known = self._approvals.get(token)
        if known is None or not can_be_used(known, now=now):
            return False
        self._approvals[token] = structs.replace(known, state="used")
        self._close(known)
        self.events.emit_used(known)
        return True

    async def restore(self, token: str) -> None:
        known = self._approvals.get(token)
        if known is not None and known.state == "used" and _subject_key(known) not in self._open:
            self._approvals[token] = structs.replace(known, state="approved")
            self._open[_subject_key(known)] = token

    async def withdraw(self, token: str) -> None:
        known = self._approvals.get(token)
        if known is None:
            return
        self._close(known)
        if known.state in ("pending", "approved"):
            self._approvals[token] = structs.replace(known, state="withdrawn")

    async def withdraw_pending(self, *, session_id: str, call_id: str) -> None:
        for token in tuple(self.by_session.get(session_id, ())):
            known = self._approvals[token]
            if known.call_id == call_id and known.state == "pending":
                await self.withdraw(token)

    async def approve(
        self,
        token: str,
        *,
        by: Literal["customer", "operator"],
        who: str,
        reason: str = "",
        arguments: Mapping[str, Any] | None = None,
    ) -> Approval:
        return self._decide(token, by=by, who=who, state="approved", reason=reason, arguments=arguments)

    async def deny(self, token: str, *, by: Literal["customer", "operator"], who: str, reason: str = "") -> Approval:
        return self._decide(token, by=by, who=who, state="denied", reason=reason, arguments=None)

    def _decide(self, token: str, **decision: Any) -> Approval:
        known = self._approvals.get(token)
        after = decide_approval(known, now=time.time(), **decision)
        if after is known:
            return after
        self._approvals[token] = after
        self.events.emit_decided(after)
        return after

    async def pending(
        self,
        *,
        session_id: str | None = None,
        tenant_id: str | None = None,
        limit: int = 100,
        after: Approval | None = None,
    ) -> list[Approval]:
        now = time.time()
        found = [
            approval
            for approval in self._list(session_id)
            if approval.state == "pending"
            and not approval.is_expired(now)
            and tenant_id in (None, approval.tenant_id)
            and (after is None or pending_position(approval) > pending_position(after))
        ]
        return sorted(found, key=pending_position)[: check_limit(limit)]

    async def history(
        self, *, limit: int = 100, before: Approval | None = None, **filters: Unpack[ApprovalFilters]
    ) -> list[Approval]:
        wanted = read_filters(filters)
        found = [
            approval
            for approval in self._list(wanted.get("session_id"))
            if all(getattr(approval, name) == value for name, value in wanted.items())
            and (before is None or history_position(approval) < history_position(before))
        ]
        return sorted(found, key=history_position)[-check_limit(limit) :]

    def _list(self, session_id: str | None) -> Iterable[Approval]:
        """All approvals, or those of a session, without looking at those of the others."""
        if session_id is None:
            return self._approvals.values()
        return [self._approvals[token] for token in self.by_session.get(session_id, ())]

    async def wait(self, token: str, timeout: float) -> Approval:
        return await wait_for_decision(self.get, token, timeout=timeout, interval=_INTERVAL)

    def _forget_expired(self, now: float) -> None:
        """Forget up to 100 of the oldest approvals that have expired, if there are too many."""
        excess = min(len(self._approvals) - _MAX_HISTORY, 100)
        for token, approval in list(itertools.islice(self._approvals.items(), max(excess, 0))):
            if not approval.is_expired(now):
                return
            del self._approvals[token]
            tokens = self.by_session[approval.session_id]
            del tokens[token]
            if not tokens:
                del self.by_session[approval.session_id]
            self._close(approval)


def _subject_key(approval: Approval) -> tuple[object, ...]:
    return tuple(get_subject(approval).values())

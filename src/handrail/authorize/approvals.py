"""Approvals: who was asked about which call, what they decided, and that it was consumed once; and those in memory."""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Protocol, TypedDict, Unpack, cast
from weakref import WeakSet

from msgspec import structs

from handrail.core.events import ApprovalDecided, ApprovalRequested, ApprovalUsed, Event
from handrail.core.lazy_loading import LazyModule
from handrail.core.log import log
from handrail.core.redact import HIDDEN, Redactor
from handrail.core.text import canonical_json, is_same_json
from handrail.core.values import Approval
from handrail.errors import ApprovalError, ConfigError

if TYPE_CHECKING:
    import secrets
else:
    secrets = LazyModule("secrets")


class ApprovalFilters(TypedDict, total=False):
    """What `history` filters by: each approval that is returned has all of the given values."""

    session_id: str | None
    tenant_id: str | None
    customer_id: str | None
    tool: str | None
    who: str | None


class ApprovalSubject(TypedDict):
    """What an approval is about. Two approvals with the same values are about the same call."""

    session_id: str
    tool: str
    digest: str
    by: str
    repeat: int


def get_subject(approval: Approval) -> ApprovalSubject:
    """What an approval is about, as the arguments of `Approvals.find`."""
    return {
        "session_id": approval.session_id,
        "tool": approval.tool,
        "digest": approval.digest,
        "by": approval.by,
        "repeat": approval.repeat,
    }


class Approvals(Protocol):
    """Where approvals are kept."""

    is_immediate: ClassVar[bool]
    """Whether its methods never wait, so that they need no deadline."""

    async def ask(self, approval: Approval) -> Approval:
        """Store a question under a new token; if an equal one is open, or approved and not yet consumed, return that.

        A denial is the answer to its own call (`call_id`), for ever and whatever was repeated meanwhile, and to no
        other: an equal call with another id is a new question. Calls without an id share their answer until it expires.
        """
        ...

    async def find(
        self, *, session_id: str, tool: str, digest: str, by: str, repeat: int, now: float
    ) -> Approval | None:
        """The newest approval of this exact call that is not expired and not used."""
        ...

    async def get(self, token: str) -> Approval | None:
        """The approval with this token; its arguments are whole until it is decided."""
        ...

    async def consume(self, token: str, *, now: float, call_id: str | None = None) -> bool:
        """Consume an approval: True for exactly one caller. `call_id` is the id of the call that uses it."""
        ...

    async def restore(self, token: str) -> None:
        """Undo the consumption of an approval for a call that then did not run."""
        ...

    async def withdraw(self, token: str) -> None:
        """Close a question that nobody needs an answer to any more: it is not open, and an equal call asks anew.

        Who decided it and why stays under its token.
        """
        ...

    async def withdraw_pending(self, *, session_id: str, call_id: str) -> None:
        """Withdraw what is pending about a call that was claimed without it."""
        ...

    async def approve(
        self,
        token: str,
        *,
        by: Literal["customer", "operator"],
        who: str,
        reason: str = "",
        arguments: Mapping[str, Any] | None = None,
    ) -> Approval:
        """Approve the call. It runs when it is sent again.

        `by` must be who the rule asks: the customer or an operator. For the customer, `who` must be the `customer_id`
        of the call's context, and the approval counts from a later `turn` on; for an operator it is their name or id,
        which is audited. `arguments` replaces the call's arguments. An approval that was already given, with the same
        arguments, is returned as it is.
        """
        ...

    async def deny(self, token: str, *, by: Literal["customer", "operator"], who: str, reason: str = "") -> Approval:
        """Deny the call; `who` is the customer's id, or the operator's name. What was denied before is returned."""
        ...

    async def pending(
        self,
        *,
        session_id: str | None = None,
        tenant_id: str | None = None,
        limit: int = 100,
        after: Approval | None = None,
    ) -> list[Approval]:
        """The open questions, those first that expire first; `after` is the last one of the page before."""
        ...

    async def history(
        self, *, limit: int = 100, before: Approval | None = None, **filters: Unpack[ApprovalFilters]
    ) -> list[Approval]:
        """The newest approvals that match, whatever their state, oldest first: who decided what, when and why.

        `before` is the first one of a page: the page of older ones is returned.
        """
        ...

    async def wait(self, token: str, timeout: float) -> Approval:
        """Wait until an approval is decided, used or expired, and return it; raise `TimeoutError` after `timeout`."""
        ...


class ApprovalEvents:
    """Emits the events of a store of approvals, to the executors that use it and to an audit."""

    def __init__(self) -> None:
        self._buses: WeakSet[Any] = WeakSet()
        self._audit: Callable[[Event], object] | None = None

    def subscribe(self, bus: Any) -> None:
        """Emit to an executor's event bus, as long as that exists."""
        self._buses.add(bus)

    def set_audit(self, audit: Callable[[Event], object]) -> None:
        """Emit to an audit, too, before any event bus."""
        self._audit = audit

    def emit_requested(self, approval: Approval) -> None:
        """A new request was stored."""
        self.emit(ApprovalRequested(expires_at=approval.expires_at, **_describe(approval)))

    def emit_decided(self, approval: Approval) -> None:
        """A request was approved or denied."""
        now = approval.decided_at or time.time()
        self.emit(
            ApprovalDecided(
                who=approval.who or "",
                outcome="denied" if approval.state == "denied" else "approved",
                reason=approval.reason,
                has_changed_arguments=approval.changed_arguments is not None,
                seconds=max(now - approval.created_at, 0.0),
                **_describe(approval),
            )
        )

    def emit_used(self, approval: Approval, *, call_id: str | None) -> None:
        """An approval was consumed, by this call."""
        self.emit(build_used(approval, call_id=call_id))

    def emit(self, event: Event) -> None:
        """Emit an event to the audit and to the event buses."""
        for listen in (*(() if self._audit is None else (self._audit,)), *(bus.emit for bus in tuple(self._buses))):
            try:
                listen(event)
            except Exception:  # a listener that fails never undoes a decision
                log.exception("a listener failed on %s", type(event).__name__)


def build_used(approval: Approval, *, call_id: str | None) -> ApprovalUsed:
    """The event that says that an approval was consumed, by which call."""
    return ApprovalUsed(who=approval.who or "", call_id=call_id, **_describe(approval))


def _describe(approval: Approval) -> dict[str, Any]:
    return {
        "at": time.time(),
        "session_id": approval.session_id,
        "tenant_id": approval.tenant_id,
        "token": approval.token,
        "tool_name": approval.tool,
        "by": approval.by,
        "customer_id": approval.customer_id,
        "arguments_digest": approval.digest,
    }


def pending_position(approval: Approval) -> tuple[float, str]:
    """Where an approval stands in `pending`."""
    return approval.expires_at, approval.token


def is_denial_of(known: Approval, asked: Approval) -> bool:
    """Whether somebody said no to the very call that is asked about; one without an id is never the same call."""
    return (
        known.state == "denied"
        and bool(asked.call_id)
        and (known.session_id, known.call_id, known.tool, known.digest)
        == (
            asked.session_id,
            asked.call_id,
            asked.tool,
            asked.digest,
        )
    )


def history_position(approval: Approval) -> tuple[float, str]:
    """Where an approval stands in `history`."""
    return approval.created_at, approval.token


def read_filters(filters: ApprovalFilters) -> dict[str, str]:
    """The filters that have a value; raise `TypeError` for one that does not exist."""
    for name in filters:
        if name not in ApprovalFilters.__annotations__:
            raise TypeError(f"history() got an unexpected keyword argument {name!r}")
    return {name: value for name, value in cast(dict[str, str | None], filters).items() if value is not None}


def check_limit(limit: int) -> int:
    """A limit that is at least 1, or `ConfigError`; it is never more than a database can read."""
    if limit < 1:
        raise ConfigError(f"limit must be at least 1, got {limit!r}.")
    return min(limit, 2**53)


async def wait_for_decision(
    get: Callable[[str], Awaitable[Approval | None]], token: str, *, timeout: float, interval: float
) -> Approval:
    """Look at an approval every `interval` seconds until it is decided or expired."""
    async with asyncio.timeout(timeout):
        while True:
            approval = await get(token)
            if approval is None:
                raise ApprovalError("There is no such approval.")
            if not approval.is_open(time.time()):
                return approval
            await asyncio.sleep(interval)


def new_token() -> str:
    """A token that cannot be guessed."""
    return f"apr_{secrets.token_urlsafe(18)}"


def can_be_used(approval: Approval, *, now: float, at: tuple[int, int] | None = None) -> bool:
    """Whether an approval lets its call run: it is approved, not expired and not used.

    Its digest binds the customer, the arguments and the tool's definition (`effect_keys.py`). The yes of a customer
    counts later than the question, so that the model cannot have made it up: in a later turn, or after a framework was
    resumed within that turn. `at` has both numbers; None if that was checked.
    """
    if approval.state != "approved" or approval.is_expired(now):
        return False
    return at is None or approval.by != "customer" or at > (approval.turn, approval.wakes)


def decide_approval(
    approval: Approval | None,
    *,
    by: str,
    who: str,
    state: Literal["approved", "denied"],
    reason: str,
    arguments: Mapping[str, Any] | None,
    now: float,
) -> Approval:
    """The approval after somebody's decision, or `ApprovalError`: the same rules wherever approvals are stored.

    What was already decided in the same way is returned as it is: the first decision stands, with who made it.
    """
    if approval is None:
        raise ApprovalError("There is no such approval.")
    if by != approval.by:
        raise ApprovalError(f"This is for the {approval.by} to decide, not for the {by}.")
    if not who:
        raise ApprovalError("Say who decides: who='…'.")
    if by == "customer" and approval.customer_id is not None and who != approval.customer_id:
        raise ApprovalError("This is for the customer of this conversation to decide, and for nobody else.")
    try:
        if arguments is not None and _has_redaction_mark(arguments):
            raise ApprovalError(f"arguments must not contain {HIDDEN!r}: it stands for a value that was redacted.")
        if arguments is not None and _has_same_values(arguments, approval.arguments):
            arguments = None  # Nothing is changed, and nobody is told that something was.
    except RecursionError as error:
        raise ApprovalError("arguments must not be nested so deeply.") from error
    if state == ("approved" if approval.state == "used" else approval.state):
        if arguments == approval.changed_arguments:
            return approval
        raise ApprovalError("This approval was already given, with other arguments.")
    if approval.state != "pending":
        raise ApprovalError(f"This approval is not open any more: it is {approval.state}.")
    if approval.is_expired(now):
        raise ApprovalError("This approval has expired; the call has to be made again.")
    return structs.replace(approval, state=state, who=who, reason=reason, changed_arguments=arguments, decided_at=now)


def _has_same_values(arguments: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    try:  # Numbers by value: a browser sends 500 for 500.0.
        return is_same_json(canonical_json(dict(arguments)), canonical_json(dict(others)))
    except (TypeError, ValueError):  # Whoever runs the call says what is wrong with them.
        return False


def _has_redaction_mark(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_redaction_mark, cast(Mapping[Any, Any], value).values()))
    if isinstance(value, list | tuple):
        return any(map(_has_redaction_mark, cast(list[Any], value)))
    return isinstance(value, str) and HIDDEN in value


# Approvals in memory.

_INTERVAL: Final = 0.02
"""Seconds between two looks at an approval that somebody waits for."""
_MAX_HISTORY: Final = 10_000
"""Approvals that are kept; beyond that, the oldest ones that have expired are forgotten."""


class MemoryApprovals:
    """Approvals in memory."""

    is_immediate: ClassVar[bool] = True

    def __init__(self, *, redactor: Redactor | None = None) -> None:
        self.events = ApprovalEvents()
        self._redactor = redactor or Redactor()
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

    async def consume(self, token: str, *, now: float, call_id: str | None = None) -> bool:
        known = self._approvals.get(token)
        if known is None or not can_be_used(known, now=now):
            return False
        self._approvals[token] = structs.replace(known, state="used")
        self._close(known)
        self.events.emit_used(known, call_id=call_id)
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
        return await self._decide(token, by=by, who=who, state="approved", reason=reason, arguments=arguments)

    async def deny(self, token: str, *, by: Literal["customer", "operator"], who: str, reason: str = "") -> Approval:
        return await self._decide(token, by=by, who=who, state="denied", reason=reason, arguments=None)

    async def _decide(self, token: str, *, reason: str, **decision: Any) -> Approval:
        if reason != "":
            reason = await self._redactor.text_aside(reason)  # A person may quote anything.
        known = self._approvals.get(token)
        after = decide_approval(known, now=time.time(), reason=reason, **decision)
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
            if approval.is_open(now)
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

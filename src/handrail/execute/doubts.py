"""Lists the consequential calls whose outcome nobody knows, and records what an operator found out about one."""

import time
from collections.abc import Callable
from time import perf_counter

from msgspec import Struct

from handrail.authorize.approvals import check_limit
from handrail.core import failure_results
from handrail.core.events import DoubtResolved, Event
from handrail.core.values import ToolCall, ToolResult
from handrail.errors import ConfigError
from handrail.execute.ledger import Entry, Ledger, RecordedResult, settle_entry
from handrail.execute.results import finish_result


class Doubt(Struct, frozen=True, kw_only=True):
    """A consequential call whose outcome nobody knows: an operator has to find out."""

    session_id: str
    call_id: str
    tool: str
    tenant_id: str | None
    turn: int
    claimed_at: float
    """Seconds since the epoch."""
    idempotency_key: str
    """What the handler was given to send to other services: search for it there."""
    version: str
    """Changes with the entry; give it to `Executor.resolve(expected=…)`."""

    @classmethod
    def from_entry(cls, entry: Entry) -> "Doubt":
        """The doubt about an entry."""
        return cls(
            session_id=entry.session_id,
            call_id=entry.call_id,
            tool=entry.tool,
            tenant_id=entry.tenant_id,
            turn=entry.turn,
            claimed_at=entry.claimed_at,
            idempotency_key=entry.idempotency_key,
            version=f"{entry.owner}-{entry.number}-{entry.state}",
        )


async def list_doubts(ledger: Ledger, *, session_id: str | None, limit: int) -> list[Doubt]:
    """The calls in doubt, of one session or of all, the oldest first."""
    entries = await ledger.find_doubts(now=time.time(), session_id=session_id, limit=check_limit(limit))
    return [Doubt.from_entry(entry) for entry in entries]


async def resolve_doubt(
    ledger: Ledger,
    emit: Callable[[Event], None],
    *,
    session_id: str,
    call_id: str,
    happened: bool,
    who: str,
    reason: str,
    expected: str | None,
) -> ToolResult:
    """Settle the entry of a call in doubt, and return its result; raises `ConfigError` if there is no such doubt."""
    if not who:
        raise ConfigError("who must name the person who found out, got ''.")
    entry, _ = await ledger.recall(session_id=session_id, call_id=call_id, key="")
    if entry is None:
        raise ConfigError(f"there is no call {call_id!r} in the ledger of session {session_id!r}.")
    if (state := entry.state_at(time.time())) != "unknown":
        raise ConfigError(f"the call {call_id!r} of {entry.tool!r} is not in doubt: it is {state}.")
    if expected is not None and expected != (version := Doubt.from_entry(entry).version):
        raise ConfigError(f"expected must be the version of the doubt, {version!r}, got {expected!r}.")
    by = f"{who}: {reason}" if reason else who
    result = (failure_results.confirmed_effect if happened else failure_results.confirmed_failure)(entry.tool, by)
    recorded = RecordedResult(text=result.output, failure=result.error, metadata={"resolved_by": who})
    settled = settle_entry(entry, "committed" if happened else "failed", recorded, now=time.time())
    if not await ledger.resolve(settled):
        raise ConfigError(f"the call {call_id!r} of {entry.tool!r} was settled meanwhile: list the doubts again.")
    emit(
        DoubtResolved(
            at=time.time(),
            session_id=session_id,
            tenant_id=entry.tenant_id,
            call_id=call_id,
            tool_name=entry.tool,
            happened=happened,
            who=who,
            reason=reason,
        )
    )
    return finish_result(result, ToolCall(id=call_id, name=entry.tool), perf_counter())

"""Calls whose outcome nobody knows: which they are, what a tool says of one (`verify`), and what a person found out."""

import asyncio
import inspect
import time
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, Literal

from msgspec import Struct, structs

from handrail.authorize.approvals import check_limit
from handrail.authorize.effect_keys import CallArguments
from handrail.core import failure_results
from handrail.core.context import ToolContext
from handrail.core.events import DoubtResolved, Event
from handrail.core.handler_result_checks import is_plain
from handrail.core.log import log
from handrail.core.redact import Redactor
from handrail.core.text import copy_json
from handrail.core.time_budget import TimeBudget
from handrail.core.values import Decision, ToolCall, ToolResult
from handrail.errors import ConfigError, must_propagate
from handrail.execute.executor_tools import CompiledTool
from handrail.execute.handlers import HandlerRunner, Outcome
from handrail.execute.leases import LeaseKeeper
from handrail.execute.ledger import (
    Entry,
    Ledger,
    RecordedResult,
    VerifyAnswer,
    get_answer,
    is_unchanged,
    settle_entry,
)
from handrail.execute.results import finish_result
from handrail.execute.scheduler import CallRef
from handrail.execute.settlement import Settlement
from handrail.execute.stored_calls import Work


class Doubt(Struct, frozen=True, kw_only=True):
    """A consequential call whose outcome nobody knows: an operator has to find out."""

    session_id: str
    call_id: str
    tool: str
    tenant_id: str | None
    customer_id: str | None
    turn: int
    arguments: str
    """The arguments that ran, as JSON; redacted."""
    claimed_at: float
    """Seconds since the epoch."""
    run_until: float
    """From when on it can be said that nothing happened: until then the handler may still run."""
    idempotency_key: str
    """What the handler was given to send to other services: search for it there."""
    owner: str = ""
    """The worker, or the executor, that had it last: the `owner` of its `Executor`."""
    attempts: int = 0
    """How often workers have taken it; 0 for a call that ran where it was made, and nowhere else."""
    decision: Decision | None = None
    """What let it run."""
    approval: str | None = None
    """The token of the approval that it consumed."""
    verified: VerifyAnswer | None = None
    """What the tool's `verify` said last: `cannot_tell` (it returned None), `too_early` (it found nothing while the
    handler could still run), or `failed`; None if it was not asked, or there is none."""
    version: str
    """Changes with the entry; give it to `Executor.resolve(expected=…)`."""

    @classmethod
    def from_entry(cls, entry: Entry, arguments: str, *, attempts: int = 0) -> "Doubt":
        """The doubt about an entry, whose redacted arguments are `arguments`."""
        return cls(
            session_id=entry.session_id,
            call_id=entry.call_id,
            tool=entry.tool,
            tenant_id=entry.tenant_id,
            customer_id=entry.customer_id,
            turn=entry.turn,
            arguments=arguments,
            claimed_at=entry.claimed_at,
            run_until=entry.claimed_at if entry.state == "unknown" else entry.run_until,
            idempotency_key=entry.idempotency_key,
            owner=entry.owner,
            attempts=attempts,
            decision=entry.decision,
            approval=entry.approval,
            verified=None if entry.recorded is None else entry.recorded.verified,
            version=_get_version(entry),
        )


def _get_version(entry: Entry) -> str:
    return f"{entry.owner}-{entry.number}-{entry.state}"


async def list_doubts(
    ledger: Ledger,
    *,
    session_id: str | None,
    tenant_id: str | None,
    limit: int,
    redactor: Redactor,
    work: Work | None = None,
) -> list[Doubt]:
    """The calls in doubt, of one session, one tenant or of all, the oldest first."""
    entries = await ledger.find_doubts(
        now=time.time(), session_id=session_id, tenant_id=tenant_id, limit=check_limit(limit)
    )
    attempts: Mapping[CallRef, int] = {}
    if entries and work is not None:
        attempts = await work.count_attempts([(entry.session_id, entry.call_id) for entry in entries])
    return [
        Doubt.from_entry(
            entry,
            await redactor.text_aside(entry.arguments),
            attempts=attempts.get((entry.session_id, entry.call_id), 0),
        )
        for entry in entries
    ]


async def _refuse_while_alive(ledger: Ledger, entry: Entry, leases: LeaseKeeper, *, is_running: bool) -> None:
    """Raise `ConfigError` if the handler of a call may still run: it cannot be said yet that nothing happened."""
    what = f"the call {entry.call_id!r} of {entry.tool!r}"
    if is_running:
        raise ConfigError(f"{what} still runs in this process: happened must be True, or wait for its end.")
    if not entry.has_ended_at(time.time()):
        until = failure_results.format_time(entry.run_until)
        raise ConfigError(f"{what} may still run until {until}: before that, happened must be True.")
    while not leases.is_abandoned(entry):  # At most one lease: a clock may have jumped.
        await asyncio.sleep(leases.interval / 2)
        known = (await ledger.recall(session_id=entry.session_id, call_id=entry.call_id)).by_id
        if known is None or not is_unchanged(known, entry):
            raise ConfigError(f"{what} is alive, or was settled meanwhile: list the doubts again.")


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
    redactor: Redactor,
    leases: LeaseKeeper,
    is_running: bool,
    work: Work | None = None,
) -> ToolResult:
    """Settle the entry of a call in doubt, and return its result; raises `ConfigError` if there is no such doubt."""
    if not who:
        raise ConfigError("who must name the person who found out, got ''.")
    entry = (await ledger.recall(session_id=session_id, call_id=call_id)).by_id
    if entry is None:
        raise ConfigError(f"there is no call {call_id!r} in the ledger of session {session_id!r}.")
    if (state := entry.state_at(time.time())) != "unknown":
        raise ConfigError(f"the call {call_id!r} of {entry.tool!r} is not in doubt: it is {state}.")
    if expected is not None and expected != (version := _get_version(entry)):
        raise ConfigError(f"expected must be the version of the doubt, {version!r}, got {expected!r}.")
    if not happened:
        await _refuse_while_alive(ledger, entry, leases, is_running=is_running)
    who, reason = await redactor.text_aside(who), await redactor.text_aside(reason)  # A person may quote anything.
    by = f"{who}: {reason}" if reason else who
    result = (failure_results.confirmed_effect if happened else failure_results.confirmed_failure)(entry.tool, by)
    recorded = RecordedResult(text=result.output, failure=result.error, metadata={"resolved_by": who})
    settled = settle_entry(entry, "committed" if happened else "failed", recorded, now=time.time())
    resolving = ledger.resolve(settled) if work is None else ledger.resolve(settled, work=work)
    if not await resolving:
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


class Verification:
    """Asks tools what became of calls whose outcome nobody knows."""

    def __init__(self, *, ledger: Ledger, handlers: HandlerRunner, settlement: Settlement) -> None:
        self._ledger = ledger
        self._handlers = handlers
        self._settlement = settlement

    async def settle_doubt(
        self,
        compiled: CompiledTool,
        sent: CallArguments,
        context: ToolContext[Any],
        entry: Entry,
        budget: TimeBudget,
    ) -> "ToolResult | Literal['nothing happened'] | None":
        """Ask the tool what became of a call in doubt, and record it if it happened; None if it cannot tell."""
        tool, arguments = compiled.tool, sent.arguments
        if entry.changed_arguments is not None:  # Those of the call in doubt.
            arguments = tool.dump(tool.parse(entry.changed_arguments))
        has_ended = entry.has_ended_at(time.time())
        outcome = await self.ask(compiled, sent.call, context, entry, arguments, budget=budget, has_ended=has_ended)
        if not isinstance(outcome, Outcome):
            if outcome is not None and outcome != get_answer(entry):
                await self._record_answer(entry, outcome, budget)
            return None
        if outcome.happened == "no":
            return "nothing happened"
        if tool.durable:
            entry = structs.replace(entry, is_durable=True)
        is_recorded = await self._settlement.settle_within(entry, outcome, budget, is_held=False)
        return structs.replace(outcome.result, origin="verified", recorded=is_recorded)

    async def ask(
        self,
        compiled: CompiledTool,
        call: ToolCall,
        context: ToolContext[Any],
        entry: Entry,
        arguments: dict[str, Any],
        *,
        budget: TimeBudget,
        has_ended: bool,
    ) -> Outcome | VerifyAnswer | None:
        """The outcome according to the tool's `verify`, or why it does not know one; None if the tool has no `verify`.

        `verify` returns a value or True (it happened), False (it did not), or None (it cannot tell). Its "no" counts
        only once the handler cannot be running any more.
        """
        tool = compiled.tool
        verify = tool.verify
        if verify is None:
            return None
        context = self._handlers.build_context(call, context, entry.idempotency_key)
        try:
            found = await budget.run(self._call_verify(verify, copy_json(arguments), context, tool.name))
        except BaseException as error:
            if must_propagate(error):
                raise
            log.error("verify of %s failed", tool.name, exc_info=error)
            return "failed"
        if found is None or (found is False and not has_ended):
            return "cannot_tell" if found is None else "too_early"
        if found is False:
            return Outcome(result=failure_results.verified_failure(tool.name), happened="no")
        output = f"`{tool.name}` took effect." if found is True else found
        if is_plain(output):
            outcome = self._handlers.outcome_of_output(compiled, output, entry.session_id)
        else:
            outcome = await self._handlers.collect_outcome(compiled, output, entry.session_id)
        return await self._settlement.note_changes(entry, outcome)

    async def _call_verify(self, verify: Any, arguments: dict[str, Any], context: ToolContext[Any], name: str) -> Any:
        if inspect.iscoroutinefunction(verify):
            return await verify(arguments, context)
        found = await self._handlers.threads.run(lambda: verify(arguments, context), owner=name)
        return await found if inspect.isawaitable(found) else found

    async def _record_answer(self, entry: Entry, answer: VerifyAnswer, budget: TimeBudget) -> None:
        """Write what `verify` said about a call that another process began: an operator of any process sees it."""
        try:
            await budget.run(self._ledger.record_answer(entry, answer))
        except Exception:  # It changes nothing about the doubt.
            log.exception("what verify said about %s could not be recorded", entry.tool)

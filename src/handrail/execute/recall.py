"""Answers a consequential call that the ledger knows already, without running it."""

import asyncio
import time
from collections.abc import Mapping
from time import perf_counter
from typing import Any, Final

from msgspec import structs

from handrail.authorize.authorizer import Refusal
from handrail.authorize.effect_keys import CallArguments
from handrail.core import failure_results
from handrail.core.context import ToolContext
from handrail.core.log import log
from handrail.core.time_budget import TimeBudget
from handrail.core.values import ToolCall, ToolResult
from handrail.errors import must_propagate
from handrail.execute.executor_parts import CallParts
from handrail.execute.executor_tools import CompiledTool
from handrail.execute.ledger import Entry, LedgerDecision
from handrail.execute.limits import Admission
from handrail.execute.results import describe_duplicate, describe_entry, finish_result, replay
from handrail.execute.running import CallStopped, EffectCall, RunningCall
from handrail.execute.scheduler import CallRef

_FIRST_LOOK: Final = 0.05
_LAST_LOOK: Final = 0.5
"""Seconds between two looks at a call that another process runs; the delay grows."""


class CallRecall:
    """Looks calls up in the ledger, by their id and by the key of their effect."""

    def __init__(self, parts: CallParts, *, claims: Mapping[CallRef, RunningCall]) -> None:
        self._reader = parts.reader
        self._authorizer = parts.authorizer
        self._digests = parts.digests
        self._settlement = parts.settlement
        self._verification = parts.verification
        self._scheduler = parts.scheduler
        self._results = parts.results
        self._redactor = parts.redactor
        self._running = parts.running
        self._claims = claims
        self._overhead_timeout = parts.timeouts.overhead
        self._in_progress_timeout = parts.timeouts.in_progress

    async def find_known(self, sent: ToolCall, context: ToolContext[Any]) -> ToolResult | None:
        """What the ledger says about a call that cannot run as it is now, by its id alone; None if it knows nothing.

        Its tool may be gone, or want other arguments than it did when the call was made.
        """
        if not sent.id:
            return None
        try:
            entry = await self._reader.get((context.session_id, sent.id), TimeBudget(self._overhead_timeout))
        except (Exception, asyncio.CancelledError) as error:
            if must_propagate(error):
                raise
            log.error("the ledger cannot be read", exc_info=error)
            return failure_results.ledger_unreadable(sent.name)
        if entry is None:
            return None
        if entry.identity != self._digests.digest_identity(sent, context) or entry.agent_id != context.agent_id:
            return failure_results.duplicate_call(sent.name)
        return describe_entry(entry)

    async def check_access(
        self,
        compiled: CompiledTool,
        sent: CallArguments,
        ref: CallRef,
        context: ToolContext[Any],
        entry: Entry,
        budget: TimeBudget,
    ) -> None:
        """Refuse an entry to a caller who may not make this call, unless it is this very call of the same caller."""
        is_same_caller = (entry.customer_id, entry.agent_id) == (context.customer_id, context.agent_id)
        if is_same_caller and is_entry_of(entry, ref):
            return
        try:
            await self._authorizer.check_access(compiled.policy, sent.call, sent.get_arguments, context, budget)
        except Refusal as refusal:
            if refusal.result.error is None or refusal.result.error.code != "unavailable":
                raise
            # A check that failed says nothing about what was done before.
            raise Refusal(failure_results.ledger_unreadable(sent.call.name), refusal.decision) from refusal

    async def wait_for_owner(self, entry: Entry) -> bool:
        """Wait for a call that another process runs; whether it is over, or its process died."""
        ref, delay = (entry.session_id, entry.call_id), _FIRST_LOOK
        ends = time.monotonic() + self._in_progress_timeout
        while (left := ends - time.monotonic()) > 0:
            await asyncio.sleep(min(delay, left))
            delay = min(delay * 1.5, _LAST_LOOK)
            try:
                now_known = await self._reader.get(ref, TimeBudget(self._overhead_timeout))
            except Exception:
                log.exception("the ledger cannot be read")
                return False
            if now_known is None or now_known.state_at(time.time()) != "running":
                return True
        return False

    async def answer(
        self, effect: EffectCall, known: LedgerDecision, admission: Admission
    ) -> ToolResult | Entry | None:
        """The result of a call that must not run, or the entry of one in doubt; None if the ledger has changed."""
        name, entry, ref = effect.tool.name, known.entry, effect.running.ref
        assert entry is not None
        if known.step == "duplicate_id":
            return failure_results.duplicate_call(name)
        checking = self.check_access(effect.compiled, effect.sent, ref, effect.context, entry, effect.budget)
        try:
            await effect.running.wait(checking)
        except CallStopped:
            if known.step in ("in_progress", "unknown"):
                return failure_results.unsettled(name, is_running=known.step == "in_progress", is_same=known.is_same)
            raise
        if known.step == "duplicate_effect":
            return await describe_duplicate(entry, self._redactor)
        if known.step == "replay":
            return replay(entry, is_same_call=is_entry_of(entry, ref))
        if not known.is_same:  # The other call's result is not this one's.
            return failure_results.unsettled(name, is_running=known.step == "in_progress", is_same=False)
        claimed = self._claims.get((entry.session_id, entry.call_id))
        if claimed is not None:  # Even if its lease is over: a clock that jumps stops nothing.
            return await self._join_same_effect(effect, claimed, admission)
        if known.step == "in_progress":
            if effect.stored is not None:  # A worker has other calls to run: it is delivered again.
                return failure_results.in_progress(name)
            try:
                is_over = await effect.running.wait(self.wait_for_owner(entry))
            except CallStopped:  # The other process goes on.
                return failure_results.in_progress(name)
            return None if is_over else failure_results.in_progress(name)
        return entry

    async def _join_same_effect(self, effect: EffectCall, other: RunningCall, admission: Admission) -> ToolResult:
        """Wait for another call of the same effect, which runs in this process, and return its result."""
        if self._scheduler.is_inside(other.ref, admission.scope.parent):  # It would wait for itself.
            return failure_results.in_progress(effect.tool.name)
        admission.release()
        effect.queue_entry.release()
        try:
            result = await effect.running.wait(other.wait_result())
        except CallStopped:
            return failure_results.join_cancelled(effect.tool.name)
        return structs.replace(result, origin="joined", metadata={**result.metadata, "joined": other.call.id})

    # Looking up what became of a call, without running it.

    async def look_up(
        self,
        compiled: CompiledTool | None,
        call: ToolCall,
        context: ToolContext[Any],
        *,
        by_key: bool,
        sent: ToolCall,
    ) -> ToolResult | None:
        """What is known about a call that was made before; None if the ledger knows nothing about it.

        Without `compiled` (its tool is gone, or its arguments cannot be prepared any more) only its own entry counts.
        `sent` is the call before its hooks.
        """
        started, ref, budget = perf_counter(), (context.session_id, call.id), TimeBudget(self._overhead_timeout)
        arguments: CallArguments | None = None
        if compiled is not None:
            try:
                arguments = self._digests.read_call(compiled.tool, call, context, sent)
            except Exception:  # noqa: BLE001  # the tool is not what it was
                compiled = None
        try:
            if compiled is None or arguments is None:
                result = await self.find_known(sent, context)
                if result is not None and result.error is not None and result.error.code == "unavailable":
                    result = failure_results.outcome_unknown(call.name)
            else:
                known = await self._reader.decide(arguments, ref, compiled.tool, context, budget)
                if not by_key and (known.entry is None or not is_entry_of(known.entry, ref)):
                    return None
                result = await self._describe_known(compiled, arguments, ref, context, known, budget)
        except Refusal as refusal:
            is_unreadable = refusal.result.error is not None and refusal.result.error.code == "unavailable"
            result = failure_results.outcome_unknown(call.name) if is_unreadable else refusal.result
        except Exception:
            log.exception("the ledger cannot be read")
            result = failure_results.outcome_unknown(call.name)
        if result is None:
            return None
        is_open = result.error is not None and result.error.code in ("in_progress", "outcome_unknown")
        if is_open or (result.origin == "replayed" and not by_key):  # Nothing new.
            return finish_result(result, call, started)
        return self._results.report(call, context, result, started)

    async def _describe_known(
        self,
        compiled: CompiledTool,
        sent: CallArguments,
        ref: CallRef,
        context: ToolContext[Any],
        known: LedgerDecision,
        budget: TimeBudget,
    ) -> ToolResult | None:
        name, entry = compiled.tool.name, known.entry
        if entry is None:
            return None
        if known.step == "duplicate_id":
            return failure_results.duplicate_call(name)
        await self.check_access(compiled, sent, ref, context, entry, budget)
        is_failed = known.step == "ask_again" and entry.state != "committed"
        if known.step == "run" or is_failed:  # Another call of the same effect failed, and this one never began.
            return failure_results.not_started(name)
        if known.step == "duplicate_effect" or (known.step == "ask_again" and not known.is_same):
            return await describe_duplicate(entry, self._redactor)
        if known.step in ("replay", "ask_again"):
            return replay(entry, is_same_call=is_entry_of(entry, ref))
        is_running = known.step == "in_progress" or self._running.find((entry.session_id, entry.call_id)) is not None
        if is_running or not known.is_same:
            return failure_results.unsettled(name, is_running=is_running, is_same=known.is_same)
        found = await self._verification.settle_doubt(compiled, sent, context, entry, budget)
        if found != "nothing happened":
            return found or failure_results.outcome_unknown(name)
        is_recorded = await self._settlement.settle_as_failed(entry, budget)  # Others must know it.
        return failure_results.verified_failure(name) if is_recorded else failure_results.outcome_unknown(name)


def is_entry_of(entry: Entry, ref: CallRef) -> bool:
    """Whether an entry is the one of this very call."""
    return (entry.session_id, entry.call_id) == ref

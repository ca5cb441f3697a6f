"""Runs consequential calls: recall, authorise, wait, claim, run once, settle, in a task that outlives the caller."""

import asyncio
import math
import time
from collections.abc import Awaitable
from contextlib import suppress
from time import perf_counter
from typing import Any, Final
from uuid import uuid4

from msgspec import structs

from handrail.authorize.authorizer import Authorization, Refusal, Repetition, decide_within, refuse_on_error
from handrail.authorize.effect_keys import CallArguments
from handrail.core import failure_results
from handrail.core.context import ToolContext
from handrail.core.events import CallStarted, CallTakenOver
from handrail.core.log import log
from handrail.core.secret_patterns import MAX_PIECE
from handrail.core.text import compact_json, quick_json
from handrail.core.time_budget import ShieldedStep, TimeBudget
from handrail.core.values import Approval, Decision, ToolCall, ToolResult
from handrail.errors import ToolError, must_propagate
from handrail.execute.durable import DurableCalls
from handrail.execute.event_bus import build_started
from handrail.execute.executor_parts import CallParts
from handrail.execute.executor_tools import CompiledTool
from handrail.execute.handlers import Outcome, keep_doubt
from handrail.execute.ledger import (
    NOTHING_KNOWN,
    Entry,
    LedgerDecision,
    awaits_plain_futures,
    begin_lease,
    can_claim_new,
    is_same_decision,
)
from handrail.execute.limits import Admission
from handrail.execute.recall import CallRecall, is_entry_of
from handrail.execute.results import describe_duplicate, replay
from handrail.execute.running import (
    GRACE,
    STARTS_AT_ONCE,
    CallStopped,
    EffectCall,
    RunningCall,
    start_task,
    yield_once,
)
from handrail.execute.scheduler import CallRef, LocksCrossed, current_scope
from handrail.execute.stored_calls import StoredCall, WorkItem
from handrail.execute.takeover import Takeover

_MAX_ROUNDS: Final = 20
"""How often a call looks into the ledger again because another call was faster."""


_MAX_CONFIRMATIONS: Final = 3
"""How often a call confirms that it is still this executor's, if each time takes longer than a lease."""


_MAX_UNSETTLED: Final = 50_000
"""Above so many calls that are not settled, each new one is looked up before it is claimed."""


class EffectRunner:
    """Runs consequential calls. The ledger decides what runs; each handler runs at most once."""

    def __init__(self, parts: CallParts, *, warns_without_customer: bool) -> None:
        ledger, approvals, authorizer = parts.ledger, parts.approvals, parts.authorizer
        self._claims: dict[CallRef, RunningCall] = {}
        """The calls of this process that are, or are about to be, in the ledger as running."""
        self._unsettled: set[CallRef] = set()
        """The entries that this executor has claimed or taken over, and of which it did not write how they ended."""
        self._can_claim_new = can_claim_new(ledger)
        self.recall = CallRecall(parts, claims=self._claims)
        self._takeover = Takeover(parts)
        self.durable = None if parts.work is None else DurableCalls(parts, work=parts.work, recall=self.recall)
        """Stores calls of durable tools, and answers what became of them; None without a store of such calls."""
        self._ledger = ledger
        self._reader = parts.reader
        self._approvals = approvals
        self._authorizer = authorizer
        self._digests = parts.digests
        self._handlers = parts.handlers
        self._settlement = parts.settlement
        self._verification = parts.verification
        self._scheduler = parts.scheduler
        self._admission = parts.admission
        self._is_limited = not parts.admission.is_unlimited
        self._events = parts.events
        self._results = parts.results
        self._redactor = parts.redactor
        self._running = parts.running
        self._owner = parts.owner
        self._overhead_timeout = overhead_timeout = parts.timeouts.overhead
        self._repeat_window = parts.timeouts.repeat_window
        self._grace = min(GRACE, overhead_timeout)
        self._is_immediate = ledger.is_immediate and approvals.is_immediate
        self._is_plain = awaits_plain_futures(ledger, approvals, parts.work)
        self._needs_lease = ledger.needs_lease
        self._lease = parts.timeouts.lease if ledger.needs_lease else math.inf
        self._lease_grace = parts.timeouts.lease_grace
        self._warns_without_customer = warns_without_customer and ledger.needs_lease
        self._is_written = ledger.is_written
        self._is_audited = parts.store.audit is not None
        self._can_decide_at_once = approvals.is_immediate and not authorizer.has_hooks

    # The caller's side.

    async def run(
        self,
        compiled: CompiledTool,
        call: ToolCall,
        context: ToolContext[Any],
        sent_call: ToolCall | None = None,
        stored: StoredCall | None = None,
    ) -> ToolResult:
        """Run one call, or join the same call if it is already running. `sent_call` is the call before its hooks.

        `stored` is the call as a worker took it, with what was decided about it.
        """
        started = perf_counter()
        tool, sent_call = compiled.tool, sent_call or call
        try:
            sent = self._digests.read_call(tool, call, context, sent_call)
        except ToolError as error:
            return await self.refuse(call, context, failure_results.error_result(error), started, sent_call)
        except BaseException as error:
            if must_propagate(error):
                raise
            log.error("the arguments of %s, or their key, cannot be computed", tool.name, exc_info=error)
            failed = failure_results.failed_before_start(tool.name)
            return await self.refuse(call, context, failed, started, sent_call)
        # A call without an id is never the same as an earlier one.
        ref = (context.session_id, call.id or f"no id: {uuid4().hex}")
        running = self._running.find(ref) if self._running.by_session else None
        if running is not None:
            return await self._join_same_call(running, compiled, sent, context)
        running = RunningCall(call, tool, context, sent.identity, ref, grace=self._grace)
        effect = EffectCall(
            running=running,
            tool=tool,
            compiled=compiled,
            context=context,
            sent=sent,
            actual=sent,
            queue_entry=self._scheduler.enqueue(context.session_id, compiled.concurrency, lock_key=sent.lock_key),
            budget=TimeBudget(self._overhead_timeout),
            started=started,
            stored=stored,
        )
        if self._events.has_listeners:
            self._events.emit_accepted(call, context)
        loop = self._running.add(running)
        running.on_stuck = lambda: self._give_up(effect)
        running.task = start_task(loop, self._run_task(effect), f"handrail:{context.session_id}:{call.id}")
        try:
            if running.result is None and not STARTS_AT_ONCE:
                await yield_once()
            if running.result is not None:  # It never had to wait.
                return running.result
            return await running.result_future()
        except asyncio.CancelledError:
            self._stop_abandoned(effect)
            raise

    async def refuse(
        self, call: ToolCall, context: ToolContext[Any], refusal: ToolResult, started: float, sent_call: ToolCall
    ) -> ToolResult:
        """The result of a call that cannot run as it is now: what the ledger knows about it, else the refusal."""
        return self._results.report(call, context, await self.recall.find_known(sent_call, context) or refusal, started)

    async def request_approval(
        self, compiled: CompiledTool, call: ToolCall, context: ToolContext[Any]
    ) -> Approval | None:
        """The question that running the call would ask; None if it would ask none. Nothing runs."""
        tool = compiled.tool
        try:
            sent = self._digests.read_call(tool, call, context, call)
            budget = TimeBudget(self._overhead_timeout)
            known = await self._reader.decide(sent, (context.session_id, call.id), tool, context, budget)
            if known.step in ("run", "ask_again"):
                await self.authorize(compiled, sent, context, known, budget)
        except ToolError:
            return None
        except Refusal as refusal:
            return refusal.result.approval
        except Exception:
            log.exception("it cannot be asked about %s: its arguments, or their key, cannot be computed", tool.name)
        return None

    async def _join_same_call(
        self, running: RunningCall, compiled: CompiledTool, sent: CallArguments, context: ToolContext[Any]
    ) -> ToolResult:
        """The call arrived a second time while it is running: wait for its result."""
        call, started = sent.call, perf_counter()
        is_inside = self._scheduler.is_inside(running.ref, current_scope())  # It would wait for itself.
        if is_inside or running.identity != sent.identity:
            failed = failure_results.in_progress if is_inside else failure_results.duplicate_call
            return self._results.report(call, context, failed(call.name), started)
        if not running.is_same_caller(context):
            try:
                budget = TimeBudget(self._overhead_timeout)
                await self._authorizer.check_access(compiled.policy, call, sent.get_arguments, context, budget)
            except Refusal as refusal:
                return self._results.report(call, context, refusal.result, started, refusal.decision)
        self._events.emit_ignored(call, context, "already_pending")
        return await running.wait_result()

    def _stop_abandoned(self, effect: EffectCall) -> None:
        """The caller was cancelled: a call that has not begun does not begin, any other does what its tool says."""
        running = effect.running
        if effect.tool.durable and running.on_interrupt != "cancel":
            return  # It outlives its caller.
        if not running.has_begun or running.on_interrupt == "cancel":
            running.stop("cancelled")

    def stop_unclaimed(self, ref: CallRef) -> bool:
        """Stop a call, if it waits and nothing of it is in the ledger; whether it was stopped."""
        running = self._running.find(ref)
        if running is None or running.has_begun or ref in self._claims:
            return False
        running.stop("cancelled")
        return True

    def _give_up(self, effect: EffectCall) -> None:
        """The call was stopped and does not end: the caller gets its result, and the session goes on."""
        effect.queue_entry.release()
        name, has_begun = effect.tool.name, effect.running.has_begun
        self._end(effect, failure_results.outcome_unknown(name) if has_begun else _describe_cancelled(effect))

    # The task of one call.

    async def _run_task(self, effect: EffectCall) -> None:
        scope = self._scheduler.open_scope(effect.running.ref, effect.queue_entry)
        admission = Admission(self._admission, effect.tool, scope)
        name = effect.tool.name
        try:
            result = await self._run_steps(effect, admission)
        except Refusal as refusal:
            effect.decision = refusal.decision or effect.decision
            result = refusal.result
        except CallStopped:  # Before the handler was entered.
            result = _describe_cancelled(effect)
        except BaseException as error:  # The program ends, this task itself was cancelled, or there is a defect in it.
            log.error("the task of %s failed", name, exc_info=error)
            self._end(effect, _describe_failed_task(effect, error))
            if not isinstance(error, Exception):
                raise
            return
        finally:
            if self._is_limited:
                admission.release()
            effect.queue_entry.release()
            scope.is_over = True
        self._results.end_call(effect.running, effect.actual.call, result, effect.started, effect.decision)

    async def _run_steps(self, effect: EffectCall, admission: Admission) -> ToolResult:
        """Recall, authorise, wait, claim, run, settle. A claim that fails starts over with what is known then.

        A call that nobody has to be asked about is claimed first, if nothing is known about it: recall and claim are
        then one step of the ledger.
        """
        running = effect.running
        if (authorization := self._authorize_new(effect)) is not None:
            try:
                result = await self._claim_and_run(effect, NOTHING_KNOWN, authorization, admission, is_new=True)
            except Refusal as refusal:
                if effect.is_recalled:
                    raise
                answer = await self._answer_unclaimed(effect, refusal.result, admission)
                raise Refusal(answer, refusal.decision) from refusal
            if result is not None:
                return result
        for _ in range(_MAX_ROUNDS):
            effect.is_recalled = False
            reading = self._reader.decide(effect.sent, running.ref, effect.tool, effect.context, effect.budget)
            known = await (reading if self._is_immediate else running.wait(reading))
            if known.step not in ("run", "ask_again"):
                answer = await self.recall.answer(effect, known, admission)
                if isinstance(answer, Entry):
                    answer = await self._end_doubt(effect, answer, admission)
                if answer is None:  # The entry changed: recall again.
                    continue
                return answer
            effect.is_recalled = True
            if running.stopped_by is not None:
                raise CallStopped(running.stopped_by)
            try:
                if effect.stored is None or self.durable is None:
                    authorization = self._authorize_at_once(effect.compiled, effect.sent, known)
                else:
                    authorization = await running.wait(self.durable.authorize(effect, known))
                if authorization is None:
                    authorization = await running.wait(  # A cancellation reaches it in a check or a hook.
                        self.authorize(effect.compiled, effect.sent, effect.context, known, effect.budget)
                    )
            except Refusal as refusal:
                if await running.wait(self._is_outdated(effect, known, refusal)):
                    continue  # Another call of the same effect began meanwhile: recall again.
                if effect.tool.durable and self.durable is not None:
                    await self.durable.park(effect, known, refusal)
                raise
            effect.decision = authorization.decision
            effect.actual = effect.sent
            if authorization.call is not effect.sent.call:
                known = await self._apply_changes(effect, authorization, known, admission)
            result = await self._claim_and_run(effect, known, authorization, admission)
            if result is not None:
                return result
        log.error("%s could not be claimed, and nothing in the ledger says why", effect.tool.name)
        return failure_results.ledger_unreadable(effect.tool.name)

    async def _claim_and_run(
        self,
        effect: EffectCall,
        known: LedgerDecision,
        authorization: Authorization,
        admission: Admission,
        *,
        is_new: bool = False,
    ) -> ToolResult | None:
        """Wait, claim, run, settle; None if the call could not be claimed. One that `is_new` was not looked up."""
        running = effect.running
        if self._is_limited or not effect.queue_entry.is_granted:
            await self._wait_for_turn(effect, admission)
        entry = self._build_entry(effect, known, authorization)
        if self._is_written:
            entry = await self._redact_entry(entry, effect.actual)
        if running.stopped_by is not None:
            raise CallStopped(running.stopped_by)
        if (undoing := self._settlement.undoing.get(running.ref)) is not None:
            await self._wait_until_undone(effect, undoing)
            return None
        self._claims[running.ref] = running
        try:
            started = self._build_started(effect, authorization.decision)
            step = None
            try:
                claiming, step = self._begin_claim(effect, entry, authorization, started, is_new=is_new)
                is_claimed = await claiming
            except BaseException as error:
                await self._undo_claim(effect, entry, step, error)
                raise
            if not is_claimed:  # Another call was faster, or it is known already.
                return None
            effect.is_recalled, effect.decision = True, authorization.decision
            return await self._run_claimed(effect, entry, authorization.approval, started, admission)
        finally:
            del self._claims[running.ref]

    async def _wait_until_undone(self, effect: EffectCall, undoing: "asyncio.Future[None]") -> None:
        """Wait until an earlier claim of this call is undone; it is unavailable if that takes too long."""
        try:
            await effect.running.wait(effect.budget.run(asyncio.shield(undoing)))
        except TimeoutError as error:
            raise Refusal(failure_results.unavailable(effect.tool.name), effect.decision) from error

    async def _wait_for_turn(self, effect: EffectCall, admission: Admission) -> None:
        """Wait in the queue of the session or of the lock key, and for the limits."""
        running = effect.running
        if not effect.queue_entry.is_granted:
            try:
                await running.wait(effect.queue_entry.wait())
            except LocksCrossed as error:
                raise Refusal(failure_results.locks_cross(effect.tool.name), effect.decision) from error
        if self._is_limited:
            await running.wait(admission.acquire(effect.context))
        if running.stopped_by is not None:
            raise CallStopped(running.stopped_by)

    # 1. Recall.

    async def _is_outdated(self, effect: EffectCall, known: LedgerDecision, refusal: Refusal) -> bool:
        """Whether the ledger changed while the call was decided about; a question that was asked is then withdrawn."""
        try:
            now = await self._reader.decide(effect.sent, effect.running.ref, effect.tool, effect.context, effect.budget)
            if is_same_decision(now, known):
                return False
            approval = refusal.result.approval
            if approval is not None and approval.state == "pending":
                await TimeBudget(self._overhead_timeout).run(self._approvals.withdraw(approval.token))
        except Refusal:  # The ledger cannot be read: what was decided holds.
            return False
        except Exception:
            log.exception("a question about %s could not be withdrawn", effect.tool.name)
        return True

    async def _end_doubt(self, effect: EffectCall, entry: Entry, admission: Admission) -> ToolResult | None:
        """Find out what became of a call, or take it over and run it; None if another worker was faster."""
        found = await self._takeover.end_doubt(effect, entry)
        if isinstance(found, ToolResult):
            return found
        await self._takeover.prepare(effect, found, lambda: self._wait_for_turn(effect, admission))
        started = self._build_started(effect, found.decision)
        ref = (entry.session_id, entry.call_id)
        if ref in self._settlement.undoing:
            return failure_results.outcome_unknown(effect.tool.name)
        if ref in self._claims:  # Its own call has come again: this one joins it.
            return None
        self._claims[ref] = effect.running
        try:
            taken = await self._takeover.take(effect, found, started if self._is_audited else None)
            if taken is None:
                return None
            # Any other is taken over only once its `verify` has said that nothing happened.
            effect.running.is_in_doubt = effect.tool.idempotent
            if self._events.has_listeners:
                self._events.emit(build_taken_over(effect, found.owner, taken.owner))
            return await self._run_claimed(effect, taken, None, started, admission, earlier=found)
        finally:
            del self._claims[ref]

    # 2. Authorise.

    def _authorize_new(self, effect: EffectCall) -> Authorization | None:
        """The authorization of a call that can be claimed without being looked up; None if it has to be.

        A claim whose answer is lost is undone by id and owner. So a call is looked up first if this executor may have
        an older entry of the same id: undoing would end that one.
        """
        if not self._can_claim_new or self._is_limited or not effect.queue_entry.is_granted:
            return None
        running = effect.running
        if running.stopped_by is not None or running.ref in self._claims:
            return None
        if running.ref in self._unsettled or running.ref in self._settlement.undoing:
            return None
        sent = effect.sent
        authorization = self._authorize_at_once(effect.compiled, sent, NOTHING_KNOWN)
        if authorization is None:
            decision = self._authorizer.apply_rules(
                effect.compiled.policy, sent.call, sent.get_arguments, effect.context
            )
            if decision is None:
                return None
            authorization = Authorization(decision=decision, call=sent.call, value=sent.value)
        if effect.stored is None:
            return authorization
        item = effect.stored.item  # What was decided when it was stored holds.
        if item.decision is None or item.decision.action != "allow" or item.approval is not None or item.repeat:
            return None
        return Authorization(decision=item.decision, call=sent.call, value=sent.value)

    def _authorize_at_once(
        self, compiled: CompiledTool, sent: CallArguments, known: LedgerDecision
    ) -> Authorization | None:
        """The authorization of a call of a tool that is always allowed; None if somebody or something decides."""
        decision = compiled.decision
        if decision is None or known.step != "run" or self._authorizer.has_hooks or sent.call.ask_operator:
            return None
        return Authorization(decision=decision, call=sent.call, value=sent.value)

    async def authorize(
        self,
        compiled: CompiledTool,
        sent: CallArguments,
        context: ToolContext[Any],
        known: LedgerDecision,
        budget: TimeBudget,
    ) -> Authorization:
        repetition = None
        if known.step == "ask_again" and known.entry is not None:
            done_at = known.entry.settled_at or known.entry.claimed_at
            repetition = Repetition(
                number=known.repeat,
                done_at=failure_results.format_time(done_at) if known.entry.state == "committed" else None,
                done_with=None if known.is_same else await self._redactor.text_aside(known.entry.arguments),
            )
        deciding = self._authorizer.authorize(
            compiled.policy, sent.call, sent.value, sent.get_arguments, context, repetition
        )
        if self._can_decide_at_once and compiled.tool.permission_check is None:
            return await deciding
        return await decide_within(budget, deciding, compiled.tool.name)

    async def _apply_changes(
        self, effect: EffectCall, authorization: Authorization, known: LedgerDecision, admission: Admission
    ) -> LedgerDecision:
        """Give the call the arguments of its approver: keyed, locked and looked up in the ledger like new ones."""
        tool = effect.tool
        with refuse_on_error(tool.name):
            actual = self._digests.read_call(
                tool, authorization.call, effect.context, effect.sent.sent_call, authorization.value
            )
        effect.actual = actual
        if actual.lock_key != effect.queue_entry.lock_key:
            effect.queue_entry.release()
            effect.queue_entry = self._scheduler.enqueue_again(
                admission.scope, effect.compiled.concurrency, lock_key=actual.lock_key
            )
        if (actual.key, actual.full_key) == (effect.sent.key, effect.sent.full_key):
            return known
        reading = self._reader.decide(actual, effect.running.ref, tool, effect.context, effect.budget)
        known = await effect.running.wait(reading)
        if known.step == "run":
            return known
        entry = known.entry
        assert entry is not None
        if known.step == "replay":
            raise Refusal(replay(entry, is_same_call=False), effect.decision)
        if known.step in ("duplicate_effect", "ask_again"):  # The approver was not told that it was done before.
            raise Refusal(await describe_duplicate(entry, self._redactor), effect.decision)
        is_running = known.step == "in_progress"
        refusal = failure_results.unsettled(tool.name, is_running=is_running, is_same=known.is_same)
        raise Refusal(refusal, effect.decision)

    # 3. Claim.

    def _build_started(self, effect: EffectCall, decision: Decision | None) -> CallStarted | None:
        if not self._events.has_listeners:
            return None
        return build_started(effect.actual.call, effect.context, decision, accepted=effect.running.call)

    async def _redact_entry(self, entry: Entry, actual: CallArguments) -> Entry:
        """The entry as it is written: the reason of a question may quote values, too."""
        decision = entry.decision
        if decision is not None and decision.action != "allow":
            decision = structs.replace(decision, reason=await self._redactor.text_aside(decision.reason))
        arguments = await self._redactor.run_aside(
            lambda: compact_json(self._redactor.arguments(actual.arguments)),
            is_long=len(actual.call.arguments_json) > MAX_PIECE,
        )
        return structs.replace(entry, decision=decision, arguments=arguments)

    def _build_entry(self, effect: EffectCall, known: LedgerDecision, authorization: Authorization) -> Entry:
        """Build the entry of a call that is about to be claimed; `_redact_entry` comes before it is written."""
        now, context, sent, actual = time.time(), effect.context, effect.sent, effect.actual
        if self._warns_without_customer and context.customer_id is None:
            self._warns_without_customer = False  # Once.
            log.warning(
                "%s runs without a customer, so that the same call is recognised in its own session only, and runs "
                'again in another: pass ToolContext(customer_id=…), or Executor(scope="session") if this is meant',
                effect.tool.name,
            )
        session_id, call_id = effect.running.ref
        run_until, lease_until = begin_lease(
            now, effect.compiled.max_duration, lease=self._lease, grace=self._lease_grace
        )
        # In two calls: one with more than 15 names would collect them in a dict first, and take 1.3 µs instead of 0.5.
        entry = Entry(
            session_id=session_id,
            call_id=call_id,
            tool=effect.tool.name,
            identity=sent.identity,
            key=actual.key,
            full_key=actual.full_key,
            sent_key=sent.key,
            arguments_digest=actual.digest,
            number=known.number,
            full_number=known.full_number,
            repeat=known.repeat,
            turn=context.turn,
            owner=self._owner,
            claimed_at=now,
            lease_until=lease_until,
        )
        return structs.replace(
            entry,
            tenant_id=context.tenant_id,
            customer_id=context.customer_id,
            agent_id=context.agent_id,
            arguments="" if self._is_written else quick_json(actual.arguments),
            changed_arguments=None if actual is sent else actual.call.arguments_json,
            run_until=run_until,
            repeat_until=run_until + self._repeat_window,
            guideline_ids=actual.call.guideline_ids,
            decision=authorization.decision,
            approval=None if authorization.approval is None else authorization.approval.token,
            is_durable=effect.tool.durable,
        )

    def _begin_claim(
        self,
        effect: EffectCall,
        entry: Entry,
        authorization: Authorization,
        started: CallStarted | None,
        *,
        is_new: bool,
    ) -> tuple[Awaitable[bool], ShieldedStep[bool] | None]:
        """What writes the entry and consumes the approval, and its step, if that may outlive the wait for it."""
        approval, approvals = authorization.approval, self._approvals
        audited = started if self._is_audited else None
        if effect.tool.durable and effect.stored is None and self.durable is not None:
            options: dict[str, Any] = {"item": self._build_row(effect, entry, self.durable), "work": self.durable.work}
            if is_new:
                options["is_new"] = True
            claiming = self._ledger.claim(entry, approval=approval, approvals=approvals, started=audited, **options)
        elif is_new:
            claiming = self._ledger.claim(entry, approval=approval, approvals=approvals, started=audited, is_new=True)
        else:
            claiming = self._ledger.claim(entry, approval=approval, approvals=approvals, started=audited)
        if self._is_immediate:
            return claiming, None
        step = ShieldedStep(claiming, is_plain=self._is_plain)
        return effect.budget.run_shielded(step), step

    async def _undo_claim(
        self, effect: EffectCall, entry: Entry, step: ShieldedStep[bool] | None, error: BaseException
    ) -> None:
        """A claim failed: undo what may have been written of it. The call is unavailable, unless it was cancelled."""
        log.error("the ledger cannot be written", exc_info=error)
        result = failure_results.unavailable(effect.tool.name)
        await self._settlement.undo_claim(entry, step, result)
        if isinstance(error, Exception):
            raise Refusal(result, effect.decision) from error

    async def _answer_unclaimed(self, effect: EffectCall, unavailable: ToolResult, admission: Admission) -> ToolResult:
        """The result of a call that was not looked up and could not be claimed: what is known about it, if it is."""
        ref = effect.running.ref
        known = await self._reader.decide(effect.sent, ref, effect.tool, effect.context, effect.budget)
        entry = known.entry
        if entry is None or known.step in ("run", "ask_again"):
            return unavailable
        if entry.state == "running" and entry.owner == self._owner and is_entry_of(entry, ref):
            return unavailable  # The claim was written, and is being undone.
        answer = await self.recall.answer(effect, known, admission)
        if answer is None:
            return failure_results.ledger_unreadable(effect.tool.name)
        return answer if isinstance(answer, ToolResult) else failure_results.outcome_unknown(effect.tool.name)

    def _build_row(self, effect: EffectCall, entry: Entry, durable: DurableCalls) -> WorkItem:
        """The row of a durable call that runs here: if this process dies, a worker finds it."""
        return durable.build_item(
            effect.tool,
            effect.sent,
            effect.context,
            call_id=entry.call_id,
            decision=entry.decision,
            approval=entry.approval,
            repeat=entry.repeat,
            owner=self._owner,
        )

    # 4. Run and settle.

    async def _run_claimed(
        self,
        effect: EffectCall,
        entry: Entry,
        approval: Approval | None,
        started: CallStarted | None,
        admission: Admission,
        *,
        earlier: Entry | None = None,
    ) -> ToolResult:
        """Run the handler of a claimed call, and settle it; `earlier` is the entry that it was taken over from."""
        running, compiled, context, value = effect.running, effect.compiled, effect.context, effect.actual.value
        ref = running.ref if earlier is None else (entry.session_id, entry.call_id)
        if len(self._unsettled) < _MAX_UNSETTLED:
            self._unsettled.add(ref)
        else:
            self._can_claim_new = False
        if started is not None:
            self._events.emit(started)
        if self._needs_lease:
            if time.time() >= entry.lease_until:  # The process was frozen, or the ledger took long.
                confirmed = await self._confirm(effect, entry)
                if confirmed is None:
                    log.warning("%s does not run here: another worker has taken it over", effect.tool.name)
                    return failure_results.unsettled(effect.tool.name, is_running=True)
                entry = confirmed
            self._settlement.leases.hold(entry)
        if compiled.tool.takes_context:
            context = self._handlers.build_context(effect.actual.call, context, entry.idempotency_key)
        try:
            outcome = await self._handlers.run(compiled, running, value, context)
        except BaseException:  # The program ends, or this task itself was cancelled.
            self._settlement.leases.release(entry)
            lost = Outcome(result=failure_results.outcome_unknown(effect.tool.name), happened="unknown")
            await self._settlement.settle(entry, lost, retry_delays=())
            raise
        if running.is_in_doubt:
            outcome = keep_doubt(compiled, outcome)
        if running.has_begun and entry.changed_arguments is not None:
            outcome = await self._settlement.note_changes(entry, outcome)
        if self._is_limited:
            admission.report(outcome.is_healthy)
        if outcome.happened == "unknown" and running.stranded_job is not None:
            # Its thread still runs: the entry stays running, so that nobody runs it again, and is settled at its end.
            self._settlement.settle_at_end(compiled, entry, running.stranded_job, is_in_doubt=running.is_in_doubt)
            return outcome.result
        if outcome.happened == "unknown":
            arguments = effect.actual.arguments
            has_ended = earlier is None or earlier.has_ended_at(time.time())
            verifying = self._verification.ask(
                compiled,
                effect.actual.call,
                effect.context,
                entry,
                arguments,
                budget=effect.budget,
                has_ended=has_ended,
            )
            running.stopped_by = None  # What stopped the handler does not stop this; another cancellation does.
            with suppress(CallStopped):
                found = await running.wait(verifying)
                outcome = found if isinstance(found, Outcome) else structs.replace(outcome, verified=found)
        if not running.has_begun and not running.is_in_doubt and approval is not None:
            await self._restore_approval(approval)
        if self._is_immediate:
            is_recorded = await self._settlement.settle(entry, outcome)
        else:
            is_recorded = await self._settlement.settle_within(entry, outcome, effect.budget)
        if is_recorded and outcome.happened != "unknown":
            self._unsettled.discard(ref)
            if effect.stored is not None:
                effect.stored.is_ended = True
        return outcome.result if is_recorded else structs.replace(outcome.result, recorded=False)

    async def _confirm(self, effect: EffectCall, entry: Entry) -> Entry | None:
        """The entry of a call whose lease was over before its handler began, if it is still this executor's."""
        try:
            for _ in range(_MAX_CONFIRMATIONS):
                confirmed = await self._takeover.confirm(effect, entry, TimeBudget(self._overhead_timeout))
                if confirmed is None or time.time() < confirmed.lease_until:
                    return confirmed
                entry = confirmed
        except Exception:
            log.exception("the ledger cannot be read")
        if effect.running.is_in_doubt:
            raise Refusal(failure_results.outcome_unknown(effect.tool.name), effect.decision)
        result = failure_results.unavailable(effect.tool.name)  # Nothing was begun.
        await self._settlement.undo_claim(entry, None, result)
        raise Refusal(result, effect.decision)

    async def _restore_approval(self, approval: Approval) -> None:
        """The call was cancelled between its claim and its handler: its approval can be used again."""
        try:
            await TimeBudget(self._overhead_timeout).run(self._approvals.restore(approval.token))
        except Exception:
            log.exception("an approval could not be restored")

    def _end(self, effect: EffectCall, result: ToolResult) -> None:
        self._results.end_call(effect.running, effect.actual.call, result, effect.started, effect.decision)


def build_taken_over(effect: EffectCall, previous_owner: str, owner: str) -> CallTakenOver:
    """The event that says that a call of another owner runs here now."""
    context = effect.context
    return CallTakenOver(
        at=time.time(),
        session_id=context.session_id,
        tenant_id=context.tenant_id,
        customer_id=context.customer_id,
        call=effect.actual.call,
        previous_owner=previous_owner,
        owner=owner,
    )


def _describe_failed_task(effect: EffectCall, error: BaseException) -> ToolResult:
    name = effect.tool.name
    if effect.running.has_begun:
        return failure_results.outcome_unknown(name)
    if must_propagate(error):
        return _describe_cancelled(effect)
    # A store can raise `CancelledError` by itself: nobody has cancelled the call.
    return failure_results.unavailable(name) if effect.is_recalled else failure_results.ledger_unreadable(name)


def _describe_cancelled(effect: EffectCall) -> ToolResult:
    describe = failure_results.call_cancelled if effect.is_recalled else failure_results.cancelled_unread
    return describe(effect.tool.name)

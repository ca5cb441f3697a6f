"""Durable calls: stored with their decision, run by a worker or where they were made, and waited for in any process."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any, Final

import msgspec
from msgspec import structs

from handrail.authorize.authorizer import Authorization, Refusal
from handrail.authorize.effect_keys import CallArguments
from handrail.core import failure_results
from handrail.core.context import ToolContext
from handrail.core.events import ApprovalDecided, CallQueued, Event
from handrail.core.log import log
from handrail.core.time_budget import TimeBudget
from handrail.core.tool import Tool
from handrail.core.values import Decision, ToolCall, ToolResult
from handrail.errors import ConfigError, ToolError, must_propagate
from handrail.execute.executor_parts import CallParts
from handrail.execute.executor_tools import CompiledTool
from handrail.execute.ledger import Entry, LedgerDecision, awaits_plain_futures, find_queue_new
from handrail.execute.recall import CallRecall, is_entry_of
from handrail.execute.results import describe_duplicate, describe_entry, finish_result, replay
from handrail.execute.running import EffectCall
from handrail.execute.scheduler import CallRef
from handrail.execute.stored_calls import WaitForEnd, Work, WorkItem, can_wake, is_queued_here, send_item
from handrail.execute.worker_events import NoticeReceiver, NoticeSender

Authorize = Callable[
    [CompiledTool, CallArguments, ToolContext[Any], LedgerDecision, TimeBudget], Awaitable[Authorization]
]

_RETRY_DELAY: Final = 0.2
"""Seconds until a store that is away is asked again by somebody who waits."""


class DurableCalls:
    """Stores calls, and answers what became of them, for one executor."""

    def __init__(self, parts: CallParts, *, work: Work, recall: CallRecall) -> None:
        self.work = work
        self.sender = NoticeSender(work, owner=parts.owner, redactor=parts.redactor)
        """Tells other processes what a worker of this executor does."""
        self._receiver = NoticeReceiver(work, owner=parts.owner, events=parts.events, read_result=self._read_result)
        self._approvals = parts.approvals
        self._authorizer = parts.authorizer
        self._digests = parts.digests
        self._reader = parts.reader
        self._recall = recall
        self.settlement = parts.settlement
        self._results = parts.results
        self._events = parts.events
        self._redactor = parts.redactor
        self._overhead_timeout = parts.timeouts.overhead
        self._is_plain = awaits_plain_futures(work)
        self._queue_new = find_queue_new(parts.ledger)
        self._unserved_after = parts.timeouts.unserved_after
        self._max_queued = parts.limits.max_queued_per_tenant
        self._sending: set[asyncio.Task[None]] = set()

    # Storing.

    def build_item(
        self,
        tool: Tool[..., Any],
        sent: CallArguments,
        context: ToolContext[Any],
        *,
        call_id: str,
        decision: Decision | None,
        repeat: int,
        approval: str | None = None,
        owner: str | None = None,
        priority: int = 0,
    ) -> WorkItem:
        """The row of a call, sealed with what was decided about it."""
        if decision is not None and decision.action != "allow":  # The reason of a question may quote values.
            decision = structs.replace(decision, reason=self._redactor.text(decision.reason))
        item = WorkItem(
            session_id=context.session_id,
            call_id=call_id,
            tool=tool.name,
            definition=tool.definition_digest,
            tenant_id=context.tenant_id,
            customer_id=context.customer_id,
            agent_id=context.agent_id,
            turn=context.turn,
            wakes=context.wakes,
            priority=priority,
            call=sent.call,
            sent_call=sent.sent_call,
            decision=decision,
            approval=approval,
            repeat=repeat,
            owner=owner,
            is_heard=self._receiver.can_hear(context.session_id),
        )
        return structs.replace(item, seal=self._seal(item))

    def is_sealed(self, item: WorkItem) -> bool:
        """Whether a row is as it was stored: what it says about the call, and what was decided about it."""
        return item.seal == self._seal(item)

    def _seal(self, item: WorkItem) -> str:
        names = ("session_id", "call_id", "tool", "definition", "customer_id", "agent_id", "turn", "wakes")
        values = [item.tenant_id or "", *(getattr(item, name) for name in names)]
        decided = [item.call, item.sent_call, item.decision, item.approval, item.repeat]
        return self._digests.digest_row(msgspec.json.encode([values, decided]))

    async def submit(
        self,
        compiled: CompiledTool,
        call: ToolCall,
        context: ToolContext[Any],
        sent_call: ToolCall,
        *,
        authorize: Authorize,
        priority: int,
    ) -> ToolResult | None:
        """Store a call for a worker; its result, if there is nothing to store or somebody has to agree first."""
        started, tool = perf_counter(), compiled.tool
        try:
            sent = self._digests.read_call(tool, call, context, sent_call)
        except BaseException as error:
            if must_propagate(error):
                raise
            failed = failure_results.error_result(error) if isinstance(error, ToolError) else None
            if failed is None:
                log.error("the arguments of %s, or their key, cannot be computed", tool.name, exc_info=error)
                failed = failure_results.failed_before_start(tool.name)
            known = await self._recall.find_known(sent_call, context)
            return self._results.report(call, context, known or failed, started)
        budget = TimeBudget(self._overhead_timeout)
        try:
            result = await self._store(compiled, sent, context, authorize=authorize, priority=priority, budget=budget)
        except Refusal as refusal:
            return self._results.report(call, context, refusal.result, started, refusal.decision)
        except (Exception, asyncio.CancelledError) as error:
            if must_propagate(error):
                raise
            log.error("a call of %s could not be stored", tool.name, exc_info=error)
            return self._results.report(call, context, failure_results.unavailable(tool.name), started)
        return None if result is None else self._results.report(call, context, result, started)

    async def _store(
        self,
        compiled: CompiledTool,
        sent: CallArguments,
        context: ToolContext[Any],
        *,
        authorize: Authorize,
        priority: int,
        budget: TimeBudget,
    ) -> ToolResult | None:
        tool, call = compiled.tool, sent.call
        if await self._store_new(compiled, sent, context, priority=priority, budget=budget):
            return None
        ref = (context.session_id, call.id)
        known = await self._reader.decide(sent, ref, tool, context, budget)
        entry, decision, approval = known.entry, None, None
        if known.step not in ("run", "ask_again"):
            assert entry is not None
            if known.step == "duplicate_id":
                return failure_results.duplicate_call(tool.name)
            await self._recall.check_access(compiled, sent, ref, context, entry, budget)
            if known.step == "duplicate_effect":
                return await describe_duplicate(entry, self._redactor)
            if known.step == "replay":
                return replay(entry, is_same_call=is_entry_of(entry, ref))
            if not is_entry_of(entry, ref):  # Another call of the same effect was begun: this one may come later.
                is_running = known.step == "in_progress"
                return failure_results.unsettled(tool.name, is_running=is_running, is_same=known.is_same)
            decision = entry.decision  # This very call was begun: a worker finishes it.
        else:
            try:
                authorization = await authorize(compiled, sent, context, known, budget)
            except Refusal as refusal:
                if refusal.result.approval is not None:
                    await self._park(
                        compiled.tool, sent, context, call.id, known, refusal, priority=priority, owner=None
                    )
                raise
            decision = authorization.decision
            approval = None if authorization.approval is None else authorization.approval.token
        item = self.build_item(
            tool,
            sent,
            context,
            call_id=call.id,
            decision=decision,
            approval=approval,
            repeat=get_repeat(known),
            priority=priority,
        )
        if item.is_heard:
            await self._receiver.follow(item)
        putting = self.work.put(item, max_queued=self._max_queued)
        if not await budget.run_step(putting, is_plain=self._is_plain):
            return failure_results.queue_full(tool.name, _QUEUE_RETRY)
        await self._send(item, call, context)
        return None

    async def _store_new(
        self,
        compiled: CompiledTool,
        sent: CallArguments,
        context: ToolContext[Any],
        *,
        priority: int,
        budget: TimeBudget,
    ) -> bool:
        """Queue a call that nobody has to be asked about, if nothing is known about it, in one step of the store.

        False if it has to be looked up. What fails here is tried again there: only then is it known what to say.
        """
        tool, call = compiled.tool, sent.call
        if self._queue_new is None:
            return False
        decision = self._authorizer.apply_rules(compiled.policy, call, sent.get_arguments, context)
        if decision is None:
            return False
        item = self.build_item(tool, sent, context, call_id=call.id, decision=decision, repeat=0, priority=priority)
        if item.is_heard:
            await self._receiver.follow(item)
        queueing = self._queue_new(
            item, key=sent.key, full_key=sent.full_key, work=self.work, max_queued=self._max_queued
        )
        try:
            is_queued = await budget.run_step(queueing, is_plain=self._is_plain)
        except (Exception, asyncio.CancelledError) as error:
            if must_propagate(error):
                raise
            log.error("a call of %s could not be stored at once", tool.name, exc_info=error)
            return False
        if is_queued:
            await self._send(item, call, context)
        return is_queued

    async def _send(self, item: WorkItem, call: ToolCall, context: ToolContext[Any]) -> None:
        if self._events.has_listeners:
            self._events.emit(
                CallQueued(
                    at=time.time(),
                    session_id=context.session_id,
                    tenant_id=context.tenant_id,
                    customer_id=context.customer_id,
                    call=call,
                    priority=item.priority,
                )
            )
        await self.send(item)

    async def send(self, item: WorkItem) -> None:
        """Bring a stored call to a worker. What fails here is sent again by a worker: the row is there."""
        await send_item(self.work.delivery, item)

    # Parking.

    async def park(self, effect: EffectCall, known: LedgerDecision, refusal: Refusal) -> None:
        """Store a call that somebody has to agree to first: their answer queues it or ends it."""
        stored = effect.stored
        is_parked = await self._park(
            effect.tool,
            effect.sent,
            effect.context,
            effect.running.ref[1],
            known,
            refusal,
            priority=0 if stored is None else stored.item.priority,
            owner=None if stored is None else stored.item.owner,
        )
        if stored is not None and is_parked:
            stored.is_ended = True

    async def _park(
        self,
        tool: Tool[..., Any],
        sent: CallArguments,
        context: ToolContext[Any],
        call_id: str,
        known: LedgerDecision,
        refusal: Refusal,
        *,
        priority: int,
        owner: str | None,
    ) -> bool:
        approval = refusal.result.approval
        if approval is None:
            return False
        item = self.build_item(
            tool,
            sent,
            context,
            call_id=call_id,
            decision=refusal.decision,
            approval=approval.token,
            repeat=get_repeat(known),
            priority=priority,
            owner=owner,
        )
        if item.is_heard:
            await self._receiver.follow(item)
        try:
            expires_in = max(approval.expires_at - time.time(), 0.0)
            parking = self.work.park(item, expires_in=expires_in, approvals=self._approvals)
            state = await TimeBudget(self._overhead_timeout).run(parking)
        except Exception:  # The question is there: the call may come again, as one that is not durable does.
            log.exception("a call of %s could not be parked", tool.name)
            return False
        if state == "queued":  # It was decided meanwhile.
            await self.send(item)
        return True

    def emit(self, event: Event) -> None:
        """Queue the calls that were parked for an approval in memory; one in a database does so itself."""
        if isinstance(event, ApprovalDecided) and self.work.is_immediate and can_wake(event.by, event.outcome):
            task = asyncio.ensure_future(self.wake(event.token))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def wake(self, token: str) -> None:
        """Queue the calls that were parked for an approval, and bring them to a worker."""
        try:
            for item in await self.work.wake(token):
                await self.send(item)
        except Exception:
            log.exception("the calls of an approval could not be queued: a worker does so when it expires")

    # Running what was stored.

    async def authorize(self, effect: EffectCall, known: LedgerDecision) -> Authorization | None:
        """The authorization of a stored call: what was decided holds, what is denied now does not run.

        None if there is something new to decide: the effect was done meanwhile, and this would repeat it.
        """
        assert effect.stored is not None
        item, sent, policy = effect.stored.item, effect.sent, effect.compiled.policy
        decision = item.decision
        if decision is None or get_repeat(known) != item.repeat:
            return None
        # Where a value came from was decided in the conversation: a worker does not ask again.
        await self._authorizer.check_access(
            policy.without_origins(), sent.call, sent.get_arguments, effect.context, effect.budget
        )
        if item.approval is None:
            is_allowed = decision.action == "allow" or self._authorizer.is_observed(effect.tool)
            return Authorization(decision=decision, call=sent.call, value=sent.value) if is_allowed else None
        using = self._authorizer.use_approval(
            policy, decision, item.approval, sent.call, sent.value, sent.get_arguments, effect.context
        )
        return await effect.budget.run(using)

    # Waiting.

    async def wait(self, *, session_id: str, call_id: str, timeout: float) -> ToolResult:
        """The result of a stored call, in any process; what is known when the time is over."""
        started = perf_counter()
        async with self.work.watch_end(session_id=session_id, call_id=call_id) as wait_for_end:
            name, result = await self._wait(session_id, call_id, time.monotonic() + timeout, wait_for_end)
        return finish_result(result, ToolCall(id=call_id, name=name), started)

    async def _read_result(self, ref: CallRef) -> ToolResult | None:
        """The result of a stored call that a worker has just ended; None if it is tried again."""
        session_id, call_id = ref
        item = await self._get_item(session_id, call_id)
        if item is not None and item.state == "waiting":
            result = failure_results.outcome_unknown(item.tool)
        else:
            result = None if item is None else await self._find_result(item, session_id, call_id)
        if item is None or result is None:
            return None
        return finish_result(result, ToolCall(id=call_id, name=item.tool), perf_counter())

    async def _wait(
        self, session_id: str, call_id: str, ends: float, wait_for_end: WaitForEnd
    ) -> tuple[str, ToolResult]:
        item, ended, tool = None, None, ""
        # With listeners the first look says whether its events are to be heard here.
        is_told = is_queued_here(self.work, (session_id, call_id)) and not self._receiver.can_hear(session_id)
        if is_told and (left := ends - time.monotonic()) > 0:
            ended = await wait_for_end(left)
        while True:
            try:
                tool, result = await self._find_committed((session_id, call_id), ended) if ended else ("", None)
                if result is None:
                    item = await self._get_item(session_id, call_id)
                    if item is not None and item.is_heard and self._receiver.can_hear(session_id):
                        await self._receiver.follow(item)
                    result = await self._find_result(item, session_id, call_id)
                is_readable = True
            except ConfigError:
                raise
            except Exception:
                log.exception("a stored call cannot be read")
                result, is_readable = None, False
            if result is not None or (left := ends - time.monotonic()) <= 0:
                break
            if is_readable:
                ended = await wait_for_end(left)
            else:
                await asyncio.sleep(min(_RETRY_DELAY, left))
        name = tool if item is None else item.tool
        if result is None:
            result = (
                await self._describe_open(item)
                if item is not None and is_readable
                else failure_results.ledger_unreadable(name)
            )
        return name, result

    async def _get_item(self, session_id: str, call_id: str) -> WorkItem | None:
        getting = self.work.get(session_id=session_id, call_id=call_id)
        return await TimeBudget(self._overhead_timeout).run_step(getting, is_plain=self._is_plain)

    async def _find_committed(self, ref: CallRef, ended: object) -> tuple[str, ToolResult | None]:
        """The tool of a call and the result that the ledger has of it, without a look at its row; one that failed may
        be tried again."""
        entry = ended if isinstance(ended, Entry) else None
        if entry is None:
            entry = await self._reader.get(ref, TimeBudget(self._overhead_timeout))
        if entry is None or entry.state != "committed":
            return "", None
        return entry.tool, describe_entry(entry)

    async def _find_result(self, item: WorkItem | None, session_id: str, call_id: str) -> ToolResult | None:
        if item is not None and item.state != "done":
            return None
        entry = await self._reader.get((session_id, call_id), TimeBudget(self._overhead_timeout))
        if entry is not None and entry.state in ("committed", "failed"):
            return describe_entry(entry)
        if item is not None and item.recorded is not None:
            return item.recorded.to_result()
        if entry is not None:
            return describe_entry(entry)
        if item is None:
            raise ConfigError(f"there is no stored call {call_id!r} in session {session_id!r}.")
        return failure_results.purged(item.tool)

    async def _describe_open(self, item: WorkItem) -> ToolResult:
        """What is known about a call that has no result yet."""
        if item.state == "waiting":
            return failure_results.outcome_unknown(item.tool)
        if item.state == "parked" and item.approval is not None:
            return await self._describe_parked(item, item.approval)
        queued_for = item.read_at - (item.queued_at or item.read_at)
        if item.state == "queued" and not item.attempts and queued_for >= self._unserved_after:
            return failure_results.unserved(item.tool, item.definition, queued_for)
        return failure_results.in_progress(item.tool)

    async def _describe_parked(self, item: WorkItem, token: str) -> ToolResult:
        try:
            approval = await TimeBudget(self._overhead_timeout).run(self._approvals.get(token))
        except (Exception, asyncio.CancelledError) as error:
            if must_propagate(error):
                raise
            log.error("the approval of a stored call of %s cannot be read", item.tool, exc_info=error)
            return failure_results.ledger_unreadable(item.tool)
        if approval is None or item.decision is None:
            return failure_results.in_progress(item.tool)
        return failure_results.approval_required(item.tool, item.decision, approval, reason=item.decision.reason)

    # Cancelling.

    async def cancel(self, *, session_id: str, call_id: str) -> bool:
        """Ask whoever has a stored call to cancel it; whether there is one that has no result."""
        item = await self.work.get(session_id=session_id, call_id=call_id)
        if item is None:
            return False
        recorded = None
        if await self.is_unclaimed(item.ref):
            recorded = self.settlement.to_record(failure_results.call_cancelled(item.tool))
        return await self.work.cancel(session_id=session_id, call_id=call_id, recorded=recorded)

    async def is_unclaimed(self, ref: CallRef) -> bool:
        """Whether the ledger has nothing of a call."""
        return await self._reader.get(ref, TimeBudget(self._overhead_timeout)) is None

    async def finish_cancelled(self, item: WorkItem) -> None:
        """End a call that was cancelled before anything of it began."""
        await self.work.finish(item, self.settlement.to_record(failure_results.call_cancelled(item.tool)))


def get_repeat(known: LedgerDecision) -> int:
    """The number of the repetition that a decision is about; 0 is the first time."""
    return known.repeat if known.step == "ask_again" else 0


_QUEUE_RETRY: Final = 5.0
"""Seconds after which a tenant whose queue is full may try again."""

"""Runs read-only calls, in the caller's own task, and remembers their results by id in memory."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from time import perf_counter
from typing import Any, Final, Generic, TypeVar
from uuid import uuid4

from msgspec import structs

from handrail.authorize.authorizer import Authorization, Refusal, decide_within
from handrail.authorize.effect_keys import compute_key, write_arguments
from handrail.core import failure_results
from handrail.core.context import ToolContext
from handrail.core.events import CallFinished
from handrail.core.handler_result_checks import collect_output, is_plain
from handrail.core.log import log
from handrail.core.text import canonical_json, is_same_json
from handrail.core.time_budget import TimeBudget
from handrail.core.tool import Tool
from handrail.core.values import Approval, Decision, ToolCall, ToolResult
from handrail.errors import ToolError, must_propagate
from handrail.execute.event_bus import build_started
from handrail.execute.executor_parts import CallParts
from handrail.execute.executor_tools import CompiledTool
from handrail.execute.handlers import Outcome, outcome_of_error
from handrail.execute.limits import Admission
from handrail.execute.results import finish_result, finish_text, note_changes
from handrail.execute.running import RETURNED, CallStopped, FirstSteps, RunningCall, begin_first_steps, resume_coroutine
from handrail.execute.scheduler import (
    CURRENT_SCOPE,
    CallRef,
    CallScope,
    LocksCrossed,
    QueueEntry,
    current_scope,
)

V = TypeVar("V")

MAX_REMEMBERED = 4_096
"""How many results are kept, so that a call that arrives twice has the same result."""
_ENTRY_BYTES: Final = 1_000
"""What a remembered call takes beside its arguments and its output."""
_UNMEASURED_BYTES: Final = 10_000
"""What metadata are taken to have that cannot be written as text."""
_BYTES_PER_CHAR: Final = 10
"""What a dict or a list takes in memory for each character that it has as JSON text."""


_Authorized = tuple[Outcome, Decision | None, ToolCall]
"""What came of a call, what was decided about it, and the call that was authorised."""
_Read = tuple[ToolCall, ToolResult, str | None, str | None, str | None]
"""A call, its result, and its tenant, customer and agent."""


class ReadRunner:
    """Runs calls of read-only tools: parse, authorise, run, remember by id."""

    def __init__(self, parts: CallParts) -> None:
        self._redactor = parts.redactor
        self._overhead_timeout = parts.timeouts.overhead
        self._authorizer = authorizer = parts.authorizer
        self._asked = authorizer.asked
        self._handlers = handlers = parts.handlers
        self._scheduler = parts.scheduler
        self._admission = admission = parts.admission
        self._events = parts.events
        self._results = parts.results
        self._running = parts.running
        max_remembered_bytes = parts.limits.max_remembered_bytes
        self._has_fast_path = admission.is_unlimited and not handlers.has_retries and not authorizer.has_hooks
        self._remembered: BoundedStore[_Read] = BoundedStore(max_entries=MAX_REMEMBERED, max_bytes=max_remembered_bytes)
        self._cache: BoundedStore[tuple[float, ToolResult, Tool[..., Any]]] = BoundedStore(
            max_entries=MAX_REMEMBERED, max_bytes=max_remembered_bytes
        )
        """The results of tools with `cache_for`, until when they count, and their tools: another tool can have the same
        name. Those that others than the session may get are in the session ""."""
        self._first_steps: list[FirstSteps] = []
        """Those that are free: as many as calls were made inside each other."""
        self._unresolved: dict[CallRef, RunningCall] = {}
        """Calls that are over, and whose result is not yet handed to those who wait for it."""

    async def run(self, compiled: CompiledTool, call: ToolCall, context: ToolContext[Any]) -> ToolResult:
        """Run one call, or return the result that it had when it arrived before."""
        begun = self.begin(compiled, call, context)
        return begun if isinstance(begun, ToolResult) else await begun

    def begin(
        self, compiled: CompiledTool, call: ToolCall, context: ToolContext[Any]
    ) -> ToolResult | Coroutine[Any, Any, ToolResult]:
        """Run one call until it has to wait: its result, or what to await for it.

        Most calls are allowed, not limited, alone in their session, and their handler never waits: they need no
        coroutine.
        """
        started, scheduler, events = perf_counter(), self._scheduler, self._events
        session_id, call_id = context.session_id, call.id
        ref = (session_id, call_id or f"no id: {uuid4().hex}")
        # Two look-ups here instead of `BoundedStore.get`: every read takes this path.
        newer, older = self._remembered.newer.get(session_id), self._remembered.older.get(session_id)
        if (
            (newer is not None and call_id in newer)
            or (older is not None and call_id in older)
            or (self._running.by_session and self._running.find(ref) is not None)
        ):
            return self._repeat(compiled, call, context, ref)
        tool = compiled.tool
        try:
            value = tool.parse(call.arguments_json)
            if (
                not compiled.is_fast
                or not self._has_fast_path
                or (self._asked and ref in self._asked)
                or call.ask_operator
            ):
                scope = None
            elif CURRENT_SCOPE.get() is None and session_id not in scheduler.sessions:
                scope = CallScope(scheduler, ref, None, None)  # Most calls are not made by another one.
            else:
                scope = scheduler.build_scope_if_idle(ref)
            if scope is None:
                waiting = self._run_full(compiled, call, value, context, ref)
                return self._wait_for_outcome(waiting, compiled, call, context, ref, started)
            if events.has_listeners:
                events.emit(build_started(call, context, compiled.decision))
            inner = self._handlers.build_context(call, context) if tool.takes_context else context
            try:
                coroutine = tool.handler(value, inner)
                variables = copy_context()  # What the handler sets does not reach the caller, in whose task it runs.
                steps = self._first_steps.pop() if self._first_steps else begin_first_steps()
                step = variables.run(steps.send, (coroutine, scope))
            except BaseException as error:  # noqa: BLE001  # as in HandlerRunner
                scope.is_over = True
                outcome = outcome_of_error(compiled, error, has_begun=True)
            else:
                if step is not RETURNED:
                    scope.has_waited = True
                    running = RunningCall(call, tool, inner, call.arguments_json, ref, has_begun=True)
                    rest = resume_coroutine(steps, step, running, variables)
                    return self._wait_for_rest(compiled, running, rest, scope, variables, context, started)
                self._first_steps.append(steps)
                output, scope.output, scope.is_over = scope.output, None, True
                if type(output) is str and len(output) <= compiled.max_output_chars:
                    outcome = output
                elif is_plain(output):
                    outcome = self._handlers.outcome_of_output(compiled, output, session_id)
                else:
                    outcome, output = self._handlers.collect_at_once(compiled, output, session_id)
                    if outcome is None:
                        scope.is_over = False
                        running = RunningCall(call, tool, inner, call.arguments_json, ref, has_begun=True)
                        rest = _collect_rest(compiled, running, output, variables)
                        return self._wait_for_rest(compiled, running, rest, scope, variables, context, started)
        except BaseException as error:  # noqa: BLE001  # it is raised again, if it must be
            return self._end_with_error(error, compiled, call, context, ref, started)
        if type(outcome) is not str:
            return self._end(outcome, compiled.decision, call, context, ref, started, call)
        # `_end` and what it calls, in their place: 0.2 of the 4 µs of a read with a listener (Python 3.12).
        result = ToolResult(
            output=outcome,
            call_id=call_id,
            provider_id=call.provider_id,
            tool_name=call.name,
            duration_ms=(perf_counter() - started) * 1000,
            decision=compiled.decision,
        )
        if call_id:
            read = (call, result, context.tenant_id, context.customer_id, context.agent_id)
            size, kept = _ENTRY_BYTES + len(outcome) + len(call.arguments_json), self._remembered
            values = kept.newer.get(session_id)  # The handler may have made calls.
            if values is None or kept.entries >= kept.max_entries or kept.bytes + size > kept.max_bytes:
                kept.put(ref, read, size)
            else:
                kept.entries += 1
                kept.bytes += size
                values[call_id] = read
        if events.has_listeners:
            events.emit(
                CallFinished(
                    at=time.time(),
                    session_id=session_id,
                    tenant_id=context.tenant_id,
                    customer_id=context.customer_id,
                    call=call,
                    result=result,
                    decision=compiled.decision,
                    slow=result.duration_ms > events.slow_after_ms,
                )
            )
        if self._unresolved and (running := self._unresolved.pop(ref, None)) is not None:
            running.resolve(result)
        return result

    async def _wait_for_rest(
        self,
        compiled: CompiledTool,
        running: RunningCall,
        rest: Any,
        scope: CallScope,
        variables: Context,
        context: ToolContext[Any],
        started: float,
    ) -> ToolResult:
        """Wait for a handler that has begun, and for what it returns that has to be awaited, under its timeout, as one
        of the running calls; then end the call."""
        call, ref, handlers = running.call, scope.ref, self._handlers
        try:
            queue = self._scheduler.enter_running(ref[0], compiled.concurrency, scope.parent)
            self._running.add(running)
            try:
                output = await running.wait(rest, compiled.timeout, handlers.deadlines)
                if type(output) is str and len(output) <= compiled.max_output_chars:
                    outcome = output
                else:
                    outcome, output = handlers.collect_at_once(compiled, output, ref[0])
                    if outcome is None:
                        left = max(compiled.timeout - (perf_counter() - started), 0.001)
                        rest = _collect_rest(compiled, running, output, variables)
                        output = await running.wait(rest, left, handlers.deadlines)
                        outcome = handlers.outcome_of_output(compiled, output, ref[0])
            except BaseException as error:  # noqa: BLE001  # as in HandlerRunner
                outcome = outcome_of_error(compiled, error, has_begun=True)
            finally:
                queue.leave()
                self._leave(ref, running)
                scope.is_over = True
        except BaseException as error:  # noqa: BLE001  # it is raised again, if it must be
            return self._end_with_error(error, compiled, call, context, ref, started)
        return self._end(outcome, compiled.decision, call, context, ref, started, call)

    async def _wait_for_outcome(
        self,
        waiting: Coroutine[Any, Any, Outcome | _Authorized],
        compiled: CompiledTool,
        sent: ToolCall,
        context: ToolContext[Any],
        ref: CallRef,
        started: float,
    ) -> ToolResult:
        """Wait for the outcome of a call, and end it."""
        decision, call = compiled.decision, sent
        try:
            outcome = await waiting
            if isinstance(outcome, tuple):
                outcome, decision, call = outcome
        except BaseException as error:  # noqa: BLE001  # it is raised again, if it must be
            return self._end_with_error(error, compiled, sent, context, ref, started)
        return self._end(outcome, decision, call, context, ref, started, sent)

    def _end(
        self,
        outcome: Outcome | str,
        decision: Decision | None,
        call: ToolCall,
        context: ToolContext[Any],
        ref: CallRef,
        started: float,
        sent: ToolCall,
    ) -> ToolResult:
        """The result of a call: remembered, reported, and handed to those who wait for it."""
        if isinstance(outcome, str):
            result, size = finish_text(outcome, call, started, decision), _ENTRY_BYTES + len(outcome)
        else:
            result, size = finish_result(outcome.result, call, started, decision), _estimate_bytes(outcome)
        if result.error is None and call.id and not result.media:  # Media would fill the memory: it is read again.
            read = (sent, result, context.tenant_id, context.customer_id, context.agent_id)
            self._remembered.put(ref, read, size + len(sent.arguments_json))
        if self._events.has_listeners:
            self._events.emit_finished(call, context, result, accepted=sent)
        if self._unresolved and (running := self._unresolved.pop(ref, None)) is not None:
            running.resolve(result)
        return result

    def _end_with_error(
        self,
        error: BaseException,
        compiled: CompiledTool,
        call: ToolCall,
        context: ToolContext[Any],
        ref: CallRef,
        started: float,
    ) -> ToolResult:
        """End a call whose handler was not reached, or whose caller was cancelled."""
        if isinstance(error, ToolError):
            refused = Outcome(result=failure_results.error_result(error), happened="no")
            return self._end(refused, compiled.decision, call, context, ref, started, call)
        if isinstance(error, Refusal):
            refused = Outcome(result=error.result, happened="no")
            return self._end(refused, error.decision, call, context, ref, started, call)
        # If the caller was cancelled, a call that was reported as started is also reported as finished.
        is_cancelled = must_propagate(error) or isinstance(error, GeneratorExit)
        if not is_cancelled:
            log.error("a call of %s failed", compiled.tool.name, exc_info=error)
        failed = failure_results.call_cancelled if is_cancelled else failure_results.failed_before_start
        result = self._results.report(call, context, failed(compiled.tool.name), started, compiled.decision)
        if is_cancelled:
            raise error
        return result

    async def request_approval(
        self, compiled: CompiledTool, call: ToolCall, context: ToolContext[Any]
    ) -> Approval | None:
        """The question that running the call would ask; None if it would ask none. Nothing runs."""
        tool = compiled.tool
        try:
            value = tool.parse(call.arguments_json)
            deciding = self._authorizer.authorize(compiled.policy, call, value, lambda: tool.dump(value), context)
            await TimeBudget(self._overhead_timeout).run(deciding)
        except Refusal as refusal:
            return refusal.result.approval
        except (ToolError, TimeoutError):
            return None
        except Exception:
            log.exception("it cannot be asked about %s: its arguments cannot be read", tool.name)
        return None

    async def _run_full(
        self, compiled: CompiledTool, call: ToolCall, value: Any, context: ToolContext[Any], ref: CallRef
    ) -> _Authorized:
        """The path with everything: a queue, a decision, a cache, limits and retries."""
        tool = compiled.tool
        lock_key = None if tool.lock_key is None else _compute_lock_key(tool, call, value)
        entries = [self._scheduler.enqueue(context.session_id, compiled.concurrency, lock_key=lock_key)]
        running = RunningCall(call, tool, context, call.arguments_json, ref)
        self._running.add(running)
        scope = self._scheduler.open_scope(ref, entries[0])
        admission = Admission(self._admission, tool, scope)
        if self._events.has_listeners:
            self._events.emit_accepted(call, context)
        try:
            return await self._run_steps(compiled, value, context, running, entries, admission)
        except CallStopped:  # Before the handler was entered.
            return Outcome(result=failure_results.call_cancelled(tool.name), happened="no"), None, call
        except LocksCrossed:
            return Outcome(result=failure_results.locks_cross(tool.name), happened="no"), None, call
        finally:
            admission.release()
            for entry in entries:
                entry.release()
            scope.close()
            self._leave(ref, running)

    async def _run_steps(
        self,
        compiled: CompiledTool,
        value: Any,
        context: ToolContext[Any],
        running: RunningCall,
        entries: list[QueueEntry],
        admission: Admission,
    ) -> _Authorized:
        """Authorise, look into the cache, wait, consume the approval, run; returns also the authorised call.

        A call whose arguments an approver changed waits for the lock of these, with a new entry.
        """
        tool, call = compiled.tool, running.call

        def arguments() -> dict[str, Any]:
            return tool.dump(value)

        while True:
            authorization = await self._authorize(compiled, running, value, arguments, context)
            cached = self._get_cached(compiled, call, value, context) if authorization.approval is None else None
            if cached is not None:
                return Outcome(result=cached, happened="no"), authorization.decision, call
            if tool.lock_key is not None and authorization.approval is not None:
                lock_key = _compute_lock_key(tool, authorization.call, authorization.value)
                if lock_key != entries[-1].lock_key:
                    entries[-1].release()
                    moved = self._scheduler.enqueue_again(admission.scope, compiled.concurrency, lock_key=lock_key)
                    entries.append(moved)
            if not entries[-1].is_granted:
                await running.wait(entries[-1].wait())
            if not self._admission.is_unlimited:
                await running.wait(admission.acquire(context))
            if running.stopped_by is not None:
                raise CallStopped(running.stopped_by)
            if await self._authorizer.consume_approval(authorization, tool, TimeBudget(self._overhead_timeout)):
                break  # Otherwise another call was faster: ask again.
        actual = authorization.call
        if self._events.has_listeners:
            self._events.emit(build_started(actual, context, authorization.decision, accepted=call))
        inner = self._handlers.build_context(actual, context) if tool.takes_context else context
        outcome = await self._handlers.run(compiled, running, authorization.value, inner)
        admission.report(outcome.is_healthy)
        if actual is not call:
            noted = await note_changes(outcome.result, actual.arguments_json, self._redactor)
            outcome = structs.replace(outcome, result=noted)
        if authorization.value is value:
            self._put_cached(compiled, call, value, context, outcome)
        return outcome, authorization.decision, actual

    async def _authorize(
        self,
        compiled: CompiledTool,
        running: RunningCall,
        value: Any,
        arguments: Callable[[], dict[str, Any]],
        context: ToolContext[Any],
    ) -> Authorization:
        call = running.call
        deciding = self._authorizer.authorize(compiled.policy, call, value, arguments, context)
        if compiled.decision is not None and not self._authorizer.has_hooks:
            return await deciding
        # A cancellation reaches it in a check or a hook.
        return await running.wait(decide_within(TimeBudget(self._overhead_timeout), deciding, call.name))

    # Calls that arrive again.

    async def _repeat(
        self, compiled: CompiledTool, call: ToolCall, context: ToolContext[Any], ref: CallRef
    ) -> ToolResult:
        """The result of a call that arrived before, or is still running."""
        running = self._running.find(ref)
        remembered = self._remembered.get(*ref) if running is None else None
        if remembered is not None:
            first, result, *before = remembered
        else:
            assert running is not None
            first, result, before = running.call, None, _get_caller(running.context)
        caller = _get_caller(context)
        is_same = (first.name, *before[:2]) == (call.name, *caller[:2]) and is_same_json(
            first.arguments_json, call.arguments_json
        )
        is_inside = running is not None and self._scheduler.is_inside(ref, current_scope())  # It would wait for itself.
        if is_inside or not is_same:
            failed = failure_results.in_progress if is_inside else failure_results.duplicate_call
            return self._results.report(call, context, failed(call.name), perf_counter())
        if before != caller:
            try:
                value = compiled.tool.parse(call.arguments_json)
                budget = TimeBudget(self._overhead_timeout)
                dump = compiled.tool.dump
                await self._authorizer.check_access(compiled.policy, call, lambda: dump(value), context, budget)
            except Refusal as refusal:
                return self._results.report(call, context, refusal.result, perf_counter(), refusal.decision)
        self._events.emit_ignored(call, context, "already_pending" if remembered is None else "already_executed")
        if result is None:
            assert running is not None
            result = await running.wait_result()
        return structs.replace(result, origin="replayed")

    def _leave(self, ref: CallRef, running: RunningCall) -> None:
        """The call is over. Calls that wait for it get its result, or `cancelled` if its caller was cancelled."""
        self._running.remove(ref)
        if running.has_waiters:
            self._unresolved[ref] = running
            # The result is there before the loop's next step, unless the caller was cancelled.
            asyncio.get_running_loop().call_soon(self._resolve_cancelled, ref, running)

    def _resolve_cancelled(self, ref: CallRef, running: RunningCall) -> None:
        if self._unresolved.get(ref) is running:
            del self._unresolved[ref]
        call = running.call
        running.resolve(finish_result(failure_results.call_cancelled(call.name), call, perf_counter()))

    def forget_session(self, session_id: str) -> None:
        """Forget the results of a session that has ended."""
        self._remembered.forget_session(session_id)
        self._cache.forget_session(session_id)

    # The cache of `cache_for`.

    def _get_cached(
        self, compiled: CompiledTool, call: ToolCall, value: Any, context: ToolContext[Any]
    ) -> ToolResult | None:
        if compiled.tool.cache_for is None:
            return None
        found = self._cache.get(*_cache_key(compiled, call, value, context))
        if found is None or time.monotonic() >= found[0] or found[2] is not compiled.policy.tool:
            return None
        return structs.replace(found[1], origin="cached")

    def _put_cached(
        self, compiled: CompiledTool, call: ToolCall, value: Any, context: ToolContext[Any], outcome: Outcome
    ) -> None:
        result = outcome.result
        if compiled.tool.cache_for is None or not result.ok or result.media:
            return
        ref = _cache_key(compiled, call, value, context)
        cached = (time.monotonic() + compiled.tool.cache_for, result, compiled.policy.tool)
        self._cache.put(ref, cached, len(ref[1]) + _estimate_bytes(outcome))


def _collect_rest(compiled: CompiledTool, running: RunningCall, output: Any, variables: Context) -> Any:
    """What to await for the rest of an output, which is code of the handler, too, and runs with its variables."""
    return resume_coroutine(collect_output(output, max_items=compiled.max_output_chars), None, running, variables)


def _get_caller(context: ToolContext[Any]) -> list[str | None]:
    return [context.tenant_id, context.customer_id, context.agent_id]


def _estimate_bytes(outcome: Outcome) -> int:
    """About how many bytes of memory a result takes."""
    result, chars = outcome.result, outcome.chars
    size = _ENTRY_BYTES + (chars if type(result.output) is str else chars * _BYTES_PER_CHAR)
    if not result.metadata:
        return size
    try:
        return size + len(repr(result.metadata)) * _BYTES_PER_CHAR
    except Exception:  # noqa: BLE001  # what is in there is the handler's
        return size + _UNMEASURED_BYTES


def _cache_key(compiled: CompiledTool, call: ToolCall, value: Any, context: ToolContext[Any]) -> CallRef:
    """The session that a result belongs to ("" if it is for others, too), and the key of the call."""
    tool = compiled.tool
    is_of_session = not tool.cache_public and not context.customer_id
    owner = None if tool.cache_public else context.customer_id
    arguments, _ = write_arguments(tool, call, value, tool.dump(value))
    scope = canonical_json([context.tenant_id, owner, tool.name])
    return context.session_id if is_of_session else "", scope + arguments


def _compute_lock_key(tool: Tool[..., Any], call: ToolCall, value: Any) -> str | None:
    return None if tool.lock_key is None else compute_key(tool.lock_key, tool, call, value, tool.dump(value))


class BoundedStore(Generic[V]):
    """The newest values that were put, by session and key: at most so many, and of about so many bytes together.

    Values are kept in two halves. When the newer half is full, the older one is dropped as a whole, so that no call
    has to look for the oldest value.
    """

    __slots__ = ("bytes", "entries", "max_bytes", "max_entries", "newer", "older")

    def __init__(self, *, max_entries: int, max_bytes: int) -> None:
        self.max_entries = max_entries // 2
        self.max_bytes = max_bytes // 2
        self.entries = 0
        self.bytes = 0
        self.newer: dict[str, dict[str, V]] = {}
        """The values of each session."""
        self.older: dict[str, dict[str, V]] = {}

    def get(self, session_id: str, key: str) -> V | None:
        """The value, if it is still kept."""
        for half in (self.newer, self.older):
            values = half.get(session_id)
            if values is not None and key in values:
                return values[key]
        return None

    def put(self, ref: CallRef, value: V, size: int) -> None:
        """Keep a value of about this many bytes for a session, under a key."""
        entries, total = self.entries + 1, self.bytes + size
        if entries > self.max_entries or total > self.max_bytes:
            self.older, self.newer = self.newer, {}
            self.entries = self.bytes = 0
            if size > self.max_bytes:
                return
            entries, total = 1, size
        self.entries, self.bytes = entries, total
        session_id, key = ref
        values = self.newer.get(session_id)
        if values is None:
            self.newer[session_id] = {key: value}
        else:
            values[key] = value

    def forget_session(self, session_id: str) -> None:
        """Forget everything of a session."""
        self.newer.pop(session_id, None)
        self.older.pop(session_id, None)

"""The one way through: every call of every session, transport and provider ends in `Executor.run`."""

import asyncio
import secrets as randomness
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from time import perf_counter
from typing import Any, Self, TypeVar

from msgspec import Struct, structs

from handrail.authorize.approvals import Approvals, MemoryApprovals
from handrail.authorize.authoriser import Again, Authoriser, Granted, Mode, Refusal
from handrail.authorize.limits import Breaker, RateLimit
from handrail.authorize.policy import Policy
from handrail.authorize.secrets import Reference, Secrets
from handrail.core.context import ToolContext
from handrail.core.events import CallCancelled, CallIgnored, Cancellation, Cancelling
from handrail.core.log import log
from handrail.core.redact import Redactor
from handrail.core.tool import Tool
from handrail.core.values import ToolCall, ToolResult
from handrail.errors import ToolError, ToolNotFoundError
from handrail.execute import answers, hooks
from handrail.execute.adopt import adopted
from handrail.execute.desk import Desk
from handrail.execute.effects import Effect, Effects, key_of
from handrail.execute.explain import Explanation, explained
from handrail.execute.gates import Gates
from handrail.execute.handlers import Handlers, Retry
from handrail.execute.ledger import Ledger, MemoryLedger
from handrail.execute.output import Outputs
from handrail.execute.portal import Portal
from handrail.execute.reads import Reads, finished
from handrail.execute.running import Running
from handrail.execute.schedule import Lanes
from handrail.execute.tell import Listener, Teller
from handrail.execute.threads import Threads
from handrail.registry.registry import ToolRegistry

T = TypeVar("T")

Fallback = Callable[[ToolCall, ToolContext[Any]], Any]


class Cancelled(Struct, frozen=True, kw_only=True):
    """What came of cancelling everything in a session."""

    cancelled: int
    remaining: int
    """Calls that could not be brought to an end within the grace; their outcome is recorded as unknown."""


class Executor:
    """Answers calls: checked, authorised, scheduled, cancellable, run at most once, and accounted for.

    Alone it has the default policy (read-only tools run, the customer is asked for every other), keeps its ledger and
    its approvals in memory, and tells nobody.
    """

    def __init__(
        self,
        tools: ToolRegistry | Iterable[object] = (),
        *,
        policy: Policy | None = None,
        ledger: Ledger | None = None,
        approvals: Approvals | None = None,
        listeners: Iterable[Listener] = (),
        hooks: Iterable[object] = (),
        mode: Mode | Mapping[str, Mode] = "enforce",
        fallback: Fallback | None = None,
        timeout: float = 30.0,
        slow_after: float = 5.0,
        max_output_chars: int | None = None,
        max_concurrent: int | None = None,
        max_concurrent_per_session: int | None = None,
        max_concurrent_per_tool: Mapping[str, int] | None = None,
        max_threads: int = 32,
        rate_limits: Iterable[RateLimit] = (),
        breaker: Breaker | None = None,
        retry: Retry | None = None,
        secrets: Mapping[str, Reference] | None = None,
        redactor: Redactor | None = None,
        repeat_window: float = 86_400.0,
        lease_grace: float = 60.0,
        approval_seconds: float = 900.0,
    ) -> None:
        registry = tools if isinstance(tools, ToolRegistry) else ToolRegistry(tools)
        outputs = Outputs()
        if (max_output_chars or any(tool.max_output_chars for tool in registry)) and "read_more" not in registry:
            registry = registry.register(outputs.read_more_tool())
        self.registry = registry
        self.approvals: Approvals = approvals if approvals is not None else MemoryApprovals()
        self._hooks = tuple(hooks)
        self._fallback = fallback
        self._timeout = timeout
        self._max_output_chars = max_output_chars or 100_000
        self._tell = Teller(listeners, slow_after=slow_after)
        redact = redactor or Redactor()
        self._authoriser = Authoriser(
            policy=policy or Policy(),
            approvals=self.approvals,
            redactor=redact,
            tell=self._tell,
            mode=mode,
            approval_seconds=approval_seconds,
        )
        self._threads = Threads(most=max_threads)
        handlers = Handlers(
            threads=self._threads, outputs=outputs, secrets=Secrets(secrets or {}), retry=retry or Retry()
        )
        gates = Gates(
            rate_limits=rate_limits,
            breaker=breaker,
            total=max_concurrent,
            per_session=max_concurrent_per_session,
            per_tool=max_concurrent_per_tool or {},
            tell=self._tell,
        )
        self._portal = Portal()
        self._lanes = Lanes()
        self._running: dict[tuple[str, str], Running] = {}
        self._effects = Effects(
            ledger=ledger if ledger is not None else MemoryLedger(),
            handlers=handlers,
            gates=gates,
            redactor=redact,
            tell=self._tell,
            approvals=self.approvals,
            owner=randomness.token_hex(8),
            window=repeat_window,
            lease_grace=lease_grace,
        )
        self._reads = Reads(
            handlers=handlers,
            lanes=self._lanes,
            gates=gates,
            tell=self._tell,
            running=self._running,
            authorise=self._authorise_read,
        )
        self._desks = {tool.name: self._desk(tool) for tool in registry}

    def _desk(self, tool: Tool[..., Any]) -> Desk:
        return Desk(tool, self._authoriser.plan(tool), seconds=self._timeout, most=self._max_output_chars)

    # The line.

    async def run(self, call: ToolCall, context: ToolContext[Any]) -> ToolResult:
        """Answer one call. A result comes back whatever happens; only a real cancellation of the caller passes on."""
        desk = self._desks.get(call.name)
        if desk is None:
            return await self._not_registered(call, context)
        return await self._run(desk, call, context)

    async def run_all(self, calls: Iterable[ToolCall], context: ToolContext[Any]) -> list[ToolResult]:
        """Answer calls: those that are safe together run together, every other alone. The results are in their
        order."""
        every = list(calls)
        if len(every) == 1:
            return [await self.run(every[0], context)]
        return list(await asyncio.gather(*(self.run(call, context) for call in every)))

    def run_sync(self, call: ToolCall, context: ToolContext[Any]) -> ToolResult:
        """`run` for a caller that has no event loop."""
        return self.wait_for(self.run(call, context))

    def run_all_sync(self, calls: Iterable[ToolCall], context: ToolContext[Any]) -> list[ToolResult]:
        """`run_all` for a caller that has no event loop."""
        return self.wait_for(self.run_all(calls, context))

    def wait_for(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run anything that belongs to this executor (an approval, a loop) for a caller that has no event loop."""
        return self._portal.run(coroutine)

    async def around(
        self, call: ToolCall, context: ToolContext[Any], proceed: Callable[[], Awaitable[Any] | Any]
    ) -> ToolResult:
        """Answer a call whose handler, and whose validation of arguments, is another framework's: `proceed` runs it."""
        known = self._desks.get(call.name)
        tool = adopted(call.name, lambda context: proceed(), known=known.tool if known else None)
        return await self._run(self._desk(tool), call, context)

    async def _not_registered(self, call: ToolCall, context: ToolContext[Any]) -> ToolResult:
        fallback = self._fallback
        if fallback is not None and call.name:
            tool = adopted(call.name, lambda context: fallback(call, context))
            return await self._run(self._desk(tool), call, context)
        try:
            self.registry.get(call.name)
        except ToolNotFoundError as error:
            result = structs.replace(answers.from_error(error), call_id=call.id, tool_name=call.name)
        else:
            raise AssertionError(f"{call.name} is registered, but has no desk")
        self._tell.finished(call, context, result, None)
        return result

    async def _run(self, desk: Desk, call: ToolCall, context: ToolContext[Any]) -> ToolResult:
        if self._hooks:
            try:
                call = await hooks.change(self._hooks, call, desk.tool, context)
            except hooks.Refused as refused:
                return self._refused_by_hook(desk, call, context, refused)
        if desk.tool.read_only:
            return await self._reads.run(desk, call, context)
        return await self._run_effect(desk, call, context)

    def _refused_by_hook(
        self, desk: Desk, call: ToolCall, context: ToolContext[Any], refused: hooks.Refused
    ) -> ToolResult:
        result = finished(answers.failed("refused_by_hook", str(refused)), desk, call, None, perf_counter())
        self._tell.finished(call, context, result, None)
        return result

    # Calls with consequences: the line is walked in a task of the executor's own, which outlives its caller.

    async def _run_effect(self, desk: Desk, call: ToolCall, context: ToolContext[Any]) -> ToolResult:
        started = perf_counter()
        tool = desk.tool
        place = (context.session_id, call.id)
        try:
            value = tool.parse(call.arguments_json)
            arguments = tool.dump(value)
            identity, key = self._effects.digests(tool, call, arguments, context)
            lock = key_of(tool.lock_key, arguments)
        except ToolError as error:
            return self._answered(desk, call, context, answers.from_error(error), started)
        except Exception:
            log.exception("the key of %s cannot be made", tool.name)
            result = answers.failed("tool_execution_failed", f"`{tool.name}` failed. {answers.NOTHING_HAPPENED}")
            return self._answered(desk, call, context, result, started)
        running = self._running.get(place)
        if running is not None:
            return await self._join(running, call, context, identity)
        running = self._running[place] = Running(call, tool, context, identity)
        effect = Effect(
            running=running,
            value=value,
            arguments=arguments,
            context=context,
            identity=identity,
            key=key,
            ticket=self._lanes.ticket(context.session_id, desk.way, lock_key=lock),
            seconds=desk.seconds,
            most=desk.most,
            authorise=lambda effect, again: self._authorise_effect(desk, effect, again),
        )
        running.on_stuck = lambda: self._give_up(running, desk, effect, started)
        self._tell.accepted(call, context)
        running.line = asyncio.create_task(self._walk(desk, effect, started), name=f"handrail:{tool.name}:{call.id}")
        try:
            return await running.answered()
        except asyncio.CancelledError:
            self._caller_left(running)
            raise

    async def _walk(self, desk: Desk, effect: Effect, started: float) -> None:
        running = effect.running
        try:
            result = await self._effects.walk(effect)
        except BaseException as error:
            log.exception("the line of %s broke", effect.tool.name)
            result = answers.unknown(effect.tool.name) if running.began else answers.broke(effect.tool.name)
            self._end(desk, effect, result, started)
            if not isinstance(error, Exception):
                raise
            return
        self._end(desk, effect, result, started)

    def _end(self, desk: Desk, effect: Effect, result: ToolResult, started: float) -> None:
        running = effect.running
        if running.answer is None:  # Else it was given up, and its answer is told already.
            self._resolve(running, self._answered(desk, effect.call, effect.context, result, started, effect))

    def _resolve(self, running: Running, result: ToolResult) -> None:
        self._running.pop((running.session_id, running.call.id), None)
        running.resolve(result)

    def _give_up(self, running: Running, desk: Desk, effect: Effect, started: float) -> None:
        """A handler was stopped and does not stop: its caller gets the truth, and the task is left behind."""
        log.error("%s was stopped, and goes on all the same", effect.tool.name)
        self._end(desk, effect, answers.unknown(effect.tool.name), started)

    def _answered(
        self,
        desk: Desk,
        call: ToolCall,
        context: ToolContext[Any],
        result: ToolResult,
        started: float,
        effect: Effect | None = None,
    ) -> ToolResult:
        decision = effect.decision if effect else None
        if decision is None:  # A refusal carries it.
            decision = result.metadata.get("decision")
        if effect is not None and effect.running.silent:
            result = structs.replace(result, metadata={**result.metadata, "silent": True})
        result = finished(result, desk, call, decision, started)
        if "replayed" in result.metadata:
            self._ignored(call, context, "already_executed")
        else:
            self._tell.finished(call, context, result, decision)
        return result

    async def _join(self, running: Running, call: ToolCall, context: ToolContext[Any], identity: str) -> ToolResult:
        if running.identity != identity:
            result = structs.replace(answers.clash(call.name), call_id=call.id, tool_name=call.name)
            self._tell.finished(call, context, result, None)
            return result
        self._ignored(call, context, "already_pending")
        return await running.answered()

    def _ignored(self, call: ToolCall, context: ToolContext[Any], reason: str) -> None:
        self._tell(
            CallIgnored(
                at=time.time(), session_id=context.session_id, tenant_id=context.tenant_id, call=call, reason=reason
            )
        )

    def _caller_left(self, running: Running) -> None:
        """The caller was cancelled: what has not begun does not begin, what has goes on as its tool wants it."""
        if not running.began or running.interruption == "cancel":
            running.stop("cancelled")

    # Authorising.

    async def _authorise_read(self, desk: Desk, call: ToolCall, value: Any, context: ToolContext[Any]) -> Granted:
        granted = await self._granted(desk, call, lambda: desk.tool.dump(value), context, again=None)
        if granted.approval is not None and not await self.approvals.consume(granted.approval.token, now=time.time()):
            raise Refusal(answers.failed("permission_denied", "The approval of this call was already used."))
        return granted

    async def _authorise_effect(self, desk: Desk, effect: Effect, again: Again | None) -> None:
        granted = await self._granted(desk, effect.call, lambda: effect.arguments, effect.context, again=again)
        effect.decision, effect.approval = granted.decision, granted.approval

    async def _granted(
        self,
        desk: Desk,
        call: ToolCall,
        arguments: Callable[[], dict[str, Any]],
        context: ToolContext[Any],
        *,
        again: Again | None,
    ) -> Granted:
        tool = desk.tool
        if desk.decision is not None and again is None:
            granted = Granted(decision=desk.decision)
        else:
            try:
                granted = await self._authoriser.decide(
                    tool,
                    desk.plan,
                    call,
                    arguments,
                    context,
                    digest=lambda: self._effects.digests(tool, call, arguments(), context)[0],
                    again=again,
                )
            except (Refusal, ToolError):
                raise
            except Exception as error:
                log.exception("the decision about %s failed", tool.name)
                raise Refusal(answers.ledger_down(tool.name)) from error
        if self._hooks:
            try:
                await hooks.look(self._hooks, call, tool, granted.decision, context)
            except hooks.Refused as refused:
                raise Refusal(answers.failed("refused_by_hook", str(refused))) from refused
        return granted

    def explain(self, call: ToolCall, context: ToolContext[Any]) -> Explanation:
        """Which rule would decide about a call, where it stands, and why. Nothing runs, and nobody is asked."""
        desk = self._desks.get(call.name)
        if desk is None:
            return explained(call, None, None, context, observed=False)
        return explained(call, desk.tool, desk.plan, context, observed=self._authoriser.observes(desk.tool))

    # Cancelling.

    def running(self, session_id: str) -> tuple[ToolCall, ...]:
        """The calls of a session that have no answer yet."""
        return tuple(one.call for one in self._running.values() if one.session_id == session_id)

    @property
    def stranded_threads(self) -> int:
        """Threads that still run for calls that were given up."""
        return self._threads.stranded

    def cancel(self, call_id: str, *, session_id: str) -> bool:
        """Cancel one call, unless its tool cannot be interrupted. Its result tells the truth about what it did."""
        running = self._running.get((session_id, call_id))
        if running is None or running.interruption == "uninterruptible":
            return False
        self._stop(running, "asked to")
        return True

    def cancel_tools_for_response(self, response_id: str, *, session_id: str) -> int:
        """Interrupt the calls that a response asked for, each as its tool wants it; how many were cancelled."""
        every = [one for one in self._of(session_id) if response_id and one.call.response_id == response_id]
        reason = "the response was interrupted" if response_id else "missing_response_id"
        cancelled = sum(self._interrupt(one, reason) for one in every)
        remaining = len(every) - cancelled
        self._cancelled(every, session_id, reason, cancelled, remaining=remaining, response_id=response_id)
        return cancelled

    async def cancel_all(self, session_id: str, *, grace: float = 5.0) -> Cancelled:
        """End a session: reads are dropped, effects have the grace to finish and are then cut off as unknown."""
        reason = "the session ended"
        every = self._of(session_id)
        # Before anything is stopped: a read answers those who wait when it ends, and nobody later.
        ends = {one: one.line or one.promise() for one in every}
        self._tell(
            Cancelling(
                at=time.time(),
                session_id=session_id,
                tenant_id=every[0].tenant_id if every else None,
                tracked=len(every),
                cancellable=sum(map(_is_interruptible, every)),
            )
        )
        cancelled = sum(self._interrupt(one, reason) for one in every)
        for one in await _late(ends, grace):
            if not one.stop_asked:
                self._stop(one, reason)
                cancelled += 1
        stuck = await _late({one: end for one, end in ends.items() if not end.done()}, 1.0)
        self._cancelled(every, session_id, reason, cancelled, remaining=len(stuck))
        return Cancelled(cancelled=cancelled, remaining=len(self._of(session_id)))

    def _cancelled(
        self,
        every: list[Running],
        session_id: str,
        reason: str,
        cancelled: int,
        *,
        remaining: int,
        response_id: str | None = None,
    ) -> None:
        self._tell(
            Cancellation(
                at=time.time(),
                session_id=session_id,
                tenant_id=every[0].tenant_id if every else None,
                scope="session" if response_id is None else "response",
                response_id=response_id,
                reason=reason,
                cancelled=cancelled,
                remaining=remaining,
                pending=len(self._of(session_id)),
            )
        )

    def _of(self, session_id: str) -> list[Running]:
        return [one for one in self._running.values() if one.session_id == session_id]

    def _interrupt(self, running: Running, reason: str) -> bool:
        if running.interruption == "finish_silently":
            running.silent = True
        if not _is_interruptible(running):
            return False
        self._stop(running, reason)
        return True

    def _stop(self, running: Running, reason: str) -> None:
        running.stop("cancelled")
        self._tell(
            CallCancelled(
                at=time.time(),
                session_id=running.session_id,
                tenant_id=running.tenant_id,
                call=running.call,
                reason=reason,
            )
        )

    async def close(self, *, grace: float = 5.0) -> None:
        """Let what runs finish, and cut off what does not."""
        for session_id in {one.session_id for one in self._running.values()}:
            await self.cancel_all(session_id, grace=grace)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


def _is_interruptible(running: Running) -> bool:
    """Whether an interruption of the conversation stops it: what has begun may want to finish."""
    return running.interruption == "cancel" or (not running.began and running.interruption != "uninterruptible")


async def _late(ends: Mapping[Running, asyncio.Future[Any]], seconds: float) -> list[Running]:
    """Wait for calls to end; those that did not."""
    if ends:
        await asyncio.wait(ends.values(), timeout=seconds)
    return [one for one, end in ends.items() if not end.done()]

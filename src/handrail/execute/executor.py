"""The one way through: every call of every session, transport and provider ends in `Executor.run`."""

import asyncio
import copy
import inspect
import secrets as randomness
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from time import perf_counter
from typing import Any, Self, TypeVar

from msgspec import structs

from handrail.authorize.approvals import Approvals, MemoryApprovals
from handrail.authorize.authoriser import Authoriser, Mode, Refusal
from handrail.authorize.limits import CircuitBreaker, RateLimit
from handrail.authorize.policy import Policy
from handrail.authorize.secrets import Reference, Secrets
from handrail.core.context import ToolContext
from handrail.core.events import Event
from handrail.core.log import log
from handrail.core.redact import Redactor
from handrail.core.tool import Tool
from handrail.core.values import Approval, ToolCall, ToolResult
from handrail.define.build import as_tool
from handrail.errors import ConfigError, ToolError, ToolNotFoundError
from handrail.execute import answers, hooks
from handrail.execute.adopt import Adopted
from handrail.execute.cancel import Cancelled, Interruptions
from handrail.execute.desk import Desk
from handrail.execute.effects import Effects
from handrail.execute.explain import Explanation, explained
from handrail.execute.gates import Gates
from handrail.execute.handlers import Handlers, RetryPolicy
from handrail.execute.identity import Identities
from handrail.execute.ledger import Ledger, MemoryLedger
from handrail.execute.line import Line
from handrail.execute.output import Outputs
from handrail.execute.permission import Permission
from handrail.execute.portal import Portal
from handrail.execute.reads import Reads, finished
from handrail.execute.running import Running
from handrail.execute.schedule import Lanes, Place
from handrail.execute.settle import Settlement
from handrail.execute.tell import Listener, Teller
from handrail.execute.threads import Threads
from handrail.registry.registry import ToolRegistry

T = TypeVar("T")

Fallback = Callable[[ToolCall, ToolContext[Any]], Any]


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
        circuit_breaker: CircuitBreaker | None = None,
        retry: RetryPolicy | None = None,
        secrets: Mapping[str, Reference] | None = None,
        redactor: Redactor | None = None,
        repeat_window: float = 86_400.0,
        lease_grace: float = 60.0,
        approval_timeout: float = 900.0,
    ) -> None:
        for name, seconds in (("timeout", timeout), ("slow_after", slow_after), ("approval_timeout", approval_timeout)):
            if not seconds > 0:
                raise ConfigError(f"{name} must be more than 0 seconds, got {seconds!r}.")
        if max_threads < 1:
            raise ConfigError(f"max_threads must be at least 1, got {max_threads!r}.")
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
        self._threads = Threads(most=max_threads)
        lanes = Lanes()
        running: dict[Place, Running] = {}
        books = ledger if ledger is not None else MemoryLedger()
        redact = redactor or Redactor()
        self._tell = tell = Teller(listeners, slow_after=slow_after)
        self._authoriser = Authoriser(
            policy=policy or Policy(),
            approvals=self.approvals,
            redactor=redact,
            tell=tell,
            mode=mode,
            approval_timeout=approval_timeout,
        )
        identities = Identities(books.digest_key)
        self._permission = permission = Permission(
            authoriser=self._authoriser, hooks=self._hooks, identities=identities
        )
        handlers = Handlers(
            threads=self._threads, outputs=outputs, secrets=Secrets(secrets or {}), retry=retry or RetryPolicy()
        )
        self._portal = Portal(used_by=lambda: handlers.deadlines.loop)
        gates = Gates(
            rate_limits=rate_limits,
            breaker=circuit_breaker,
            total=max_concurrent,
            per_session=max_concurrent_per_session,
            per_tool=max_concurrent_per_tool or {},
            tell=tell,
        )
        line = Line(
            ledger=books,
            permission=permission,
            handlers=handlers,
            settlement=Settlement(ledger=books, handlers=handlers, redactor=redact, tell=tell),
            lanes=lanes,
            gates=gates,
            tell=tell,
            approvals=self.approvals,
            owner=randomness.token_hex(8),
            window=repeat_window,
            lease_grace=lease_grace,
        )
        self._effects = Effects(line=line, identities=identities, lanes=lanes, tell=tell, running=running)
        self._reads = Reads(
            permission=permission, handlers=handlers, lanes=lanes, gates=gates, tell=tell, running=running
        )
        self._interruptions = Interruptions(running=running, lanes=lanes, tell=tell)
        self._adopted = Adopted(desk_of=self._desk, threads=self._threads)
        self._running = running
        self._desks = {tool.name: self._desk(tool) for tool in registry}

    def _desk(self, tool: Tool[..., Any]) -> Desk:
        return Desk(tool, self._authoriser.plan(tool), seconds=self._timeout, most=self._max_output_chars)

    def has_tool(self, name: str) -> bool:
        """Whether there is a tool of this name."""
        return name in self.registry

    def register(self, name: str, function: object) -> Self:
        """A new executor that also has this tool, under this name; this one stays as it is.

        Both share the ledger, the approvals, the limits and the running calls.
        """
        added = as_tool(function)
        added = added if added.name == name else replace(added, name=name)
        other = copy.copy(self)
        other.registry = self.registry.register(added)
        other._desks = {**self._desks, name: self._desk(added)}
        return other

    # The line.

    async def run(self, call: ToolCall, context: ToolContext[Any]) -> ToolResult:
        """Answer one call. A result comes back whatever happens; only a real cancellation of the caller passes on."""
        desk = self._desks.get(call.name)
        if desk is None or self._hooks:
            prepared = await self._prepared(call, context)
            if isinstance(prepared, ToolResult):
                return prepared
            desk, call = prepared
        return await (self._reads if desk.tool.read_only else self._effects).run(desk, call, context)

    async def run_all(self, calls: Iterable[ToolCall], context: ToolContext[Any]) -> list[ToolResult]:
        """Answer calls: those that are safe together run together, every other alone. The results are in their
        order."""
        every = list(calls)
        if len(every) == 1:
            return [await self.run(every[0], context)]
        if not self._hooks:
            return list(await asyncio.gather(*(self.run(call, context) for call in every)))
        # Hooks may take their time, each its own: the calls still start in their order.
        prepared = await asyncio.gather(*(self._prepared(call, context) for call in every))
        return list(await asyncio.gather(*(self._started(one, context) for one in prepared)))

    async def _started(self, prepared: tuple[Desk, ToolCall] | ToolResult, context: ToolContext[Any]) -> ToolResult:
        if isinstance(prepared, ToolResult):
            return prepared
        desk, call = prepared
        return await (self._reads if desk.tool.read_only else self._effects).run(desk, call, context)

    def run_sync(self, call: ToolCall, context: ToolContext[Any]) -> ToolResult:
        """`run` for a caller that has no event loop."""
        return self.run_coroutine(self.run(call, context))

    def run_all_sync(self, calls: Iterable[ToolCall], context: ToolContext[Any]) -> list[ToolResult]:
        """`run_all` for a caller that has no event loop."""
        return self.run_coroutine(self.run_all(calls, context))

    def run_coroutine(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run anything that belongs to this executor (an approval, a loop) for a caller that has no event loop."""
        return self._portal.run(coroutine)

    async def guard(
        self, call: ToolCall, context: ToolContext[Any], proceed: Callable[[], Awaitable[Any] | Any]
    ) -> ToolResult:
        """Answer a call whose handler, and whose validation of arguments, is another framework's: `proceed` runs it.

        One that is not async must not block: it runs in the loop.
        """
        desk = self._adopted.desk(call.name, lambda context: proceed(), known=self._desks.get(call.name))
        return await self._started(await self._prepared(call, context, desk), context)

    async def _prepared(
        self, call: ToolCall, context: ToolContext[Any], desk: Desk | None = None
    ) -> tuple[Desk, ToolCall] | ToolResult:
        """The desk of a call, and the call after the hooks; or the answer, where there is nothing to run."""
        desk = desk or self._desks.get(call.name) or self._fallen_back(call)
        if desk is None:
            return self._not_found(call, context)
        try:
            return desk, await hooks.change(self._hooks, call, desk.tool, context)
        except hooks.Refused as refused:
            result = finished(answers.failed("refused_by_hook", str(refused)), call, None, perf_counter())
            self._tell.finished(call, context, result, None)
            return result

    def _fallen_back(self, call: ToolCall) -> Desk | None:
        fallback = self._fallback
        if fallback is None:
            return None
        return self._adopted.desk(
            call.name, lambda context: fallback(call, context), blocks=not inspect.iscoroutinefunction(fallback)
        )

    def _not_found(self, call: ToolCall, context: ToolContext[Any]) -> ToolResult:
        try:
            self.registry.get(call.name)
        except ToolNotFoundError as error:
            result = structs.replace(answers.from_error(error), call_id=call.id, tool_name=call.name)
        else:
            raise AssertionError(f"{call.name} is registered, but has no desk")
        self._tell.finished(call, context, result, None)
        return result

    def explain(self, call: ToolCall, context: ToolContext[Any]) -> Explanation:
        """Which rule would decide about a call, where it stands, and why. Nothing runs, and nobody is asked."""
        desk = self._desks.get(call.name) or self._fallen_back(call)
        if desk is None:
            return explained(call, None, None, context, observed=False)
        return explained(call, desk.tool, desk.plan, context, observed=self._authoriser.observes(desk.tool))

    async def request_approval(self, call: ToolCall, context: ToolContext[Any]) -> Approval | None:
        """Ask whoever has to agree to a call, as running it would, without running it: the open question.

        None if there is none: the call needs nobody, is refused, or was decided about already.
        """
        desk = self._desks.get(call.name)
        if desk is None:
            return None
        try:
            value = desk.tool.parse(call.arguments_json)
            await self._permission.of(desk, call, value, lambda: desk.tool.dump(value), context)
        except Refusal as refusal:
            return refusal.result.approval
        except ToolError:
            return None
        return None

    def subscribe(self, session_id: str, listener: Listener) -> AbstractContextManager[None]:
        """Have one more listener, to one session, inside a `with` block."""
        return self._tell.subscribe(session_id, listener)

    def emit(self, event: Event) -> None:
        """Hand an event to all listeners, and to those of its session."""
        self._tell(event)

    # Cancelling.

    def running_calls(self, session_id: str) -> tuple[ToolCall, ...]:
        """The calls of a session that have no answer yet."""
        return tuple(one.call for one in self._interruptions.of(session_id))

    @property
    def stranded_threads(self) -> int:
        """Threads that still run for calls that were given up."""
        return self._threads.stranded

    def cancel(self, call_id: str, *, session_id: str) -> bool:
        """Cancel one call, unless its tool cannot be interrupted. Its result tells the truth about what it did."""
        return self._interruptions.one(call_id, session_id=session_id)

    def cancel_tools_for_response(self, response_id: str, *, session_id: str) -> int:
        """Interrupt the calls that a response asked for, each as its tool wants it; how many were cancelled."""
        return self._interruptions.response(response_id, session_id=session_id)

    async def cancel_all(self, session_id: str, *, grace: float = 5.0) -> Cancelled:
        """End a session: reads are dropped, effects have the grace to finish and are then cut off as unknown."""
        return await self._interruptions.all(session_id, grace=grace)

    async def aclose(self, *, grace: float = 5.0) -> None:
        """Let what runs finish, cut off what does not, and close the connections of the tools."""
        sessions = {one.session_id for one in self._running.values()}
        await asyncio.gather(*(self.cancel_all(session_id, grace=grace) for session_id in sessions))
        for aclose in {tool.aclose for tool in self.registry if tool.aclose is not None}:
            try:
                await aclose()
            except Exception:  # somebody else's code; the others still have to be closed
                log.exception("what a tool holds could not be closed")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

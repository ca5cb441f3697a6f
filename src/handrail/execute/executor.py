"""Runs tool calls: every call of every session, transport and provider ends in `Executor.run`."""

import asyncio
import copy
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import AbstractContextManager
from time import perf_counter
from typing import Any, Literal, Self, TypeVar

from handrail.authorize.approvals import ApprovalEvents, Approvals, MemoryApprovals
from handrail.authorize.authorizer import Explanation, Mode, explain_call
from handrail.authorize.policy import Policy, PolicyProblem
from handrail.core import failure_results
from handrail.core.context import ToolContext, build_type_error
from handrail.core.events import Event, Listener
from handrail.core.log import SHOW_TEXTS, log
from handrail.core.provenance import Provenance, SessionProvenances
from handrail.core.provenance_records import SourceTool
from handrail.core.redact import Redactor
from handrail.core.secrets import Reference
from handrail.core.text import is_storable, join_names
from handrail.core.tool import Tool
from handrail.core.values import Approval, ToolCall, ToolResult
from handrail.define.options import ToolFlags
from handrail.errors import ConfigError
from handrail.execute.cancellation import CallCanceller, CancelResult
from handrail.execute.doubts import Doubt, list_doubts, resolve_doubt
from handrail.execute.durable import DurableCalls
from handrail.execute.effects import EffectRunner
from handrail.execute.executor_parts import Store, StoreParts, build_parts, choose_store
from handrail.execute.executor_tools import CompiledTool, Fallback, ToolPool, build_host_handler
from handrail.execute.ledger import Ledger, MemoryLedger
from handrail.execute.limits import Limits, RetryPolicy, Timeouts
from handrail.execute.preparation import CallPreparation
from handrail.execute.reads import ReadRunner
from handrail.execute.scheduler import CallRef
from handrail.execute.stored_calls import MemoryWork, StoredCall, Work
from handrail.execute.threads import SyncPortal
from handrail.registry.registry import ToolRegistry

T = TypeVar("T")


class Executor:
    """Runs tool calls: validated, authorised, scheduled, cancellable, at most once, and audited.

    By default read-only tools run, the customer is asked before every other, and ledger and approvals are in memory.
    """

    def __init__(
        self,
        tools: ToolRegistry | Iterable[object] = (),
        *,
        policy: Policy | None = None,
        store: Store | str | None = None,
        ledger: Ledger | None = None,
        approvals: Approvals | None = None,
        work: Work | None = None,
        listeners: Iterable[Listener] = (),
        hooks: Iterable[object] = (),
        mode: Mode | Mapping[str, Mode] = "enforce",
        limits: Limits | None = None,
        timeouts: Timeouts | None = None,
        fallback: Fallback | None = None,
        retry: RetryPolicy | None = None,
        secrets: Mapping[str, Reference] | None = None,
        redactor: Redactor | None = None,
        declared: Mapping[str, ToolFlags] | None = None,
        scope: Literal["session"] | None = None,
        debug: bool = False,
    ) -> None:
        """Raises `ConfigError` if an option is wrong, or a rule of the policy can never apply.

        Args:
            tools: Functions with `@tool`, tool classes, mappings, sources that `connect` opened, or a `ToolRegistry`.
            policy: Who may run what. By default read-only tools run, and the customer is asked before every other.
            store: Keeps the ledger, the approvals and durable calls, and audits: what `handrail.store.open_store`
                returns, or the URL of a database, which is opened before the first call and closed by `aclose()`. By
                default ledger and approvals are in memory.
            ledger: Another implementation of the record of consequential calls.
            approvals: Another implementation of what keeps approvals.
            work: Another implementation of what keeps durable calls.
            listeners: Functions that get every event.
            hooks: Objects with `before` or `authorised`, which may change arguments or refuse.
            mode: `enforce`, or `observe`: the policy decides and records, and blocks nothing. A mapping says it by
                selectors of tools.
            limits: How much may run, and how large arguments and outputs may be.
            timeouts: How long each part of a call may take.
            fallback: A function `(call, context)` that runs the calls of tools that are not registered.
            retry: How often a read-only or idempotent tool is tried; by default once.
            secrets: What handlers find in `context.secrets`, by name: references such as `env:API_KEY` or
                `file:/run/secrets/api`, or functions. A literal is refused.
            redactor: What is hidden wherever something is written: logs, audit, approvals, the console.
            declared: What tools are that are not in the pool, and are only passed to `guard()` or the fallback: which
                of them read, have a key, a lock or a `verify`. One that is not declared is consequential.
            scope: An effect is the customer's (`ToolContext.customer_id`), or, without one, the session's: the same
                call in another session is then another effect. `session` says that this is meant; else a warning is
                logged.
            debug: Write the texts of exceptions and values to the log, for development: they may hold secrets.
        """
        listeners, hooks = tuple(listeners), tuple(hooks)
        self._options: dict[str, Any] = {  # For `with_store`.
            **{"listeners": listeners, "hooks": hooks, "mode": mode, "limits": limits, "timeouts": timeouts},
            **{"fallback": fallback, "retry": retry, "secrets": secrets, "redactor": redactor, "declared": declared},
            **{"scope": scope, "debug": debug},
        }
        self._is_debug = debug
        redactor, limits, timeouts = redactor or Redactor(), limits or Limits(), timeouts or Timeouts()
        policy, retry = policy or Policy(), retry or RetryPolicy()
        self._owns_store = isinstance(store, str)
        self._store = choose_store(store, ledger=ledger, approvals=approvals, work=work, redactor=redactor)
        self._parts = parts = build_parts(
            self._store,
            listeners=listeners,
            hooks=hooks,
            mode=mode,
            limits=limits,
            timeouts=timeouts,
            retry=retry,
            secrets=secrets or {},
            redactor=redactor,
        )
        self.approvals: Approvals = parts.approvals
        self.emit: Callable[[Event], None] = parts.events.emit
        """Hands an event to all listeners, and to those of its session."""
        self.timeouts: Timeouts = timeouts
        """How long the parts of its calls may take."""
        self.owner: str = parts.owner
        """What the ledger and stored calls name this executor by."""
        self._hooks = parts.hooks
        self._max_argument_chars = limits.max_argument_chars
        self._running = parts.running
        self._effects = EffectRunner(parts, warns_without_customer=scope is None)
        self._reads = ReadRunner(parts)
        self._preparation = CallPreparation(parts, self._effects)
        self._portal = SyncPortal(current_loop=lambda: parts.handlers.deadlines.loop)
        self._canceller = CallCanceller(running=parts.running, scheduler=parts.scheduler, events=parts.events)
        self._provenances = SessionProvenances()
        approval_events = getattr(self.approvals, "events", None)
        if isinstance(approval_events, ApprovalEvents) and self._effects.durable is not None:
            approval_events.subscribe(self._effects.durable)
        self._pool = ToolPool(
            tools,
            policy=policy,
            fallback=fallback,
            declared=declared or {},
            output_limiter=parts.output_limiter,
            timeout=timeouts.call,
            retry=retry,
            max_output_chars=limits.max_output_chars,
            max_media_bytes=limits.max_media_bytes,
            can_store=parts.work is not None,
        )

    # The tools.

    @property
    def registry(self) -> ToolRegistry:
        """The tools of the pool."""
        return self._pool.registry

    @property
    def store(self) -> Store | StoreParts:
        """Where it keeps its calls and approvals: what was passed, or the parts in memory."""
        return self._store

    def is_observed(self, tool: Tool[..., Any]) -> bool:
        """Whether decisions about a tool are recorded only, and block nothing (`mode="observe"`)."""
        return self._parts.authorizer.is_observed(tool)

    @property
    def diagnostics(self) -> tuple[str, ...]:
        """Rules of the policy that can never apply to the tools of this pool, as far as they are known."""
        return self._pool.diagnostics

    @property
    def is_open(self) -> bool:
        """Whether it can get tools that it does not know yet: from sources that change, or through the fallback."""
        return self._pool.is_open

    @property
    def known_tools(self) -> tuple[Tool[..., Any], ...]:
        """The tools of the pool, and those of another framework that were declared or have passed a schema."""
        return self._pool.known_tools

    def has_tool(self, name: str) -> bool:
        """Whether there is a tool of this name."""
        return name in self._pool.registry

    def find_policy_problems(self, policy: Policy) -> list[PolicyProblem]:
        """The rules of a policy that can never apply to the tools that are known here."""
        return self._pool.find_policy_problems(policy)

    def replace_tools(self, tools: ToolRegistry | Iterable[object]) -> None:
        """Replace the pool. Running calls, and turns that have begun, keep the tools that they started with.

        When the tools of a source in `tools` (what `handrail.sources.connect` yields) change, so does the pool.
        """
        self._pool.replace_tools(tools)

    def replace_policy(self, policy: Policy) -> None:
        """Replace the policy: every call that is decided from now on is decided by it, in running turns, too.

        Raises `ConfigError` if a rule can never apply to the tools, and all tools are known; the policy stays then.
        """
        self._pool.replace_policy(policy)

    def prepare_policy(self, policy: Policy) -> Callable[[], None]:
        """Work out another policy, which may be done in a thread; the function that this returns replaces it, at once.

        Raises `ConfigError` as `replace_policy` does.
        """
        return self._pool.prepare_policy(policy)

    @property
    def policy(self) -> Policy:
        """The policy that decides now."""
        return self._pool.policy

    def with_tools(self, tools: ToolRegistry | Iterable[object], *, policy: Policy) -> Self:
        """A new executor with other tools and another policy, such as those of one tenant; this one stays as it is.

        Both share the ledger, the approvals, the limits, the hooks, the listeners and the running calls. Raises
        `ConfigError` if a rule can never apply to these tools, and the tools of this executor are fixed.
        """
        other = copy.copy(self)
        other._pool = self._pool.with_tools(tools, policy=policy)
        return other

    def with_store(self, store: Store | str) -> Self:
        """A new executor that keeps its calls in another store; this one stays as it is.

        Tools, policy and options are the same. They share no running calls, and a URL is opened and closed as by
        `Executor(store=…)`. Raises `ConfigError` if the ledger, the approvals or the stored calls of this one are
        implementations of their own: they would be lost.
        """
        if not self.has_replaceable_store:
            raise ConfigError("this executor has a store of its own: build one with the other store.")
        other = copy.copy(self)
        Executor.__init__(other, self._pool.tools, policy=self.policy, store=store, **self._options)
        return other

    @property
    def has_replaceable_store(self) -> bool:
        """Whether `with_store` loses nothing: it was built with a URL, or with nothing but parts in memory."""
        parts = self._store
        if self._owns_store or not isinstance(parts, StoreParts):
            return self._owns_store
        return (
            isinstance(parts.ledger, MemoryLedger)
            and isinstance(parts.approvals, MemoryApprovals)
            and (parts.work is None or isinstance(parts.work, MemoryWork))
        )

    @property
    def asks_for_origins(self) -> bool:
        """Whether a rule asks where values come from (`from`): only then is a `Provenance` fed."""
        return bool(self._pool.sources)

    def get_provenance(self, context: ToolContext[Any]) -> Provenance:
        """The provenance that adapters keep for a session of another framework; the least used are forgotten."""
        return self._provenances.get(context.tenant_id, context.session_id)

    def find_source_tool(self, name: str) -> SourceTool:
        """The tool of a result, as `Provenance` takes it; one that is not known any more has a name only."""
        return self._pool.find_source_tool(name)

    def is_denied(self, name: str, context: ToolContext[Any]) -> bool:
        """Whether the policy denies every call of a tool in this context, whatever its arguments are."""
        compiled = self._pool.compiled.get(name)
        return (
            compiled is not None
            and compiled.policy.is_denied(context)
            and not self._parts.authorizer.is_observed(compiled.tool)
        )

    def subscribe_tools(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call a function after every change of the pool; the function returned here unsubscribes it."""
        return self._pool.subscribe(listener)

    def snapshot(self, *, exclude: Collection[str] = ()) -> Self:
        """An executor with the current tools but those to exclude, by name, unaffected by later replacements;
        everything else is shared, the policy, too."""
        other = copy.copy(self)
        other._pool = self._pool.snapshot(exclude=exclude)
        return other

    def register(self, name: str, function: object) -> Self:
        """A new executor that also has this tool, under this name; this one stays as it is.

        Both share the ledger, the approvals, the limits and the running calls; each has its own policy from then on.
        """
        other = copy.copy(self)
        other._pool = self._pool.register(name, function)
        return other

    def __repr__(self) -> str:
        names = join_names([tool.name for tool in self._pool.known_tools])
        return f"Executor([{names}], policy={self.policy!r}, ledger={type(self._parts.ledger).__name__})"

    # Running.

    async def run(self, call: ToolCall, context: ToolContext[Any]) -> ToolResult:
        """Run one call. It returns a result whatever happens; only a real cancellation of the caller is raised."""
        if not (isinstance(call, ToolCall) and isinstance(context, ToolContext)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise build_type_error(call, context)
        if self._is_debug and not SHOW_TEXTS.get():
            return await self._show_texts(self.run(call, context))
        if self._running.by_session:
            self._running.check_loop()
        compiled = self._pool.compiled.get(call.name)
        if (
            compiled is None
            or self._hooks
            or len(call.arguments_json) > self._max_argument_chars
            or not call.id.isprintable()
            or not self._store.is_open
        ):
            return await self._run_prepared(await self._preparation.prepare(self._pool, call, context), call, context)
        if not compiled.tool.read_only:
            result = await self._effects.run(compiled, call, context)
        elif not isinstance(result := self._reads.begin(compiled, call, context), ToolResult):
            result = await result
        if self._pool.sources:
            self._pool.add_to_provenance(compiled.tool, call, result, context)
        return result

    async def run_all(self, calls: Iterable[ToolCall], context: ToolContext[Any]) -> list[ToolResult]:
        """Run calls: neighbours that are concurrency-safe together, every other alone. Results are in the calls'
        order."""
        every = list(calls)
        if len(every) == 1:
            return [await self.run(every[0], context)]
        if not self._hooks:
            return list(await asyncio.gather(*(_start_named(self.run(call, context), call, context) for call in every)))
        # Hooks may wait; the calls still start in their order.
        prepared = await asyncio.gather(*(self._preparation.prepare(self._pool, call, context) for call in every))
        running = (
            _start_named(self._run_prepared(ready, call, context), call, context)
            for call, ready in zip(every, prepared, strict=True)
        )
        return list(await asyncio.gather(*running))

    async def _run_prepared(
        self, prepared: tuple[CompiledTool, ToolCall] | ToolResult, sent_call: ToolCall, context: ToolContext[Any]
    ) -> ToolResult:
        if isinstance(prepared, ToolResult):
            return prepared
        compiled, call = prepared
        if compiled.tool.read_only:
            result = await self._reads.run(compiled, call, context)
        else:
            result = await self._effects.run(compiled, call, context, sent_call)
        if self._pool.sources:
            self._pool.add_to_provenance(compiled.tool, sent_call, result, context)
        return result

    async def _show_texts(self, running: Awaitable[ToolResult]) -> ToolResult:
        """Run with the texts of exceptions in the log, redacted, for this call only."""
        token = SHOW_TEXTS.set(True)
        try:
            return await running
        finally:
            SHOW_TEXTS.reset(token)

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
        self,
        call: ToolCall,
        context: ToolContext[Any],
        proceed: Callable[..., Awaitable[Any] | Any],
        *,
        schema: Mapping[str, Any] | None = None,
        flags: ToolFlags | None = None,
    ) -> ToolResult:
        """Run a call whose handler is another framework's: `proceed` runs it.

        `proceed(arguments)` gets the arguments that were authorised, which a hook or an approver may have changed. A
        `proceed` that takes no arguments is refused if they were changed. If it is not async it must not block: it runs
        in the loop. Arguments are validated against `schema`, the JSON Schema of the tool, which must not be changed in
        place; without it they are the host's to check. A schema that is not valid, or has no argument that the tool's
        key names, raises `ToolDefinitionError`. `flags` say what the tool is where nothing is registered or declared
        under its name: for a host whose own descriptions are trusted.
        """
        return await self._guard(call, context, proceed, schema=schema, flags=flags, is_blocking=False)

    async def _guard(
        self,
        call: ToolCall,
        context: ToolContext[Any],
        proceed: Callable[..., Awaitable[Any] | Any],
        *,
        schema: Mapping[str, Any] | None,
        flags: ToolFlags | None,
        is_blocking: bool,
    ) -> ToolResult:
        if not (isinstance(call, ToolCall) and isinstance(context, ToolContext)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise build_type_error(call, context)
        if self._is_debug and not SHOW_TEXTS.get():
            return await self._show_texts(
                self._guard(call, context, proceed, schema=schema, flags=flags, is_blocking=is_blocking)
            )
        self._running.check_loop()
        handler, takes_arguments = build_host_handler(call, proceed)
        registered = self._pool.compiled.get(call.name)
        compiled = self._pool.host_tools.compile(
            call.name, handler, schema=schema, registered=registered, flags=flags, is_blocking=is_blocking
        )
        prepared = await self._preparation.prepare(self._pool, call, context, compiled)
        if not takes_arguments and isinstance(prepared, tuple) and prepared[1].arguments_json != call.arguments_json:
            return await self._preparation.refuse(
                compiled, call, context, failure_results.host_cannot_change(call.name)
            )
        return await self._run_prepared(prepared, call, context)

    def guard_sync(
        self,
        call: ToolCall,
        context: ToolContext[Any],
        proceed: Callable[..., Awaitable[Any] | Any],
        *,
        schema: Mapping[str, Any] | None = None,
        flags: ToolFlags | None = None,
    ) -> ToolResult:
        """`guard` for a caller that has no event loop; `proceed` runs in a worker thread, and may block."""
        return self.run_coroutine(self._guard(call, context, proceed, schema=schema, flags=flags, is_blocking=True))

    def explain(self, call: ToolCall, context: ToolContext[Any]) -> Explanation:
        """Which rule would decide about a call, where it stands, and why; of every other rule, what failed of it.

        Nothing runs, and nobody is asked.
        """
        compiled = self._pool.compiled.get(call.name) or self._pool.compile_fallback(call)
        if compiled is None and call.name in self._pool.host_tools.declared:
            compiled = self._pool.host_tools.find(call.name)
        if compiled is None:
            return explain_call(call, None, context, is_observed=False, redactor=self._parts.redactor)
        is_observed = self._parts.authorizer.is_observed(compiled.tool)
        return explain_call(call, compiled.policy, context, is_observed=is_observed, redactor=self._parts.redactor)

    async def request_approval(
        self,
        call: ToolCall,
        context: ToolContext[Any],
        *,
        schema: Mapping[str, Any] | None = None,
        flags: ToolFlags | None = None,
    ) -> Approval | None:
        """Ask whoever has to agree to a call, as running it would, without running it: the open question.

        None if there is none: the call needs nobody, is refused, or was decided about already. `schema` and
        `flags` are those of `guard()`, for a tool of another framework.
        """
        compiled = self._pool.compiled.get(call.name)
        if schema is not None or flags is not None:
            compiled = self._pool.host_tools.find(call.name, schema=schema, registered=compiled, flags=flags)
        preparation = self._preparation
        if compiled is None or not preparation.is_acceptable(call) or not await preparation.has_store():
            return None
        if (ready := await preparation.try_hooks(call, compiled.tool, context)) is None:
            return None
        runner = self._reads if compiled.tool.read_only else self._effects
        return await runner.request_approval(compiled, ready, context)

    def is_read_only(self, name: str) -> bool:
        """Whether a tool only reads, as it was registered or declared; one that is not known may change something."""
        compiled = self._pool.compiled.get(name)
        tool = compiled.tool if compiled is not None else self._pool.host_tools.declared.get(name)
        return tool is not None and tool.read_only

    def digest_secret(self, secret: bytes) -> str:
        """A digest to pass in the arguments of `guard()` in place of a secret, so that no store and no log has it.

        It is made with the ledger's key: the same secret has the same digest in every process that shares the ledger.
        Raises `StoreError` if the store is not open: `await executor.open()` first.
        """
        return self._parts.digests.digest_secret(secret)

    # Calls that outlive their process.

    async def submit(self, call: ToolCall, context: ToolContext[Any], *, priority: int = 0) -> ToolResult | None:
        """Store a call of a durable tool for a worker, and do not wait: None.

        A call that is refused, or was done already, has its result at once. One that somebody has to agree to is
        stored, too, and its result is `approval_required`: an operator's yes queues it; after a customer's, submit it
        again in their next turn. Of a tenant's calls, those with a higher `priority` are taken first.
        """
        if not (isinstance(call, ToolCall) and isinstance(context, ToolContext)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise build_type_error(call, context)
        self._running.check_loop()
        prepared = await self._preparation.prepare(self._pool, call, context)
        if isinstance(prepared, ToolResult):
            return prepared
        compiled, ready = prepared
        durable = self._effects.durable
        if not compiled.tool.durable or durable is None or not call.id:
            refused = failure_results.not_durable if call.id else failure_results.no_call_id
            return self._parts.results.report(call, context, refused(call.name), perf_counter())
        return await durable.submit(
            compiled, ready, context, call, authorize=self._effects.authorize, priority=priority
        )

    async def wait(self, *, session_id: str, call_id: str, timeout: float = 30.0) -> ToolResult:
        """Wait for the result of a durable call, which any process may run.

        When the time is over, the result says how far it is: `in_progress`, `approval_required`, `outcome_unknown`, or
        `unavailable` if no worker takes it. Raises `ConfigError` if there is no such call.
        """
        return await self.durable.wait(session_id=session_id, call_id=call_id, timeout=timeout)

    async def cancel_stored(self, call_id: str, *, session_id: str) -> bool:
        """Ask whichever process has a durable call to cancel it; whether there is one that has no result.

        One that no worker has taken ends at once. Its result tells the truth about what it did.
        """
        return await self.durable.cancel(session_id=session_id, call_id=call_id)

    @property
    def durable(self) -> DurableCalls:
        """Where its durable calls are stored, for a `Worker`; raises `ConfigError` without a store."""
        if self._effects.durable is None:
            raise ConfigError("this executor has no store for durable calls: pass Executor(store=…).")
        return self._effects.durable

    @property
    def durable_definitions(self) -> frozenset[str]:
        """The digests of the definitions whose stored calls it can run."""
        return self._pool.durable_definitions

    def stop_unclaimed(self, ref: CallRef) -> bool:
        """Stop a consequential call, if it waits and nothing of it is in the ledger; whether it was stopped."""
        return self._effects.stop_unclaimed(ref)

    async def run_stored(self, stored: StoredCall, context: ToolContext[Any]) -> ToolResult:
        """Run a call that a worker has taken: denials are checked again, and nobody is asked again."""
        item, started = stored.item, perf_counter()
        call = item.call or ToolCall(id=item.call_id, name=item.tool)
        compiled = self._pool.compiled.get(call.name) or self._pool.compile_fallback(call)
        if compiled is None:
            return await self._preparation.refuse(None, call, context, self._pool.build_not_found(call.name))
        if item.call is None or not self.durable.is_sealed(item):
            log.error("the stored call %s of %s was changed: it is refused", item.call_id, item.tool)
            return await self._effects.refuse(call, context, failure_results.row_changed(item.tool), started, call)
        return await self._effects.run(compiled, call, context, item.sent_call, stored)

    # Calls whose outcome nobody knows.

    @property
    def outlives_process(self) -> bool:
        """Whether the ledger of consequential calls outlives this process."""
        return self._parts.ledger.is_written

    async def look_up(self, call: ToolCall, context: ToolContext[Any], *, by_key: bool = True) -> ToolResult | None:
        """Find out what became of a consequential call that was made before. Nothing is begun, and nobody is asked.

        Returns its recorded result, or `in_progress` or `outcome_unknown`; None if the ledger knows nothing about it. A
        doubt is verified first, if the tool can. Without `by_key`, other calls of the same effect do not count.
        """
        self._running.check_loop()
        compiled = self._pool.compiled.get(call.name)
        sent = call
        if (compiled is not None and compiled.tool.read_only) or not is_storable(call.id):
            return None
        await self._preparation.has_store()  # If it has none, the ledger cannot be read: the outcome is unknown.
        if compiled is not None:
            ready = await self._preparation.try_hooks(call, compiled.tool, context)
            # If a hook refuses, it is not what was asked: its own entry still tells.
            compiled, call = (None, call) if ready is None else (compiled, ready)
        found = await self._effects.recall.look_up(compiled, call, context, by_key=by_key, sent=sent)
        if found is not None and compiled is not None and self._pool.sources:
            self._pool.add_to_provenance(compiled.tool, sent, found, context)
        return found

    async def doubts(
        self, *, session_id: str | None = None, tenant_id: str | None = None, limit: int = 100
    ) -> list[Doubt]:
        """List the consequential calls whose outcome is not known, the oldest first."""
        return await list_doubts(
            self._parts.ledger,
            session_id=session_id,
            tenant_id=tenant_id,
            limit=limit,
            redactor=self._parts.redactor,
            work=self._parts.work,
        )

    async def resolve(
        self,
        *,
        session_id: str,
        call_id: str,
        happened: bool,
        who: str,
        reason: str = "",
        expected: str | None = None,
    ) -> ToolResult:
        """Record what an operator found out about a call in doubt: whether its effect took place.

        The next look at the call gets the returned result. That nothing happened (`happened=False`) is refused while
        the handler may still run. `expected` is the `version` of the doubt that was looked at: if the entry has changed
        since, nothing is written. Raises `ConfigError` if there is no such doubt.
        """
        return await resolve_doubt(
            self._parts.ledger,
            self._parts.events.emit,
            session_id=session_id,
            call_id=call_id,
            happened=happened,
            who=who,
            reason=reason,
            expected=expected,
            redactor=self._parts.redactor,
            leases=self._parts.leases,
            is_running=self._running.find((session_id, call_id)) is not None,
            work=self._parts.work,
        )

    def subscribe(self, session_id: str, listener: Listener) -> AbstractContextManager[None]:
        """Add a listener to the events of one session, inside a `with` block."""
        return self._parts.events.subscribe(session_id, listener)

    # Cancelling.

    def running_calls(self, session_id: str) -> tuple[ToolCall, ...]:
        """The calls of a session that have no result yet."""
        return tuple(running.call for running in self._canceller.list_calls(session_id))

    async def call_function(self, function: Callable[..., Any], *arguments: Any, owner: str) -> Any:
        """Call a function of the application, sync or async, as hooks are called: with `@blocking` in a thread.

        `owner` names it in the log.
        """
        return await self._parts.callbacks.call(function, *arguments, owner=owner)

    @property
    def stranded_threads(self) -> int:
        """Threads that still run for calls that were given up."""
        return self._parts.threads.stranded

    def cancel(self, call_id: str, *, session_id: str) -> bool:
        """Cancel one call, unless its tool cannot be interrupted. Its result tells the truth about what it did."""
        return self._canceller.cancel_call(call_id, session_id=session_id)

    def cancel_tools_for_response(self, response_id: str, *, session_id: str) -> int:
        """Interrupt the calls that a response asked for, each as its tool wants it; how many were cancelled."""
        return self._canceller.cancel_response(response_id, session_id=session_id)

    async def cancel_all(self, session_id: str, *, grace: float = 5.0) -> CancelResult:
        """End a session: reads are dropped, effects have the grace to finish and are then cut off as unknown.

        What is kept for the session (results of its read-only calls, outputs for `read_more`) is released.
        """
        try:
            return await self._canceller.cancel_session(session_id, grace=grace)
        finally:
            self._reads.forget_session(session_id)
            self._provenances.forget_session(session_id)
            self._parts.output_limiter.forget_session(session_id)

    # Opening and closing.

    async def open(self) -> None:
        """Open the store, if it is not open; the first call does so, too. Raises `StoreError` if that fails."""
        await self._preparation.open_store()

    async def aclose(self, *, grace: float = 5.0) -> None:
        """Let what runs finish, cut off what does not, and close the connections of the tools and the store of a URL.

        A store that was passed open stays open. The next call opens a closed one again.
        """
        self._pool.unsubscribe_sources()
        sessions = list(self._running.by_session)
        await asyncio.gather(*(self.cancel_all(session_id, grace=grace) for session_id in sessions))
        await self._pool.aclose()
        if self._owns_store:
            await self._store.aclose()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()


def _start_named(
    running: Coroutine[Any, Any, ToolResult], call: ToolCall, context: ToolContext[Any]
) -> "asyncio.Task[ToolResult]":
    return asyncio.create_task(running, name=f"handrail:{context.session_id}:{call.id}")

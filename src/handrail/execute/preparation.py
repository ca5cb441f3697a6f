"""What comes before a call is looked up: an open store, the tool of the call, and its `before` hooks."""

from time import perf_counter
from typing import Any

from msgspec import structs

from handrail.authorize.hooks import HOOK_FAILED, HookRefusal, apply_before
from handrail.core import failure_results
from handrail.core.context import ToolContext
from handrail.core.log import log
from handrail.core.text import is_storable
from handrail.core.time_budget import TimeBudget
from handrail.core.tool import Tool
from handrail.core.values import ToolCall, ToolResult
from handrail.errors import StoreError
from handrail.execute.effects import EffectRunner
from handrail.execute.executor_parts import CallParts
from handrail.execute.executor_tools import CompiledTool, ToolPool


class CallPreparation:
    """Prepares the calls of an executor, or says why one cannot run."""

    def __init__(self, parts: CallParts, effects: EffectRunner) -> None:
        self._effects = effects
        self._store = parts.store
        self._hooks = parts.hooks
        self._callbacks = parts.callbacks
        self._results = parts.results
        self._timeout = parts.timeouts.overhead
        self._max_argument_chars = parts.limits.max_argument_chars

    async def prepare(
        self, pool: ToolPool, call: ToolCall, context: ToolContext[Any], compiled: CompiledTool | None = None
    ) -> tuple[CompiledTool, ToolCall] | ToolResult:
        """The tool of a call, and the call after its `before` hooks; or the result, if there is nothing to run."""
        compiled = compiled or pool.compiled.get(call.name) or pool.compile_fallback(call)
        if not is_storable(call.id):
            failed = pool.build_not_found(call.name) if compiled is None else failure_results.unusable_id(call.name)
            return self._results.report(call, context, failed, perf_counter())
        if not await self.has_store():
            unreadable = failure_results.ledger_unreadable(call.name)
            return self._results.report(call, context, unreadable, perf_counter())
        if (length := len(call.arguments_json)) > self._max_argument_chars:
            failed = failure_results.arguments_too_long(call.name, length, max_chars=self._max_argument_chars)
            # No listener parses or redacts what was refused for its length.
            shown = structs.replace(call, arguments_json="")
            failed = pool.build_not_found(call.name) if compiled is None else failed
            return await self.refuse(compiled, shown, context, failed, call)
        if compiled is None:
            return await self.refuse(None, call, context, pool.build_not_found(call.name))
        try:
            return compiled, await self._apply_hooks(call, compiled.tool, context)
        except (HookRefusal, TimeoutError) as refusal:
            if isinstance(refusal, TimeoutError):
                log.error("a hook took too long about %s", call.name)
            message = str(refusal) or HOOK_FAILED
            return await self.refuse(compiled, call, context, failure_results.refused_by_hook(message))

    async def try_hooks(self, call: ToolCall, tool: Tool[..., Any], context: ToolContext[Any]) -> ToolCall | None:
        """The call after its `before` hooks; None if one refuses it."""
        try:
            return await self._apply_hooks(call, tool, context)
        except (HookRefusal, TimeoutError):
            return None

    async def _apply_hooks(self, call: ToolCall, tool: Tool[..., Any], context: ToolContext[Any]) -> ToolCall:
        if not self._hooks:
            return call
        return await TimeBudget(self._timeout).run(apply_before(self._hooks, call, tool, context, self._callbacks))

    def is_acceptable(self, call: ToolCall) -> bool:
        """Whether a call has an id that can be stored, and arguments that are not too long."""
        return len(call.arguments_json) <= self._max_argument_chars and is_storable(call.id)

    async def refuse(
        self,
        compiled: CompiledTool | None,
        call: ToolCall,
        context: ToolContext[Any],
        refusal: ToolResult,
        sent_call: ToolCall | None = None,
    ) -> ToolResult:
        """The result of a call that is refused before it is looked up: what the ledger knows about it comes first."""
        if compiled is not None and compiled.tool.read_only:
            return self._results.report(call, context, refusal, perf_counter())
        return await self._effects.refuse(call, context, refusal, perf_counter(), sent_call or call)

    # The store.

    async def open_store(self) -> None:
        """Open the store, if it is not open. Raises `StoreError` if that fails."""
        if not self._store.is_open:
            try:
                await TimeBudget(self._timeout).run(self._store.open())
            except TimeoutError as error:
                raise StoreError(f"the store was not open after {self._timeout:g} seconds.") from error

    async def has_store(self) -> bool:
        """Whether the store is open, or can be opened."""
        try:
            await self.open_store()
        except Exception:
            log.exception("the store cannot be opened")
            return False
        return True

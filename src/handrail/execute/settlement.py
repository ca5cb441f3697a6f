"""Settles consequential calls: finds out what became of them, and writes it into the ledger."""

import asyncio
import inspect
import time
from typing import Any, Final, cast

from msgspec import structs

from handrail.core import failure_results
from handrail.core.context import ToolContext
from handrail.core.handler_output import is_plain
from handrail.core.log import log
from handrail.core.media import limit_media
from handrail.core.redact import Redactor
from handrail.core.time_budget import TimeBudget
from handrail.core.values import ToolCall, ToolResult
from handrail.errors import must_propagate
from handrail.execute.compiled_tool import CompiledTool
from handrail.execute.handlers import HandlerRunner, Outcome, outcome_of_error
from handrail.execute.leases import LeaseKeeper
from handrail.execute.ledger import MAX_RECORDED_MEDIA_BYTES, Entry, Ledger, RecordedResult, State, settle_entry
from handrail.execute.threads import ThreadJob

_STATES: Final[dict[str, State]] = {"yes": "committed", "no": "failed", "unknown": "unknown"}
_RETRY_DELAYS: Final = (0.05, 0.2, 1.0)
"""Seconds between attempts to write to a ledger that cannot be reached."""


class Settlement:
    """Verifies and records outcomes."""

    def __init__(self, *, ledger: Ledger, handlers: HandlerRunner, redactor: Redactor, leases: LeaseKeeper) -> None:
        self.leases = leases
        self._background: set[asyncio.Future[Any]] = set()
        """Writes to the ledger that are still tried after their call had its result."""
        self._ledger = ledger
        self._handlers = handlers
        self._redactor = redactor
        # A ledger in memory writes nothing: the result is kept as it is.
        self._to_text = _as_text if getattr(ledger, "in_memory", False) else redactor.output

    async def settle(self, entry: Entry, outcome: Outcome, retry_delays: tuple[float, ...] = _RETRY_DELAYS) -> bool:
        """Write the outcome of a call, and try again if the ledger cannot be reached; returns whether it is written."""
        settled = settle_entry(entry, _STATES[outcome.happened], self._to_record(outcome.result), now=time.time())
        delays = iter(retry_delays)
        while True:
            try:
                await self._ledger.settle(settled)
                return True
            except Exception:
                log.exception("the outcome of %s could not be recorded", entry.tool)
                if (delay := next(delays, None)) is None:
                    return False
                await asyncio.sleep(delay)

    async def settle_within(self, entry: Entry, outcome: Outcome, budget: TimeBudget) -> bool:
        """Settle the entry; if the ledger does not answer in time, go on trying after the call has its result."""
        settling = self._start_settling(entry, outcome)
        try:
            return await budget.run(asyncio.shield(settling))
        except TimeoutError:
            log.error("the outcome of %s is not recorded yet: the ledger does not answer", entry.tool)
            return False

    def settle_at_end(self, compiled: CompiledTool, entry: Entry, job: ThreadJob) -> None:
        """Settle a call that was given up when its thread ends; until then its entry stays running."""
        self.leases.hold(entry)

        def settle(value: Any, is_error: bool) -> None:
            try:
                if is_error:
                    outcome = outcome_of_error(compiled, value, has_begun=True)
                else:
                    outcome = self._handlers.outcome_of_output(compiled, value, entry.session_id)
            except BaseException as error:  # an interrupt of the thread is not one of the program
                log.error("%s ended after it was given up", entry.tool, exc_info=error)
                outcome = Outcome(result=failure_results.outcome_unknown(entry.tool), happened="unknown")
            self._start_settling(entry, outcome)

        job.on_late_end = settle

    def _start_settling(self, entry: Entry, outcome: Outcome) -> "asyncio.Future[bool]":
        """Settle in a task that outlives the call; the lease is held until it is written."""
        settling = asyncio.ensure_future(self.settle(entry, outcome))
        settling.add_done_callback(lambda _: self.leases.release(entry))
        self._keep(settling)
        return settling

    def undo_claim(self, entry: Entry, claim: "asyncio.Future[bool]", result: ToolResult) -> None:
        """A claim failed: mark its entry as failed, in case that it was written although the answer was lost."""
        self._keep(asyncio.ensure_future(self._undo_claim(entry, claim, result)))

    async def _undo_claim(self, entry: Entry, claim: "asyncio.Future[bool]", result: ToolResult) -> None:
        # If that fails too, the entry becomes `unknown` when its lease is over.
        await asyncio.wait([claim])
        if not claim.cancelled() and claim.exception() is None and not claim.result():
            return  # Another call was faster.
        await self.settle(entry, Outcome(result=result, happened="no"))

    def _keep(self, task: "asyncio.Future[Any]") -> None:
        """Hold a task until it ends: asyncio itself keeps weak references only."""
        self._background.add(task)
        task.add_done_callback(self._drop)

    def _drop(self, task: "asyncio.Future[Any]") -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a write to the ledger failed", exc_info=error)

    def _to_record(self, result: ToolResult) -> RecordedResult:
        """What may be written of a result: its output as a text or as JSON, its failure and its metadata."""
        error = result.error
        metadata: dict[str, Any] = {}
        if result.metadata:
            redacted: Any = self._redactor.value(result.metadata)
            if isinstance(redacted, dict):  # It is none if the redactor could not look into it.
                metadata = cast(dict[str, Any], redacted)
        media = result.media
        if media:
            reason = f"only {MAX_RECORDED_MEDIA_BYTES:,} bytes of media are recorded for a replay"
            media = limit_media(media, MAX_RECORDED_MEDIA_BYTES, reason=reason)
        return RecordedResult(
            text=None if error is not None and result.output is None else self._to_text(result.output),
            is_json=not isinstance(result.output, str),
            failure=None if error is None else structs.replace(error, message=self._to_text(error.message)),
            control=result.control,
            metadata=metadata,
            media=media,
        )

    async def verify(
        self,
        compiled: CompiledTool,
        call: ToolCall,
        context: ToolContext[Any],
        entry: Entry,
        arguments: dict[str, Any],
        *,
        budget: TimeBudget,
        has_ended: bool,
    ) -> Outcome | None:
        """The outcome according to the tool's `verify`; None if it has none, fails, takes too long, or cannot tell.

        `verify` returns a value or True (it happened), False (it did not), or None (it cannot tell). Its "no" counts
        only once the handler cannot be running any more.
        """
        tool = compiled.tool
        verify = tool.verify
        if verify is None:
            return None
        context = self._handlers.build_context(call, context, entry.idempotency_key)
        try:
            found = await budget.run(self._call_verify(verify, arguments, context, tool.name))
        except BaseException as error:
            if must_propagate(error):
                raise
            log.error("verify of %s failed", tool.name, exc_info=error)
            return None
        if found is None or (found is False and not has_ended):
            return None
        if found is False:
            return Outcome(result=failure_results.verified_failure(tool.name), happened="no")
        output = f"`{tool.name}` took effect." if found is True else found
        if is_plain(output):
            return self._handlers.outcome_of_output(compiled, output, entry.session_id)
        return await self._handlers.collect_outcome(compiled, output, entry.session_id)

    async def _call_verify(self, verify: Any, arguments: dict[str, Any], context: ToolContext[Any], name: str) -> Any:
        if inspect.iscoroutinefunction(verify):
            return await verify(arguments, context)
        found = await self._handlers.threads.run(lambda: verify(arguments, context), owner=name)
        return await found if inspect.isawaitable(found) else found


def _as_text(output: Any) -> str:
    return output if type(output) is str else ToolResult(output=output).for_model()

"""What becomes of consequential calls: their outcomes in the ledger."""

import asyncio
import time
from typing import Any, Final, TypeVar, cast

from msgspec import structs

from handrail.core import failure_results
from handrail.core.log import log
from handrail.core.media import limit_media
from handrail.core.redact import Redactor, is_longer
from handrail.core.secret_patterns import MAX_PIECE
from handrail.core.time_budget import ShieldedStep, TimeBudget
from handrail.core.values import ToolResult
from handrail.errors import CallTakenOverError, must_propagate
from handrail.execute.executor_tools import CompiledTool
from handrail.execute.handlers import HandlerRunner, Outcome, keep_doubt, outcome_of_error
from handrail.execute.leases import LeaseKeeper
from handrail.execute.ledger import (
    MAX_RECORDED_MEDIA_BYTES,
    Entry,
    Ledger,
    RecordedResult,
    State,
    awaits_plain_futures,
    settle_entry,
)
from handrail.execute.results import note_changes
from handrail.execute.scheduler import CallRef
from handrail.execute.stored_calls import Work
from handrail.execute.threads import ThreadJob

T = TypeVar("T")

_STATES: Final[dict[str, State]] = {"yes": "committed", "no": "failed", "unknown": "unknown"}
_RETRY_DELAYS: Final = (0.05, 0.2, 1.0)
"""Seconds between attempts to write to a ledger that cannot be reached."""


class Settlement:
    """Finds out how consequential calls ended, and writes it into the ledger."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        handlers: HandlerRunner,
        redactor: Redactor,
        leases: LeaseKeeper,
        work: Work | None = None,
    ) -> None:
        self.leases = leases
        self._work = work
        self._background: set[asyncio.Future[Any]] = set()
        """Writes to the ledger that are still tried after their call had its result."""
        self.undoing: dict[CallRef, asyncio.Future[None]] = {}
        """Claims that are being undone, by call: what this executor wrote about one now would be undone, too."""
        self._ledger = ledger
        self._handlers = handlers
        self._redactor = redactor
        self._is_immediate = ledger.is_immediate
        self._is_plain = awaits_plain_futures(ledger, work)
        self._is_written = ledger.is_written
        # What is not written is kept as it is.
        self._to_text = redactor.output if ledger.is_written else _as_text

    async def settle(self, entry: Entry, outcome: Outcome, retry_delays: tuple[float, ...] = _RETRY_DELAYS) -> bool:
        """Write the outcome of a call, and try again if the ledger cannot be reached; returns whether it is written."""
        if self._is_written and _is_long(outcome):
            recorded = await self._redactor.run_aside(lambda: self.to_record(outcome.result), is_long=True)
        else:
            recorded = self.to_record(outcome.result)
        if outcome.verified is not None:
            recorded = structs.replace(recorded, verified=outcome.verified)
        settled = settle_entry(entry, _STATES[outcome.happened], recorded, now=time.time())
        delays = iter(retry_delays)
        while True:
            try:
                if settled.is_durable:
                    await self._ledger.settle(settled, work=self._work)
                else:
                    await self._ledger.settle(settled)
                return True
            except CallTakenOverError:
                log.warning("the outcome of %s is not recorded here: another worker has taken it over", entry.tool)
                return False
            except (Exception, asyncio.CancelledError) as error:
                if must_propagate(error):
                    raise
                log.error("the outcome of %s could not be recorded", entry.tool, exc_info=error)
                if (delay := next(delays, None)) is None:
                    return False
                await asyncio.sleep(delay)

    async def settle_as_failed(self, entry: Entry, budget: TimeBudget) -> bool:
        """Record that nothing happened, as it was verified; returns whether it is written."""
        outcome = Outcome(result=failure_results.verified_failure(entry.tool), happened="no")
        return await self.settle_within(entry, outcome, budget, is_held=False)

    async def note_changes(self, entry: Entry, outcome: Outcome) -> Outcome:
        """The outcome of a call whose approver changed its arguments: the model is told which ones ran."""
        if entry.changed_arguments is None:
            return outcome
        noted = await note_changes(outcome.result, entry.changed_arguments, self._redactor)
        return structs.replace(outcome, result=noted)

    async def settle_within(self, entry: Entry, outcome: Outcome, budget: TimeBudget, *, is_held: bool = True) -> bool:
        """Settle the entry; if the ledger does not answer in time, go on trying after the call has its result.

        `is_held` is whether its lease is the caller's to release.
        """
        if self._is_immediate:
            return await self.settle(entry, outcome)
        settle = self._settle_held if is_held else self.settle
        settling = ShieldedStep(settle(entry, outcome), is_plain=self._is_plain)
        try:
            return await budget.run_shielded(settling)
        except TimeoutError:
            log.error("the outcome of %s is not recorded yet: the ledger does not answer", entry.tool)
            return False
        finally:
            if settling.rest is not None:
                self._keep(settling.rest)

    async def _settle_held(self, entry: Entry, outcome: Outcome) -> bool:
        """Settle an entry; its lease is held until it is written."""
        try:
            return await self.settle(entry, outcome)
        finally:
            self.leases.release(entry)

    def settle_at_end(self, compiled: CompiledTool, entry: Entry, job: ThreadJob, *, is_in_doubt: bool = False) -> None:
        """Settle a call that was given up when its thread ends; until then its entry stays running.

        One that is in doubt may have taken effect in an earlier attempt.
        """
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
            if is_in_doubt:
                outcome = keep_doubt(compiled, outcome)
            self._keep(asyncio.ensure_future(self._settle_late(entry, outcome)))

        if job.future.done() and not job.future.cancelled():  # It ended just before it was given up.
            error = job.future.exception()
            settle(job.future.result() if error is None else error, error is not None)
        else:
            job.on_late_end = settle

    async def _settle_late(self, entry: Entry, outcome: Outcome) -> bool:
        try:
            return await self.settle(entry, await self.note_changes(entry, outcome))
        finally:
            self.leases.release(entry)

    async def undo_claim(self, entry: Entry, claim: ShieldedStep[bool] | None, result: ToolResult) -> None:
        """A claim failed: mark its entry as failed, in case that it was written although the answer was lost.

        A claim that may still be written (`claim`) is waited for after the call has its result.
        """
        if claim is None:
            await self.settle(entry, Outcome(result=result, happened="no"), retry_delays=())
        else:
            undoing = asyncio.ensure_future(self._undo_claim(entry, claim.rest, result))
            self.undoing[entry.session_id, entry.call_id] = undoing
            self._keep(undoing)

    async def _undo_claim(self, entry: Entry, claim: "asyncio.Task[bool] | None", result: ToolResult) -> None:
        # If that fails too, the entry becomes `unknown` when its lease is over.
        try:
            if claim is not None:
                await asyncio.wait([claim])
                if not claim.cancelled() and claim.exception() is None and not claim.result():
                    return  # Another call was faster.
            await self.settle(entry, Outcome(result=result, happened="no"))
        finally:
            del self.undoing[entry.session_id, entry.call_id]

    def _keep(self, task: "asyncio.Future[Any]") -> None:
        """Hold a task until it ends: asyncio itself keeps weak references only."""
        self._background.add(task)
        task.add_done_callback(self._drop)

    def _drop(self, task: "asyncio.Future[Any]") -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a write to the ledger failed", exc_info=error)

    def to_record(self, result: ToolResult) -> RecordedResult:
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
            notice=result.notice,
        )


def _is_long(outcome: Outcome) -> bool:
    """Whether there is so much to redact of an outcome that it would hold the event loop."""
    result = outcome.result
    if outcome.chars > MAX_PIECE or (result.error is not None and len(result.error.message) > MAX_PIECE):
        return True
    return bool(result.metadata) and is_longer(result.metadata, MAX_PIECE)


def _as_text(output: Any) -> str:
    return output if type(output) is str else ToolResult(output=output).for_model()

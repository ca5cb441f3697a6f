"""How a call ends: every result that a caller, a model or a listener gets of a call leaves through here."""

import time
from time import perf_counter
from typing import Any

from msgspec import structs

from handrail.core import failure_results
from handrail.core.context import ToolContext
from handrail.core.redact import Redactor
from handrail.core.values import Decision, ToolCall, ToolResult
from handrail.execute.event_bus import EventBus
from handrail.execute.ledger import Entry
from handrail.execute.running import RunningCall, RunningCalls


class CallResults:
    """Finishes the results of an executor's calls, and reports them to its listeners."""

    def __init__(self, *, events: EventBus, running: RunningCalls) -> None:
        self._events = events
        self._running = running

    def report(
        self,
        call: ToolCall,
        context: ToolContext[Any],
        result: ToolResult,
        started: float,
        decision: Decision | None = None,
        *,
        accepted: ToolCall | None = None,
    ) -> ToolResult:
        """Finish a result, and report it; one that was recorded before is reported as ignored.

        `accepted` is the call before its approver changed its arguments.
        """
        result = finish_result(result, call, started, decision)
        if self._events.has_listeners:
            if result.origin == "replayed":
                self._events.emit_ignored(accepted or call, context, "already_executed")
            else:
                self._events.emit_finished(call, context, result, accepted=accepted)
        return result

    def end_call(
        self, running: RunningCall, call: ToolCall, result: ToolResult, started: float, decision: Decision | None
    ) -> None:
        """Report the result of a running call, whose arguments `call` has, and hand it to everybody who waits for it.

        A call that was given up has its result already.
        """
        if running.result is not None:
            return
        running.on_stuck = None  # Breaks a reference cycle.
        if running.is_silent:
            result = structs.replace(result, silent=True)
        try:
            result = self.report(call, running.context, result, started, decision, accepted=running.call)
        finally:
            self._running.remove(running.ref)
        running.resolve(result)


def finish_result(result: ToolResult, call: ToolCall, started: float, decision: Decision | None = None) -> ToolResult:
    """A result with the id of its call, its duration, and what was decided about it."""
    return structs.replace(  # A third of the time of a new one, which has as many fields to name.
        result,
        call_id=call.id,
        provider_id=call.provider_id,
        tool_name=call.name,
        duration_ms=(perf_counter() - started) * 1000,
        decision=result.decision if decision is None else decision,
        form=None,
    )


def finish_text(output: str, call: ToolCall, started: float, decision: Decision | None) -> ToolResult:
    """The result of a call whose output is a text that needs neither a check nor a cut: one value instead of three."""
    return ToolResult(
        output=output,
        call_id=call.id,
        provider_id=call.provider_id,
        tool_name=call.name,
        duration_ms=(perf_counter() - started) * 1000,
        decision=decision,
    )


async def note_changes(result: ToolResult, arguments_json: str, redactor: Redactor) -> ToolResult:
    """The result of a call with the arguments that an approver put in the place of the model's: it names them."""
    if result.notice:
        return result
    ran = await redactor.text_aside(arguments_json)
    # Not "this call": others of the same effect read it, too.
    return structs.replace(
        result, notice=f"[Whoever approved the call that was made changed its arguments. It was made with: {ran}]"
    )


# What the ledger says about a call that does not run.


def replay(entry: Entry, *, is_same_call: bool) -> ToolResult:
    """The recorded result; for another call of the same effect, with a notice that it was done before."""
    done_at = failure_results.format_time(entry.settled_at or entry.claimed_at)
    if entry.erased_at is not None:
        return structs.replace(
            failure_results.erased(entry.tool, done_at, is_done=entry.state == "committed"), origin="replayed"
        )
    assert entry.recorded is not None
    result = entry.recorded.to_result()
    repeated = "" if is_same_call else f"[Already done at {done_at}, and not done again.]"
    notice = "\n".join(filter(None, (repeated, result.notice)))
    metadata = {**result.metadata, "done_at": done_at}
    return structs.replace(result, notice=notice, metadata=metadata, origin="replayed")


def describe_entry(entry: Entry) -> ToolResult:
    """What the entry of a call says about it: its recorded result, `in_progress` or `outcome_unknown`."""
    state = entry.state_at(time.time())
    if state in ("committed", "failed"):
        return replay(entry, is_same_call=True)
    return failure_results.unsettled(entry.tool, is_running=state == "running")


async def describe_duplicate(entry: Entry, redactor: Redactor) -> ToolResult:
    """The result of a call whose effect was done with other arguments."""
    done_at = failure_results.format_time(entry.settled_at or entry.claimed_at)
    arguments = await redactor.text_aside(entry.arguments) if entry.erased_at is None else "erased"
    return failure_results.duplicate_effect(entry.tool, done_at, arguments)

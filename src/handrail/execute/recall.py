"""What the ledger knows about a consequential call, and the result of one that must not run."""

import asyncio
import time
from time import perf_counter
from typing import Any, Final, Literal

from msgspec import Struct, structs

from handrail.authorize.authorizer import Authorizer, Refusal
from handrail.authorize.identity import CallDigests, compute_key
from handrail.core import failure_results
from handrail.core.context import ToolContext
from handrail.core.log import log
from handrail.core.redact import Redactor
from handrail.core.text import canonical_json
from handrail.core.time_budget import TimeBudget
from handrail.core.tool import Tool
from handrail.core.values import ToolCall, ToolResult
from handrail.execute.ledger import Entry, Ledger
from handrail.execute.results import CallResults, describe_duplicate, describe_entry, finish_result, replay
from handrail.execute.running import RunningCalls
from handrail.execute.scheduler import CallRef
from handrail.execute.settlement import Settlement
from handrail.execute.tool_pool import CompiledTool

_FIRST_LOOK: Final = 0.05
_LAST_LOOK: Final = 0.5
"""Seconds between two looks at a call that another process runs; the delay grows."""


# The state table.


class LedgerDecision(Struct, frozen=True, kw_only=True, gc=False):
    """What the table says about a call.

    `run`: nothing is in the way. `replay`: return the recorded result. `in_progress`: it is running. `duplicate_id`:
    the id belongs to another call. `duplicate_effect`: the effect was done with other arguments. `unknown`: it may have
    happened; never run it, ask `verify`. `ask_again`: it was done; somebody has to approve a repetition.
    """

    step: Literal["run", "replay", "in_progress", "duplicate_id", "duplicate_effect", "unknown", "ask_again"]
    entry: Entry | None = None
    """The entry that decided; for `run`, the newest entry of the key, after which this call is numbered."""
    number: int = 0
    repeat: int = 0
    is_same: bool = True
    """Whether the arguments of the entry are those of the call: only then may the call join or verify it."""


_NOTHING_KNOWN: Final = LedgerDecision(step="run")


def decide_from_ledger(
    by_id: Entry | None,
    by_key: Entry | None,
    *,
    identity: str,
    key: str,
    session_id: str,
    turn: int,
    now: float,
    repeat_window: float,
    is_idempotent: bool = False,
) -> LedgerDecision:
    """What to do with a call, given the entry with its id and the newest entry with its key."""
    if by_id is not None:
        if by_id.identity != identity:
            return LedgerDecision(step="duplicate_id", entry=by_id)
        match by_id.state_at(now):
            case "committed" | "failed":
                return LedgerDecision(step="replay", entry=by_id)
            case "running":
                return LedgerDecision(step="in_progress", entry=by_id)
            case "unknown":
                return LedgerDecision(step="unknown", entry=by_id)
    if by_key is None:
        return _NOTHING_KNOWN
    number = by_key.number + 1 if by_key.key == key else 0
    is_same = identity in (by_key.identity, by_key.arguments_digest)
    match by_key.state_at(now):
        case "running":
            return LedgerDecision(step="in_progress", entry=by_key, is_same=is_same)
        case "unknown":
            if is_idempotent and is_same:
                return LedgerDecision(step="run", entry=by_key, number=number, repeat=by_key.repeat)
            return LedgerDecision(step="unknown", entry=by_key, is_same=is_same)
        case "failed":  # Nothing happened: another attempt of the same effect.
            if by_key.repeat and now - (by_key.settled_at or by_key.claimed_at) < repeat_window:
                # The approval of the repetition was consumed: a repetition that failed is not a first time.
                return LedgerDecision(step="ask_again", entry=by_key, number=number, repeat=by_key.repeat)
            return LedgerDecision(step="run", entry=by_key, number=number, repeat=by_key.repeat)
        case "committed":
            if by_key.session_id == session_id and by_key.turn == turn:
                return LedgerDecision(step="replay" if is_same else "duplicate_effect", entry=by_key)
            if now - (by_key.settled_at or by_key.claimed_at) < repeat_window:
                repeat = by_key.repeat + 1
                return LedgerDecision(step="ask_again", entry=by_key, number=number, repeat=repeat, is_same=is_same)
            return LedgerDecision(step="run", entry=by_key, number=number, repeat=by_key.repeat + 1)


class CallArguments(Struct, frozen=True, gc=False):
    """A call with its validated arguments, and everything that follows from them."""

    call: ToolCall
    value: Any
    """The validated arguments, as the handler takes them."""
    arguments: dict[str, Any]
    """The validated arguments, as JSON values."""
    text: str
    """`arguments` as canonical JSON."""
    digest: str
    key: str
    lock_key: str | None


class CallRecall:
    """Looks calls up in the ledger, by their id and by the key of their effect."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        authorizer: Authorizer,
        digests: CallDigests,
        settlement: Settlement,
        results: CallResults,
        redactor: Redactor,
        running: RunningCalls,
        repeat_window: float,
        overhead_timeout: float,
        in_progress_timeout: float,
    ) -> None:
        self._ledger = ledger
        self._authorizer = authorizer
        self._digests = digests
        self._settlement = settlement
        self._results = results
        self._redactor = redactor
        self._running = running
        self._repeat_window = repeat_window
        self._overhead_timeout = overhead_timeout
        self._in_progress_timeout = in_progress_timeout
        self._is_in_memory = getattr(ledger, "in_memory", False)

    def build_arguments(
        self, tool: Tool[..., Any], call: ToolCall, value: Any, context: ToolContext[Any]
    ) -> CallArguments:
        """A call with its validated arguments, their digest and their keys."""
        arguments = tool.dump(value)
        text = canonical_json(arguments)
        digest, key = self._digests.digest_call(tool, call, arguments, context, text)
        lock_key = None if tool.lock_key is None else compute_key(tool.lock_key, arguments)
        return CallArguments(call, value, arguments, text, digest, key, lock_key)

    async def decide(
        self,
        arguments: CallArguments,
        ref: CallRef,
        compiled: CompiledTool,
        context: ToolContext[Any],
        budget: TimeBudget,
    ) -> LedgerDecision:
        """What the ledger says about a call. Raises `Refusal` if it cannot be read."""
        session_id, call_id = ref
        try:
            recalled = self._ledger.recall(session_id=session_id, call_id=call_id, key=arguments.key)
            by_id, by_key = await (recalled if self._is_in_memory else budget.run(recalled))
        except Exception as error:
            log.exception("the ledger cannot be read")
            raise Refusal(failure_results.ledger_unreadable(compiled.tool.name)) from error
        return decide_from_ledger(
            by_id,
            by_key,
            identity=arguments.digest,
            key=arguments.key,
            session_id=session_id,
            turn=context.turn,
            now=time.time(),
            repeat_window=self._repeat_window,
            is_idempotent=compiled.tool.idempotent,
        )

    async def check_access(
        self,
        compiled: CompiledTool,
        sent: CallArguments,
        ref: CallRef,
        context: ToolContext[Any],
        entry: Entry,
        budget: TimeBudget,
    ) -> None:
        """Refuse an entry to a caller who may not make this call, unless it is this very call of the same caller."""
        is_same_caller = (entry.customer_id, entry.agent_id) == (context.customer_id, context.agent_id)
        if not (is_same_caller and is_entry_of(entry, ref)):
            await self._authorizer.check_access(compiled.policy, sent.call, lambda: sent.arguments, context, budget)

    async def wait_for_owner(self, entry: Entry) -> bool:
        """Wait for a call that another process runs; whether it is over, or its process died."""
        ends, delay = time.monotonic() + self._in_progress_timeout, _FIRST_LOOK
        while (left := ends - time.monotonic()) > 0:
            await asyncio.sleep(min(delay, left))
            delay = min(delay * 1.5, _LAST_LOOK)
            try:
                looked = self._ledger.recall(session_id=entry.session_id, call_id=entry.call_id, key=entry.key)
                now_known, _ = await TimeBudget(self._overhead_timeout).run(looked)
            except Exception:
                log.exception("the ledger cannot be read")
                return False
            if now_known is None or now_known.state_at(time.time()) != "running":
                return True
        return False

    async def verify(
        self,
        compiled: CompiledTool,
        sent: CallArguments,
        ref: CallRef,
        context: ToolContext[Any],
        entry: Entry,
        budget: TimeBudget,
    ) -> ToolResult | None:
        """Ask the tool what became of an earlier call; None if nothing did, and this call may run."""
        tool, arguments = compiled.tool, sent.arguments
        if entry.changed_arguments is not None:  # Those of the call in doubt.
            arguments = tool.dump(tool.parse(entry.changed_arguments))
        # An entry that its owner settled has ended; one whose process died could have run until then.
        has_ended = entry.state == "unknown" or time.time() >= entry.run_until
        outcome = await self._settlement.verify(
            compiled, sent.call, context, entry, arguments, budget=budget, has_ended=has_ended
        )
        if outcome is None:
            return failure_results.outcome_unknown(tool.name)
        is_recorded = await self._settlement.settle(entry, outcome)
        if outcome.happened == "no":
            if not is_recorded:  # Other processes do not know it: it stays unknown.
                return failure_results.outcome_unknown(tool.name)
            return outcome.result if is_entry_of(entry, ref) else None
        return structs.replace(outcome.result, origin="verified")

    # Looking up what became of a call, without running it.

    async def look_up(
        self, compiled: CompiledTool | None, call: ToolCall, context: ToolContext[Any], *, by_key: bool
    ) -> ToolResult | None:
        """What is known about a call that was made before; None if the ledger knows nothing about it.

        Without `compiled` (its tool is gone, or its arguments cannot be prepared any more) only its own entry counts.
        """
        started, ref, budget = perf_counter(), (context.session_id, call.id), TimeBudget(self._overhead_timeout)
        sent: CallArguments | None = None
        if compiled is not None:
            try:
                sent = self.build_arguments(compiled.tool, call, compiled.tool.parse(call.arguments_json), context)
            except Exception:  # noqa: BLE001  # the tool is not what it was
                compiled = None
        try:
            entry, _ = await budget.run(self._ledger.recall(session_id=ref[0], call_id=ref[1], key=""))
            if entry is None and not by_key:
                return None
            if compiled is not None and sent is not None:
                known = await self.decide(sent, ref, compiled, context, budget)
                result = await self._describe_known(compiled, sent, ref, context, known, budget)
            else:
                result = describe_entry(entry) if entry is not None else None
        except Refusal as refusal:
            is_unreadable = refusal.result.error is not None and refusal.result.error.code == "unavailable"
            result = failure_results.outcome_unknown(call.name) if is_unreadable else refusal.result
        except Exception:
            log.exception("the ledger cannot be read")
            result = failure_results.outcome_unknown(call.name)
        if result is None:
            return None
        is_open = result.error is not None and result.error.code in ("in_progress", "outcome_unknown")
        if is_open or (result.origin == "replayed" and not by_key):  # Nothing new.
            return finish_result(result, call, started)
        return self._results.report(call, context, result, started)

    async def _describe_known(
        self,
        compiled: CompiledTool,
        sent: CallArguments,
        ref: CallRef,
        context: ToolContext[Any],
        known: LedgerDecision,
        budget: TimeBudget,
    ) -> ToolResult | None:
        name, entry = compiled.tool.name, known.entry
        if entry is None:
            return None
        if known.step == "duplicate_id":
            return failure_results.duplicate_call(name)
        await self.check_access(compiled, sent, ref, context, entry, budget)
        is_failed = known.step == "ask_again" and entry.state != "committed"
        if known.step == "run" or is_failed:  # Another call of the same effect failed, and this one never began.
            return failure_results.not_started(name)
        if known.step == "duplicate_effect" or (known.step == "ask_again" and not known.is_same):
            return describe_duplicate(entry, self._redactor)
        if known.step in ("replay", "ask_again"):
            return replay(entry, is_same_call=is_entry_of(entry, ref))
        is_running = known.step == "in_progress" or self._running.find((entry.session_id, entry.call_id)) is not None
        if is_running or not known.is_same:
            return failure_results.unsettled(name, is_running=is_running)
        result = await self.verify(compiled, sent, ref, context, entry, budget)
        return failure_results.not_started(name) if result is None else result


def is_entry_of(entry: Entry, ref: CallRef) -> bool:
    """Whether an entry is the one of this very call."""
    return (entry.session_id, entry.call_id) == ref

"""Ends a doubt: what becomes of a call that was begun, and whose owner never said how it ended."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from msgspec import structs

from handrail.authorize.authorizer import Refusal
from handrail.core import failure_results
from handrail.core.events import CallStarted
from handrail.core.log import log
from handrail.core.time_budget import TimeBudget
from handrail.core.values import ToolResult
from handrail.execute.executor_parts import CallParts
from handrail.execute.ledger import Entry, awaits_plain_futures, is_unchanged
from handrail.execute.running import CallStopped, EffectCall

_INTERVAL: Final = 0.5
"""Seconds between two looks at a lease that is over."""


class Takeover:
    """Takes calls over from owners that are gone, for one executor."""

    def __init__(self, parts: CallParts) -> None:
        self._ledger = parts.ledger
        self._is_plain = awaits_plain_futures(parts.ledger)
        self._authorizer = parts.authorizer
        self._digests = parts.digests
        self._reader = parts.reader
        self._settlement = parts.settlement
        self._verification = parts.verification
        self._owner = parts.owner
        self._overhead_timeout = parts.timeouts.overhead
        self._in_progress_timeout = parts.timeouts.in_progress

    async def end_doubt(self, effect: EffectCall, entry: Entry) -> ToolResult | Entry:
        """The result of a call in doubt, or its entry if it may be taken over: the first that fits counts.

        An idempotent tool is run again with the same idempotency key. `verify` says what happened; its "no" counts once
        the first handler can no longer be alive. Anything else is a doubt, for an operator.
        """
        tool, unknown = effect.tool, failure_results.outcome_unknown(effect.tool.name)
        try:
            if not tool.idempotent:
                verifying = self._verification.settle_doubt(
                    effect.compiled, effect.sent, effect.context, entry, effect.budget
                )
                found = await effect.running.wait(verifying)
                if found != "nothing happened":
                    return found or unknown
            is_abandoned = await effect.running.wait(self._wait_until_abandoned(entry))
        except CallStopped:
            return unknown
        return entry if is_abandoned else unknown

    async def _wait_until_abandoned(self, entry: Entry) -> bool:
        """Wait until the owner of an entry whose lease is over is known to be gone.

        Returns whether it is; False if the entry changed, or the time is over.
        """
        ref, leases = (entry.session_id, entry.call_id), self._settlement.leases
        ends = time.monotonic() + self._in_progress_timeout
        while not leases.is_abandoned(entry):
            if (left := ends - time.monotonic()) <= 0:
                return False
            await asyncio.sleep(min(_INTERVAL, left))
            try:
                now_known = await self._reader.get(ref, TimeBudget(self._overhead_timeout))
            except Exception:
                log.exception("the ledger cannot be read")
                return False
            if now_known is None or not is_unchanged(now_known, entry):
                return False
        return True

    async def prepare(self, effect: EffectCall, entry: Entry, wait_for_turn: Callable[[], Awaitable[None]]) -> None:
        """Make a call ready to run that another owner began: with what was authorised then, when it is its turn.

        Nobody is asked again, but what is denied now stays a doubt.
        """
        unknown = failure_results.outcome_unknown(effect.tool.name)
        effect.decision = entry.decision
        try:
            if entry.changed_arguments is not None:
                changed = structs.replace(effect.sent.call, arguments_json=entry.changed_arguments)
                effect.actual = self._digests.read_call(effect.tool, changed, effect.context, effect.sent.sent_call)
            actual = effect.actual
            # Where a value came from was decided in the conversation, which may be another process's.
            policy = effect.compiled.policy.without_origins()
            checking = self._authorizer.check_access(
                policy, actual.call, actual.get_arguments, effect.context, effect.budget
            )
            await effect.running.wait(checking)
            await wait_for_turn()
        except Refusal as refusal:
            raise Refusal(unknown, refusal.decision) from refusal
        except CallStopped as error:
            raise Refusal(unknown, effect.decision) from error
        except Exception as error:  # The tool is not what it was.
            log.exception("%s could not be taken over", effect.tool.name)
            raise Refusal(unknown, effect.decision) from error

    async def confirm(self, effect: EffectCall, entry: Entry, budget: TimeBudget) -> Entry | None:
        """The entry of a call of this executor that has not begun, with a new lease; None if another worker has it.

        Its lease is over: whoever found it so may have taken it over, and run it.
        """
        known = (await budget.run(self._ledger.recall(session_id=entry.session_id, call_id=entry.call_id))).by_id
        if known is None or (known.owner, known.state) != (self._owner, "running"):
            return None
        run_until, lease_until = self._settlement.leases.begin(time.time(), effect.compiled.max_duration)
        if known.lease_until > (known.read_at or time.time()):  # By the clock of the ledger: the one here has jumped.
            return structs.replace(entry, lease_until=lease_until)
        taking = self._ledger.take_over(known, owner=self._owner, lease_until=lease_until, run_until=run_until)
        if await budget.run(taking) is None:
            return None
        return structs.replace(entry, lease_until=lease_until, run_until=run_until)

    async def take(self, effect: EffectCall, entry: Entry, started: CallStarted | None) -> Entry | None:
        """Make this executor the owner of an entry; None if another worker was faster."""
        run_until, lease_until = self._settlement.leases.begin(time.time(), effect.compiled.max_duration)
        taking = self._ledger.take_over(
            entry, owner=self._owner, lease_until=lease_until, run_until=run_until, started=started
        )
        try:
            taken = await effect.budget.run_step(taking, is_plain=self._is_plain)
        except Exception as error:
            log.exception("the ledger cannot be written")
            raise Refusal(failure_results.outcome_unknown(effect.tool.name), effect.decision) from error
        if taken is None:
            return None
        log.warning("%s is taken over from another owner, and runs again", effect.tool.name)
        return structs.replace(taken, is_durable=True) if effect.tool.durable else taken

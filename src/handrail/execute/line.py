"""The line of a call with consequences: recall, authorise, wait for the turn, claim, run once, settle."""

import time
from typing import Any, Final

from msgspec import structs

from handrail.authorize.approvals import Approvals
from handrail.authorize.authoriser import Again, Refusal
from handrail.core.log import log
from handrail.core.values import Approval, ToolResult
from handrail.execute import answers
from handrail.execute.effect import Effect
from handrail.execute.gates import Gates, Pass
from handrail.execute.handlers import Handlers, Outcome
from handrail.execute.ledger import Entry, Ledger
from handrail.execute.permission import Permission, Permitted
from handrail.execute.recall import Verdict, verdict
from handrail.execute.running import Running, Stopped
from handrail.execute.schedule import Lanes, Place
from handrail.execute.settle import Settlement
from handrail.execute.tell import Teller

_ROUNDS: Final = 20
"""How often a call looks again because somebody else was faster."""


class Line:
    """Walks calls down the line, with the ledger as the judge of what runs."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        permission: Permission,
        handlers: Handlers,
        settlement: Settlement,
        lanes: Lanes,
        gates: Gates,
        tell: Teller,
        approvals: Approvals,
        owner: str,
        window: float,
        lease_grace: float,
    ) -> None:
        self._ledger = ledger
        self._permission = permission
        self._handlers = handlers
        self._settlement = settlement
        self._lanes = lanes
        self._gates = gates
        self._tell = tell
        self._approvals = approvals
        self._owner = owner
        self._window = window
        self._lease_grace = lease_grace
        self._claims: dict[Place, Running] = {}
        """The calls of this process that are, or are about to be, in the ledger as running."""

    async def walk(self, effect: Effect) -> ToolResult:
        """The line of one call. It answers, whatever happens; it runs the handler at most once."""
        # This task is the call's own: what it starts belongs to it.
        held = self._lanes.hold(effect.running.place, effect.ticket.lock_key)
        gate = Pass(self._gates, effect.tool, held)
        try:
            return await self._walk(effect, gate)
        except Refusal as refusal:
            effect.decision = refusal.decision or effect.decision
            return refusal.result
        except Stopped:  # Before it began.
            return answers.cancelled(effect.tool.name)
        finally:
            gate.leave()
            effect.ticket.release()
            held.over = True

    async def _walk(self, effect: Effect, gate: Pass) -> ToolResult:
        running, ticket = effect.running, effect.ticket
        for _ in range(_ROUNDS):
            table = await self._table(effect)
            running.raise_if_stopped()
            if table.do not in ("run", "ask_again"):
                answer = await self._known(effect, table, gate)
                if answer is not None:
                    return answer
                continue  # It was found out that nothing happened: look again.
            permitted = self._permission.at_once(effect.desk, effect.value) if table.do == "run" else None
            if permitted is None:
                permitted = await self._permission.of(
                    effect.desk, effect.call, effect.value, lambda: effect.arguments, effect.context, _again(table)
                )
            effect.decision = permitted.decision
            if not ticket.granted:
                await running.wait(ticket.wait())
            if not self._gates.open:
                await running.wait(gate.enter(effect.context))
            running.raise_if_stopped()
            entry = self._entry(effect, table)
            self._claims[running.place] = running
            try:
                if await self._claim(effect, entry, permitted):
                    return await self._claimed(effect, entry, permitted, gate)
            finally:
                del self._claims[running.place]
            # Somebody else was faster, or the approval is gone: look again at what is known now.
        log.error("%s could not be claimed, and nothing in the ledger says why", effect.tool.name)
        return answers.unavailable(effect.tool.name)

    # What is known.

    async def _table(self, effect: Effect) -> Verdict:
        session_id, call_id = effect.running.place
        try:
            by_id, by_key = await self._ledger.recall(session_id=session_id, call_id=call_id, key=effect.key)
        except Exception as error:
            log.exception("the ledger cannot be read")
            raise Refusal(answers.unavailable(effect.tool.name)) from error
        return verdict(
            by_id,
            by_key,
            identity=effect.identity,
            session_id=session_id,
            turn=effect.context.turn,
            now=time.time(),
            window=self._window,
            idempotent=effect.tool.idempotent,
        )

    async def _known(self, effect: Effect, table: Verdict, gate: Pass) -> ToolResult | None:
        """The answer to a call that must not run, or None: nothing happened, and it may."""
        tool, entry = effect.tool.name, table.entry
        assert entry is not None
        if table.do == "clash":
            return answers.clash(tool)
        if table.do == "replay":
            effect.replayed = True
            return replayed(entry, same_call=_is_of(entry, effect))
        claimed = self._claims.get((entry.session_id, entry.call_id))
        if claimed is not None:  # Also if its lease is over: a clock that jumps makes nothing stop.
            return await self._joined(effect, claimed, gate)
        if table.do == "busy":
            return answers.busy(tool)
        return await self._verified(effect, entry)

    async def _joined(self, effect: Effect, other: Running, gate: Pass) -> ToolResult:
        """The answer of another call of the same effect, which runs in this process."""
        if self._lanes.is_inside(other.place, gate.held.parent):  # It waits for this very call.
            return answers.busy(effect.tool.name)
        gate.leave()
        effect.ticket.release()
        try:
            result = await effect.running.wait(other.answered())
        except Stopped:
            return answers.joined_and_cancelled(effect.tool.name)
        return structs.replace(result, origin="joined", metadata={**result.metadata, "joined": other.call.id})

    async def _verified(self, effect: Effect, entry: Entry) -> ToolResult | None:
        """Ask the tool what became of an earlier call; None if it says that nothing did, and this call may run."""
        outcome = await self._settlement.truth(effect, entry, effect.arguments)
        if outcome is None:
            return answers.unknown(effect.tool.name)
        written = await self._settlement.settle(entry, outcome)
        if outcome.happened == "no":
            if not written:  # Nobody else knows that: it stays as it was.
                return answers.unknown(effect.tool.name)
            return outcome.result if _is_of(entry, effect) else None
        return structs.replace(outcome.result, origin="verified")

    # Running it, once.

    def _entry(self, effect: Effect, table: Verdict) -> Entry:
        now = time.time()
        session_id, call_id = effect.running.place
        longest = self._handlers.longest(effect.tool, effect.desk.seconds)
        return Entry(
            session_id=session_id,
            call_id=call_id,
            tool=effect.tool.name,
            tenant_id=effect.context.tenant_id,
            identity=effect.identity,
            key=effect.key,
            number=table.number,
            repeat=table.repeat,
            turn=effect.context.turn,
            owner=self._owner,
            claimed_at=now,
            lease_until=now + longest + self._lease_grace,
        )

    async def _claim(self, effect: Effect, entry: Entry, permitted: Permitted) -> bool:
        token = permitted.approval.token if permitted.approval else None
        try:
            return await self._ledger.claim(entry, approval=token, approvals=self._approvals)
        except BaseException as error:
            log.exception("the ledger cannot be written")
            # Perhaps it was written all the same, and only the answer was lost: then it is taken back. If that does not
            # work either, the entry ends as "unknown" when its lease is over.
            down = answers.unavailable(effect.tool.name)
            await self._settlement.settle(entry, Outcome(result=down, happened="no"), pauses=(0.05,))
            if not isinstance(error, Exception):
                raise
            raise Refusal(down, effect.decision) from error

    async def _claimed(self, effect: Effect, entry: Entry, permitted: Permitted, gate: Pass) -> ToolResult:
        running, desk, context, value = effect.running, effect.desk, effect.context, permitted.value
        self._tell.started(effect.call, context)
        if desk.tool.takes_context:
            context = self._handlers.context_for(effect.call, context, self._tell, entry.idempotency_key)
        try:
            outcome = await self._handlers.run(running, value, context, seconds=desk.seconds, most=desk.most)
        except BaseException:  # The program ends, or somebody cancelled the line itself.
            lost = Outcome(result=answers.unknown(effect.tool.name), happened="unknown")
            await self._settlement.settle(entry, lost, pauses=())
            raise
        gate.report(outcome.healthy)
        if outcome.happened == "unknown":
            self._settlement.leave_behind(running)
            arguments = effect.arguments if value is effect.value else effect.tool.dump(value)
            outcome = await self._settlement.truth(effect, entry, arguments) or outcome
        if not running.began and permitted.approval is not None:
            await self._give_back(permitted.approval)
        if await self._settlement.settle(entry, outcome):
            return outcome.result
        return structs.replace(outcome.result, recorded=False)

    async def _give_back(self, approval: Approval) -> None:
        """The call was cancelled in the moment in which it was claimed: its approval is still good."""
        try:
            await self._approvals.restore(approval.token)
        except Exception:
            log.exception("an approval could not be given back")


def _again(table: Verdict) -> Again | None:
    if table.do != "ask_again" or table.entry is None:
        return None
    done = table.entry.settled_at or table.entry.claimed_at
    return Again(repeat=table.repeat, done_at=answers.at(done) if table.entry.state == "committed" else None)


def _is_of(entry: Entry, effect: Effect) -> bool:
    return (entry.session_id, entry.call_id) == effect.running.place


def replayed(entry: Entry, *, same_call: bool) -> ToolResult:
    """The recorded answer, marked as such; to another call of the same effect it says that it was done before."""
    assert entry.recorded is not None
    result = entry.recorded.result()
    done_at = answers.at(entry.settled_at or entry.claimed_at)
    output: Any = result.output
    error = result.error
    if not same_call:
        notice = f"[Already done at {done_at}, and not done again.]\n"
        output = f"{notice}{output or ''}" if error is None else None
        error = structs.replace(error, message=f"{notice}{error.message}") if error is not None else None
    metadata = {**result.metadata, "done_at": done_at}
    return structs.replace(result, output=output, error=error, metadata=metadata, origin="replayed")

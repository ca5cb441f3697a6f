"""Calls with consequences: recalled, authorised, claimed, run once, and settled, whatever becomes of the caller."""

import asyncio
import hmac
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, cast

from msgspec import Struct, structs

from handrail.authorize.approvals import Approval, Approvals
from handrail.authorize.authoriser import Again, Refusal
from handrail.core.context import ToolContext
from handrail.core.log import log
from handrail.core.redact import Redactor
from handrail.core.text import canonical_json
from handrail.core.tool import KeyOf, Tool
from handrail.core.values import Decision, ToolCall, ToolResult
from handrail.errors import ToolError
from handrail.execute import answers
from handrail.execute.gates import Gates
from handrail.execute.handlers import Handlers, Outcome
from handrail.execute.ledger import Entry, Ledger, State, settled
from handrail.execute.recall import Verdict, verdict
from handrail.execute.running import Running, Stopped
from handrail.execute.schedule import HELD, Ticket
from handrail.execute.tell import Teller

VERSION = "1"
"""Of the canonical form: digests of different versions never meet."""

_STATES: dict[str, State] = {"yes": "committed", "no": "failed", "unknown": "unknown"}
_MASK = "**********"
"""How Pydantic shows a secret: two different secrets look the same."""


class Effect(Struct, kw_only=True):
    """One call with consequences on its way."""

    running: Running
    value: Any
    arguments: dict[str, Any]
    context: ToolContext[Any]
    identity: str
    key: str
    ticket: Ticket
    seconds: float
    most: int
    authorise: Callable[["Effect", Again | None], Awaitable[None]]
    """Decides about the call, and puts the decision and the approval to use up here; or raises `Refusal`."""
    decision: Decision | None = None
    approval: Approval | None = None

    @property
    def tool(self) -> Tool[..., Any]:
        return self.running.tool

    @property
    def call(self) -> ToolCall:
        return self.running.call

    def approved_value(self) -> Any:
        """The validated arguments, or those that an approver put in their place, validated again."""
        if self.approval is None or self.approval.changed_arguments is None:
            return self.value
        return self.tool.parse(canonical_json(self.approval.changed_arguments))


class Effects:
    """Walks calls with consequences down the line, with the ledger as the judge of what runs."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        handlers: Handlers,
        gates: Gates,
        redactor: Redactor,
        tell: Teller,
        approvals: Approvals,
        owner: str,
        window: float,
        lease_grace: float,
    ) -> None:
        self.ledger = ledger
        self._handlers = handlers
        self._gates = gates
        self._redactor = redactor
        self._tell = tell
        self._approvals = approvals
        self._owner = owner
        self._window = window
        self._lease_grace = lease_grace
        self._running: dict[tuple[str, str], Running] = {}

    def digests(
        self, tool: Tool[..., Any], call: ToolCall, arguments: dict[str, Any], context: ToolContext[Any]
    ) -> tuple[str, str]:
        """The identity of what the model sent, and the key of the effect that it asks for."""
        text = canonical_json(arguments)
        if _MASK in text:
            text += call.arguments_json
        identity = self.digest(tool.name, text)
        told_apart_by = key_of(tool.key, arguments)
        whose = context.customer_id or context.session_id
        key = self.digest(tool.name, context.tenant_id or "", whose, text if told_apart_by is None else told_apart_by)
        return identity, key

    def digest(self, *parts: str) -> str:
        """A keyed digest: without the ledger's key it tells nothing about likely arguments."""
        message = "\0".join((VERSION, *parts)).encode("utf-8", "surrogatepass")
        return hmac.digest(self.ledger.digest_key, message, "sha256").hex()

    async def walk(self, effect: Effect) -> ToolResult:
        """The line of one call. It answers, whatever happens; it runs the handler at most once."""
        HELD.set(HELD.get() | effect.ticket.names)  # This task is the call's own: what it starts belongs to it.
        try:
            return await self._walk(effect)
        except Refusal as refusal:
            return refusal.result
        except ToolError as error:  # An approver's own arguments are not valid.
            return answers.from_error(error)
        except Stopped:  # While it waited for its turn.
            return answers.cancelled(effect.tool.name)
        finally:
            effect.ticket.release()

    async def _walk(self, effect: Effect) -> ToolResult:
        while True:
            table = await self._table(effect)
            answer = await self._known(effect, table)
            if answer is not None:
                return answer
            if table.do == "unknown":  # It was found out that nothing happened: look again.
                continue
            again = None
            if table.do == "ask_again" and table.entry is not None:
                done_at = table.entry.settled_at or table.entry.claimed_at
                again = Again(repeat=table.repeat, done_at=answers.at(done_at))
            await effect.authorise(effect, again)
            value = effect.approved_value()
            self._gates.check(effect.tool, effect.context)
            running = effect.running
            await running.wait(effect.ticket.wait())
            entry = self._entry(effect, table)
            place = (entry.session_id, entry.call_id)
            self._running[place] = running
            try:
                if self._gates.open:
                    if await self._claim(effect, entry):
                        return await self._claimed(effect, entry, value)
                else:
                    async with self._gates.slot(effect.tool, effect.context):
                        if await self._claim(effect, entry):
                            return await self._claimed(effect, entry, value)
            finally:
                del self._running[place]
            # Somebody else was faster, or the approval is gone: look again at what is known now.
            effect.approval = None

    async def _table(self, effect: Effect) -> Verdict:
        call, context = effect.call, effect.context
        try:
            by_id, by_key = await self.ledger.recall(session_id=context.session_id, call_id=call.id, key=effect.key)
        except Exception as error:
            log.exception("the ledger cannot be read")
            raise Refusal(answers.ledger_down(effect.tool.name)) from error
        return verdict(
            by_id,
            by_key,
            identity=effect.identity,
            session_id=context.session_id,
            turn=context.turn,
            now=time.time(),
            window=self._window,
            idempotent=effect.tool.idempotent,
        )

    async def _claim(self, effect: Effect, entry: Entry) -> bool:
        token = effect.approval.token if effect.approval else None
        try:
            return await self.ledger.claim(entry, approval=token, approvals=self._approvals)
        except Exception as error:
            log.exception("the ledger cannot be written")
            # Perhaps it was written all the same, and only the answer was lost: then it is taken back. If that does not
            # work either, the entry ends as "unknown" when its lease is over.
            down = answers.ledger_down(effect.tool.name)
            await self._settle(entry, Outcome(result=down, happened="no"), pauses=(0.05,))
            raise Refusal(down) from error

    async def _known(self, effect: Effect, table: Verdict) -> ToolResult | None:
        """The answer to a call that must not run, or None."""
        tool, entry = effect.tool.name, table.entry
        if table.do in ("run", "ask_again") or entry is None:
            return None
        match table.do:
            case "clash":
                return answers.clash(tool)
            case "replay":
                return replayed(entry, same_call=_is_of(entry, effect))
            case "busy":
                running = self._running.get((entry.session_id, entry.call_id))
                if running is None or running is effect.running:
                    return answers.busy(tool)
                effect.ticket.release()
                return await running.answered()
            case _:
                return await self._verified(effect, entry)

    async def _verified(self, effect: Effect, entry: Entry) -> ToolResult | None:
        """Ask the tool what became of an earlier call; None if it says that nothing did, and the call may run."""
        outcome = await self.verify(effect, entry)
        if outcome is None:
            return answers.unknown(effect.tool.name)
        written = await self._settle(entry, outcome)
        if outcome.happened == "no":
            if not written:  # Nobody else knows that: it stays as it was.
                return answers.unknown(effect.tool.name)
            return outcome.result if _is_of(entry, effect) else None
        return structs.replace(outcome.result, metadata={**outcome.result.metadata, "verified": True})

    def _entry(self, effect: Effect, table: Verdict) -> Entry:
        now = time.time()
        return Entry(
            session_id=effect.context.session_id,
            call_id=effect.call.id,
            tool=effect.tool.name,
            tenant_id=effect.context.tenant_id,
            identity=effect.identity,
            key=effect.key,
            number=table.number,
            repeat=table.repeat,
            turn=effect.context.turn,
            owner=self._owner,
            claimed_at=now,
            lease_until=now + effect.seconds + self._lease_grace,
        )

    async def _claimed(self, effect: Effect, entry: Entry, value: Any) -> ToolResult:
        self._tell.started(effect.call, effect.context)
        context = self._handlers.context_for(effect.call, effect.context, self._tell, entry.idempotency_key)
        outcome = await self._handlers.run(effect.running, value, context, seconds=effect.seconds, most=effect.most)
        self._gates.report(effect.tool, outcome.healthy)
        if outcome.happened == "unknown":
            truth = await self.verify(effect, entry)
            outcome = truth or outcome
        recorded = await self._settle(entry, outcome)
        if recorded:
            return outcome.result
        return structs.replace(outcome.result, metadata={**outcome.result.metadata, "recorded": False})

    async def verify(self, effect: Effect, entry: Entry) -> Outcome | None:
        """What the tool's `verify` says: a value or True (it happened), False (it did not), None (it cannot tell)."""
        tool = effect.tool
        if tool.verify is None:
            return None
        context = self._handlers.context_for(effect.call, effect.context, self._tell, entry.idempotency_key)
        try:
            async with asyncio.timeout(effect.seconds):
                truth = tool.verify(effect.arguments, context)
                if inspect.isawaitable(truth):
                    truth = await truth
        except Exception:
            log.exception("verify of %s failed", tool.name)
            return None
        if truth is None:
            return None
        if truth is False:
            return Outcome(result=answers.did_not_happen(tool.name), happened="no")
        output = f"`{tool.name}` took effect." if truth is True else truth
        return self._handlers.judged(tool, output, most=effect.most, session_id=effect.context.session_id)

    def _recordable(self, result: ToolResult) -> ToolResult:
        """What may be written of a result: its output as the model's text, its failure and its metadata, redacted."""
        redact = self._redactor
        error = result.error
        if error is not None:
            error = structs.replace(error, message=redact.text(error.message))
        return structs.replace(
            result,
            output=redact.output(result.output) if error is None else None,
            error=error,
            metadata=redact.value(result.metadata) if result.metadata else result.metadata,
        )

    async def _settle(self, entry: Entry, outcome: Outcome, pauses: tuple[float, ...] = (0.05, 0.2, 1.0)) -> bool:
        """Write what became of a call, and try again if the ledger is away: the effect took place, its record must
        too."""
        result = self._recordable(outcome.result)
        text = result.output if result.ok else None
        after = settled(entry, _STATES[outcome.happened], result, text=text, now=time.time())
        for pause in (*pauses, None):
            try:
                await self.ledger.settle(after)
                return True
            except Exception:
                log.exception("the outcome of %s could not be recorded", entry.tool)
                if pause is None:
                    return False
                await asyncio.sleep(pause)
        return False


def _is_of(entry: Entry, effect: Effect) -> bool:
    return (entry.session_id, entry.call_id) == (effect.context.session_id, effect.call.id)


def replayed(entry: Entry, *, same_call: bool) -> ToolResult:
    """The recorded answer, marked as such; to another call of the same effect it says that it was done before."""
    assert entry.recorded is not None
    result = entry.recorded.result()
    done_at = answers.at(entry.settled_at or entry.claimed_at)
    output = result.output if same_call else f"[Already done at {done_at}, and not done again.]\n{result.output}"
    return structs.replace(result, output=output, metadata={**result.metadata, "replayed": True, "done_at": done_at})


def key_of(key: tuple[str, ...] | KeyOf | None, arguments: dict[str, Any]) -> str | None:
    """What a tool's `key` or `lock_key` makes of arguments; None where the tool has none."""
    if key is None:
        return None
    if isinstance(key, tuple):
        return canonical_json([arguments.get(name) for name in cast("tuple[str, ...]", key)])
    return canonical_json(key(arguments))

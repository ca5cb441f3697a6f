"""What became of a call with consequences: the truth, as far as it can be had, written into the ledger."""

import asyncio
import inspect
import time
from typing import Any, Final, cast

from msgspec import structs

from handrail.core.log import log
from handrail.core.passing import must_pass
from handrail.core.redact import Redactor
from handrail.core.values import ToolResult
from handrail.execute import answers
from handrail.execute.effect import Effect
from handrail.execute.handlers import Handlers, Outcome
from handrail.execute.ledger import Entry, Ledger, Recorded, State, settled
from handrail.execute.running import Running
from handrail.execute.schedule import Place
from handrail.execute.tell import Teller

_STATES: Final[dict[str, State]] = {"yes": "committed", "no": "failed", "unknown": "unknown"}
_PAUSES: Final = (0.05, 0.2, 1.0)
"""Between tries to reach a ledger that is away."""


class Settlement:
    """Finds out what happened, and writes it down."""

    def __init__(self, *, ledger: Ledger, handlers: Handlers, redactor: Redactor, tell: Teller) -> None:
        self._ledger = ledger
        self._handlers = handlers
        self._redactor = redactor
        # What never leaves this process is not written anywhere: the same call is answered again word for word.
        self._text = _as_it_is if getattr(ledger, "in_memory", False) else redactor.output
        self._tell = tell
        self._left_behind: dict[Place, Running] = {}
        """Calls whose worker thread goes on after their answer."""

    async def settle(self, entry: Entry, outcome: Outcome, pauses: tuple[float, ...] = _PAUSES) -> bool:
        """Write what became of a call, and try again if the ledger is away: the effect took place, its record must
        too."""
        recorded = self._recordable(outcome.result)
        after = settled(entry, _STATES[outcome.happened], recorded, now=time.time())
        for pause in (*pauses, None):
            try:
                await self._ledger.settle(after)
                return True
            except Exception:
                log.exception("the outcome of %s could not be recorded", entry.tool)
                if pause is not None:
                    await asyncio.sleep(pause)
        return False

    def _recordable(self, result: ToolResult) -> Recorded:
        """What may be written of a result: its output as the model's text, its failure and its metadata."""
        error = result.error
        metadata = _plain(self._redactor.value(result.metadata)) if result.metadata else {}
        if error is not None:
            failure = structs.replace(error, message=self._text(error.message))
            return Recorded(failure=failure, control=result.control, metadata=metadata)
        return Recorded(text=self._text(result.output), control=result.control, metadata=metadata)

    async def truth(self, effect: Effect, entry: Entry, arguments: dict[str, Any]) -> Outcome | None:
        """What the tool's `verify` says: a value or True (it happened), False (it did not), None (it cannot tell)."""
        tool = effect.tool
        if tool.verify is None:
            return None
        verify = tool.verify
        context = self._handlers.context_for(effect.call, effect.context, self._tell, entry.idempotency_key)
        try:
            async with asyncio.timeout(effect.desk.seconds):
                if inspect.iscoroutinefunction(verify):
                    truth = await verify(arguments, context)
                else:
                    truth = await self._handlers.threads.run(lambda: verify(arguments, context))
                    truth = await truth if inspect.isawaitable(truth) else truth
        except BaseException as error:
            if must_pass(error):
                raise
            log.error("verify of %s failed", tool.name, exc_info=error)
            return None
        if truth is None or (truth is False and self._still_works(entry)):
            return None
        if truth is False:
            return Outcome(result=answers.did_not_happen(tool.name), happened="no")
        output = f"`{tool.name}` took effect." if truth is True else truth
        return self._handlers.judged(tool, output, most=effect.desk.most, session_id=entry.session_id)

    def leave_behind(self, running: Running) -> None:
        """Remember a call whose worker thread goes on: as long as it does, nothing is certain."""
        if running.still_works is not None:
            known = {**self._left_behind, running.place: running}
            self._left_behind = {place: one for place, one in known.items() if one.still_works and one.still_works()}

    def _still_works(self, entry: Entry) -> bool:
        left = self._left_behind.get((entry.session_id, entry.call_id))
        return left is not None and left.still_works is not None and left.still_works()


def _as_it_is(output: Any) -> str:
    return output if type(output) is str else ToolResult(output=output).for_model()


def _plain(metadata: Any) -> dict[str, Any]:
    """Metadata that can be stored: none, if the redactor could not look into it."""
    return cast(dict[str, Any], metadata) if isinstance(metadata, dict) else {}

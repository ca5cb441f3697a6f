"""What a tool's `verify` says about a call in doubt, and when it counts."""

import inspect
import time
from typing import Any, Literal

from msgspec import structs

from handrail.authorize.effect_keys import CallArguments
from handrail.core import failure_results
from handrail.core.context import ToolContext
from handrail.core.handler_result_checks import is_plain
from handrail.core.log import log
from handrail.core.text import copy_json
from handrail.core.time_budget import TimeBudget
from handrail.core.values import ToolCall, ToolResult
from handrail.errors import must_propagate
from handrail.execute.executor_tools import CompiledTool
from handrail.execute.handlers import HandlerRunner, Outcome
from handrail.execute.ledger import Entry, Ledger, VerifyAnswer, get_answer
from handrail.execute.settlement import Settlement


class Verification:
    """Asks tools what became of calls whose outcome nobody knows."""

    def __init__(self, *, ledger: Ledger, handlers: HandlerRunner, settlement: Settlement) -> None:
        self._ledger = ledger
        self._handlers = handlers
        self._settlement = settlement

    async def settle_doubt(
        self,
        compiled: CompiledTool,
        sent: CallArguments,
        context: ToolContext[Any],
        entry: Entry,
        budget: TimeBudget,
    ) -> "ToolResult | Literal['nothing happened'] | None":
        """Ask the tool what became of a call in doubt, and record it if it happened; None if it cannot tell."""
        tool, arguments = compiled.tool, sent.arguments
        if entry.changed_arguments is not None:  # Those of the call in doubt.
            arguments = tool.dump(tool.parse(entry.changed_arguments))
        has_ended = entry.has_ended_at(time.time())
        outcome = await self.ask(compiled, sent.call, context, entry, arguments, budget=budget, has_ended=has_ended)
        if not isinstance(outcome, Outcome):
            if outcome is not None and outcome != get_answer(entry):
                await self._record_answer(entry, outcome)
            return None
        if outcome.happened == "no":
            return "nothing happened"
        if tool.durable:
            entry = structs.replace(entry, is_durable=True)
        await self._settlement.settle(entry, outcome)
        return structs.replace(outcome.result, origin="verified")

    async def ask(
        self,
        compiled: CompiledTool,
        call: ToolCall,
        context: ToolContext[Any],
        entry: Entry,
        arguments: dict[str, Any],
        *,
        budget: TimeBudget,
        has_ended: bool,
    ) -> Outcome | VerifyAnswer | None:
        """The outcome according to the tool's `verify`, or why it does not know one; None if the tool has no `verify`.

        `verify` returns a value or True (it happened), False (it did not), or None (it cannot tell). Its "no" counts
        only once the handler cannot be running any more.
        """
        tool = compiled.tool
        verify = tool.verify
        if verify is None:
            return None
        context = self._handlers.build_context(call, context, entry.idempotency_key)
        try:
            found = await budget.run(self._call_verify(verify, copy_json(arguments), context, tool.name))
        except BaseException as error:
            if must_propagate(error):
                raise
            log.error("verify of %s failed", tool.name, exc_info=error)
            return "failed"
        if found is None or (found is False and not has_ended):
            return "cannot_tell" if found is None else "too_early"
        if found is False:
            return Outcome(result=failure_results.verified_failure(tool.name), happened="no")
        output = f"`{tool.name}` took effect." if found is True else found
        if is_plain(output):
            outcome = self._handlers.outcome_of_output(compiled, output, entry.session_id)
        else:
            outcome = await self._handlers.collect_outcome(compiled, output, entry.session_id)
        return await self._settlement.note_changes(entry, outcome)

    async def _call_verify(self, verify: Any, arguments: dict[str, Any], context: ToolContext[Any], name: str) -> Any:
        if inspect.iscoroutinefunction(verify):
            return await verify(arguments, context)
        found = await self._handlers.threads.run(lambda: verify(arguments, context), owner=name)
        return await found if inspect.isawaitable(found) else found

    async def _record_answer(self, entry: Entry, answer: VerifyAnswer) -> None:
        """Write what `verify` said about a call that another process began: an operator of any process sees it."""
        try:
            await self._ledger.record_answer(entry, answer)
        except Exception:  # It changes nothing about the doubt.
            log.exception("what verify said about %s could not be recorded", entry.tool)

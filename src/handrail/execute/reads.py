"""Calls without consequences: they run in the caller's own task, and are remembered by id in memory."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any

from msgspec import structs

from handrail.authorize.authoriser import Granted, Refusal
from handrail.core.context import ToolContext
from handrail.core.events import CallIgnored
from handrail.core.text import canonical_json
from handrail.core.values import Decision, ToolCall, ToolResult
from handrail.errors import ToolError
from handrail.execute import answers
from handrail.execute.desk import Desk
from handrail.execute.effects import key_of
from handrail.execute.gates import Gates
from handrail.execute.handlers import Handlers, Outcome, failed_outcome
from handrail.execute.running import Running, Stopped, resumed
from handrail.execute.schedule import HELD, Lanes
from handrail.execute.tell import Teller

Place = tuple[str, str]
Authorise = Callable[[Desk, ToolCall, Any, ToolContext[Any]], Awaitable[Granted]]

REMEMBERED = 4_096
"""How many answers are kept, so that a call that arrives twice is answered alike."""


class Reads:
    """Answers calls of read-only tools."""

    def __init__(
        self,
        *,
        handlers: Handlers,
        lanes: Lanes,
        gates: Gates,
        tell: Teller,
        running: dict[Place, Running],
        authorise: Authorise,
    ) -> None:
        self._handlers = handlers
        self._lanes = lanes
        self._gates = gates
        self._tell = tell
        self._running = running
        self._authorise = authorise
        self._known: OrderedDict[Place, tuple[str, ToolResult]] = OrderedDict()
        self._cache: OrderedDict[str, tuple[float, ToolResult]] = OrderedDict()
        self._awaited: dict[Place, Running] = {}

    async def run(self, desk: Desk, call: ToolCall, context: ToolContext[Any]) -> ToolResult:
        """Answer one call."""
        started = perf_counter()
        place = (context.session_id, call.id)
        if place in self._known or place in self._running:
            return await self._again(call, context, place)
        tool = desk.tool
        decision = desk.decision
        try:
            value = tool.parse(call.arguments_json)
            if (
                not desk.simple
                or not self._gates.open
                or self._handlers.retries
                or not self._lanes.free(context.session_id)
            ):
                outcome, decision = await self._carefully(desk, call, value, context, place)
            else:
                outcome = await self._simply(desk, call, value, context, place)
        except ToolError as error:
            outcome = Outcome(result=answers.from_error(error), happened="no")
        except Refusal as refusal:
            outcome = Outcome(result=refusal.result, happened="no")
            decision = refusal.result.metadata.get("decision")
        except BaseException:  # The caller was cancelled: what was told as started is told as over.
            result = finished(answers.cancelled(tool.name), desk, call, decision, started)
            self._tell.finished(call, context, result, decision)
            raise
        result = finished(outcome.result, desk, call, decision, started)
        if result.error is None and call.id:
            self._remember(place, call, result)
        self._tell.finished(call, context, result, decision)
        if self._awaited and (waited_for := self._awaited.pop(place, None)) is not None:
            waited_for.resolve(result)
        return result

    async def _simply(self, desk: Desk, call: ToolCall, value: Any, context: ToolContext[Any], place: Place) -> Outcome:
        """The short way: nothing to ask, nothing to wait for. Most calls never leave this function's first half."""
        tool = desk.tool
        self._tell.started(call, context)
        if tool.takes_context:
            context = self._handlers.context_for(call, context, self._tell, None)
        try:
            coroutine = tool.handler(value, context)
            waiting_for = coroutine.send(None)
        except StopIteration as returned:
            return self._handlers.judged(tool, returned.value, most=desk.most, session_id=context.session_id)
        except BaseException as error:  # noqa: BLE001  # as in Handlers
            return failed_outcome(tool, error, began=True, seconds=desk.seconds)
        running = Running(call, tool, context, call.arguments_json)
        running.began = True
        lane = self._lanes.begin(context.session_id, desk.way)
        held = HELD.set(HELD.get() | {lane.name})
        self._running[place] = running
        try:
            output = await running.wait(resumed(coroutine, waiting_for), desk.seconds, self._handlers.deadlines)
        except BaseException as error:  # noqa: BLE001  # as in Handlers
            return failed_outcome(tool, error, began=True, seconds=desk.seconds)
        finally:
            HELD.reset(held)
            self._lanes.end(lane)
            self._leave(place, running)
        return self._handlers.judged(tool, output, most=desk.most, session_id=context.session_id)

    async def _carefully(
        self, desk: Desk, call: ToolCall, value: Any, context: ToolContext[Any], place: Place
    ) -> tuple[Outcome, Decision | None]:
        """The long way: with a turn, a decision, a cache, limits and retries."""
        tool = desk.tool
        running = Running(call, tool, context, call.arguments_json)
        lock = key_of(tool.lock_key, tool.dump(value)) if tool.lock_key is not None else None
        ticket = self._lanes.ticket(context.session_id, desk.way, lock_key=lock)
        self._running[place] = running
        self._tell.accepted(call, context)
        try:
            granted = await self._authorise(desk, call, value, context)
            cached = self._cached(desk, value, context)
            if cached is not None:
                return Outcome(result=cached, happened="no"), granted.decision
            self._gates.check(tool, context)
            await running.wait(ticket.wait())
            async with self._gates.slot(tool, context):
                self._tell.started(call, context)
                inner = self._handlers.context_for(call, context, self._tell, None) if tool.takes_context else context
                held = HELD.set(HELD.get() | ticket.names)
                try:
                    outcome = await self._handlers.run(running, value, inner, seconds=desk.seconds, most=desk.most)
                finally:
                    HELD.reset(held)
            self._gates.report(tool, outcome.healthy)
            self._keep(desk, value, context, outcome.result)
            return outcome, granted.decision
        except Stopped:  # While it waited for its turn.
            return Outcome(result=answers.cancelled(tool.name), happened="no"), None
        finally:
            ticket.release()
            self._leave(place, running)

    async def _again(self, call: ToolCall, context: ToolContext[Any], place: Place) -> ToolResult:
        """A call that arrived before: wait for its answer, or give the one that it had."""
        running = self._running.get(place)
        said, known = self._known.get(place, (running.identity if running else "", None))
        if said != call.arguments_json:
            result = structs.replace(answers.clash(call.name), call_id=call.id, tool_name=call.name)
            self._tell.finished(call, context, result, None)
            return result
        reason = "already_executed" if running is None else "already_pending"
        self._tell(
            CallIgnored(
                at=time.time(), session_id=context.session_id, tenant_id=context.tenant_id, call=call, reason=reason
            )
        )
        if running is not None:
            known = await running.answered()
        assert known is not None
        return structs.replace(known, metadata={**known.metadata, "replayed": True})

    def _leave(self, place: Place, running: Running) -> None:
        """The call is over. Who waited for it gets its answer once it is made; if there will be none, a truthful
        one."""
        self._running.pop(place, None)
        if running.awaited:
            self._awaited[place] = running
            # The answer is made before the loop's next step, unless the caller was cancelled.
            asyncio.get_running_loop().call_soon(self._give_up, place, running)

    def _give_up(self, place: Place, running: Running) -> None:
        self._awaited.pop(place, None)
        call = running.call
        running.resolve(structs.replace(answers.cancelled(call.name), call_id=call.id, tool_name=call.name))

    def _remember(self, place: Place, call: ToolCall, result: ToolResult) -> None:
        known = self._known
        known[place] = (call.arguments_json, result)
        if len(known) > REMEMBERED:
            known.popitem(last=False)

    def _cached(self, desk: Desk, value: Any, context: ToolContext[Any]) -> ToolResult | None:
        if desk.tool.cache_for is None:
            return None
        found = self._cache.get(self._cache_key(desk, value, context))
        if found is None or time.monotonic() >= found[0]:
            return None
        return structs.replace(found[1], metadata={**found[1].metadata, "cached": True})

    def _keep(self, desk: Desk, value: Any, context: ToolContext[Any], result: ToolResult) -> None:
        if desk.tool.cache_for is None or not result.ok:
            return
        self._cache[self._cache_key(desk, value, context)] = (time.monotonic() + desk.tool.cache_for, result)
        if len(self._cache) > REMEMBERED:
            self._cache.popitem(last=False)

    def _cache_key(self, desk: Desk, value: Any, context: ToolContext[Any]) -> str:
        return canonical_json([context.tenant_id, desk.tool.name, desk.tool.dump(value)])


def finished(result: ToolResult, desk: Desk, call: ToolCall, decision: Decision | None, started: float) -> ToolResult:
    """A result under the right id, with what was decided about its call."""
    metadata = result.metadata
    if not metadata and decision is desk.decision:
        metadata = desk.metadata
    elif decision is not None and "decision" not in metadata:
        metadata = {**metadata, "decision": decision}
    return ToolResult(
        output=result.output,
        error=result.error,
        metadata=metadata,
        context=result.context,
        control=result.control,
        call_id=call.id,
        tool_name=call.name,
        duration_ms=(perf_counter() - started) * 1000,
    )

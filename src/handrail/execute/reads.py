"""Calls without consequences: they run in the caller's own task, and are remembered by id in memory."""

import asyncio
import time
from collections import OrderedDict
from time import perf_counter
from typing import Any
from uuid import uuid4

from msgspec import structs

from handrail.authorize.authoriser import Refusal
from handrail.core.context import ToolContext
from handrail.core.log import log
from handrail.core.passing import must_pass
from handrail.core.text import canonical_json
from handrail.core.values import Decision, ToolCall, ToolResult
from handrail.errors import ToolError
from handrail.execute import answers
from handrail.execute.desk import Desk
from handrail.execute.gates import Gates, Pass
from handrail.execute.handlers import Handlers, Outcome, failed_outcome
from handrail.execute.identity import key_of, told_apart
from handrail.execute.permission import Permission
from handrail.execute.running import NOBODY_ASKED, MadeUp, Running, Stopped, resumed
from handrail.execute.schedule import HELD, Held, Lanes, Place, Ticket, around
from handrail.execute.tell import Teller

REMEMBERED = 4_096
"""How many answers are kept, so that a call that arrives twice is answered alike."""


class Reads:
    """Answers calls of read-only tools."""

    def __init__(
        self,
        *,
        permission: Permission,
        handlers: Handlers,
        lanes: Lanes,
        gates: Gates,
        tell: Teller,
        running: dict[Place, Running],
    ) -> None:
        self._permission = permission
        self._handlers = handlers
        self._lanes = lanes
        self._tell = tell
        self._gates = gates
        self._running = running
        self._always_carefully = not gates.open or handlers.retries or permission.is_shown
        self._known: OrderedDict[Place, tuple[ToolCall, str | None, ToolResult]] = OrderedDict()
        self._cache: OrderedDict[str, tuple[float, ToolResult]] = OrderedDict()
        self._awaited: dict[Place, Running] = {}

    async def run(self, desk: Desk, call: ToolCall, context: ToolContext[Any]) -> ToolResult:
        """Answer one call."""
        started = perf_counter()
        place = (context.session_id, call.id or f"no id: {uuid4().hex}")
        if place in self._known or place in self._running:
            return await self._again(call, context, place)
        decision = desk.decision
        try:
            value = desk.tool.parse(call.arguments_json)
            if desk.simple and not self._always_carefully and self._lanes.free(context.session_id):
                outcome = await self._simply(desk, call, value, context, place)
            else:
                outcome, decision = await self._carefully(desk, call, value, context, place)
        except ToolError as error:
            outcome = Outcome(result=answers.from_error(error), happened="no")
        except Refusal as refusal:
            outcome, decision = Outcome(result=refusal.result, happened="no"), refusal.decision
        except BaseException as error:
            # A caller that was cancelled: what was told as started is told as over.
            gone = must_pass(error) or isinstance(error, GeneratorExit)
            if not gone:
                log.error("a call of %s broke", desk.tool.name, exc_info=error)
            answer = answers.cancelled(desk.tool.name) if gone else answers.broke_before(desk.tool.name)
            result = finished(answer, call, decision, started)
            self._tell.finished(call, context, result, decision)
            if gone:
                raise
            return result
        result = finished(outcome.result, call, decision, started)
        if result.error is None and call.id:
            self._remember(place, call, context.tenant_id, result)
        self._tell.finished(call, context, result, decision)
        if self._awaited and (waited_for := self._awaited.pop(place, None)) is not None:
            waited_for.resolve(result)
        return result

    # The two ways.

    async def _simply(self, desk: Desk, call: ToolCall, value: Any, context: ToolContext[Any], place: Place) -> Outcome:
        """The short way: nothing to ask, nothing to wait for. Most calls never leave this function's first half."""
        tool = desk.tool
        self._tell.started(call, context)
        if tool.takes_context:
            context = self._handlers.context_for(call, context, self._tell, None)
        held = None
        try:
            coroutine = tool.handler(value, context)
            if getattr(coroutine, "cr_code", False) is not desk.never_waits:
                held = self._lanes.hold(place)  # What its first step starts already belongs to it.
            waiting_for = coroutine.send(None)
        except StopIteration as returned:
            if held is not None:
                self._let_go(held)
            return self._handlers.judged(tool, returned.value, most=desk.most, session_id=context.session_id)
        except BaseException as error:  # noqa: BLE001  # as in Handlers
            if held is not None:
                self._let_go(held)
            if isinstance(error, asyncio.CancelledError):
                error = MadeUp(NOBODY_ASKED)
            return failed_outcome(tool, error, began=True, seconds=desk.seconds)
        assert held is not None
        running = Running(call, tool, context.tenant_id, call.arguments_json, place, began=True)
        lane = self._lanes.begin(context.session_id, desk.way, held.parent)
        self._running[place] = running
        try:
            output = await running.wait(resumed(coroutine, waiting_for), desk.seconds, self._handlers.deadlines)
        except BaseException as error:  # noqa: BLE001  # as in Handlers
            return failed_outcome(tool, error, began=True, seconds=desk.seconds)
        finally:
            self._let_go(held)
            lane.leave()
            self._leave(place, running)
        return self._handlers.judged(tool, output, most=desk.most, session_id=context.session_id)

    async def _carefully(
        self, desk: Desk, call: ToolCall, value: Any, context: ToolContext[Any], place: Place
    ) -> tuple[Outcome, Decision | None]:
        """The long way: with a turn, a decision, a cache, limits and retries."""
        tool = desk.tool
        lock_key = key_of(tool.lock_key, tool.dump(value)) if tool.lock_key is not None else None
        ticket = self._lanes.ticket(context.session_id, desk.way, lock_key=lock_key)
        running = self._running[place] = Running(call, tool, context.tenant_id, call.arguments_json, place)
        held = self._lanes.hold(place, lock_key)
        gate = Pass(self._gates, tool, held)
        self._tell.accepted(call, context)
        try:
            return await self._in_turn(desk, value, context, running, ticket, gate)
        except Stopped:  # Before it began.
            return Outcome(result=answers.cancelled(tool.name), happened="no"), None
        finally:
            gate.leave()
            ticket.release()
            self._let_go(held)
            self._leave(place, running)

    async def _in_turn(
        self, desk: Desk, value: Any, context: ToolContext[Any], running: Running, ticket: Ticket, gate: Pass
    ) -> tuple[Outcome, Decision | None]:
        tool, call = desk.tool, running.call

        def arguments() -> dict[str, Any]:
            return tool.dump(value)

        permitted = await self._permission.of(desk, call, value, arguments, context)
        cached = self._cached(desk, call, value, context) if permitted.approval is None else None
        if cached is not None:
            return Outcome(result=cached, happened="no"), permitted.decision
        if not ticket.granted:
            await running.wait(ticket.wait())
        if not self._gates.open:
            await running.wait(gate.enter(context))
        running.raise_if_stopped()
        while not await self._permission.use_up(desk, permitted):  # Somebody else was faster: it has to be asked again.
            permitted = await self._permission.of(desk, call, value, arguments, context)
        self._tell.started(call, context)
        inner = self._handlers.context_for(call, context, self._tell, None) if tool.takes_context else context
        outcome = await self._handlers.run(running, permitted.value, inner, seconds=desk.seconds, most=desk.most)
        gate.report(outcome.healthy)
        if permitted.value is value:
            self._keep(desk, call, value, context, outcome.result)
        return outcome, permitted.decision

    def _let_go(self, held: Held) -> None:
        """The call is over: in the caller's task, nothing is inside it any more."""
        held.over = True
        HELD.set(held.parent)

    # What is known.

    async def _again(self, call: ToolCall, context: ToolContext[Any], place: Place) -> ToolResult:
        """A call that arrived before: wait for its answer, or give the one that it had."""
        running = self._running.get(place)
        if running is not None:
            first, tenant_id, known = running.call, running.tenant_id, None
        else:
            first, tenant_id, known = self._known[place]
        same = (first.name, first.arguments_json, tenant_id) == (call.name, call.arguments_json, context.tenant_id)
        inside = running is not None and self._lanes.is_inside(place, around())  # It waits for this very call.
        if inside or not same:
            answer = answers.busy(call.name) if inside else answers.clash(call.name)
            result = structs.replace(answer, call_id=call.id, tool_name=call.name)
            self._tell.finished(call, context, result, None)
            return result
        self._tell.ignored(call, context, "already_executed" if running is None else "already_pending")
        if running is not None:
            known = await running.answered()
        assert known is not None
        return structs.replace(known, origin="replayed")

    def _leave(self, place: Place, running: Running) -> None:
        """The call is over. Who waited for it gets its answer once it is made; if there will be none, a truthful
        one."""
        self._running.pop(place, None)
        if running.awaited:
            self._awaited[place] = running
            # The answer is made before the loop's next step, unless the caller was cancelled.
            asyncio.get_running_loop().call_soon(self._give_up, place, running)

    def _give_up(self, place: Place, running: Running) -> None:
        if self._awaited.get(place) is running:
            del self._awaited[place]
        call = running.call
        running.resolve(structs.replace(answers.cancelled(call.name), call_id=call.id, tool_name=call.name))

    def _remember(self, place: Place, call: ToolCall, tenant_id: str | None, result: ToolResult) -> None:
        known = self._known
        known[place] = (call, tenant_id, result)
        if len(known) > REMEMBERED:
            known.popitem(last=False)

    def _cached(self, desk: Desk, call: ToolCall, value: Any, context: ToolContext[Any]) -> ToolResult | None:
        if desk.tool.cache_for is None:
            return None
        found = self._cache.get(_cache_key(desk, call, value, context))
        if found is None or time.monotonic() >= found[0]:
            return None
        return structs.replace(found[1], origin="cached")

    def _keep(self, desk: Desk, call: ToolCall, value: Any, context: ToolContext[Any], result: ToolResult) -> None:
        if desk.tool.cache_for is None or not result.ok:
            return
        key = _cache_key(desk, call, value, context)
        self._cache[key] = (time.monotonic() + desk.tool.cache_for, result)
        self._cache.move_to_end(key)
        if len(self._cache) > REMEMBERED:
            self._cache.popitem(last=False)


def _cache_key(desk: Desk, call: ToolCall, value: Any, context: ToolContext[Any]) -> str:
    return told_apart(canonical_json([context.tenant_id, desk.tool.name, desk.tool.dump(value)]), call)


def finished(result: ToolResult, call: ToolCall, decision: Decision | None, started: float) -> ToolResult:
    """A result under the right id, with what was decided about its call."""
    return ToolResult(
        output=result.output,
        error=result.error,
        metadata=result.metadata,
        context=result.context,
        control=result.control,
        call_id=call.id,
        tool_name=call.name,
        duration_ms=(perf_counter() - started) * 1000,
        decision=decision,
        approval=result.approval,
        origin=result.origin,
        recorded=result.recorded,
        silent=result.silent,
    )

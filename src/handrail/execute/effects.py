"""Calls with consequences: each has a task of the executor's own, which outlives its caller."""

import asyncio
import sys
from collections.abc import Coroutine
from time import perf_counter
from typing import Any
from uuid import uuid4

from msgspec import structs

from handrail.core.context import ToolContext
from handrail.core.log import log
from handrail.core.passing import must_pass
from handrail.core.values import ToolCall, ToolResult
from handrail.errors import ToolError
from handrail.execute import answers
from handrail.execute.desk import Desk
from handrail.execute.effect import Effect
from handrail.execute.identity import Identities, key_of
from handrail.execute.line import Line
from handrail.execute.reads import finished
from handrail.execute.running import Running
from handrail.execute.schedule import Lanes, Place, around
from handrail.execute.tell import Teller

if sys.version_info >= (3, 12):

    def _owned(line: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
        """A task of the executor's own. Its first steps are taken at once: a line that need not wait costs no turn of
        the loop."""
        return asyncio.Task(line, loop=asyncio.get_running_loop(), name=name, eager_start=True)

else:

    def _owned(line: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
        """A task of the executor's own."""
        return asyncio.get_running_loop().create_task(line, name=name)


class Effects:
    """Answers calls of tools that may change something."""

    def __init__(
        self, *, line: Line, identities: Identities, lanes: Lanes, tell: Teller, running: dict[Place, Running]
    ) -> None:
        self._line = line
        self._identities = identities
        self._lanes = lanes
        self._tell = tell
        self._running = running

    async def run(self, desk: Desk, call: ToolCall, context: ToolContext[Any]) -> ToolResult:
        """Answer one call."""
        started = perf_counter()
        tool = desk.tool
        try:
            value = tool.parse(call.arguments_json)
            arguments = tool.dump(value)
            identity, key = self._identities.of(tool, call, arguments, context)
            lock_key = None if tool.lock_key is None else key_of(tool.lock_key, arguments)
        except ToolError as error:
            return self._told(desk, call, context, answers.from_error(error), started)
        except BaseException as error:
            if must_pass(error):
                raise
            log.error("the arguments of %s, or their key, cannot be made", tool.name, exc_info=error)
            return self._told(desk, call, context, answers.broke_before(tool.name), started)
        # A call without an id is never known from before.
        place = (context.session_id, call.id or f"no id: {uuid4().hex}")
        running = self._running.get(place)
        if running is not None:
            return await self._join(running, call, context, identity)
        running = self._running[place] = Running(call, tool, context.tenant_id, identity, place)
        effect = Effect(
            running=running,
            call=call,
            tool=tool,
            desk=desk,
            value=value,
            arguments=arguments,
            context=context,
            identity=identity,
            key=key,
            ticket=self._lanes.ticket(context.session_id, desk.way, lock_key=lock_key),
            started=started,
        )
        self._tell.accepted(call, context)
        running.on_stuck = lambda: self._give_up(effect)
        running.line = _owned(self._walk(effect), f"handrail:{context.session_id}:{call.id}")
        if running.answer is not None:  # It had nothing to wait for.
            return running.answer
        try:
            return await running.promise()
        except asyncio.CancelledError:
            self._caller_left(effect)
            raise

    async def _walk(self, effect: Effect) -> None:
        effect.walks = True
        try:
            result = await self._line.walk(effect)
        except BaseException as error:  # The program ends, or somebody cancelled the line itself; or it is broken.
            log.error("the line of %s broke", effect.tool.name, exc_info=error)
            name = effect.tool.name
            self._end(effect, answers.unknown(name) if effect.running.began else answers.cancelled(name))
            if not isinstance(error, Exception):
                raise
            return
        self._end(effect, result)

    def _end(self, effect: Effect, result: ToolResult) -> None:
        running = effect.running
        if running.answer is None:  # Else it was given up, and its answer is told already.
            self._running.pop(running.place, None)
            running.on_stuck = None  # It holds the effect, which holds it: garbage that only a collector would find.
            if running.silent:
                result = structs.replace(result, silent=True)
            running.resolve(self._told(effect.desk, effect.call, effect.context, result, effect.started, effect))

    def _give_up(self, effect: Effect) -> None:
        """A handler was stopped and does not stop: its caller gets the truth, its session goes on, and the task is left
        behind."""
        effect.ticket.release()
        self._end(effect, answers.unknown(effect.tool.name))

    def _told(
        self,
        desk: Desk,
        call: ToolCall,
        context: ToolContext[Any],
        result: ToolResult,
        started: float,
        effect: Effect | None = None,
    ) -> ToolResult:
        decision = effect.decision if effect else None
        result = finished(result, call, decision, started)
        if effect is not None and effect.replayed:
            self._tell.ignored(call, context, "already_executed")
        else:
            self._tell.finished(call, context, result, decision)
        return result

    async def _join(self, running: Running, call: ToolCall, context: ToolContext[Any], identity: str) -> ToolResult:
        """A call that arrived before: wait for its answer."""
        inside = self._lanes.is_inside(running.place, around())  # It waits for this very call.
        if inside or running.identity != identity:
            answer = answers.busy(call.name) if inside else answers.clash(call.name)
            result = structs.replace(answer, call_id=call.id, tool_name=call.name)
            self._tell.finished(call, context, result, None)
            return result
        self._tell.ignored(call, context, "already_pending")
        return await running.answered()

    def _caller_left(self, effect: Effect) -> None:
        """The caller was cancelled: what has not begun does not begin, what has goes on as its tool wants it."""
        running = effect.running
        if not effect.walks and running.line is not None:
            running.line.cancel()  # Before its first step: it never takes it.
            effect.ticket.release()
            self._end(effect, answers.cancelled(effect.tool.name))
        elif not running.began or running.interruption == "cancel":
            running.stop("cancelled")

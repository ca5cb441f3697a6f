"""Running a handler, in this task or in a thread, under a timer, with retries where they are safe; and judging it."""

import asyncio
import inspect
import random
from collections.abc import Coroutine
from typing import Any, Literal

from msgspec import Struct, structs

from handrail.authorize.secrets import Secrets
from handrail.core.context import ToolContext
from handrail.core.log import log
from handrail.core.tool import Tool
from handrail.core.values import ToolCall, ToolResult, from_handler
from handrail.errors import ConfigError, ToolError
from handrail.execute import answers
from handrail.execute.output import Outputs
from handrail.execute.running import NOBODY_ASKED, Deadlines, MadeUp, Running, Stopped
from handrail.execute.tell import Teller
from handrail.execute.threads import Threads

Happened = Literal["yes", "no", "unknown"]


class RetryPolicy(Struct, frozen=True, kw_only=True):
    """How often a read-only or idempotent tool is tried, and how long it waits in between."""

    attempts: int = 1
    seconds: float = 0.2
    """Before the second try; it doubles each time, and a random part keeps callers from coming back together."""
    most_seconds: float = 5.0

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.seconds < 0 or self.most_seconds < self.seconds:
            raise ConfigError("A retry has at least 1 attempt, and waits 0 or more seconds.")

    def pause(self, attempt: int) -> float:
        """How long to wait at most after this try."""
        return min(self.seconds * 2 ** (attempt - 1), self.most_seconds)


class Outcome(Struct, frozen=True, kw_only=True, gc=False):
    """What a handler came to."""

    result: ToolResult
    happened: Happened
    """Whether an effect took place; for a tool without consequences it says nothing."""
    healthy: bool | None = None
    """What the outcome says of the tool's health: good, bad, or nothing."""


class Handlers:
    """Runs handlers."""

    def __init__(self, *, threads: Threads, outputs: Outputs, secrets: Secrets, retry: RetryPolicy) -> None:
        self.deadlines = Deadlines()
        self.threads = threads
        self.outputs = outputs
        self._secrets = secrets
        self._retry = retry
        self.retries = retry.attempts > 1
        """Whether a failed call may be tried again."""

    def context_for(self, call: ToolCall, context: ToolContext[Any], tell: Teller, key: str | None) -> ToolContext[Any]:
        """The caller's context, with what belongs to this one call."""
        secrets = self._secrets if len(self._secrets) else context.secrets
        return structs.replace(context, call=call, listener=tell, secrets=secrets, idempotency_key=key)

    def longest(self, tool: Tool[..., Any], seconds: float) -> float:
        """How long a call can take at most, with every try and every pause."""
        attempts = self._attempts(tool)
        if attempts == 1:
            return seconds
        return seconds * attempts + sum(self._retry.pause(attempt) for attempt in range(1, attempts))

    def _attempts(self, tool: Tool[..., Any]) -> int:
        return self._retry.attempts if tool.read_only or tool.idempotent else 1

    def run(
        self, running: Running, arguments: Any, context: ToolContext[Any], *, seconds: float, most: int
    ) -> Coroutine[Any, Any, Outcome]:
        """Run a handler until it has an outcome; only a real cancellation or an interrupt of the program is raised."""
        run = self._tried if self.retries else self._once
        return run(running, arguments, context, seconds, most)

    async def _tried(
        self, running: Running, arguments: Any, context: ToolContext[Any], seconds: float, most: int
    ) -> Outcome:
        attempts = self._attempts(running.tool)
        attempt = 1
        while True:
            outcome = await self._once(running, arguments, context, seconds, most)
            if attempt >= attempts:
                return outcome
            error = outcome.result.error
            again = error is not None and (error.retryable or outcome.happened == "unknown" or outcome.healthy is False)
            if not again or running.stop_asked:
                return outcome
            pause = self._retry.pause(attempt) * (0.5 + random.random() / 2)
            try:
                await running.wait(asyncio.sleep(pause))
            except Stopped as stopped:
                return failed_outcome(running.tool, stopped, began=True, seconds=seconds)
            attempt += 1

    async def _once(
        self, running: Running, arguments: Any, context: ToolContext[Any], seconds: float, most: int
    ) -> Outcome:
        tool = running.tool
        try:
            if tool.is_async:
                output = await running.drive(tool.handler(arguments, context), seconds, self.deadlines)
            elif tool.inline:
                running.raise_if_stopped()
                running.began = True
                output = inline(tool, arguments, context)
            else:
                output = await self._in_thread(running, arguments, context, seconds)
        except BaseException as error:  # noqa: BLE001  # the catch-all: `failed_outcome` lets pass what must
            return failed_outcome(tool, error, began=running.began, seconds=seconds)
        return self.judged(tool, output, most=most, session_id=context.session_id)

    async def _in_thread(self, running: Running, arguments: Any, context: ToolContext[Any], seconds: float) -> Any:
        running.raise_if_stopped()
        tool = running.tool

        def began() -> None:
            running.began = True

        work = self.threads.submit(lambda: tool.handler(arguments, context), began)
        try:
            return await running.wait(self.threads.finish(work), seconds, self.deadlines)
        finally:
            if work.abandoned:
                running.still_works = lambda: not work.finished

    def judged(self, tool: Tool[..., Any], output: Any, *, most: int, session_id: str) -> Outcome:
        """What a handler returned, as an outcome."""
        given = output.output if isinstance(output, ToolResult) else output
        problem = _unusable(given)
        if problem is None:
            try:
                limited = self.outputs.limited(given, most=most, session_id=session_id)
            except Exception:  # noqa: BLE001  # what it returned may have code of its own
                problem = f"it returned a {type(given).__name__}, which cannot be written as JSON"
            else:
                if not isinstance(output, ToolResult):
                    return Outcome(result=ToolResult(output=limited), happened="yes", healthy=True)
                result = from_handler(output if limited is given else structs.replace(output, output=limited))
                return Outcome(result=result, happened="yes" if result.ok else "no", healthy=True)
        log.error("%s: %s", tool.name, problem)
        return Outcome(result=answers.unwritable(tool.name, problem), happened="yes", healthy=False)


def inline(tool: Tool[..., Any], arguments: Any, context: ToolContext[Any]) -> Any:
    """Run a handler that never blocks."""
    try:
        return tool.handler(arguments, context)
    except asyncio.CancelledError as error:
        raise MadeUp(NOBODY_ASKED) from error


def failed_outcome(tool: Tool[..., Any], error: BaseException, *, began: bool, seconds: float) -> Outcome:
    """What it means that a handler raised. A real cancellation, and an interrupt of the program, pass on."""
    if isinstance(error, ToolError):
        return Outcome(result=answers.from_error(error), happened="no", healthy=True)
    if isinstance(error, Stopped):
        if error.__cause__ is not None:
            log.error("%s failed when it was stopped", tool.name, exc_info=error.__cause__)
        return _stopped(tool, error.why == "timeout", began=began, seconds=seconds)
    if isinstance(error, KeyboardInterrupt | asyncio.CancelledError):  # One that was made up is a `MadeUp`.
        raise error
    log.error("%s failed", tool.name, exc_info=error)
    if tool.read_only or not began:
        return Outcome(result=answers.broke(tool.name), happened="no", healthy=False)
    return Outcome(result=answers.unknown(tool.name), happened="unknown", healthy=False)


def _stopped(tool: Tool[..., Any], late: bool, *, began: bool, seconds: float) -> Outcome:
    healthy = False if late and began else None
    if began and not tool.read_only:
        return Outcome(result=answers.unknown(tool.name), happened="unknown", healthy=healthy)
    result = answers.timed_out(tool.name, seconds) if late else answers.cancelled(tool.name)
    return Outcome(result=result, happened="no", healthy=healthy)


def _unusable(output: Any) -> str | None:
    if output is None or type(output) in (str, dict, list, int, float, bool):
        return None
    if inspect.isawaitable(output):
        if inspect.iscoroutine(output):
            output.close()
        return "it returned something that was never awaited"
    if inspect.isgenerator(output) or inspect.isasyncgen(output):
        return "it returned a generator"
    return None

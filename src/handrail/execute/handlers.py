"""Runs handlers, in this task or in a thread, with timeout and retries, and turns what they return into outcomes."""

import asyncio
import copy
import inspect
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from msgspec import Struct, structs
from msgspec.structs import force_setattr

from handrail.core import failure_results
from handrail.core.context import ToolContext
from handrail.core.events import Event
from handrail.core.handler_result_checks import (
    clean_failure,
    clean_result,
    collect_iterators,
    collect_output,
    to_replayable,
)
from handrail.core.lazy_loading import LazyModule
from handrail.core.log import log
from handrail.core.media import MediaPart, limit_media
from handrail.core.secrets import LayeredSecrets, Secrets
from handrail.core.time_budget import TimeBudget
from handrail.core.tool import Tool
from handrail.core.values import ToolCall, ToolResult, find_media_result
from handrail.errors import CallPausedError, ThreadsStrandedError, ToolError, UnusableOutputError
from handrail.execute.executor_tools import CompiledTool
from handrail.execute.ledger import VerifyAnswer
from handrail.execute.limits import RetryPolicy
from handrail.execute.output_limit import OutputLimiter
from handrail.execute.running import NOT_CANCELLED, CallStopped, Deadlines, RunningCall, SpuriousCancellation
from handrail.execute.threads import WorkerThreads

if TYPE_CHECKING:
    import random
else:
    random = LazyModule("random")

Happened = Literal["yes", "no", "unknown"]


class Outcome(Struct, frozen=True, kw_only=True, gc=False):
    """What a handler came to."""

    result: ToolResult
    happened: Happened
    """Whether an effect took place; it means nothing for a read-only tool."""
    is_healthy: bool | None = None
    """What the outcome says about the tool's health: good, bad, or nothing."""
    chars: int = 0
    """How many characters the output has as text."""
    after: float | None = None
    """In how many seconds another attempt makes sense, if the handler knows."""
    verified: VerifyAnswer | None = None
    """What `verify` said about it, if nobody knows what happened."""


class HandlerRunner:
    """Runs the handlers of tools, each with the context, the timeout and the attempts that its tool has."""

    def __init__(
        self,
        *,
        threads: WorkerThreads,
        output_limiter: OutputLimiter,
        secrets: Secrets,
        retry: RetryPolicy,
        emit: Callable[[Event], None],
    ) -> None:
        self.deadlines = Deadlines()
        self.threads = threads
        self._output_limiter = output_limiter
        self._secrets = secrets if len(secrets) else None
        self._retry = retry
        self._emit = emit
        self.has_retries = retry.max_attempts > 1
        self.run = self._run_with_retries if self.has_retries else self._run_once
        """Runs a handler until it has an outcome; raises only a real cancellation or an interrupt of the program."""

    def build_context(
        self, call: ToolCall, context: ToolContext[Any], idempotency_key: str | None = None
    ) -> ToolContext[Any]:
        """The caller's context, with what belongs to this one call."""
        # `structs.replace` would check the ids of the context once more: 0.25 µs instead of 0.15. Nobody has the copy.
        known: Any = context
        inner: ToolContext[Any] = known.__copy__()
        force_setattr(inner, "call", call)
        force_setattr(inner, "listener", self._emit)
        force_setattr(inner, "idempotency_key", idempotency_key)
        own = context.secrets
        # A mapping of the caller's own may look them up in a vault: only a handler asks it.
        has_none = isinstance(own, dict) and not own
        if not has_none:
            force_setattr(inner, "secrets", LayeredSecrets(self._secrets or {}, own))
        elif self._secrets is not None:
            force_setattr(inner, "secrets", self._secrets)
        return inner

    async def _run_with_retries(
        self, compiled: CompiledTool, running: RunningCall, arguments: Any, context: ToolContext[Any]
    ) -> Outcome:
        attempt, max_attempts = 1, compiled.max_attempts
        while True:
            given = arguments
            if attempt < max_attempts:
                try:
                    arguments = copy.deepcopy(given)  # A handler may change what it gets.
                except Exception as error:  # a type of the developer
                    log.warning(
                        "%s is not tried again: its arguments cannot be copied", compiled.tool.name, exc_info=error
                    )
                    max_attempts = attempt
            outcome = await self._run_once(compiled, running, given, context)
            running.is_in_doubt = running.is_in_doubt or outcome.happened == "unknown"
            if attempt >= max_attempts:
                return outcome
            error = outcome.result.error
            can_retry = error is not None and (
                error.retryable or outcome.happened == "unknown" or outcome.is_healthy is False
            )
            if not can_retry or running.stopped_by is not None:
                return outcome
            delay = self._retry.delay_after(attempt) * (0.5 + random.random() / 2)
            if outcome.after is not None:
                if outcome.after > self._retry.max_delay:
                    return outcome  # Longer than this call waits: the caller hears when to try again.
                delay = max(delay, outcome.after)
            try:
                await running.wait(asyncio.sleep(delay))
            except CallStopped as stopped:
                return outcome_of_error(compiled, stopped, has_begun=True)
            attempt += 1

    async def _run_once(
        self, compiled: CompiledTool, running: RunningCall, arguments: Any, context: ToolContext[Any]
    ) -> Outcome:
        tool = compiled.tool
        ends = time.monotonic() + compiled.timeout
        try:
            if tool.is_async:
                output = await running.run_coroutine(tool.handler(arguments, context), compiled.timeout, self.deadlines)
            elif tool.inline:
                if running.stopped_by is not None:
                    raise CallStopped(running.stopped_by)
                running.has_begun = True
                output = _run_inline(tool, arguments, context)
            else:
                output = await self._run_in_thread(compiled, running, arguments, context)
            if type(output) is not str:
                output, is_complete = collect_iterators(output, max_items=compiled.max_output_chars)
                if not is_complete:
                    rest = collect_output(output, max_items=compiled.max_output_chars)
                    output = await running.wait(rest, max(ends - time.monotonic(), 0.001), self.deadlines)
        except BaseException as error:  # noqa: BLE001  # the catch-all: `outcome_of_error` raises again what must be
            if isinstance(error, CallPausedError):
                running.has_begun = False
            return outcome_of_error(compiled, error, has_begun=running.has_begun)
        return self.outcome_of_output(compiled, output, context.session_id)

    async def _run_in_thread(
        self, compiled: CompiledTool, running: RunningCall, arguments: Any, context: ToolContext[Any]
    ) -> Any:
        if running.stopped_by is not None:
            raise CallStopped(running.stopped_by)
        handler = compiled.tool.handler

        def on_start() -> None:
            running.has_begun = True

        def run() -> Any:
            return collect_iterators(handler(arguments, context), max_items=compiled.max_output_chars)[0]

        job = self.threads.submit(run, on_start, owner=compiled.tool.name)
        try:
            return await running.wait(self.threads.wait(job), compiled.timeout, self.deadlines)
        finally:
            if job.is_abandoned:
                running.stranded_job = job

    def outcome_of_output(self, compiled: CompiledTool, output: Any, session_id: str) -> Outcome:
        """The outcome of a handler that returned this; everything that a handler returns comes in here."""
        if type(output) is str and len(output) <= compiled.max_output_chars:  # Nothing to check, nothing to cut.
            return Outcome(result=ToolResult(output=output), happened="yes", is_healthy=True, chars=len(output))
        value = output.output if isinstance(output, ToolResult) else output
        if _is_unawaited(value):
            return outcome_of_error(compiled, RuntimeError("its output was never awaited"), has_begun=True)
        problem = None
        try:
            limited, chars = self._output_limiter.limit(
                value,
                max_chars=compiled.max_output_chars,
                session_id=session_id if compiled.can_read_more else None,
            )
        except Exception:  # noqa: BLE001  # the value may have code of its own
            if (found := find_media_result(output)) is not None:
                return self.outcome_of_output(compiled, found, session_id)
            problem = f"it returned a {type(value).__name__}, which cannot be written as JSON"
        else:
            if type(limited) not in _JSON_TYPES and limited is value:
                limited = to_replayable(limited)
            if not isinstance(output, ToolResult):
                return Outcome(result=ToolResult(output=limited), happened="yes", is_healthy=True, chars=chars)
            result = output if limited is value else structs.replace(output, output=limited)
            result = clean_result(result, tool=compiled.tool.name)
            if type(result.media) is not tuple or result.media:
                problem = _find_media_problem(result.media)
                result = result if problem else _limit_media(result, compiled.max_media_bytes)
            if problem is None and result.error is not None:
                return _outcome_of_failure(compiled, result)
            if problem is None:
                return Outcome(result=result, happened="yes", is_healthy=True, chars=chars)
        return _outcome_of_unusable(compiled, problem)

    def collect_at_once(self, compiled: CompiledTool, output: Any, session_id: str) -> tuple[Outcome | None, Any]:
        """The outcome of a handler that returned this, with its iterators as lists; None if something in the output,
        which is returned with it, has to be awaited."""
        try:
            output, is_complete = collect_iterators(output, max_items=compiled.max_output_chars)
        except BaseException as error:  # noqa: BLE001  # the catch-all, as in `_run_once`
            return outcome_of_error(compiled, error, has_begun=True), None
        return (self.outcome_of_output(compiled, output, session_id) if is_complete else None), output

    async def collect_outcome(self, compiled: CompiledTool, output: Any, session_id: str) -> Outcome:
        """The outcome of a handler that returned iterators or awaitables, which are collected first."""
        outcome, output = self.collect_at_once(compiled, output, session_id)
        if outcome is not None:
            return outcome
        try:
            collecting = collect_output(output, max_items=compiled.max_output_chars)
            output = await TimeBudget(compiled.timeout).run(collecting)
        except TimeoutError:
            return _outcome_of_stop(compiled, True, has_begun=True)
        except BaseException as error:  # noqa: BLE001  # the catch-all, as in `_run_once`
            return outcome_of_error(compiled, error, has_begun=True)
        return self.outcome_of_output(compiled, output, session_id)


_JSON_TYPES: Final = frozenset({str, int, bool, type(None), dict, list})


def _outcome_of_failure(compiled: CompiledTool, result: ToolResult) -> Outcome:
    """A failure that a handler returned or raised: nothing happened, unless it says that nobody knows."""
    tool = compiled.tool
    result = clean_failure(result, tool=tool.name, read_only=tool.read_only)
    assert result.error is not None
    is_unknown = result.error.code == "outcome_unknown" and not tool.read_only
    return Outcome(result=result, happened="unknown" if is_unknown else "no", is_healthy=True)


def _outcome_of_unusable(compiled: CompiledTool, problem: str) -> Outcome:
    name = compiled.tool.name
    log.error("%s: %s", name, problem)
    return Outcome(result=failure_results.unusable_output(name, problem), happened="yes", is_healthy=False)


def _find_media_problem(media: object) -> str | None:
    if not isinstance(media, list | tuple):
        return f"media must be a tuple of MediaPart, not a {type(media).__name__}"
    strangers = [type(part).__name__ for part in cast(list[object], media) if not isinstance(part, MediaPart)]
    return f"media must be a tuple of MediaPart, and has a {strangers[0]}" if strangers else None


def _limit_media(result: ToolResult, max_bytes: int) -> ToolResult:
    """The result with as much media as it may have; a failure has none."""
    reason = f"a result holds at most {max_bytes:,} bytes of media"
    return structs.replace(result, media=limit_media(result.media, max_bytes, reason=reason) if result.ok else ())


def _run_inline(tool: Tool[..., Any], arguments: Any, context: ToolContext[Any]) -> Any:
    try:
        return tool.handler(arguments, context)
    except asyncio.CancelledError as error:
        raise SpuriousCancellation(NOT_CANCELLED) from error


def outcome_of_error(compiled: CompiledTool, error: BaseException, *, has_begun: bool) -> Outcome:
    """The outcome of a handler that raised. A real cancellation, and an interrupt of the program, are raised again."""
    tool = compiled.tool
    if isinstance(error, CallPausedError):
        return Outcome(result=failure_results.error_result(error), happened="no", is_healthy=True)
    if isinstance(error, ToolError):
        outcome = _outcome_of_failure(compiled, failure_results.error_result(error))
        return outcome if error.after is None else structs.replace(outcome, after=error.after)
    if isinstance(error, UnusableOutputError):
        return _outcome_of_unusable(compiled, str(error))
    if isinstance(error, CallStopped):
        if error.__cause__ is not None:
            log.error("%s failed when it was stopped", tool.name, exc_info=error.__cause__)
        return _outcome_of_stop(compiled, error.cause == "timeout", has_begun=has_begun)
    if isinstance(error, KeyboardInterrupt | asyncio.CancelledError):  # A spurious one was replaced before.
        raise error
    if isinstance(error, ThreadsStrandedError):
        log.error("%s: %s", tool.name, error)
        return Outcome(result=failure_results.unavailable(tool.name), happened="no", is_healthy=False)
    log.error("%s failed", tool.name, exc_info=error)
    if tool.read_only or not has_begun:
        return Outcome(result=failure_results.tool_failed(tool.name), happened="no", is_healthy=False)
    return Outcome(result=failure_results.outcome_unknown(tool.name), happened="unknown", is_healthy=False)


def keep_doubt(compiled: CompiledTool, outcome: Outcome) -> Outcome:
    """The outcome of a call of which an earlier attempt may have taken effect.

    That nothing happened in the last attempt says nothing about that one.
    """
    if outcome.happened != "no":
        return outcome
    name, error = compiled.tool.name, outcome.result.error
    code = None if error is None else error.code
    log.warning("%s ended with %s, and an earlier attempt may have taken effect", name, code)
    return Outcome(result=failure_results.outcome_unknown(name), happened="unknown", is_healthy=outcome.is_healthy)


def _outcome_of_stop(compiled: CompiledTool, is_late: bool, *, has_begun: bool) -> Outcome:
    tool = compiled.tool
    is_healthy = False if is_late and has_begun else None
    if has_begun and not tool.read_only:
        return Outcome(result=failure_results.outcome_unknown(tool.name), happened="unknown", is_healthy=is_healthy)
    if is_late:
        result = failure_results.tool_timeout(tool.name, compiled.timeout)
    else:
        result = failure_results.call_cancelled(tool.name)
    return Outcome(result=result, happened="no", is_healthy=is_healthy)


def _is_unawaited(output: Any) -> bool:
    """Whether an output is code that never ran: only of a thread that ended after its call was given up."""
    if type(output) in _JSON_TYPES or not (inspect.isawaitable(output) or inspect.isasyncgen(output)):
        return False
    if inspect.iscoroutine(output):
        output.close()
    return True

"""The loop of an agent: ask the model, run its calls, return the results to it, until it is done or must stop."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Sequence
from typing import Any, Protocol, TypeAlias

from msgspec import Struct

from handrail.core.context import ToolContext
from handrail.core.values import ToolCall, ToolResult
from handrail.errors import ConfigError
from handrail.execute.budget import Budget, LoopProgress, StopReason, run_again
from handrail.execute.executor import Executor

Step = Callable[[list[Any], Sequence[Any]], Awaitable[Any] | Any]
"""Sends the messages and the definitions to a model, and returns its response. Sync or async."""


class Wire(Protocol):
    """A module of `handrail.formats`."""

    def tools(self, pool: Iterable[Any]) -> Any: ...
    def calls(self, response: Any, definitions: Sequence[Any] | None = None) -> list[ToolCall]: ...
    def results(self, results: Iterable[ToolResult], definitions: Sequence[Any] | None = None) -> Sequence[Any]: ...
    def assistant_messages(self, response: Any) -> Sequence[Any]: ...


class LoopResult(Struct, frozen=True, kw_only=True):
    """How a loop ended."""

    messages: list[Any]
    """All of them, including those that were passed in; a next turn continues from here."""
    response: Any
    """The model's last response."""
    results: tuple[ToolResult, ...]
    """Of every call, in the order in which they were made."""
    stop_reason: StopReason
    """`completed`; the limit of the budget that was reached; or `in_progress` or `outcome_unknown`: then the last calls
    in `messages` have no results, and `run_until_done(resume=…)` looks at them again."""
    open_calls: tuple[ToolCall, ...] = ()
    """The calls of the last response, if some of them have no final result."""
    partial_results: tuple[ToolResult | None, ...] = ()
    """For each of the `open_calls` its final result, or None. They are not in `messages` yet."""


class _Ask(Struct, frozen=True):
    """The model is to be asked; it wants the response."""

    messages: list[Any]


class _Run(Struct, frozen=True):
    """Calls are to be run; it wants the results."""

    calls: Sequence[ToolCall]
    is_resumed: bool = False
    """Whether an earlier loop ran them, and may have begun them."""

    def run(self, executor: Executor, context: ToolContext[Any]) -> Coroutine[Any, Any, list[ToolResult]]:
        return (run_again if self.is_resumed else Executor.run_all)(executor, self.calls, context)


_Loop: TypeAlias = Generator[_Ask | _Run, Any, LoopResult]


async def run_until_done(
    step: Step,
    executor: Executor,
    context: ToolContext[Any],
    *,
    wire: Wire,
    messages: Iterable[Any] = (),
    budget: Budget | None = None,
    resume: LoopResult | None = None,
) -> LoopResult:
    """Run a conversation until the model calls no more tools, or it has to stop.

    Args:
        step: A function `(messages, definitions)` that asks the model and returns its response. One that is not async
            runs in a thread.
        executor: Runs the calls.
        context: The context of every call.
        wire: The format of the API: a module of `handrail.formats`.
        messages: The conversation so far.
        budget: When the loop ends before the model does.
        resume: The result of a loop that stopped with `in_progress` or `outcome_unknown`, instead of messages: its open
            calls are looked at again first.
    """
    executor, definitions, loop = _start_loop(executor, wire, messages, budget, resume)
    wants = next(loop)
    while True:
        if isinstance(wants, _Run):
            answer: Any = await wants.run(executor, context)
        elif inspect.iscoroutinefunction(step):
            answer = await step(wants.messages, definitions)
        else:
            answer = await asyncio.to_thread(step, wants.messages, definitions)
            answer = await answer if inspect.isawaitable(answer) else answer
        try:
            wants = loop.send(answer)
        except StopIteration as done:
            return done.value


def run_until_done_sync(
    step: Callable[[list[Any], Sequence[Any]], Any],
    executor: Executor,
    context: ToolContext[Any],
    *,
    wire: Wire,
    messages: Iterable[Any] = (),
    budget: Budget | None = None,
    resume: LoopResult | None = None,
) -> LoopResult:
    """`run_until_done` for a caller that has no event loop. The step runs in the caller's own thread."""
    executor, definitions, loop = _start_loop(executor, wire, messages, budget, resume)
    wants = next(loop)
    while True:
        if isinstance(wants, _Run):
            answer: Any = executor.run_coroutine(wants.run(executor, context))
        else:
            answer = step(wants.messages, definitions)
            if inspect.isawaitable(answer):
                raise ConfigError("The step is async: use run_until_done, and await it.")
        try:
            wants = loop.send(answer)
        except StopIteration as done:
            return done.value


def _start_loop(
    executor: Executor, wire: Wire, messages: Iterable[Any], budget: Budget | None, resume: LoopResult | None
) -> tuple[Executor, Sequence[Any], _Loop]:
    """The executor and the definitions of one run, and its loop."""
    executor = executor.snapshot()  # The calls of this run find the tools that its model was offered.
    definitions = wire.tools(executor.registry)
    return executor, definitions, _loop(wire, definitions, messages, LoopProgress(budget or Budget(), executor), resume)


def _loop(
    wire: Wire,
    definitions: Sequence[Any],
    messages: Iterable[Any],
    progress: LoopProgress,
    resume: LoopResult | None,
) -> _Loop:
    """The loop itself: it yields what it wants, and is sent it."""
    history = list(messages)
    response: Any = None
    calls: Sequence[ToolCall] = ()
    final: list[ToolResult | None] = []
    if resume is not None:
        if history:
            raise ConfigError("messages cannot be passed together with resume: the result to resume has them.")
        history, response = list(resume.messages), resume.response
        calls, final = resume.open_calls, list(resume.partial_results)
    is_resumed = bool(calls)
    while True:
        if calls:
            places = [place for place, result in enumerate(final) if result is None]
            wanted = [calls[place] for place in places]
            # Calls of an earlier loop had their place in its budget: they may have run.
            run, refused = (wanted, []) if is_resumed else progress.admit(wanted)
            results: list[ToolResult] = [*((yield _Run(run, is_resumed)) if run else ()), *refused]
            unsettled = progress.add(results)
            for place, result in zip(places, results, strict=True):
                final[place] = None if result.call_id in unsettled else result
            if None in final:
                progress.stop_if_unsettled(results)
                break
            history += wire.results([result for result in final if result is not None], definitions)
            if progress.check() is not None:
                calls = ()
                break
        progress.steps += 1
        response = yield _Ask(history)
        history += wire.assistant_messages(response)
        calls, is_resumed = wire.calls(response, definitions), False
        final = [None] * len(calls)
        if not calls:
            break
    return LoopResult(
        messages=history,
        response=response,
        results=tuple(progress.results),
        stop_reason=progress.stop_reason or "completed",
        open_calls=tuple(calls),
        partial_results=tuple(final) if calls else (),
    )

"""The plain loop of a harness: ask the model, run its calls, give it the answers, until it is done or a budget is."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from typing import Any, Literal, Protocol, TypeAlias

from msgspec import Struct

from handrail.core.context import ToolContext
from handrail.core.values import Failure, ToolCall, ToolResult
from handrail.errors import ConfigError
from handrail.execute.executor import Executor

Step = Callable[[list[Any], Sequence[Any]], Awaitable[Any] | Any]
"""Sends the messages and the definitions to a model, and gives back its response. Sync or async."""


class Wire(Protocol):
    """A module of `handrail.formats`."""

    def tools(self, pool: Iterable[Any]) -> Any: ...
    def calls(self, response: Any, definitions: Sequence[Any] | None = None) -> list[ToolCall]: ...
    def results(self, results: Iterable[ToolResult], definitions: Sequence[Any] | None = None) -> Sequence[Any]: ...
    def assistant_messages(self, response: Any) -> Sequence[Any]: ...


class Budget(Struct, frozen=True, kw_only=True):
    """The limits of one turn or loop; when one is reached, nothing new is begun."""

    max_steps: int = 20
    """How often the model is asked."""
    max_calls: int = 100
    """How many tool calls are run."""
    timeout: float = 300.0
    """Seconds after which nothing new is begun; what runs is not interrupted."""
    max_tokens: int | None = None
    """Tokens of the model, read and written. A `run_until_done` loop does not count tokens."""

    def __post_init__(self) -> None:
        for name, minimum in (("max_steps", 1), ("max_calls", 0), ("max_tokens", 1)):
            value = getattr(self, name)
            if value is not None and value < minimum:
                raise ConfigError(f"{name} must be at least {minimum}, got {value!r}.")
        if not self.timeout > 0:
            raise ConfigError(f"timeout must be more than 0 seconds, got {self.timeout!r}.")


LoopStopReason = Literal["completed", "max_steps", "max_calls", "timeout"]


class LoopResult(Struct, frozen=True, kw_only=True):
    """How a loop ended."""

    messages: list[Any]
    """All of them, also those that came in; a next turn goes on from here."""
    response: Any
    """The model's last response."""
    results: tuple[ToolResult, ...]
    """Of every call, in the order in which they were made."""
    stop_reason: LoopStopReason
    """`completed`, or the budget that ran out. Every call in the messages has its answer in any case."""


class _Ask(Struct, frozen=True):
    """The model is to be asked; it wants the response."""

    messages: list[Any]


class _Run(Struct, frozen=True):
    """Calls are to be run; it wants the results."""

    calls: list[ToolCall]


_Loop: TypeAlias = Generator[_Ask | _Run, Any, LoopResult]


async def run_until_done(
    step: Step,
    executor: Executor,
    context: ToolContext[Any],
    *,
    wire: Wire,
    messages: Iterable[Any],
    budget: Budget | None = None,
) -> LoopResult:
    """Run a conversation until the model asks for no tool any more, or a budget runs out.

    A `step` that is not async runs in a thread, so that it blocks nobody.
    """
    executor = executor.snapshot()  # The calls of this run find the tools that its model was offered.
    definitions = wire.tools(executor.registry)
    loop = _loop(wire, definitions, messages, budget or Budget())
    wants = next(loop)
    while True:
        if isinstance(wants, _Run):
            answer: Any = await executor.run_all(wants.calls, context)
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
    messages: Iterable[Any],
    budget: Budget | None = None,
) -> LoopResult:
    """`run_until_done` for a caller that has no event loop. The step runs in the caller's own thread."""
    executor = executor.snapshot()  # The calls of this run find the tools that its model was offered.
    definitions = wire.tools(executor.registry)
    loop = _loop(wire, definitions, messages, budget or Budget())
    wants = next(loop)
    while True:
        if isinstance(wants, _Run):
            answer: Any = executor.run_all_sync(wants.calls, context)
        else:
            answer = step(wants.messages, definitions)
            if inspect.isawaitable(answer):
                raise ConfigError("The step is async: use run_until_done, and await it.")
        try:
            wants = loop.send(answer)
        except StopIteration as done:
            return done.value


def _loop(wire: Wire, definitions: Sequence[Any], messages: Iterable[Any], budget: Budget) -> _Loop:
    """The loop itself: it says what it wants, and is given it."""
    history = list(messages)
    results: list[ToolResult] = []
    ends = time.monotonic() + budget.timeout
    response: Any = None
    stop_reason: LoopStopReason = "max_steps"
    for _ in range(budget.max_steps):
        response = yield _Ask(history)
        history += wire.assistant_messages(response)
        calls = wire.calls(response, definitions)
        if not calls:
            stop_reason = "completed"
            break
        late = time.monotonic() >= ends
        most = 0 if late else max(budget.max_calls - len(results), 0)
        run, left = calls[:most], calls[most:]
        answered: list[ToolResult] = (yield _Run(run)) if run else []
        answered += [not_run(call) for call in left]
        history += wire.results(answered, definitions)
        results += answered
        if left and not late:
            stop_reason = "max_calls"
            break
        if late or time.monotonic() >= ends:
            stop_reason = "timeout"
            break
    return LoopResult(messages=history, response=response, results=tuple(results), stop_reason=stop_reason)


def not_run(call: ToolCall) -> ToolResult:
    """The answer to a call that the budget has no room for: it is not run, and it is answered."""
    failure = Failure(code="rate_limited", message="No more tools can be called in this turn. Nothing was done.")
    return ToolResult(error=failure, call_id=call.id, tool_name=call.name)

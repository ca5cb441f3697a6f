"""The plain loop of a harness: ask the model, run its calls, give it the answers, until it is done or a budget is."""

import inspect
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct, structs

from handrail.core.context import ToolContext
from handrail.core.values import ToolCall, ToolResult
from handrail.errors import ConfigError
from handrail.execute.executor import Executor

Step = Callable[[list[Any], Sequence[Any]], Awaitable[Any] | Any]
"""Sends the messages and the definitions to a model, and gives back its response. Sync or async."""


class Wire(Protocol):
    """A module of `handrail.formats`."""

    def tools(self, pool: Iterable[Any]) -> Any: ...
    def calls(self, response: Any, definitions: Sequence[Any] | None = None) -> list[ToolCall]: ...
    def results(self, results: Iterable[ToolResult], definitions: Sequence[Any] | None = None) -> Sequence[Any]: ...
    def said(self, response: Any) -> Sequence[Any]: ...


class Budget(Struct, frozen=True, kw_only=True):
    """What a loop may spend."""

    steps: int = 20
    """How often the model is asked."""
    calls: int = 100
    seconds: float = 300.0

    def __post_init__(self) -> None:
        if self.steps < 1 or self.calls < 0 or self.seconds <= 0:
            raise ConfigError("A budget has at least 1 step, 0 or more calls, and more than 0 seconds.")


class Done(Struct, frozen=True, kw_only=True):
    """How a loop ended."""

    messages: list[Any]
    """All of them, also those that came in; a next turn goes on from here."""
    response: Any
    """The model's last response."""
    results: tuple[ToolResult, ...]
    """Of every call, in the order in which they were made."""
    ended: Literal["done", "steps", "calls", "seconds"]
    """`done`, or the budget that ran out. Every call in the messages has its answer in any case."""


async def run_until_done(
    step: Step,
    executor: Executor,
    context: ToolContext[Any],
    *,
    wire: Wire,
    messages: Iterable[Any],
    budget: Budget | None = None,
) -> Done:
    """Run a conversation until the model asks for no tool any more, or a budget runs out."""
    limit = budget or Budget()
    history = list(messages)
    definitions = wire.tools(executor.registry)
    results: list[ToolResult] = []
    ends = time.monotonic() + limit.seconds
    for asked in range(1, limit.steps + 1):
        response = step(history, definitions)
        if inspect.isawaitable(response):
            response = await response
        history += wire.said(response)
        calls = wire.calls(response, definitions)
        if not calls:
            return Done(messages=history, response=response, results=tuple(results), ended="done")
        left = max(limit.calls - len(results), 0)
        answered = await executor.run_all(calls[:left], context)
        answered += [_not_run(call) for call in calls[left:]]
        history += wire.results(answered, definitions)
        results += answered
        if len(calls) > left:
            return Done(messages=history, response=response, results=tuple(results), ended="calls")
        if time.monotonic() >= ends:
            return Done(messages=history, response=response, results=tuple(results), ended="seconds")
        if asked == limit.steps:
            return Done(messages=history, response=response, results=tuple(results), ended="steps")
    raise AssertionError("a budget has at least one step")


def run_until_done_sync(
    step: Step,
    executor: Executor,
    context: ToolContext[Any],
    *,
    wire: Wire,
    messages: Iterable[Any],
    budget: Budget | None = None,
) -> Done:
    """`run_until_done` for a caller that has no event loop."""
    return executor.wait_for(run_until_done(step, executor, context, wire=wire, messages=messages, budget=budget))


def _not_run(call: ToolCall) -> ToolResult:
    """The answer to a call that the budget has no room for: it is not run, and it is answered."""
    failure = ToolResult(error="No more tools can be called in this turn. Nothing was done.")
    assert failure.error is not None
    return structs.replace(
        failure, error=structs.replace(failure.error, code="rate_limited"), call_id=call.id, tool_name=call.name
    )

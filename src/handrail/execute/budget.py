"""When a turn or a loop stops before its model is done: its budget, what it has used of it, and what it leaves open."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

from msgspec import Struct

from handrail.core import failure_results
from handrail.core.context import ToolContext
from handrail.core.values import ToolCall, ToolResult
from handrail.errors import ConfigError
from handrail.execute.executor import Executor
from handrail.execute.results import finish_result

StopReason = Literal[
    "completed",
    "approval_required",
    "in_progress",
    "outcome_unknown",
    "interrupted",
    "handed_off",
    "max_steps",
    "max_calls",
    "timeout",
    "token_budget",
]
"""Why a turn or a loop ended: the model's reply is complete; a call needs an approval, still runs elsewhere, or has an
outcome that nobody knows; the turn was interrupted; a person took over; or a limit of the budget was reached."""


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
            if value is not None and (type(value) is not int or value < minimum):
                raise ConfigError(f"{name} must be a whole number of at least {minimum}, got {value!r}.")
        if not self.timeout > 0:
            raise ConfigError(f"timeout must be more than 0 seconds, got {self.timeout!r}.")


_UNSETTLED: Final = ("in_progress", "outcome_unknown")


class LoopProgress:
    """How far a loop has come: what it has used of its budget, what it still may do, and why it stopped.

    A chat turn and `run_until_done` share these rules.
    """

    def __init__(self, budget: Budget, executor: Executor) -> None:
        self.budget = budget
        self.stop_reason: StopReason | None = None
        """Set once nothing new may begin."""
        self.is_interrupted = False
        self.steps = 0
        self.tokens = 0
        self.results: list[ToolResult] = []
        """Of every call so far, in the order in which they came in."""
        self._executor = executor
        self._deadline = time.monotonic() + budget.timeout

    def check(self) -> StopReason | None:
        """Set `stop_reason` if the loop was interrupted or has reached a limit; return it, or None to continue."""
        if self.stop_reason is not None:
            return self.stop_reason
        budget = self.budget
        if self.is_interrupted:
            self.stop_reason = "interrupted"
        elif self.steps >= budget.max_steps:
            self.stop_reason = "max_steps"
        elif time.monotonic() >= self._deadline:
            self.stop_reason = "timeout"
        elif budget.max_tokens is not None and self.tokens >= budget.max_tokens:
            self.stop_reason = "token_budget"
        return self.stop_reason

    def admit(self, calls: Sequence[ToolCall]) -> tuple[Sequence[ToolCall], list[ToolResult]]:
        """Split calls into those that may run and the results of the others, for which the budget has no room."""
        is_late = time.monotonic() >= self._deadline
        room = 0 if is_late or self.is_interrupted else max(self.budget.max_calls - len(self.results), 0)
        if len(calls) > room and not self.is_interrupted:
            self.stop_reason = "timeout" if is_late else "max_calls"
        return calls[:room], [_refuse_call(call) for call in calls[room:]]

    def add(self, results: Sequence[ToolResult]) -> frozenset[str]:
        """Count results; returns the ids of the calls that have no final one yet."""
        self.results += results
        return frozenset(result.call_id for result in results if self.is_unsettled(result))

    def is_unsettled(self, result: ToolResult) -> bool:
        """Whether a consequential call still runs elsewhere, or nobody knows its outcome: no final result yet."""
        error = result.error
        if error is None or error.code not in _UNSETTLED or result.origin == "replayed":
            return False
        registry = self._executor.registry  # A read-only tool may use these codes for something else.
        return result.tool_name not in registry or not registry.get(result.tool_name).read_only

    def stop_if_unsettled(self, results: Iterable[ToolResult]) -> None:
        """Stop if some of these are not final: what nobody knows comes before what still runs."""
        codes = {result.error.code for result in results if result.error is not None and self.is_unsettled(result)}
        if codes and not self.is_interrupted:
            self.stop_reason = "outcome_unknown" if "outcome_unknown" in codes else "in_progress"


async def run_again(executor: Executor, calls: Iterable[ToolCall], context: ToolContext[Any]) -> list[ToolResult]:
    """Run calls that an earlier turn or loop left open. A refusal of today does not hide what became of them then."""
    every = list(calls)
    results = await executor.run_all(every, context)
    return list(
        await asyncio.gather(
            *(_confirm(executor, call, context, result) for call, result in zip(every, results, strict=True))
        )
    )


async def _confirm(executor: Executor, call: ToolCall, context: ToolContext[Any], result: ToolResult) -> ToolResult:
    if result.error is None or result.approval is not None or result.origin != "run":
        return result
    known = await executor.look_up(call, context, by_key=False)
    return result if known is None or known.error == result.error else known


def _refuse_call(call: ToolCall) -> ToolResult:
    return finish_result(failure_results.no_calls_left(), call, time.perf_counter())

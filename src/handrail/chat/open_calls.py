"""What a model reads of calls without a final result when the customer writes: provisional results, replaced later."""

import asyncio
from collections.abc import Sequence
from typing import Any

from msgspec import structs

from handrail.core import failure_results
from handrail.core.context import ToolContext
from handrail.core.values import ToolCall, ToolResult
from handrail.execute.budget import LoopProgress
from handrail.execute.executor import Executor


async def build_results(
    calls: Sequence[ToolCall], executor: Executor, context: ToolContext[Any], progress: LoopProgress
) -> tuple[list[ToolResult], list[ToolCall]]:
    """Give every open call a result, so that a new message can follow; also the calls whose result is provisional.

    One that awaits an approval has not been made: `approval_required`. One that has no final result gets a provisional
    one, and is looked up again in the next turn.
    """
    known = {
        result.call_id: result
        for result in progress.results
        if result.approval is not None or progress.is_unsettled(result)
    }
    results = [known.get(call.id) or await _look_up(call, executor, context) for call in calls]
    return results, [call for call, result in zip(calls, results, strict=True) if progress.is_unsettled(result)]


async def look_up_again(calls: Sequence[ToolCall], executor: Executor, context: ToolContext[Any]) -> list[ToolResult]:
    """What is known now about calls that have a provisional result."""
    return list(await asyncio.gather(*(_look_up(call, executor, context) for call in calls)))


async def _look_up(call: ToolCall, executor: Executor, context: ToolContext[Any]) -> ToolResult:
    """What is known about a call; one that the ledger knows nothing about may have been made, too."""
    return await executor.look_up(call, context) or structs.replace(
        failure_results.outcome_unknown(call.name), call_id=call.id, provider_id=call.provider_id, tool_name=call.name
    )

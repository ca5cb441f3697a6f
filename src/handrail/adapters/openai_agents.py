"""Handrail under an agent of the OpenAI Agents SDK: its function tools, run through an executor."""

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias, cast

from handrail.adapters.host_calls import ContextSource, ControlFlow, resolve_context, run_host_call
from handrail.core.values import ToolCall
from handrail.errors import ConfigError, MissingExtraError
from handrail.execute.executor import Executor

try:
    from agents import FunctionTool, RunContextWrapper, Tool
    from agents.exceptions import AgentsException
    from agents.tool import set_function_tool_failure_error_function
    from agents.tool_context import ToolContext
except ImportError as error:  # pragma: no cover
    raise MissingExtraError("openai-agents", extra="openai-agents") from error

__all__ = ["RunPausedError", "guard_tools"]

RunContextSource: TypeAlias = ContextSource[RunContextWrapper[Any]]
_CONTROL = ControlFlow()


class RunPausedError(AgentsException):
    """The run cannot go on: a call was woken without an approval in the executor's store, or its outcome is in doubt.

    Nothing was told to the model. Decide or resolve, and run again from the `RunState` that you saved.
    """

    def __init__(self, pause: dict[str, Any]) -> None:
        super().__init__(pause["message"])
        self.pause = pause
        """The reason, the tool, the id of the call, and the token if somebody has to approve it."""


def guard_tools(tools: Iterable[Tool], executor: Executor, *, context: RunContextSource) -> list[Tool]:
    """Run function tools under an executor: `Agent(tools=guard_tools([…], executor, context=…))`.

    A call that somebody has to agree to is one of the run's `interruptions`; its question is one of
    `executor.approvals.pending(…)`. `state.approve(…)` only wakes the run: without an approval in the executor's own
    store it ends with `RunPausedError`, and so does a call whose outcome is not known. Agents as tools are left as they
    are: guard their own tools.
    """
    return [_guard_tool(tool, executor, context) for tool in tools]


def _guard_tool(tool: Tool, executor: Executor, source: RunContextSource) -> Tool:
    if not isinstance(tool, FunctionTool):
        raise ConfigError(f"{type(tool).__name__} runs elsewhere and cannot be guarded: give it to the agent as it is.")
    if getattr(tool, "_is_agent_tool", False):
        return tool
    # An exception must reach the executor: by default the SDK makes a text of it, which would look like a result.
    inner = set_function_tool_failure_error_function(replace(tool), None)
    needs_own_approval = tool.needs_approval
    schema = tool.params_json_schema

    async def needs_approval(run: RunContextWrapper[Any], arguments: dict[str, Any], call_id: str) -> bool:
        call = ToolCall(id=call_id, name=tool.name, arguments_json=json.dumps(arguments))
        context = resolve_context(source, run, wakes=_count_wakes(run))
        if await executor.request_approval(call, context, schema=schema) is not None:
            return True
        if callable(needs_own_approval):
            return await needs_own_approval(run, arguments, call_id)
        return needs_own_approval

    async def invoke(run: ToolContext[Any], arguments_json: str) -> Any:
        async def proceed(arguments: Mapping[str, Any], pauses: int) -> Any:
            async with asyncio.timeout(tool.timeout_seconds):
                return await inner.on_invoke_tool(run, json.dumps(arguments))

        host = await run_host_call(
            executor,
            ToolCall(id=run.tool_call_id, name=tool.name, arguments_json=arguments_json),
            resolve_context(source, run, wakes=_count_wakes(run)),
            proceed,
            schema=schema,
            control=_CONTROL,
        )
        if host.is_pause:
            raise RunPausedError(host.describe_pause())
        return host.value if host.result.ok else host.result.for_model()

    # The executor has the tool's timeout: outside of it, the SDK would tell the model that a running call failed.
    guarded = replace(tool, on_invoke_tool=invoke, needs_approval=needs_approval, timeout_seconds=None)
    return set_function_tool_failure_error_function(guarded, None)


def _count_wakes(run: RunContextWrapper[Any]) -> int:
    """How many calls of this run a person has let go on: each is one turn later."""
    records = cast(dict[Any, Any], getattr(run, "_approvals", {})).values()
    decisions: list[Any] = [getattr(record, "approved", False) for record in records]
    return len(
        {call_id for decision in decisions if isinstance(decision, list) for call_id in cast(list[str], decision)}
    ) + sum(decision is True for decision in decisions)

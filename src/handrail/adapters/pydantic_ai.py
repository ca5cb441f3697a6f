"""Handrail under a pydantic-ai agent: a toolset that runs every call through an executor."""

import json
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

from pydantic_core import to_json

from handrail.adapters.host_calls import ContextSource, ControlFlow, resolve_context, run_host_call
from handrail.core.values import ToolCall
from handrail.errors import MissingExtraError
from handrail.execute.executor import Executor

try:
    from pydantic_ai import ApprovalRequired, CallDeferred, ModelRetry, RunContext, ToolFailed, ToolReturn
    from pydantic_ai.messages import ModelRequest, ToolReturnPart, UserPromptPart
    from pydantic_ai.tools import AgentDepsT
    from pydantic_ai.toolsets import ToolsetTool, WrapperToolset
except ImportError as error:  # pragma: no cover
    raise MissingExtraError("pydantic-ai", extra="pydantic-ai") from error

__all__ = ["HandrailToolset"]

_CONTROL = ControlFlow(failures=(ModelRetry, ToolFailed), pauses=(ApprovalRequired, CallDeferred))


@dataclass
class HandrailToolset(WrapperToolset[AgentDepsT]):
    """Runs the tools of another toolset under an executor.

    Use it as `Agent(toolsets=[HandrailToolset(toolset, executor, context=…)], output_type=[str, DeferredToolRequests])`

    A call that somebody has to agree to ends the run with `DeferredToolRequests`; its metadata has the token for
    `executor.approvals.approve(…)`. Resume with `DeferredToolResults(approvals={call_id: True})`: that only wakes the
    run, and without an approval in the executor's own store it pauses again. A call whose outcome is not known pauses
    the same way, with `"reason": "outcome_unknown"`, until `executor.resolve(…)`.
    """

    executor: Executor
    _: KW_ONLY
    context: ContextSource[RunContext[AgentDepsT]]
    """The context of every call, or a function that makes it from the run context."""

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[AgentDepsT], tool: ToolsetTool[AgentDepsT]
    ) -> Any:
        """Run one call through the executor, with the arguments that were authorised."""
        arguments_json = to_json(tool_args, fallback=str).decode()
        sent = json.loads(arguments_json)

        async def proceed(arguments: Mapping[str, Any], pauses: int) -> Any:
            # The host's own values, unless somebody changed them: then the host validates the new ones.
            if arguments != sent:
                validated = tool.args_validator.validate_python(dict(arguments), context=ctx.validation_context)
            else:
                validated = tool_args
            return await self.wrapped.call_tool(name, validated, ctx, tool)

        call = ToolCall(id=ctx.tool_call_id or "", name=name, arguments_json=arguments_json)
        host = await run_host_call(
            self.executor,
            call,
            resolve_context(self.context, ctx, wakes=_count_wakes(ctx)),
            proceed,
            schema=tool.tool_def.parameters_json_schema,
            control=_CONTROL,
            record=lambda value: value.return_value if isinstance(value, ToolReturn) else value,
        )
        if host.is_pause:
            raise ApprovalRequired(metadata=host.describe_pause())
        if not host.result.ok:
            raise ToolFailed(host.result.for_model())
        return host.value


def _count_wakes(ctx: RunContext[Any]) -> int:
    """How many runs there were since the last prompt, before this one: each went on after a pause."""
    runs = {ctx.run_id}
    for message in reversed(ctx.messages):
        runs.add(message.run_id)
        kinds = {type(part) for part in message.parts}
        if isinstance(message, ModelRequest) and UserPromptPart in kinds and ToolReturnPart not in kinds:
            break
    return max(len(runs) - 1, int(ctx.tool_call_approved))

"""Handrail under an agent of the OpenAI Agents SDK: its function tools, run through an executor."""

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeAlias, cast

from handrail.adapters import host_calls
from handrail.adapters.host_calls import ContextSource, ControlFlow, resolve_context, run_host_call, to_json_value
from handrail.core.log import log
from handrail.core.values import ToolCall
from handrail.errors import ConfigError, MissingExtraError, ToolError
from handrail.execute.executor import Executor
from handrail.formats.call_parsing import parse_object

try:
    from agents import Agent, FunctionTool, RunContextWrapper, RunState, Tool
    from agents.exceptions import AgentsException
    from agents.items import ToolApprovalItem
    from agents.mcp import MCPServer
    from agents.tool import set_function_tool_failure_error_function
    from agents.tool_context import ToolContext
except ImportError as error:  # pragma: no cover
    raise MissingExtraError("openai-agents", extra="openai-agents") from error

__all__ = ["RunPausedError", "guard_agent", "guard_tools", "record_decision"]

RunContextSource: TypeAlias = ContextSource[RunContextWrapper[Any]]
_CONTROL = ControlFlow()


class RunPausedError(AgentsException):
    """The run cannot go on: a call was woken without an approval in the executor's store, or its outcome is in doubt.

    Nothing was told to the model. Decide or resolve, and run again from the `RunState` that you saved.
    """

    def __init__(self, pause: dict[str, Any]) -> None:
        todo = "Resolve it with executor.resolve(…)" if "token" not in pause else "Approve or deny it by its token"
        super().__init__(f"{pause['message']} {todo}, and run again from the RunState that you saved.")
        self.pause = pause
        """The reason, the tool, the id of the call, and the token if somebody has to approve it."""


def guard_tools(tools: Iterable[Tool], executor: Executor, *, context: RunContextSource) -> list[Tool]:
    """Run function tools under an executor: `Agent(tools=guard_tools([…], executor, context=…))`.

    A call that somebody has to agree to is one of the run's `interruptions`; its question is one of
    `executor.approvals.pending(…)`. `state.approve(…)` only wakes the run: without an approval in the executor's own
    store it ends with `RunPausedError`, and so does a call whose outcome is not known. Agents as tools are left as they
    are: guard their own tools. Tools of `mcp_servers` are guarded by `guard_agent`.
    """
    return [_guard_tool(tool, executor, context) for tool in tools]


def guard_agent(agent: Agent[Any], executor: Executor, *, context: RunContextSource) -> Agent[Any]:
    """A copy of an agent whose function tools and MCP servers run under an executor: `Runner.run(guard_agent(…), …)`.

    What cannot be guarded, such as a tool that OpenAI runs, stays as it is, and is logged. Guard the agents that it
    hands over to, too.
    """
    if type(agent) is not Agent:
        raise ConfigError(f"agent must be an Agent, got {type(agent).__name__}: guard its tools with guard_tools(…).")
    tools: list[Tool] = []
    for tool in agent.tools:
        if isinstance(tool, FunctionTool):
            tools.append(_guard_tool(tool, executor, context))
        else:
            log.warning("%s of the agent %r runs elsewhere, without Handrail", type(tool).__name__, agent.name)
            tools.append(tool)
    values: dict[str, Any] = {field.name: getattr(agent, field.name) for field in fields(agent) if field.init}
    values |= {"tools": tools, "mcp_servers": [_WatchedServer(server) for server in agent.mcp_servers]}
    return _GuardedAgent(**values, guard=lambda tool: _guard_tool(tool, executor, context))


@dataclass
class _GuardedAgent(Agent[Any]):
    """An agent that guards the tools of its MCP servers when they are listed, also in a clone of it."""

    guard: Callable[[Tool], Tool] | None = None

    async def get_mcp_tools(self, run_context: RunContextWrapper[Any]) -> list[Tool]:
        assert self.guard is not None
        return [self.guard(tool) for tool in await super().get_mcp_tools(run_context)]


_MCP_RESULTS: ContextVar[list[Any] | None] = ContextVar("handrail_mcp_results", default=None)
"""Receives what an MCP server answered to the call that is running: the SDK makes a text of it, also of an error."""


class _WatchedServer:
    """An MCP server whose results are also given to the call that is running."""

    def __init__(self, server: MCPServer) -> None:
        self._server = server

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    async def call_tool(self, *args: Any, **options: Any) -> Any:
        result = await self._server.call_tool(*args, **options)
        if (results := _MCP_RESULTS.get()) is not None:
            results.append(result)
        return result


async def record_decision(
    executor: Executor,
    state: RunState[Any],
    item: ToolApprovalItem,
    *,
    session_id: str,
    tenant_id: str | None = None,
    by: Literal["customer", "operator"],
    who: str,
    approve: bool,
    reason: str = "",
    arguments: Mapping[str, Any] | None = None,
) -> None:
    """Record a person's decision about one interruption in the executor's own store, and in the state of the run.

    `session_id` and `tenant_id` are those of the `ToolContext`. `arguments` run instead of the model's. Then run again
    from the state. An item shows what the model sent: where a hook of the executor made other arguments of it,
    approving it without `arguments` raises `ApprovalError`.
    """
    raw: Any = item.raw_item
    call_id = str((cast(Any, raw).get("call_id") if isinstance(raw, dict) else getattr(raw, "call_id", None)) or "")
    await host_calls.record_decision(
        executor,
        call_id,
        session_id=session_id,
        tenant_id=... if tenant_id is None else tenant_id,
        by=by,
        who=who,
        is_approved=approve,
        reason=reason,
        arguments=arguments,
        shown=parse_object(item.arguments or ""),
    )
    if approve:
        state.approve(item)
    else:
        state.reject(item, rejection_message=reason or None)


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
        context = resolve_context(source, run, turn=_count_turns(run), wakes=_count_wakes(run))
        if await executor.request_approval(call, context, schema=schema) is not None:
            return True
        if callable(needs_own_approval):
            return await needs_own_approval(run, arguments, call_id)
        return needs_own_approval

    async def invoke(run: ToolContext[Any], arguments_json: str) -> Any:
        async def proceed(arguments: Mapping[str, Any], pauses: int) -> Any:
            results: list[Any] = []
            reset = _MCP_RESULTS.set(results)
            try:
                async with asyncio.timeout(tool.timeout_seconds):
                    value: Any = await inner.on_invoke_tool(run, json.dumps(arguments))
            finally:
                _MCP_RESULTS.reset(reset)
            if any(getattr(result, "isError", False) or getattr(result, "is_error", False) for result in results):
                raise ToolError(json.dumps(to_json_value(value)))  # The server says that nothing was done.
            return value

        host = await run_host_call(
            executor,
            ToolCall(id=run.tool_call_id, name=tool.name, arguments_json=arguments_json),
            resolve_context(source, run, turn=_count_turns(run), wakes=_count_wakes(run)),
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


def _count_turns(run: RunContextWrapper[Any]) -> int:
    """How many messages of the person the input of the run has."""
    return sum(cast(Any, item).get("role") == "user" for item in run.turn_input)


def _count_wakes(run: RunContextWrapper[Any]) -> int:
    """How many calls of this run a person has let go on."""
    records = cast(dict[Any, Any], getattr(run, "_approvals", {})).values()
    decisions: list[Any] = [getattr(record, "approved", False) for record in records]
    return len(
        {call_id for decision in decisions if isinstance(decision, list) for call_id in cast(list[str], decision)}
    ) + sum(decision is True for decision in decisions)

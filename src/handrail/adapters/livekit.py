"""Handrail under a LiveKit agent: its function tools, run through an executor."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable, Mapping
from typing import Any, cast

from handrail.adapters.host_calls import ContextSource, ControlFlow, resolve_context, run_host_call
from handrail.core.log import log
from handrail.core.values import ToolCall
from handrail.errors import ConfigError, MissingExtraError
from handrail.execute.executor import Executor
from handrail.formats.definitions import Diagnostic

try:
    from livekit.agents import Agent, RunContext
    from livekit.agents.llm import FunctionTool, RawFunctionTool, StopResponse, ToolError, function_tool, utils
except ImportError as error:  # pragma: no cover
    raise MissingExtraError("livekit-agents", extra="livekit") from error

__all__ = ["guard_agent", "guard_tools"]

_CONTROL = ControlFlow(failures=(ToolError,))
_utils: Any = utils  # It is not typed.
_TASK_INFO = "__livekit_agents_activity_task"
"""Where LiveKit keeps what a task is for."""
_SILENT = object()
"""The tool did what it should, and the agent says nothing about it."""


def guard_tools(tools: Iterable[Any], executor: Executor, *, context: ContextSource[RunContext[Any]]) -> list[Any]:
    """Run function tools under an executor: `Agent(tools=guard_tools([…], executor, context=…))`.

    A voice agent cannot pause. A call that somebody has to agree to, or whose outcome is not known, is a failed result
    that says so; after `executor.approvals.approve(…)` the model calls again, and the call runs. Count the turns of the
    conversation in `context`: a customer's approval counts from a later one on.
    """
    return [_guard_tool(tool, executor, context) for tool in tools]


async def guard_agent(
    agent: Agent, executor: Executor, *, context: ContextSource[RunContext[Any]]
) -> tuple[Diagnostic, ...]:
    """Run every function tool of an agent under an executor: those of `tools=` and its `@function_tool` methods.

    Use it as `await guard_agent(agent, executor, context=…)` before the session starts. What cannot be guarded, such as
    a toolset or a tool that the provider runs, stays as it is, and is returned and logged. A call whose arguments are
    not valid JSON is refused: LiveKit repairs them before a tool sees them, and they may have been cut off.
    """
    guarded: list[Any] = []
    cut: set[str] = set()
    agent.llm_node = _find_cut_calls(agent.llm_node, cut)
    outside: list[Diagnostic] = []
    for tool in agent.tools:
        if isinstance(tool, FunctionTool | RawFunctionTool):
            guarded.append(_guard_tool(tool, executor, context, cut))
        else:
            text = f"{type(tool).__name__} is not a function tool: it runs without Handrail"
            outside.append(Diagnostic(tool=str(tool.id), text=text))
            log.warning("%s: %s", tool.id, text)
            guarded.append(tool)
    await agent.update_tools(guarded)
    return tuple(outside)


def _find_cut_calls(llm_node: Callable[..., Any], cut: set[str]) -> Callable[..., Any]:
    """The node that asks the model, which also notes the ids of the calls whose arguments are not valid JSON."""

    async def note_cut_calls(*args: Any) -> AsyncGenerator[Any]:
        response = llm_node(*args)
        if isinstance(response, Awaitable):
            response = await cast(Awaitable[Any], response)
        if isinstance(response, str):
            yield response
        if not isinstance(response, AsyncIterable):
            return
        try:
            async for chunk in cast(AsyncIterable[Any], response):
                for call in getattr(getattr(chunk, "delta", None), "tool_calls", None) or ():
                    if not _is_json(call.arguments or "{}"):
                        cut.add(call.call_id)
                yield chunk
        finally:
            if (close := getattr(cast(Any, response), "aclose", None)) is not None:
                await close()

    return note_cut_calls


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _guard_tool(
    tool: Any, executor: Executor, source: ContextSource[RunContext[Any]], cut: set[str] | None = None
) -> Any:
    if isinstance(tool, RawFunctionTool):
        described: dict[str, Any] = {**tool.info.raw_schema}
    elif isinstance(tool, FunctionTool):
        described = _utils.build_legacy_openai_schema(tool)["function"]
    else:
        raise ConfigError(f"{type(tool).__name__} is not a function tool and cannot be guarded.")
    name, schema = described["name"], described["parameters"]

    async def run(raw_arguments: dict[str, object], context: RunContext[Any]) -> Any:
        task_info = getattr(asyncio.current_task(), _TASK_INFO, None)

        async def proceed(arguments: Mapping[str, Any], pauses: int) -> Any:
            if task_info is not None:  # A tool that awaits an AgentTask must run in a task that LiveKit knows.
                setattr(asyncio.current_task(), _TASK_INFO, task_info)
            positional, named = _utils.prepare_function_arguments(
                fnc=tool, json_arguments=dict(arguments), call_ctx=context
            )
            try:
                return await cast(Any, tool)(*positional, **named)
            except StopResponse:
                return _SILENT

        call_id, sent = context.function_call.call_id, json.dumps(raw_arguments)
        if cut and call_id in cut:
            cut.discard(call_id)
            sent = sent[:-1]  # Not what LiveKit made of it: the executor refuses it as it was, cut off.
        host = await run_host_call(
            executor,
            ToolCall(id=call_id, name=name, arguments_json=sent),
            resolve_context(source, context, turn=_count_turns(context)),
            proceed,
            schema=schema,
            control=_CONTROL,
            record=_get_output,
        )
        if not host.result.ok:
            raise ToolError(host.result.for_model())
        if host.value is _SILENT:
            raise StopResponse
        return host.value

    # Handrail recognises a repeated call itself, whatever the tool says about duplicates.
    return function_tool(run, raw_schema=described, flags=tool.info.flags)


def _count_turns(context: RunContext[Any]) -> int:
    """How many messages of the person the session has."""
    return sum(getattr(item, "role", None) == "user" for item in context.session.history.items)


def _get_output(value: Any) -> Any:
    """What is recorded of a value: a hand-over to another agent cannot be."""
    is_plain = isinstance(cast(object, value), str | int | float | dict | list | None)
    return value if is_plain else "Done."

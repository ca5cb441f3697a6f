"""`run_tool`: run one tool in a unit test, through the real executor, with a policy that allows it."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from handrail.authorize.policy import Policy
from handrail.core.context import ToolContext
from handrail.core.text import faithful_json
from handrail.core.values import Decision, ToolCall, ToolResult
from handrail.define.build import as_tool
from handrail.errors import ConfigError
from handrail.execute.executor import Executor

ALLOWED: Final = Decision(action="allow", rule="test", source="handrail.testing", reason="allowed by the test")
"""The decision about every call of a test."""


def run_tool(
    tool: object,
    arguments: Mapping[str, Any] | str | None = None,
    /,
    *,
    context: ToolContext[Any] | None = None,
    deps: Any = None,
    **keywords: Any,
) -> ToolResult:
    """Run one tool once and return its result: `run_tool(pay, amount=5).output`.

    Pass the arguments as keywords, as a mapping, or as JSON text. The default context is turn 1 of the session `test`
    with the customer `customer`.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise ConfigError("run_tool() cannot be used in a running event loop: use `await run_tool_async(…)`.")
    # With a factory the runner does not replace the current event loop of the thread, which is the test's.
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        return runner.run(run_tool_async(tool, arguments, context=context, deps=deps, **keywords))


async def run_tool_async(
    tool: object,
    arguments: Mapping[str, Any] | str | None = None,
    /,
    *,
    context: ToolContext[Any] | None = None,
    deps: Any = None,
    **keywords: Any,
) -> ToolResult:
    """`run_tool` for tests that are async."""
    built = as_tool(tool)
    tool_context = _build_context(context, deps)
    call = ToolCall(id="call_1", name=built.name, arguments_json=_encode_arguments(built.name, arguments, keywords))
    async with Executor([built], policy=Policy(default=ALLOWED)) as executor:
        return await executor.run(call, tool_context)


def _build_context(context: ToolContext[Any] | None, deps: Any) -> ToolContext[Any]:
    if context is None:
        return ToolContext(session_id="test", customer_id="customer", turn=1, deps=deps)
    if deps is not None:
        raise ConfigError("pass either deps or a context that has deps, not both.")
    return context


def _encode_arguments(name: str, arguments: Mapping[str, Any] | str | None, keywords: Mapping[str, Any]) -> str:
    if arguments is not None and keywords:
        raise ConfigError(f"pass the arguments of {name!r} either as keywords or as one mapping or text, not both.")
    if isinstance(arguments, str):
        return arguments
    values = dict(keywords if arguments is None else arguments)
    try:
        return faithful_json(values)
    except ValueError as error:
        raise ConfigError(f"the arguments of {name!r} must be JSON values: {error}") from error

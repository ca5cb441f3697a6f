"""One tool in one line, for unit tests: through the real executor, with a policy that allows it."""

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

ALLOWED: Final = Decision(action="allow", rule="test", source="handrail.testing", reason="a test is the authority")
"""What a test decides about a call."""


def run_tool(
    tool: object,
    arguments: Mapping[str, Any] | str | None = None,
    /,
    *,
    context: ToolContext[Any] | None = None,
    deps: Any = None,
    **keywords: Any,
) -> ToolResult:
    """Run one tool once, and return its result: `run_tool(pay, amount=5).output`.

    The arguments are keywords, a mapping, or the JSON text of a model. Unless a context is given, it is the first turn
    of the customer `customer` in the session `test`.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise ConfigError("This test is async already: `await run_tool_async(…)` instead of `run_tool(…)`.")
    # With a factory the runner leaves the thread's current loop alone, which belongs to the test.
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
    one = as_tool(tool)
    place = _context(context, deps)
    call = ToolCall(id="call_1", name=one.name, arguments_json=_arguments_json(one.name, arguments, keywords))
    async with Executor([one], policy=Policy(default=ALLOWED)) as executor:
        return await executor.run(call, place)


def _context(context: ToolContext[Any] | None, deps: Any) -> ToolContext[Any]:
    if context is None:
        return ToolContext(session_id="test", customer_id="customer", turn=1, deps=deps)
    if deps is not None:
        raise ConfigError("Give deps=…, or a context that has them, not both.")
    return context


def _arguments_json(name: str, arguments: Mapping[str, Any] | str | None, keywords: Mapping[str, Any]) -> str:
    if arguments is not None and keywords:
        raise ConfigError(f"Give the arguments of `{name}` as keywords, or as one mapping or text, not both.")
    if isinstance(arguments, str):
        return arguments
    given = dict(keywords if arguments is None else arguments)
    try:
        return faithful_json(given)
    except ValueError as error:
        raise ConfigError(f"The arguments of `{name}` cannot be written as JSON: {error}") from error

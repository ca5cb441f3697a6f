"""Hooks: code of the host that may change a call before it is validated, and refuse it after it was authorised."""

import inspect
from collections.abc import Sequence
from typing import Any, Protocol

from handrail.core.context import ToolContext
from handrail.core.log import log
from handrail.core.tool import Tool
from handrail.core.values import Decision, ToolCall
from handrail.errors import ToolError, must_propagate


class Hook(Protocol):
    """Either method may be left out, and may be a coroutine function. One that raises refuses the call."""

    def before(self, call: ToolCall, tool: Tool[..., Any], context: ToolContext[Any]) -> ToolCall | None:
        """Return the call with other arguments, or None to leave it as it is."""
        ...

    def authorised(self, call: ToolCall, tool: Tool[..., Any], decision: Decision, context: ToolContext[Any]) -> None:
        """Look at a call that may run; raise to refuse it."""
        ...


class HookRefusal(Exception):
    """A hook refused the call; the text is for the model."""


HOOK_FAILED = "A hook failed, and the call was refused. Nothing was done."


async def apply_before(
    hooks: Sequence[Any], call: ToolCall, tool: Tool[..., Any], context: ToolContext[Any]
) -> ToolCall:
    """The call after every `before` hook; raises `HookRefusal`."""
    for hook in hooks:
        before = getattr(hook, "before", None)
        if before is None:
            continue
        changed = await _call_hook(hook, before, call, tool, context)
        if changed is None:
            continue
        if not isinstance(changed, ToolCall) or (changed.id, changed.name) != (call.id, call.name):
            log.error("hook %s returned something else than the call with other arguments", type(hook).__name__)
            raise HookRefusal(HOOK_FAILED)
        call = changed
    return call


async def check_authorised(
    hooks: Sequence[Any], call: ToolCall, tool: Tool[..., Any], decision: Decision, context: ToolContext[Any]
) -> None:
    """Show every `authorised` hook a call that may run; raises `HookRefusal`."""
    for hook in hooks:
        authorised = getattr(hook, "authorised", None)
        if authorised is not None:
            await _call_hook(hook, authorised, call, tool, decision, context)


async def _call_hook(hook: Any, method: Any, *arguments: Any) -> Any:
    try:
        result = method(*arguments)
        return await result if inspect.isawaitable(result) else result
    except ToolError as error:
        raise HookRefusal(error.message) from error
    except BaseException as error:
        if must_propagate(error):
            raise
        log.error("hook %s failed", type(hook).__name__, exc_info=error)
        raise HookRefusal(HOOK_FAILED) from error

"""Hooks: may change a call before it is validated, and refuse it after it was authorised."""

import inspect
from collections.abc import Sequence
from typing import Any, Protocol

from handrail.core.context import ToolContext
from handrail.core.log import log
from handrail.core.passing import must_pass
from handrail.core.tool import Tool
from handrail.core.values import Decision, ToolCall
from handrail.errors import ToolError


class Hook(Protocol):
    """Either method may be left out, and may be a coroutine. One that raises refuses the call."""

    def before(self, call: ToolCall, tool: Tool[..., Any], context: ToolContext[Any]) -> ToolCall | None:
        """Give back a call with other arguments, or None to leave it."""
        ...

    def authorised(self, call: ToolCall, tool: Tool[..., Any], decision: Decision, context: ToolContext[Any]) -> None:
        """Look at a call that may run; raise to refuse it."""
        ...


class Refused(Exception):
    """A hook said no; the text is for the model."""


FAILED = "A hook failed, and the call was refused. Nothing was done."


async def change(hooks: Sequence[Any], call: ToolCall, tool: Tool[..., Any], context: ToolContext[Any]) -> ToolCall:
    """The call after every hook that wanted to change its arguments."""
    for hook in hooks:
        before = getattr(hook, "before", None)
        if before is None:
            continue
        changed = await _asked(hook, before, call, tool, context)
        if changed is None:
            continue
        if not isinstance(changed, ToolCall) or (changed.id, changed.name) != (call.id, call.name):
            log.error("hook %s gave back something else than the call with other arguments", _name(hook))
            raise Refused(FAILED)
        call = changed
    return call


async def look(
    hooks: Sequence[Any], call: ToolCall, tool: Tool[..., Any], decision: Decision, context: ToolContext[Any]
) -> None:
    """Show every hook a call that may run."""
    for hook in hooks:
        authorised = getattr(hook, "authorised", None)
        if authorised is not None:
            await _asked(hook, authorised, call, tool, decision, context)


async def _asked(hook: Any, method: Any, *arguments: Any) -> Any:
    try:
        answer = method(*arguments)
        return await answer if inspect.isawaitable(answer) else answer
    except ToolError as error:
        raise Refused(error.message) from error
    except BaseException as error:
        if must_pass(error):
            raise
        log.error("hook %s failed", _name(hook), exc_info=error)
        raise Refused(FAILED) from error


def _name(hook: Any) -> str:
    return type(hook).__name__

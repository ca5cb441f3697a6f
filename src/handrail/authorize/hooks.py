"""Hooks: code of the host that may change a call before it is validated, and refuse it after it was authorised."""

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from handrail.core.blocking_code import CallbackRunner
from handrail.core.context import ToolContext
from handrail.core.lazy_loading import LazyModule
from handrail.core.log import log
from handrail.core.tool import Tool
from handrail.core.values import Decision, ToolCall
from handrail.errors import ConfigError, ToolError, must_propagate

if TYPE_CHECKING:
    import difflib
else:
    difflib = LazyModule("difflib")


class Hook(Protocol):
    """Either method may be left out, and may be a coroutine function. One that raises refuses the call.

    A sync method runs on the event loop, unless it is marked with `@blocking of handrail.authorize`.
    """

    def before(self, call: ToolCall, tool: Tool[..., Any], context: ToolContext[Any]) -> ToolCall | None:
        """Return the call with other arguments, or None to leave it as it is."""
        ...

    def authorised(self, call: ToolCall, tool: Tool[..., Any], decision: Decision, context: ToolContext[Any]) -> None:
        """Look at a call that may run; raise to refuse it."""
        ...


_PARAMETERS: Final = {"before": ("call", "tool", "context"), "authorised": ("call", "tool", "decision", "context")}
"""The methods of a hook, and what each is called with."""


def check_hooks(hooks: Sequence[object]) -> None:
    """Raise `ConfigError` for a hook that would never be called, or not as it expects: it would refuse nothing."""
    for hook in hooks:
        name = hook.__name__ if isinstance(hook, type) else type(hook).__name__
        if isinstance(hook, type):
            raise ConfigError(f"hooks must be objects; give {name}(), not the class.")
        public = [member for member in dir(hook) if not member.startswith("_") and member not in _PARAMETERS]
        for member in public:
            near = difflib.get_close_matches(member.lower(), _PARAMETERS, n=1, cutoff=0.75)
            if near and callable(getattr(hook, member, None)):
                raise ConfigError(f"the hook {name} has {member!r}, which is never called; did you mean {near[0]!r}?")
        methods = [method for method in _PARAMETERS if getattr(hook, method, None) is not None]
        if not methods:
            listed = f"; it has: {', '.join(public[:10])}" if public else ""
            raise ConfigError(f"the hook {name} has neither 'before' nor 'authorised', and is never called{listed}.")
        for method in methods:
            _check_parameters(f"{name}.{method}", getattr(hook, method), _PARAMETERS[method])


def _check_parameters(name: str, method: Any, parameters: tuple[str, ...]) -> None:
    try:
        signature = inspect.signature(method)
        signature.bind(*parameters)
    except TypeError as error:
        raise ConfigError(f"the hook's method {name} must take ({', '.join(parameters)}): {error}.") from error
    except ValueError:  # A function in C that does not say.
        return


class HookRefusal(Exception):
    """A hook refused the call; the text is for the model."""


HOOK_REFUSED = "A hook refused the call. Nothing was done."
HOOK_FAILED = "A hook failed, and the call was refused. Nothing was done."


async def apply_before(
    hooks: Sequence[Any], call: ToolCall, tool: Tool[..., Any], context: ToolContext[Any], callbacks: CallbackRunner
) -> ToolCall:
    """The call after every `before` hook; raises `HookRefusal`."""
    for hook in hooks:
        before = getattr(hook, "before", None)
        if before is None:
            continue
        changed = await _call_hook(callbacks, hook, before, call, tool, context)
        if changed is None:
            continue
        is_call = isinstance(changed, ToolCall) and type(changed.arguments_json) is str
        if not is_call or (changed.id, changed.name) != (call.id, call.name):
            log.error("hook %s returned something else than the call with other arguments", type(hook).__name__)
            raise HookRefusal(HOOK_FAILED)
        call = changed
    return call


async def check_authorised(
    hooks: Sequence[Any],
    call: ToolCall,
    tool: Tool[..., Any],
    decision: Decision,
    context: ToolContext[Any],
    callbacks: CallbackRunner,
) -> None:
    """Show every `authorised` hook a call that may run; raises `HookRefusal`."""
    for hook in hooks:
        authorised = getattr(hook, "authorised", None)
        if authorised is None:
            continue
        answer: object = await _call_hook(callbacks, hook, authorised, call, tool, decision, context)
        # As for a permission check, only None and True pass: False, or "deny", is a refusal in somebody's terms.
        if answer is not None and answer is not True:
            log.error("hook %s returned neither None nor True, and the call is refused", type(hook).__name__)
            raise HookRefusal(HOOK_REFUSED)


async def _call_hook(callbacks: CallbackRunner, hook: Any, method: Any, *arguments: Any) -> Any:
    try:
        return await callbacks.call(method, *arguments, owner=f"hook {type(hook).__name__}")
    except ToolError as error:
        raise HookRefusal(error.message) from error
    except BaseException as error:
        if must_propagate(error):
            raise
        log.error("hook %s failed", type(hook).__name__, exc_info=error)
        raise HookRefusal(HOOK_FAILED) from error

"""Hooks and checks: code of the host that may change a call before it is validated, or refuse it; how it is called."""

import inspect
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from msgspec import structs

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

F = TypeVar("F", bound=Callable[..., Any])

_MARK: Final = "__handrail_blocking__"
_SLOW: Final = 0.1
"""Seconds on the event loop after which a sync function is reported, once."""
_MAX_REPORTED: Final = 1_000


def blocking(function: F) -> F:
    """Mark a sync permission check, or method of a hook, that blocks: it runs in a thread, within `Timeouts.overhead`.

    So does a function of a guided agent, such as a retriever, within ten seconds. Unmarked ones run on the event loop,
    and nothing can interrupt them there.
    """
    if inspect.iscoroutinefunction(function):
        raise ConfigError(f"{_name(function)} is async: it does not need @blocking.")
    setattr(function, _MARK, True)
    return function


class CallbackRunner:
    """Calls functions of the host, which may be sync or async."""

    def __init__(self, run_in_thread: Callable[[Callable[[], Any], str], Awaitable[Any]]) -> None:
        self._run_in_thread = run_in_thread
        self._reported: set[str] = set()

    async def call(self, function: Callable[..., Any], *arguments: Any, owner: str) -> Any:
        """Call a function, and await what it returns if that has to be awaited; `owner` names it in the log."""
        if getattr(function, _MARK, False):
            found = await self._run_in_thread(lambda: function(*arguments), owner)
        else:
            started = perf_counter()
            found = function(*arguments)
            if perf_counter() - started > _SLOW:
                self._report(owner, perf_counter() - started)
        return await found if inspect.isawaitable(found) else found

    def _report(self, owner: str, seconds: float) -> None:
        if owner not in self._reported and len(self._reported) < _MAX_REPORTED:
            self._reported.add(owner)
            log.warning(
                "%s blocked the event loop for %.1f s: make it async, or mark it with @blocking of handrail.authorize",
                owner,
                seconds,
            )


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", type(function).__name__)


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
        # Nothing else of it: a call that was built anew lacks who has to agree, and the provider's own id.
        asks = changed.ask_operator or call.ask_operator
        call = structs.replace(call, arguments_json=changed.arguments_json, ask_operator=asks)
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

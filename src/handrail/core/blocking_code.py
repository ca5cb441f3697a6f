"""Calls checks and hooks of the host: on the event loop, or in a thread if they are marked as blocking."""

import inspect
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any, Final, TypeVar

from handrail.core.log import log
from handrail.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])

_MARK: Final = "__handrail_blocking__"
_SLOW: Final = 0.1
"""Seconds on the event loop after which a sync function is reported, once."""
_MAX_REPORTED: Final = 1_000


def blocking(function: F) -> F:
    """Mark a sync permission check, or method of a hook, that blocks: it runs in a thread, within `Timeouts.overhead`.

    Unmarked ones run on the event loop, and nothing can interrupt them there.
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

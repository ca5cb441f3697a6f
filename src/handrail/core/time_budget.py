"""A limit for the time that one call may spend in code that could hang: checks, hooks, `verify` and stores."""

import asyncio
import time
from collections.abc import Awaitable
from typing import Any, TypeVar

from msgspec import Struct

T = TypeVar("T")


class TimeBudget(Struct):
    """The seconds that are left for everything but the handler. Only the time spent inside `run` counts."""

    _left: float

    async def run(self, awaitable: Awaitable[T]) -> T:
        """Await something within what is left; raise `TimeoutError` when that is used up.

        It runs in a task of its own, so that one that ignores its cancellation is left behind.
        """
        started = time.monotonic()
        task = asyncio.ensure_future(_capture(awaitable))
        try:
            done, _ = await asyncio.wait({task}, timeout=max(self._left, 0.0))
        except asyncio.CancelledError:
            abandon(task)
            raise
        finally:
            self._left -= time.monotonic() - started
        if not done:
            abandon(task)
            raise TimeoutError
        value, error = task.result()
        if error is not None:
            raise error
        return value


async def _capture(awaitable: Awaitable[T]) -> "tuple[T, None] | tuple[Any, BaseException]":
    """Hand an exception over as a value: a task that raises SystemExit would end the event loop."""
    try:
        return await awaitable, None
    except BaseException as error:  # noqa: BLE001  # raised again by whoever waits
        return None, error


def abandon(task: "asyncio.Future[Any]") -> None:
    """Cancel a task without waiting for it."""
    _abandoned.add(task)
    task.add_done_callback(_forget)
    task.cancel()


def _forget(task: "asyncio.Future[Any]") -> None:
    _abandoned.discard(task)
    if not task.cancelled():
        task.exception()  # asyncio would warn about one that nobody looked at.


_abandoned: "set[asyncio.Future[Any]]" = set()
"""asyncio keeps weak references only: a task that nobody holds could vanish while it runs."""

"""A time limit for everything in a call except its handler: checks, hooks, `verify` and stores."""

import asyncio
import time
from collections.abc import Awaitable
from typing import Any, TypeVar

from msgspec import Struct

T = TypeVar("T")


class TimeBudget(Struct):
    """The time left for everything except the handler. Only the time inside `run` counts."""

    _left: float

    async def run(self, awaitable: Awaitable[T]) -> T:
        """Await something within the time left; raise `TimeoutError` when it is used up.

        It runs in its own task, so that one that ignores its cancellation can be abandoned.
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
    """Return an exception as a value: a task that raises SystemExit would end the event loop."""
    try:
        return await awaitable, None
    except BaseException as error:  # noqa: BLE001  # raised again by `run`
        return None, error


def abandon(task: "asyncio.Future[Any]") -> None:
    """Cancel a task without waiting for it."""
    _abandoned.add(task)
    task.add_done_callback(_forget)
    task.cancel()


def _forget(task: "asyncio.Future[Any]") -> None:
    _abandoned.discard(task)
    if not task.cancelled():
        task.exception()  # Retrieved, or asyncio would log a warning.


_abandoned: "set[asyncio.Future[Any]]" = set()
"""References to abandoned tasks: asyncio keeps only weak ones, and an unreferenced task can be collected."""

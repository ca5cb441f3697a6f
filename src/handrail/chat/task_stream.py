"""Runs a coroutine as a task and yields the events that it makes, while they happen."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

from handrail.core.events import Event


class _EndOfQueue:
    """Marks the end of a queue."""


async def stream_task(
    work: Coroutine[Any, Any, Any],
    queue: asyncio.Queue[Any],
    *,
    tasks: "set[asyncio.Future[Any]] | None" = None,
    is_interrupted: Callable[[], bool] = lambda: False,
) -> AsyncGenerator[Any]:
    """Run a coroutine as a task; yield what it puts into the queue, then its result. Closing this cancels it.

    The task is in `tasks` while it runs. If it was cancelled from there by an interruption, it has no result.
    """
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda _: queue.put_nowait(_EndOfQueue))
    tasks = set() if tasks is None else tasks
    tasks.add(task)
    try:
        while (item := await queue.get()) is not _EndOfQueue:
            yield item
        while not queue.empty():  # Events from a worker thread can arrive after the end.
            yield queue.get_nowait()
        if not (is_interrupted() and task.cancelled()) and (result := await task) is not None:
            yield result
    finally:
        tasks.discard(task)
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # Retrieved, or asyncio would warn: the reader has gone.


def build_listener(queue: asyncio.Queue[Any]) -> Callable[[Event], None]:
    """Build a listener that puts events into a queue, from any thread."""
    loop, loop_thread = asyncio.get_running_loop(), threading.get_ident()

    def listen(event: Event) -> None:
        if threading.get_ident() == loop_thread:
            queue.put_nowait(event)
        else:
            loop.call_soon_threadsafe(queue.put_nowait, event)

    return listen

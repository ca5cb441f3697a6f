"""An event loop whose clock jumps over the time in which nothing happens, while real sockets go on working."""

import asyncio
import selectors
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar, cast

T = TypeVar("T")

_GRACE = 0.0005
"""Real seconds in which the kernel may still bring what was just written to a local socket."""
_SPEED = 50.0
"""How much faster than real time the clock may go while other threads are at work."""
_ROUND = 1e-7
"""Every round of the loop takes a little time, so that code which waits for the clock in a circle comes to an end."""


class WarpedLoop(asyncio.SelectorEventLoop):
    """An event loop in which a sleep of an hour takes no time.

    Its clock stands while code runs, and moves to the next timer when nothing is ready. While something runs in an
    executor it goes as fast as real time; while other threads exist, at most 50 times as fast, so that they are not
    timed out. It cannot know what other processes are about to send: keep both ends of a connection in one loop.
    """

    def __init__(self) -> None:
        self._now = 1000.0
        self._in_executor = 0
        self._threads_before = set(threading.enumerate())
        self._executors: set[Any] = set()
        super().__init__(_WarpedSelector(self))

    def time(self) -> float:
        return self._now

    def run_in_executor(self, executor: Executor | None, func: Callable[..., T], *args: Any) -> "asyncio.Future[T]":
        self._in_executor += 1
        future: asyncio.Future[T] = super().run_in_executor(executor, func, *args)
        self._executors.add(executor or cast(Any, self)._default_executor)
        future.add_done_callback(self._leave_executor)
        return future

    def skip(self, seconds: float) -> None:
        """Move the clock on."""
        self._now += seconds

    @property
    def has_executor_work(self) -> bool:
        return self._in_executor > 0

    @property
    def has_other_threads(self) -> bool:
        """Whether threads work that this loop knows nothing about; those of executors are counted by their work."""
        own = set[threading.Thread]().union(*(getattr(executor, "_threads", ()) for executor in self._executors))
        return bool(set(threading.enumerate()) - self._threads_before - own)

    def _leave_executor(self, future: "asyncio.Future[Any]") -> None:
        self._in_executor -= 1


class _WarpedSelector(selectors.DefaultSelector):
    def __init__(self, loop: WarpedLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._loop.skip(_ROUND)
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if self._loop.has_executor_work:
            return self._wait(timeout, speed=1.0)
        if self._loop.has_other_threads:
            return self._wait(timeout, speed=_SPEED)
        if timeout is None:
            return super().select(None)
        # The loop's own pipe is always registered; without another socket nothing can be on its way.
        ready = super().select(_GRACE) if len(self.get_map()) > 1 else []
        if not ready:
            self._loop.skip(timeout)
        return ready

    def _wait(self, timeout: float | None, speed: float) -> list[tuple[selectors.SelectorKey, int]]:
        started = time.monotonic()
        ready = super().select(None if timeout is None else timeout / speed)
        passed = (time.monotonic() - started) * speed
        self._loop.skip(passed if timeout is None else min(passed, timeout))
        return ready


def run_warped(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine like `asyncio.run`, in time that jumps: a scripted call of a minute takes milliseconds."""
    with asyncio.Runner(loop_factory=WarpedLoop) as runner:
        return runner.run(main)

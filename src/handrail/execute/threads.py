"""Worker threads for handlers that block: bounded, and visible when one outlives its call."""

import asyncio
import contextlib
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from typing import Any


class Work:
    """One function on its way through a thread."""

    __slots__ = ("_context", "_function", "abandoned", "future", "loop", "started")

    def __init__(self, function: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> None:
        self._function = function
        self._context = contextvars.copy_context()
        self.loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()
        self.started = False
        self.abandoned = False

    def run(self) -> None:
        """Run in the present thread, and report to the loop that waits."""
        try:
            outcome, failed = self._context.run(self._function), False
        except BaseException as error:  # noqa: BLE001  # it is the waiting call's to judge
            outcome, failed = error, True
        with contextlib.suppress(RuntimeError):  # The loop is closed: nobody waits any more.
            self.loop.call_soon_threadsafe(self._report, outcome, failed)

    def _report(self, outcome: Any, failed: bool) -> None:
        if self.future.done():
            return
        if not failed:
            self.future.set_result(outcome)
        elif isinstance(outcome, StopIteration):  # A future refuses it.
            self.future.set_exception(RuntimeError("the handler raised StopIteration"))
        else:
            self.future.set_exception(outcome)


class Threads:
    """Daemon threads, at most so many. One that never comes back is counted, and does not keep the process alive."""

    def __init__(self, *, most: int = 32) -> None:
        self._most = most
        self._changed = threading.Condition()
        self._queue: deque[Work] = deque()
        self._threads = 0
        self._idle = 0
        self._stranded = 0

    @property
    def stranded(self) -> int:
        """How many threads still run for calls that were given up."""
        return self._stranded

    async def run(self, function: Callable[[], Any], *, on_start: Callable[[], None]) -> Any:
        """Run a blocking function with the context variables of the caller. Cancelled, the thread is left behind."""
        work = Work(function, asyncio.get_running_loop())
        self._submit(work)
        try:
            result = await work.future
        except asyncio.CancelledError:
            self._abandon(work)
            raise
        finally:
            if work.started:
                on_start()
        return result

    def _submit(self, work: Work) -> None:
        with self._changed:
            self._queue.append(work)
            if self._idle >= len(self._queue) or self._threads >= self._most:
                self._changed.notify()
                return
            self._threads += 1
        threading.Thread(target=self._work, name=f"handrail-tool-{self._threads}", daemon=True).start()

    def _abandon(self, work: Work) -> None:
        with self._changed:
            if work.future.done() and not work.future.cancelled():
                return
            if work.started:
                work.abandoned = True
                self._stranded += 1
            else:
                self._queue.remove(work)

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._queue:
                    self._idle += 1
                    self._changed.wait()
                    self._idle -= 1
                work = self._queue.popleft()
                work.started = True
            work.run()
            with self._changed:
                if work.abandoned:
                    self._stranded -= 1

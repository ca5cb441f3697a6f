"""Worker threads for handlers that block: bounded, and visible when one outlives its call."""

import asyncio
import contextlib
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final

OWNER: Final[contextvars.ContextVar[asyncio.AbstractEventLoop | None]] = contextvars.ContextVar(
    "handrail_thread_owner", default=None
)
"""In a worker thread: the loop whose call it runs."""


class Work:
    """One function on its way through a thread."""

    __slots__ = ("_context", "_function", "_on_start", "abandoned", "finished", "future", "loop", "started")

    def __init__(self, function: Callable[[], Any], on_start: Callable[[], None]) -> None:
        self.loop = asyncio.get_running_loop()
        self._function = function
        self._on_start = on_start
        self._context = contextvars.copy_context()
        self._context.run(OWNER.set, self.loop)
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.started = False
        self.abandoned = False
        self.finished = False

    def begin(self) -> None:
        """A thread takes it on: from here on, it may have done something."""
        self.started = True
        self._on_start()

    def run(self) -> tuple[Any, bool]:
        """Run in the present thread: what came of it, and whether that is an exception."""
        try:
            return self._context.run(self._function), False
        except BaseException as error:  # noqa: BLE001  # it is the waiting call's to judge
            return error, True

    def report(self, outcome: Any, failed: bool) -> None:
        """Tell the loop that waits."""
        with contextlib.suppress(RuntimeError):  # The loop is closed: nobody waits any more.
            self.loop.call_soon_threadsafe(self._report, outcome, failed)

    def _report(self, outcome: Any, failed: bool) -> None:
        if self.future.done():
            return
        if not failed:
            self.future.set_result(outcome)
        elif isinstance(outcome, StopIteration | GeneratorExit):  # Both mean something else to whoever waits.
            self.future.set_exception(RuntimeError(f"the handler raised {type(outcome).__name__}"))
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

    def submit(self, function: Callable[[], Any], on_start: Callable[[], None] = lambda: None) -> Work:
        """Give a function to a thread, with the context variables of the caller."""
        work = Work(function, on_start)
        with self._changed:
            self._queue.append(work)
            # Work that comes out of a thread's own work must not wait for that very thread.
            full = self._threads >= self._most and OWNER.get() is None
            if self._idle >= len(self._queue) or full:
                self._changed.notify()
                return work
            self._threads += 1
        try:
            threading.Thread(target=self._work, name="handrail-tool", daemon=True).start()
        except RuntimeError:
            with self._changed:
                self._threads -= 1
                self._queue.remove(work)
            raise
        return work

    async def finish(self, work: Work) -> Any:
        """Wait for submitted work. Cancelled, the thread is left behind."""
        try:
            return await work.future
        except asyncio.CancelledError:
            self._abandon(work)
            raise

    async def run(self, function: Callable[[], Any]) -> Any:
        """Run a blocking function."""
        return await self.finish(self.submit(function))

    def _abandon(self, work: Work) -> None:
        with self._changed:
            if work.finished:
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
                    if self._threads > self._most:
                        self._threads -= 1
                        return
                    self._idle += 1
                    self._changed.wait()
                    self._idle -= 1
                work = self._queue.popleft()
                work.begin()
            outcome, failed = work.run()
            with self._changed:
                work.finished = True
                if work.abandoned:
                    self._stranded -= 1
            work.report(outcome, failed)
            del work, outcome  # A thread that waits keeps nothing alive.

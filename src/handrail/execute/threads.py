"""Worker threads for handlers that block, and the thread whose loop serves callers that have none."""

import asyncio
import atexit
import contextlib
import contextvars
import threading
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from handrail.errors import ConfigError, ThreadsStrandedError

T = TypeVar("T")

_EXIT_TIMEOUT: Final = 5.0
"""Seconds that the end of a program waits for what its synchronous callers have left running."""

OWNER: Final[contextvars.ContextVar[asyncio.AbstractEventLoop | None]] = contextvars.ContextVar(
    "handrail_thread_owner", default=None
)
"""In a worker thread: the loop whose call it runs."""


class ThreadJob:
    """One function that runs in a worker thread."""

    __slots__ = (
        "_context",
        "_function",
        "_on_start",
        "future",
        "is_abandoned",
        "is_finished",
        "is_nested",
        "is_started",
        "loop",
        "on_late_end",
        "owner",
    )

    def __init__(self, function: Callable[[], Any], on_start: Callable[[], None], owner: str) -> None:
        self.owner = owner
        self.on_late_end: Callable[[Any, bool], None] | None = None
        """Called in the loop with the value or the exception of an abandoned job, once its thread has ended."""
        self.loop = asyncio.get_running_loop()
        self._function = function
        self._on_start = on_start
        self.is_nested = OWNER.get() is not None
        """Whether a worker thread submitted it, and may wait for it."""
        self._context = contextvars.copy_context()
        self._context.run(OWNER.set, self.loop)
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.is_started = False
        self.is_abandoned = False
        self.is_finished = False

    def start(self) -> None:
        """A thread took the job: from here on, it may have done something."""
        self.is_started = True
        self._on_start()

    def run(self) -> tuple[Any, bool]:
        """Run in the current thread; returns the value or the exception, and whether it is an exception."""
        try:
            return self._context.run(self._function), False
        except BaseException as error:  # noqa: BLE001  # raised in the call that waits
            return error, True

    def report(self, value: Any, is_error: bool) -> None:
        """Hand the outcome to the loop that waits."""
        with contextlib.suppress(RuntimeError):  # The loop is closed: nobody waits any more.
            self.loop.call_soon_threadsafe(self._resolve, value, is_error)

    def _resolve(self, value: Any, is_error: bool) -> None:
        if self.is_abandoned and self.on_late_end is not None:
            self.on_late_end(value, is_error)
        if self.future.done():
            return
        if not is_error:
            self.future.set_result(value)
        elif isinstance(value, StopIteration | GeneratorExit):  # A future cannot hold them.
            self.future.set_exception(RuntimeError(f"the handler raised {type(value).__name__}"))
        else:
            self.future.set_exception(value)


class WorkerThreads:
    """Daemon threads, at most `max_threads` at work. One that never returns does not keep the process alive.

    A thread whose call was given up is stranded. It no longer counts against `max_threads`, so that a tool that hangs
    does not starve the others, but against its own tool: all threads of a tool, stranded ones included, are at most
    `max_threads`. With `max_stranded` of them, the tool gets no more threads, and its calls that wait for one are
    refused.
    """

    def __init__(self, *, max_threads: int = 32, max_stranded: int = 8) -> None:
        self._max_threads = max_threads
        self._max_stranded = min(max_stranded, max_threads)
        self._stranded_of: Counter[str] = Counter()
        self._running_of: Counter[str] = Counter()
        """The threads that run for each tool, stranded ones included."""
        self._changed = threading.Condition()
        self._queue: deque[ThreadJob] = deque()
        self._threads = 0
        self._idle = 0
        self._stranded = 0

    @property
    def stranded(self) -> int:
        """How many threads still run for calls that were given up."""
        return self._stranded

    def has_room(self, owner: str) -> bool:
        """Whether a tool may use another thread: too few of its earlier ones are stranded."""
        return self._stranded_of[owner] < self._max_stranded

    def submit(
        self, function: Callable[[], Any], on_start: Callable[[], None] = lambda: None, *, owner: str = ""
    ) -> ThreadJob:
        """Queue a function for a thread, with the context variables of the caller."""
        job = ThreadJob(function, on_start, owner)
        with self._changed:
            if not self.has_room(owner):
                raise self._build_error(owner)
            self._queue.append(job)
            # A job that was submitted from a worker thread must not wait for that very thread.
            is_full = self._threads - self._stranded >= self._max_threads and not job.is_nested
            if self._idle >= len(self._queue) or is_full:
                self._changed.notify()
                return job
            self._threads += 1
        try:
            self._start_thread()
        except RuntimeError:
            with self._changed:
                self._queue.remove(job)
            raise
        return job

    def _start_thread(self) -> None:
        """Start a thread that is counted already; it is not any more if the system has none left (`RuntimeError`)."""
        try:
            threading.Thread(target=self._work, name="handrail-tool", daemon=True).start()
        except RuntimeError:
            with self._changed:
                self._threads -= 1
            raise

    async def wait(self, job: ThreadJob) -> Any:
        """Wait for a job. If the wait is cancelled, a thread that runs it is left to itself."""
        try:
            return await job.future
        except asyncio.CancelledError:
            self._abandon(job)
            raise

    async def run(self, function: Callable[[], Any], *, owner: str = "") -> Any:
        """Run a blocking function."""
        return await self.wait(self.submit(function, owner=owner))

    def _abandon(self, job: ThreadJob) -> None:
        with self._changed:
            if job.is_finished:  # Its thread ended before the loop saw that nobody waits: it is late all the same.
                job.is_abandoned = job.is_started
                return
            if job.is_started:
                job.is_abandoned = True
                self._stranded += 1
                self._stranded_of[job.owner] += 1
                if not self.has_room(job.owner):
                    self._refuse_waiting(job.owner)
                if self._queue:  # Its place is free for the next one.
                    self._threads += 1
                    with contextlib.suppress(RuntimeError):  # The next one waits for another thread.
                        self._start_thread()
            else:
                self._queue.remove(job)

    def _refuse_waiting(self, owner: str) -> None:
        """The tool gets no more threads: what waits for one would only strand the next."""
        for job in [job for job in self._queue if job.owner == owner]:
            self._queue.remove(job)
            job.is_finished = True
            job.report(self._build_error(owner), True)

    def _build_error(self, owner: str) -> ThreadsStrandedError:
        return ThreadsStrandedError(f"{self._stranded_of[owner]} threads of {owner!r} never came back")

    def _take_job(self) -> ThreadJob | None:
        """Take the first job whose tool may have another thread; what a worker thread waits for always may."""
        for job in self._queue:
            if job.is_nested or self._running_of[job.owner] < self._max_threads:
                self._queue.remove(job)
                return job
        return None

    def _work(self) -> None:
        while True:
            with self._changed:
                while (job := self._take_job()) is None:
                    if self._threads - self._stranded > self._max_threads:
                        self._threads -= 1
                        return
                    self._idle += 1
                    self._changed.wait()
                    self._idle -= 1
                self._running_of[job.owner] += 1
                job.start()
            value, is_error = job.run()
            with self._changed:
                job.is_finished = True
                self._running_of[job.owner] -= 1
                if job.is_abandoned:
                    self._stranded -= 1
                    self._stranded_of[job.owner] -= 1
            job.report(value, is_error)
            del job, value  # An idle thread keeps nothing alive.


class SyncPortal:
    """Runs coroutines for synchronous callers. Its loop lives as long as the process."""

    def __init__(self, *, current_loop: Callable[[], asyncio.AbstractEventLoop | None]) -> None:
        self._current_loop = current_loop
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end, and return what it returns."""
        if _has_running_loop():
            coroutine.close()
            raise ConfigError("This would block a running event loop: await the async form instead.")
        # A handler in a worker thread uses the loop of its call; any other thread uses the loop that already uses the
        # executor, because an executor serves one loop at a time.
        loop = OWNER.get() or self._current_loop()
        if loop is None or not loop.is_running():
            try:
                loop = self._start_loop()
            except RuntimeError:
                coroutine.close()
                raise
        future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        try:
            return future.result()
        finally:
            future.cancel()  # Only has an effect if the caller was interrupted.

    def _start_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                thread = threading.Thread(target=loop.run_forever, name="handrail-portal", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # The system has none left: the next caller tries again.
                    loop.close()
                    raise
                self._loop = loop
                atexit.register(_end_tasks, loop, thread)
            return self._loop


def _end_tasks(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    """End what a loop still runs, as `asyncio.run` does when a program ends: the audit writes its last rows."""
    if thread.is_alive():  # Not in a process that was forked from the one that started it.
        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(_cancel_tasks(), loop).result(_EXIT_TIMEOUT)


async def _cancel_tasks() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _has_running_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True

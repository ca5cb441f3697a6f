"""Calls a function for each of many values, in their order, in a thread of its own."""

import atexit
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from handrail.core.log import log

T = TypeVar("T")

_BATCH = 100
"""So many values are not kept waiting for the interval to end."""


class BackgroundWriter(Generic[T]):
    """Hands values to `write` in a thread, at most `interval` seconds later; nothing is dropped.

    Whoever puts one value more than `max_waiting` writes them all itself, as if there were no thread. What waits is
    written when the process exits. A forked child begins with nothing: its parent writes what waited.

    Nobody waits longer than `timeout` seconds for a value that the thread is writing: who waits may hold a lock, that
    of a handler of the log, which the thread needs.
    """

    def __init__(
        self, write: Callable[[T], object], *, interval: float = 0.1, max_waiting: int = 1_000, timeout: float = 5.0
    ) -> None:
        self._write = write
        self._interval = interval
        self._max_waiting = max_waiting
        self._timeout = timeout
        self._is_closed = False
        self._reset()
        if hasattr(os, "register_at_fork"):  # Windows has no forks.
            reference = weakref.WeakMethod(self._reset)
            os.register_at_fork(after_in_child=lambda: (reference() or _do_nothing)())

    def __len__(self) -> int:
        """How many values wait."""
        return len(self._waiting)

    def _reset(self) -> None:
        self._waiting: deque[T] = deque()
        self._lock = threading.RLock()  # A handler of the log may emit an event.
        self._has_some = threading.Event()
        self._has_many = threading.Event()
        self._thread: threading.Thread | None = None

    def put(self, value: T) -> None:
        """Have a value written later."""
        self._waiting.append(value)
        if self._is_closed:
            self.flush()
        elif not self._has_some.is_set():
            self._has_some.set()
            if self._thread is None:
                self._start()
        elif len(self._waiting) >= _BATCH:
            self._has_many.set()
            if len(self._waiting) > self._max_waiting:
                self.flush()

    def flush(self, timeout: float | None = None) -> bool:
        """Write, here and now, what waits; False if the thread was still writing after `timeout` seconds."""
        if not self._lock.acquire(timeout=self._timeout if timeout is None else timeout):
            return False
        try:
            self._write_waiting()
        finally:
            self._lock.release()
        return True

    def close(self, timeout: float | None = None) -> bool:
        """Write what waits, as `flush` does, and end the thread; what is put later is written at once."""
        self._is_closed = True
        self._has_some.set()
        self._has_many.set()
        atexit.unregister(self._write_last)
        return self.flush(timeout)

    def _write_waiting(self) -> None:
        for _ in range(len(self._waiting)):
            self._write_next()

    def _write_next(self) -> None:
        if not self._waiting:  # A handler of the log has emitted an event, and that was the one more than may wait.
            return
        value = self._waiting.popleft()
        try:
            self._write(value)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever it raises, the next one is written
            log.error("a record of the log could not be written", exc_info=error)

    def _start(self) -> None:
        with self._lock:
            if self._thread is not None:
                return
            self._thread = threading.Thread(target=self._run, name="handrail:log", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # The interpreter is shutting down.
                self._is_closed = True
                self.flush()
                return
        atexit.register(self._write_last)

    def _run(self) -> None:
        while not self._is_closed:
            self._has_some.wait()
            self._has_many.wait(self._interval)
            self._has_some.clear()
            self._has_many.clear()
            with self._lock:  # However long that takes.
                self._write_waiting()

    def _write_last(self) -> None:
        if not self.close():
            log.error("the process ends with %d records of the log not written", len(self._waiting))


def _do_nothing() -> None: ...

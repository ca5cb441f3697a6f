"""An event loop whose clock jumps over the time in which nothing happens, while real sockets go on working."""

import asyncio
import linecache
import re
import selectors
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any, TypeVar, cast

T = TypeVar("T")

_GRACE = 0.0005
"""Real seconds in which the kernel may still bring what was just written to a local socket."""
_PATIENCE = 10.0
"""Real seconds for which the clock stands for a thread that works; then it goes on, in case that never ends."""
_SPEED = 50.0
"""How much faster than real time the clock goes from then on."""
_ROUND = 1e-7
"""Every round of the loop takes a little time, so that code which waits for the clock in a circle comes to an end."""
_SETTLED = 0.006
"""Real seconds: longer than a thread waits for the interpreter's lock before it asks again."""
_UNKNOWN = "unknown"
"""How often a thread was put to sleep, on a system that does not tell."""
_WAITS = re.compile(r"\b(get|wait|acquire|select|poll|accept|_accept)\(")
"""A line of code in which a thread waits for somebody else: for work, a signal, or a connection."""


class WarpedLoop(asyncio.SelectorEventLoop):
    """An event loop in which a sleep of an hour takes no time.

    Its clock stands while code runs, in this thread or another one, and moves to the next timer when nothing is ready
    and every thread waits. It cannot know what other processes are about to send: keep both ends of a connection in
    one loop.
    """

    def __init__(self) -> None:
        self._now = 1000.0
        self._in_executor = 0
        self._threads_before = set(threading.enumerate())
        self._executors: set[Any] = set()
        self._observers: dict[threading.Thread, _ThreadObserver] = {}
        self._given_up: set[threading.Thread] = set()
        """Threads that have worked for so long that the clock no longer stands for them."""
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

    def find_work(self) -> set[threading.Thread]:
        """The threads that work, as far as that can be told."""
        own = set[threading.Thread]().union(*(getattr(executor, "_threads", ()) for executor in self._executors))
        others = set(threading.enumerate()) - self._threads_before
        if self._in_executor == 0:
            others -= own  # Their pool counts what they do.
        if not others:
            return others
        frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]
        self._observers = {thread: self._observers.get(thread) or _ThreadObserver(thread) for thread in others}
        working = {thread for thread in others if not self._observers[thread].is_waiting(frames.get(thread.ident or 0))}
        if self._in_executor > 0:
            working |= own & others
        self._given_up &= working
        return working - self._given_up

    def give_up(self, threads: set[threading.Thread]) -> None:
        """Let the clock go on although these threads work."""
        self._given_up |= threads

    @property
    def has_given_up(self) -> bool:
        """Whether threads work that the clock does not stand for."""
        return bool(self._given_up)

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
        ready = self._stand()
        if ready:
            return ready
        if self._loop.has_given_up:
            return self._run(timeout)
        if timeout is None:
            return super().select(None)
        # The loop's own pipe is always registered; without another socket nothing can be on its way.
        ready = super().select(_GRACE) if len(self.get_map()) > 1 else []
        if not ready:
            self._loop.skip(timeout)
        return ready

    def _stand(self) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait in real time, while the clock stands, until something is ready or no thread works any more."""
        started = monotonic()
        while working := self._loop.find_work():
            if ready := super().select(_GRACE):
                return ready
            if monotonic() - started > _PATIENCE:
                self._loop.give_up(working)
        # Who has just stopped working may have left something.
        return super().select(0)

    def _run(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait in real time, while the clock goes."""
        started = monotonic()
        ready = super().select(None if timeout is None else timeout / _SPEED)
        passed = (monotonic() - started) * _SPEED
        self._loop.skip(passed if timeout is None else min(passed, timeout))
        return ready


class _ThreadObserver:
    """Tells whether a thread waits for somebody else.

    A thread that was woken may not have gone on yet: it has no processor, or the interpreter's lock is taken. The
    kernel counts how often it was put to sleep. Where that has changed, it has to be seen asleep for a while, with the
    lock free, before it counts as waiting.
    """

    def __init__(self, thread: threading.Thread) -> None:
        self._thread = thread
        self._asleep: object = None
        """How often it was put to sleep when it was last seen to wait."""
        self._candidate: tuple[object, float] | None = None
        """The same, not yet sure, and when that was first seen."""

    def is_waiting(self, frame: FrameType | None) -> bool:
        """Whether the thread, which is at this frame, waits."""
        switches = self._count_switches()
        if frame is None or switches is None or not _is_waiting_line(frame):
            self._candidate = None
            return False
        if switches == self._asleep:
            return True
        now = monotonic()
        if self._candidate is None or self._candidate[0] != switches:
            self._candidate = switches, now
        if now - self._candidate[1] < _SETTLED:
            return False
        if switches == _UNKNOWN:
            self._candidate = None  # Each time anew.
        else:
            self._asleep = switches
        return True

    def _count_switches(self) -> object:
        """How often the thread was put to sleep; None if it is not asleep."""
        if self._thread.native_id is None:  # It is about to begin.
            return None
        try:
            status = Path(f"/proc/self/task/{self._thread.native_id}/status").read_text()
        except OSError:
            return _UNKNOWN
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        is_asleep = fields["State"].strip().startswith("S")
        return (fields["voluntary_ctxt_switches"], fields["nonvoluntary_ctxt_switches"]) if is_asleep else None


def _is_waiting_line(frame: FrameType) -> bool:
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    if _WAITS.search(line) is None:
        return False
    below: FrameType | None = frame
    while below is not None:
        if below.f_code.co_filename.endswith("subprocess.py"):  # Another program works for it.
            return False
        below = below.f_back
    return True


def run_warped(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine like `asyncio.run`, in time that jumps: a scripted call of a minute takes milliseconds."""
    with asyncio.Runner(loop_factory=WarpedLoop) as runner:
        return runner.run(main)

"""A time limit for everything in a call except its handler: checks, hooks, `verify` and stores."""

import asyncio
import math
import time
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from contextvars import Context
from typing import Any, Final, Generic, TypeVar, cast

from msgspec import Struct

T = TypeVar("T")


class TimeBudget(Struct):
    """The time left for everything except the handler. Only the time inside its methods counts."""

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

    async def run_step(self, awaitable: Awaitable[T], *, is_plain: bool) -> T:
        """`run` for a step of a store: without a task of its own, if it `is_plain` (see `ShieldedStep`).

        A step that goes on after it was cancelled is abandoned, too.
        """
        if not is_plain:
            return await self.run(awaitable)
        started = time.monotonic()
        try:
            return await _drive(_to_coroutine(awaitable), max(self._left, 0.0), None)
        finally:
            self._left -= time.monotonic() - started

    async def run_shielded(self, step: "ShieldedStep[T]") -> T:
        """`run_step` for a step that is not cancelled when the time is used up: it goes on as `step.rest`."""
        started = time.monotonic()
        try:
            if step.coroutine is not None:
                return await _drive(step.coroutine, max(self._left, 0.0), step)
            assert step.rest is not None
            done, _ = await asyncio.wait({step.rest}, timeout=max(self._left, 0.0))
        finally:
            self._left -= time.monotonic() - started
        if not done:
            raise TimeoutError
        return step.rest.result()


async def _capture(awaitable: Awaitable[T]) -> "tuple[T, None] | tuple[Any, BaseException]":
    """Return an exception as a value: a task that raises SystemExit would end the event loop."""
    try:
        return await awaitable, None
    except BaseException as error:  # noqa: BLE001  # raised again by `run`
        return None, error


def abandon(task: "asyncio.Future[Any]") -> None:
    """Cancel a task without waiting for it."""
    _keep(task)
    task.cancel()


def _keep(task: "asyncio.Future[Any]") -> None:
    _abandoned.add(task)
    task.add_done_callback(_forget)


def _forget(task: "asyncio.Future[Any]") -> None:
    _abandoned.discard(task)
    if not task.cancelled():
        task.exception()  # Retrieved, or asyncio would log a warning.


_abandoned: "set[asyncio.Future[Any]]" = set()
"""References to abandoned tasks: asyncio keeps only weak ones, and an unreferenced task can be collected."""


# Steps of a store, driven by hand: with a task for each, and one more to shield it, a consequential call with SQLite
# takes 6 tasks and 24 passes of the event loop instead of 1 and 14.


class ShieldedStep(Generic[T]):
    """A step of a store that goes on when the time for it is used up.

    It `is_plain` if it waits for nothing but futures: then it begins in the current task, and what is left of it is
    moved to another. Any other has a task of its own from the start: `asyncio.timeout`, task groups and the scopes of
    anyio remember the task that they were entered in, and would cancel that one later.
    """

    __slots__ = ("coroutine", "rest")

    def __init__(self, awaitable: Awaitable[T], *, is_plain: bool) -> None:
        coroutine = _to_coroutine(awaitable)
        self.coroutine = coroutine if is_plain else None
        """What the current task runs."""
        self.rest: asyncio.Task[T] | None = None if is_plain else asyncio.ensure_future(coroutine)
        """What is left of it, if it was not over in time; all of it, if it is not plain."""


def _to_coroutine(awaitable: Awaitable[T]) -> Coroutine[Any, Any, T]:
    if type(awaitable) is types.CoroutineType:
        return cast(Coroutine[Any, Any, T], awaitable)
    return _await(awaitable)


async def _await(awaitable: Awaitable[T]) -> T:
    return await awaitable


class _StepTimer:
    """Ends the steps of one event loop whose time is used up, with one timer for all of them.

    With a timer for each, a step takes 3 µs more, of the 100 that one of many at once takes with SQLite.
    """

    __slots__ = ("_ends", "_loop", "_next")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ends: dict[_Wait, float] = {}
        self._next = math.inf
        """When the timer that counts fires."""

    def add(self, wait: "_Wait", timeout: float) -> None:
        """End a wait after so many seconds."""
        end = self._ends[wait] = self._loop.time() + timeout
        if end < self._next:
            self._arm(end)

    def remove(self, wait: "_Wait") -> None:
        """The step is over."""
        self._ends.pop(wait, None)

    def _arm(self, when: float) -> None:
        self._next = when
        self._loop.call_at(when, self._expire, when)

    def _expire(self, when: float) -> None:
        if when != self._next:  # An earlier one was set after this.
            return
        self._next = math.inf
        now = max(self._loop.time(), when)
        for wait in [wait for wait, end in self._ends.items() if end <= now]:
            del self._ends[wait]
            wait.expire()
        if self._ends:
            self._arm(max(min(self._ends.values()), now + _RESOLUTION))


_RESOLUTION: Final = 0.02
"""Seconds by which the end of a step may be late."""
_timers: dict[asyncio.AbstractEventLoop, _StepTimer] = {}


def _find_timer(loop: asyncio.AbstractEventLoop) -> _StepTimer:
    timer = _timers.get(loop)
    if timer is None:
        for ended in [known for known in tuple(_timers) if known.is_closed()]:
            _timers.pop(ended, None)
        timer = _timers[loop] = _StepTimer(loop)
    return timer


class _Wait:
    """The wait of a task for a future. It can end before the future does, and nothing happens to that.

    For the task it is a future itself: a real one in its place would be another pass of the event loop.
    """

    __slots__ = ("_asyncio_future_blocking", "_callback", "_context", "_future", "_loop", "is_cancelled", "is_late")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._asyncio_future_blocking = False
        """How asyncio tells `await` from `yield`: True until the task has it."""
        self._loop = loop
        self._future: Any = None
        self._callback: Callable[[Any], object] | None = None
        self._context: Context | None = None
        self.is_cancelled = False
        self.is_late = False

    def begin(self, future: Any) -> "_Wait":
        """What to yield to wait for a future."""
        future._asyncio_future_blocking = False
        self._future, self.is_cancelled, self._asyncio_future_blocking = future, False, True
        return self

    def expire(self) -> None:
        """End it, and every wait after it: the time is used up."""
        self.is_late = True
        self._end()

    def _end(self) -> bool:
        callback, self._callback = self._callback, None
        if callback is None or not self._future.remove_done_callback(callback):
            return False  # The task is about to hear from the future.
        self._loop.call_soon(callback, self, context=self._context)
        return True

    # What a task uses of a future.

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._future.get_loop()

    def add_done_callback(self, callback: Callable[[Any], object], *, context: Context | None = None) -> None:
        self._callback, self._context = callback, context
        self._future.add_done_callback(callback, context=context)
        if self.is_late:
            self._end()

    def remove_done_callback(self, callback: Callable[[Any], object]) -> int:
        return self._future.remove_done_callback(callback)

    def cancel(self, msg: object = None) -> bool:
        self.is_cancelled = self._end()
        return self.is_cancelled

    def done(self) -> bool:
        return self.is_cancelled or self.is_late or self._future.done()

    def result(self) -> None:
        if self.is_cancelled:
            raise asyncio.CancelledError


@types.coroutine
def _drive(
    coroutine: Coroutine[Any, Any, T], timeout: float, shielded: ShieldedStep[T] | None
) -> Generator[Any, Any, T]:
    """Run a coroutine in the current task until it is over, the time is used up, or the task is cancelled."""
    try:
        waiting_for = coroutine.send(None)
    except StopIteration as returned:
        return returned.value
    loop = asyncio.get_running_loop()
    task = cast("asyncio.Task[Any]", asyncio.current_task(loop))
    cancels = task.cancelling()
    wait = _Wait(loop)
    timer = _find_timer(loop)
    timer.add(wait, timeout)
    try:
        while True:
            is_future = getattr(waiting_for, "_asyncio_future_blocking", False)
            try:
                yield wait.begin(waiting_for) if is_future else waiting_for
            except GeneratorExit:
                coroutine.close()
                raise
            except asyncio.CancelledError as error:
                if wait.is_cancelled:
                    waiting_for.cancel()
                try:
                    waiting_for = coroutine.throw(error)
                except BaseException:
                    if task.cancelling() <= cancels:  # Not this task: what it waited for, or a timeout inside the step.
                        raise
                    raise error from None
                if task.cancelling() > cancels:
                    _keep(loop.create_task(_capture(_resume(coroutine, waiting_for))))
                    raise
            except BaseException as error:  # noqa: BLE001  # raised inside the coroutine
                waiting_for = coroutine.throw(error)
            else:
                if not wait.is_late or (is_future and waiting_for.done()):
                    waiting_for = coroutine.send(None)
                    continue
                if shielded is not None:
                    shielded.rest = loop.create_task(_resume(coroutine, waiting_for))
                else:
                    _cancel(coroutine, waiting_for, loop)
                raise TimeoutError
    except StopIteration as returned:
        return returned.value
    finally:
        timer.remove(wait)


def _cancel(coroutine: Coroutine[Any, Any, Any], waiting_for: Any, loop: asyncio.AbstractEventLoop) -> None:
    """Cancel a step whose time is used up, and abandon it if it goes on."""
    if waiting_for is not None:
        waiting_for.cancel()
    with suppress(Exception, asyncio.CancelledError):
        waiting_for = coroutine.throw(asyncio.CancelledError())
        _keep(loop.create_task(_capture(_resume(coroutine, waiting_for))))


async def _resume(coroutine: Coroutine[Any, Any, T], waiting_for: Any) -> T:
    """Run the rest of a coroutine in a task of its own."""
    if waiting_for is not None:
        waiting_for._asyncio_future_blocking = True
    return await _finish(coroutine, waiting_for)


@types.coroutine
def _finish(coroutine: Coroutine[Any, Any, T], waiting_for: Any) -> Generator[Any, Any, T]:
    """Await the rest of a coroutine whose first steps were taken by hand, and which waits for this."""
    try:
        while True:
            try:
                yield waiting_for
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as error:  # noqa: BLE001  # raised inside the coroutine
                waiting_for = coroutine.throw(error)
            else:
                waiting_for = coroutine.send(None)
    except StopIteration as returned:
        return returned.value

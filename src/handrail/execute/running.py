"""One handler that runs: its deadline, its cancellation, and the truth about whether it began."""

import asyncio
import math
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Literal

from msgspec import Struct

from handrail.core.log import log
from handrail.core.tool import OnInterrupt, Tool
from handrail.core.values import ToolCall, ToolResult
from handrail.errors import ConfigError, ToolError
from handrail.execute.schedule import Place

Stop = Literal["timeout", "cancelled"]

GRACE = 5.0
"""Seconds that a stopped handler has to come to an end, before it is stopped again."""
NOBODY_ASKED = "The handler raised CancelledError, and nobody had cancelled it."
TICK = 0.02
"""Seconds by which a timeout may be late: one timer serves every call."""


class Stopped(Exception):
    """The handler was stopped by its deadline or by a cancellation of this one call; the caller goes on."""

    def __init__(self, why: Stop) -> None:
        super().__init__(why)
        self.why: Stop = why


class MadeUp(Exception):
    """A handler raised a cancellation that nobody had asked for."""


class Deadlines:
    """The deadlines of all calls behind one timer of the loop: a timer for each would cost more than most calls."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        """The loop that uses the executor."""
        self._ends: dict[Running, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._next = math.inf

    def add(self, running: "Running", seconds: float) -> None:
        """Stop a call after so many seconds."""
        loop = asyncio.get_running_loop()
        if loop is not self.loop:
            self._move_to(loop)
        end = self._ends[running] = loop.time() + seconds
        if end < self._next:
            self._arm(loop, end)

    def remove(self, running: "Running") -> None:
        """The call is over."""
        self._ends.pop(running, None)

    def _move_to(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._ends and self.loop is not None and self.loop.is_running():
            raise ConfigError("An executor serves one event loop at a time, and another one is still using this one.")
        self.loop, self._timer, self._next = loop, None, math.inf  # What the old loop waited for is over.
        self._ends.clear()

    def _arm(self, loop: asyncio.AbstractEventLoop, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(when, self._look, loop)
        self._next = when

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer, self._next = None, math.inf
        now = loop.time()
        for running in [one for one, end in self._ends.items() if end <= now]:
            del self._ends[running]
            running.stop("timeout")
        if self._ends:
            self._arm(loop, max(min(self._ends.values()), now + TICK))


class Running(Struct, eq=False):
    """A call on its way: what can be asked about it, and how it is stopped."""

    call: ToolCall
    tool: Tool[..., Any]
    tenant_id: str | None
    identity: str
    place: Place
    began: bool = False
    """Whether the handler was entered: before that, nothing can have happened."""
    silent: bool = False
    line: "asyncio.Task[None] | None" = None
    """The executor's own task, for a call that outlives its caller."""
    answer: ToolResult | None = None
    on_stuck: Callable[[], None] | None = None
    """Told when a handler was stopped and does not stop."""
    still_works: Callable[[], bool] | None = None
    """Set when a worker thread was left behind: whether it still goes on."""
    _waiters: "list[asyncio.Future[ToolResult]] | None" = None
    _task: "asyncio.Task[Any] | None" = None
    _stop: Stop | None = None
    _cancels: int = 0
    _timer: asyncio.TimerHandle | None = None

    @property
    def session_id(self) -> str:
        """The session that it belongs to."""
        return self.place[0]

    @property
    def interruption(self) -> OnInterrupt:
        """What happens to it when the conversation is interrupted: reads are dropped, effects are finished."""
        return self.tool.on_interrupt or ("cancel" if self.tool.read_only else "finish")

    @property
    def stop_asked(self) -> bool:
        """Whether it was told to stop."""
        return self._stop is not None

    # Stopping.

    def stop(self, why: Stop) -> None:
        """Stop the handler, or keep it from beginning."""
        if self._stop is None:
            self._stop = why
            self._cancel()

    def raise_if_stopped(self) -> None:
        """Raise `Stopped` if the call was told to stop."""
        if self._stop is not None:
            raise Stopped(self._stop)

    def _cancel(self) -> None:
        task = self._task
        if task is None:
            return
        loop = task.get_loop()
        if task is asyncio.current_task(loop):
            # From inside: if the handler is done before its next wait, nothing is left to be cancelled.
            loop.call_soon(self._cancel)
            return
        self._cancels += 1
        task.cancel()
        self._timer = loop.call_later(GRACE, self._insist)

    def _insist(self) -> None:
        log.error("%s was stopped, and goes on all the same", self.tool.name)
        if self.on_stuck is not None:
            self.on_stuck()
        self._cancel()

    # The answer.

    @property
    def awaited(self) -> bool:
        """Whether somebody else waits for the answer."""
        return bool(self._waiters)

    async def answered(self) -> ToolResult:
        """Wait for the answer."""
        return self.answer if self.answer is not None else await self.promise()

    def promise(self) -> "asyncio.Future[ToolResult]":
        """The answer to come. Everybody who waits has a future of their own: one who leaves takes nobody along."""
        waiter: asyncio.Future[ToolResult] = asyncio.get_running_loop().create_future()
        if self.answer is not None:
            waiter.set_result(self.answer)
        elif self._waiters is None:
            self._waiters = [waiter]
        else:
            self._waiters.append(waiter)
        return waiter

    def resolve(self, result: ToolResult) -> None:
        """Give the answer to everybody who waits, and to whoever will."""
        if self.answer is None:
            self.answer = result
            for waiter in self._waiters or ():
                if not waiter.done():
                    waiter.set_result(result)

    # Waiting.

    async def drive(self, coroutine: Coroutine[Any, Any, Any], seconds: float, deadlines: Deadlines) -> Any:
        """Run a coroutine in the present task, with a deadline from its first real wait on."""
        if self._stop is not None:
            coroutine.close()
            raise Stopped(self._stop)
        self.began = True
        try:
            waiting_for = coroutine.send(None)
        except StopIteration as returned:
            return returned.value
        except asyncio.CancelledError as error:
            raise MadeUp(NOBODY_ASKED) from error
        return await self.wait(resumed(coroutine, waiting_for), seconds, deadlines)

    async def wait(self, rest: Any, seconds: float | None = None, deadlines: Deadlines | None = None) -> Any:
        """Wait for something in the present task; raise `Stopped` when this call is stopped meanwhile."""
        if self._stop is not None and not self.began:
            rest.close()
            raise Stopped(self._stop)
        task = asyncio.current_task()
        assert task is not None
        before = task.cancelling()
        self._task = task
        try:
            if seconds is not None and deadlines is not None:
                deadlines.add(self, seconds)
            if self._stop is not None:  # The handler's own first step asked for it.
                self._cancel()
            result = await rest
        except asyncio.CancelledError as error:
            # As asyncio.timeout() does: only if nobody else wants this task cancelled is the cancellation ours to end.
            self._withdraw(task)
            if self._stop is not None and task.cancelling() <= before:
                raise Stopped(self._stop) from None
            if task.cancelling():
                raise
            raise MadeUp(NOBODY_ASKED) from error
        except Exception as error:
            if not self._cancels or isinstance(error, ToolError):
                raise
            assert self._stop is not None
            raise Stopped(self._stop) from error  # What a handler makes of being stopped is that it was stopped.
        finally:
            self._withdraw(task)
            self._task = None
            if deadlines is not None:
                deadlines.remove(self)
        return result

    def _withdraw(self, task: "asyncio.Task[Any]") -> None:
        """The wait is over: our requests to cancel the task are too."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for _ in range(self._cancels):
            task.uncancel()
        self._cancels = 0


@types.coroutine
def resumed(coroutine: Coroutine[Any, Any, Any], waiting_for: Any) -> Generator[Any, Any, Any]:
    """The rest of a coroutine whose first step was already taken."""
    while True:
        try:
            yield waiting_for
        except BaseException as error:  # noqa: BLE001  # the coroutine's to handle
            try:
                waiting_for = coroutine.throw(error)
            except StopIteration as returned:
                return returned.value
        else:
            return (yield from coroutine.__await__())

"""One handler that runs: its deadline, its cancellation, and the truth about whether it began."""

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Literal

from handrail.core.context import ToolContext
from handrail.core.tool import OnInterrupt, Tool
from handrail.core.values import ToolCall, ToolResult

Stop = Literal["timeout", "cancelled"]

GRACE = 5.0
"""Seconds that a stopped handler has to come to an end."""
TICK = 0.02
"""Seconds by which a timeout may be late: one timer serves every call."""


class Stopped(Exception):
    """The handler was stopped by its deadline or by a cancellation of this one call; the caller goes on."""

    def __init__(self, why: Stop) -> None:
        super().__init__(why)
        self.why: Stop = why


class Deadlines:
    """The deadlines of all calls behind one timer of the loop: a timer for each would cost more than most calls."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ends: dict[Running, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, running: "Running", seconds: float) -> None:
        """Stop a call after so many seconds."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # A new loop: what the old one waited for is over.
            self._loop, self._timer = loop, None
            self._ends.clear()
        end = self._ends[running] = loop.time() + seconds
        if self._timer is None or end < self._timer.when():
            self._arm(loop, end)

    def remove(self, running: "Running") -> None:
        """The call is over."""
        self._ends.pop(running, None)

    def _arm(self, loop: asyncio.AbstractEventLoop, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(when, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time()
        for running in [one for one, end in self._ends.items() if end <= now]:
            del self._ends[running]
            running.stop("timeout")
        if self._ends:
            self._arm(loop, max(min(self._ends.values()), now + TICK))


class Running:
    """A call on its way: what can be asked about it, and how it is stopped."""

    began = False
    """Whether the handler was entered: before that, nothing can have happened."""
    silent = False
    line: "asyncio.Task[None] | None" = None
    """The executor's own task, for a call that outlives its caller."""
    answer: ToolResult | None = None
    on_stuck: Callable[[], None] | None = None
    """Told when a handler was stopped and does not stop."""
    _waiters: "list[asyncio.Future[ToolResult]] | None" = None
    _task: "asyncio.Task[Any] | None" = None
    _stop: Stop | None = None

    def __init__(self, call: ToolCall, tool: Tool[..., Any], context: ToolContext[Any], identity: str) -> None:
        self.call = call
        self.tool = tool
        self.session_id = context.session_id
        self.tenant_id = context.tenant_id
        self.identity = identity

    @property
    def interruption(self) -> OnInterrupt:
        """What happens to it when the conversation is interrupted: reads are dropped, effects are finished."""
        return self.tool.on_interrupt or ("cancel" if self.tool.read_only else "finish")

    @property
    def stop_asked(self) -> bool:
        """Whether it was told to stop."""
        return self._stop is not None

    @property
    def awaited(self) -> bool:
        """Whether somebody else waits for the answer."""
        return bool(self._waiters)

    def stop(self, why: Stop) -> None:
        """Stop the handler, or keep it from beginning."""
        if self._stop is None:
            self._stop = why
            if self._task is not None:
                self._task.cancel()
                if self.on_stuck is not None:
                    asyncio.get_running_loop().call_later(GRACE, self._look_whether_stuck)

    def _look_whether_stuck(self) -> None:
        if self._task is not None and self.on_stuck is not None:
            self.on_stuck()

    async def answered(self) -> ToolResult:
        """Wait for the answer."""
        return self.answer if self.answer is not None else await self.promise()

    def promise(self) -> "asyncio.Future[ToolResult]":
        """The answer to come. Everybody who waits has a future of their own: one who leaves takes nobody along."""
        waiter: asyncio.Future[ToolResult] = asyncio.get_running_loop().create_future()
        if self.answer is not None:
            waiter.set_result(self.answer)
            return waiter
        if self._waiters is None:
            self._waiters = []
        self._waiters.append(waiter)
        return waiter

    def resolve(self, result: ToolResult) -> None:
        """Give the answer to everybody who waits, and to whoever will."""
        if self.answer is None:
            self.answer = result
            for waiter in self._waiters or ():
                if not waiter.done():
                    waiter.set_result(result)

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
        return await self.wait(resumed(coroutine, waiting_for), seconds, deadlines)

    async def wait(self, rest: Any, seconds: float | None = None, deadlines: Deadlines | None = None) -> Any:
        """Wait for something in the present task; raise `Stopped` when this call is stopped meanwhile."""
        task = asyncio.current_task()
        assert task is not None
        before = task.cancelling()
        self._task = task
        if seconds is not None and deadlines is not None:
            deadlines.add(self, seconds)
        if self._stop is not None:
            task.cancel()
        try:
            result = await rest
        except asyncio.CancelledError:
            # As asyncio.timeout() does: only if nobody else wants this task cancelled is the cancellation ours to end.
            if self._stop is not None and task.uncancel() <= before:
                raise Stopped(self._stop) from None
            raise
        finally:
            self._task = None
            if deadlines is not None:
                deadlines.remove(self)
        if self._stop is not None:  # It finished all the same: the request to cancel is over.
            task.uncancel()
        return result


@types.coroutine
def resumed(coroutine: Coroutine[Any, Any, Any], waiting_for: Any) -> Generator[Any, Any, Any]:
    """The rest of a coroutine whose first step was already taken."""
    while True:
        try:
            sent = yield waiting_for
        except BaseException as error:  # noqa: BLE001  # the coroutine's to handle
            try:
                waiting_for = coroutine.throw(error)
            except StopIteration as returned:
                return returned.value
        else:
            try:
                waiting_for = coroutine.send(sent)
            except StopIteration as returned:
                return returned.value

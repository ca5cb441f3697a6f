"""One call that is running: its timeout, its cancellation, its result, and whether its handler was entered."""

import asyncio
import math
import sys
import types
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast

from msgspec import Struct

from handrail.authorize.effect_keys import CallArguments
from handrail.core.context import ToolContext
from handrail.core.log import log
from handrail.core.time_budget import TimeBudget
from handrail.core.tool import OnInterrupt, Tool
from handrail.core.values import Decision, ToolCall, ToolResult
from handrail.errors import ConfigError, ToolError
from handrail.execute.executor_tools import CompiledTool
from handrail.execute.scheduler import CURRENT_SCOPE, CallRef, CallScope, QueueEntry
from handrail.execute.threads import ThreadJob

if TYPE_CHECKING:
    from handrail.execute.stored_calls import StoredCall

T = TypeVar("T")

StopCause = Literal["timeout", "cancelled"]

GRACE = 5.0
"""Seconds that a stopped handler has to end, before it is cancelled again."""
NOT_CANCELLED = "The handler raised CancelledError, and nobody had cancelled it."
TIMER_RESOLUTION = 0.02
"""Seconds by which a timeout may be late: one timer serves all calls."""


class CallStopped(Exception):
    """The call was stopped by its timeout or by a cancellation of this one call; its caller was not cancelled."""

    def __init__(self, cause: StopCause) -> None:
        self.cause: StopCause = cause


class SpuriousCancellation(Exception):
    """A handler raised `CancelledError` although nobody had cancelled it."""


class Deadlines:
    """The timeouts of all calls, on one timer of the loop: with a timer for each, a call that waits takes 14.5 µs
    instead of 11.6."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        """The loop that uses the executor."""
        self._ends: dict[RunningCall, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._next = math.inf

    def add(self, running: "RunningCall", timeout: float, loop: asyncio.AbstractEventLoop) -> None:
        """Stop a call, which runs in this loop, after so many seconds."""
        if loop is not self.loop:
            self._move_to(loop)
        end = self._ends[running] = loop.time() + timeout
        if end < self._next:
            self._arm(loop, end)

    def remove(self, running: "RunningCall") -> None:
        """The call is over."""
        self._ends.pop(running, None)

    def _move_to(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._ends and self.loop is not None and self.loop.is_running():
            raise ConfigError("An executor serves one event loop at a time, and another one is still using this one.")
        self.loop, self._timer, self._next = loop, None, math.inf  # The calls of the old loop are over.
        self._ends.clear()

    def _arm(self, loop: asyncio.AbstractEventLoop, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(when, self._stop_late_calls, loop)
        self._next = when

    def _stop_late_calls(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer, self._next = None, math.inf
        now = loop.time()
        for running in [running for running, end in self._ends.items() if end <= now]:
            del self._ends[running]
            running.stop("timeout")
        if self._ends:
            self._arm(loop, max(min(self._ends.values()), now + TIMER_RESOLUTION))


class RunningCall(Struct, eq=False):
    """A call that has no result yet: what is known about it, and how it is stopped."""

    call: ToolCall
    tool: Tool[..., Any]
    context: ToolContext[Any]
    identity: str
    ref: CallRef
    has_begun: bool = False
    """Whether the handler was entered: before that, nothing can have happened."""
    is_in_doubt: bool = False
    """Whether an earlier attempt, here or of another owner, may have taken effect."""
    is_silent: bool = False
    task: "asyncio.Task[None] | None" = None
    """The executor's own task, for a call that outlives its caller."""
    result: ToolResult | None = None
    grace: float = GRACE
    """Seconds that a stopped handler has to end before its caller is answered."""
    on_stuck: Callable[[], None] | None = None
    """Called when a handler was stopped and does not end."""
    stranded_job: ThreadJob | None = None
    """Set when the call was given up while its worker thread was running."""
    stopped_by: StopCause | None = None
    """Why the call was asked to stop, if it was."""
    _waiters: "list[asyncio.Future[ToolResult]] | None" = None
    _task: "asyncio.Task[Any] | None" = None
    _cancels: int = 0
    _timer: asyncio.TimerHandle | None = None

    @property
    def session_id(self) -> str:
        """The session that it belongs to."""
        return self.ref[0]

    @property
    def tenant_id(self) -> str | None:
        """The tenant that it belongs to."""
        return self.context.tenant_id

    def is_same_caller(self, context: ToolContext[Any]) -> bool:
        """Whether the call was made for the same customer by the same agent."""
        mine = self.context
        return (mine.customer_id, mine.agent_id) == (context.customer_id, context.agent_id)

    @property
    def on_interrupt(self) -> OnInterrupt:
        """What an interruption of the conversation does to it: by default reads are cancelled, effects finish."""
        return self.tool.on_interrupt or ("cancel" if self.tool.read_only else "finish")

    # Stopping.

    def stop(self, cause: StopCause) -> None:
        """Stop the handler, or keep it from being entered."""
        if self.stopped_by is None:
            self.stopped_by = cause
            self._cancel()

    def _cancel(self) -> None:
        task = self._task
        if task is None:
            return
        loop = task.get_loop()
        if task is asyncio.current_task(loop):
            # From inside the handler: if it returns before its next await, there is nothing left to cancel.
            loop.call_soon(self._cancel)
            return
        self._cancels += 1
        task.cancel()
        self._timer = loop.call_later(self.grace, self._cancel_again)

    def _cancel_again(self) -> None:
        log.error("%s was stopped, and is still running", self.tool.name)
        if self.on_stuck is not None:
            self.on_stuck()
        self._cancel()

    # The result.

    @property
    def has_waiters(self) -> bool:
        """Whether another call waits for the result."""
        return bool(self._waiters)

    async def wait_result(self) -> ToolResult:
        """Wait for the result."""
        return self.result if self.result is not None else await self.result_future()

    def result_future(self) -> "asyncio.Future[ToolResult]":
        """A future of the result, a new one for each caller: cancelling one does not affect the others."""
        loop = asyncio.get_running_loop() if self.task is None else self.task.get_loop()
        waiter: asyncio.Future[ToolResult] = loop.create_future()
        if self.result is not None:
            waiter.set_result(self.result)
        elif self._waiters is None:
            self._waiters = [waiter]
        else:
            self._waiters.append(waiter)
        return waiter

    def resolve(self, result: ToolResult) -> None:
        """Set the result, once, and wake everybody who waits for it."""
        if self.result is None:
            self.result = result
            for waiter in self._waiters or ():
                if not waiter.done():
                    waiter.set_result(result)

    # Waiting.

    async def run_coroutine(self, coroutine: Coroutine[Any, Any, Any], timeout: float, deadlines: Deadlines) -> Any:
        """Run a handler's coroutine in the current task, with a timeout from its first real wait on."""
        if self.stopped_by is not None:
            coroutine.close()
            raise CallStopped(self.stopped_by)
        self.has_begun = True
        variables = copy_context()  # What the handler sets does not reach the caller, in whose task it may run.
        is_over, value = variables.run(take_first_step, coroutine)
        if is_over:
            return value
        return await self.wait(resume_coroutine(coroutine, value, self, variables), timeout, deadlines)

    async def wait(self, awaitable: Any, timeout: float | None = None, deadlines: Deadlines | None = None) -> Any:
        """Await something in the current task; raise `CallStopped` if this call is stopped meanwhile."""
        if self.stopped_by is not None and not self.has_begun:
            awaitable.close()
            raise CallStopped(self.stopped_by)
        task = asyncio.current_task()
        assert task is not None
        before = task.cancelling()
        self._task = task
        try:
            if timeout is not None and deadlines is not None:
                deadlines.add(self, timeout, task.get_loop())
            if self.stopped_by is not None:  # The handler's own first step asked for it.
                self._cancel()
            result = await awaitable
        except asyncio.CancelledError as error:
            # As in asyncio.timeout(): the cancellation ends here only if nobody else cancelled this task.
            self._uncancel(task)
            if self.stopped_by is not None and task.cancelling() <= before:
                raise CallStopped(self.stopped_by) from None
            if task.cancelling():
                raise
            raise SpuriousCancellation(NOT_CANCELLED) from error
        except Exception as error:
            if not self._cancels or isinstance(error, ToolError):
                raise
            assert self.stopped_by is not None
            raise CallStopped(self.stopped_by) from error  # Whatever a cancelled handler raises: it was stopped.
        finally:
            self._uncancel(task)
            self._task = None
            if deadlines is not None:
                deadlines.remove(self)
        return result

    def _uncancel(self, task: "asyncio.Task[Any]") -> None:
        """The wait is over: withdraw our own requests to cancel the task."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for _ in range(self._cancels):
            task.uncancel()
        self._cancels = 0


class EffectCall(Struct, kw_only=True, eq=False):
    """One consequential call: what it asks for, and how far it has come."""

    running: RunningCall
    tool: Tool[..., Any]
    compiled: CompiledTool
    context: ToolContext[Any]
    sent: CallArguments
    """What the model sent."""
    actual: CallArguments
    """What runs: what the model sent, or what an approver put in its place."""
    queue_entry: QueueEntry
    budget: TimeBudget
    """What checks, hooks, `verify` and stores may take together."""
    started: float
    """When it arrived, by `perf_counter`."""
    is_recalled: bool = False
    """Whether the ledger was read, and had nothing of this call: only then can it be said that nothing was done."""
    decision: Decision | None = None
    stored: "StoredCall | None" = None
    """What a worker runs; None for a call that runs where it was made."""


class RunningCalls:
    """The calls that have no result yet, by session, and the event loop that runs them."""

    __slots__ = ("by_session", "loop")

    def __init__(self) -> None:
        self.by_session: dict[str, dict[str, RunningCall]] = {}
        """The calls of each session by their ids; empty if no call is running."""
        self.loop: asyncio.AbstractEventLoop | None = None
        """The loop of the running calls."""

    def find(self, ref: CallRef) -> RunningCall | None:
        """The call, if it is running."""
        calls = self.by_session.get(ref[0])
        return None if calls is None else calls.get(ref[1])

    def list_session(self, session_id: str) -> list[RunningCall]:
        """The calls of one session; those of others cost nothing."""
        return list(self.by_session.get(session_id, {}).values())

    def add(self, running: RunningCall) -> asyncio.AbstractEventLoop:
        """Add a call; returns the loop that runs it."""
        session_id, call_id = running.ref
        by_session, loop = self.by_session, self.loop
        if not by_session or loop is None:
            loop = self.loop = asyncio.get_running_loop()
        calls = by_session.get(session_id)
        if calls is None:
            by_session[session_id] = {call_id: running}
        else:
            calls[call_id] = running
        return loop

    def remove(self, ref: CallRef) -> None:
        """The call has its result."""
        session_id, call_id = ref
        calls = self.by_session.get(session_id)
        if calls is not None and calls.pop(call_id, None) is not None and not calls:
            del self.by_session[session_id]

    def check_loop(self) -> None:
        """Refuse a second event loop while calls run in the first one."""
        loop = asyncio.get_running_loop()
        if loop is self.loop or not self.by_session:
            return
        if self.loop is not None and not self.loop.is_closed():
            raise ConfigError(
                f"this executor runs {sum(map(len, self.by_session.values()))} calls in another event loop: "
                "use one executor for each event loop, or wait until its calls have ended."
            )
        self.loop = loop


# Tricks for speed: coroutines that are driven by hand, and tasks that start at once. Only `core/time_budget.py`, which
# drives the steps of stores, has more of them.


def take_first_step(coroutine: Coroutine[Any, Any, Any]) -> tuple[bool, Any]:
    """Take the first step of a coroutine: whether it is over, and what it returned or else waits for.

    A handler that never waits is then over without a timer and without an entry among the running calls: 27 µs for a
    consequential call instead of 29 (Python 3.11). `resume_coroutine` awaits the rest of one that waits.
    """
    try:
        return False, coroutine.send(None)
    except StopIteration as returned:
        return True, returned.value
    except asyncio.CancelledError as error:
        raise SpuriousCancellation(NOT_CANCELLED) from error


FirstSteps = Generator[Any, tuple[Generator[Any, Any, Any], CallScope], Any]
"""Takes the first step of a coroutine, inside its call, and then of the next one: see `begin_first_steps`."""
RETURNED: Final = object()
"""What it yields when a coroutine is over; its scope has the output."""


def begin_first_steps() -> FirstSteps:
    """What takes the first steps of coroutines: it yields `RETURNED`, or what a coroutine waits for.

    It then belongs to the coroutine that waits, is resumed in its place, and ends with it. A coroutine that is over
    ends with an exception if it is driven by itself, as in `take_first_step`: that takes 0.15 µs of the 3.5 of a read
    (Python 3.12).
    """
    steps: Any = _take_first_steps()
    next(steps)
    return steps


@types.coroutine
def _take_first_steps() -> FirstSteps:
    coroutine, scope = yield
    while True:
        CURRENT_SCOPE.set(scope)
        try:
            scope.output = yield from coroutine
        except asyncio.CancelledError as error:
            if scope.has_waited:
                raise
            raise SpuriousCancellation(NOT_CANCELLED) from error
        if scope.has_waited:
            output, scope.output = scope.output, None
            return output
        coroutine, scope = yield RETURNED


if sys.version_info >= (3, 12):
    STARTS_AT_ONCE: Final = True

    def start_task(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T], name: str) -> "asyncio.Task[T]":
        """Start a task that takes its first steps at once: 21 µs for a call that never waits, instead of 31."""
        return asyncio.Task(coroutine, loop=loop, name=name, eager_start=True)

else:
    STARTS_AT_ONCE: Final = False

    def start_task(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T], name: str) -> "asyncio.Task[T]":
        """Start a task."""
        return loop.create_task(coroutine, name=name)


@types.coroutine
def yield_once() -> Generator[None, None, None]:
    """Let the event loop run what is ready, a task that was just started for one.

    A call that never waits then has its result, without a future and a second round of the loop: a consequential one
    takes 26 µs instead of 28.5 (Python 3.11).
    """
    yield


@types.coroutine
def resume_coroutine(
    coroutine: Coroutine[Any, Any, Any] | FirstSteps, waiting_for: Any, running: RunningCall, variables: Context
) -> Generator[Any, Any, Any]:
    """Await the rest of a coroutine whose first step was already taken, with its own context variables.

    A read that was stopped and goes on, to clean up or because it ignores its cancellation, does so in a task of its
    own: the call has its result at its deadline.
    """
    while True:
        try:
            yield waiting_for
        except BaseException as error:
            try:
                waiting_for = variables.run(coroutine.throw, error)
            except StopIteration as returned:
                return returned.value
            if running.stopped_by is not None and running.tool.read_only and isinstance(error, asyncio.CancelledError):
                name = f"handrail:{running.session_id}:{running.call.id}"
                left = _run_rest(coroutine, waiting_for, running)
                rest = asyncio.get_running_loop().create_task(left, name=name, context=variables)
                _RESTS.add(rest)
                rest.add_done_callback(_RESTS.discard)
                raise
        else:
            try:
                # By hand, not by `yield from`: after each step, the read may have to be left behind.
                waiting_for = variables.run(coroutine.send, None)
            except StopIteration as returned:
                return returned.value


async def _run_rest(coroutine: Coroutine[Any, Any, Any] | FirstSteps, waiting_for: Any, running: RunningCall) -> None:
    """Run what is left of a read that was stopped; nobody waits for it."""
    try:
        await _drive(coroutine, waiting_for)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        if not isinstance(error, asyncio.CancelledError):
            log.error("%s failed after it was stopped", running.tool.name, exc_info=error)


@types.coroutine
def _drive(coroutine: Coroutine[Any, Any, Any] | FirstSteps, waiting_for: Any) -> Generator[Any, Any, Any]:
    yield waiting_for
    return (yield from cast(Generator[Any, Any, Any], coroutine))


_RESTS: "set[asyncio.Task[None]]" = set()
"""asyncio keeps weak references only."""

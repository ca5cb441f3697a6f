"""The worker: takes stored calls from a delivery, runs them with an executor, and says what became of each."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Final, Self, cast

from msgspec import structs

from handrail.core.context import ToolContext
from handrail.core.log import log
from handrail.core.time_budget import TimeBudget
from handrail.core.values import ToolResult
from handrail.errors import ConfigError, must_propagate
from handrail.execute.durable import DurableCalls
from handrail.execute.executor import Executor
from handrail.execute.running import start_task
from handrail.execute.scheduler import CallRef
from handrail.execute.stored_calls import StoredCall, WorkItem, parse_work_id

BuildContext = Callable[[WorkItem], ToolContext[Any] | Awaitable[ToolContext[Any]]]
FindItemExecutor = Callable[[WorkItem], Awaitable[Executor]]

_AWAY_DELAY: Final = 1.0
"""Seconds until a store or a delivery that is away is tried again."""
_FOREIGN_DELAY: Final = 2.0
"""Seconds until a call of a definition that this worker does not have is delivered again, to another one."""
_MAX_DELAY: Final = 30.0
_MAX_UNAVAILABLE: Final = 20
"""How often a call that is refused as `unavailable` is tried: it then ends with that result."""
_SHORTEST_ROUND: Final = 0.02
_LONGEST_ROUND: Final = 2.0
_AGAIN: Final = frozenset(("in_progress", "rate_limited", "unavailable"))
"""The codes of results that say nothing final about a call."""


class _UnusableError(ConfigError):
    """What the functions of the worker's owner return cannot be used."""


class Worker:
    """Runs durable calls that other processes have stored: `async with Worker(executor) as worker: await worker.run()`.

    Several workers can run, in any number of processes.

    Args:
        executor: Has the tools, the policy and the store of the calls.
        context: Makes the context of a call from its `WorkItem`, with the `deps`, the `tenant` and the secrets of this
            process; its ids and its turn come from the stored call.
        find_executor: Returns the executor of a call where not all have the same rules: one that was made by
            `executor.with_tools`, such as that of the call's tenant.
        max_running: The most calls that it runs at the same time.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        context: BuildContext | None = None,
        find_executor: FindItemExecutor | None = None,
        max_running: int = 50,
    ) -> None:
        if max_running < 1:
            raise ConfigError(f"max_running must be at least 1, got {max_running!r}.")
        if context is not None and not callable(context):  # pyright: ignore[reportUnnecessaryComparison]  # the caller's
            kind = type(context).__name__
            raise ConfigError(f"context must be a function of a WorkItem that returns a ToolContext, got {kind}.")
        self._executor = executor
        self._durable: DurableCalls = executor.durable
        self._work = self._durable.work
        self._leases = self._durable.settlement.leases
        self._make_context = context
        self._find_executor = find_executor
        self._max_running = max_running
        self._lease = executor.timeouts.lease
        self._round = min(max(self._lease / 6, _SHORTEST_ROUND), _LONGEST_ROUND)
        self._running: dict[CallRef, asyncio.Task[float | None]] = {}
        self._given_back: set[CallRef] = set()
        self._cancelled: set[CallRef] = set()
        self._stopping = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._executor.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.drain()

    @property
    def running(self) -> int:
        """How many calls it runs."""
        return len(self._running)

    async def run(self) -> None:
        """Take calls and run them, until the worker is drained."""
        if not self._executor.durable_definitions:
            log.warning("this worker runs no call: its executor has no durable tool, such as @tool(durable=True)")
        watching = asyncio.create_task(self._watch(), name="handrail:worker:watch")
        try:
            while not self._stopping.is_set():
                serving = self._work.delivery.serve(
                    _Handle(self._executor, self.handle), max_running=self._max_running, stopping=self._stopping
                )
                self._serving = asyncio.create_task(serving, name="handrail:worker:serve")
                try:
                    await asyncio.shield(self._serving)
                except asyncio.CancelledError:
                    self._serving.cancel()
                    if not self._stopping.is_set():  # The caller of `run` was cancelled.
                        raise
                except Exception:
                    log.exception("the delivery of stored calls failed; it is tried again")
                    await self._sleep(_AWAY_DELAY)
        finally:
            watching.cancel()

    async def drain(self, *, grace: float = 10.0) -> None:
        """Take nothing more, give back what has not begun, and let the rest finish.

        What still runs after the grace is left to its lease: another worker takes it over if this process ends.
        """
        self._stopping.set()
        for ref in list(self._running):
            if self._executor.stop_unclaimed(ref):
                self._given_back.add(ref)
        if self._running:
            await asyncio.wait(list(self._running.values()), timeout=grace)
        if self._running:
            log.warning("%d calls still run after the grace of the worker: they are left to their leases", self.running)
        if self._serving is not None and not self._serving.done():
            if self._running:
                self._serving.cancel()
            await asyncio.wait([self._serving], timeout=_AWAY_DELAY)
        await self._durable.sender.flush(timeout=_AWAY_DELAY)

    async def _sleep(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return

    # One call.

    async def handle(self, id: str) -> float | None:
        """Run the call with this id; when it has to be delivered again, if at all."""
        ref = parse_work_id(id)
        known = self._running.get(ref)
        if known is not None:  # It was delivered twice: both get the same answer.
            return await asyncio.shield(known)
        task = start_task(asyncio.get_running_loop(), self._handle(ref), f"handrail:work:{id}")
        if task.done():  # It never had to wait. Its answer is not that of the next delivery, which may come at once.
            self._forget(ref)
            return task.result()
        self._running[ref] = task
        task.add_done_callback(lambda _: self._forget(ref))
        return await asyncio.shield(task)

    def _forget(self, ref: CallRef) -> None:
        self._running.pop(ref, None)
        self._given_back.discard(ref)
        self._cancelled.discard(ref)
        self._leases.release_row(ref)

    async def _handle(self, ref: CallRef) -> float | None:
        try:
            session_id, call_id = ref
            item = await self._work.take(
                session_id=session_id, call_id=call_id, owner=self._executor.owner, lease=self._lease
            )
            if item is None:
                return await self._look_again(ref)
            if self._stopping.is_set() or item.definition not in self._executor.durable_definitions:
                delay = 0.0 if self._stopping.is_set() else _FOREIGN_DELAY
                await self._work.release(item, state="queued", delay=delay, is_begun=False)
                return delay
            self._leases.hold_row(ref)
            return await self._run(item)
        except (Exception, asyncio.CancelledError) as error:
            if must_propagate(error):
                raise
            log.error("a stored call could not be handled; it is tried again", exc_info=error)
            return _AWAY_DELAY

    async def _look_again(self, ref: CallRef) -> float | None:
        """When a call that cannot be taken now has to be delivered again."""
        session_id, call_id = ref
        item = await self._work.get(session_id=session_id, call_id=call_id)
        if item is None:
            log.warning("the call %s was delivered, and is not stored", call_id)
            return None
        if item.state in ("done", "parked"):  # Whoever decides about its approval sends it again.
            return None
        return max(item.due_at - item.read_at, _SHORTEST_ROUND)

    async def _run(self, item: WorkItem) -> float | None:
        try:
            context = await self._build_context(item)
            executor = await self._choose_executor(item)
        except _UnusableError as error:  # Its text has no values, so that it can be logged.
            log.error("a stored call of %s cannot be run, and is tried again: %s", item.tool, error)
            return await self._release(item, "queued")
        except (Exception, asyncio.CancelledError) as error:
            if must_propagate(error):
                raise
            log.error(
                "the context of a stored call of %s could not be made; it is tried again", item.tool, exc_info=error
            )
            return await self._release(item, "queued")
        if item.cancelled_at is not None and await self._durable.is_unclaimed(item.ref):
            await self._durable.finish_cancelled(item)
            return None
        stored = StoredCall(item=item)
        with self._durable.sender.relay(item, self._executor.subscribe) as finish:
            result = await executor.run_stored(stored, context)
            again = await self._conclude(stored, result)
            if again is None or (result.error is not None and result.error.code == "outcome_unknown"):
                finish()
            return again

    async def _build_context(self, item: WorkItem) -> ToolContext[Any]:
        """The context of a call: what this process makes of it, with the ids and the turn of the stored call."""
        made: Any = None if self._make_context is None else self._make_context(item)
        if inspect.isawaitable(made):
            made = await TimeBudget(self._executor.timeouts.overhead).run(made)
        if made is None and self._make_context is None:
            made = ToolContext(session_id=item.session_id)
        if not isinstance(made, ToolContext):
            raise _UnusableError(f"context must return a ToolContext, got {type(made).__name__}.")
        return structs.replace(
            cast("ToolContext[Any]", made),
            session_id=item.session_id,
            tenant_id=item.tenant_id,
            customer_id=item.customer_id,
            agent_id=item.agent_id,
            turn=item.turn,
            wakes=item.wakes,
        )

    async def _choose_executor(self, item: WorkItem) -> Executor:
        """The executor whose rules a call is under now."""
        if self._find_executor is None:
            return self._executor
        executor = await TimeBudget(self._executor.timeouts.overhead).run(self._find_executor(item))
        if not isinstance(executor, Executor):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise _UnusableError(f"find_executor must return an Executor, got {type(executor).__name__}.")
        if executor.durable is not self._durable:  # Its ledger knows nothing of the call.
            raise _UnusableError(
                "find_executor must return an executor that with_tools() made from that of the worker."
            )
        if executor.has_tool(item.tool) and item.definition not in executor.durable_definitions:
            raise _UnusableError(
                f"find_executor must return an executor whose tool {item.tool!r} is that of the worker."
            )
        return executor

    async def _conclude(self, stored: StoredCall, result: ToolResult) -> float | None:
        """Write what became of a call, unless its settlement did; when it has to be delivered again."""
        item, code = stored.item, None if result.error is None else result.error.code
        if stored.is_ended:
            return None
        if item.ref in self._given_back:
            await self._work.release(item, state="queued", delay=0.0, is_begun=False)
            return 0.0
        if code == "outcome_unknown":
            return await self._release(item, "waiting")
        if not result.recorded or code in _AGAIN:
            if code != "unavailable" or item.attempts < _MAX_UNAVAILABLE:
                return await self._release(item, "queued")
        elif result.origin != "run":  # The ledger has its result.
            await self._work.end(session_id=item.session_id, call_id=item.call_id)
            return None
        if not await self._durable.is_unclaimed(item.ref):  # It was begun before: what the ledger says of it counts.
            return await self._release(item, "waiting")
        await self._work.finish(item, self._durable.settlement.to_record(result))
        return None

    async def _release(self, item: WorkItem, state: Any) -> float:
        delay = min(self._lease / 2 * 1.5 ** min(item.attempts, 20), _MAX_DELAY)
        await self._work.release(item, state=state, delay=delay)
        return delay

    # Everything else.

    async def _watch(self) -> None:
        """Stop calls that somebody cancelled, observe the leases of other owners, and send again what was lost."""
        while True:
            await asyncio.sleep(self._round)
            try:
                await self._stop_cancelled()
                for seen in await self._work.observe(owner=self._executor.owner):
                    self._leases.observe((seen.session_id, seen.call_id), seen.owner, seen.lease_until)
                for item in await self._work.find(resend_after=self._executor.timeouts.resend_after):
                    await self._durable.send(item)
            except Exception:
                log.warning("stored calls could not be looked through; it is tried again", exc_info=True)
                await asyncio.sleep(_AWAY_DELAY)

    async def _stop_cancelled(self) -> None:
        if not self._running:
            return
        for ref in await self._work.find_cancelled(owner=self._executor.owner):
            if ref not in self._cancelled:
                self._cancelled.add(ref)
                self._executor.cancel(ref[1], session_id=ref[0])


class _Handle:
    """The worker, as its delivery sees it."""

    def __init__(self, executor: Executor, handle: Callable[[str], Awaitable[float | None]]) -> None:
        self._executor = executor
        self._handle = handle
        self.owner = executor.owner
        self.lease = executor.timeouts.lease

    @property
    def definitions(self) -> frozenset[str]:
        """The digests of the definitions that the worker has, as they are now."""
        return self._executor.durable_definitions

    async def __call__(self, id: str) -> float | None:
        try:
            return await self._handle(id)
        except Exception:  # `handle` catches everything: this is a defect.
            log.exception("a stored call could not be handled")
            return _AWAY_DELAY

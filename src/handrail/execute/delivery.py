"""What brings the ids of stored calls to workers: at least once, and in any order."""

import asyncio
import heapq
import itertools
from collections import deque
from typing import Protocol

from handrail.core.log import log


class Handle(Protocol):
    """A worker, as a delivery sees it."""

    @property
    def owner(self) -> str:
        """Who takes calls: the executor of the worker."""
        ...

    @property
    def lease(self) -> float:
        """Seconds for which a call that was taken is this owner's, unless that is renewed."""
        ...

    @property
    def definitions(self) -> frozenset[str]:
        """The digests of the definitions that the worker has."""
        ...

    async def __call__(self, id: str) -> float | None:
        """Handle the call with this id: None, it needs no delivery any more; seconds, deliver it again then.

        It never raises, and a cancellation does not reach what it runs.
        """
        ...


class Delivery(Protocol):
    """Brings the ids of stored calls to workers. The ledger decides what runs: an id may come more than once."""

    async def send(self, id: str, *, tenant: str | None, priority: int) -> None:
        """Bring an id to some worker; the same one may be sent again at any time."""
        ...

    async def serve(self, handle: Handle, *, max_running: int, stopping: asyncio.Event) -> None:
        """Hand ids to a worker, at most `max_running` at once, until `stopping` is set and all were handled."""
        ...


class MemoryDelivery:
    """Delivers within one process: tenants in turn, of each the highest priority first."""

    def __init__(self) -> None:
        self._queues: dict[str, list[tuple[int, int, str]]] = {}
        self._turns: deque[str] = deque()
        """The tenants that have ids, the next one first."""
        self._waiting: set[str] = set()
        self._numbers = itertools.count()
        self._changed: set[asyncio.Event] = set()

    async def send(self, id: str, *, tenant: str | None, priority: int) -> None:
        if id in self._waiting:
            return
        self._waiting.add(id)
        queue = self._queues.setdefault(tenant or "", [])
        if not queue:
            self._turns.append(tenant or "")
        heapq.heappush(queue, (-priority, next(self._numbers), id))
        for changed in self._changed:
            changed.set()

    def _take(self) -> tuple[str, str, int] | None:
        if not self._turns:
            return None
        tenant = self._turns.popleft()
        queue = self._queues[tenant]
        priority, _, id = heapq.heappop(queue)
        self._waiting.discard(id)
        if queue:
            self._turns.append(tenant)
        else:
            del self._queues[tenant]
        return id, tenant, -priority

    async def serve(self, handle: Handle, *, max_running: int, stopping: asyncio.Event) -> None:
        changed = asyncio.Event()
        self._changed.add(changed)
        running: set[asyncio.Task[None]] = set()
        stopped = asyncio.ensure_future(stopping.wait())
        try:
            while not stopping.is_set():
                while len(running) < max_running and (taken := self._take()) is not None:
                    running.add(asyncio.create_task(self._handle(handle, *taken), name=f"handrail:deliver:{taken[0]}"))
                changed.clear()
                waking = asyncio.ensure_future(changed.wait())
                try:
                    await asyncio.wait({stopped, waking, *running}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    waking.cancel()
                running = {task for task in running if not task.done()}
            if running:
                await asyncio.wait(running)
        finally:
            stopped.cancel()
            self._changed.discard(changed)

    async def _handle(self, handle: Handle, id: str, tenant: str, priority: int) -> None:
        again = await handle(id)
        if again is not None:
            loop = asyncio.get_running_loop()
            loop.call_later(again, self._send_again, id, tenant, priority)

    def _send_again(self, id: str, tenant: str, priority: int) -> None:
        sending = asyncio.ensure_future(self.send(id, tenant=tenant, priority=priority))
        sending.add_done_callback(_log_failure)


def _log_failure(sending: "asyncio.Future[None]") -> None:
    if not sending.cancelled() and (error := sending.exception()) is not None:
        log.error("a call could not be sent again", exc_info=error)

"""Temporal as the delivery of durable calls: one standalone activity for each stored call."""

import asyncio
import hashlib
from datetime import timedelta
from typing import Final

from handrail.core.log import log
from handrail.errors import ConfigError, MissingExtraError
from handrail.execute.delivery import Handle

try:
    from temporalio import activity
    from temporalio.client import Client
    from temporalio.common import ActivityIDConflictPolicy, Priority, RetryPolicy
    from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
    from temporalio.worker import Worker
except ImportError as error:  # pragma: no cover
    raise MissingExtraError("temporalio", extra="temporal") from error

__all__ = ["TemporalDelivery"]

_ACTIVITY: Final = "handrail.deliver"
_LONGEST: Final = timedelta(days=1)
"""An attempt may take as long as its call does, and heartbeats say that it is alive: Temporal wants some limit."""
_SEND_TIMEOUT: Final = timedelta(seconds=5)
_SHORTEST_DELAY: Final = 0.01
_MAX_ID_LENGTH: Final = 500
"""Temporal takes ids of 1,000 bytes, unless its operator says otherwise."""
_MAX_KEY_LENGTH: Final = 64
_LOWEST_PRIORITY: Final = 5
_DEFAULT_PRIORITY: Final = 3


class TemporalDelivery:
    """Delivers the ids of stored calls with Temporal: `open_store(url, delivery=TemporalDelivery(client))`.

    Temporal sees ids, tenants and priorities: no arguments and no results. It needs a server that has standalone
    activities (1.31 or later).

    Args:
        client: A connected client, of a namespace.
        task_queue: The task queue of the calls of one store: two stores need two.
        lease: The lease of the workers, `Timeouts(lease=…)`: a worker that is not heard of for so long is given up, and
            what it had is delivered again. It is heard of every third of that time.
    """

    def __init__(self, client: Client, *, task_queue: str = "handrail", lease: float = 15.0) -> None:
        if not task_queue:
            raise ConfigError("task_queue must have a name, got ''.")
        if not 0.1 <= lease <= _LONGEST.total_seconds():
            raise ConfigError(f"lease must be from 0.1 s to a day, got {lease!r}.")
        self._client = client
        self._task_queue = task_queue
        self._lease = lease

    async def send(self, id: str, *, tenant: str | None, priority: int) -> None:
        """Start an activity for a call; one that has not ended stays as it is."""
        await self._client.start_activity(
            _ACTIVITY,
            id,
            id=_shorten(f"{self._task_queue}/{id}", _MAX_ID_LENGTH),
            task_queue=self._task_queue,
            start_to_close_timeout=_LONGEST,
            heartbeat_timeout=timedelta(seconds=self._lease),
            id_conflict_policy=ActivityIDConflictPolicy.USE_EXISTING,
            retry_policy=RetryPolicy(initial_interval=timedelta(seconds=self._lease / 6), backoff_coefficient=1.0),
            priority=Priority(
                priority_key=min(max(_DEFAULT_PRIORITY - priority, 1), _LOWEST_PRIORITY),
                fairness_key=_shorten(tenant, _MAX_KEY_LENGTH) if tenant else None,
            ),
            rpc_timeout=_SEND_TIMEOUT,
        )

    async def serve(self, handle: Handle, *, max_running: int, stopping: asyncio.Event) -> None:
        """Run activities until `stopping` is set and all were handled.

        If it is cancelled it leaves what still runs: Temporal delivers that again.
        """
        served = _Served(handle)
        worker = Worker(
            self._client,
            task_queue=self._task_queue,
            activities=[served.deliver],
            max_concurrent_activities=max_running,
            max_heartbeat_throttle_interval=timedelta(seconds=self._lease / 3),
            graceful_shutdown_timeout=_LONGEST,  # The worker that serves has a grace of its own, and cancels after it.
        )
        running = asyncio.create_task(worker.run(), name="handrail:temporal")
        stopped = asyncio.ensure_future(stopping.wait())
        try:
            await asyncio.wait({running, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                await worker.shutdown()
            await asyncio.shield(running)
        finally:
            served.leave()
            stopped.cancel()
            if not running.done():
                running.cancel()
                running.add_done_callback(_log_failure)


class _Served:
    """The activity, for the worker that handles its calls."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._left: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def leave(self) -> None:
        """End the activities; what they run goes on without them."""
        if not self._left.done():
            self._left.set_result(None)

    @activity.defn(name=_ACTIVITY)
    async def deliver(self, id: str) -> None:
        """Handle a call, and say whether it has to be delivered again.

        Temporal cancels an activity that it believes dead, whose call may be about to end: that must not reach it.
        """
        handling = asyncio.ensure_future(self._handle(id))
        beating = asyncio.create_task(_beat(), name=f"handrail:beat:{id}")
        try:
            while not handling.done() and not self._left.done():
                try:  # `wait` does not cancel what it waits for.
                    await asyncio.wait({handling, self._left}, return_when=asyncio.FIRST_COMPLETED)
                except asyncio.CancelledError:
                    log.info("Temporal has cancelled the delivery of %s; the call goes on", id)
        finally:
            beating.cancel()
        again = handling.result() if handling.done() else self._handle.lease
        if again is not None:
            raise ApplicationError(
                "deliver it again",
                next_retry_delay=timedelta(seconds=max(again, _SHORTEST_DELAY)),
                category=ApplicationErrorCategory.BENIGN,
            )


async def _beat() -> None:
    """Tell Temporal that this attempt is alive, three times within the time that it waits."""
    timeout = activity.info().heartbeat_timeout
    if timeout is None:
        return
    while True:
        activity.heartbeat()
        await asyncio.sleep(timeout.total_seconds() / 3)


def _shorten(text: str, length: int) -> str:
    """A text, or its digest if it is longer than Temporal takes."""
    return text if len(text.encode()) <= length else hashlib.sha256(text.encode()).hexdigest()


def _log_failure(running: "asyncio.Task[None]") -> None:
    if not running.cancelled() and (error := running.exception()) is not None:
        log.warning("a worker of Temporal ended with an error", exc_info=error)

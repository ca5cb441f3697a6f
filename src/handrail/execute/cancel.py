"""Interrupting calls: one, those of a response, or all of a session."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from handrail.core.events import CallCancelled, Cancellation, Cancelling
from handrail.execute.running import Running
from handrail.execute.schedule import Lanes, Place, around
from handrail.execute.tell import Teller

_LAST = 1.0
"""Seconds that stopped calls have to end, before a session is told as ended without them."""


class Cancelled(Struct, frozen=True, kw_only=True):
    """What came of cancelling everything in a session."""

    cancelled: int
    remaining: int
    """Calls that could not be brought to an end within the grace; their outcome is recorded as unknown."""


class Interruptions:
    """Stops calls, each as its tool wants it."""

    def __init__(self, *, running: dict[Place, Running], lanes: Lanes, tell: Teller) -> None:
        self._running = running
        self._lanes = lanes
        self._tell = tell

    def of(self, session_id: str) -> list[Running]:
        """The calls of a session that have no answer yet."""
        return [one for one in self._running.values() if one.session_id == session_id]

    def one(self, call_id: str, *, session_id: str) -> bool:
        """Cancel one call, unless its tool cannot be interrupted."""
        running = self._running.get((session_id, call_id))
        if running is None or running.interruption == "uninterruptible":
            return False
        self._stop(running, "asked to")
        return True

    def response(self, response_id: str, *, session_id: str) -> int:
        """Interrupt the calls that a response asked for; how many were cancelled."""
        every = [one for one in self.of(session_id) if response_id and one.call.response_id == response_id]
        reason = "the response was interrupted" if response_id else "missing_response_id"
        cancelled = sum(self._interrupt(one, reason) for one in every)
        remaining = len(every) - cancelled
        self._told(every, session_id, reason, cancelled, remaining=remaining, response_id=response_id)
        return cancelled

    async def all(self, session_id: str, *, grace: float) -> Cancelled:
        """Interrupt every call of a session, and wait until they have ended."""
        reason = "the session ended"
        # Whoever ends the session from inside one of its calls does not wait for that call.
        mine = around()
        every = [one for one in self.of(session_id) if not self._lanes.is_inside(one.place, mine)]
        # Before anything is stopped: a read answers those who wait when it ends, and nobody later.
        ends = {one: one.line or one.promise() for one in every}
        self._tell(
            Cancelling(
                at=time.time(),
                session_id=session_id,
                tenant_id=every[0].tenant_id if every else None,
                tracked=len(every),
                cancellable=sum(map(_is_interruptible, every)),
            )
        )
        cancelled = sum(self._interrupt(one, reason) for one in every)
        for one in await _late(ends, grace):
            if not one.stop_asked:
                self._stop(one, reason)
                cancelled += 1
        stuck = await _late({one: end for one, end in ends.items() if not end.done()}, _LAST)
        self._told(every, session_id, reason, cancelled, remaining=len(stuck))
        return Cancelled(cancelled=cancelled, remaining=len(stuck))

    def _interrupt(self, running: Running, reason: str) -> bool:
        if running.interruption == "finish_silently":
            running.silent = True
        if not _is_interruptible(running):
            return False
        self._stop(running, reason)
        return True

    def _stop(self, running: Running, reason: str) -> None:
        running.stop("cancelled")
        self._tell(
            CallCancelled(
                at=time.time(),
                session_id=running.session_id,
                tenant_id=running.tenant_id,
                call=running.call,
                reason=reason,
            )
        )

    def _told(
        self,
        every: list[Running],
        session_id: str,
        reason: str,
        cancelled: int,
        *,
        remaining: int,
        response_id: str | None = None,
    ) -> None:
        self._tell(
            Cancellation(
                at=time.time(),
                session_id=session_id,
                tenant_id=every[0].tenant_id if every else None,
                scope="session" if response_id is None else "response",
                response_id=response_id,
                reason=reason,
                cancelled=cancelled,
                remaining=remaining,
                pending=len(self.of(session_id)),
            )
        )


def _is_interruptible(running: Running) -> bool:
    """Whether an interruption of the conversation stops it: what has begun may want to finish."""
    return running.interruption == "cancel" or (not running.began and running.interruption != "uninterruptible")


async def _late(ends: Mapping[Running, asyncio.Future[Any]], seconds: float) -> list[Running]:
    """Wait for calls to end; those that did not."""
    if ends:
        await asyncio.wait(ends.values(), timeout=seconds)
    return [one for one, end in ends.items() if not end.done()]

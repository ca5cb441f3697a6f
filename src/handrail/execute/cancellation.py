"""Cancels calls: one, those of a response, or all of a session."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from handrail.core.events import CallCancelled, Cancellation, Cancelling
from handrail.execute.event_bus import EventBus
from handrail.execute.running import RunningCall, RunningCalls
from handrail.execute.scheduler import Scheduler, current_scope

_FINAL_GRACE = 1.0
"""Seconds that stopped calls have to end, before the session is reported as ended without them."""


class CancelResult(Struct, frozen=True, kw_only=True):
    """What `cancel_all` did."""

    cancelled: int
    remaining: int
    """Calls that did not end within the grace period; their outcome is recorded as unknown."""


class CallCanceller:
    """Stops running calls, each as its tool's `on_interrupt` says."""

    def __init__(self, *, running: RunningCalls, scheduler: Scheduler, events: EventBus) -> None:
        self._running = running
        self._scheduler = scheduler
        self._events = events

    def list_calls(self, session_id: str) -> list[RunningCall]:
        """The calls of a session that have no result yet."""
        return self._running.list_session(session_id)

    def cancel_call(self, call_id: str, *, session_id: str) -> bool:
        """Cancel one call, unless its tool cannot be interrupted."""
        running = self._running.find((session_id, call_id))
        if running is None or running.on_interrupt == "uninterruptible":
            return False
        self._stop(running, "asked to", "call")
        return True

    def cancel_response(self, response_id: str, *, session_id: str) -> int:
        """Interrupt the calls that a response asked for; returns how many were cancelled."""
        every = [
            running
            for running in self.list_calls(session_id)
            if response_id and running.call.response_id == response_id
        ]
        reason = "the response was interrupted" if response_id else "missing_response_id"
        cancelled = sum(self._interrupt(running, reason, "response") for running in every)
        remaining = len(every) - cancelled
        self._emit_summary(every, session_id, reason, cancelled, remaining=remaining, response_id=response_id)
        return cancelled

    async def cancel_session(self, session_id: str, *, grace: float) -> CancelResult:
        """Interrupt every call of a session, and wait until they have ended."""
        reason = "the session ended"
        # A call that ends its own session does not wait for itself.
        scope = current_scope()
        every = [
            running for running in self.list_calls(session_id) if not self._scheduler.is_inside(running.ref, scope)
        ]
        # Taken before anything is stopped: a read resolves only those futures that exist when it ends.
        ends = {running: running.task or running.result_future() for running in every}
        self._events.emit(
            Cancelling(
                at=time.time(),
                session_id=session_id,
                tenant_id=every[0].tenant_id if every else None,
                tracked=len(every),
                cancellable=sum(map(_is_interruptible, every)),
            )
        )
        cancelled = sum(self._interrupt(running, reason, "session") for running in every)
        for running in await _wait_for_end(ends, grace):
            if running.stopped_by is None:
                self._stop(running, reason, "session")
                cancelled += 1
        stuck = await _wait_for_end(ends, _FINAL_GRACE)
        self._emit_summary(every, session_id, reason, cancelled, remaining=len(stuck))
        return CancelResult(cancelled=cancelled, remaining=len(stuck))

    def _interrupt(self, running: RunningCall, reason: str, scope: Literal["response", "session"]) -> bool:
        if running.on_interrupt == "finish_silently":
            running.is_silent = True
        if not _is_interruptible(running):
            return False
        self._stop(running, reason, scope)
        return True

    def _stop(self, running: RunningCall, reason: str, scope: Literal["call", "response", "session"]) -> None:
        if running.stopped_by is not None:  # It is about to end, and whoever stopped it has said so.
            return
        running.stop("cancelled")
        self._events.emit(
            CallCancelled(
                at=time.time(),
                session_id=running.session_id,
                tenant_id=running.tenant_id,
                call=running.call,
                reason=reason,
                scope=scope,
            )
        )

    def _emit_summary(
        self,
        every: list[RunningCall],
        session_id: str,
        reason: str,
        cancelled: int,
        *,
        remaining: int,
        response_id: str | None = None,
    ) -> None:
        self._events.emit(
            Cancellation(
                at=time.time(),
                session_id=session_id,
                tenant_id=every[0].tenant_id if every else None,
                scope="session" if response_id is None else "response",
                response_id=response_id,
                reason=reason,
                cancelled=cancelled,
                remaining=remaining,
                pending=len(self.list_calls(session_id)),
            )
        )


def _is_interruptible(running: RunningCall) -> bool:
    """Whether an interruption of the conversation stops the call: one whose handler was entered may finish."""
    return running.on_interrupt == "cancel" or (not running.has_begun and running.on_interrupt != "uninterruptible")


async def _wait_for_end(ends: Mapping[RunningCall, asyncio.Future[Any]], timeout: float) -> list[RunningCall]:
    """Wait for calls to end; returns those that did not."""
    if ends:
        await asyncio.wait(ends.values(), timeout=timeout)
    return [running for running, end in ends.items() if not end.done()]

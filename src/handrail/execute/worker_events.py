"""Events of stored calls: from the worker that runs a call to the listeners of the process that submitted it."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Sized
from contextlib import contextmanager
from typing import Any, Final

from msgspec import Struct

from handrail.core.events import CallFinished, CallStarted, CallTakenOver, Event, Progress, WorkerEvent
from handrail.core.log import log
from handrail.core.redact import Redactor, cut_text
from handrail.core.values import ToolCall, ToolResult
from handrail.errors import shorten
from handrail.execute.event_bus import EventBus
from handrail.execute.scheduler import CallRef
from handrail.execute.stored_calls import CallNotice, NotifyingWork, WorkItem

_MAX_MESSAGE_CHARS: Final = 500
"""Of a progress message: Postgres notifies with 8,000 bytes at most, and an encrypted text is longer."""
_MAX_READ_CHARS: Final = 4 * _MAX_MESSAGE_CHARS
"""Of a message that is redacted before it is cut."""
_MAX_PROGRESS: Final = 1_000
"""Reports of progress are dropped while so many notices wait to be sent, or to be handed to listeners: a call that
reports without end takes no other call's end away."""
_MAX_WAITING: Final = 20_000
"""All others are dropped while so many wait."""
_MAX_FOLLOWED: Final = 10_000
"""Calls that an executor follows; above it, the oldest are forgotten."""
_SEND_TIMEOUT: Final = 5.0


def _is_dropped(notice: CallNotice, waiting: Sized) -> bool:
    return len(waiting) >= (_MAX_PROGRESS if notice.kind == "progress" else _MAX_WAITING)


class NoticeSender:
    """Tells other processes what happens to the calls that a worker runs."""

    def __init__(self, work: object, *, owner: str, redactor: Redactor) -> None:
        self._work = work if isinstance(work, NotifyingWork) else None
        self._owner = owner
        self._redactor = redactor
        self._waiting: list[CallNotice] = []
        self._sending: asyncio.Task[None] | None = None

    @contextmanager
    def relay(
        self, item: WorkItem, subscribe: Callable[[str, Callable[[Any], object]], Any]
    ) -> "Generator[Callable[[], None]]":
        """Tell what the executor says about a call inside the block, whose value is called when the call has ended."""
        if self._work is None or not item.is_heard:
            yield lambda: None
            return

        def listen(event: Event) -> None:
            notice = self._build(item.ref, event)
            if notice is not None:
                self._put(notice)

        def finish() -> None:
            self._put(self._notice(item.ref, "finished"))

        with subscribe(item.session_id, listen):
            yield finish

    def _notice(self, ref: CallRef, kind: Any, **values: Any) -> CallNotice:
        return CallNotice(session_id=ref[0], call_id=ref[1], worker=self._owner, kind=kind, at=time.time(), **values)

    def _build(self, ref: CallRef, event: Event) -> CallNotice | None:
        match event:
            case CallStarted() if event.call.id == ref[1]:
                return self._notice(ref, "started")
            case CallTakenOver() if event.call.id == ref[1]:
                return self._notice(ref, "taken_over", previous_owner=event.previous_owner)
            case Progress() if event.call_id == ref[1]:
                message = self._redactor.text(cut_text(event.message, _MAX_READ_CHARS))
                return self._notice(
                    ref, "progress", message=shorten(message, _MAX_MESSAGE_CHARS), fraction=event.fraction
                )
            case _:
                return None

    def _put(self, notice: CallNotice) -> None:
        if _is_dropped(notice, self._waiting):
            return
        self._waiting.append(notice)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.ensure_future(self._send())

    async def _send(self) -> None:
        assert self._work is not None
        while self._waiting:
            sent, self._waiting = self._waiting, []
            try:
                await asyncio.wait_for(self._work.publish(sent), _SEND_TIMEOUT)
            except Exception:  # Who listens finds out how a call ended by waiting for it.
                log.warning("%d notices about stored calls could not be sent", len(sent), exc_info=True)

    async def flush(self, *, timeout: float) -> None:
        """Wait until what was said is sent."""
        if self._sending is not None and not self._sending.done():
            await asyncio.wait({self._sending}, timeout=timeout)


class _Followed(Struct):
    """A call that listeners of this process hear of."""

    tool: str
    tenant_id: str | None
    customer_id: str | None
    is_in_doubt: bool = False
    """Whether its listeners know that its outcome is unknown."""


class NoticeReceiver:
    """Hands what workers of other processes tell about calls to the listeners of this executor."""

    def __init__(
        self,
        work: object,
        *,
        owner: str,
        events: EventBus,
        read_result: Callable[[CallRef], Awaitable[ToolResult | None]],
    ) -> None:
        self._work = work if isinstance(work, NotifyingWork) else None
        self._owner = owner
        self._events = events
        self._read_result = read_result
        self._followed: dict[CallRef, _Followed] = {}
        self._waiting: deque[CallNotice] = deque()
        self._handing: asyncio.Task[None] | None = None

    def can_hear(self, session_id: str) -> bool:
        """Whether there is a listener for the calls of a session, and a store that can notify."""
        return self._work is not None and self._events.has_others(session_id)

    async def follow(self, item: WorkItem) -> None:
        """Hear of a call from now on, until it has ended."""
        if self._work is None:
            return
        if len(self._followed) >= _MAX_FOLLOWED:
            del self._followed[next(iter(self._followed))]
        self._followed.setdefault(
            item.ref, _Followed(tool=item.tool, tenant_id=item.tenant_id, customer_id=item.customer_id)
        )
        try:
            await asyncio.wait_for(self._work.subscribe(self), _SEND_TIMEOUT)
        except Exception:
            log.warning("the events of stored calls are not heard here", exc_info=True)

    def __call__(self, notice: CallNotice) -> None:
        """A notice came."""
        # What this executor runs itself, its listeners have heard.
        is_new = notice.worker != self._owner and (notice.session_id, notice.call_id) in self._followed
        if is_new and not _is_dropped(notice, self._waiting):
            self._waiting.append(notice)
            if self._handing is None or self._handing.done():
                self._handing = asyncio.ensure_future(self._hand())

    async def _hand(self) -> None:
        while self._waiting:
            notice = self._waiting.popleft()
            try:
                event = await self._build(notice)
            except Exception:
                log.warning("an event of a stored call is lost: its result cannot be read", exc_info=True)
                continue
            if event is not None:
                self._events.emit_to_others(event)

    async def _build(self, notice: CallNotice) -> WorkerEvent | None:
        ref = (notice.session_id, notice.call_id)
        followed = self._followed.get(ref)
        if followed is None:
            return None
        whose: dict[str, Any] = {
            "at": notice.at,
            "session_id": notice.session_id,
            "tenant_id": followed.tenant_id,
            "customer_id": followed.customer_id,
        }
        call = ToolCall(id=notice.call_id, name=followed.tool)
        event: Event | None
        match notice.kind:
            case "started":
                event = CallStarted(**whose, call=call)
            case "taken_over":
                event = CallTakenOver(**whose, call=call, previous_owner=notice.previous_owner, owner=notice.worker)
            case "progress":
                event = Progress(
                    **whose,
                    call_id=call.id,
                    tool_name=call.name,
                    message=notice.message,
                    fraction=notice.fraction,
                )
            case "finished":
                event = await self._build_finished(ref, followed, call, whose)
        return None if event is None else WorkerEvent(**whose, worker=notice.worker, event=event)

    async def _build_finished(
        self, ref: CallRef, followed: _Followed, call: ToolCall, whose: dict[str, Any]
    ) -> CallFinished | None:
        """Read the result: the store says what is true."""
        result = await self._read_result(ref)
        if result is None:  # It is tried again.
            return None
        if result.error is not None and result.error.code == "outcome_unknown":
            if followed.is_in_doubt:
                return None
            followed.is_in_doubt = True
        else:
            self._followed.pop(ref, None)
        return CallFinished(**whose, call=call, result=result, decision=result.decision)

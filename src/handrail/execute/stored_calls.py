"""Stored calls: a durable call with its arguments, until a worker has finished it, and what workers tell of it."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, ClassVar, Final, Literal, Protocol, runtime_checkable
from weakref import WeakSet

from msgspec import Struct, structs

from handrail.authorize.approvals import Approvals
from handrail.core.log import log
from handrail.core.values import Decision, ToolCall
from handrail.execute.delivery import Delivery, MemoryDelivery
from handrail.execute.recorded_result import RecordedResult
from handrail.execute.scheduler import CallRef


class CallNotice(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that happened to a stored call; neither arguments nor results are in it."""

    session_id: str
    call_id: str
    worker: str
    """The `owner` of the executor that runs it."""
    kind: Literal["started", "progress", "taken_over", "finished"]
    at: float
    message: str = ""
    """Of `progress`; redacted and cut."""
    fraction: float | None = None
    previous_owner: str = ""
    """Of `taken_over`."""


OnNotice = Callable[[CallNotice], None]


@runtime_checkable
class NotifyingWork(Protocol):
    """What `Work` also is, where the store can notify other processes."""

    async def publish(self, notices: Sequence[CallNotice]) -> None:
        """Tell every process that follows calls; what is not heard is lost."""
        ...

    async def subscribe(self, receiver: OnNotice) -> None:
        """Hand every notice of any process to an object, which is held weakly; again with the same one is the same."""
        ...


class NoticeBoard:
    """Who gets every notice in one process; they are held weakly."""

    def __init__(self) -> None:
        self._receivers: WeakSet[OnNotice] = WeakSet()

    def __bool__(self) -> bool:
        return bool(self._receivers)

    def add(self, receiver: OnNotice) -> None:
        """Add a receiver, once."""
        self._receivers.add(receiver)

    def show(self, notice: CallNotice) -> None:
        """Hand a notice to all of them."""
        for receiver in tuple(self._receivers):
            receiver(notice)


WorkState = Literal["queued", "running", "parked", "waiting", "done"]
"""`queued`: a worker may take it. `running`: one has it. `parked`: somebody has to approve it first. `waiting`: it was
begun, and nobody knows how it ended. `done`: it has its result."""
_SEND_TIMEOUT: Final = 5.0
"""Seconds that a delivery may take to accept an id."""


class WorkItem(Struct, frozen=True, kw_only=True):
    """One stored call."""

    session_id: str
    call_id: str
    tool: str
    definition: str
    """The digest of the tool's definition: a worker takes calls of definitions that it has."""
    tenant_id: str | None = None
    customer_id: str | None = None
    agent_id: str | None = None
    turn: int = 0
    wakes: int = 0
    priority: int = 0
    """Calls of a tenant with a higher number are taken first."""
    call: ToolCall | None = None
    """The call as it was authorised, after the hooks; None once it is done."""
    sent_call: ToolCall | None = None
    """The call as the model sent it; None once it is done."""
    decision: Decision | None = None
    """What was decided when it was stored; a worker asks nobody again."""
    approval: str | None = None
    """The token of the approval that it waits for, or consumes."""
    repeat: int = 0
    """The number of the repetition that was decided about; 0 is the first time."""
    seal: str = ""
    """A digest of what was decided about which call, so that a change of the row is noticed."""
    state: WorkState = "queued"
    owner: str | None = None
    """The executor that has it."""
    attempts: int = 0
    """How often a worker has taken it."""
    queued_at: float | None = None
    """When it was queued; None for a call that ran where it was made."""
    due_at: float = 0.0
    """When a worker may take it: at once, after a delay, or when the lease of its owner or its approval ends."""
    ended_at: float | None = None
    cancelled_at: float | None = None
    """When somebody asked to cancel it."""
    recorded: RecordedResult | None = None
    """Its result, if it ended without an entry in the ledger."""
    is_heard: bool = False
    """Whether the process that stored it has listeners: its worker tells them what happens to it."""
    read_at: float = 0.0
    """When it was read, by the clock that its times are measured by."""

    @property
    def ref(self) -> CallRef:
        """The session and the id of the call."""
        return self.session_id, self.call_id

    @property
    def id(self) -> str:
        """What an engine gets to see: the session and the id of the call, in one text."""
        return build_work_id(self.session_id, self.call_id)


def build_work_id(session_id: str, call_id: str) -> str:
    """The id of a stored call for a delivery: `session_id/call_id`."""
    return f"{_escape(session_id)}/{_escape(call_id)}"


def parse_work_id(id: str) -> CallRef:
    """The session and the id of the call that an id names."""
    session_id, _, call_id = id.partition("/")
    return _unescape(session_id), _unescape(call_id)


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("/", "%2F")


def _unescape(text: str) -> str:
    return text.replace("%2F", "/").replace("%25", "%")


class StoredCall(Struct):
    """A stored call that a worker runs."""

    item: WorkItem
    is_ended: bool = False
    """Whether its row says what became of it: it is settled, or parked again."""


class ObservedLease(Struct, frozen=True):
    """A running entry of another owner, as a worker sees it before its lease is over."""

    session_id: str
    call_id: str
    owner: str
    lease_until: float


WaitForEnd = Callable[[float], Awaitable[object]]
"""What `Work.watch_end` gives. Entries are the ledger's, which knows the works that it ends, and not the other way."""


class Work(Protocol):
    """Where durable calls are stored. Times are seconds from now: leases are measured by the clock of the store."""

    is_immediate: ClassVar[bool]
    """Whether its methods never wait, so that they need no deadline."""
    delivery: Delivery
    """What brings the ids of queued calls to workers."""

    async def put(self, item: WorkItem, *, max_queued: int | None = None) -> bool:
        """Queue a call; False if its tenant has `max_queued` queued calls already.

        A call that is there and has not begun gets the new decision; one that runs or is in doubt stays as it is.
        """
        ...

    async def get(self, *, session_id: str, call_id: str) -> WorkItem | None:
        """The stored call."""
        ...

    async def take(self, *, session_id: str, call_id: str, owner: str, lease: float) -> WorkItem | None:
        """Make this owner the one that runs a call, if it is due or already this owner's; None if not."""
        ...

    async def release(
        self, item: WorkItem, *, state: Literal["queued", "waiting"], delay: float, is_begun: bool = True
    ) -> bool:
        """Give a call back that this owner has taken, to be delivered again after a delay.

        One that has not begun (`is_begun=False`) does not count as an attempt.
        """
        ...

    async def finish(self, item: WorkItem, recorded: RecordedResult) -> bool:
        """End a call that this owner has taken, and that has no entry in the ledger, with its result."""
        ...

    async def hold(self, item: WorkItem, *, lease: float) -> None:
        """Store a call that this owner has claimed in the ledger: it is this owner's, whoever had taken it."""
        ...

    async def end(self, *, session_id: str, call_id: str) -> None:
        """The call is settled in the ledger, whoever did that: its arguments are deleted."""
        ...

    async def park(self, item: WorkItem, *, expires_in: float, approvals: Approvals) -> WorkState:
        """Store a call until its approval is decided or expired; `queued` if it was decided meanwhile."""
        ...

    async def wake(self, token: str) -> list[WorkItem]:
        """Queue the calls that were parked for an approval that is decided now; it returns them."""
        ...

    async def find(self, *, resend_after: float, limit: int = 100) -> list[WorkItem]:
        """The calls that have to be sent again: those queued for so long and never begun, and those whose owner is
        gone, or whose time has come."""
        ...

    async def renew(self, refs: Sequence[CallRef], *, owner: str, lease: float) -> None:
        """Move the leases of calls that this owner runs. It is called from a thread and an event loop of its own."""
        ...

    async def cancel(self, *, session_id: str, call_id: str, recorded: RecordedResult | None) -> bool:
        """Ask whoever has a call to cancel it; one that was never taken ends at once, with this result if there is one.

        False if there is no such call that is open.
        """
        ...

    async def find_cancelled(self, *, owner: str) -> list[CallRef]:
        """The calls of an owner that somebody asked to cancel."""
        ...

    async def observe(self, *, owner: str) -> list[ObservedLease]:
        """The running entries of stored calls that other owners have."""
        ...

    async def count_attempts(self, refs: Sequence[CallRef]) -> Mapping[CallRef, int]:
        """How often workers have taken each of these calls, at once for all; those that are not stored are left out."""
        ...

    def watch_end(self, *, session_id: str, call_id: str) -> AbstractAsyncContextManager[WaitForEnd]:
        """Watch a call inside an `async with` block, whose value waits until the call may have ended, or until the
        given seconds are over; it may come back sooner. It returns True if somebody said that the call has ended, and
        its entry if it was settled in this process: that need not be read."""
        ...


def can_replace(known: WorkItem, owner: str | None) -> bool:
    """Whether a stored call may be stored anew: not while another owner has it, or while it is in doubt."""
    return known.state not in ("running", "waiting") or (owner is not None and known.owner == owner)


def _keep(known: WorkItem | None, item: WorkItem) -> WorkItem:
    """A call that is stored anew: it keeps how often it was taken, and who cancelled it."""
    if known is None:
        return item
    return structs.replace(item, attempts=known.attempts, cancelled_at=known.cancelled_at)


_LONGEST_DELAY: Final = 60.0
"""Seconds: no queued call waits longer. One that seems to was queued before the clock jumped back, and is due."""


def _is_due(item: WorkItem, now: float, after: float = 0.0) -> bool:
    return item.due_at <= now - after or (item.state == "queued" and item.due_at > now + _LONGEST_DELAY)


_LOOK: Final = 0.005
"""Seconds between two looks at a call in memory."""
CLOSED: Final[dict[str, Any]] = {"call": None, "sent_call": None, "owner": None, "state": "done"}
"""What becomes of a call that has its result."""


class MemoryWork:
    """Durable calls in memory, for tests: they outlive their worker, and not their process."""

    is_immediate: ClassVar[bool] = True

    def __init__(self, *, delivery: Delivery | None = None) -> None:
        self.delivery: Delivery = delivery or MemoryDelivery()
        self._items: dict[CallRef, WorkItem] = {}
        self._board = NoticeBoard()

    async def publish(self, notices: Sequence[CallNotice]) -> None:
        for notice in notices:
            self._board.show(notice)

    async def subscribe(self, receiver: OnNotice) -> None:
        self._board.add(receiver)

    def _read(self, ref: CallRef) -> WorkItem | None:
        item = self._items.get(ref)
        return None if item is None else structs.replace(item, read_at=time.time())

    def _write(self, item: WorkItem) -> WorkItem:
        self._items[item.ref] = item
        return item

    async def put(self, item: WorkItem, *, max_queued: int | None = None) -> bool:
        now, known = time.time(), self._items.get(item.ref)
        if known is not None and not can_replace(known, item.owner):
            return True
        if max_queued is not None and (known is None or known.state != "queued"):
            queued = sum(
                other.state == "queued" and other.tenant_id == item.tenant_id for other in self._items.values()
            )
            if queued >= max_queued:
                return False
        self._write(structs.replace(_keep(known, item), state="queued", queued_at=now, due_at=now))
        return True

    async def hold(self, item: WorkItem, *, lease: float) -> None:
        known = self._items.get(item.ref)
        queued_at = None if known is None else known.queued_at
        item = _keep(known, item)
        self._write(structs.replace(item, state="running", queued_at=queued_at, due_at=time.time() + lease))

    async def get(self, *, session_id: str, call_id: str) -> WorkItem | None:
        return self._read((session_id, call_id))

    async def take(self, *, session_id: str, call_id: str, owner: str, lease: float) -> WorkItem | None:
        now, item = time.time(), self._items.get((session_id, call_id))
        if item is None or item.state == "done":
            return None
        if not _is_due(item, now) and (item.state, item.owner) != ("running", owner):
            return None
        taken = structs.replace(
            item, state="running", owner=owner, due_at=now + lease, attempts=item.attempts + 1, read_at=now
        )
        return self._write(taken)

    def _get_own(self, item: WorkItem) -> WorkItem | None:
        known = self._items.get(item.ref)
        return known if known is not None and (known.state, known.owner) == ("running", item.owner) else None

    async def release(
        self, item: WorkItem, *, state: Literal["queued", "waiting"], delay: float, is_begun: bool = True
    ) -> bool:
        if (known := self._get_own(item)) is None:
            return False
        attempts = known.attempts if is_begun else known.attempts - 1
        self._write(structs.replace(known, state=state, owner=None, due_at=time.time() + delay, attempts=attempts))
        return True

    async def finish(self, item: WorkItem, recorded: RecordedResult) -> bool:
        if (known := self._get_own(item)) is None:
            return False
        self._write(structs.replace(known, recorded=recorded, ended_at=time.time(), **CLOSED))
        return True

    async def end(self, *, session_id: str, call_id: str) -> None:
        known = self._items.get((session_id, call_id))
        if known is not None and known.state != "done":
            self._write(structs.replace(known, ended_at=time.time(), **CLOSED))

    async def park(self, item: WorkItem, *, expires_in: float, approvals: Approvals) -> WorkState:
        known = self._items.get(item.ref)
        if known is not None and not can_replace(known, item.owner):
            return known.state
        now = time.time()
        parked = structs.replace(_keep(known, item), state="parked", owner=None, due_at=now + expires_in)
        self._write(parked)
        asked = None if item.approval is None else await approvals.get(item.approval)
        if asked is None or asked.state == "pending" or not can_wake(asked.by, asked.state):
            return "parked"
        self._write(structs.replace(parked, state="queued", due_at=now, queued_at=now))
        return "queued"

    async def wake(self, token: str) -> list[WorkItem]:
        now = time.time()
        parked = [item for item in self._items.values() if item.state == "parked" and item.approval == token]
        return [self._write(structs.replace(item, state="queued", due_at=now, queued_at=now)) for item in parked]

    async def find(self, *, resend_after: float, limit: int = 100) -> list[WorkItem]:
        now = time.time()
        due: list[WorkItem] = []
        for item in list(self._items.values()):
            if item.state in ("parked", "waiting") and item.due_at <= now:
                due.append(self._write(structs.replace(item, state="queued", due_at=now, queued_at=now)))
            elif item.state in ("queued", "running"):
                is_new = item.state == "queued" and not item.attempts
                if _is_due(item, now, resend_after if is_new else 0.0):
                    due.append(item)
        return sorted(due, key=lambda item: item.due_at)[:limit]

    async def renew(self, refs: Sequence[CallRef], *, owner: str, lease: float) -> None:
        for ref in refs:
            item = self._items.get(ref)
            if item is not None and (item.state, item.owner) == ("running", owner):
                self._write(structs.replace(item, due_at=time.time() + lease))

    async def cancel(self, *, session_id: str, call_id: str, recorded: RecordedResult | None) -> bool:
        now, item = time.time(), self._items.get((session_id, call_id))
        if item is None or item.state == "done":
            return False
        item = structs.replace(item, cancelled_at=now)
        if recorded is not None and item.state in ("queued", "parked") and not item.attempts:
            item = structs.replace(item, recorded=recorded, ended_at=now, **CLOSED)
        self._write(item)
        return True

    async def find_cancelled(self, *, owner: str) -> list[CallRef]:
        return [
            ref
            for ref, item in self._items.items()
            if item.cancelled_at is not None and (item.state, item.owner) == ("running", owner)
        ]

    async def observe(self, *, owner: str) -> list[ObservedLease]:
        return []  # One process: its ledger knows who is alive.

    async def count_attempts(self, refs: Sequence[CallRef]) -> Mapping[CallRef, int]:
        return {ref: self._items[ref].attempts for ref in refs if ref in self._items}

    @asynccontextmanager
    async def watch_end(self, *, session_id: str, call_id: str) -> AsyncGenerator[WaitForEnd]:
        async def wait(timeout: float) -> None:
            await asyncio.sleep(min(timeout, _LOOK))

        yield wait

    def list_items(self) -> Iterable[WorkItem]:
        """Every stored call, in the order in which they came."""
        return tuple(self._items.values())


async def send_item(delivery: Delivery, item: WorkItem) -> None:
    """Bring a stored call to a worker. What fails here is sent again by a worker: the row is there."""
    try:
        await asyncio.wait_for(delivery.send(item.id, tenant=item.tenant_id, priority=item.priority), _SEND_TIMEOUT)
    except Exception:
        log.warning(
            "a call of %s is stored; it could not be sent, and a worker sends it again", item.tool, exc_info=True
        )


def can_wake(by: str, state: str) -> bool:
    """Whether a decision lets a parked call go on by itself.

    A customer's yes counts from a later turn on, and only the conversation knows its turn: it sends the call again.
    """
    return state in ("approved", "denied") and (by == "operator" or state == "denied")

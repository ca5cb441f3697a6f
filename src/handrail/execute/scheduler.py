"""The order in which calls run: shared calls run together, exclusive calls run alone in their session, in order.

Calls of tools that are `concurrency_safe` or have a `lock_key` are shared, all others exclusive (see `CompiledTool`).
A call enters the queue of its session when it arrives, and waits until no earlier call excludes it. A `lock_key`
narrows "alone" to calls with the same key, over all sessions. A call that is made from inside a handler belongs to the
call of that handler: it does not wait for it, and is scheduled among the other calls that the handler makes.
"""

import asyncio
from collections import deque
from contextvars import ContextVar
from typing import Any, Final, Literal

from msgspec import Struct

Concurrency = Literal["shared", "exclusive"]


class LocksCrossed(Exception):
    """A call inside another one would wait for a lock whose holder waits for a lock of the other one."""


CallRef = tuple[str, str]
"""The session and the id of a call."""


class CallScope(Struct):
    """The call that the current code runs in, and that the calls it makes belong to."""

    scheduler: "Scheduler"
    ref: CallRef
    lock_key: str | None
    parent: "CallScope | None"
    limits: tuple[object, ...] = ()
    """The concurrency limits that the call already counts against, so that the calls it makes do not count again."""
    is_over: bool = False
    has_waited: bool = False
    """Whether its handler was not over after its first step."""
    output: Any = None
    """What its handler returned, until it is taken from here."""
    entry: "QueueEntry | None" = None
    """Its place in the queue of its lock, if it has a lock."""
    _inner: "Scheduler | None" = None

    def close(self) -> None:
        """The call is over: the caller's code, in the same task, does not run inside it any more."""
        self.is_over = True
        CURRENT_SCOPE.set(self.parent)

    def inner_scheduler(self) -> "Scheduler":
        """The scheduler of the calls that this call makes."""
        if self._inner is None:
            self._inner = Scheduler()
        return self._inner


CURRENT_SCOPE: Final[ContextVar[CallScope | None]] = ContextVar("handrail_call_scope", default=None)


def current_scope() -> CallScope | None:
    """The innermost call around the current code that is not over. A task that outlives its call belongs to none."""
    scope = CURRENT_SCOPE.get()
    while scope is not None and scope.is_over:
        scope = scope.parent
    return scope


class RunQueue(Struct, eq=False):
    """A first-in, first-out queue of calls, in which neighbouring shared calls run together."""

    owner: "dict[str, RunQueue]"
    key: str
    active: int = 0
    is_exclusive: bool = False
    waiting: "deque[tuple[QueueEntry, Concurrency]] | None" = None
    holder: "QueueEntry | None" = None
    """Who has the lock, if this is the queue of one."""

    def add(self, entry: "QueueEntry", concurrency: Concurrency) -> None:
        """Admit the entry, or put it at the end of the queue."""
        if not self.waiting and self._can_admit(concurrency):
            self.enter(concurrency)
            entry.admit(self)
        else:
            if self.waiting is None:
                self.waiting = deque()
            self.waiting.append((entry, concurrency))

    def enter(self, concurrency: Concurrency) -> None:
        """Count a call as running, without waiting."""
        self.active += 1
        if concurrency == "exclusive":
            self.is_exclusive = True

    def leave(self) -> None:
        """A call that was running is over."""
        self.active -= 1
        if not self.active:
            self.is_exclusive = False
        if self.waiting:
            self.admit_waiting()
        elif not self.active and self.owner.get(self.key) is self:
            del self.owner[self.key]

    def admit_waiting(self) -> None:
        """Admit as many waiting calls as can run now. One of the queue runs then: the last to leave forgets it."""
        while self.waiting:
            entry, concurrency = self.waiting[0]
            if not entry.is_over:
                if not self._can_admit(concurrency):
                    return
                self.enter(concurrency)
                self.waiting.popleft()
                entry.admit(self)
            else:
                self.waiting.popleft()

    def _can_admit(self, concurrency: Concurrency) -> bool:
        return not self.is_exclusive and (concurrency == "shared" or not self.active)


def get_queue(owner: dict[str, RunQueue], key: str) -> RunQueue:
    """The queue of this session or lock; a new one if there is none."""
    queue = owner.get(key)
    if queue is None:
        queue = owner[key] = RunQueue(owner, key)
    return queue


class QueueEntry(Struct, eq=False):
    """One call in the queue of its session, and then in the queue of its lock."""

    lock_key: str | None = None
    locks: dict[str, RunQueue] | None = None
    is_granted: bool = False
    is_over: bool = False
    session_queue: RunQueue | None = None
    """Set once the call was admitted there."""
    lock_queue: RunQueue | None = None
    """Set once the call was admitted there."""
    waits_in: RunQueue | None = None
    granted: "asyncio.Future[None] | None" = None
    parent: CallScope | None = None
    """The call that this one is made in."""
    nested: "set[QueueEntry] | None" = None
    """All entries of calls inside others that wait for a lock."""
    is_crossing: bool = False
    """Whether it will never be its turn, because it waits for a call that waits for it."""

    def enter(self, queue: RunQueue, concurrency: Concurrency) -> None:
        """Join the end of a queue."""
        self.waits_in = queue
        queue.add(self, concurrency)

    def admit(self, queue: RunQueue) -> None:
        """It is this call's turn in a queue; after the queue of its session comes the queue of its lock."""
        self.waits_in = None
        if self.session_queue is None:
            self.session_queue = queue
            if self.locks is not None and self.lock_key is not None:
                self.enter(get_queue(self.locks, self.lock_key), "exclusive")
                if not self.is_granted and self.nested is not None:
                    self._check_crossing(self.nested)
                return
        else:
            self.lock_queue, queue.holder = queue, self
        self.is_granted = True
        self._wake()

    def _wake(self) -> None:
        if self.granted is not None and not self.granted.done():
            self.granted.set_result(None)

    def _check_crossing(self, nested: "set[QueueEntry]") -> None:
        """Wait as a call inside another one, unless who has the lock waits, however indirectly, for that other one."""
        around, seen, queues = self._list_around(), set[QueueEntry](), [self.waits_in]
        while queues:
            queue = queues.pop()
            holder = None if queue is None else queue.holder
            if holder is None or holder in seen:
                continue
            if holder in around:
                self.is_crossing = True
                self._wake()
                return
            seen.add(holder)
            queues += [entry.waits_in for entry in nested if holder in entry._list_around()]
        nested.add(self)

    def _list_around(self) -> "set[QueueEntry]":
        """The entries, with a lock, of the calls that this one is inside of."""
        around, scope = set[QueueEntry](), self.parent
        while scope is not None:
            if scope.entry is not None:  # That of a call that is over holds nothing.
                around.add(scope.entry)
            scope = scope.parent
        return around

    async def wait(self) -> None:
        """Wait until the call may run. If the wait is cancelled, the entry leaves the queue."""
        if self.is_granted:
            return
        if self.is_crossing:
            raise LocksCrossed
        self.granted = asyncio.get_running_loop().create_future()
        try:
            await self.granted
        except asyncio.CancelledError:
            self.release()
            raise
        if self.is_crossing:
            raise LocksCrossed

    def release(self) -> None:
        """Leave the queues, whether the call waits or runs."""
        if self.is_over:
            return
        self.is_over = True
        if self.nested is not None:
            self.nested.discard(self)
        if self.lock_queue is not None:
            self.lock_queue.holder = None
            self.lock_queue.leave()
        if self.session_queue is not None:
            self.session_queue.leave()
        if self.waits_in is not None:
            self.waits_in.admit_waiting()


class Scheduler:
    """The queues of all sessions and of all lock keys."""

    __slots__ = ("_nested", "locks", "sessions")

    def __init__(self) -> None:
        self._nested: set[QueueEntry] = set()
        self.sessions: dict[str, RunQueue] = {}
        self.locks: dict[str, RunQueue] = {}

    def enqueue(self, session_id: str, concurrency: Concurrency, *, lock_key: str | None = None) -> QueueEntry:
        """Put a call at the end of its session's queue."""
        scope = CURRENT_SCOPE.get()
        sessions = self.sessions if scope is None else self._for_session(session_id, scope).sessions
        if lock_key is None and session_id not in sessions:  # Most calls have nothing to wait for.
            queue = sessions[session_id] = RunQueue(sessions, session_id, 1, concurrency == "exclusive")
            return QueueEntry(is_granted=True, session_queue=queue)
        entry = self._build_entry(lock_key, current_scope())
        entry.enter(get_queue(sessions, session_id), concurrency)
        return entry

    def _build_entry(self, lock_key: str | None, parent: CallScope | None) -> QueueEntry:
        if lock_key is None:
            return QueueEntry()
        locks = self._for_lock(lock_key, parent).locks
        nested = None if parent is None else self._nested
        return QueueEntry(lock_key=lock_key, locks=locks, parent=parent, nested=nested)

    def enqueue_again(self, scope: CallScope, concurrency: Concurrency, *, lock_key: str | None) -> QueueEntry:
        """Put a call whose lock key has changed at the end of the queues."""
        scope.lock_key = lock_key
        entry = scope.entry = self._build_entry(lock_key, scope.parent)
        session_id = scope.ref[0]
        entry.enter(get_queue(self._for_session(session_id, scope.parent).sessions, session_id), concurrency)
        return entry

    def enter_running(self, session_id: str, concurrency: Concurrency, parent: CallScope | None) -> RunQueue:
        """Count a call that already runs, without waiting."""
        queue = get_queue(self._for_session(session_id, parent).sessions, session_id)
        queue.enter(concurrency)
        return queue

    def open_scope(self, ref: CallRef, entry: QueueEntry) -> CallScope:
        """Make a call the one that the current code, and every task it starts, runs in."""
        parent = CURRENT_SCOPE.get()
        if parent is not None:
            parent = current_scope()
        scope = CallScope(self, ref, entry.lock_key, parent, () if parent is None else parent.limits)
        if entry.lock_key is not None:
            scope.entry = entry
        CURRENT_SCOPE.set(scope)
        return scope

    def build_scope_if_idle(self, ref: CallRef) -> CallScope | None:
        """The scope of a call that nothing runs or waits before; None if it has to enter the queue of its session."""
        parent = current_scope()
        if ref[0] in self._for_session(ref[0], parent).sessions:
            return None
        return CallScope(self, ref, None, parent, () if parent is None else parent.limits)

    def is_inside(self, ref: CallRef, scope: CallScope | None) -> bool:
        """Whether this scope is inside a call, which then must not be waited for."""
        while scope is not None and (scope.is_over or scope.scheduler is not self or scope.ref != ref):
            scope = scope.parent
        return scope is not None

    def _for_session(self, session_id: str, scope: CallScope | None) -> "Scheduler":
        """The scheduler for a call: the inner one of the call of the same session that makes it, if there is one."""
        while scope is not None and (scope.is_over or scope.scheduler is not self or scope.ref[0] != session_id):
            scope = scope.parent
        return self if scope is None else scope.inner_scheduler()

    def _for_lock(self, lock_key: str, scope: CallScope | None) -> "Scheduler":
        while scope is not None and (scope.is_over or scope.scheduler is not self or scope.lock_key != lock_key):
            scope = scope.parent
        return self if scope is None else scope.inner_scheduler()

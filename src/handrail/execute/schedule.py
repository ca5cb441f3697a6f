"""Whose turn it is: calls that are safe together run together, every other runs alone in its session, in order.

A session has a lane. A call takes a ticket when it arrives, and waits until nothing before it is in its way. `lock_key`
narrows "alone" to calls with the same key, over all sessions. A call that is made from inside a handler belongs to the
call that it was made from, and does not wait for it.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final, Literal

Way = Literal["together", "alone"]
Name = tuple[str, str]

HELD: Final[ContextVar[frozenset[Name]]] = ContextVar("handrail_lanes_held", default=frozenset())
"""The lanes that the call around the present code already holds."""


class Lane:
    """A first-come line in which neighbours that go together go together."""

    __slots__ = ("active", "alone", "name", "waiting")

    def __init__(self, name: Name) -> None:
        self.name = name
        self.active = 0
        self.alone = False
        self.waiting: deque[tuple[Ticket, Way, Callable[[], None]]] | None = None

    def enter(self, ticket: "Ticket", way: Way, granted: Callable[[], None]) -> None:
        """Stand at the end of the line."""
        if self.waiting is None:
            self.waiting = deque()
        self.waiting.append((ticket, way, granted))
        self.admit()

    def leave(self) -> None:
        """One that was let in is done."""
        self.active -= 1
        if not self.active:
            self.alone = False
        if self.waiting:
            self.admit()

    def admit(self) -> None:
        """Let in whoever is first and not in anybody's way."""
        while self.waiting:
            ticket, way, granted = self.waiting[0]
            if ticket.over:
                self.waiting.popleft()
                continue
            if self.alone or (way == "alone" and self.active):
                return
            self.waiting.popleft()
            self.active += 1
            self.alone = way == "alone"
            granted()


class Ticket:
    """A place in the line of a session, and then in the line of a lock."""

    __slots__ = ("_future", "_inside", "_lanes", "_lock", "granted", "names", "over")

    def __init__(self, lanes: "Lanes", session: Name, way: Way, lock: Name | None) -> None:
        self._lanes = lanes
        self._lock = lock
        self._inside: list[Lane] = []
        self._future: asyncio.Future[None] | None = None
        self.names = frozenset((session,) if lock is None else (session, lock))
        self.granted = False
        self.over = False
        held = HELD.get()
        if session in held:
            self._lane_granted()
        else:
            self._stand(session, way, self._lane_granted)

    def _stand(self, name: Name, way: Way, then: Callable[[], None]) -> None:
        lane = self._lanes.lane(name)

        def let_in() -> None:
            self._inside.append(lane)
            then()

        lane.enter(self, way, let_in)

    def _lane_granted(self) -> None:
        """A locked call goes on to the line of its lock, in the order of its session."""
        if self._lock is None or self._lock in HELD.get():
            self._grant()
        else:
            self._stand(self._lock, "alone", self._grant)

    def _grant(self) -> None:
        self.granted = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self) -> None:
        """Wait for the turn. Cancelled, the ticket gives its place up."""
        if self.granted:
            return
        self._future = asyncio.get_running_loop().create_future()
        try:
            await self._future
        except asyncio.CancelledError:
            self.release()
            raise

    def release(self) -> None:
        """Leave, from wherever in the line it stands."""
        if self.over:
            return
        self.over = True
        for lane in reversed(self._inside):
            self._lanes.end(lane)
        self._lanes.forget_idle(self.names)


class Lanes:
    """The lanes of all sessions, and of all locks."""

    __slots__ = ("_lanes",)

    def __init__(self) -> None:
        self._lanes: dict[Name, Lane] = {}

    def free(self, session_id: str) -> bool:
        """Whether a call of this session can go at once: nothing runs or waits, or it is a part of what runs."""
        name = ("session", session_id)
        return name not in self._lanes or name in HELD.get()

    def ticket(self, session_id: str, way: Way, *, lock_key: str | None = None) -> Ticket:
        """A place at the end of a session's line."""
        lock = None if lock_key is None else ("lock", lock_key)
        return Ticket(self, ("session", session_id), way, lock)

    def begin(self, session_id: str, way: Way) -> Lane:
        """Enter a session's lane without waiting, for a call that already runs."""
        lane = self.lane(("session", session_id))
        lane.active += 1
        if way == "alone":
            lane.alone = True
        return lane

    def end(self, lane: Lane) -> None:
        """Leave a lane."""
        lane.leave()
        if not lane.active and not lane.waiting:
            self._lanes.pop(lane.name, None)

    def lane(self, name: Name) -> Lane:
        """The lane of this name."""
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = Lane(name)
        return lane

    def forget_idle(self, names: frozenset[Name]) -> None:
        """Forget lanes that nobody is in, after somebody gave a place up."""
        for name in names:
            lane = self._lanes.get(name)
            if lane is not None:
                lane.admit()
                if not lane.active and not lane.waiting:
                    del self._lanes[name]

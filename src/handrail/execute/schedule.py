"""Whose turn it is: calls that are safe together run together, every other runs alone in its session, in order.

A session has a lane. A call takes a ticket when it arrives, and waits until nothing before it is in its way. `lock_key`
narrows "alone" to calls with the same key, over all sessions. A call that is made from inside a handler belongs to the
call that it was made from: it does not wait for it, and takes turns with its own siblings only.
"""

import asyncio
from collections import deque
from contextvars import ContextVar
from typing import Final, Literal

from msgspec import Struct

Way = Literal["together", "alone"]
Place = tuple[str, str]
"""The session and the id of a call."""


class Held(Struct):
    """A call that is on its way, as what its handler starts sees it."""

    lanes: "Lanes"
    place: Place
    lock_key: str | None
    parent: "Held | None"
    rooms: tuple[object, ...] = ()
    """Where the call has a place, so that what it makes needs none there."""
    over: bool = False
    inside: "Lanes | None" = None

    def inner(self) -> "Lanes":
        """The lanes of the calls that it makes."""
        if self.inside is None:
            self.inside = Lanes()
        return self.inside


HELD: Final[ContextVar[Held | None]] = ContextVar("handrail_held", default=None)
"""The call around the present code."""


def around() -> Held | None:
    """The call around the present code that is not over. What a handler left behind belongs to nobody."""
    held = HELD.get()
    while held is not None and held.over:
        held = held.parent
    return held


class Lane:
    """A first-come line in which neighbours that go together go together."""

    __slots__ = ("_home", "_key", "_waiting", "active", "alone")

    def __init__(self, home: "dict[str, Lane]", key: str) -> None:
        self._home = home
        self._key = key
        self._waiting: deque[tuple[Ticket, Way]] | None = None
        self.active = 0
        self.alone = False

    def stand(self, ticket: "Ticket", way: Way) -> None:
        """Go in, or stand at the end of the line."""
        if not self._waiting and self._lets_in(way):
            self.enter(way)
            ticket.let_in(self)
        else:
            if self._waiting is None:
                self._waiting = deque()
            self._waiting.append((ticket, way))

    def enter(self, way: Way) -> None:
        """Go in, whoever is there."""
        self.active += 1
        if way == "alone":
            self.alone = True

    def leave(self) -> None:
        """One that was let in is done."""
        self.active -= 1
        if not self.active:
            self.alone = False
        self.look()

    def look(self) -> None:
        """Let in whoever is first and in nobody's way. A lane in which nobody is left is forgotten."""
        while self._waiting:
            ticket, way = self._waiting[0]
            if not ticket.over:
                if not self._lets_in(way):
                    return
                self.enter(way)
                self._waiting.popleft()
                ticket.let_in(self)
            else:
                self._waiting.popleft()
        if not self.active and self._home.get(self._key) is self:
            del self._home[self._key]

    def _lets_in(self, way: Way) -> bool:
        return not self.alone and (way == "together" or not self.active)


class Ticket:
    """A place in the line of a session, and then in the line of a lock."""

    __slots__ = ("_future", "_in", "_locks", "_waits_in", "granted", "lock_key", "over")

    def __init__(self, sessions: dict[str, Lane], session_id: str, way: Way) -> None:
        self._in: list[Lane] = []
        self._future: asyncio.Future[None] | None = None
        self._locks: dict[str, Lane] | None = None
        self.lock_key: str | None = None
        self.granted = False
        self.over = False
        self._waits_in: Lane | None = None
        self._stand(sessions, session_id, way)

    def _stand(self, home: dict[str, Lane], key: str, way: Way) -> None:
        lane = home.get(key)
        if lane is None:
            lane = home[key] = Lane(home, key)
        self._waits_in = lane
        lane.stand(self, way)

    def lock(self, locks: dict[str, Lane], lock_key: str) -> None:
        """Stand in the line of a lock too, as soon as the session lets the call through."""
        self.lock_key = lock_key
        self._locks = locks
        if self.granted:
            self.granted = False
            self._go_on()

    def let_in(self, lane: Lane) -> None:
        """It is this ticket's turn in a lane."""
        self._in.append(lane)
        self._waits_in = None
        self._go_on()

    def _go_on(self) -> None:
        if self._locks is not None and self.lock_key is not None:
            locks, self._locks = self._locks, None
            self._stand(locks, self.lock_key, "alone")
            return
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
        for lane in reversed(self._in):
            lane.leave()
        if self._waits_in is not None:
            self._waits_in.look()


class Lanes:
    """The lanes of all sessions, and of all locks."""

    __slots__ = ("locks", "sessions")

    def __init__(self) -> None:
        self.sessions: dict[str, Lane] = {}
        self.locks: dict[str, Lane] = {}

    def free(self, session_id: str) -> bool:
        """Whether nothing runs or waits in the lane that a call of this session would take."""
        held = HELD.get()
        lanes = self if held is None else self._of_session(session_id, held)
        return session_id not in lanes.sessions

    def ticket(self, session_id: str, way: Way, *, lock_key: str | None = None) -> Ticket:
        """A place at the end of a session's line."""
        held = HELD.get()
        ticket = Ticket(self._of_session(session_id, held).sessions, session_id, way)
        if lock_key is not None:
            ticket.lock(self._of_lock(lock_key, held).locks, lock_key)
        return ticket

    def begin(self, session_id: str, way: Way, parent: Held | None) -> Lane:
        """Enter a session's lane without waiting, for a call that already runs."""
        home = self._of_session(session_id, parent).sessions
        lane = home.get(session_id)
        if lane is None:
            lane = home[session_id] = Lane(home, session_id)
        lane.enter(way)
        return lane

    def hold(self, place: Place, lock_key: str | None = None) -> Held:
        """Make a call the one around the present code, and around what that starts."""
        parent = around()
        held = Held(self, place, lock_key, parent, parent.rooms if parent else ())
        HELD.set(held)
        return held

    def is_inside(self, place: Place, held: Held | None) -> bool:
        """Whether a call is a part of this one, so that it cannot wait for it."""
        while held is not None and (held.over or held.lanes is not self or held.place != place):
            held = held.parent
        return held is not None

    def _of_session(self, session_id: str, held: Held | None) -> "Lanes":
        """Where calls of a session stand: inside the call of this session that they were made from, if there is one."""
        while held is not None and (held.over or held.lanes is not self or held.place[0] != session_id):
            held = held.parent
        return self if held is None else held.inner()

    def _of_lock(self, lock_key: str, held: Held | None) -> "Lanes":
        while held is not None and (held.over or held.lanes is not self or held.lock_key != lock_key):
            held = held.parent
        return self if held is None else held.inner()

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


class Lane(Struct, eq=False):
    """A first-come line in which neighbours that go together go together."""

    home: "dict[str, Lane]"
    key: str
    active: int = 0
    alone: bool = False
    waiting: "deque[tuple[Ticket, Way]] | None" = None

    def stand(self, ticket: "Ticket", way: Way) -> None:
        """Go in, or stand at the end of the line."""
        if not self.waiting and self._lets_in(way):
            self.enter(way)
            ticket.let_in(self)
        else:
            if self.waiting is None:
                self.waiting = deque()
            self.waiting.append((ticket, way))

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
        while self.waiting:
            ticket, way = self.waiting[0]
            if not ticket.over:
                if not self._lets_in(way):
                    return
                self.enter(way)
                self.waiting.popleft()
                ticket.let_in(self)
            else:
                self.waiting.popleft()
        if not self.active and self.home.get(self.key) is self:
            del self.home[self.key]

    def _lets_in(self, way: Way) -> bool:
        return not self.alone and (way == "together" or not self.active)


def lane_of(home: dict[str, Lane], key: str) -> Lane:
    """The lane of this name."""
    lane = home.get(key)
    if lane is None:
        lane = home[key] = Lane(home, key)
    return lane


class Ticket(Struct, eq=False):
    """A place in the line of a session, and then in the line of a lock."""

    lock_key: str | None = None
    locks: dict[str, Lane] | None = None
    granted: bool = False
    over: bool = False
    first: Lane | None = None
    second: Lane | None = None
    """Where it was let in: the lane of its session, and that of its lock."""
    waits_in: Lane | None = None
    turn: "asyncio.Future[None] | None" = None

    def stand(self, lane: Lane, way: Way) -> None:
        """Take a place at the end of a line."""
        self.waits_in = lane
        lane.stand(self, way)

    def let_in(self, lane: Lane) -> None:
        """It is this ticket's turn in a lane. From that of its session, it goes on to that of its lock."""
        self.waits_in = None
        if self.first is None:
            self.first = lane
            if self.locks is not None and self.lock_key is not None:
                self.stand(lane_of(self.locks, self.lock_key), "alone")
                return
        else:
            self.second = lane
        self.granted = True
        if self.turn is not None and not self.turn.done():
            self.turn.set_result(None)

    async def wait(self) -> None:
        """Wait for the turn. Cancelled, the ticket gives its place up."""
        if self.granted:
            return
        self.turn = asyncio.get_running_loop().create_future()
        try:
            await self.turn
        except asyncio.CancelledError:
            self.release()
            raise

    def release(self) -> None:
        """Leave, from wherever in the line it stands."""
        if self.over:
            return
        self.over = True
        if self.second is not None:
            self.second.leave()
        if self.first is not None:
            self.first.leave()
        if self.waits_in is not None:
            self.waits_in.look()


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
        locks = None if lock_key is None else self._of_lock(lock_key, held).locks
        ticket = Ticket(lock_key=lock_key, locks=locks)
        ticket.stand(lane_of(self._of_session(session_id, held).sessions, session_id), way)
        return ticket

    def begin(self, session_id: str, way: Way, parent: Held | None) -> Lane:
        """Enter a session's lane without waiting, for a call that already runs."""
        lane = lane_of(self._of_session(session_id, parent).sessions, session_id)
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

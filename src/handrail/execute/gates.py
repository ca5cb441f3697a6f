"""What a call passes on its way in: a bound on how many run at once, rate limits, and a breaker."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from handrail.authorize.authoriser import Refusal
from handrail.authorize.limits import Breakers, CircuitBreaker, RateLimit, RateLimits
from handrail.core.context import ToolContext
from handrail.core.select import Selector, selector
from handrail.core.tool import Tool
from handrail.errors import ConfigError
from handrail.execute import answers
from handrail.execute.schedule import Held
from handrail.execute.tell import Teller


class Room:
    """Has place for so many at once; whoever waits longest is next."""

    __slots__ = ("_free", "_waiting", "users")

    def __init__(self, places: int) -> None:
        self._free = places
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.users = 0
        """How many are in it, or wait for it."""

    async def enter(self) -> None:
        """Wait for a place."""
        self.users += 1
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except BaseException:
            with contextlib.suppress(ValueError):
                self._waiting.remove(turn)
            if turn.cancelled():
                self.users -= 1
            else:  # The place was given in the same moment.
                self.leave()
            raise

    def leave(self) -> None:
        """Give the place to the next one."""
        self.users -= 1
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


class Gates:
    """Everything that can hold a call up although it is allowed. It counts in this process only."""

    def __init__(
        self,
        *,
        rate_limits: Iterable[RateLimit],
        breaker: CircuitBreaker | None,
        total: int | None,
        per_session: int | None,
        per_tool: Mapping[str, int],
        tell: Teller,
    ) -> None:
        for limit in (total, per_session, *per_tool.values()):
            if limit is not None and limit < 1:
                raise ConfigError(f"At least 1 call must be able to run at once, not {limit}.")
        self._rates = RateLimits(rate_limits)
        self._breakers = Breakers(breaker, changed=tell.breaker_turned) if breaker else None
        self._total = Room(total) if total else None
        self._per_session = per_session
        self._sessions: dict[str, Room] = {}
        self._per_tool: list[tuple[Selector, Room]] = [(selector(text), Room(most)) for text, most in per_tool.items()]
        self.open = not self._rates and not breaker and not total and not per_session and not per_tool
        """Whether nothing can be held up here."""

    def rooms(self, tool: Tool[..., Any], session_id: str) -> Iterator[Room]:
        """Where a call needs a place, always in this order: of this tool, in this session, in all."""
        for selects, room in self._per_tool:
            if selects(tool):
                yield room
        if self._per_session:
            yield self._sessions.setdefault(session_id, Room(self._per_session))
        if self._total is not None:
            yield self._total

    def forget_idle(self, session_id: str) -> None:
        """Forget the room of a session in which nobody is left."""
        room = self._sessions.get(session_id)
        if room is not None and not room.users:
            del self._sessions[session_id]

    def check(self, tool: Tool[..., Any], context: ToolContext[Any]) -> None:
        """Raise `Refusal` if the tool was called too often, or rests."""
        if self._breakers is not None and (resting := self._breakers.refuses(tool.name)) is not None:
            raise Refusal(answers.resting(tool.name, resting))
        if self._rates and (wait := self._rates.wait_for(tool, context)):
            self.report(tool, None)
            raise Refusal(answers.rate_limited(tool.name, wait))

    def report(self, tool: Tool[..., Any], healthy: bool | None) -> None:
        """Tell the breaker how a call went."""
        if self._breakers is not None:
            self._breakers.report(tool.name, healthy)


class Pass(Struct, eq=False):
    """One call's way through the gates. Whatever becomes of it, it leaves."""

    gates: Gates
    tool: Tool[..., Any]
    held: Held
    _in: tuple[Room, ...] = ()
    _checked: bool = False
    _reported: bool = False

    async def enter(self, context: ToolContext[Any]) -> None:
        """Wait for a place in every room, and then ask the limits and the breaker: once, also if the call comes by
        again."""
        if self._checked or self.gates.open:
            return
        for room in self.gates.rooms(self.tool, self.held.place[0]):
            if room not in self.held.rooms:  # Inside a call that has a place, its place is enough.
                await room.enter()
                self._in += (room,)
                self.held.rooms += (room,)
        self.gates.check(self.tool, context)
        self._checked = True

    def report(self, healthy: bool | None) -> None:
        """Tell the breaker how the call went; None says nothing about the tool's health."""
        if self._checked and not self._reported:
            self._reported = True
            self.gates.report(self.tool, healthy)

    def leave(self) -> None:
        """The call is over, however far it came."""
        if self.gates.open:
            return
        self.report(None)
        for room in self._in:
            room.leave()
        self._in = ()
        self.gates.forget_idle(self.held.place[0])

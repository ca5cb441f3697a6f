"""What a call passes on its way in: a bound on how many run at once, rate limits, and a breaker."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from handrail.authorize.authoriser import Refusal
from handrail.authorize.limits import Breaker, Breakers, RateLimit, RateLimits
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
        if self._free and not self._waiting:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except BaseException:
            if turn.cancelled():
                self.users -= 1
                self._waiting.remove(turn)
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


class Pass:
    """One call on its way through the gates."""

    __slots__ = ("_gates", "_held", "_in", "_told", "_tool")

    def __init__(self, gates: "Gates", tool: Tool[..., Any], held: Held) -> None:
        self._gates = gates
        self._tool = tool
        self._held = held
        self._in: list[tuple[Room, Callable[[], None]]] = []
        self._told = True

    async def enter(self, context: ToolContext[Any]) -> None:
        """Wait until one more may run: of this tool, in this session, in all. Then ask limits and breaker, once."""
        if not self._in:
            for room, leave in self._gates.rooms(self._tool, context):
                if room in self._held.rooms:  # It is inside a call that has a place: theirs is enough.
                    leave()
                    continue
                self._in.append((room, leave))
                await room.enter()
            self._held.rooms += tuple(room for room, _ in self._in)
        if self._told:
            self._gates.check(self._tool, context)
            self._told = False

    def report(self, healthy: bool | None) -> None:
        """Tell the breaker how the call went; None says nothing about the tool's health."""
        if not self._told:
            self._told = True
            self._gates.report(self._tool, healthy)

    def leave(self) -> None:
        """The call is over, however far it came."""
        self.report(None)

"""What the tests of the executor share: short ways to make a call, and handlers that wait until they are told."""

import asyncio
import contextlib
import json
import warnings
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from handrail import Policy, Rule, ToolCall, ToolContext, ToolResult
from handrail.core import Event
from handrail.execute import Entry, MemoryLedger, Recalled

E = TypeVar("E", bound=Event)

ALLOWED = Policy([Rule.allow("*")])


def call(name: str, id: str = "c-1", response_id: str | None = None, **arguments: Any) -> ToolCall:
    return ToolCall(id=id, name=name, arguments_json=json.dumps(arguments), response_id=response_id)


def at(session_id: str = "s-1", turn: int = 1, **more: Any) -> ToolContext[Any]:
    return ToolContext(session_id=session_id, turn=turn, **more)


def code_of(result: ToolResult) -> str | None:
    return result.error.code if result.error else None


def list_unawaited(warned: Iterable[warnings.WarningMessage]) -> list[str]:
    """The warnings of `recwarn` about coroutines that were neither awaited nor closed."""
    return [text for warning in warned if "never awaited" in (text := str(warning.message))]


class Heard(list[Event]):
    """A listener that keeps what it hears."""

    def __call__(self, event: Event) -> None:
        self.append(event)

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self if isinstance(event, kind)]

    @property
    def names(self) -> list[str]:
        return [type(event).__name__ for event in self]


class Bus:
    """What an executor subscribes to the events of approvals: it keeps what it hears."""

    def __init__(self) -> None:
        self.heard = Heard()
        self.emit = self.heard


class Held:
    """A handler that says when it has begun, and goes on when it is told."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.go = asyncio.Event()
        self.runs = 0
        self.ended = 0

    async def __call__(self) -> str:
        self.runs += 1
        self.begun.set()
        await self.go.wait()
        self.ended += 1
        return "done"


class Stubborn:
    """A hook that swallows a cancellation."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()

    async def authorised(self, call: Any, tool: Any, decision: Any, context: Any) -> None:
        self.reached.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.get_running_loop().create_future()


async def quiet(count: Callable[[], object] | None = None) -> None:
    """Let the loop run until nothing changes any more: nothing here waits for time or for the outside."""
    unchanged, before = 0, None
    while unchanged < 10:
        await asyncio.sleep(0)
        now = count() if count else None
        unchanged = unchanged + 1 if now == before else 0
        before = now


class Book(MemoryLedger):
    """A ledger in which a test can look, and that is away when it is told to be."""

    def __init__(self, *, can_claim_new: bool = True) -> None:
        super().__init__()
        self.can_claim_new = can_claim_new  # type: ignore[misc]
        """Without it, as with a ledger of a user's own, each call is looked up before it is claimed."""
        self.away: dict[str, int] = {}
        """How often each of `recall`, `claim` and `settle` still fails; -1 is always."""
        self.settled: list[Entry] = []
        self.forgets = False
        """Whether a claim that fails was written all the same."""

    def _reach(self, what: str) -> None:
        left = self.away.get(what, 0)
        if left:
            self.away[what] = left - 1
            raise ConnectionError(f"the ledger is away at {what}")

    async def recall(self, **given: Any) -> Recalled:
        self._reach("recall")
        return await super().recall(**given)

    async def claim(self, entry: Entry, **given: Any) -> bool:
        if self.forgets:
            await super().claim(entry, **given)
        self._reach("claim")
        return await super().claim(entry, **given)

    async def take_over(self, entry: Entry, **given: Any) -> Entry | None:
        self._reach("take_over")
        return await super().take_over(entry, **given)

    async def settle(self, entry: Entry, **given: Any) -> None:
        self._reach("settle")
        await super().settle(entry, **given)
        self.settled.append(entry)

    def rewrite(self, entry: Entry) -> None:
        """Write another state of a call, as if somebody else had."""
        ref = (entry.session_id, entry.call_id)
        self._replace(ref, self._by_id[ref], entry)

    async def entry(self, call_id: str = "c-1", session_id: str = "s-1") -> Entry | None:
        return (await super().recall(session_id=session_id, call_id=call_id)).by_id

    async def state(self, call_id: str = "c-1", session_id: str = "s-1") -> str | None:
        entry = await self.entry(call_id, session_id)
        return entry.state if entry else None

"""The record of calls with consequences: what was claimed, what became of it."""

import secrets
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final, Literal, Protocol

from msgspec import Struct, structs

from handrail.authorize.approvals import Approvals
from handrail.core.values import Control, Failure, ToolResult

State = Literal["running", "committed", "failed", "unknown"]
"""`failed` means that nothing happened and the call may be tried again; `unknown` that nobody can tell."""


class Recorded(Struct, frozen=True, kw_only=True, gc=False):
    """What is kept of a result, to answer the same call again: never its `context`."""

    text: str | None = None
    """The model's text of the output, redacted."""
    failure: Failure | None = None
    control: Control | None = None
    metadata: Mapping[str, Any] = {}

    def result(self) -> ToolResult:
        """The result that was recorded."""
        return ToolResult(output=self.text, error=self.failure, control=self.control, metadata=self.metadata)


class Entry(Struct, frozen=True, kw_only=True, gc=False):
    """One claimed call."""

    session_id: str
    call_id: str
    tool: str
    tenant_id: str | None = None
    identity: str
    """Digest of what the model sent; the same id with another identity is another call."""
    key: str
    """Digest of what makes two calls the same effect, with its scope."""
    number: int
    """How often this key was claimed before."""
    repeat: int
    """How often this effect was wanted before: an approved repetition has its own idempotency key."""
    turn: int
    owner: str
    """The executor that claimed it."""
    claimed_at: float
    lease_until: float
    state: State = "running"
    settled_at: float | None = None
    recorded: Recorded | None = None

    def state_at(self, now: float) -> State:
        """The state, knowing that a claim whose lease is over was never settled."""
        return "unknown" if self.state == "running" and now >= self.lease_until else self.state

    @property
    def idempotency_key(self) -> str:
        """What is handed downstream: equal for every try of one effect."""
        return f"{self.key[:32]}-{self.repeat}"


class Ledger(Protocol):
    """Where entries are kept. A claim is won by exactly one caller.

    What it is given to settle is redacted, unless it has `in_memory = True`: it never writes anything anywhere.
    """

    digest_key: bytes
    """The key of all digests: what is stored cannot be guessed back from likely arguments."""

    async def recall(self, *, session_id: str, call_id: str, key: str) -> tuple[Entry | None, Entry | None]:
        """The entry with this id, and the newest entry with this key."""
        ...

    async def claim(self, entry: Entry, *, approval: str | None, approvals: Approvals) -> bool:
        """Write the entry and use up the approval, both or none. False if the id or the key's number is taken, or the
        approval cannot be used."""
        ...

    async def settle(self, entry: Entry) -> None:
        """Write what became of a claimed call, if it is still this claim's entry. What is committed stays so, whoever
        comes later."""
        ...


class MemoryLedger:
    """The ledger of this process; it keeps the newest entries and everything that is not settled."""

    in_memory: Final = True

    def __init__(self, *, most: int = 100_000) -> None:
        self.digest_key = secrets.token_bytes(32)
        self._most = most
        self._by_id: OrderedDict[tuple[str, str], Entry] = OrderedDict()
        self._by_key: dict[str, Entry] = {}

    async def recall(self, *, session_id: str, call_id: str, key: str) -> tuple[Entry | None, Entry | None]:
        return self._by_id.get((session_id, call_id)), self._by_key.get(key)

    async def claim(self, entry: Entry, *, approval: str | None, approvals: Approvals) -> bool:
        place = (entry.session_id, entry.call_id)
        newest = self._by_key.get(entry.key)
        if place in self._by_id or entry.number != (newest.number + 1 if newest else 0):
            return False
        # The entry stands before the approval is used up, so that nobody can claim in between.
        self._write(entry)
        if approval is not None:
            usable = False
            try:
                usable = await approvals.consume(approval, now=entry.claimed_at)
            finally:
                if not usable:
                    self._take_back(entry, newest)
            if not usable:
                return False
        self._forget_old()
        return True

    def _take_back(self, entry: Entry, newest: Entry | None) -> None:
        del self._by_id[entry.session_id, entry.call_id]
        if newest is None:
            del self._by_key[entry.key]
        else:
            self._by_key[entry.key] = newest

    async def settle(self, entry: Entry) -> None:
        known = self._by_id.get((entry.session_id, entry.call_id))
        if known is not None and known.owner == entry.owner and known.state != "committed":
            self._write(entry)

    def _write(self, entry: Entry) -> None:
        self._by_id[entry.session_id, entry.call_id] = entry
        newest = self._by_key.get(entry.key)
        if newest is None or newest.number <= entry.number:
            self._by_key[entry.key] = entry

    def _forget_old(self) -> None:
        while len(self._by_id) > self._most:
            place, oldest = next(iter(self._by_id.items()))
            if oldest.state in ("running", "unknown"):
                self._by_id.move_to_end(place)  # Not settled: it must not be forgotten.
                if all(one.state in ("running", "unknown") for one in self._by_id.values()):
                    return
                continue
            del self._by_id[place]
            if self._by_key.get(oldest.key) is oldest:
                del self._by_key[oldest.key]


def settled(entry: Entry, state: State, recorded: Recorded, *, now: float) -> Entry:
    """The entry with what became of its call."""
    return structs.replace(entry, state=state, settled_at=now, recorded=recorded)

"""The ledger of consequential calls: its entries, the table that says what to do with a call, its form in memory."""

import math
import secrets
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final, Literal, Protocol

from msgspec import Struct, structs

from handrail.authorize.approvals import Approvals
from handrail.core.media import MediaPart
from handrail.core.values import Control, Failure, ToolResult
from handrail.errors import ConfigError
from handrail.execute.scheduler import CallRef

State = Literal["running", "committed", "failed", "unknown"]
"""`failed` means that nothing happened and the call may be tried again; `unknown` that nobody can tell."""


MAX_RECORDED_MEDIA_BYTES: Final = 1_000_000
"""What a ledger keeps of the media of one result; larger ones are replayed as a description."""


_MAX_MEMORY_MEDIA_BYTES: Final = 64_000_000
"""What a ledger in memory keeps of media altogether."""


class RecordedResult(Struct, frozen=True, kw_only=True, gc=False):
    """What is kept of a result, to return it again for the same call: never its `context`."""

    text: str | None = None
    """The output as the model saw it, redacted."""
    failure: Failure | None = None
    control: Control | None = None
    metadata: Mapping[str, Any] = {}
    media: tuple[MediaPart, ...] = ()

    def to_result(self) -> ToolResult:
        """The result that was recorded."""
        return ToolResult(
            output=self.text, error=self.failure, control=self.control, metadata=self.metadata, media=self.media
        )


class Entry(Struct, frozen=True, kw_only=True, gc=False):
    """One claimed call."""

    session_id: str
    call_id: str
    tool: str
    tenant_id: str | None = None
    identity: str
    """Digest of the arguments that the model sent; the same id with another identity is another call."""
    key: str
    """Digest of what makes two calls the same effect, with its scope: of the arguments that run."""
    sent_key: str = ""
    """The key of the arguments that the model sent; another one if an approver changed them."""
    arguments_digest: str = ""
    """Digest of the arguments that run."""
    arguments: str = ""
    """The arguments that run, as JSON text; redacted, unless the ledger is in memory."""
    changed_arguments: str | None = None
    """The arguments that an approver put in the place of the model's, as JSON text, until the call is settled."""
    customer_id: str | None = None
    agent_id: str | None = None
    number: int
    """How often this key was claimed before."""
    repeat: int
    """How often this effect was approved before: an approved repetition has its own idempotency key."""
    turn: int
    owner: str
    """The executor that claimed it."""
    claimed_at: float
    lease_until: float
    """Until when the owner is known to be alive; it is renewed while the call runs."""
    run_until: float = 0.0
    """The latest moment at which the handler could still have been running, if its process died."""
    state: State = "running"
    settled_at: float | None = None
    recorded: RecordedResult | None = None
    guideline_ids: tuple[str, ...] = ()
    """The guidelines that led to the call."""

    def state_at(self, now: float) -> State:
        """The state at this time: a running entry whose lease is over is `unknown`."""
        return "unknown" if self.state == "running" and now >= self.lease_until else self.state

    @property
    def idempotency_key(self) -> str:
        """The key to send to other services: equal for every attempt of one effect."""
        return f"{self.key[:32]}-{self.repeat}"


class Doubt(Struct, frozen=True, kw_only=True):
    """A consequential call whose outcome nobody knows: an operator has to find out."""

    session_id: str
    call_id: str
    tool: str
    tenant_id: str | None
    turn: int
    claimed_at: float
    """Seconds since the epoch."""
    idempotency_key: str
    """What the handler was given to send to other services: search for it there."""
    version: str
    """Changes with the entry; give it to `Executor.resolve(expected=…)`."""

    @classmethod
    def from_entry(cls, entry: Entry) -> "Doubt":
        """The doubt about an entry."""
        return cls(
            session_id=entry.session_id,
            call_id=entry.call_id,
            tool=entry.tool,
            tenant_id=entry.tenant_id,
            turn=entry.turn,
            claimed_at=entry.claimed_at,
            idempotency_key=entry.idempotency_key,
            version=f"{entry.owner}-{entry.number}-{entry.state}",
        )


class Ledger(Protocol):
    """Where entries are kept. Of several claims, exactly one succeeds.

    Results are redacted before they are settled, unless the ledger has `in_memory = True` and writes nothing.
    """

    digest_key: bytes
    """The key of all digests, so that stored digests cannot be compared with likely arguments."""

    async def recall(self, *, session_id: str, call_id: str, key: str) -> tuple[Entry | None, Entry | None]:
        """The entry with this id, and the newest entry with this key; if there is none with this key, the newest whose
        `sent_key` it is."""
        ...

    async def claim(self, entry: Entry, *, approval: str | None, approvals: Approvals) -> bool:
        """Write the entry and consume the approval, both or none. False if the id or the number of the key is taken, or
        the approval cannot be consumed."""
        ...

    async def settle(self, entry: Entry) -> None:
        """Write the outcome of a claimed call, unless the entry is another owner's or already committed."""
        ...

    async def renew(self, entries: Sequence[Entry], *, lease_until: float) -> None:
        """Move the leases of running entries. It is called from a thread and an event loop of its own."""
        ...

    async def find_doubts(self, *, now: float, session_id: str | None = None, limit: int = 100) -> list[Entry]:
        """The entries whose outcome is not known, the oldest first."""
        ...

    async def resolve(self, entry: Entry) -> bool:
        """Write what an operator found out about an entry in doubt; False if it was changed meanwhile."""
        ...


# The state table.


class LedgerDecision(Struct, frozen=True, kw_only=True, gc=False):
    """What the table says about a call.

    `run`: nothing is in the way. `replay`: return the recorded result. `in_progress`: it is running. `duplicate_id`:
    the id belongs to another call. `duplicate_effect`: the effect was done with other arguments. `unknown`: it may have
    happened; never run it, ask `verify`. `ask_again`: it was done; somebody has to approve a repetition.
    """

    step: Literal["run", "replay", "in_progress", "duplicate_id", "duplicate_effect", "unknown", "ask_again"]
    entry: Entry | None = None
    """The entry that decided; for `run`, the newest entry of the key, after which this call is numbered."""
    number: int = 0
    repeat: int = 0
    is_same: bool = True
    """Whether the arguments of the entry are those of the call: only then may the call join or verify it."""


_NOTHING_KNOWN: Final = LedgerDecision(step="run")


def decide_from_ledger(
    by_id: Entry | None,
    by_key: Entry | None,
    *,
    identity: str,
    key: str,
    session_id: str,
    turn: int,
    now: float,
    repeat_window: float,
    is_idempotent: bool = False,
) -> LedgerDecision:
    """What to do with a call, given the entry with its id and the newest entry with its key."""
    if by_id is not None:
        if by_id.identity != identity:
            return LedgerDecision(step="duplicate_id", entry=by_id)
        match by_id.state_at(now):
            case "committed" | "failed":
                return LedgerDecision(step="replay", entry=by_id)
            case "running":
                return LedgerDecision(step="in_progress", entry=by_id)
            case "unknown":
                return LedgerDecision(step="unknown", entry=by_id)
    if by_key is None:
        return _NOTHING_KNOWN
    number = by_key.number + 1 if by_key.key == key else 0
    is_same = identity in (by_key.identity, by_key.arguments_digest)
    match by_key.state_at(now):
        case "running":
            return LedgerDecision(step="in_progress", entry=by_key, is_same=is_same)
        case "unknown":
            if is_idempotent and is_same:
                return LedgerDecision(step="run", entry=by_key, number=number, repeat=by_key.repeat)
            return LedgerDecision(step="unknown", entry=by_key, is_same=is_same)
        case "failed":  # Nothing happened: another attempt of the same effect.
            if by_key.repeat and now - (by_key.settled_at or by_key.claimed_at) < repeat_window:
                # The approval of the repetition was consumed: a repetition that failed is not a first time.
                return LedgerDecision(step="ask_again", entry=by_key, number=number, repeat=by_key.repeat)
            return LedgerDecision(step="run", entry=by_key, number=number, repeat=by_key.repeat)
        case "committed":
            if by_key.session_id == session_id and by_key.turn == turn:
                return LedgerDecision(step="replay" if is_same else "duplicate_effect", entry=by_key)
            if now - (by_key.settled_at or by_key.claimed_at) < repeat_window:
                repeat = by_key.repeat + 1
                return LedgerDecision(step="ask_again", entry=by_key, number=number, repeat=repeat, is_same=is_same)
            return LedgerDecision(step="run", entry=by_key, number=number, repeat=by_key.repeat + 1)


class LedgerFullError(Exception):
    """A ledger in memory holds as many entries as it may, and none of them can be forgotten."""


class MemoryLedger:
    """A ledger in memory, for one process.

    It holds at most `max_entries`. To make room it forgets the oldest settled entries, but none that was settled less
    than `keep_for` seconds ago, and none whose outcome is not known: if only such entries are left, consequential calls
    are refused as `unavailable`. Keep `keep_for` at least as long as the executor's `repeat_window`. Of the media in
    results it keeps 64 MB altogether, the newest.
    """

    in_memory: Final = True

    def __init__(self, *, max_entries: int = 100_000, keep_for: float = 86_400.0) -> None:
        if max_entries < 1:
            raise ConfigError(f"max_entries must be at least 1, got {max_entries!r}.")
        if keep_for < 0:
            raise ConfigError(f"keep_for must be 0 seconds or more, got {keep_for!r}.")
        self.digest_key = secrets.token_bytes(32)
        self._max_entries = max_entries
        self._keep_for = keep_for
        self._by_id: dict[CallRef, Entry] = {}
        self._by_key: dict[str, Entry] = {}
        self._settled: OrderedDict[CallRef, float] = OrderedDict()
        """Settled entries, the oldest first: only these can be forgotten."""
        self._by_sent_key: dict[str, Entry] = {}
        """Only of entries whose arguments an approver changed."""
        self._media: OrderedDict[CallRef, int] = OrderedDict()
        """The bytes of media that entries hold, the oldest first; only entries that hold some."""
        self._media_bytes = 0

    async def recall(self, *, session_id: str, call_id: str, key: str) -> tuple[Entry | None, Entry | None]:
        by_key = self._by_key.get(key) or (self._by_sent_key.get(key) if self._by_sent_key else None)
        return self._by_id.get((session_id, call_id)), by_key

    async def claim(self, entry: Entry, *, approval: str | None, approvals: Approvals) -> bool:
        ref = (entry.session_id, entry.call_id)
        newest = self._by_key.get(entry.key)
        if ref in self._by_id or entry.number != (newest.number + 1 if newest else 0):
            return False
        if len(self._by_id) >= self._max_entries:
            self._make_room(entry.claimed_at)
        # The entry is written before the approval is consumed, so that nobody can claim in between.
        self._write(entry)
        if approval is not None:
            is_consumed = False
            try:
                is_consumed = await approvals.consume(approval, now=entry.claimed_at)
            finally:
                if not is_consumed:
                    self._undo(entry, newest)
            if not is_consumed:
                return False
        return True

    def _undo(self, entry: Entry, newest: Entry | None) -> None:
        del self._by_id[entry.session_id, entry.call_id]
        if self._by_sent_key.get(entry.sent_key) is entry:
            del self._by_sent_key[entry.sent_key]
        if newest is None:
            del self._by_key[entry.key]
        else:
            self._by_key[entry.key] = newest

    async def settle(self, entry: Entry) -> None:
        known = self._by_id.get((entry.session_id, entry.call_id))
        if known is not None and known.owner == entry.owner and known.state != "committed":
            self._write(entry)
            if entry.recorded is not None and entry.recorded.media:
                self._limit_media((entry.session_id, entry.call_id), entry.recorded.media)

    def _limit_media(self, ref: CallRef, media: tuple[MediaPart, ...]) -> None:
        size = sum(part.size for part in media if part.data is not None)
        self._media_bytes += size - self._media.pop(ref, 0)
        self._media[ref] = size
        while self._media_bytes > _MAX_MEMORY_MEDIA_BYTES:
            oldest, size = self._media.popitem(last=False)
            self._media_bytes -= size
            entry = self._by_id[oldest]
            if (recorded := entry.recorded) is not None:
                parts = tuple(part.omit("it is not kept any more") for part in recorded.media)
                self._write(structs.replace(entry, recorded=structs.replace(recorded, media=parts)))

    async def renew(self, entries: Sequence[Entry], *, lease_until: float) -> None:
        for entry in entries:
            known = self._by_id.get((entry.session_id, entry.call_id))
            if known is not None and known.owner == entry.owner and known.state == "running":
                self._write(structs.replace(known, lease_until=lease_until))

    async def find_doubts(self, *, now: float, session_id: str | None = None, limit: int = 100) -> list[Entry]:
        unsettled = (entry for ref, entry in self._by_id.items() if ref not in self._settled)
        doubts = (one for one in unsettled if one.state_at(now) == "unknown" and session_id in (None, one.session_id))
        return list(islice(doubts, limit))

    async def resolve(self, entry: Entry) -> bool:
        known = self._by_id.get((entry.session_id, entry.call_id))
        if known is None or known.owner != entry.owner or known.state not in ("running", "unknown"):
            return False
        self._write(entry)
        return True

    def _write(self, entry: Entry) -> None:
        ref = (entry.session_id, entry.call_id)
        self._by_id[ref] = entry
        newest = self._by_key.get(entry.key)
        if newest is None or newest.number <= entry.number:
            self._by_key[entry.key] = entry
        if entry.sent_key and entry.sent_key != entry.key:
            self._by_sent_key[entry.sent_key] = entry
        if entry.state in ("committed", "failed"):
            self._settled[ref] = entry.settled_at or entry.claimed_at

    def _make_room(self, now: float) -> None:
        while len(self._by_id) >= self._max_entries:
            ref, settled_at = next(iter(self._settled.items()), (None, math.inf))
            if ref is None or now - settled_at < self._keep_for:
                raise LedgerFullError(f"the ledger holds {len(self._by_id)} entries and may forget none of them")
            del self._settled[ref]
            oldest = self._by_id.pop(ref)
            self._media_bytes -= self._media.pop(ref, 0)
            if self._by_key.get(oldest.key) is oldest:
                del self._by_key[oldest.key]
            if self._by_sent_key.get(oldest.sent_key) is oldest:
                del self._by_sent_key[oldest.sent_key]


def settle_entry(entry: Entry, state: State, recorded: RecordedResult, *, now: float) -> Entry:
    """The entry with the outcome of its call."""
    changed = entry.changed_arguments if state == "unknown" else None
    return structs.replace(entry, state=state, settled_at=now, recorded=recorded, changed_arguments=changed)

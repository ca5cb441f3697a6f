"""The ledger of consequential calls: its entries, the state table that decides about a call, its form in memory."""

import asyncio
import math
import os
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Protocol

from msgspec import Struct, structs

from handrail.authorize.approvals import Approvals, MemoryApprovals
from handrail.authorize.authorizer import Refusal
from handrail.authorize.effect_keys import CallArguments
from handrail.core import failure_results
from handrail.core.context import ToolContext
from handrail.core.events import CallStarted
from handrail.core.log import log
from handrail.core.time_budget import TimeBudget
from handrail.core.tool import Tool
from handrail.core.values import Approval, Decision
from handrail.errors import CallTakenOverError, ConfigError, LedgerFullError, must_propagate
from handrail.execute.recorded_result import RecordedResult, VerifyAnswer
from handrail.execute.scheduler import CallRef

if TYPE_CHECKING:
    from handrail.execute.stored_calls import Work, WorkItem

State = Literal["running", "committed", "failed", "unknown"]
"""`failed` means that nothing happened and the call may be tried again; `unknown` that nobody can tell."""


MAX_RECORDED_MEDIA_BYTES: Final = 1_000_000
"""What a ledger keeps of the media of one result; larger ones are replayed as a description."""


_SMALL: Final = 1_000
"""An entry in memory whose arguments and result have no more bytes is kept whole."""
_NOT_KEPT: Final = "it is not kept any more"


class Entry(Struct, frozen=True, kw_only=True, gc=False):
    """One claimed call."""

    session_id: str
    call_id: str
    tool: str
    tenant_id: str | None = None
    identity: str
    """Digest of whose call it is and of what the model sent; the same id with another identity is another call."""
    key: str
    """Digest of what makes two calls the same effect, with its scope: of the arguments that run."""
    full_key: str
    """The same digest with the values that are defaults: an entry that has either key is the same effect."""
    sent_key: str = ""
    """The key of the arguments that the model sent; another one if an approver changed them."""
    arguments_digest: str = ""
    """Digest of the arguments that run."""
    arguments: str = ""
    """The arguments that run, as JSON text; redacted if the ledger is written."""
    changed_arguments: str | None = None
    """The arguments that an approver put in the place of the model's, as JSON text, until the call is settled."""
    customer_id: str | None = None
    agent_id: str | None = None
    number: int
    """How often this key was claimed before."""
    full_number: int
    """How often this full key was claimed before."""
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
    repeat_until: float = 0.0
    """Until when the same effect is a repetition: the entry is kept at least that long."""
    state: State = "running"
    settled_at: float | None = None
    recorded: RecordedResult | None = None
    guideline_ids: tuple[str, ...] = ()
    """The guidelines that led to the call."""
    decision: Decision | None = None
    """What let the call run; who takes it over asks nobody again."""
    approval: str | None = None
    """The token of the approval that it consumed."""
    erased_at: float | None = None
    """When the values of its customer were erased; they are gone once it is settled."""
    read_at: float = 0.0
    """When it was read, by the clock that its times are measured by; 0 if that is the clock of this process."""
    is_durable: bool = False
    """Whether the call is stored, and its row ends with it; only its owner knows, it is not recorded."""

    def state_at(self, now: float) -> State:
        """The state at this time, or when it was read: a running entry whose lease is over is `unknown`."""
        return "unknown" if self.state == "running" and (self.read_at or now) >= self.lease_until else self.state

    def has_ended_at(self, now: float) -> bool:
        """Whether its handler can no longer be running: its owner said so, or it is past `run_until`."""
        return self.state != "running" or (self.read_at or now) >= self.run_until

    @property
    def idempotency_key(self) -> str:
        """The key to send to other services: equal for every attempt of one effect."""
        return f"{self.key[:32]}-{self.repeat}"


def begin_lease(now: float, max_duration: float, *, lease: float, grace: float) -> tuple[float, float]:
    """Until when a call that is claimed now could run, and until when its first lease of so many seconds lasts."""
    run_until = now + max_duration + grace
    return run_until, min(run_until, now + lease)


def settle_entry(entry: Entry, state: State, recorded: RecordedResult, *, now: float) -> Entry:
    """The entry with the outcome of its call."""
    changed = entry.changed_arguments if state == "unknown" else None
    return structs.replace(entry, state=state, settled_at=now, recorded=recorded, changed_arguments=changed)


def take_entry(entry: Entry, *, owner: str, lease_until: float, run_until: float) -> Entry:
    """The entry as another owner runs it again: the same effect, with the same idempotency key."""
    return structs.replace(
        entry,
        owner=owner,
        state="running",
        lease_until=lease_until,
        run_until=run_until,
        repeat_until=max(entry.repeat_until, run_until),
        settled_at=None,
        recorded=None,
    )


def get_answer(entry: Entry) -> VerifyAnswer | None:
    """What `verify` said last about an entry."""
    return None if entry.recorded is None else entry.recorded.verified


def with_answer(entry: Entry, answer: VerifyAnswer) -> RecordedResult:
    """What is recorded of an entry in doubt, with what `verify` said."""
    return structs.replace(entry.recorded or RecordedResult(), verified=answer)


def is_unchanged(known: Entry, entry: Entry) -> bool:
    """Whether an entry is still as it was read, in what its owner changes."""
    return (known.owner, known.state, known.lease_until) == (entry.owner, entry.state, entry.lease_until)


def is_same_decision(decision: "LedgerDecision", other: "LedgerDecision") -> bool:
    """Whether the table said the same about a call twice, because of the same entry."""
    if (decision.step, decision.number) != (other.step, other.number):
        return False
    entry, known = decision.entry, other.entry
    if entry is None or known is None:
        return entry is known
    return (entry.session_id, entry.call_id) == (known.session_id, known.call_id) and is_unchanged(entry, known)


class Recalled(Struct, frozen=True, gc=False):
    """The entries that a call may have to do with."""

    by_id: Entry | None = None
    by_key: Entry | None = None
    """The newest with its key."""
    by_full_key: Entry | None = None
    """The newest with its full key."""
    by_sent_key: Entry | None = None
    """The newest whose arguments an approver changed, and whose sent arguments have its key."""


_NOTHING_RECALLED: Final = Recalled()


class Ledger(Protocol):
    """Where entries are kept. Of several claims, exactly one succeeds."""

    @property
    def digest_key(self) -> bytes:
        """The key of all digests, so that stored digests cannot be compared with likely arguments."""
        ...

    is_immediate: ClassVar[bool]
    """Whether its methods never wait, so that they need no deadline."""
    needs_lease: ClassVar[bool]
    """Whether other processes see its entries, and have to know by a lease that the owner of one is alive."""
    is_written: ClassVar[bool]
    """Whether its entries leave the process. Arguments and results are redacted before."""

    async def recall(self, *, session_id: str, call_id: str, key: str = "", full_key: str = "") -> Recalled:
        """The entry with this id, and the newest ones with these keys."""
        ...

    async def claim(
        self,
        entry: Entry,
        *,
        approval: Approval | None,
        approvals: Approvals,
        started: CallStarted | None = None,
        item: "WorkItem | None" = None,
        work: "Work | None" = None,
        is_new: bool = False,
    ) -> bool:
        """Write the entry and consume the approval, both or none. False if the id or a number of a key is taken, if the
        entry with the number before is gone, or if the approval cannot be consumed.

        `started` is what listeners are told after it. A ledger that has an audit beside it audits it, and the use of
        the approval, in the same transaction: a process that is killed then leaves both.

        `item` is the row of a durable call that runs where it was made: it is stored in `work`, in the same
        transaction if that is in the same database. Both are passed for such calls only.

        `is_new` is passed to a ledger that has `can_claim_new`: the call was not looked up, so that the claim also
        fails if `recall` would find an entry.
        """
        ...

    async def settle(self, entry: Entry, *, work: "Work | None" = None) -> None:
        """Write the outcome of a claimed call, unless it is already committed. Raises `CallTakenOverError` if the entry
        is another owner's. The row of a durable call ends in `work`, unless the outcome is not known."""
        ...

    async def take_over(
        self,
        entry: Entry,
        *,
        owner: str,
        lease_until: float,
        run_until: float,
        started: CallStarted | None = None,
    ) -> Entry | None:
        """Make another owner's entry this one's, running again; None if it was changed since it was read.

        The old owner can then write nothing more: its `settle` raises `CallTakenOverError`. `started` as in `claim`.
        """
        ...

    async def renew(self, entries: Sequence[Entry], *, lease_until: float) -> None:
        """Move the leases of running entries. It is called from a thread and an event loop of its own."""
        ...

    async def end_renewals(self) -> None:
        """Close what `renew` has opened in this event loop: there is nothing to renew for now."""
        ...

    async def find_doubts(
        self, *, now: float, session_id: str | None = None, tenant_id: str | None = None, limit: int = 100
    ) -> list[Entry]:
        """The entries whose outcome is not known, the oldest first."""
        ...

    async def record_answer(self, entry: Entry, answer: VerifyAnswer) -> None:
        """Write what `verify` said about an entry in doubt, as `recorded.verified`, unless it was changed meanwhile."""
        ...

    async def resolve(self, entry: Entry, *, work: "Work | None" = None) -> bool:
        """Write what an operator found out about an entry in doubt; False if it was changed meanwhile. If its call is
        stored in `work`, its row ends."""
        ...


def awaits_plain_futures(*parts: object) -> bool:
    """Whether parts of a store say that their methods wait for futures only, which any task can wait for.

    `awaits_plain_futures` is True for what is in a file of SQLite. A part that does not have it may use anything that
    remembers its task, such as `asyncio.timeout`: its methods get a task of their own.
    """
    return all(
        part is None or getattr(part, "is_immediate", False) or getattr(part, "awaits_plain_futures", False)
        for part in parts
    )


def can_claim_new(ledger: Ledger) -> bool:
    """Whether a ledger says that it can claim a call that was not looked up, if it knows nothing about it.

    `can_claim_new` is True for those of Handrail. Without it every call is looked up first.
    """
    return getattr(ledger, "can_claim_new", False)


def find_queue_new(ledger: Ledger) -> "Callable[..., Awaitable[bool]] | None":
    """What queues a durable call that was not looked up, if a ledger can do that; `SqlLedger` can.

    `queue_new(item, key=…, full_key=…, work=…, max_queued=…)` does what `put` of the store of calls does, if `recall`
    would find nothing. False if it may find something, or if the call cannot be queued: it is then looked up.
    """
    return getattr(ledger, "queue_new", None)


# The state table.


class LedgerDecision(Struct, frozen=True, kw_only=True, gc=False):
    """What the table says about a call.

    `run`: nothing is in the way. `replay`: return the recorded result. `in_progress`: it is running. `duplicate_id`:
    the id belongs to another call. `duplicate_effect`: the effect was done with other arguments. `unknown`: it may have
    happened; it is taken over, verified or a doubt. `ask_again`: it was done; somebody has to approve a repetition.
    """

    step: Literal["run", "replay", "in_progress", "duplicate_id", "duplicate_effect", "unknown", "ask_again"]
    entry: Entry | None = None
    """The entry that decided."""
    number: int = 0
    """Of a new entry: how often its key was claimed before."""
    full_number: int = 0
    """Of a new entry: how often its full key was claimed before."""
    repeat: int = 0
    is_same: bool = True
    """Whether the arguments of the entry are those of the call: only then may the call join or verify it."""


NOTHING_KNOWN: Final = LedgerDecision(step="run")
"""What the table says about a call of which the ledger has nothing."""


def decide_from_ledger(
    recalled: Recalled,
    *,
    identity: str,
    arguments_digest: str,
    session_id: str,
    turn: int,
    now: float,
    repeat_window: float,
) -> LedgerDecision:
    """What to do with a call, given the entry with its id and the newest entries with its keys."""
    if recalled is _NOTHING_RECALLED:  # Most calls are new.
        return NOTHING_KNOWN
    if recalled.by_id is not None:
        return _decide_by_id(recalled.by_id, identity=identity, now=now)
    entry = _select_entry(recalled, now)
    if entry is None:
        return NOTHING_KNOWN
    is_same = identity == entry.identity or arguments_digest == entry.arguments_digest
    decision = LedgerDecision(
        step="run",
        entry=entry,
        number=0 if recalled.by_key is None else recalled.by_key.number + 1,
        full_number=0 if recalled.by_full_key is None else recalled.by_full_key.full_number + 1,
        repeat=entry.repeat,
        is_same=is_same,
    )
    is_repetition = (entry.read_at or now) - (entry.settled_at or entry.claimed_at) < repeat_window
    match entry.state_at(now):
        case "running":
            return structs.replace(decision, step="in_progress")
        case "unknown":
            return structs.replace(decision, step="unknown")
        case "failed":  # Nothing happened: another attempt of the same effect.
            # The approval of a repetition was consumed: a repetition that failed is not a first time.
            return structs.replace(decision, step="ask_again") if entry.repeat and is_repetition else decision
        case "committed":
            if entry.session_id == session_id and entry.turn == turn:
                return structs.replace(decision, step="replay" if is_same else "duplicate_effect")
            step = "ask_again" if is_repetition else "run"
            return structs.replace(decision, step=step, repeat=entry.repeat + 1)


def _decide_by_id(entry: Entry, *, identity: str, now: float) -> LedgerDecision:
    if entry.identity != identity:
        return LedgerDecision(step="duplicate_id", entry=entry)
    match entry.state_at(now):
        case "committed" | "failed":
            return LedgerDecision(step="replay", entry=entry)
        case "running":
            return LedgerDecision(step="in_progress", entry=entry)
        case "unknown":
            return LedgerDecision(step="unknown", entry=entry)


def _select_entry(recalled: Recalled, now: float) -> Entry | None:
    """The entry of the same effect that decides: one that is not settled, else the newest."""
    entries = [entry for entry in (recalled.by_key, recalled.by_full_key) if entry is not None]
    if not entries:
        return recalled.by_sent_key
    if len(entries) == 1 or entries[0] is entries[1]:
        return entries[0]
    return max(entries, key=lambda entry: (entry.state_at(now) in ("running", "unknown"), entry.claimed_at))


class LedgerReader:
    """Reads what a ledger knows about a call, within the time that the call has left."""

    def __init__(self, ledger: Ledger, *, repeat_window: float) -> None:
        self._ledger = ledger
        self._is_immediate = ledger.is_immediate
        self._is_plain = awaits_plain_futures(ledger)
        self._repeat_window = repeat_window

    async def decide(
        self,
        arguments: CallArguments,
        ref: CallRef,
        tool: Tool[..., Any],
        context: ToolContext[Any],
        budget: TimeBudget,
    ) -> LedgerDecision:
        """What the table says about a call. Raises `Refusal` if the ledger cannot be read."""
        session_id, call_id = ref
        try:
            recalling = self._ledger.recall(
                session_id=session_id, call_id=call_id, key=arguments.key, full_key=arguments.full_key
            )
            recalled = await (recalling if self._is_immediate else budget.run_step(recalling, is_plain=self._is_plain))
        except (Exception, asyncio.CancelledError) as error:
            if must_propagate(error):
                raise
            log.error("the ledger cannot be read", exc_info=error)
            raise Refusal(failure_results.ledger_unreadable(tool.name)) from error
        return decide_from_ledger(
            recalled,
            identity=arguments.identity,
            arguments_digest=arguments.digest,
            session_id=session_id,
            turn=context.turn,
            now=time.time(),
            repeat_window=self._repeat_window,
        )

    async def get(self, ref: CallRef, budget: TimeBudget) -> Entry | None:
        """The entry of a call, if there is one. Raises what the ledger raises."""
        session_id, call_id = ref
        recalling = self._ledger.recall(session_id=session_id, call_id=call_id)
        return (await budget.run_step(recalling, is_plain=self._is_plain)).by_id


# The ledger in memory.


class MemoryLedger:
    """A ledger in memory, for one process.

    To make room it forgets the oldest settled entries, but none that is too young, and none whose outcome is not known:
    if only such entries are left, consequential calls are refused as `unavailable`.

    Args:
        max_entries: How many calls it remembers.
        max_bytes: The size of the arguments and results that are kept, the newest. Of an older call it is still known
            that it was done; a call that arrives again is told so, without the result.
        keep_for: Seconds for which no settled call is forgotten. Keep it at least as long as the executor's
            `repeat_window`.
    """

    is_immediate: ClassVar[bool] = True
    needs_lease: ClassVar[bool] = False
    is_written: ClassVar[bool] = False
    can_claim_new: ClassVar[bool] = True

    def __init__(self, *, max_entries: int = 100_000, max_bytes: int = 100_000_000, keep_for: float = 86_400.0) -> None:
        if max_entries < 1:
            raise ConfigError(f"max_entries must be at least 1, got {max_entries!r}.")
        if max_bytes < 0:
            raise ConfigError(f"max_bytes must be 0 or more, got {max_bytes!r}.")
        if keep_for < 0:
            raise ConfigError(f"keep_for must be 0 seconds or more, got {keep_for!r}.")
        self.digest_key = os.urandom(32)
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._keep_for = keep_for
        self._by_id: dict[CallRef, Entry] = {}
        self._by_key: dict[str, Entry] = {}
        self._by_full_key: dict[str, Entry] = {}
        self._settled: OrderedDict[CallRef, float] = OrderedDict()
        """Settled entries, the oldest first: only these can be forgotten."""
        self._unsettled: dict[CallRef, None] = {}
        """Entries that run or whose outcome is not known, the oldest first."""
        self._by_sent_key: dict[str, Entry] = {}
        """Only of entries whose arguments an approver changed."""
        self._sizes: OrderedDict[CallRef, int] = OrderedDict()
        """The bytes of the entries that are not small, the oldest first."""
        self._bytes = 0

    async def recall(self, *, session_id: str, call_id: str, key: str = "", full_key: str = "") -> Recalled:
        by_id, by_key = self._by_id.get((session_id, call_id)), self._by_key.get(key)
        by_full_key = self._by_full_key.get(full_key)
        by_sent_key = self._by_sent_key.get(key) if self._by_sent_key else None
        if by_id is by_key is by_full_key is by_sent_key is None:
            return _NOTHING_RECALLED
        return Recalled(by_id, by_key, by_full_key, by_sent_key)

    async def claim(
        self,
        entry: Entry,
        *,
        approval: Approval | None,
        approvals: Approvals,
        started: CallStarted | None = None,
        item: "WorkItem | None" = None,
        work: "Work | None" = None,
        is_new: bool = False,
    ) -> bool:
        ref, key, full_key = (entry.session_id, entry.call_id), entry.key, entry.full_key
        newest, newest_full = self._by_key.get(key), self._by_full_key.get(full_key)
        if ref in self._by_id or entry.number != (0 if newest is None else newest.number + 1):
            return False
        if entry.full_number != (0 if newest_full is None else newest_full.full_number + 1):
            return False
        if is_new and not (newest is newest_full is None and key not in self._by_sent_key):
            return False
        if len(self._by_id) >= self._max_entries:
            self._make_room(entry.claimed_at)
        # The entry is written before the approval is consumed, so that nobody can claim in between.
        newest_sent = self._by_sent_key.get(entry.sent_key)
        self._by_id[ref] = self._by_key[key] = self._by_full_key[full_key] = entry
        self._unsettled[ref] = None
        if entry.sent_key and entry.sent_key != key:
            self._by_sent_key[entry.sent_key] = entry
        if item is not None and work is not None:
            await work.hold(item, lease=entry.lease_until - entry.claimed_at)
        if approval is None and isinstance(approvals, MemoryApprovals) and entry.session_id not in approvals.by_session:
            return True
        is_claimed = False
        try:
            if approval is not None:
                is_claimed = await approvals.consume(approval.token, now=entry.claimed_at, call_id=entry.call_id)
            else:
                await approvals.withdraw_pending(session_id=entry.session_id, call_id=entry.call_id)
                is_claimed = True
        finally:
            if not is_claimed:
                self._undo(entry, newest, newest_full, newest_sent)
        return is_claimed

    def _undo(self, entry: Entry, newest: Entry | None, newest_full: Entry | None, newest_sent: Entry | None) -> None:
        ref = (entry.session_id, entry.call_id)
        del self._by_id[ref], self._unsettled[ref]
        before = (
            (self._by_key, entry.key, newest),
            (self._by_full_key, entry.full_key, newest_full),
            (self._by_sent_key, entry.sent_key, newest_sent),
        )
        for by_key, key, previous in before:
            # By its sent key one is only kept if an approver changed its arguments, and another may have come after it.
            if by_key.get(key) is not entry:
                continue
            # What is known of the entry before now: it may have been shortened meanwhile.
            previous = None if previous is None else self._by_id.get((previous.session_id, previous.call_id))
            if previous is None:
                del by_key[key]
            else:
                by_key[key] = previous

    async def settle(self, entry: Entry, *, work: "Work | None" = None) -> None:
        ref = (entry.session_id, entry.call_id)
        known = self._by_id.get(ref)
        if known is not None and known.owner != entry.owner:
            if entry.state == "failed":  # Nothing happened, so that there is nothing to write.
                return
            raise CallTakenOverError(entry.tool)
        if known is not None and known.state != "committed":
            self._replace(ref, known, entry)
            if (size := _measure_entry(entry)) > _SMALL:
                self._limit_bytes(ref, size)
        if work is not None and entry.state != "unknown":
            await work.end(session_id=entry.session_id, call_id=entry.call_id)

    def _limit_bytes(self, ref: CallRef, size: int) -> None:
        self._bytes += size - self._sizes.pop(ref, 0)
        self._sizes[ref] = size
        while self._bytes > self._max_bytes:
            oldest, size = self._sizes.popitem(last=False)
            self._bytes -= size
            self._shorten(oldest)

    def _shorten(self, ref: CallRef) -> None:
        whole = self._by_id[ref]
        self._replace(ref, whole, _shorten_entry(whole))

    async def take_over(
        self,
        entry: Entry,
        *,
        owner: str,
        lease_until: float,
        run_until: float,
        started: CallStarted | None = None,
    ) -> Entry | None:
        known = self._by_id.get((entry.session_id, entry.call_id))
        if known is None or known.state not in ("running", "unknown") or not is_unchanged(known, entry):
            return None
        taken = take_entry(entry, owner=owner, lease_until=lease_until, run_until=run_until)
        self._replace((entry.session_id, entry.call_id), known, taken)
        return taken

    async def renew(self, entries: Sequence[Entry], *, lease_until: float) -> None:
        for entry in entries:
            ref = (entry.session_id, entry.call_id)
            known = self._by_id.get(ref)
            if known is not None and known.owner == entry.owner and known.state == "running":
                self._replace(ref, known, structs.replace(known, lease_until=lease_until))

    async def end_renewals(self) -> None:
        pass

    async def find_doubts(
        self, *, now: float, session_id: str | None = None, tenant_id: str | None = None, limit: int = 100
    ) -> list[Entry]:
        unsettled = (self._by_id[ref] for ref in self._unsettled)
        doubts = (
            entry
            for entry in unsettled
            if entry.state_at(now) == "unknown"
            and session_id in (None, entry.session_id)
            and tenant_id in (None, entry.tenant_id)
        )
        return list(islice(doubts, limit))

    async def record_answer(self, entry: Entry, answer: VerifyAnswer) -> None:
        ref = (entry.session_id, entry.call_id)
        known = self._by_id.get(ref)
        if known is not None and known.state in ("running", "unknown") and is_unchanged(known, entry):
            self._replace(ref, known, structs.replace(known, recorded=with_answer(known, answer)))

    async def resolve(self, entry: Entry, *, work: "Work | None" = None) -> bool:
        ref = (entry.session_id, entry.call_id)
        known = self._by_id.get(ref)
        if known is None or known.owner != entry.owner or known.state not in ("running", "unknown"):
            return False
        self._replace(ref, known, entry)
        if work is not None:
            await work.end(session_id=entry.session_id, call_id=entry.call_id)
        return True

    def _replace(self, ref: CallRef, known: Entry, entry: Entry) -> None:
        """Write an entry in the place of what is known of its call; the newest of its keys stay the newest."""
        self._by_id[ref] = entry
        if self._by_key.get(known.key) is known:
            self._by_key[known.key] = entry
        if self._by_full_key.get(known.full_key) is known:
            self._by_full_key[known.full_key] = entry
        if self._by_sent_key and self._by_sent_key.get(known.sent_key) is known:
            self._by_sent_key[known.sent_key] = entry
        if entry.state in ("committed", "failed"):
            self._settled[ref] = entry.settled_at or entry.claimed_at
            self._unsettled.pop(ref, None)
        else:
            self._unsettled[ref] = None
            self._settled.pop(ref, None)

    def _make_room(self, now: float) -> None:
        while len(self._by_id) >= self._max_entries:
            ref, settled_at = next(iter(self._settled.items()), (None, math.inf))
            if ref is None or now - settled_at < self._keep_for:
                raise LedgerFullError(f"the ledger holds {len(self._by_id)} entries and may forget none of them")
            del self._settled[ref]
            oldest = self._by_id.pop(ref)
            self._bytes -= self._sizes.pop(ref, 0)
            if self._by_key.get(oldest.key) is oldest:
                del self._by_key[oldest.key]
            if self._by_full_key.get(oldest.full_key) is oldest:
                del self._by_full_key[oldest.full_key]
            if self._by_sent_key.get(oldest.sent_key) is oldest:
                del self._by_sent_key[oldest.sent_key]


def _measure_entry(entry: Entry) -> int:
    """About how many bytes the arguments and the result of an entry have."""
    recorded = entry.recorded
    if recorded is None:
        return len(entry.arguments)
    size = len(entry.arguments) + len(recorded.text or "") + len(recorded.notice)
    if recorded.failure is not None:
        size += len(recorded.failure.message)
    if recorded.metadata:
        size += len(repr(recorded.metadata))
    return size + sum(part.size for part in recorded.media if part.data is not None) if recorded.media else size


def _shorten_entry(entry: Entry) -> Entry:
    """The entry without most of its arguments and its result."""
    recorded = entry.recorded
    if recorded is not None:
        text, is_json, failure = recorded.text, recorded.is_json, recorded.failure
        if text is not None and len(text) > _SMALL:
            text, is_json = f"[The result of `{entry.tool}` is left out: {_NOT_KEPT}.]", False
        if failure is not None:
            failure = structs.replace(failure, message=failure.message[:_SMALL])
        media = tuple(part.omit(_NOT_KEPT) for part in recorded.media)
        recorded = RecordedResult(
            text=text,
            is_json=is_json,
            failure=failure,
            control=recorded.control,
            media=media,
            notice=recorded.notice[:_SMALL],
        )
    arguments = entry.arguments
    if len(arguments) > _SMALL:
        arguments = f"{arguments[:_SMALL]}… [the rest is left out: {_NOT_KEPT}]"
    return structs.replace(entry, recorded=recorded, arguments=arguments)

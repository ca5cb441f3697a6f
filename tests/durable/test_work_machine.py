"""Two owners of one stored call, and an operator: whatever they do in whatever order, one of them has it.

The model has few words: a row and an entry, each with a state and an owner. What the store answers and keeps is what
the model says, in memory and in SQLite, by a clock that only the machine moves.
"""

import asyncio
import itertools
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine
from msgspec import structs

from handrail import ToolCall
from handrail.authorize import MemoryApprovals
from handrail.errors import CallTakenOverError
from handrail.execute import Entry, MemoryLedger, MemoryWork, WorkItem
from handrail.execute import stored_calls as memory_module
from handrail.store import ledger as ledger_module
from handrail.store import open_store
from handrail.store import stored_calls as sql_module
from tests.postgres import new_database
from tests.store.samples import a_recorded, an_entry

LEASE = 1.0
OWNERS = st.sampled_from(["ann", "bob"])
CALL = ToolCall(id="c-1", name="pay", arguments_json="{}")
numbers = itertools.count()


class Clock(SimpleNamespace):
    """What the modules of stores see as `time`."""

    now = 1_000_000.0

    def time(self) -> float:
        return self.now


class WorkMachine(RuleBasedStateMachine):
    """One call."""

    def __init__(self, runner: asyncio.Runner, clock: Clock, store: Any) -> None:
        super().__init__()
        self.runner, self.clock, self.store = runner, clock, store
        self.work: Any = store.work if store else MemoryWork()
        self.ledger: Any = store.ledger if store else MemoryLedger()
        self.approvals: Any = store.approvals if store else MemoryApprovals()
        self.session = f"s-{next(numbers)}"
        self.ref = {"session_id": self.session, "call_id": "c-1"}
        # The model.
        self.state: str | None = None
        self.owner: str | None = None
        self.due = 0.0
        self.attempts = 0
        self.is_cancelled = False
        self.entry: Entry | None = None
        # What each owner believes, true or not.
        self.taken: dict[str, WorkItem] = {}
        self.claimed: dict[str, Entry] = {}
        self.seen: dict[str, Entry] = {}

    def run(self, answer: Any) -> Any:
        return self.runner.run(answer)

    @property
    def is_settled(self) -> bool:
        return self.entry is not None and self.entry.state in ("committed", "failed")

    def end_row(self) -> None:
        if self.state is not None:
            self.state, self.owner = "done", None

    @rule(seconds=st.sampled_from([0.3, 0.7, 1.1]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    # The row.

    @precondition(lambda self: self.entry is None)
    @rule()
    def put(self) -> None:
        item = WorkItem(**self.ref, tool="pay", definition="d-1", call=CALL, sent_call=CALL)
        assert self.run(self.work.put(item))
        if self.state not in ("running", "waiting"):
            self.state, self.owner, self.due = "queued", None, self.clock.now

    @rule(owner=OWNERS)
    def take(self, owner: str) -> None:
        taken = self.run(self.work.take(**self.ref, owner=owner, lease=LEASE))
        is_own = (self.state, self.owner) == ("running", owner)
        can_take = self.state not in (None, "done") and (self.due <= self.clock.now or is_own)
        assert (taken is not None) == can_take
        if can_take:
            self.state, self.owner, self.due = "running", owner, self.clock.now + LEASE
            self.attempts += 1
            self.taken[owner] = taken
            assert (taken.owner, taken.attempts, taken.call) == (owner, self.attempts, CALL)

    @precondition(lambda self: self.taken)
    @rule(owner=OWNERS)
    def renew(self, owner: str) -> None:
        async def renew() -> None:
            await self.work.renew([(self.session, "c-1")], owner=owner, lease=LEASE)
            if owner in self.claimed:
                await self.ledger.renew([self.claimed[owner]], lease_until=self.clock.now + LEASE)

        self.run(renew())
        if (self.state, self.owner) == ("running", owner):
            self.due = self.clock.now + LEASE
        if (
            owner in self.claimed
            and self.entry is not None
            and (self.entry.state, self.entry.owner) == ("running", owner)
        ):
            self.entry = structs.replace(self.entry, lease_until=self.clock.now + LEASE)

    @precondition(lambda self: self.taken)
    @rule(
        owner=OWNERS,
        state=st.sampled_from(["queued", "waiting"]),
        delay=st.sampled_from([0.0, 0.5]),
        begun=st.booleans(),
    )
    def release(self, owner: str, state: Literal["queued", "waiting"], delay: float, begun: bool) -> None:
        if owner not in self.taken:
            return
        released = self.run(self.work.release(self.taken[owner], state=state, delay=delay, is_begun=begun))
        assert released == ((self.state, self.owner) == ("running", owner))
        if released:
            self.state, self.owner, self.due = state, None, self.clock.now + delay
            self.attempts -= not begun

    @precondition(lambda self: self.taken and self.entry is None)
    @rule(owner=OWNERS)
    def finish(self, owner: str) -> None:
        if owner not in self.taken:
            return
        finished = self.run(self.work.finish(self.taken[owner], a_recorded()))
        assert finished == ((self.state, self.owner) == ("running", owner))
        if finished:
            self.end_row()

    @rule()
    def queue_what_is_due(self) -> None:
        self.run(self.work.find(resend_after=5.0))
        if self.state in ("parked", "waiting") and self.due <= self.clock.now:
            self.state, self.owner, self.due = "queued", None, self.clock.now

    # A question, and a cancellation.

    @precondition(lambda self: self.entry is None)
    @rule(owner=st.sampled_from(["ann", "bob", None]))
    def park(self, owner: str | None) -> None:
        token = f"apr-{self.session}"
        item = WorkItem(
            **self.ref, tool="pay", definition="d-1", call=CALL, sent_call=CALL, approval=token, owner=owner
        )
        can_park = self.state not in ("running", "waiting") or (owner is not None and self.owner == owner)
        state = self.run(self.work.park(item, expires_in=0.5, approvals=self.approvals))
        assert state == ("parked" if can_park else self.state)
        if can_park:
            self.state, self.owner, self.due = "parked", None, self.clock.now + 0.5

    @rule()
    def wake(self) -> None:
        woken = self.run(self.work.wake(f"apr-{self.session}"))
        assert [item.call_id for item in woken] == (["c-1"] if self.state == "parked" else [])
        if self.state == "parked":
            self.state, self.due = "queued", self.clock.now

    @rule(is_unclaimed=st.booleans())
    def cancel(self, is_unclaimed: bool) -> None:
        recorded = a_recorded(text="cancelled") if is_unclaimed and self.entry is None else None
        is_open = self.run(self.work.cancel(**self.ref, recorded=recorded))
        assert is_open == (self.state not in (None, "done"))
        if is_open:
            self.is_cancelled = True
            if recorded is not None and self.state in ("queued", "parked") and not self.attempts:
                self.end_row()

    @rule(owner=OWNERS)
    def find_cancelled(self, owner: str) -> None:
        found = (self.session, "c-1") in self.run(self.work.find_cancelled(owner=owner))
        assert found == (self.is_cancelled and (self.state, self.owner) == ("running", owner))

    # The entry.

    @precondition(lambda self: self.taken)
    @rule(owner=OWNERS)
    def claim(self, owner: str) -> None:
        if owner not in self.taken:
            return
        now = self.clock.now
        entry = an_entry(
            **self.ref,
            key=self.session,
            owner=owner,
            claimed_at=now,
            lease_until=now + LEASE,
            run_until=now + 2 * LEASE,
        )
        claimed = self.run(self.ledger.claim(entry, approval=None, approvals=self.approvals))
        assert claimed == (self.entry is None)
        if claimed:
            self.entry = self.claimed[owner] = entry

    @rule(who=st.sampled_from(["ann", "bob", "operator"]))
    def look(self, who: str) -> None:
        found = self.run(self.ledger.recall(**self.ref)).by_id
        assert (found is None) == (self.entry is None)
        if found is not None:
            self.seen[who] = found

    @precondition(lambda self: self.seen)
    @rule(owner=OWNERS)
    def take_over(self, owner: str) -> None:
        seen = self.seen.get(owner)
        if (
            seen is None
            or seen.owner == owner
            or structs.replace(seen, read_at=0).state_at(self.clock.now) != "unknown"
        ):
            return  # Whoever is alive is left alone.
        times = {"lease_until": self.clock.now + LEASE, "run_until": self.clock.now + 2 * LEASE}
        taken = self.run(self.ledger.take_over(seen, owner=owner, **times))
        known = self.entry
        assert known is not None
        can_take = (known.owner, known.state, known.lease_until) == (seen.owner, seen.state, seen.lease_until)
        assert (taken is not None) == can_take
        if taken is not None:
            self.entry = self.claimed[owner] = taken
            assert taken.idempotency_key == known.idempotency_key

    @precondition(lambda self: self.claimed)
    @rule(owner=OWNERS, state=st.sampled_from(["committed", "failed", "unknown"]))
    def settle(self, owner: str, state: Any) -> None:
        claimed = self.claimed.pop(owner, None)
        if claimed is None:
            return
        outcome = structs.replace(claimed, state=state, settled_at=self.clock.now, recorded=a_recorded(text=owner))
        assert self.entry is not None
        is_own = self.entry.owner == owner
        try:
            self.run(self.ledger.settle(outcome, work=self.work))
        except CallTakenOverError:
            assert not is_own
            return
        assert is_own or state == "failed"
        if is_own and self.entry.state != "committed":  # Its owner knows better than an operator who found nothing.
            self.entry = structs.replace(self.entry, state=state, recorded=outcome.recorded)
            if state != "unknown":
                self.end_row()

    @precondition(lambda self: "operator" in self.seen)
    @rule(happened=st.booleans())
    def resolve(self, happened: bool) -> None:
        seen = self.seen.pop("operator")
        if seen.state_at(self.clock.now) != "unknown":
            return
        found = structs.replace(
            seen,
            state="committed" if happened else "failed",
            settled_at=self.clock.now,
            recorded=a_recorded(text="operator"),
        )
        is_resolved = self.run(self.ledger.resolve(found, work=self.work))
        assert self.entry is not None
        if is_resolved:
            assert not self.is_settled
            assert self.entry.owner == seen.owner
            self.entry = structs.replace(self.entry, state=found.state, recorded=found.recorded)
            self.end_row()

    # What holds.

    @invariant()
    def the_row_is_as_the_model_says(self) -> None:
        row = self.run(self.work.get(**self.ref))
        if row is None:
            assert self.state is None
            return
        owner = row.owner if row.state == "running" else None
        assert (row.state, owner, row.attempts) == (self.state, self.owner, self.attempts)
        assert row.state == "done" or row.due_at == pytest.approx(self.due)
        assert (row.call is None) == (row.state == "done")
        assert (row.cancelled_at is not None) == self.is_cancelled

    @invariant()
    def the_entry_is_as_the_model_says(self) -> None:
        entry = self.run(self.ledger.recall(**self.ref)).by_id
        if entry is None:
            assert self.entry is None
            return
        assert self.entry is not None
        assert (entry.owner, entry.state) == (self.entry.owner, self.entry.state)
        said = None if entry.recorded is None else entry.recorded.text
        assert said == (None if self.entry.recorded is None else self.entry.recorded.text)


@contextmanager
def open_world(database: str, folder: Path, request: pytest.FixtureRequest) -> Generator[tuple[asyncio.Runner, Any]]:
    with asyncio.Runner() as runner:
        if database == "memory":
            yield runner, None
            return
        store = open_store(new_database(database, folder, request))
        runner.run(store.open())
        try:
            yield runner, store
        finally:
            runner.run(store.ledger.end_renewals())
            runner.run(store.aclose())


@pytest.mark.proves("DU-03")
@pytest.mark.parametrize("database", ["memory", "sqlite"])
def test_of_two_owners_one_has_the_call(
    database: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    for module in (memory_module, sql_module, ledger_module):
        monkeypatch.setattr(module, "time", clock)
    examples = settings().max_examples if database == "memory" else max(settings().max_examples // 10, 5)
    with open_world(database, tmp_path, request) as (runner, store):
        run_machine(
            lambda: WorkMachine(runner, clock, store),
            settings=settings(
                max_examples=examples, stateful_step_count=30, suppress_health_check=[HealthCheck.too_slow]
            ),
        )

"""While a process lives, the leases of its calls are renewed; one that died is known by a lease that nobody renews."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from handrail import Executor, tool
from handrail.execute import Entry, MemoryLedger, MemoryWork, Timeouts
from handrail.execute.leases import LeaseKeeper
from tests.execute.helpers import ALLOWED, Held, at, call, code_of
from tests.store.samples import an_entry

LEASE = 0.06
PATIENCE = 30.0
"""Seconds that only a fault takes."""


class Renewals(MemoryLedger):
    """A ledger of several processes that counts its renewals, and fails or hangs when it is told to."""

    is_immediate, needs_lease = False, True

    def __init__(self) -> None:
        super().__init__()
        self.rounds: list[tuple[set[str], float]] = []
        self.ended = 0
        self.fault: Callable[[], Any] | None = None
        self._changed = threading.Condition()

    async def renew(self, entries: Sequence[Entry], *, lease_until: float) -> None:
        fault, self.fault = self.fault, None
        if fault is not None:
            await fault()
        await super().renew(entries, lease_until=lease_until)
        with self._changed:
            self.rounds.append(({entry.call_id for entry in entries}, lease_until - time.time()))
            self._changed.notify_all()

    async def end_renewals(self) -> None:
        with self._changed:
            self.ended += 1
            self._changed.notify_all()

    def wait(self, until: Callable[["Renewals"], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: until(self), PATIENCE)


def keep(ledger: Renewals, **options: Any) -> LeaseKeeper:
    return LeaseKeeper(ledger, **{"lease_timeout": LEASE, "lease_grace": 60, **options})


def test_the_leases_of_all_calls_are_renewed_together_until_they_are_released() -> None:
    ledger = Renewals()
    keeper, one, two = keep(ledger), an_entry(call_id="c-1", lease_until=0), an_entry(call_id="c-2", lease_until=0)
    keeper.hold(one)
    keeper.hold(two)
    ledger.wait(lambda ledger: any(ids == {"c-1", "c-2"} for ids, _ in ledger.rounds))
    assert all(left <= LEASE for _, left in ledger.rounds)
    keeper.release(one)
    count = len(ledger.rounds)
    ledger.wait(lambda ledger: len(ledger.rounds) >= count + 2)
    assert ledger.rounds[-1][0] == {"c-2"}
    keeper.release(two)
    keeper.release(two)
    ledger.wait(lambda ledger: ledger.ended == 1)
    assert ledger.ended == 1
    assert keeper._entries == keeper._renewed == {}  # pyright: ignore[reportPrivateUsage]  # Nothing is kept of them.


def test_after_a_while_without_calls_the_thread_ends_and_the_next_call_has_another() -> None:
    def find_threads() -> list[threading.Thread]:
        return [item for item in threading.enumerate() if item.name == "handrail-leases" and item not in before]

    before, ledger = set(threading.enumerate()), Renewals()
    keeper, entry = keep(ledger, lease_timeout=0.01), an_entry(lease_until=0)
    for number in (1, 2):
        keeper.hold(entry)
        keeper.hold(entry)
        [thread] = find_threads()
        assert thread.daemon  # It does not keep the program from ending.
        count = len(ledger.rounds)
        ledger.wait(lambda ledger, count=count: len(ledger.rounds) > count)  # type: ignore[misc]
        keeper.release(entry)
        thread.join(PATIENCE)
        assert find_threads() == []
        assert ledger.ended == number  # What it had opened is closed once.


@pytest.mark.parametrize("fault", ["it fails", "it hangs", "it raises a cancellation of its own"])
def test_a_ledger_that_is_away_is_asked_again(fault: str) -> None:
    async def fail() -> None:
        raise ConnectionError("away")

    async def cancel() -> None:
        raise asyncio.CancelledError

    ledger = Renewals()
    ledger.fault = {"it fails": fail, "it hangs": asyncio.Event().wait}.get(fault, cancel)
    keeper, entry = keep(ledger), an_entry(call_id="c-1", lease_until=0)
    keeper.hold(entry)
    ledger.wait(lambda ledger: len(ledger.rounds) >= 1)
    keeper.release(entry)

    assert ledger.rounds[0][0] == {"c-1"}


async def test_leases_are_renewed_after_a_moment_in_which_no_thread_could_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledger, held = Renewals(), Held()

    @tool()
    async def act(waits: bool) -> str:
        """Act."""
        return await held() if waits else "done"

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    executor = Executor([act], policy=ALLOWED, ledger=ledger, timeouts=Timeouts(lease=LEASE))
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        assert (await executor.run(call("act", waits=False), at())).output == "done"
    waiting = asyncio.create_task(executor.run(call("act", "c-2", waits=True), at()))
    await held.begun.wait()
    await asyncio.to_thread(ledger.wait, lambda ledger: len(ledger.rounds) >= 1)
    held.go.set()

    assert (await waiting).output == "done"


def test_a_lease_that_lasts_is_not_renewed_before_it_is_due() -> None:
    ledger = Renewals()
    keeper = keep(ledger, lease_timeout=3_000)
    keeper.interval = 0.005
    far, near = an_entry(call_id="far", lease_until=time.time() + 2_900), an_entry(call_id="near", lease_until=0)
    keeper.hold(far)
    keeper.hold(near)
    ledger.wait(lambda ledger: len(ledger.rounds) >= 1)
    time.sleep(0.05)  # Some rounds, in which nothing is due.
    for entry in (far, near):
        keeper.release(entry)

    assert [ids for ids, _ in ledger.rounds] == [{"near"}]


async def test_a_call_that_runs_for_longer_than_its_lease_is_known_to_run() -> None:
    ledger, held = Renewals(), Held()

    @tool(idempotent=True)
    async def pay() -> str:
        """Pay."""
        return await held()

    timeouts = Timeouts(lease=LEASE, in_progress=0, lease_grace=0)
    owner, other = (Executor([pay], policy=ALLOWED, ledger=ledger, timeouts=timeouts) for _ in range(2))
    paying = asyncio.create_task(owner.run(call("pay"), at()))
    await held.begun.wait()
    await asyncio.to_thread(ledger.wait, lambda ledger: len(ledger.rounds) >= 5)  # More than the first lease.

    # Right after a renewal: the lease is as long as it can be.
    count = len(ledger.rounds)
    await asyncio.to_thread(ledger.wait, lambda ledger: len(ledger.rounds) > count)
    assert code_of(await other.run(call("pay", "c-2"), at())) in ("in_progress", "outcome_unknown")
    assert held.runs == 1
    held.go.set()
    assert (await paying).output == "done"
    assert (await other.run(call("pay", "c-3"), at())).origin == "replayed"
    assert held.runs == 1


async def test_the_lease_of_a_call_whose_task_was_cancelled_is_not_renewed_any_more() -> None:
    ledger, held = Renewals(), Held()

    @tool
    async def pay() -> str:
        """Pay."""
        return await held()

    executor = Executor([pay], policy=ALLOWED, ledger=ledger, timeouts=Timeouts(lease=LEASE))
    paying = asyncio.create_task(executor.run(call("pay"), at()))
    await held.begun.wait()
    [own] = [task for task in asyncio.all_tasks() if task.get_name() == "handrail:s-1:c-1"]
    own.cancel()  # As when the program ends.

    assert code_of(await paying) == "outcome_unknown"
    await asyncio.wait([own])
    assert own.cancelled()
    assert [doubt.call_id for doubt in await executor.doubts()] == ["c-1"]
    await asyncio.to_thread(ledger.wait, lambda ledger: ledger.ended == 1)


# Who is gone


@pytest.mark.parametrize(
    ("needs_lease", "state", "is_gone"), [(True, "running", False), (True, "unknown", True), (False, "running", True)]
)
def test_an_owner_is_gone_who_said_so_or_whom_nobody_else_could_be(
    needs_lease: bool, state: Any, is_gone: bool
) -> None:
    ledger = Renewals()
    ledger.needs_lease = needs_lease  # type: ignore[misc]

    assert keep(ledger).is_abandoned(an_entry(state=state, lease_until=0)) is is_gone


def test_an_owner_is_gone_whose_lease_was_seen_over_and_unchanged_for_as_long_as_a_lease_lasts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    keeper, entry = keep(Renewals(), lease_timeout=15), an_entry(call_id="c-1", lease_until=1)

    def look(entry: Entry, after: float) -> bool:
        now[0] += after
        return keeper.is_abandoned(entry)

    assert [look(entry, 0), look(entry, 14), look(entry, 1)] == [False, False, True]
    renewed = an_entry(call_id="c-1", lease_until=2)
    assert [look(renewed, 0), look(renewed, 14.9), look(renewed, 0.1)] == [False, False, True]
    taken = an_entry(call_id="c-1", lease_until=2, owner="somebody else")
    assert [look(taken, 0), look(taken, 15)] == [False, True]
    assert not look(an_entry(call_id="c-2", lease_until=2), 15)  # Another call.


@pytest.mark.parametrize(
    ("needs_lease", "max_duration", "leases"),
    [(True, 30.0, (1_090.0, 1_015.0)), (True, 1.0, (1_061.0, 1_015.0)), (False, 30.0, (1_090.0, 1_090.0))],
)
def test_how_long_a_call_could_run_and_its_first_lease(
    needs_lease: bool, max_duration: float, leases: tuple[float, float]
) -> None:
    ledger = Renewals()
    ledger.needs_lease = needs_lease  # type: ignore[misc]

    assert keep(ledger, lease_timeout=15).begin(1_000.0, max_duration) == leases
    assert keep(Renewals(), lease_timeout=15, lease_grace=0).begin(1_000.0, 2.0) == (1_002.0, 1_002.0)


class Rows(MemoryWork):
    """Stored calls that count their renewals."""

    def __init__(self) -> None:
        super().__init__()
        self.rounds: list[tuple[set[str], str, float]] = []
        self._changed = threading.Condition()

    async def renew(self, refs: Sequence[Any], *, owner: str, lease: float) -> None:
        with self._changed:
            self.rounds.append(({call_id for _, call_id in refs}, owner, lease))
            self._changed.notify_all()
        if len(self.rounds) == 1:
            raise ConnectionError("away")

    def wait(self, ids: set[str]) -> None:
        count = len(self.rounds)
        with self._changed:
            assert self._changed.wait_for(lambda: any(item[0] == ids for item in self.rounds[count:]), PATIENCE)


def test_the_rows_of_stored_calls_are_renewed_from_when_they_are_taken_until_they_are_not_ours_any_more() -> None:
    rows, ledger = Rows(), Renewals()
    keeper = keep(ledger, owner="ann", work=rows)
    durable = an_entry(call_id="c-2", lease_until=0, is_durable=True)
    keeper.hold_row(("s-1", "c-1"))
    rows.wait({"c-1"})
    rows.wait({"c-1"})  # Also after a round that failed.
    keeper.hold(durable)
    other = an_entry(call_id="c-3", lease_until=0)
    keeper.hold(other)
    rows.wait({"c-1", "c-2"})
    keeper.release_row(("s-1", "c-1"))
    rows.wait({"c-2"})
    keeper.hold_row(("s-1", "c-4"))
    keeper.release(durable)
    rows.wait({"c-4"})
    keeper.release_row(("s-1", "c-4"))
    count = len(ledger.rounds)
    ledger.wait(lambda ledger: len(ledger.rounds) >= count + 3)  # Its entry is held: there are no rows to renew.
    keeper.release(other)

    assert all(ids for ids, _, _ in rows.rounds)
    assert {(owner, lease) for _, owner, lease in rows.rounds} == {("ann", LEASE)}


def test_above_so_many_owners_all_are_watched_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr("handrail.execute.leases._MAX_OBSERVED", 2)
    keeper = keep(Renewals(), lease_timeout=15)

    def look(number: int, after: float = 0) -> bool:
        now[0] += after
        return keeper.is_abandoned(an_entry(call_id=f"c-{number}", lease_until=1))

    assert [look(number) for number in (1, 2, 3)] == [False] * 3
    assert look(1, after=15) is False  # There were more than two: it is seen for the first time again.
    assert look(1, after=15) is True


def test_rows_are_renewed_once_in_a_third_of_a_lease() -> None:
    rows = Rows()
    keeper = keep(Renewals(), owner="ann", work=rows, lease_timeout=60)
    keeper.hold_row(("s-1", "c-1"))
    time.sleep(0.05)  # Time is the subject: the first round is in twenty seconds.
    keeper.release_row(("s-1", "c-1"))

    assert rows.rounds == []


def test_a_call_that_runs_for_many_rounds_is_renewed_in_each_of_them() -> None:
    ledger = Renewals()
    keeper, entry = keep(ledger, lease_timeout=0.03), an_entry(lease_until=0)
    keeper.hold(entry)
    ledger.wait(lambda ledger: len(ledger.rounds) >= 12)  # A thread with nothing to do ends after seven.
    keeper.release(entry)


async def test_a_call_that_is_over_is_not_renewed_any_more_by_a_ledger_that_took_its_time() -> None:
    ledger = Renewals()

    @tool
    async def pay() -> str:
        """Pay."""
        return "paid"

    executor = Executor([pay], policy=ALLOWED, ledger=ledger, timeouts=Timeouts(lease=LEASE))
    assert (await executor.run(call("pay"), at())).ok
    await asyncio.to_thread(ledger.wait, lambda ledger: ledger.ended == 1)


async def test_a_call_whose_thread_outlives_it_is_renewed_until_its_thread_ends_also_in_memory() -> None:
    ledger, go = Renewals(), threading.Event()
    ledger.needs_lease = False  # type: ignore[misc]

    @tool(timeout=0.01)
    def pay() -> str:
        """Pay."""
        assert go.wait(PATIENCE)
        return "paid"

    executor = Executor([pay], policy=ALLOWED, ledger=ledger, timeouts=Timeouts(lease=LEASE))
    assert code_of(await executor.run(call("pay"), at())) == "outcome_unknown"
    await asyncio.to_thread(ledger.wait, lambda ledger: len(ledger.rounds) >= 2)
    go.set()
    while executor.stranded_threads:
        await asyncio.sleep(0.001)
    await asyncio.to_thread(ledger.wait, lambda ledger: ledger.ended == 1)

    again = await executor.run(call("pay"), at())
    assert (again.output, again.origin) == ("paid", "replayed")
    settlement = executor._parts.settlement  # pyright: ignore[reportPrivateUsage]
    assert not settlement._background  # pyright: ignore[reportPrivateUsage]  # Nothing of it is kept.

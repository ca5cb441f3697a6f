"""The rules of stored calls, one by one, in memory; `test_work_machine` tries them in any order, in databases, too."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from handrail import ToolCall
from handrail.authorize import MemoryApprovals
from handrail.core import Approval
from handrail.execute import MemoryWork, WorkItem
from handrail.execute.recorded_result import RecordedResult
from tests.warped import warped

REF = ("s-1", "c-1")
WHICH = {"session_id": "s-1", "call_id": "c-1"}
CALL = ToolCall(id="c-1", name="pay", arguments_json="{}")
CANCELLED = RecordedResult(text="cancelled")


def item(call_id: str = "c-1", **more: Any) -> WorkItem:
    return WorkItem(session_id="s-1", call_id=call_id, tool="pay", definition="d", call=CALL, **more)


async def take(work: MemoryWork, owner: str = "ann", lease: float = 10) -> WorkItem | None:
    return await work.take(**WHICH, owner=owner, lease=lease)


async def state(work: MemoryWork) -> tuple[str, str | None, int]:
    known = await work.get(**WHICH)
    assert known is not None
    return known.state, known.owner, known.attempts


@warped
async def test_a_call_is_its_owners_until_the_lease_is_over() -> None:
    work = MemoryWork()
    assert await take(work) is None
    await work.put(item())
    assert await take(work) is not None
    await asyncio.sleep(9)
    assert await take(work, "bob") is None
    assert await take(work, "ann") is not None  # It is delivered to who has it: again for ten seconds.
    await asyncio.sleep(9)
    await work.renew([REF, ("s-1", "unknown")], owner="ann", lease=10)
    await work.renew([REF], owner="bob", lease=1_000)
    await asyncio.sleep(9)
    assert await take(work, "bob") is None
    await asyncio.sleep(1)
    assert await take(work, "bob") is not None
    assert await state(work) == ("running", "bob", 3)


@warped
async def test_only_its_owner_gives_a_call_back_or_finishes_it() -> None:
    work = MemoryWork()
    await work.put(item())
    await take(work)
    theirs, own = item(owner="bob"), item(owner="ann")
    assert not await work.release(theirs, state="queued", delay=0)
    assert not await work.finish(theirs, CANCELLED)
    assert not await work.finish(item("c-9", owner="ann"), CANCELLED)

    assert await work.release(own, state="waiting", delay=5)
    assert await state(work) == ("waiting", None, 1)
    assert not await work.finish(own, CANCELLED)
    assert await take(work) is None
    await asyncio.sleep(5)
    await take(work)
    assert await work.release(own, state="queued", delay=0, is_begun=False)  # It was never begun: it does not count.
    assert await state(work) == ("queued", None, 1)
    await take(work)
    assert await work.finish(own, CANCELLED)
    assert await state(work) == ("done", None, 2)
    assert await take(work) is None


@pytest.mark.parametrize(
    ("before", "owner", "is_replaced"),
    [
        ("queued", None, True),
        ("parked", None, True),
        ("done", None, True),
        ("running", None, False),
        ("running", "bob", False),
        ("running", "ann", True),
        ("waiting", None, False),
    ],
)
async def test_a_call_is_stored_anew_unless_somebody_has_it_or_it_is_in_doubt(
    before: Any, owner: str | None, is_replaced: bool
) -> None:
    for store in ("put", "park"):
        work = MemoryWork()
        await work.put(item())
        known = item(turn=1, state=before, owner=None if before == "waiting" else "ann", attempts=4, cancelled_at=7.0)
        work._items[REF] = known  # pyright: ignore[reportPrivateUsage]
        anew = item(turn=2, owner=owner)
        if store == "put":
            assert await work.put(anew)
        else:
            stored = await work.park(anew, expires_in=5, approvals=MemoryApprovals())
            assert stored == ("parked" if is_replaced else before)
        now = await work.get(**WHICH)
        assert now is not None
        assert (now.turn, now.attempts, now.cancelled_at) == (2 if is_replaced else 1, 4, 7.0)


async def test_a_tenant_has_so_many_queued_calls_and_what_is_queued_already_has_its_place() -> None:
    work = MemoryWork()
    for number in (1, 2):
        assert await work.put(item(f"c-{number}", tenant_id="a"), max_queued=2)
    assert not await work.put(item("c-3", tenant_id="a"), max_queued=2)
    assert await work.put(item("c-3", tenant_id="b"), max_queued=2)
    assert await work.put(item("c-1", tenant_id="a", turn=5), max_queued=2)
    await take(work)
    assert await work.put(item("c-4", tenant_id="a"), max_queued=2)
    assert not await work.put(item("c-5", tenant_id="a"), max_queued=2)
    await work.release(item(owner="ann"), state="queued", delay=0)
    assert await work.put(item("c-5", tenant_id="a"))


@warped
async def test_what_is_due_is_found_the_oldest_first() -> None:
    work = MemoryWork()
    assert await work.find(resend_after=30) == []

    async def find(**more: Any) -> list[str]:
        return [found.call_id for found in await work.find(resend_after=30, **more)]

    await work.put(item("new"))
    await work.hold(item("running", owner="ann"), lease=10)
    await work.park(item("parked", approval="t"), expires_in=20, approvals=MemoryApprovals())
    await work.hold(item("waiting", owner="ann"), lease=5)
    await work.release(item("waiting", owner="ann"), state="waiting", delay=5)
    await work.hold(item("back", owner="ann"), lease=5)
    await work.release(item("back", owner="ann"), state="queued", delay=15)
    await work.put(item("tried", attempts=1))
    assert await find() == ["tried"]
    for wait, found in [(5, "waiting"), (5, "running"), (10, "parked"), (10, "new")]:
        assert found not in await find()
        await asyncio.sleep(wait)
        assert found in await find()
    states = {stored.call_id: stored.state for stored in work.list_items()}
    assert states["parked"] == states["waiting"] == "queued"
    assert states["running"] == "running"
    assert len(await find(limit=2)) == 2
    due = [stored.due_at for stored in await work.find(resend_after=30)]
    assert due == sorted(due)


async def test_what_is_over_stays_over_and_attempts_are_counted_for_what_is_stored() -> None:
    work = MemoryWork()
    await work.end(**WHICH)
    await work.put(item())
    await take(work)
    assert await work.count_attempts([REF, ("s-1", "unknown")]) == {REF: 1}
    await work.end(**WHICH)
    ended = await work.get(**WHICH)
    await work.end(**WHICH)

    assert ended is not None
    assert (ended.state, ended.call, ended.owner) == ("done", None, None)
    again = await work.get(**WHICH)
    assert again is not None
    assert again.ended_at == ended.ended_at


class Answered(MemoryApprovals):
    """Approvals that have one question, with its answer."""

    def __init__(self, by: str, state: str) -> None:
        super().__init__()
        self.asked: Any = SimpleNamespace(by=by, state=state)

    async def get(self, token: str) -> Approval | None:
        return self.asked if token == "t-1" else None


@pytest.mark.parametrize(
    ("by", "answer", "token", "after"),
    [
        ("operator", "pending", "t-1", "parked"),
        ("operator", "approved", "t-1", "queued"),
        ("operator", "denied", "t-1", "queued"),
        ("operator", "used", "t-1", "parked"),
        ("customer", "denied", "t-1", "queued"),
        ("customer", "approved", "t-1", "parked"),  # It counts from a later turn on.
        ("operator", "approved", "t-2", "parked"),
        ("operator", "approved", None, "parked"),
    ],
)
async def test_a_call_whose_question_was_answered_meanwhile_is_queued(
    by: str, answer: str, token: str | None, after: str
) -> None:
    work = MemoryWork()

    assert await work.park(item(approval=token), expires_in=5, approvals=Answered(by, answer)) == after
    assert (await state(work))[0] == after


async def test_an_answer_wakes_the_calls_that_wait_for_it() -> None:
    work = MemoryWork()
    for number, token in enumerate(("t-1", "t-1", "t-2")):
        await work.park(item(f"c-{number}", approval=token), expires_in=5, approvals=MemoryApprovals())
    await work.put(item("queued", approval="t-1"))

    assert [stored.call_id for stored in await work.wake("t-1")] == ["c-0", "c-1"]
    assert await work.wake("t-1") == []


@pytest.mark.parametrize(
    ("before", "due_in", "is_due"),
    [("queued", 1_000, True), ("queued", 30, False), ("running", 1_000, False), ("queued", 0, True)],
)
@warped
async def test_a_call_that_seems_to_be_due_in_a_long_time_was_queued_before_the_clock_jumped(
    before: Any, due_in: float, is_due: bool
) -> None:
    work = MemoryWork()
    work._items[REF] = item(  # pyright: ignore[reportPrivateUsage]
        state=before, owner="ann" if before == "running" else None, attempts=1, due_at=time.time() + due_in
    )

    assert [stored.call_id for stored in await work.find(resend_after=0)] == (["c-1"] if is_due else [])
    assert (await take(work, "bob") is not None) is is_due


@warped
async def test_a_call_is_known_to_be_queued_since_it_was_and_one_that_runs_where_it_was_made_never_was() -> None:
    work = MemoryWork()
    await work.put(item())
    queued = await work.get(**WHICH)
    await asyncio.sleep(5)
    await work.hold(item(owner="ann"), lease=10)
    held = await work.get(**WHICH)
    await work.hold(item("c-2", owner="ann"), lease=10)
    made_here = await work.get(session_id="s-1", call_id="c-2")

    assert queued is not None
    assert held is not None
    assert made_here is not None
    assert (held.queued_at, made_here.queued_at) == (queued.queued_at, None)
    assert queued.queued_at is not None
    assert held.due_at == pytest.approx(queued.queued_at + 15)


@pytest.mark.parametrize("state", ["parked", "waiting", "queued", "running"])
@pytest.mark.parametrize(("late", "is_found"), [(-1.0, False), (0.0, True)])
async def test_a_call_is_due_at_its_time(
    state: Any, late: float, is_found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = MemoryWork()
    work._items[REF] = item(state=state, owner="ann", attempts=1, due_at=1_000.0)  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(time, "time", lambda: 1_000.0 + late)

    assert [stored.call_id for stored in await work.find(resend_after=5)] == (["c-1"] if is_found else [])

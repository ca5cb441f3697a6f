"""Events of a call reach the listeners of the process that submitted it, while another one runs it."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from sqlalchemy import text

from handrail import Executor, Policy, Rule, ToolContext, tool
from handrail.authorize import MemoryApprovals
from handrail.core import CallFinished, CallQueued, CallStarted, CallTakenOver, Event, Progress, WorkerEvent
from handrail.execute import MemoryLedger, MemoryWork, Timeouts, Worker
from handrail.execute.stored_calls import CallNotice, build_work_id
from handrail.store import open_store
from tests.durable.workers import CONTEXT, Effects, WorkerProcess, build_call, build_executor
from tests.execute.helpers import ALLOWED, at, call, code_of, quiet
from tests.postgres import DATABASES, new_database
from tests.postgres import postgres as postgres
from tests.warped import warped

SECRET = "sk-abcdefghijklmnopqrstuvwxyz0123456789"
ANN = at(customer_id="ann", tenant_id="t-1")


class Ears:
    """A listener that keeps what it hears, and can be waited for."""

    def __init__(self) -> None:
        self.heard: list[Event] = []
        self._changed = asyncio.Event()

    def __call__(self, event: Event) -> None:
        self.heard.append(event)
        self._changed.set()

    @property
    def told(self) -> list[WorkerEvent]:
        return [event for event in self.heard if isinstance(event, WorkerEvent)]

    async def wait_for(self, is_there: Callable[[list[WorkerEvent]], Any]) -> None:
        async with asyncio.timeout(20):
            while not is_there(self.told):
                self._changed.clear()
                await self._changed.wait()


def has_finished(told: list[WorkerEvent]) -> bool:
    return any(isinstance(event.event, CallFinished) for event in told)


def start(stores: dict[str, Any], message: str = f"paying with {SECRET}", **options: Any) -> Executor:
    @tool(durable=True, key="invoice")
    async def pay(invoice: str, context: ToolContext[Any]) -> str:
        """Pay."""
        context.progress(message, fraction=0.5)
        if invoice == "R-bad":
            raise RuntimeError("boom")
        return f"paid {invoice}"

    return Executor([pay], policy=ALLOWED, **stores, **options)


@asynccontextmanager
async def open_both(database: str, tmp_path: Path, request: Any) -> AsyncGenerator[list[dict[str, Any]]]:
    """The stores of the process that submits and of the one that works: the same object, but with Postgres."""
    if database == "memory":
        same = {"ledger": MemoryLedger(), "work": MemoryWork(), "approvals": MemoryApprovals()}
        yield [same, same]
        return
    url, key = new_database(database, tmp_path, request), Fernet.generate_key()
    async with open_store(url, audit_interval=0.01, encryption_key=key) as first:
        if database == "sqlite":
            yield [{"store": first}, {"store": first}]
            return
        async with open_store(url, audit_interval=0.01, encryption_key=key) as second:
            yield [{"store": first}, {"store": second}]


@asynccontextmanager
async def working(executor: Executor) -> AsyncGenerator[None]:
    async with Worker(executor) as worker:
        task = asyncio.create_task(worker.run())
        yield
    await asyncio.wait_for(task, 10)


@pytest.mark.proves("DU-12")
@pytest.mark.parametrize("database", ["memory", *DATABASES])
async def test_who_submitted_a_call_hears_what_another_executor_does(
    database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with open_both(database, tmp_path, request) as (here, there):
        ears, own, other = Ears(), Ears(), Ears()
        executor, worker = start(here, listeners=[ears]), start(there, listeners=[own])
        with executor.subscribe("s-2", other):
            assert await executor.submit(call("pay", "c-1", invoice="R-1"), ANN) is None
            async with working(worker):
                result = await executor.wait(session_id="s-1", call_id="c-1", timeout=20)
                await ears.wait_for(has_finished)
        assert [type(told.event) for told in ears.told] == [CallStarted, Progress, CallFinished]
        assert {(told.worker, told.session_id, told.tenant_id) for told in ears.told} == {(worker.owner, "s-1", "t-1")}
        started, progress, finished = (told.event for told in ears.told)
        assert isinstance(started, CallStarted)
        assert (started.call.id, started.call.name, started.call.arguments_json) == ("c-1", "pay", "")
        assert isinstance(progress, Progress)
        assert progress.fraction == 0.5
        assert "paying with" in progress.message
        assert SECRET not in progress.message
        assert isinstance(finished, CallFinished)
        assert finished.result.output == result.output == "paid R-1"
        assert other.told == own.told == []
        assert [type(event) for event in ears.heard if not isinstance(event, WorkerEvent)] == [CallQueued]
        if "store" in here:  # The audit has what happened from where it happened.
            await here["store"].audit.flush(timeout=10)
            await there["store"].audit.flush(timeout=10)
            kinds = [row.kind for row in await here["store"].audit.query(session_id="s-1")]
            assert "worker_event" not in kinds
            assert kinds.count("call_finished") == 1


@pytest.mark.parametrize("database", ["memory", "sqlite"])
async def test_a_doubt_is_told_once(database: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    async with open_both(database, tmp_path, request) as (here, there):
        ears, executor = Ears(), start(here)
        worker = start(there, timeouts=Timeouts(lease=0.05))
        with executor.subscribe("s-1", ears):
            assert await executor.submit(call("pay", "c-1", invoice="R-bad"), ANN) is None
            async with working(worker):
                await ears.wait_for(has_finished)
                row: Any = None
                while row is None or row.attempts < 3:
                    await asyncio.sleep(0.01)
                    row = await executor.durable.work.get(session_id="s-1", call_id="c-1")
        codes = [code_of(told.event.result) for told in ears.told if isinstance(told.event, CallFinished)]
        assert codes == ["outcome_unknown"]


@pytest.mark.parametrize("database", ["memory", *DATABASES])
async def test_where_nobody_listens_nothing_is_told(
    database: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_both(database, tmp_path, request) as (here, there):
        executor, worker = start(here), start(there)
        told: list[CallNotice] = []

        async def publish(notices: Any) -> None:
            told.extend(notices)

        monkeypatch.setattr(worker.durable.work, "publish", publish)
        assert await executor.submit(call("pay", "c-1", invoice="R-1"), ANN) is None
        async with working(worker):
            assert (await executor.wait(session_id="s-1", call_id="c-1", timeout=20)).ok
        assert told == []


@pytest.mark.postgres
async def test_a_notice_has_room_or_is_left_out(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    async with open_both("postgres", tmp_path, request) as (here, there):
        ears = Ears()
        executor, worker = start(here, listeners=[ears]), start(there, "\N{GRINNING FACE}" * 100_000)
        long, longer = at(session_id="s" * 1_000, customer_id="ann"), at(session_id="é" * 2_600, customer_id="ann")
        assert await executor.submit(call("pay", "é" * 2_600, invoice="R-1"), longer) is None
        assert await executor.submit(call("pay", "c" * 1_000, invoice="R-2"), long) is None
        async with working(worker):
            assert (await executor.wait(session_id="é" * 2_600, call_id="é" * 2_600, timeout=20)).ok
            await ears.wait_for(has_finished)
        assert {told.session_id for told in ears.told} == {"s" * 1_000}
        (message,) = [told.event.message for told in ears.told if isinstance(told.event, Progress)]
        assert len(message) <= 501


@pytest.mark.postgres
async def test_what_is_no_notice_is_ignored(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    async with open_both("postgres", tmp_path, request) as (here, there):
        ears = Ears()
        executor, worker = start(here, listeners=[ears]), start(there)
        assert await executor.submit(call("pay", "c-1", invoice="R-1"), ANN) is None
        forged = '{"session_id": "s-1", "call_id": "c-1", "worker": "w", "kind": "finished", "at": 1.0}'
        heard = forged.replace("finished", "progress")  # Notices come in their order.
        for payload in ("", "nonsense", '{"kind": "finished"}', forged, heard):
            query = text("SELECT pg_notify('handrail_work_notices', :payload)")
            await there["store"].work._database.fetch(query, {"payload": payload})
        await ears.wait_for(bool)
        assert not has_finished(ears.told)  # Nothing has ended: the store was asked.
        async with working(worker):
            await ears.wait_for(has_finished)
        assert [told.worker for told in ears.told] == ["w", *[worker.owner] * 3]


@pytest.mark.postgres
async def test_another_process_is_heard(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    url, ears = new_database("postgres", tmp_path, request), Ears()
    effects = str(tmp_path / "effects")
    async with open_store(url) as store:
        executor = build_executor(store, Effects(effects))
        process = await WorkerProcess.start(url, effects)
        try:
            with executor.subscribe("s-1", ears):
                assert await executor.submit(build_call("pay_once", "R-1"), CONTEXT) is None
                await ears.wait_for(has_finished)
        finally:
            await process.kill()
    assert [type(told.event) for told in ears.told] == [CallStarted, CallFinished]
    assert executor.owner not in {told.worker for told in ears.told}


# What is told of which call, in memory.


class Told(MemoryWork):
    """Stored calls that keep what they publish, and take their time for it."""

    def __init__(self) -> None:
        super().__init__()
        self.rounds: list[list[str]] = []
        self.is_away = False

    async def publish(self, notices: Sequence[CallNotice]) -> None:
        await asyncio.sleep(0.5)
        if self.is_away:
            raise ConnectionError("away")
        self.rounds.append([notice.kind for notice in notices])
        await super().publish(notices)


class Town:
    """An executor that listens and submits, and others that work, in memory."""

    def __init__(
        self,
        work: Any = None,
        ledger: MemoryLedger | None = None,
        policy: Policy = ALLOWED,
        is_idempotent: bool = True,
    ) -> None:
        self.is_idempotent = is_idempotent
        self.work: Any = work or MemoryWork()
        self.stores = {"ledger": ledger or MemoryLedger(), "work": self.work, "approvals": MemoryApprovals()}
        self.ears = Ears()
        self.executor = self.start(listeners=[self.ears], policy=policy)

    def start(self, messages: int = 1, seconds: float = 1, policy: Policy = ALLOWED, **options: Any) -> Executor:
        @tool(durable=True, key="invoice", idempotent=self.is_idempotent)
        async def pay(invoice: str, context: ToolContext[Any]) -> str:
            """Pay."""
            if invoice == "lost":
                raise ConnectionError("lost")
            for number in range(messages):
                context.progress(f"{number}")
            if seconds:
                await asyncio.sleep(seconds)
            return "paid"

        return Executor(
            [pay], policy=policy, timeouts=Timeouts(lease=12, call=5, lease_grace=1), **self.stores, **options
        )

    async def submit(self, id: str = "c-1") -> str:
        """Store a call; its id for a worker."""
        assert await self.executor.submit(call("pay", id, invoice=id), ANN) is None
        return build_work_id("s-1", id)

    def list_told(self) -> list[str]:
        return [type(told.event).__name__ for told in self.ears.told]

    async def publish(self, *kinds: Any, id: str = "c-1") -> None:
        """Tell something, as a worker of another process does."""
        await self.work.publish(
            [CallNotice(session_id="s-1", call_id=id, worker="w", kind=kind, at=1.0) for kind in kinds]
        )
        await quiet()


@warped
async def test_what_an_executor_runs_itself_its_listeners_hear_once() -> None:
    town = Town()
    assert await Worker(town.executor).handle(await town.submit()) is None
    await quiet()

    assert town.list_told() == []
    assert len([event for event in town.ears.heard if isinstance(event, CallFinished)]) == 1


@warped
async def test_a_takeover_by_a_worker_is_told_with_who_had_the_call() -> None:
    class Forgetful(MemoryLedger):
        """A ledger that loses what became of the first call."""

        is_lost = False

        async def settle(self, entry: Any, **given: Any) -> None:
            if self.is_lost:
                await super().settle(entry, **given)
            self.is_lost = True

    town = Town(ledger=Forgetful())
    id = await town.submit()
    first, second = town.start(), town.start()
    await Worker(first).handle(id)
    await quiet()
    town.ears.heard.clear()
    await asyncio.sleep(30)  # Time is the subject: the lease is over.
    await Worker(second).handle(id)
    await quiet()

    assert "CallTakenOver" in town.list_told()
    [taken] = [told.event for told in town.ears.told if isinstance(told.event, CallTakenOver)]
    assert (taken.previous_owner, taken.owner, taken.call.id) == (first.owner, second.owner, "c-1")
    row = await town.work.get(session_id="s-1", call_id="c-1")
    assert row is not None
    assert row.state == "done"


@warped
async def test_a_call_that_has_ended_is_not_followed_any_more_and_one_that_has_not_ended_has_no_end() -> None:
    town = Town()
    id = await town.submit()
    await town.publish("started", "finished")  # Nothing has ended: the store is asked.
    await town.publish("started", id="c-2")  # Nobody asked for it.
    assert town.list_told() == ["CallStarted"]
    await Worker(town.start()).handle(id)
    await quiet()
    told = ["CallStarted", "CallStarted", "Progress", "CallFinished"]
    assert town.list_told() == told

    await town.publish("started", "finished")
    assert town.list_told() == told


@warped
async def test_so_many_notices_wait_to_be_sent_and_so_many_to_be_handed_over() -> None:
    town = Town(work=Told())
    worker = Worker(town.start(messages=1_500))
    id = await town.submit()
    await worker.handle(id)
    await worker.drain()  # What was said is sent before it ends.

    assert [len(kinds) for kinds in town.work.rounds] == [1_000, 1]
    assert town.list_told() == ["CallStarted", *["Progress"] * 999, "CallFinished"]
    await town.submit("c-2")
    town.ears.heard.clear()
    await town.publish(*["progress"] * 1_500, id="c-2")
    assert town.list_told() == ["Progress"] * 1_000


@warped
async def test_the_end_of_a_call_is_told_however_much_progress_waits() -> None:
    town = Town(work=Told())
    worker = Worker(town.start(messages=1_500, seconds=0))  # The call never waits: everything is told at once.
    await worker.handle(await town.submit())
    await worker.drain()
    await quiet()

    assert [len(kinds) for kinds in town.work.rounds] == [1_001]
    assert town.list_told() == ["CallStarted", *["Progress"] * 999, "CallFinished"]


@warped
async def test_a_call_that_reports_without_end_takes_no_other_calls_end_away() -> None:
    town = Town()
    for id in ("c-1", "c-2"):
        await Worker(town.start()).handle(await town.submit(id))
    await quiet()
    await town.submit("c-3")
    town.ears.heard.clear()
    await town.work.publish(
        [CallNotice(session_id="s-1", call_id="c-3", worker="w", kind=kind, at=1.0) for kind in ["progress"] * 5_000]
        + [CallNotice(session_id="s-1", call_id="c-3", worker="w", kind="started", at=1.0)]
    )
    await quiet()
    assert town.list_told() == [*["Progress"] * 1_000, "CallStarted"]

    told = Town(work=Told())
    worker = Worker(told.start(messages=1_500))
    ids = [await told.submit("c-1"), await told.submit("c-2")]
    await asyncio.gather(*map(worker.handle, ids))
    await worker.drain()
    assert told.list_told().count("CallStarted") == told.list_told().count("CallFinished") == 2


@warped
async def test_so_many_calls_are_followed_and_the_oldest_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("handrail.execute.worker_events._MAX_FOLLOWED", 2)
    town = Town()
    for number in range(3):
        await town.submit(f"c-{number}")
    for number in range(3):
        await town.publish("started", id=f"c-{number}")

    assert [told.event.call.id for told in town.ears.told if isinstance(told.event, CallStarted)] == ["c-1", "c-2"]


@warped
async def test_notices_that_cannot_be_sent_are_lost_and_the_call_is_done() -> None:
    town = Town(work=Told())
    town.work.is_away = True
    worker = Worker(town.start())
    assert await worker.handle(await town.submit()) is None
    await worker.drain()

    assert town.list_told() == []
    assert (await town.executor.wait(session_id="s-1", call_id="c-1", timeout=0)).output == "paid"


@warped
async def test_a_store_that_cannot_notify_stores_calls_that_nobody_hears() -> None:
    members = {name: one for name, one in vars(MemoryWork).items() if name not in ("publish", "subscribe")}
    silent = type("Silent", (), {name: one for name, one in members.items() if name not in ("__dict__", "__weakref__")})
    town = Town(work=silent())
    id = await town.submit()
    assert not (await town.work.get(session_id="s-1", call_id="c-1")).is_heard
    assert await Worker(town.start()).handle(id) is None

    assert town.list_told() == []


@warped
async def test_a_call_that_somebody_has_to_agree_to_is_heard_from_its_answer_on() -> None:
    town = Town(policy=Policy([Rule.ask("pay", by="operator")]))
    asked = await town.executor.run(call("pay", invoice="R-1"), ANN)
    assert asked.approval is not None
    await town.executor.approvals.approve(asked.approval.token, by="operator", who="bo")
    await quiet()  # The answer has put it into the queue.
    await Worker(town.start(policy=ALLOWED)).handle(build_work_id("s-1", "c-1"))
    await quiet()

    assert town.list_told() == ["CallStarted", "Progress", "CallFinished"]


@warped
async def test_who_waits_for_a_call_hears_of_it_too() -> None:
    town, ears, deaf = Town(), Ears(), Ears()
    id = await town.submit()
    other, silent = town.start(listeners=[ears]), town.start()
    with silent.subscribe("another session", deaf):
        waiting = [
            asyncio.create_task(item.wait(session_id="s-1", call_id="c-1", timeout=60)) for item in (other, silent)
        ]
        await quiet()
        await Worker(town.start()).handle(id)
        assert [(await item).output for item in waiting] == ["paid"] * 2
        await quiet()

    assert [type(told.event) for told in ears.told] == [CallStarted, Progress, CallFinished]
    assert deaf.told == []


@warped
async def test_a_doubt_that_ends_is_told_too_and_then_the_call_is_not_followed_any_more() -> None:
    town = Town(is_idempotent=False)
    id = await town.submit("lost")
    worker = Worker(town.start())
    assert await worker.handle(id) is not None
    await quiet()
    await town.executor.resolve(session_id="s-1", call_id="lost", happened=True, who="bo")
    await town.publish("finished", "finished", id="lost")

    told = [told.event.result for told in town.ears.told if isinstance(told.event, CallFinished)]
    assert [code_of(result) for result in told] == ["outcome_unknown", None]


@warped
async def test_an_error_for_the_model_is_the_end_of_a_call() -> None:
    town = Town(policy=Policy([Rule.allow("pay")]))
    id = await town.submit()
    closed = town.start(policy=Policy([Rule.deny("pay")]))
    assert await Worker(closed).handle(id) is None
    await quiet()
    await town.publish("finished")

    told = [told.event.result for told in town.ears.told if isinstance(told.event, CallFinished)]
    assert [code_of(result) for result in told] == ["permission_denied"]

"""Events of a call reach the listeners of the process that submitted it, while another one runs it."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from sqlalchemy import text

from handrail import Executor, ToolContext, tool
from handrail.authorize import MemoryApprovals
from handrail.core import CallFinished, CallQueued, CallStarted, Event, Progress, WorkerEvent
from handrail.execute import MemoryLedger, MemoryWork, Timeouts, Worker
from handrail.execute.worker_notices import CallNotice
from handrail.store import open_store
from tests.durable.workers import CONTEXT, Effects, WorkerProcess, build_call, build_executor
from tests.execute.helpers import ALLOWED, at, call, code_of
from tests.postgres import DATABASES, new_database
from tests.postgres import postgres as postgres

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
        for payload in ("", "nonsense", '{"kind": "finished"}', forged):  # Nothing has ended: the store is asked.
            query = text("SELECT pg_notify('handrail_work_notices', :payload)")
            await there["store"].work._database.fetch(query, {"payload": payload})
        async with working(worker):
            await ears.wait_for(has_finished)
        assert [told.worker for told in ears.told] == [worker.owner] * 3


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

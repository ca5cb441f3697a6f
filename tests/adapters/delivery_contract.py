"""What holds for every engine that delivers stored calls: each call is run, once, whatever happens to its worker.

A file of tests imports these, and has a fixture `engine`.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from handrail import Executor
from handrail.execute import Delivery, Worker
from handrail.execute.delivery import Handle
from handrail.store import open_store
from tests.durable.engines import open_delivery
from tests.durable.workers import CONTEXT, Effects, WorkerProcess, build_call, build_executor
from tests.execute.helpers import code_of
from tests.postgres import new_database


class Scene:
    """A store whose calls an engine delivers, and a file of their effects."""

    def __init__(self, url: str, engine: str, folder: Path) -> None:
        self.url, self.engine = url, engine
        self.path = str(folder / "effects")
        self.effects = Effects(self.path)

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Executor]:
        async with (
            open_delivery(self.engine) as delivery,
            open_store(self.url, audit_interval=0.02, delivery=delivery) as store,
        ):
            yield build_executor(store, self.effects)

    async def start(self, how: str = "-") -> WorkerProcess:
        process = await WorkerProcess.start(self.url, self.path, how=how, engine=self.engine)
        await process.wait_for("ready")
        return process


@pytest.fixture
def scene(engine: str, request: pytest.FixtureRequest, tmp_path: Path) -> Scene:
    """A scene in a database of its own: that of the engine, if it is in one."""
    url = engine.split()[1] if engine.startswith("pgqueuer") else new_database("sqlite", tmp_path, request)
    return Scene(url, engine, tmp_path)


async def wait(executor: Executor, invoice: str, timeout: float = 30) -> Any:
    return await executor.wait(session_id="s-1", call_id=invoice, timeout=timeout)


@asynccontextmanager
async def working(executor: Executor, **options: Any) -> AsyncGenerator[Worker]:
    async with Worker(executor, **options) as worker:
        task = asyncio.create_task(worker.run())
        yield worker
    await asyncio.wait_for(task, 20)


class Counted:
    """A worker, as a delivery sees it, that answers as it is told to."""

    owner, lease, definitions = "counted", 1.0, frozenset[str]()

    def __init__(self, answers: dict[str, list[float | None]]) -> None:
        self.answers = answers
        self.seen: list[str] = []
        self.running = self.most = 0
        self.changed = asyncio.Event()
        self.hold: asyncio.Event | None = None

    async def __call__(self, id: str) -> float | None:
        self.seen.append(id)
        self.running += 1
        self.most = max(self.most, self.running)
        self.changed.set()
        try:
            if self.hold is not None:
                await self.hold.wait()
            else:
                await asyncio.sleep(0)
        finally:
            self.running -= 1
            self.changed.set()
        answers = self.answers.get(id)
        return answers.pop(0) if answers else None

    async def wait_until(self, is_so: Any) -> None:
        async with asyncio.timeout(30):
            while not is_so():
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def serving(delivery: Delivery, handle: Handle, *, max_running: int = 10) -> AsyncGenerator[asyncio.Event]:
    stopping = asyncio.Event()
    task = asyncio.create_task(delivery.serve(handle, max_running=max_running, stopping=stopping))
    try:
        yield stopping
        stopping.set()
        await asyncio.wait_for(task, 20)
    finally:
        task.cancel()
        await asyncio.wait({task}, timeout=20)


async def test_a_submitted_call_is_run_by_a_worker(scene: Scene) -> None:
    async with scene.open() as executor:
        for number in range(5):
            assert await executor.submit(build_call("pay_once", f"R-{number}"), CONTEXT) is None
        async with working(executor):
            for number in range(5):
                assert (await wait(executor, f"R-{number}")).output == f"paid R-{number}"
        assert [len(scene.effects.list(f"R-{number}")) for number in range(5)] == [1] * 5


async def test_an_id_comes_again_after_the_seconds_that_a_worker_says(scene: Scene) -> None:
    async with open_delivery(scene.engine) as delivery:
        assert delivery is not None
        handle = Counted({"s/again": [0.1, 0.0, None]})
        async with serving(delivery, handle):
            await delivery.send("s/again", tenant="t" * 100, priority=-9)
            await handle.wait_until(lambda: handle.seen.count("s/again") == 3)
            await delivery.send("s/once", tenant=None, priority=9)
            await handle.wait_until(lambda: "s/once" in handle.seen)
        assert handle.seen == ["s/again"] * 3 + ["s/once"]


async def test_an_id_that_was_handled_can_be_sent_again_and_one_that_waits_comes_once(scene: Scene) -> None:
    async with open_delivery(scene.engine) as delivery:
        assert delivery is not None
        handle = Counted({})
        for _ in range(20):
            await delivery.send("s/many", tenant="t", priority=0)
        async with serving(delivery, handle) as _:
            await handle.wait_until(lambda: handle.seen == ["s/many"] and not handle.running)
            async with asyncio.timeout(30):
                while handle.seen != ["s/many"] * 2:  # Until the engine has noted that the first one ended.
                    await delivery.send("s/many", tenant="t", priority=0)
                    await asyncio.sleep(0.05)


async def test_no_more_run_at_once_than_a_worker_wants_and_it_leaves_when_all_were_handled(scene: Scene) -> None:
    async with open_delivery(scene.engine) as delivery:
        assert delivery is not None
        handle = Counted({})
        handle.hold = asyncio.Event()
        for number in range(8):
            await delivery.send(f"s/{number}", tenant="t", priority=0)
        async with serving(delivery, handle, max_running=2) as stopping:
            await handle.wait_until(lambda: handle.running == 2)
            stopping.set()
            handle.hold.set()
        assert (handle.most, handle.running) == (2, 0)


async def lose_worker(scene: Scene, executor: Executor, name: str) -> None:
    """Submit a call; a worker is killed after its effect."""
    first = await scene.start("after")
    try:
        assert await executor.submit(build_call(name, "R-1"), CONTEXT) is None
        await first.wait_for("running")
    finally:
        await first.kill()


async def test_a_call_whose_worker_was_killed_is_taken_over_with_the_same_key(scene: Scene) -> None:
    async with scene.open() as executor:
        await lose_worker(scene, executor, "pay_idempotent")
        async with working(executor):
            assert (await wait(executor, "R-1")).output == "paid R-1"
        effects = scene.effects.list("R-1")
        assert len(effects) == 2
        assert len({key for _, key in effects}) == 1
        assert await executor.doubts() == []


async def test_an_effect_that_a_killed_worker_had_is_found_and_not_repeated(scene: Scene) -> None:
    async with scene.open() as executor:
        await lose_worker(scene, executor, "pay_verified")
        async with working(executor):
            assert (await wait(executor, "R-1")).output == "found R-1"
        assert len(scene.effects.list("R-1")) == 1


async def test_what_nobody_can_look_up_is_a_doubt_until_somebody_finds_out(scene: Scene) -> None:
    async with scene.open() as executor:
        await lose_worker(scene, executor, "pay_once")
        async with working(executor):
            async with asyncio.timeout(30):
                while code_of(await wait(executor, "R-1", 0)) != "outcome_unknown":
                    await asyncio.sleep(0.05)
            await executor.resolve(session_id="s-1", call_id="R-1", happened=True, who="bo")
            assert (await wait(executor, "R-1")).ok
        assert len(scene.effects.list("R-1")) == 1


async def test_a_drained_worker_finishes_what_it_runs_and_another_one_takes_the_rest(scene: Scene) -> None:
    async with scene.open() as executor:
        first = await scene.start("after")
        try:
            assert await executor.submit(build_call("pay_once", "R-1"), CONTEXT) is None
            await first.wait_for("running")
            draining = asyncio.create_task(first.drain())
            Path(f"{scene.path}.go").touch()
            assert await draining == 0
            assert (await wait(executor, "R-1", 0)).output == "paid R-1"
        finally:
            await first.kill()
        assert await executor.submit(build_call("pay_once", "R-2"), CONTEXT) is None
        async with working(executor):
            assert (await wait(executor, "R-2")).output == "paid R-2"
        assert [len(scene.effects.list(invoice)) for invoice in ("R-1", "R-2")] == [1, 1]

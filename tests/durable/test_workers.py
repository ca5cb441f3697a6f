"""A call outlives its worker: killed or frozen in its handler, it ends in the truth, and takes effect once."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from handrail import Executor
from handrail.core import CallTakenOver
from handrail.execute import Worker
from handrail.serve.call_report import explain_past_call
from handrail.store import open_store
from tests.durable.workers import CONTEXT, LEASE, Effects, WorkerProcess, build_call, build_executor
from tests.execute.helpers import Heard, code_of
from tests.postgres import new_database
from tests.postgres import postgres as postgres

How = Literal["kill", "freeze"]

CASES = [(database, how) for database in ("sqlite", "postgres") for how in ("kill", "freeze")]


def in_every_run(*chosen: tuple[str, str]) -> Any:
    """All four cases, those that are not chosen in the long run only."""
    cases = [case if case in chosen else pytest.param(*case, marks=pytest.mark.slow) for case in CASES]
    return pytest.mark.parametrize(("database", "how"), cases)


class Scene:
    """Two workers: one in a process, which stops in its handler and is killed or frozen, and one here."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.path = str(folder / "effects")
        self.effects = Effects(self.path)
        self.heard = Heard()

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Executor]:
        async with open_store(self.url, audit_interval=0.02) as store:
            executor = build_executor(store, self.effects)
            self.store = store
            yield executor

    @asynccontextmanager
    async def lose_worker(self, executor: Executor, how: How, name: str, where: str) -> AsyncGenerator[WorkerProcess]:
        """Submit a call; a worker stops in its handler and is lost, and another one works here meanwhile."""
        first = await WorkerProcess.start(self.url, self.path, how=where)
        try:
            await first.wait_for("ready")
            assert await executor.submit(build_call(name, "R-1"), CONTEXT) is None
            await first.wait_for("running")
            async with Worker(executor) as worker:
                task = asyncio.create_task(worker.run())
                # The second one sees that the first is alive, and leaves its call alone.
                await asyncio.sleep(LEASE * 1.5)
                assert len(self.effects.list("R-1")) == (where == "after")
                if how == "kill":
                    await first.kill()
                else:
                    await first.freeze()
                yield first
            await task
        finally:
            await first.kill()

    async def thaw(self, first: WorkerProcess, how: How) -> None:
        """What was frozen goes on, and finds that its call is another one's."""
        if how == "freeze":
            Path(f"{self.path}.go").touch()
            first.thaw()
            await first.drain()


@pytest.fixture
def scene(database: Any, request: pytest.FixtureRequest, tmp_path: Path) -> Scene:
    return Scene(new_database(database, tmp_path, request), tmp_path)


async def wait(executor: Executor, timeout: float = 15) -> Any:
    return await executor.wait(session_id="s-1", call_id="R-1", timeout=timeout)


@pytest.mark.proves("DU-10")
@in_every_run(("sqlite", "kill"))
async def test_an_idempotent_call_is_taken_over_with_the_same_key(scene: Scene, how: How) -> None:
    async with scene.open() as executor:
        with executor.subscribe("s-1", scene.heard):
            async with scene.lose_worker(executor, how, "pay_idempotent", "after") as first:
                result = await wait(executor)
                assert result.output == "paid R-1"
                await scene.thaw(first, how)
        effects = scene.effects.list("R-1")
        assert len(effects) == 2
        assert len({key for _, key in effects}) == 1
        assert await executor.doubts() == []
        (event,) = scene.heard.of(CallTakenOver)
        assert event.owner == executor.owner != event.previous_owner
        await scene.store.audit.flush(timeout=10)
        rows = await scene.store.audit.query(kind="call_taken_over")
        assert [row.detail["previous_owner"] for row in rows] == [event.previous_owner]
        why = str(await explain_past_call(scene.store, session_id="s-1", call_id="R-1"))
        assert f"taken over by worker {executor.owner} from {event.previous_owner}" in why
        row = await scene.store.work.get(session_id="s-1", call_id="R-1")
        assert row is not None
        assert f"durable: done, taken by workers {row.attempts} times" in why
        assert (await wait(executor, 0)).output == "paid R-1"


@in_every_run(("sqlite", "kill"))
async def test_what_verify_finds_is_settled(scene: Scene, how: How) -> None:
    async with scene.open() as executor:
        async with scene.lose_worker(executor, how, "pay_verified", "after") as first:
            assert (await wait(executor)).output == "found R-1"
            await scene.thaw(first, how)
        assert len(scene.effects.list("R-1")) == 1


@in_every_run(("postgres", "freeze"))
async def test_what_did_not_happen_runs_once_the_first_handler_cannot_be_alive(scene: Scene, how: How) -> None:
    async with scene.open() as executor:
        async with scene.lose_worker(executor, how, "pay_verified", "before") as first:
            assert (await wait(executor)).output == "paid R-1"
            await scene.thaw(first, how)
        assert len(scene.effects.list("R-1")) == 1


@pytest.mark.proves("DU-10")
@in_every_run(("sqlite", "freeze"))
async def test_anything_else_is_a_doubt_until_somebody_finds_out(scene: Scene, how: How) -> None:
    async with scene.open() as executor:
        async with scene.lose_worker(executor, how, "pay_once", "after") as first:
            assert code_of(await wait(executor, 3 * LEASE)) == "outcome_unknown"
            (doubt,) = await executor.doubts()
            assert doubt.owner not in ("", executor.owner)
            row = await scene.store.work.get(session_id="s-1", call_id="R-1")
            assert row is not None
            assert doubt.attempts == row.attempts >= 2
            if how == "kill":
                await executor.resolve(session_id="s-1", call_id="R-1", happened=True, who="bo")
            else:  # Its owner comes back, and says how it ended.
                await scene.thaw(first, how)
            result = await wait(executor)
            assert result.ok, result
        assert len(scene.effects.list("R-1")) == 1
        assert await executor.doubts() == []


@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
async def test_a_call_that_ran_where_it_was_made_is_finished_by_a_worker(scene: Scene) -> None:
    async with scene.open() as executor:
        first = await WorkerProcess.start(scene.url, scene.path, how="after", mode="pay_idempotent:R-1")
        await first.wait_for("running")
        await first.kill()
        async with Worker(executor) as worker:
            task = asyncio.create_task(worker.run())
            assert (await wait(executor)).output == "paid R-1"
        await task
        assert len({key for _, key in scene.effects.list("R-1")}) == 1

"""A worker that is frozen between any two steps of a call, and thawed when another one has gone on without it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from handrail import Executor
from handrail.execute import Worker
from handrail.store import open_store
from tests.durable.workers import CONTEXT, LEASE, Effects, WorkerProcess, build_call, build_executor
from tests.execute.helpers import code_of
from tests.postgres import new_database
from tests.postgres import postgres as postgres

STAGES = ("taken", "claimed", "settling")
TOOLS = ("pay_idempotent", "pay_verified", "pay_once")
IN_EVERY_RUN = {("postgres", "claimed", "pay_verified"), ("postgres", "claimed", "pay_once")}
CASES = [
    pytest.param(*case, marks=[] if case in IN_EVERY_RUN else pytest.mark.slow)
    for case in [(database, stage, name) for database in ("sqlite", "postgres") for stage in STAGES for name in TOOLS]
]


@asynccontextmanager
async def working(executor: Executor) -> AsyncGenerator[None]:
    async with Worker(executor) as worker:
        task = asyncio.create_task(worker.run())
        yield
    await asyncio.wait_for(task, 10)


async def wait(executor: Executor, timeout: float = 20) -> Any:
    return await executor.wait(session_id="s-1", call_id="R-1", timeout=timeout)


@pytest.mark.proves("DU-13")
@pytest.mark.parametrize(("database", "stage", "name"), CASES)
async def test_who_was_frozen_between_two_steps_does_nothing_twice(
    database: str, stage: str, name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url, effects = new_database(database, tmp_path, request), Effects(str(tmp_path / "effects"))
    async with open_store(url, audit_interval=0.02) as store:
        executor = build_executor(store, effects)
        first = await WorkerProcess.start(url, str(tmp_path / "effects"), how=f"at-{stage}")
        try:
            assert await executor.submit(build_call(name, "R-1"), CONTEXT) is None
            await first.wait_for("frozen")
            async with working(executor):
                if name == "pay_once" and stage != "taken":  # Nobody but its owner, or a person, knows.
                    known = code_of(await wait(executor, 3 * LEASE))
                    assert known == "outcome_unknown" or (known, database) == ("in_progress", "sqlite")
                else:
                    result = await wait(executor, 8)
                    # One of its threads may have SQLite's lock: then all wait until it is thawed.
                    assert result.ok or (code_of(result), database) == ("in_progress", "sqlite")
                first.thaw()
                result = await wait(executor)
                assert result.ok, result
                assert await first.drain() == 0
                assert (await wait(executor, 0)).output == result.output
        finally:
            await first.kill()
        assert await executor.doubts() == []
        done = effects.list("R-1")
        if (name, stage) == ("pay_idempotent", "settling"):  # It had paid, and the bank knows its key.
            assert len({key for _, key in done}) == 1
        else:
            assert len(done) == 1


@pytest.mark.slow
@pytest.mark.postgres
async def test_the_one_who_took_a_call_over_from_a_frozen_worker_is_killed_after_that_one_is_thawed(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url, effects = new_database("postgres", tmp_path, request), Effects(str(tmp_path / "effects"))
    async with open_store(url, audit_interval=0.02) as store:
        executor = build_executor(store, effects)
        first = await WorkerProcess.start(url, str(tmp_path / "effects"), how="before")
        second = None
        try:
            assert await executor.submit(build_call("pay_idempotent", "R-1"), CONTEXT) is None
            await first.wait_for("running")
            await first.freeze()
            second = await WorkerProcess.start(url, str(tmp_path / "effects"), how="before")
            await second.wait_for("running")
            first.thaw()
            await asyncio.sleep(LEASE / 2)  # It notices that it is not the owner any more.
            await second.kill()
            async with working(executor):
                assert (await wait(executor)).output == "paid R-1"
            assert await first.drain() == 0
        finally:
            await first.kill()
            if second is not None:
                await second.kill()
        assert len(effects.list("R-1")) == 1
        assert await executor.doubts() == []

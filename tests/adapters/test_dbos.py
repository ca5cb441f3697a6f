"""Handrail inside a step of DBOS: its process is killed after it has paid, and DBOS repeats the step."""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import pytest

from tests.durable.workers import Effects

ROOT = Path(__file__).parents[2]


async def start(folder: Path, how: str, name: str) -> Process:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    arguments = ("-W", "ignore", "-m", "tests.durable.dbos_process", str(folder), how, name)
    return await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=PIPE, env=environment)


@pytest.mark.parametrize(
    ("name", "said", "effects"), [("pay_idempotent", "paid R-1", 2), ("pay_verified", "found R-1", 1)]
)
async def test_a_step_that_is_repeated_after_a_kill_is_one_effect(
    tmp_path: Path, name: str, said: str, effects: int
) -> None:
    first = await start(tmp_path, "after", name)
    try:
        assert first.stdout is not None
        assert await asyncio.wait_for(first.stdout.readline(), 60) == b"running\n"
    finally:
        first.kill()
        await first.wait()

    second = await start(tmp_path, "-", name)
    try:
        output, _ = await asyncio.wait_for(second.communicate(), 60)
    finally:
        if second.returncode is None:
            second.kill()

    assert output.decode().split("\n")[0] == said
    done = Effects(str(tmp_path / "effects")).list("R-1")
    assert (len(done), len({key for _, key in done})) == (effects, 1)

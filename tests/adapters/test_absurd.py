"""Handrail inside a step of Absurd: the step fails after it has paid, and Absurd repeats it."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from absurd_sdk import AsyncAbsurd

from handrail.store import open_store
from tests.durable.workers import CONTEXT, Effects, build_call, build_executor
from tests.postgres import PostgresServer
from tests.postgres import postgres as postgres


@pytest.mark.postgres
async def test_a_step_that_is_repeated_is_one_effect(postgres: PostgresServer, tmp_path: Path) -> None:
    url = postgres.new_database()
    plain = url.replace("+asyncpg", "")
    program = str(Path(sys.executable).parent / "absurdctl")
    subprocess.run([program, "init", "-d", plain], check=True, timeout=60, capture_output=True)
    effects, attempts = Effects(str(tmp_path / "effects")), list[str]()
    async with open_store(url) as store:
        executor = build_executor(store, effects)
        app = AsyncAbsurd(plain, queue_name="shop")

        @app.register_task(name="order", queue="shop")
        async def order(params: Any, ctx: Any) -> Any:
            async def pay() -> str:
                result = await executor.run(build_call("pay_once", params["invoice"]), CONTEXT)
                attempts.append(result.for_model())
                if len(attempts) == 1:
                    raise RuntimeError("its worker died before the engine noted the result")
                return result.for_model()

            return await ctx.step("pay", pay)

        await app.create_queue("shop")
        spawned = await app.spawn(
            "order", {"invoice": "R-1"}, max_attempts=5, retry_strategy={"kind": "fixed", "base_seconds": 0}
        )
        for _ in range(5):
            await app.work_batch()
        result = await app.await_task_result(spawned["task_id"], timeout=10)
        await app.close()

    assert attempts == ["paid R-1"] * 2
    assert "paid R-1" in str(result)
    assert len(effects.list("R-1")) == 1

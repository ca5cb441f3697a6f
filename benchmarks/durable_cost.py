"""What a durable call costs beside one whose ledger is in the same database, in CPU of one process.

python -m benchmarks.durable_cost
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any

from handrail import Executor, Policy, Rule, ToolCall, ToolContext, tool
from handrail.execute import Worker
from handrail.store import open_store
from tests.postgres import PostgresServer

_BATCH = 10
"""Calls of one sample."""


def measure(*, calls: int) -> dict[str, dict[str, float]]:
    """Microseconds of CPU for each call, medians: `plain`, `run` and `round trip`, by database."""
    server = PostgresServer(fsync=True)
    memory = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        try:
            server.start()
            urls = {"SQLite": f"sqlite:///{folder}/durable.db", "Postgres": server.new_database()}
            return {name: asyncio.run(_measure(url, calls)) for name, url in urls.items()}
        finally:
            server.remove()


@tool
async def pay(number: int) -> str:
    """Pay."""
    return f"paid {number}"


@tool(durable=True)
async def pay_durably(number: int) -> str:
    """Pay, in whichever process."""
    return f"paid {number}"


async def _measure(url: str, calls: int) -> dict[str, float]:
    numbers = count(1)
    context = ToolContext[Any](session_id="s-1", customer_id="c-1")
    async with open_store(url) as store:
        executor = Executor([pay, pay_durably], policy=Policy([Rule.allow("pay*")]), store=store)

        def build_call(name: str) -> tuple[ToolCall, str]:
            number = next(numbers)
            call = ToolCall(id=f"call_{number}", name=name, arguments_json=f'{{"number": {number}}}')
            return call, f"paid {number}"

        async def run(name: str) -> None:
            call, expected = build_call(name)
            result = await executor.run(call, context)
            assert result.output == expected, result

        async def go_round() -> None:
            call, expected = build_call("pay_durably")
            result = await executor.submit(call, context)
            assert result is None, result
            result = await executor.wait(session_id="s-1", call_id=call.id, timeout=60)
            assert result.output == expected, result

        works: dict[str, Callable[[], Awaitable[None]]] = {
            "plain": lambda: run("pay"),
            "run": lambda: run("pay_durably"),
            "round trip": go_round,
        }
        samples: dict[str, list[float]] = {name: [] for name in works}
        async with Worker(executor) as worker:
            working = asyncio.create_task(worker.run())
            try:
                for number in range(-2, calls // _BATCH):
                    for name, work in works.items():
                        began = time.process_time()
                        for _ in range(_BATCH):
                            await work()
                        if number >= 0:
                            samples[name].append((time.process_time() - began) / _BATCH * 1e6)
            finally:
                working.cancel()
                await asyncio.wait([working])
        await executor.aclose()
    return {name: statistics.median(kept) for name, kept in samples.items()}


if __name__ == "__main__":
    for _name, _figures in measure(calls=200).items():
        print(_name, {kind: round(us) for kind, us in _figures.items()})

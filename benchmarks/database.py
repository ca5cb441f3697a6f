"""A consequential call whose ledger is in Postgres, beside the least that two writes can cost there."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any

import asyncpg

from handrail import Executor, Policy, Rule, ToolCall, ToolContext, tool
from handrail.store import open_store
from tests.postgres import PostgresServer


@dataclass(frozen=True, kw_only=True)
class Times:
    """How long one of many took, in milliseconds, and the CPU of this process for it."""

    name: str
    median: float
    p99: float
    cpu_us: float


def measure(*, calls: int) -> list[dict[str, Any]]:
    """Both, one after the other in turns, on a server of its own that waits for its disk."""
    server = PostgresServer(fsync=True)
    try:
        server.start()
        return [asdict(item) for item in asyncio.run(_measured(server.new_database(), calls))]
    finally:
        server.remove()


async def _measured(url: str, calls: int) -> list[Times]:
    numbers = count(1)

    @tool
    async def pay(number: int) -> str:
        """Pay."""
        return f"paid {number}"

    bare = await asyncpg.connect(url.replace("+asyncpg", ""))
    try:
        await bare.execute("CREATE TABLE bare (id bigint PRIMARY KEY, state text NOT NULL, text text)")

        async def two_statements() -> None:
            number = next(numbers)
            async with bare.transaction():
                await bare.execute("INSERT INTO bare (id, state) VALUES ($1, 'running')", number)
                await bare.execute("UPDATE bare SET state = 'done', text = $2 WHERE id = $1", number, f"paid {number}")

        async with open_store(url) as store:
            executor = Executor(
                [pay], policy=Policy([Rule.allow("pay")]), ledger=store.ledger, approvals=store.approvals
            )
            context = ToolContext[Any](session_id="s-1")

            async def one_call() -> None:
                number = next(numbers)
                call = ToolCall(id=f"call_{number}", name="pay", arguments_json=f'{{"number": {number}}}')
                result = await executor.run(call, context)
                assert result.output == f"paid {number}", result

            names = ("a bare transaction of two statements", "Handrail executor, consequential, in Postgres")
            samples = await _in_turns((two_statements, one_call), calls)
    finally:
        await bare.close()
    return [_times(name, one) for name, one in zip(names, samples, strict=True)]


async def _in_turns(works: tuple[Callable[[], Awaitable[None]], ...], times: int) -> list[list[tuple[float, float]]]:
    samples: list[list[tuple[float, float]]] = [[] for _ in works]
    for work in works:
        for _ in range(50):
            await work()
    for _ in range(times):
        for work, kept in zip(works, samples, strict=True):
            began, cpu = time.perf_counter(), time.process_time()
            await work()
            kept.append(((time.perf_counter() - began) * 1e3, (time.process_time() - cpu) * 1e6))
    return samples


def _times(name: str, samples: list[tuple[float, float]]) -> Times:
    wall, cpu = zip(*samples, strict=True)
    return Times(
        name=name,
        median=statistics.median(wall),
        p99=statistics.quantiles(wall, n=100)[98],
        cpu_us=statistics.median(cpu),
    )


if __name__ == "__main__":
    for _row in measure(calls=1000):
        print(_row)

"""What durable calls cost beside a call whose ledger is in the same database, in CPU of one process.

    python -m benchmarks.durable_cost
    python -m benchmarks.durable_cost --temporal      # its development server delivers: `.ci/adapters temporal`

One call after the other. A round trip is `submit`, a worker, and `wait`.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from handrail import Executor, Policy, Rule, ToolCall, ToolContext, tool
from handrail.core.log import log
from handrail.execute import Worker
from handrail.store import open_store
from tests.durable.engines import open_delivery, open_temporal
from tests.postgres import PostgresServer

_BATCH = 40
"""Calls of one sample."""

Samples = dict[str, list[float]]
"""Microseconds of CPU for one call: `plain`, `run` and `round trip`, as many of each, measured in turns."""


def measure(*, calls: int) -> dict[str, dict[str, float]]:
    """Medians of the microseconds of CPU for one call, by database and kind."""
    return {
        name: {kind: statistics.median(kept) for kind, kept in samples.items()}
        for name, samples in _sample_databases(calls).items()
    }


def _sample_databases(calls: int) -> dict[str, Samples]:
    server = PostgresServer(fsync=True)
    with tempfile.TemporaryDirectory(dir=_find_memory()) as folder:
        try:
            server.start()
            urls = {"SQLite": f"sqlite:///{folder}/durable.db", "Postgres": server.new_database()}
            return {name: asyncio.run(_sample(url, calls)) for name, url in urls.items()}
        finally:
            server.remove()


async def _sample_temporal(calls: int) -> Samples:
    with tempfile.TemporaryDirectory(dir=_find_memory()) as folder:
        async with open_temporal(lease=15.0) as engine:
            return await _sample(f"sqlite:///{folder}/durable.db", calls, engine=engine)


def _find_memory() -> Path | None:
    memory = Path("/dev/shm")
    return memory if memory.is_dir() else None


@tool(key="invoice")
async def pay(invoice: str) -> str:
    """Pay."""
    return f"paid {invoice}"


@tool(key="invoice", durable=True)
async def pay_durably(invoice: str) -> str:
    """Pay, whatever becomes of this process."""
    return f"paid {invoice}"


async def _sample(url: str, calls: int, *, engine: str = "-") -> Samples:
    context = ToolContext[Any](session_id="s-1", customer_id="ann")
    samples: Samples = {"plain": [], "run": [], "round trip": []}
    async with open_delivery(engine) as delivery, open_store(url, delivery=delivery) as store:
        executor = Executor([pay, pay_durably], policy=Policy([Rule.allow("*")]), store=store)

        async def run(call: ToolCall) -> None:
            assert (await executor.run(call, context)).ok

        async def travel(call: ToolCall) -> None:
            assert await executor.submit(call, context) is None
            assert (await executor.wait(session_id="s-1", call_id=call.id, timeout=60)).ok

        for number in range(-1, max(calls // _BATCH, 3)):  # The first round warms up.
            costs = {
                "plain": await _time(run, "pay", f"plain-{number}"),
                "run": await _time(run, "pay_durably", f"run-{number}"),
            }
            async with Worker(executor) as worker:  # Not during the others: it looks for calls while it is idle.
                working = asyncio.create_task(worker.run())
                costs["round trip"] = await _time(travel, "pay_durably", f"trip-{number}")
            await working
            if number >= 0:
                for kind, cost in costs.items():
                    samples[kind].append(cost)
        await executor.aclose()
    return samples


async def _time(make: Callable[[ToolCall], Awaitable[None]], name: str, prefix: str) -> float:
    began = time.process_time()
    for number in range(_BATCH):
        invoice = f"{prefix}-{number}"
        await make(ToolCall(id=invoice, name=name, arguments_json=f'{{"invoice": "{invoice}"}}'))
    return (time.process_time() - began) / _BATCH * 1e6


def _print_ratios(name: str, samples: Samples) -> None:
    for kind in ("run", "round trip"):
        ratios = [cost / plain for cost, plain in zip(samples[kind], samples["plain"], strict=True)]
        print(f"{name}, {kind}: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


def main() -> None:
    """Print the ratios: the median of the rounds, the least and the most."""
    log.logger.disabled = True
    if "--temporal" in sys.argv[1:]:
        _print_ratios("Temporal", asyncio.run(_sample_temporal(400)))
    else:
        for name, samples in _sample_databases(400).items():
            _print_ratios(name, samples)


if __name__ == "__main__":
    main()

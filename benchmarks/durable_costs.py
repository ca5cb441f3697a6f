"""What durable calls cost: CPU and time of this process, as multiples of a call that is not durable.

    python -m benchmarks.durable_costs
    python -m benchmarks.durable_costs --postgres
    python -m benchmarks.durable_costs --temporal      # its development server delivers: `.ci/adapters temporal`

One process, one call after the other. A round trip is `submit`, a worker, and `wait`.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from handrail import Executor, Policy, Rule, ToolCall, ToolContext, tool
from handrail.core.log import log
from handrail.execute import Worker
from handrail.store import open_store
from tests.durable.engines import open_delivery, open_temporal
from tests.postgres import PostgresServer


@tool(key="invoice")
async def pay(invoice: str) -> str:
    """Pay."""
    return f"paid {invoice}"


@tool(key="invoice", durable=True)
async def pay_durably(invoice: str) -> str:
    """Pay, whatever becomes of this process."""
    return f"paid {invoice}"


async def measure(make: Callable[[ToolCall], Awaitable[Any]], name: str, prefix: str, calls: int) -> tuple[float, ...]:
    """CPU and time of one call, in seconds."""
    cpu, began = time.process_time(), time.perf_counter()
    for number in range(calls):
        invoice = f"{prefix}-{name}-{number}"
        await make(ToolCall(id=invoice, name=name, arguments_json=f'{{"invoice": "{invoice}"}}'))
    return (time.process_time() - cpu) / calls, (time.perf_counter() - began) / calls


async def compare(url: str, engine: str, *, calls: int, rounds: int) -> None:
    """Print the ratios: the median of alternating rounds."""
    context = ToolContext[None](session_id="s-1", customer_id="ann", turn=1)
    async with open_delivery(engine) as delivery, open_store(url, delivery=delivery) as store:
        executor = Executor([pay, pay_durably], policy=Policy([Rule.allow("*")]), store=store)

        async def run(call: ToolCall) -> None:
            assert (await executor.run(call, context)).ok

        async def travel(call: ToolCall) -> None:
            assert await executor.submit(call, context) is None
            assert (await executor.wait(session_id="s-1", call_id=call.id, timeout=60)).ok

        found: dict[str, list[tuple[float, float]]] = {"durable run": [], "round trip": []}
        for number in range(-1, rounds):  # The first one warms up.
            plain = await measure(run, "pay", f"r{number}", calls)
            durable = await measure(run, "pay_durably", f"r{number}", calls)
            async with Worker(executor) as worker:
                working = asyncio.create_task(worker.run())
                trip = await measure(travel, "pay_durably", f"t{number}", calls)
            await working
            if number >= 0:
                for name, (cpu, seconds) in (("durable run", durable), ("round trip", trip)):
                    found[name].append((cpu / plain[0], seconds / plain[1]))
    for name, ratios in found.items():
        cpus, times = zip(*ratios, strict=True)
        print(
            f"{name} / ledger run: CPU {statistics.median(cpus):.2f} ({min(cpus):.2f} to {max(cpus):.2f}), "
            f"time {statistics.median(times):.2f} ({min(times):.2f} to {max(times):.2f})"
        )


async def main() -> None:
    """Measure one database and one delivery."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--postgres", action="store_true")
    parser.add_argument("--temporal", action="store_true")
    options = parser.parse_args()
    log.logger.disabled = True
    server = PostgresServer() if options.postgres else None
    with TemporaryDirectory() as folder:
        try:
            url = f"sqlite+aiosqlite:///{Path(folder)}/costs.db"
            if server is not None:
                server.start()
                url = server.new_database()
            async with open_temporal(lease=15.0) if options.temporal else nullcontext("-") as engine:
                await compare(url, engine, calls=options.calls, rounds=options.rounds)
        finally:
            if server is not None:
                server.remove()


if __name__ == "__main__":
    asyncio.run(main())

"""One replica of the service in a process of its own, which can be killed: STORE JOURNAL PORT."""

import asyncio
import os
import sys

import uvicorn

from handrail import Executor, Policy, Rule, tool
from handrail.execute import Timeouts
from handrail.serve import ApiLimits, build_app
from handrail.store import open_store

STORE, JOURNAL, PORT = sys.argv[1], sys.argv[2], int(sys.argv[3])


@tool(key="invoice", timeout=5)
async def pay(invoice: str) -> str:
    """Pay an invoice."""
    await asyncio.sleep(0.01)
    with open(JOURNAL, "a", encoding="utf-8") as journal:  # one line, at once
        journal.write(f"{invoice} {os.getpid()}\n")
    await asyncio.sleep(0.01)
    return f"paid {invoice}"


async def main() -> None:
    async with open_store(STORE, audit_interval=0.05) as store:
        policy = Policy([Rule.ask("pay", by="operator")])
        timeouts = Timeouts(lease=2, lease_grace=1, approval=3_600)
        async with Executor([pay], policy=policy, store=store, timeouts=timeouts, scope="session") as executor:
            limits = ApiLimits(requests_per_second=10_000, burst=10_000)
            app = build_app(executor, store=store, approval_wait=0, api_limits=limits)
            await uvicorn.Server(uvicorn.Config(app, port=PORT, log_level="error")).serve()


asyncio.run(main())

"""What an operator does with a store: see what happened, resolve a doubt, erase a customer, export metrics.

    python examples/operations.py                                  # in a SQLite file of its own, which it removes
    DATABASE_URL=postgresql://… python examples/operations.py      # in your database

Needs `pip install 'handrail[sql,metrics]'`. There is no model in it. The same on the command line: `handrail audit`,
`handrail why`, `handrail doubts`, `handrail erase`.
"""

import asyncio
import logging
import os
import tempfile
import time
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from handrail import Executor, Policy, Rule, ToolCall, ToolContext, tool
from handrail.execute import Timeouts
from handrail.monitor import Metrics
from handrail.store import open_store


@tool(key="invoice_id", timeout=5)
async def pay(invoice_id: str, amount: int) -> str:
    """Pay an invoice."""
    if invoice_id == "R-8":
        raise ConnectionError("the bank did not answer")  # Did it pay? Nobody knows.
    return f"Paid {amount} EUR."


async def main() -> None:
    """Two payments, one of them with an unknown outcome, and what an operator does about them."""
    logging.getLogger("handrail").setLevel(logging.CRITICAL)  # The traceback of the lost answer.
    registry = CollectorRegistry()
    with tempfile.TemporaryDirectory() as directory:
        url = os.environ.get("DATABASE_URL", f"sqlite:///{Path(directory) / 'handrail.db'}")
        async with open_store(url) as store:
            executor = Executor(
                [pay],
                policy=Policy([Rule.allow("pay")]),
                store=store,
                listeners=[Metrics(registry)],
                timeouts=Timeouts(lease_grace=0),
            )
            unique = f"example-{time.time_ns()}"  # A customer of nobody's: it is erased below.
            context = ToolContext(session_id=unique, customer_id=unique, turn=1)
            for number, invoice_id in enumerate(("R-7", "R-8"), 1):
                call = ToolCall(
                    id=f"call_{number}", name="pay", arguments_json=f'{{"invoice_id": "{invoice_id}", "amount": 90}}'
                )
                result = await executor.run(call, context)
                print(f"{invoice_id}: {result.error.code if result.error else result.output}")

            print("\nDoubts, the oldest first:")
            for doubt in await executor.doubts(session_id=context.session_id):
                print(f"  {doubt.tool} {doubt.arguments}")  # Look for doubt.idempotency_key at the bank, and then:
                resolved = await executor.resolve(
                    session_id=doubt.session_id,
                    call_id=doubt.call_id,
                    happened=True,
                    who="ann",
                    reason="it is on the account statement",
                    expected=doubt.version,
                )
                print(f"  resolved: {resolved.output}")

            print("\nThe audit:")
            await store.audit.flush(timeout=10)
            for fact in await store.audit.query(session_id=context.session_id):
                print(f"  {fact.kind} {fact.tool or ''} {fact.call_id or ''} {fact.error or ''}".rstrip())

            erased = await store.erase(customer_id=unique, tenant_id=None, who="data protection")
            again = ToolCall(id="call_1", name="pay", arguments_json='{"invoice_id": "R-7", "amount": 90}')
            result = await executor.run(again, context)
            print(f"\nErased the values of {erased.calls} calls. R-7, sent again, is still known: {result.origin}")
            await executor.aclose()

    print("\nMetrics, for Prometheus:")
    for line in generate_latest(registry).decode().splitlines():
        if line.startswith("handrail_calls_total"):
            print(f"  {line}")


if __name__ == "__main__":
    asyncio.run(main())

"""The stored calls of a customer are erased with everything else; those that still have to run are counted."""

from pathlib import Path

import pytest

from handrail import Executor, Policy, Rule, tool
from handrail.store import open_store
from tests.execute.helpers import at, call
from tests.postgres import DATABASES, new_database
from tests.postgres import postgres as postgres


@tool(durable=True)
async def pay(invoice: str) -> str:
    """Pay."""
    return "paid"


@pytest.mark.parametrize("database", DATABASES)
async def test_stored_calls_are_erased(database: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    asking = Policy([Rule.ask("pay", by="operator", where={"invoice": "R-3"}), Rule.allow("pay")])
    async with open_store(new_database(database, tmp_path, request)) as store:  # type: ignore[arg-type]
        executor = Executor([pay], policy=asking, store=store)
        context = at(customer_id="ann", tenant_id="t-1")
        await executor.run(call("pay", "c-1", invoice="R-1"), context)
        await executor.submit(call("pay", "c-2", invoice="R-2"), context)
        await executor.submit(call("pay", "c-3", invoice="R-3"), context)
        # A worker has taken one, and has not begun it; another one was given back.
        for number in (4, 5):
            await executor.submit(call("pay", f"c-{number}", invoice=f"R-{number}"), context)
            taken = await store.work.take(session_id="s-1", call_id=f"c-{number}", owner="w", lease=30)
            assert taken is not None
        await store.work.release(taken, state="queued", delay=30)

        done = await store.erase(customer_id="ann", tenant_id="t-1", who="bo")

        rows = [await store.work.get(session_id="s-1", call_id=f"c-{number}") for number in (1, 2, 3)]
        assert [row and row.state for row in rows] == [None, "queued", None]
        assert (done.open_calls, done.calls) == (3, 1)

"""Taking stored calls: within the limits, each call by one worker, in both databases."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from handrail import Executor, Policy, Rule, ToolContext, tool
from handrail.execute import Worker
from handrail.store import SqlDelivery, SqlStore, open_store
from tests.execute.helpers import ALLOWED, at, call
from tests.postgres import DATABASES, new_database
from tests.postgres import postgres as postgres


class Taker:
    """What a delivery knows of a worker."""

    def __init__(self, owner: str, definitions: frozenset[str]) -> None:
        self.owner, self.lease, self.definitions = owner, 30.0, definitions

    async def __call__(self, id: str) -> float | None:
        return None


@tool(durable=True)
async def pay(invoice: str) -> str:
    """Pay."""
    return "paid"


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return new_database(request.param, tmp_path, request)


async def submit(store: SqlStore, count: int, tenants: int) -> None:
    executor = Executor([pay], policy=ALLOWED, store=store)
    for number in range(count):
        context = at(session_id=f"s-{number}", customer_id="a", tenant_id=f"t-{number % tenants}")
        assert await executor.submit(call("pay", f"c-{number}", invoice=f"R-{number}"), context) is None


async def test_a_take_is_within_its_limit_and_no_call_is_taken_twice(url: str) -> None:
    async with open_store(url) as store:
        await submit(store, 60, tenants=12)  # The table was never analyzed.
        taker = Taker("w", frozenset((pay.definition_digest,)))

        async def take(number: int) -> list[Any]:
            options: Any = {"max_rows": 5, "max_running_per_tenant": None, "last_tenant": ""}
            return (await store.work.take_many(taker, **options)).items

        taken = await asyncio.gather(*map(take, range(12)))

        assert max(map(len, taken)) <= 5
        ids = [item.id for items in taken for item in items]
        assert len(ids) == len(set(ids)) > 0
        assert all(len({item.tenant_id for item in items}) == len(items) for items in taken)


async def test_a_definition_that_a_worker_does_not_have_is_not_taken(url: str) -> None:
    async with open_store(url) as store:
        await submit(store, 2, tenants=1)
        options: Any = {"max_rows": 5, "max_running_per_tenant": None, "last_tenant": ""}

        assert (await store.work.take_many(Taker("w", frozenset(("other",))), **options)).items == []


async def test_the_limit_of_a_tenant_holds_over_all_workers(url: str) -> None:
    running: dict[str | None, int] = {}
    most: dict[str | None, int] = {}

    @tool(durable=True, name="pay")
    async def slow_pay(invoice: str, context: ToolContext[Any]) -> str:
        """Pay."""
        running[context.tenant_id] = running.get(context.tenant_id, 0) + 1
        most[context.tenant_id] = max(most.get(context.tenant_id, 0), running[context.tenant_id])
        await asyncio.sleep(0.02)
        running[context.tenant_id] -= 1
        return "paid"

    async with (
        open_store(url, delivery=SqlDelivery(max_running_per_tenant=2)) as one,
        open_store(url, delivery=SqlDelivery(max_running_per_tenant=2)) as two,
    ):
        await submit(one, 20, tenants=2)
        executors = [Executor([slow_pay], policy=Policy([Rule.allow("*")]), store=store) for store in (one, two)]
        workers = [Worker(executor, max_running=8) for executor in executors]
        tasks = [asyncio.create_task(worker.run()) for worker in workers]
        for number in range(20):
            assert (await executors[0].wait(session_id=f"s-{number}", call_id=f"c-{number}", timeout=30)).ok
        for worker in workers:
            await worker.drain()
        await asyncio.gather(*tasks)

    assert max(most.values()) <= 2

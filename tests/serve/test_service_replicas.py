"""Two replicas on one database: a call, its approval, its result and its keys are those of both."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from handrail.store import open_store
from tests.postgres import DATABASES, new_database
from tests.postgres import postgres as postgres  # a fixture
from tests.serve.service import Replica, open_replica, paid


@pytest.fixture(params=DATABASES)
async def replicas(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[tuple[Replica, Replica]]:
    """Two replicas, each with a store of its own on the same database."""
    url = new_database(request.param, tmp_path, request)
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(open_store(url, audit_interval=0.01)) for _ in range(2)]
        first, second = [await stack.enter_async_context(open_replica(store)) for store in stores]
        yield first, second


async def test_a_tenants_key_calls_a_tool_at_any_replica(replicas: tuple[Replica, Replica]) -> None:
    first, second = replicas
    caller = await first.connect("caller")

    for replica in (first, second):
        result = await replica.use(caller).call("get_balance", {"account": "a-1"})
        assert (result["ok"], result["output"], result["error"]) == (True, {"account": "a-1", "balance": 5}, None)
        assert result["session_id"] == "api:acme/s-1"


@pytest.mark.proves("SV-04")
async def test_what_one_replica_asked_another_decides_and_a_third_request_runs_once(
    replicas: tuple[Replica, Replica],
) -> None:
    first, second = replicas
    caller, operator = await first.connect("caller"), second.use(await first.connect("operator", who="ann"))

    asked = await caller.call("pay", {"invoice": "i-1", "amount": 3}, call_id="c-1")
    assert (asked["error"]["code"], paid) == ("approval_required", [])
    token = asked["approval"]["token"]
    assert [item["token"] for item in (await operator.get("/approvals"))["items"]] == [token]
    decided = await operator.post(f"/approvals/{token}/approve", {"reason": "checked"})
    assert (decided["state"], decided["who"]) == ("approved", "ann")

    body = {"invoice": "i-1", "amount": 3}
    results = await asyncio.gather(
        *(replica.use(caller).call("pay", body, call_id="c-1") for replica in (first, second, first, second))
    )
    assert [result["output"] for result in results] == ["paid 3"] * 4
    assert paid == [("i-1", 3)]
    for replica in (first, second):
        known = await replica.use(caller).get("/calls/result", session_id="s-1", call_id="c-1")
        assert (known["output"], known["origin"]) == ("paid 3", "replayed")


@pytest.mark.proves("SV-04")
async def test_a_key_that_one_replica_revokes_is_refused_by_the_other(replicas: tuple[Replica, Replica]) -> None:
    first, second = replicas
    admin, caller = await first.connect("admin"), second.use(await first.connect("caller"))
    await caller.get("/tools")

    (own,) = [key for key in (await admin.get("/keys"))["items"] if key["role"] == "caller"]
    await admin.request("DELETE", f"/keys/{own['id']}")

    async with asyncio.timeout(10):
        while (await caller.request("GET", "/tools")).status_code != 401:
            await asyncio.sleep(0.05)


async def test_an_operator_who_waits_long_enough_at_one_replica_gets_the_decision_of_another(
    replicas: tuple[Replica, Replica],
) -> None:
    first, second = replicas
    caller, operator = await first.connect("caller"), second.use(await first.connect("operator"))

    waiting = asyncio.create_task(caller.call("pay", {"invoice": "i-9", "amount": 1}, call_id="c-9", wait=30))
    async with asyncio.timeout(20):
        while not (pending := (await operator.get("/approvals"))["items"]):
            await asyncio.sleep(0.02)
    await operator.post(f"/approvals/{pending[0]['token']}/approve")

    assert (await waiting)["output"] == "paid 1"

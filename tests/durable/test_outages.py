"""The database is away: at the start, in the middle for longer than a lease, and when an answer is on its way."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from handrail import Executor
from handrail.errors import StoreError
from handrail.execute import Timeouts, Worker
from handrail.store import open_store
from tests.durable.test_durable_calls import ANN, PAYMENT, Bank, working
from tests.execute.helpers import Held, code_of
from tests.postgres import PostgresServer
from tests.postgres import postgres as postgres
from tests.store.proxy import Proxy, proxied

pytestmark = [pytest.mark.postgres, pytest.mark.proves("DU-14")]
LEASE = 0.4
TIMEOUTS = Timeouts(lease=LEASE, overhead=3.0, call=30.0)


@asynccontextmanager
async def on_a_wire(postgres: PostgresServer) -> AsyncGenerator[tuple[Proxy, Bank, Bank]]:
    """A bank whose connection can be cut, and another one in the same database."""
    name = postgres.new_database().rpartition("/")[2]
    async with (
        open_store(postgres.url(name), timeout=2.0) as near,
        proxied(postgres.port) as proxy,
        open_store(postgres.url(name, port=proxy.port), timeout=2.0) as far,
    ):
        yield proxy, Bank(store=far), Bank(store=near)


async def wait(executor: Executor, timeout: float = 30) -> Any:
    return await executor.wait(session_id="s-1", call_id="c-1", timeout=timeout)


@asynccontextmanager
async def cut_off(postgres: PostgresServer) -> AsyncGenerator[tuple[Proxy, Held, Executor]]:
    """A call that has begun while its worker loses the database: its wire, its handler, and who submitted it.

    Whatever is done then, the call runs once, and the other one never runs it.
    """
    async with on_a_wire(postgres) as (proxy, far, near):
        far.hold = Held()
        executor, other = far.start(timeouts=TIMEOUTS), near.start(timeouts=TIMEOUTS)
        assert await other.submit(PAYMENT, ANN) is None
        async with working(executor):
            await far.hold.begun.wait()
            await proxy.stop()
            yield proxy, far.hold, other
    assert (len(far.paid), near.paid) == (1, [])


async def test_a_database_that_is_away_for_longer_than_a_lease_loses_nothing(postgres: PostgresServer) -> None:
    async with cut_off(postgres) as (proxy, hold, other), working(other):
        # Nobody but its owner knows: a doubt, and nothing runs.
        while code_of(await wait(other, 0)) != "outcome_unknown":
            await asyncio.sleep(LEASE / 4)
        await proxy.start()
        hold.go.set()
        assert (await wait(other)).output == "paid R-1 for None"
        assert await other.doubts() == []


async def test_a_call_that_ends_while_the_database_is_away_is_not_run_again(postgres: PostgresServer) -> None:
    async with cut_off(postgres) as (proxy, hold, other):
        hold.go.set()
        while code_of(await wait(other, 0)) != "outcome_unknown" and not await other.doubts():
            await asyncio.sleep(LEASE / 4)
        await proxy.start()
        async with working(other):
            result = await wait(other, 3)  # Its settlement is written late, or a person finds out.
            if not result.ok:
                assert code_of(result) in ("outcome_unknown", "in_progress")
                await other.resolve(session_id="s-1", call_id="c-1", happened=True, who="bo")
            assert (await wait(other)).ok


async def test_a_database_that_is_away_at_the_start_is_a_clear_answer(postgres: PostgresServer) -> None:
    name = postgres.new_database().rpartition("/")[2]
    async with proxied(postgres.port) as proxy:
        await proxy.stop()
        store = open_store(postgres.url(name, port=proxy.port), timeout=2.0)
        bank = Bank(store=store)
        executor = bank.start(timeouts=TIMEOUTS)
        refused = await executor.submit(PAYMENT, ANN)
        assert refused is not None
        assert not refused.ok
        with pytest.raises(StoreError):
            async with Worker(executor):
                pass
        await proxy.start()
        assert await executor.submit(PAYMENT, ANN) is None
        async with working(executor):
            assert (await wait(executor)).ok
        await store.aclose()
    assert len(bank.paid) == 1


@pytest.mark.parametrize("answer", [b"INSERT 0 1\0", b"UPDATE 1\0", b"COMMIT\0"])
async def test_an_answer_that_is_lost_at_commit_neither_loses_nor_repeats_a_call(
    postgres: PostgresServer, answer: bytes
) -> None:
    async with on_a_wire(postgres) as (proxy, far, near):
        executor, other = far.start(timeouts=TIMEOUTS), near.start(timeouts=TIMEOUTS)
        if answer.startswith(b"INSERT"):  # That it is stored: it is looked up, and stored again.
            proxy.lose = answer
            assert await executor.submit(PAYMENT, ANN) is None
            assert proxy.lost == 1
            assert await executor.submit(PAYMENT, ANN) is None
        else:  # That it is taken, or settled.
            assert await other.submit(PAYMENT, ANN) is None
            proxy.lose = answer
        async with working(executor):
            result = await wait(other)
    # A claim whose answer was lost is taken back: nothing was done, and it says so.
    assert (result.ok, len(far.paid)) in ((True, 1), (False, 0)), result

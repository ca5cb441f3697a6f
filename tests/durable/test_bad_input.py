"""Durable calls and what should not happen: nothing is lost, and nothing happens twice."""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from handrail import Executor, tool
from handrail.authorize import MemoryApprovals
from handrail.execute import Limits, MemoryLedger, MemoryWork, Timeouts
from handrail.store import open_store
from handrail.store.tables import work as table
from tests.durable.test_durable_calls import ANN, PAYMENT, Bank, working
from tests.execute.helpers import ALLOWED, Held, at, call, code_of
from tests.postgres import new_database

HOUR = 3_600.0
OpenBank = Callable[[], Any]


@pytest.fixture(params=["memory", "sqlite"])
async def open_bank(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[OpenBank]:
    """Opens banks that share their calls, as in as many processes."""
    shared: dict[str, Any] = {"ledger": MemoryLedger(), "work": MemoryWork(), "approvals": MemoryApprovals()}
    url = new_database("sqlite", tmp_path, request)
    async with AsyncExitStack() as stack:

        async def open_one() -> Bank:
            if request.param == "memory":
                return Bank(**shared)
            return Bank(store=await stack.enter_async_context(open_store(url, audit_interval=0.01)))

        yield open_one


async def test_arguments_of_a_megabyte_are_stored_and_run(open_bank: OpenBank) -> None:
    bank = await open_bank()
    executor, text = bank.start(limits=Limits(max_argument_chars=2_000_000)), "x" * 1_000_000

    assert await executor.submit(call("pay", "c-1", invoice=text), ANN) is None
    async with working(executor):
        result = await executor.wait(session_id="s-1", call_id="c-1", timeout=30)

    assert result.ok
    assert [invoice == text for invoice, _ in bank.paid] == [True]
    assert await bank.list_rows() == [("done", 1, False)]


async def test_arguments_over_the_limit_are_not_stored(open_bank: OpenBank) -> None:
    bank = await open_bank()
    executor = bank.start()

    refused = await executor.submit(call("pay", "c-1", invoice="x" * 1_000_001), ANN)

    assert refused is not None
    assert code_of(refused) == "invalid_arguments"
    assert await bank.list_rows() == []


@pytest.mark.proves("DU-09")
async def test_a_call_whose_tool_is_gone_waits_for_a_worker_that_has_it(open_bank: OpenBank) -> None:
    bank = await open_bank()
    executor = bank.start()
    assert await executor.submit(PAYMENT, ANN) is None

    @tool(durable=True)
    async def refund(invoice: str) -> str:
        """Pay back."""
        return "paid back"

    newer = Executor([refund], policy=ALLOWED, **bank.stores)
    async with working(newer):
        assert await newer.submit(call("refund", "c-2", invoice="R-1"), at(session_id="s-2", customer_id="ann")) is None
        assert (await newer.wait(session_id="s-2", call_id="c-2", timeout=30)).ok
        assert code_of(await newer.wait(session_id="s-1", call_id="c-1", timeout=0)) == "in_progress"
    assert (await bank.work.get(session_id="s-1", call_id="c-1")).state == "queued"

    async with working(executor):
        assert (await executor.wait(session_id="s-1", call_id="c-1", timeout=30)).ok
    assert len(bank.paid) == 1


@pytest.mark.proves("DU-05")
@pytest.mark.parametrize(
    "change",
    [
        {"tool": "gone"},
        {"tenant_id": "another"},
        {"customer_id": "eve"},
        {"turn": 99},
        {"approval": "appr_1"},
        {"repeat": 3},
        {"decision": None},
        {"seal": ""},
    ],
    ids=lambda change: next(iter(change)),
)
async def test_no_column_of_a_row_can_be_changed_by_hand(
    change: dict[str, Any], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async with open_store(new_database("sqlite", tmp_path, request)) as store:
        bank = Bank(store=store)
        executor = bank.start()
        assert await executor.submit(PAYMENT, ANN) is None
        await bank.work._database.write(update(table).values(**change), {})

        async with working(executor):
            result = await executor.wait(session_id="s-1", call_id="c-1", timeout=30)

        assert (code_of(result), bank.paid) == ("permission_denied", [])


async def test_a_row_that_cannot_be_read_stops_no_other(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    async with open_store(new_database("sqlite", tmp_path, request)) as store:
        bank = Bank(store=store)
        executor = bank.start()
        assert await executor.submit(PAYMENT, ANN) is None
        await bank.work._database.write(update(table).values(calls="nothing of the kind"), {})

        async with working(executor):
            other = call("pay", "c-2", invoice="R-2")
            assert await executor.submit(other, at(session_id="s-2", customer_id="ann")) is None
            assert (await executor.wait(session_id="s-2", call_id="c-2", timeout=30)).ok
        result = await executor.wait(session_id="s-1", call_id="c-1", timeout=0)

        assert not result.ok
        assert [invoice for invoice, _ in bank.paid] == ["R-2"]


async def test_two_workers_of_one_owner_run_each_call_once(open_bank: OpenBank) -> None:
    bank = await open_bank()
    executor = bank.start()
    async with working(executor, max_running=3), working(executor, max_running=3):
        for number in range(20):
            context = at(session_id=f"s-{number}", customer_id="ann")
            assert await executor.submit(call("pay", "c-1", invoice=f"R-{number}"), context) is None
        for number in range(20):
            assert (await executor.wait(session_id=f"s-{number}", call_id="c-1", timeout=30)).ok

    assert sorted(invoice for invoice, _ in bank.paid) == sorted(f"R-{number}" for number in range(20))


@pytest.mark.proves("DU-08")
@pytest.mark.parametrize("flood", [200, pytest.param(10_000, marks=pytest.mark.slow)])
async def test_a_flood_of_one_tenant_delays_no_other(open_bank: OpenBank, flood: int) -> None:
    bank = await open_bank()
    executor = bank.start()
    big, small = at(customer_id="ann", tenant_id="big"), at(session_id="s-2", customer_id="bob", tenant_id="small")
    for number in range(flood):
        assert await executor.submit(call("pay", f"c-{number}", invoice=f"R-{number}"), big) is None
    assert await executor.submit(call("pay", "c-1", invoice="small"), small) is None

    async with working(executor, max_running=1):
        assert (await executor.wait(session_id="s-2", call_id="c-1", timeout=60)).ok

    assert [invoice for invoice, _ in bank.paid].index("small") <= 2
    assert len(await bank.list_rows()) == flood + 1


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
async def test_a_clock_that_jumps_runs_nothing_twice(
    open_bank: OpenBank, jump: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await open_bank(), await open_bank()
    first.hold = Held()
    timeouts = Timeouts(lease=0.3, call=HOUR)
    executor, other = first.start(timeouts=timeouts), second.start(timeouts=timeouts)
    assert await executor.submit(PAYMENT, ANN) is None

    async with working(executor):
        await first.hold.begun.wait()
        now = time.time
        monkeypatch.setattr(time, "time", lambda: now() + jump)
        async with working(other):
            later = call("pay", "c-2", invoice="R-2")
            assert await other.submit(later, at(session_id="s-2", customer_id="ann")) is None
            if jump > 0:
                assert not (await other.wait(session_id="s-1", call_id="c-1", timeout=0.6)).ok
            first.hold.go.set()
            assert (await other.wait(session_id="s-1", call_id="c-1", timeout=30)).ok
            assert (await other.wait(session_id="s-2", call_id="c-2", timeout=30)).ok

    assert sorted(invoice for invoice, _ in first.paid + second.paid) == ["R-1", "R-2"]


@pytest.mark.proves("DU-14")
async def test_a_clock_that_jumps_back_does_not_delay_what_was_queued_before(
    open_bank: OpenBank, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank = await open_bank()
    executor = bank.start()
    assert await executor.submit(PAYMENT, ANN) is None
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() - HOUR)

    async with working(executor):
        assert (await executor.wait(session_id="s-1", call_id="c-1", timeout=20)).ok

    assert len(bank.paid) == 1


@pytest.mark.proves("DU-14")
async def test_a_sync_handler_that_outlives_its_timeout_and_its_lease_is_not_run_again(open_bank: OpenBank) -> None:
    first, second = await open_bank(), await open_bank()
    begun, go, paid = threading.Event(), threading.Event(), list[str]()

    @tool(durable=True, key="invoice", idempotent=True, timeout=0.2)
    def pay(invoice: str) -> str:
        """Pay, for as long as the bank takes."""
        begun.set()
        go.wait(30)
        paid.append(invoice)
        return f"paid {invoice}"

    timeouts = Timeouts(lease=0.2, lease_grace=0.0)
    executor, other = (Executor([pay], policy=ALLOWED, timeouts=timeouts, **bank.stores) for bank in (first, second))
    assert await executor.submit(PAYMENT, ANN) is None
    async with working(executor):
        await asyncio.to_thread(begun.wait, 20)
        async with working(other):
            # Four leases, and longer than its timeout: its thread runs, and its owner says so.
            result = await other.wait(session_id="s-1", call_id="c-1", timeout=0.8)
            assert code_of(result) in ("in_progress", "outcome_unknown")
            go.set()
            assert (await other.wait(session_id="s-1", call_id="c-1", timeout=20)).ok

    assert paid == ["R-1"]
    assert await executor.doubts() == []

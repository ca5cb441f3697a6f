"""The database disappears and comes back: nothing runs that cannot be written down, and nothing runs twice."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from handrail import Executor, Policy, Rule, Tool, ToolCall, ToolContext, ToolResult, tool
from handrail.errors import StoreError
from handrail.execute import Timeouts
from handrail.store import SqlStore, open_store
from tests.postgres import PostgresServer
from tests.store.fragile import Fragile
from tests.store.proxy import Proxy, proxied

CONTEXT: ToolContext[Any] = ToolContext(session_id="s-1", customer_id="c-1", turn=1)


class Bank:
    """Counts what was paid; something can happen while it pays."""

    def __init__(self) -> None:
        self.paid: list[str] = []
        self.while_paying: Any = None

    @property
    def pay(self) -> Tool[..., Any]:
        @tool
        async def pay(invoice: str) -> str:
            """Pay an invoice."""
            self.paid.append(invoice)
            if self.while_paying is not None:
                await self.while_paying()
            return f"paid {invoice}"

        return pay


def a_call(id_: str = "c-1") -> ToolCall:
    return ToolCall(id=id_, name="pay", arguments_json='{"invoice":"i-1"}')


def a_rail(store: SqlStore, bank: Bank, *, policy: Policy | None = None, **options: Any) -> Executor:
    return Executor(
        [bank.pay],
        policy=policy or Policy([Rule.allow("pay")]),
        ledger=store.ledger,
        approvals=store.approvals,
        **options,
    )


def code(result: ToolResult) -> str | None:
    return result.error.code if result.error else None


async def test_while_the_database_is_away_nothing_runs_and_the_model_is_informed(fragile: Fragile) -> None:
    bank = Bank()
    async with open_store(fragile.url, timeout=0.3) as store:
        executor = a_rail(store, bank)
        await fragile.go_away()

        away = await executor.run(a_call(), CONTEXT)

        assert code(away) == "unavailable"
        assert away.error is not None
        assert away.error.retryable
        assert bank.paid == []

        await fragile.come_back()
        back = await executor.run(a_call(), CONTEXT)

        assert back.output == "paid i-1"
        assert (await executor.run(a_call(), CONTEXT)).origin == "replayed"
        assert bank.paid == ["i-1"]


async def test_nobody_is_asked_while_the_database_is_away(fragile: Fragile) -> None:
    bank = Bank()
    async with open_store(fragile.url, timeout=0.3) as store:
        executor = a_rail(store, bank, policy=Policy([Rule.ask("pay", by="operator")]))
        await fragile.go_away()
        away = await executor.run(a_call(), CONTEXT)
        await fragile.come_back()

        assert code(away) == "unavailable"
        assert await store.approvals.pending() == []
        assert code(await executor.run(a_call(), CONTEXT)) == "approval_required"
        assert bank.paid == []


async def test_an_outcome_is_recorded_when_the_database_is_back_in_time(fragile: Fragile) -> None:
    bank = Bank()
    background: list[asyncio.Task[None]] = []

    async def away_for_a_moment() -> None:
        await fragile.go_away()

        async def back() -> None:
            await asyncio.sleep(0.15)
            await fragile.come_back()

        background.append(asyncio.create_task(back()))

    bank.while_paying = away_for_a_moment
    async with open_store(fragile.url, timeout=0.3) as store:
        result = await a_rail(store, bank).run(a_call(), CONTEXT)
        await asyncio.gather(*background)

        assert result.output == "paid i-1"
        assert result.recorded is True
        again = await a_rail(store, bank).run(a_call("c-2"), CONTEXT)
        assert again.origin == "replayed"
        assert bank.paid == ["i-1"]


async def test_an_outcome_that_cannot_be_recorded_is_reported_and_is_unknown_to_everybody_else(
    fragile: Fragile,
) -> None:
    bank = Bank()
    bank.while_paying = fragile.go_away
    async with open_store(fragile.url, timeout=0.2) as store:
        result = await a_rail(store, bank, timeouts=Timeouts(call=0.5, lease_grace=0.0)).run(a_call(), CONTEXT)
        await fragile.come_back()

        assert (result.output, result.recorded) == ("paid i-1", False)
        # By now the lease is over: the tries to record it took longer.
        for id_ in ("c-1", "c-2"):
            assert code(await a_rail(store, bank).run(a_call(id_), CONTEXT)) == "outcome_unknown"
        assert bank.paid == ["i-1"]


# Answers of the server that get lost: it did what it was told, and nobody heard of it.


@asynccontextmanager
async def on_a_thin_wire(postgres: PostgresServer) -> AsyncGenerator[tuple[Proxy, SqlStore]]:
    name = postgres.new_database().rpartition("/")[2]
    async with (
        proxied(postgres.port) as proxy,
        open_store(postgres.url(name, port=proxy.port), timeout=5.0) as store,
    ):
        yield proxy, store


@pytest.mark.postgres
async def test_a_claim_whose_response_was_lost_is_taken_back(postgres: PostgresServer) -> None:
    bank = Bank()
    async with on_a_thin_wire(postgres) as (proxy, store):
        executor = a_rail(store, bank)
        proxy.lose = b"INSERT 0 1\0"

        lost = await executor.run(a_call(), CONTEXT)

        assert proxy.lost == 1
        assert code(lost) == "unavailable"
        assert bank.paid == []
        assert (await executor.run(a_call("c-2"), CONTEXT)).output == "paid i-1"
        assert bank.paid == ["i-1"]


@pytest.mark.postgres
async def test_an_approved_claim_whose_response_was_lost_never_runs_without_a_new_approval(
    postgres: PostgresServer,
) -> None:
    bank = Bank()
    async with on_a_thin_wire(postgres) as (proxy, store):
        executor = a_rail(store, bank, policy=Policy([Rule.ask("pay", by="operator")]))
        for id_ in ("c-1", "c-2"):
            token = (await executor.run(a_call(id_), CONTEXT)).approval.token
            await store.approvals.approve(token, by="operator", who="ann")
            if id_ == "c-1":
                proxy.lose = b"INSERT 0 1\0"
            result = await executor.run(a_call(id_), CONTEXT)
            assert (code(result), bank.paid) == (("unavailable", []) if id_ == "c-1" else (None, ["i-1"]))
        assert proxy.lost == 1


@pytest.mark.postgres
async def test_an_outcome_whose_response_was_lost_is_recorded_once(postgres: PostgresServer) -> None:
    bank = Bank()
    async with on_a_thin_wire(postgres) as (proxy, store):
        executor = a_rail(store, bank)
        proxy.lose = b"UPDATE 1\0"

        result = await executor.run(a_call(), CONTEXT)

        assert proxy.lost == 1
        assert result.output == "paid i-1"
        assert result.recorded is True
        assert (await executor.run(a_call("c-2"), CONTEXT)).origin == "replayed"
        assert bank.paid == ["i-1"]


@pytest.mark.postgres
async def test_a_decision_whose_response_was_lost_stands(postgres: PostgresServer) -> None:
    bank = Bank()
    async with on_a_thin_wire(postgres) as (proxy, store):
        executor = a_rail(store, bank, policy=Policy([Rule.ask("pay", by="operator")]))
        token = (await executor.run(a_call(), CONTEXT)).approval.token
        proxy.lose = b"COMMIT\0"

        with pytest.raises(StoreError, match="connection was lost"):
            await store.approvals.approve(token, by="operator", who="ann")

        assert (await executor.run(a_call(), CONTEXT)).output == "paid i-1"
        assert bank.paid == ["i-1"]


@pytest.mark.postgres
@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_a_server_that_is_stopped_in_the_middle_of_a_call_and_started_again(
    postgres: PostgresServer, mode: Any
) -> None:
    bank = Bank()

    async def restart() -> None:
        await asyncio.to_thread(postgres.stop, mode)
        await asyncio.to_thread(postgres.start)

    bank.while_paying = restart
    async with open_store(postgres.new_database()) as store:
        executor = a_rail(store, bank)
        result = await executor.run(a_call(), CONTEXT)

        assert result.output == "paid i-1"
        assert result.recorded is True
        assert (await executor.run(a_call("c-2"), CONTEXT)).origin == "replayed"
        assert bank.paid == ["i-1"]


@pytest.mark.postgres
async def test_a_server_that_is_down_refuses_every_call_until_it_is_up(postgres: PostgresServer) -> None:
    bank = Bank()
    async with open_store(postgres.new_database()) as store:
        executor = a_rail(store, bank)
        postgres.stop()
        try:
            down = [code(await executor.run(a_call(f"down-{number}"), CONTEXT)) for number in range(3)]
        finally:
            postgres.start()

        assert down == ["unavailable"] * 3
        assert bank.paid == []
        assert (await executor.run(a_call(), CONTEXT)).output == "paid i-1"


async def test_a_database_file_that_was_deleted_refuses_every_call(tmp_path: Any) -> None:
    bank = Bank()
    async with open_store(f"sqlite+aiosqlite:///{tmp_path}/executor.db") as store:
        executor = a_rail(store, bank)
        for file in tmp_path.iterdir():
            file.unlink()

        assert code(await executor.run(a_call(), CONTEXT)) == "unavailable"
        assert bank.paid == []


@pytest.mark.parametrize("call_id", ["c-\ud800", "c-\0"])
@pytest.mark.parametrize("name", ["pay", "look", "gone\ud800"])
async def test_a_call_whose_id_cannot_be_stored_is_refused(
    store: SqlStore, caplog: pytest.LogCaptureFixture, name: str, call_id: str
) -> None:
    @tool
    async def pay(amount: int = 1) -> str:
        """Pay."""
        raise AssertionError("it must not run")

    @tool(read_only=True)
    async def look(amount: int = 1) -> str:
        """Look."""
        raise AssertionError("it must not run")

    executor = Executor([pay, look], policy=Policy([Rule.allow("*")]), store=store)
    call, context = ToolCall(id=call_id, name=name), ToolContext(session_id="s-1", customer_id="c-1")

    result = await executor.run(call, context)

    assert result.error is not None
    is_known = name in ("pay", "look")
    assert (result.error.code, result.call_id) == (
        "tool_args_parse_error" if is_known else "tool_not_found",
        call_id,
    )
    assert ("valid Unicode" in result.error.message) is is_known
    result.for_model().encode()
    assert await executor.look_up(call, context) is None
    assert await executor.request_approval(call, context) is None
    await store.audit.flush()
    assert [record.message for record in caplog.records if record.exc_info] == []

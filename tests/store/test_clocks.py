"""A clock that jumps shows a doubt at most, and runs nothing: Postgres measures leases by its own clock."""

import asyncio
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import event

from handrail import Executor, Policy, Rule, Tool, ToolCall, ToolContext, tool
from handrail.authorize.approvals import get_subject
from handrail.errors import ApprovalError, ConfigError
from handrail.execute import Timeouts
from handrail.execute.leases import LeaseKeeper
from handrail.store import SqlStore, ledger, open_store
from tests.store.samples import an_approval, an_entry

HOURS = 6 * 3600.0
CALL = ToolCall(id="c-1", name="pay", arguments_json='{"invoice":"i-1"}')
EQUAL = ToolCall(id="c-2", name="pay", arguments_json='{"invoice":"i-1"}')
CONTEXT = ToolContext[Any](session_id="s-1", customer_id="c-1", turn=1)


class Bank:
    """A payment that is under way, in one process, and a second process that gets the same one."""

    def __init__(self, store: SqlStore, **options: Any) -> None:
        self._store = store
        self._options = options
        self.payments = 0
        self.began = asyncio.Event()
        self.go_on = asyncio.Event()

    def executor(self) -> Executor:
        timeouts = Timeouts(lease=3.0, lease_grace=60.0, in_progress=0.3)
        return Executor([self._tool()], policy=Policy([Rule.allow("*")]), store=self._store, timeouts=timeouts)

    def _tool(self) -> Tool[..., Any]:
        @tool(**self._options)
        async def pay(invoice: str) -> str:
            """Pay an invoice."""
            self.payments += 1
            self.began.set()
            await self.go_on.wait()
            return "paid"

        return pay


@pytest.fixture
def jump(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the clock of this process."""
    real = time.time

    def move(seconds: float) -> None:
        monkeypatch.setattr(time, "time", lambda: real() + seconds)

    return move


@pytest.mark.parametrize("seconds", [HOURS, -HOURS])
@pytest.mark.parametrize("options", [{"idempotent": True}, {"verify": lambda arguments, context: False}])
async def test_a_clock_that_jumps_runs_nothing_and_takes_nothing_over(
    store: SqlStore, jump: Callable[[float], None], options: dict[str, Any], seconds: float
) -> None:
    bank = Bank(store, **options)
    owner, other = bank.executor(), bank.executor()
    paying = asyncio.create_task(owner.run(CALL, CONTEXT))
    await bank.began.wait()

    jump(seconds)
    codes = {(await other.run(call, CONTEXT)).error.code for call in (CALL, EQUAL, CALL)}  # type: ignore[union-attr]
    with pytest.raises(ConfigError):
        await other.resolve(session_id="s-1", call_id="c-1", happened=False, who="ann")

    is_sqlite = store._database.is_sqlite
    assert codes <= ({"in_progress", "outcome_unknown"} if is_sqlite else {"in_progress"})
    assert is_sqlite or await other.doubts() == []
    bank.go_on.set()
    assert (await paying).output == "paid"
    assert bank.payments == 1
    again = await other.run(ToolCall(id="c-3", name="pay", arguments_json='{"invoice":"i-1"}'), CONTEXT)
    assert (again.origin, bank.payments) == ("replayed", 1)


@pytest.mark.postgres
@pytest.mark.parametrize("seconds", [HOURS, -HOURS, 30 * 86_400.0])
async def test_a_repetition_is_one_whatever_the_clock_of_this_process_says(
    postgres: Any, jump: Callable[[float], None], seconds: float
) -> None:
    async with open_store(postgres.new_database()) as store:
        bank = Bank(store)
        bank.go_on.set()
        executor = bank.executor()
        assert (await executor.run(CALL, CONTEXT)).ok

        jump(seconds)
        later = await executor.run(EQUAL, ToolContext(session_id="s-1", customer_id="c-1", turn=2))

        assert (later.error and later.error.code, bank.payments) == ("approval_required", 1)


@pytest.mark.postgres
@pytest.mark.parametrize("seconds", [HOURS, -HOURS])
async def test_when_an_approval_expires_does_not_depend_on_the_clock_of_who_asks_decides_or_uses_it(
    postgres: Any, jump: Callable[[float], None], seconds: float
) -> None:
    async with open_store(postgres.new_database()) as store:
        asked = await store.approvals.ask(an_approval())
        jump(seconds)  # Another host, whose clock is wrong.
        (shown,) = await store.approvals.pending()
        assert shown.is_open(time.time())
        assert shown.expires_at == pytest.approx(asked.expires_at + seconds, abs=1)
        assert await store.approvals.pending(after=shown) == []
        assert await store.approvals.history(before=shown) == []
        decided = await store.approvals.approve(asked.token, by="operator", who="ann")
        assert decided.decided_at == pytest.approx(time.time(), abs=60)
        soon = time.time() + 2
        other = await store.approvals.ask(an_approval(digest="other", created_at=time.time(), expires_at=soon))
        jump(0.0)
        found = await store.approvals.get(other.token)
        assert found is not None
        assert found.created_at == pytest.approx(time.time(), abs=60)
        jump(seconds)

        async with asyncio.timeout(60):
            while await store.approvals.find(**get_subject(other), now=time.time()) is not None:
                await asyncio.sleep(0.2)
        with pytest.raises(ApprovalError, match="expired"):
            await store.approvals.approve(other.token, by="operator", who="ann")
        assert await store.approvals.consume(asked.token, now=time.time())


def count_connections(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The connections that are opened to renew leases."""
    opened: list[Any] = []

    class Counted(ledger.LastingConnection):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            if self._sqlite is None:
                event.listen(self._postgres.sync_engine, "connect", lambda connection, _: opened.append(connection))
            else:
                connect = self._sqlite._connect
                self._sqlite._connect = lambda: opened.append(connection := connect()) or connection  # type: ignore[method-assign]

    monkeypatch.setattr(ledger, "LastingConnection", Counted)
    return opened


async def test_leases_are_renewed_over_one_connection_that_is_opened_again_when_it_is_lost(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = count_connections(monkeypatch)
    entries = [an_entry(lease_until=time.time() + 1) for _ in range(3)]
    for entry in entries:
        assert await store.ledger.claim(entry, approval=None, approvals=store.approvals)

    async def leases() -> list[float]:
        found = [await store.ledger.recall(session_id=entry.session_id, call_id=entry.call_id) for entry in entries]
        return [item.by_id.lease_until for item in found if item.by_id is not None]

    for number in range(3):
        before = await leases()
        await store.ledger.renew(entries, lease_until=time.time() + 100 + number)
        assert all(now > then for now, then in zip(await leases(), before, strict=True))
    assert len(opened) == 1
    if not store._database.is_sqlite:  # The server ends it.
        opened[0].driver_connection.terminate()
        await store.ledger.renew(entries, lease_until=time.time() + 200)
        assert len(opened) == 2
    await store.ledger.end_renewals()


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_a_renewal_that_its_caller_gave_up_leaves_its_connection_to_the_next_one(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = count_connections(monkeypatch)
    entry = an_entry(lease_until=time.time() + 1)
    assert await store.ledger.claim(entry, approval=None, approvals=store.approvals)
    with closing(sqlite3.connect(str(store._database.url.database), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        renewing = asyncio.create_task(store.ledger.renew([entry], lease_until=time.time() + 100))
        while not opened and not renewing.done():
            await asyncio.sleep(0)
        renewing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await renewing
        other.execute("ROLLBACK")

    await store.ledger.renew([entry], lease_until=time.time() + 200)

    found = (await store.ledger.recall(session_id=entry.session_id, call_id=entry.call_id)).by_id
    assert found is not None
    assert found.lease_until > time.time() + 150
    assert len(opened) == 1
    await store.ledger.end_renewals()


async def test_only_the_entries_that_its_owner_still_has_are_renewed(store: SqlStore) -> None:
    mine, other = an_entry(lease_until=1.0), an_entry(lease_until=1.0, owner="other")
    for entry in (mine, other):
        await store.ledger.claim(entry, approval=None, approvals=store.approvals)
    stolen = an_entry(session_id=other.session_id, call_id=other.call_id, owner="me")

    await store.ledger.renew([mine, stolen], lease_until=time.time() + 100)
    await store.ledger.end_renewals()

    assert [doubt.call_id for doubt in await store.ledger.find_doubts(now=time.time())] == [other.call_id]


async def test_a_clock_that_jumps_back_does_not_keep_leases_from_being_renewed(jump: Callable[[float], None]) -> None:
    renewed = asyncio.Event()
    loop = asyncio.get_running_loop()

    class Watched:
        needs_lease = True

        async def renew(self, entries: Any, *, lease_until: float) -> None:
            loop.call_soon_threadsafe(renewed.set)

        async def end_renewals(self) -> None:
            pass

    keeper = LeaseKeeper(Watched(), lease_timeout=0.3, lease_grace=60)  # type: ignore[arg-type]
    entry = an_entry(lease_until=time.time() + 0.3)
    keeper.hold(entry)
    jump(-HOURS)
    try:
        async with asyncio.timeout(60):
            await renewed.wait()
    finally:
        keeper.release(entry)

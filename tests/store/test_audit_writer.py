"""Events are written behind the caller's back: in batches, in order, and without loss while the database is away."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from handrail import ToolCall
from handrail.core import CallStarted, CircuitBreakerChanged, Event
from handrail.errors import StoreError
from handrail.execute import Entry
from handrail.store import SqlStore, audit, open_store
from tests.clocks import eventually, stopped_clock
from tests.execute.helpers import quiet
from tests.postgres import PostgresServer
from tests.statements import counted
from tests.store.fragile import Fragile
from tests.store.proxy import proxied
from tests.store.samples import an_entry


def an_event(number: int = 0, session_id: str = "s") -> Event:
    return CircuitBreakerChanged(at=1000.0 + number, session_id=session_id, tool_name=f"tool-{number}", state="open")


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that happens in the background."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


async def tools(store: SqlStore) -> list[str | None]:
    return [row.tool for row in await store.audit.query(kind=CircuitBreakerChanged, limit=10_000)]


def expected(*numbers: int) -> list[str]:
    return [f"tool-{number}" for number in numbers]


# Batches.


async def test_telling_the_audit_writes_nothing_yet(url: str) -> None:
    async with open_store(url, audit_interval=60.0) as store:
        for number in range(5):
            store.audit(an_event(number))

        assert (store.audit.waiting, store.audit.written) == (5, 0)
        assert await tools(store) == []


@pytest.mark.parametrize(("count", "written"), [(4, 4), (8, 8), (10, 8)])
async def test_a_full_batch_is_written_at_once(url: str, count: int, written: int) -> None:
    async with open_store(url, audit_interval=60.0, audit_batch_size=4) as store:
        for number in range(count):
            store.audit(an_event(number))
        await until(lambda: store.audit.written >= written)

        assert store.audit.waiting == count - written
        assert await tools(store) == expected(*range(written))


async def test_after_a_flush_a_batch_is_waited_for_again_and_nothing_is_done_without_rows(store: SqlStore) -> None:
    waiting: Any = store.audit._has_rows
    with stopped_clock() as clock:
        for number in range(3):
            await eventually(lambda: waiting._waiters)
            store.audit(an_event(number))
            if number == 0:
                await store.audit.flush()
                continue
            await quiet()
            assert not waiting._waiters
            assert store.audit.written == number
            clock.now += 0.1
            await eventually(lambda: store.audit.written == number + 1)  # noqa: B023
        await eventually(lambda: waiting._waiters)


async def test_what_is_less_than_a_batch_is_written_after_a_while(url: str) -> None:
    async with open_store(url, audit_interval=0.05) as store:
        store.audit(an_event())
        await until(lambda: store.audit.written == 1)

        assert await tools(store) == expected(0)


async def test_flush_waits_for_everything_that_was_reported(url: str) -> None:
    async with open_store(url, audit_interval=60.0, audit_batch_size=7) as store:
        for number in range(50):
            store.audit(an_event(number))

        await store.audit.flush()

        assert store.audit.waiting == 0
        assert await tools(store) == expected(*range(50))


async def test_flush_with_nothing_to_write_returns(store: SqlStore) -> None:
    await store.audit.flush(timeout=5.0)

    assert store.audit.written == 0


async def test_closing_writes_what_is_left(url: str) -> None:
    async with open_store(url, audit_interval=60.0) as store:
        store.audit(an_event(1))

    async with open_store(url) as after:
        assert await tools(after) == expected(1)
    store.audit(an_event(2))  # Nobody writes it any more.
    assert store.audit.dropped == 1
    async with store:
        store.audit(an_event(3))
    async with open_store(url) as after:
        assert await tools(after) == expected(1, 3)


async def test_a_flush_opens_the_store(url: str) -> None:
    store = open_store(url, audit_interval=60.0)
    store.audit(an_event(1))
    await store.audit.flush(timeout=20)
    assert store.audit.written == 1
    await store.aclose()


async def test_threads_may_tell_the_audit_too(store: SqlStore) -> None:
    asyncio.get_running_loop().set_debug(True)  # It refuses what is not safe between threads.

    def tell(start: int) -> None:
        for number in range(start, start + 50):
            store.audit(an_event(number))

    await asyncio.gather(*(asyncio.to_thread(tell, start) for start in (0, 50, 100)))
    await store.audit.flush()

    assert await tools(store) == expected(*range(150))
    assert sorted(row.number for row in await store.audit.query(limit=1000)) == list(range(150))


async def test_two_writers_do_not_get_in_each_others_way(url: str) -> None:
    async with open_store(url) as first, open_store(url) as second:
        for number in range(20):
            (first if number % 2 else second).audit(an_event(number))
        await asyncio.gather(first.audit.flush(), second.audit.flush())

        assert await tools(first) == expected(*range(20))
        assert len({row.writer for row in await first.audit.query()}) == 2


# A database that is away.


async def test_what_happens_while_the_database_is_away_is_written_when_it_is_back(fragile: Fragile) -> None:
    async with open_store(fragile.url, timeout=0.3, audit_interval=0.0, audit_batch_size=5) as store:
        store.audit(an_event(0))
        await store.audit.flush()
        await fragile.go_away()
        for number in range(1, 20):
            store.audit(an_event(number))
        with pytest.raises(TimeoutError):
            await store.audit.flush(timeout=0.5)
        assert store.audit.written == 1

        await fragile.come_back()
        await store.audit.flush(timeout=30.0)

        assert await tools(store) == expected(*range(20))
        assert (store.audit.dropped, store.audit.waiting) == (0, 0)


async def test_what_has_to_be_dropped_is_counted_logged_and_noted_in_the_audit(
    fragile: Fragile, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {"audit_interval": 0.0, "audit_batch_size": 5, "audit_max_waiting": 10}
    async with open_store(fragile.url, timeout=0.3, **options) as store:
        await fragile.go_away()
        for number in range(25):
            store.audit(an_event(number))
        assert (store.audit.dropped, store.audit.waiting) == (15, 10)

        await fragile.come_back()
        await store.audit.flush(timeout=30.0)
        store.audit(an_event(30))
        await store.audit.flush(timeout=30.0)

        assert await tools(store) == expected(*range(10), 30)
        gaps = await store.audit.query(kind="events_dropped")
        assert sum(gap.detail["count"] for gap in gaps) == 15
    assert [record.levelno for record in caplog.records if "drops events" in record.message] == [logging.ERROR]


async def test_closing_does_not_wait_for_ever_and_says_what_was_lost(
    fragile: Fragile, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_store(fragile.url, timeout=0.3, audit_interval=0.0) as store:
        await fragile.go_away()
        store.audit(an_event())

    assert store.audit.dropped == 1
    assert "1 rows not written" in caplog.text
    await fragile.come_back()
    async with store:  # What was given up is not written later.
        store.audit(an_event(1))
        await store.audit.flush(timeout=30.0)
        assert (await tools(store), store.audit.waiting, store.audit.written) == (expected(1), 0, 1)


@pytest.mark.postgres
async def test_a_batch_whose_response_was_lost_is_not_written_twice(postgres: PostgresServer) -> None:
    name = postgres.new_database().rpartition("/")[2]
    async with (
        proxied(postgres.port) as proxy,
        open_store(postgres.url(name, port=proxy.port), audit_interval=60.0) as store,
    ):
        for number in range(5):
            store.audit(an_event(number))
        proxy.lose = b"COMMIT\0"

        await store.audit.flush(timeout=30.0)

        assert proxy.lost == 1
        assert await tools(store) == expected(*range(5))
        assert (store.audit.written, store.audit.dropped) == (5, 0)


async def test_a_batch_that_cannot_be_written_is_tried_again_after_ever_longer_pauses(store: SqlStore) -> None:
    async def rename(name: str, to: str) -> None:
        await store._database.write(text(f"ALTER TABLE {name} RENAME TO {to}"), {})

    await rename("handrail_audit", "away")
    with stopped_clock() as clock, counted(store) as statements:

        def count_attempts() -> int:
            return sum(sql.startswith("INSERT INTO handrail_audit") for sql, _ in statements.sent)

        store.audit(an_event())
        await quiet()
        clock.now += 0.01
        for attempts, pause in enumerate((0.1, 0.2, 0.5), 1):
            await eventually(lambda: count_attempts() == attempts)  # noqa: B023
            await eventually(lambda: is_sleeping(store))
            clock.now += pause * 0.9
            await quiet()
            assert is_sleeping(store)
            assert count_attempts() == attempts
            clock.now += pause * 0.2
        await eventually(lambda: count_attempts() == 4)
        await eventually(lambda: is_sleeping(store))
        await rename("away", "handrail_audit")
        clock.now += 1.01
        await eventually(lambda: store.audit.written == 1)
    assert await tools(store) == expected(0)


def is_sleeping(store: SqlStore) -> bool:
    """Whether the writer pauses: the innermost frame of its task is that of `asyncio.sleep`."""
    assert store.audit._task is not None
    waits_for: Any = store.audit._task.get_coro()
    while getattr(waits_for, "cr_await", None) is not None:
        if getattr(waits_for, "cr_code", None) is asyncio.sleep.__code__:
            return True
        waits_for = waits_for.cr_await
    return False


STATES = """
CREATE FUNCTION pick() RETURNS trigger AS $$ BEGIN IF NEW.session_id = 'odd' THEN
    RAISE EXCEPTION 'odd' USING ERRCODE = '{}'; END IF; RETURN NEW; END; $$ LANGUAGE plpgsql
"""


@pytest.mark.postgres
@pytest.mark.parametrize(("state", "is_refused"), [("22023", True), ("54000", True), ("57P03", False)])
async def test_what_postgres_says_about_a_row_is_a_refusal_and_what_it_says_about_itself_is_not(
    postgres: PostgresServer, state: str, is_refused: bool
) -> None:
    async with open_store(postgres.new_database(), audit_interval=0) as store:
        trigger = "CREATE TRIGGER picky BEFORE INSERT ON handrail_audit FOR EACH ROW EXECUTE FUNCTION pick()"
        steps = [text(STATES.format(state)), text(trigger)]
        await store._database.run(lambda transaction: [transaction.execute(step) for step in steps])
        with stopped_clock() as clock:
            for number in range(2):
                store.audit(an_event(number, session_id="s" if number else "odd"))
            clock.now += 0.01
            await eventually(lambda: store.audit.dropped or is_sleeping(store))
        assert store.audit.dropped == is_refused
        await store._database.write(text("DROP TRIGGER picky ON handrail_audit"), {})
        await store.audit.flush(timeout=30)
        assert await tools(store) == (expected(1) if is_refused else expected(0, 1))


REFUSING = {
    "sqlite": (
        "CREATE TRIGGER picky BEFORE INSERT ON handrail_audit WHEN NEW.session_id = 'odd' "
        "BEGIN SELECT RAISE(ABORT, 'odd'); END"
    ),
    "postgresql": "ALTER TABLE handrail_audit ADD CONSTRAINT picky CHECK (session_id <> 'odd')",
}


async def test_a_row_that_the_database_refuses_does_not_hold_up_the_others(
    store: SqlStore, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = create_async_engine(url)
    async with engine.begin() as connection:
        await connection.execute(text(REFUSING[engine.dialect.name]))
    await engine.dispose()

    for number in range(5):
        store.audit(an_event(number, session_id="odd" if number == 2 else "s"))
    await store.audit.flush(timeout=30.0)
    store.audit(an_event(5))
    await store.audit.flush(timeout=30.0)

    assert await tools(store) == expected(0, 1, 3, 4, 5)
    assert store.audit.dropped == 1
    assert [gap.detail["count"] for gap in await store.audit.query(kind="events_dropped")] == [1]
    assert "refused an audit row" in caplog.text


async def test_an_event_that_makes_no_sense_stops_nothing(store: SqlStore) -> None:
    with pytest.raises(TypeError):
        store.audit(CircuitBreakerChanged(at="now", session_id="s", tool_name="t", state="open"))  # type: ignore[arg-type]
    store.audit(an_event(1))
    await store.audit.flush()

    assert await tools(store) == expected(1)


# What is written with a claim.


def started(entry: Entry) -> CallStarted:
    return CallStarted(at=1000.0, session_id="s", call=ToolCall(id=entry.call_id, name=entry.tool))


async def numbered(store: SqlStore) -> list[tuple[int, str]]:
    await store.audit.flush()
    return sorted((row.number, row.kind) for row in await store.audit.query(limit=1_000))


async def test_claims_that_are_lost_leave_neither_a_row_nor_a_gap(store: SqlStore) -> None:
    rivals = [an_entry(key="k") for _ in range(10)]
    begun = [started(entry) for entry in rivals]

    won = await asyncio.gather(
        *(
            store.ledger.claim(entry, approval=None, approvals=store.approvals, started=event)
            for entry, event in zip(rivals, begun, strict=True)
        )
    )
    store.audit(begun[won.index(True)])  # As a listener it hears of it, too.
    for number in range(12):
        store.audit(an_event(number))

    rows = await numbered(store)
    assert [number for number, _ in rows] == list(range(13))
    assert [kind for _, kind in rows].count("call_started") == 1


async def test_as_many_claims_are_remembered_as_may_be_until_they_are_emitted(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "_MAX_KNOWN", 2)
    entries = [an_entry() for _ in range(3)]
    events = [started(entry) for entry in entries]
    for entry, event in zip(entries, events, strict=True):
        assert await store.ledger.claim(entry, approval=None, approvals=store.approvals, started=event)
    for event in events:
        store.audit(event)

    assert [kind for _, kind in await numbered(store)] == ["call_started"] * 4  # One was forgotten, and is there twice.


@pytest.mark.postgres
async def test_a_claim_whose_response_was_lost_leaves_one_row_and_no_gap(postgres: PostgresServer) -> None:
    name, entry = postgres.new_database().rpartition("/")[2], an_entry()
    async with proxied(postgres.port) as proxy, open_store(postgres.url(name, port=proxy.port)) as store:
        proxy.lose = b"INSERT 0 1\0"

        with pytest.raises(StoreError):
            await store.ledger.claim(entry, approval=None, approvals=store.approvals, started=started(entry))
        store.audit(an_event())

        rows = await numbered(store)
        assert proxy.lost == 1
        assert [number for number, _ in rows] == [0, 1]
        assert rows[0][1] in ("call_started", "claim_failed")

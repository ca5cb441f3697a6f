"""SQLite is written by one thread: a step is one hop, steps that arrive together share a commit, and none is lost."""

import asyncio
import gc
import os
import sqlite3
import threading
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from handrail import Executor, Policy, Rule, ToolCall, ToolContext, tool
from handrail.errors import StoreError
from handrail.store import SqlStore, open_store, sqlite_threads
from handrail.store.sqlite_threads import SqliteThread, SqliteTransaction, connect_sqlite
from handrail.store.transactions import Transaction
from tests.clocks import stopped_clock
from tests.execute.helpers import quiet
from tests.statements import counted
from tests.store.samples import an_entry, done


@pytest.fixture
async def file(tmp_path: Path) -> AsyncGenerator[SqlStore]:
    async with open_store(f"sqlite:///{tmp_path}/a.db", audit_interval=600) as opened:
        yield opened


@contextmanager
def noted_commands() -> Generator[list[str]]:
    """The commands around steps: BEGIN, SAVEPOINT, COMMIT."""
    sent: list[str] = []
    command = sqlite_threads._command

    def note(connection: sqlite3.Connection, sql: str) -> None:
        sent.append(sql.split()[0])
        command(connection, sql)

    sqlite_threads._command = note
    try:
        yield sent
    finally:
        sqlite_threads._command = command


@contextmanager
def noted_hops() -> Generator[list[str]]:
    """The threads that the event loop handed something to."""
    hops: list[str] = []
    send = SqliteThread._send

    def note(self: SqliteThread) -> None:
        if self._arriving:
            hops.append(self._name.rpartition(":")[2])
        send(self)

    SqliteThread._send = note
    try:
        yield hops
    finally:
        SqliteThread._send = send


@asynccontextmanager
async def held_writer(store: SqlStore) -> AsyncGenerator[threading.Event]:
    """Keep the thread that writes busy until the event is set, or the block ends."""
    begun, goes_on = threading.Event(), threading.Event()
    running = asyncio.create_task(store._database.run(lambda _: begun.set() or goes_on.wait()))
    await asyncio.to_thread(begun.wait)
    try:
        yield goes_on
    finally:
        goes_on.set()
        await running


@tool(concurrency_safe=True)
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def an_executor(store: SqlStore, **options: Any) -> Executor:
    return Executor(
        [pay], policy=Policy([Rule.allow("pay")]), ledger=store.ledger, approvals=store.approvals, **options
    )


def a_call(number: int) -> ToolCall:
    return ToolCall(id=f"c-{number}", name="pay", arguments_json=f'{{"amount": {number}}}')


CONTEXT: ToolContext[Any] = ToolContext(session_id="s", customer_id="c")


async def test_one_call_is_two_hops_and_two_statements_each_of_which_is_a_transaction(file: SqlStore) -> None:
    executor = an_executor(file)
    await executor.run(a_call(0), CONTEXT)

    with noted_hops() as hops, noted_commands() as commands, counted(file) as statements:
        assert (await executor.run(a_call(1), CONTEXT)).ok

    assert hops == ["sqlite-writer"] * 2
    assert statements.count == 2
    assert commands == []
    await executor.aclose()


async def test_a_hundred_calls_at_once_share_at_most_ten_commits(file: SqlStore) -> None:
    executor = an_executor(file)
    await executor.run(a_call(0), CONTEXT)

    with noted_hops() as hops, noted_commands() as commands:
        results = await asyncio.gather(*(executor.run(a_call(number), CONTEXT) for number in range(1, 101)))

    assert all(result.ok and result.recorded for result in results)
    assert commands.count("COMMIT") <= 10
    assert "SAVEPOINT" not in commands  # A single statement is undone by itself.
    assert len(hops) <= 15
    for number in range(1, 101):
        known = (await file.ledger.recall(session_id="s", call_id=f"c-{number}")).by_id
        assert known is not None
        assert known.state == "committed"
    await executor.aclose()


async def test_a_claim_with_its_approval_and_its_rows_of_the_audit_is_one_hop(file: SqlStore) -> None:
    executor = Executor([pay], policy=Policy([Rule.ask("pay", by="operator")]), store=file)
    asked = await executor.run(a_call(1), CONTEXT)
    assert asked.approval is not None
    await file.approvals.approve(asked.approval.token, by="operator", who="ann")

    with noted_hops() as hops:
        assert (await executor.run(a_call(1), CONTEXT)).ok

    assert hops.count("sqlite-writer") == 2  # The claim, with everything in it, and the settlement.
    await executor.aclose()


# A step that fails.


def insert_setting(name: str) -> Any:
    def write(transaction: Transaction) -> str:
        transaction.execute(text("INSERT INTO handrail_settings VALUES (:name, 'x')"), {"name": name})
        return name

    return write


async def names(store: SqlStore) -> set[str]:
    return {row[0] for row in await store._database.fetch(text("SELECT name FROM handrail_settings"))}


async def test_of_steps_that_share_a_commit_only_the_one_that_fails_is_undone(file: SqlStore) -> None:
    def fails(transaction: Transaction) -> None:
        insert_setting("half")(transaction)
        raise ValueError("half-way")

    steps = [insert_setting("a"), fails, insert_setting("b"), insert_setting("a"), insert_setting("c")]
    with noted_commands() as commands:
        found = await asyncio.gather(*map(file._database.run, steps), return_exceptions=True)

    assert [item if isinstance(item, str) else type(item) for item in found] == [
        "a",
        ValueError,
        "b",
        IntegrityError,
        "c",
    ]
    assert {"a", "b", "c"} <= await names(file)
    assert "half" not in await names(file)
    assert commands.count("COMMIT") == 1


async def write_setting(store: SqlStore, name: str) -> int:
    """`insert_setting` as a single statement."""
    return await store._database.write(text("INSERT INTO handrail_settings VALUES (:name, 'x')"), {"name": name})


async def test_of_single_statements_that_share_a_commit_only_the_one_that_fails_is_undone(file: SqlStore) -> None:
    twice = text("INSERT INTO handrail_settings VALUES ('half', 'x'), ('a', 'x')")
    with noted_commands() as commands:
        found = await asyncio.gather(
            write_setting(file, "a"),
            file._database.write(twice, {}),
            file._database.run(insert_setting("b")),
            write_setting(file, "c"),
            return_exceptions=True,
        )

    assert [item if isinstance(item, int | str) else type(item) for item in found] == [1, IntegrityError, "b", 1]
    assert {"a", "b", "c"} <= await names(file)
    assert "half" not in await names(file)
    assert commands == ["BEGIN", "SAVEPOINT", "RELEASE", "COMMIT"]


async def test_a_single_statement_that_fails_alone_is_undone_and_the_next_one_runs(file: SqlStore) -> None:
    await write_setting(file, "a")

    with pytest.raises(IntegrityError):
        await file._database.write(text("INSERT INTO handrail_settings VALUES ('half', 'x'), ('a', 'x')"), {})

    assert await write_setting(file, "whole") == 1
    assert {"half", "whole"} & await names(file) == {"whole"}


async def test_a_single_statement_waits_for_the_lock_of_another_process(tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path}/a.db", timeout=30) as store:
        other = sqlite3.connect(tmp_path / "a.db", isolation_level=None, check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")
        other.execute("INSERT INTO handrail_settings VALUES ('theirs', 'x')")
        writing = asyncio.create_task(write_setting(store, "ours"))
        await quiet()
        assert not writing.done()
        other.execute("COMMIT")
        other.close()

        assert await writing == 1
        assert {"ours", "theirs"} <= await names(store)


@pytest.mark.parametrize("is_single", [True, False])
async def test_a_step_that_fills_the_disk_does_not_undo_those_that_share_its_commit(
    file: SqlStore, *, is_single: bool
) -> None:
    """SQLite undoes the whole transaction when the disk is full: each step is tried again, alone."""
    size = (await file._database.fetch(text("PRAGMA page_count")))[0][0]
    filling = text("INSERT INTO handrail_settings VALUES ('big', zeroblob(1000000))")

    def limit(transaction: Transaction) -> None:
        transaction.fetch(text(f"PRAGMA max_page_count = {size + 3}"))

    def fill(transaction: Transaction) -> None:
        transaction.execute(filling)

    await file._database.run(limit)
    found = await asyncio.gather(
        file._database.run(insert_setting("a")),
        file._database.write(filling, {}) if is_single else file._database.run(fill),
        file._database.run(insert_setting("b")),
        return_exceptions=True,
    )

    assert (found[0], found[2]) == ("a", "b")
    assert isinstance(found[1], StoreError)
    assert "OperationalError" in str(found[1])
    assert {"a", "b"} <= await names(file)
    assert "big" not in await names(file)


async def test_when_a_shared_commit_fails_each_step_is_tried_alone_and_is_told_its_own_outcome(
    file: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, commits = sqlite_threads._command, 0

    def fail_the_first_two_commits(connection: sqlite3.Connection, sql: str) -> None:
        nonlocal commits
        if sql == "COMMIT":
            commits += 1
            if commits <= 2:
                raise sqlite_threads._wrap(sqlite3.OperationalError("disk I/O error"), sql)
        command(connection, sql)

    monkeypatch.setattr(sqlite_threads, "_command", fail_the_first_two_commits)
    found = await asyncio.gather(
        *map(file._database.run, [insert_setting("a"), insert_setting("b")]), return_exceptions=True
    )

    assert isinstance(found[0], StoreError)
    assert found[1] == "b"
    assert (await names(file)) & {"a", "b"} == {"b"}


async def test_a_lock_of_another_process_is_waited_for_once_however_many_wait(tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path}/a.db", timeout=0.3) as store:
        other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        with noted_commands() as commands:
            steps = [insert_setting(f"n-{number}") for number in range(20)]
            found = await asyncio.gather(*map(store._database.run, steps), return_exceptions=True)
        other.execute("ROLLBACK")
        other.close()

        assert all(isinstance(item, StoreError) for item in found)
        assert commands == ["BEGIN"]
        assert await store._database.run(insert_setting("after")) == "after"


async def test_a_step_that_fails_alone_is_undone_and_the_next_one_runs(file: SqlStore) -> None:
    def fails(transaction: Transaction) -> None:
        insert_setting("half")(transaction)
        raise ValueError("half-way")

    with pytest.raises(ValueError, match="half-way"):
        await file._database.run(fails)
    assert await file._database.run(insert_setting("whole")) == "whole"
    assert {"half", "whole"} & await names(file) == {"whole"}


def test_a_file_that_is_no_database_is_not_left_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def note(*arguments: Any, **options: Any) -> sqlite3.Connection:
        opened.append(connect(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", note)
    (tmp_path / "text.db").write_text("Dear diary, " * 100)
    with pytest.raises(sqlite3.DatabaseError, match="not a database"):
        connect_sqlite(str(tmp_path / "text.db"), timeout=1)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        opened[0].execute("SELECT 1")


async def test_a_statement_without_one_of_its_values_is_refused(file: SqlStore) -> None:
    with pytest.raises(ValueError, match="needs a value for 'name'"):
        await file._database.fetch(text("SELECT :name"))


# Who waits.


async def test_nobody_hears_of_a_step_before_it_is_committed(file: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    command = sqlite_threads._command
    committing, goes_on = threading.Event(), threading.Event()

    def hold_the_commit(connection: sqlite3.Connection, sql: str) -> None:
        if sql == "COMMIT":
            committing.set()
            goes_on.wait()
        command(connection, sql)

    monkeypatch.setattr(sqlite_threads, "_command", hold_the_commit)
    entries = [an_entry(), an_entry()]
    claims = [
        asyncio.create_task(file.ledger.claim(entry, approval=None, approvals=file.approvals)) for entry in entries
    ]
    await asyncio.to_thread(committing.wait)

    assert not any(claim.done() for claim in claims)
    for entry in entries:
        assert (await file.ledger.recall(session_id=entry.session_id, call_id=entry.call_id)).by_id is None
    goes_on.set()
    assert await asyncio.gather(*claims) == [True, True]


async def test_a_step_whose_caller_was_cancelled_before_it_began_is_not_run(file: SqlStore) -> None:
    begun, goes_on = threading.Event(), threading.Event()
    first = asyncio.create_task(file._database.run(lambda _: begun.set() or goes_on.wait()))
    await asyncio.to_thread(begun.wait)
    waiting = asyncio.create_task(file._database.run(insert_setting("late")))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    goes_on.set()
    await first

    assert waiting.cancelled()
    assert "late" not in await names(file)


async def test_steps_that_queue_up_share_a_commit_without_those_that_nobody_waits_for(file: SqlStore) -> None:
    async with held_writer(file) as goes_on:
        with noted_commands() as commands:
            waiting: list[asyncio.Task[str]] = []
            for number in range(5):
                waiting.append(asyncio.create_task(file._database.run(insert_setting(f"n-{number}"))))
                await quiet()
            for number in (0, 3):
                waiting[number].cancel()
            await quiet()
            goes_on.set()
            await asyncio.gather(*waiting, return_exceptions=True)

    assert commands == ["COMMIT", "BEGIN", *["SAVEPOINT", "RELEASE"] * 3, "COMMIT"]
    assert {name for name in await names(file) if name.startswith("n-")} == {"n-1", "n-2", "n-4"}


async def test_a_claim_whose_caller_was_cancelled_while_it_ran_is_whole_and_can_be_settled(
    file: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = SqliteTransaction._run
    claiming_now, goes_on = threading.Event(), threading.Event()

    def hold(self: SqliteTransaction, sql: str, values: Any) -> sqlite3.Cursor:
        claiming_now.set()
        goes_on.wait()
        return run(self, sql, values)

    monkeypatch.setattr(SqliteTransaction, "_run", hold)
    entry = an_entry()
    claiming = asyncio.create_task(file.ledger.claim(entry, approval=None, approvals=file.approvals))
    await asyncio.to_thread(claiming_now.wait)
    claiming.cancel()
    await asyncio.wait([claiming])
    goes_on.set()

    await file.ledger.settle(done(entry))
    known = (await file.ledger.recall(session_id=entry.session_id, call_id=entry.call_id)).by_id
    assert known is not None
    assert known.state == "committed"


async def test_reads_cannot_write_and_do_not_wait_for_writes(file: SqlStore) -> None:
    begun, goes_on = threading.Event(), threading.Event()
    writing = asyncio.create_task(file._database.run(lambda _: begun.set() or goes_on.wait()))
    await asyncio.to_thread(begun.wait)

    assert "digest_key" in await names(file)
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("handrail:sqlite")]
    assert [thread.daemon for thread in threads] == [True] * 2  # They keep no program from its end.
    goes_on.set()
    await writing
    with pytest.raises(StoreError) as caught:
        await file._database.fetch(text("DELETE FROM handrail_settings"))
    assert "readonly" in str(caught.value.__cause__)
    assert "digest_key" in await names(file)


async def test_a_step_waits_for_others_as_long_as_it_may(tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path}/a.db", timeout=60.0) as store:
        async with held_writer(store):
            with stopped_clock() as clock:
                started = clock.now
                waiting = asyncio.create_task(store._database.run(insert_setting("late")))
                await quiet()
                clock.now = started + 59.0
                await quiet()
                assert not waiting.done()
                clock.now = started + 60.0
                await quiet()
                assert waiting.done()
        with pytest.raises(StoreError, match="kept it busy for 60 seconds"):
            await waiting
        assert "late" not in await names(store)


async def test_closing_waits_for_what_runs_and_does_what_was_just_given(file: SqlStore) -> None:
    async with held_writer(file) as goes_on, asyncio.timeout(10):
        given = asyncio.create_task(file._database.run(insert_setting("given")))
        closing = asyncio.create_task(file._database.close_idle())
        await quiet()
        assert not closing.done()
        goes_on.set()
        assert await given == "given"
        await closing
    assert "given" in await names(file)


def open_descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("way", ["an eventfd", "no eventfd", "an event loop that watches none"])
def test_whoever_waits_gets_what_a_thread_has_done_on_every_platform(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    if way == "no eventfd":
        monkeypatch.delattr(os, "eventfd", raising=False)
    asyncio.run(asyncio.sleep(0))
    before = open_descriptors() if Path("/proc/self/fd").exists() else None

    async def work(*, closes: bool) -> None:
        if way == "an event loop that watches none":
            monkeypatch.setattr(asyncio.get_running_loop(), "add_reader", refuse)
        store = open_store(f"sqlite:///{tmp_path}/a.db")
        results = await asyncio.gather(*(write_setting(store, f"{closes} {number}") for number in range(20)))
        assert results == [1] * 20
        assert len(await names(store)) >= 20
        if closes:
            await store.aclose()
            assert await write_setting(store, "opened again") == 1
            await store.aclose()

    def refuse(*given: object) -> None:
        raise NotImplementedError

    for closes in (True, False):
        asyncio.run(work(closes=closes))
    if before is not None:
        ended = time.monotonic() + 10
        while open_descriptors() > before and time.monotonic() < ended:  # A thread ends with its loop, a little later.
            time.sleep(0.01)
        assert open_descriptors() <= before


async def test_a_slow_page_holds_up_no_look_up(file: SqlStore) -> None:
    begun, goes_on = threading.Event(), threading.Event()
    connections = file._database._sqlite
    assert connections is not None
    page = asyncio.create_task(connections.read(lambda _: begun.set() or goes_on.wait()))
    await asyncio.to_thread(begun.wait)

    assert (await file.ledger.recall(session_id="s", call_id="c")).by_id is None
    goes_on.set()
    await page


async def test_what_is_read_at_once_is_one_hop_and_slow_pages_have_so_many_threads(tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path}/a.db", pool_size=3) as store:
        with noted_hops() as hops:
            await asyncio.gather(*(names(store) for _ in range(5)))
            await names(store)
        assert hops == ["sqlite-reader-0"] * 2
        goes_on = threading.Event()
        assert store._database._sqlite is not None
        pages: list[asyncio.Task[bool]] = []
        with noted_hops() as hops:
            for _ in range(5):
                pages.append(asyncio.create_task(store._database._sqlite.read(lambda _: goes_on.wait())))
                await quiet()
        goes_on.set()
        await asyncio.gather(*pages)
    assert hops == [f"sqlite-reader-{number % 2}" for number in range(5)]


def test_a_store_in_the_next_event_loop_has_its_timeout(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/a.db", timeout=60.0)
    first = asyncio.new_event_loop()
    first.run_until_complete(store._database.run(insert_setting("first")))
    first.close()

    async def wait_in_vain() -> None:
        async with held_writer(store):
            with stopped_clock() as clock:
                waiting = asyncio.create_task(store._database.run(insert_setting("second")))
                await quiet()
                clock.now += 60.0
                await quiet()
                assert waiting.done()
        with pytest.raises(StoreError, match="kept it busy"):
            await waiting
        await store.aclose()

    asyncio.run(wait_in_vain())


def test_a_store_that_nobody_closed_is_used_again_in_the_next_event_loop(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/a.db")

    async def use(name: str) -> set[str]:
        await store._database.run(insert_setting(name))
        return await names(store)

    asyncio.run(use("first"))
    assert {"first", "second"} <= asyncio.run(use("second"))
    asyncio.run(store.aclose())
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("handrail:sqlite")]

"""A store is opened when it is needed, and forgets what is settled when it is told to."""

import logging
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from msgspec import structs
from sqlalchemy import func, select, update

from handrail import Executor, Policy, Rule, ToolCall, ToolContext, tool
from handrail.errors import ConfigError, StoreError
from handrail.store import SqlStore, open_store
from handrail.store.tables import approvals, audit, ledger
from tests.store.programs import SRC
from tests.store.samples import an_approval, an_entry, done
from tests.tools import pay

# Importing.


def run(source: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", source], env={"PYTHONPATH": str(SRC)}, check=True, capture_output=True, text=True
    )
    return ended.stdout.strip()


def test_importing_the_store_loads_no_database_library() -> None:
    heavy = "sqlalchemy", "alembic", "asyncpg", "aiosqlite"
    loaded = run(f"import sys, handrail.store; print([name for name in {heavy!r} if name in sys.modules])")

    assert loaded == "[]"


@pytest.mark.parametrize("package", ["sqlalchemy", "alembic", "aiosqlite", "asyncpg", "greenlet"])
def test_a_missing_library_is_an_error_that_says_how_to_install_it(package: str, tmp_path: Path) -> None:
    said = run(
        f"""
import asyncio, sys
sys.modules[{package!r}] = None
from handrail import ConfigError
from handrail.store import open_store

async def main():
    try:
        async with open_store("sqlite+aiosqlite:///{tmp_path}/executor.db"):
            pass
    except ConfigError as error:
        print(error)

asyncio.run(main())
"""
    )

    assert said == f"`{package}` is not installed. Install it with: pip install 'handrail[sql]'"


def test_the_wheel_carries_the_migrations(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=SRC.parent, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")

    packed = set(zipfile.ZipFile(wheel).namelist())

    migrations = (SRC / "handrail/store/migrations").rglob("*.py")
    assert {str(path.relative_to(SRC)) for path in migrations} <= packed


# Forgetting.


async def test_what_was_settled_long_ago_is_forgotten_and_everything_else_is_kept(store: SqlStore) -> None:
    long_ago, lately = 1_000.0, time.time()
    gone, kept = [], []
    for state, settled_at in [
        ("committed", long_ago),
        ("failed", long_ago),
        ("committed", lately),
        ("unknown", long_ago),
        ("running", None),
    ]:
        entry = an_entry(claimed_at=long_ago, lease_until=long_ago)
        await store.ledger.claim(entry, approval=None, approvals=store.approvals)
        if settled_at is not None:
            await store.ledger.settle(done(entry, state))  # type: ignore[arg-type]
        await age(store, entry, settled_at)
        (gone if state in ("committed", "failed") and settled_at == long_ago else kept).append(entry)

    forgotten = await store.purge(before=lately - 60)

    assert forgotten == len(gone) == 2
    assert [await known(store, entry) for entry in gone] == [False, False]
    assert [await known(store, entry) for entry in kept] == [True, True, True]


async def test_approvals_that_expired_long_ago_are_forgotten(store: SqlStore) -> None:
    old = await store.approvals.ask(an_approval(created_at=1.0, expires_at=2.0))
    new = await store.approvals.ask(an_approval())

    assert await store.purge(before=time.time() - 60) == 1

    assert await store.approvals.pending() == [new]
    assert old != new


async def age(store: SqlStore, entry: Any, settled_at: float | None) -> None:
    """Let an entry be an old one; times are the database's own, if it has a clock."""
    times = {"claimed_at": 1_000.0, "lease_until": 1_000.0, "run_until": 1_000.0, "repeat_until": 1_000.0}
    aged = update(ledger).where(ledger.c.call_id == entry.call_id).values(**times, settled_at=settled_at)
    await store._database.write(aged, {})


async def known(store: SqlStore, entry: Any) -> bool:
    by_id = (await store.ledger.recall(session_id=entry.session_id, call_id=entry.call_id)).by_id
    return by_id is not None


async def test_with_the_root_logger_at_debug_no_driver_logs_a_value(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """aiosqlite would log every statement with its parameters."""
    caplog.set_level(logging.DEBUG)

    @tool(key="what")
    async def pay(what: str) -> str:
        """Pay."""
        return f"paid {what}"

    call = ToolCall(id="c-1", name="pay", arguments_json='{"what": "canary-4711"}')
    async with open_store(url, audit_values=True) as store:
        executor = Executor([pay], store=store, policy=Policy([Rule.ask("pay", by="operator")]))
        asked = await executor.run(call, ToolContext(session_id="s-1"))
        assert asked.approval is not None
        await store.approvals.approve(asked.approval.token, by="operator", who="bo", reason="canary-4711")
        assert (await executor.run(call, ToolContext(session_id="s-1"))).ok
        await store.audit.flush()

    assert "canary-4711" not in caplog.text


@pytest.mark.parametrize(("scope", "customer_id", "count"), [(None, None, 1), ("session", None, 0), (None, "ann", 0)])
async def test_effects_of_nobody_are_reported_once_where_the_ledger_outlives_the_process(
    scope: Any, customer_id: str | None, count: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Executor(
        [pay], policy=Policy([Rule.allow("*")]), store=f"sqlite:///{tmp_path}/handrail.db", scope=scope
    ) as executor:
        for session_id in ("s-1", "s-2"):
            call = ToolCall(id="c-1", name="pay", arguments_json='{"amount": 5}')
            result = await executor.run(call, ToolContext(session_id=session_id, customer_id=customer_id))
            assert result.ok or customer_id, result  # Of one customer it is one effect in both sessions.

    assert sum("runs without a customer" in record.message for record in caplog.records) == count


async def test_what_can_still_be_repeated_is_not_purged_and_its_number_never_restarts(tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path}/handrail.db") as store:
        executor = Executor([pay], policy=Policy([Rule.allow("pay")]), store=store)
        call = ToolCall(id="c-1", name="pay", arguments_json='{"amount": 5}')
        assert (await executor.run(call, ToolContext(session_id="s-1", customer_id="ann", turn=1))).ok
        await store.purge(before=time.time() + 1)

        again = structs.replace(call, id="c-2")
        result = await executor.run(again, ToolContext(session_id="s-1", customer_id="ann", turn=2))

    assert result.error is not None
    assert result.error.code == "approval_required"


async def test_a_claim_is_refused_when_the_entry_before_is_gone(kept: Any) -> None:
    repeated = an_entry(number=1, full_number=1)

    assert await kept.ledger.claim(an_entry(), approval=None, approvals=kept.approvals)  # Of another effect.
    assert not await kept.ledger.claim(repeated, approval=None, approvals=kept.approvals)
    assert (await kept.ledger.recall(session_id=repeated.session_id, call_id=repeated.call_id)).by_id is None


PREFIX = "verify_%s_abcdef:"
"""As long as one may be, and with characters that a pattern would take for any other."""
OTHER = "verify-1s-abcdef:1"


async def count_rows(store: SqlStore) -> list[int]:
    return [(await store._database.fetch(select(func.count()).select_from(item)))[0][0] for item in (ledger, approvals)]


async def test_what_was_written_for_a_trial_is_removed_and_nothing_else_is(store: SqlStore) -> None:
    scratch = store.build_scratch()
    await scratch.open()
    assert scratch.ledger.digest_key == store.ledger.digest_key
    for session_id in (f"{PREFIX}1", f"{PREFIX}2", OTHER):
        asked = await scratch.approvals.ask(an_approval(session_id=session_id))
        approval = await scratch.approvals.approve(asked.token, by="operator", who="bo")
        entry = an_entry(session_id=session_id)
        assert await scratch.ledger.claim(entry, approval=approval, approvals=scratch.approvals)

    assert await scratch.remove(PREFIX) == 4
    assert await scratch.remove(PREFIX) == 0
    await scratch.aclose()

    assert not scratch._database.is_open
    assert await count_rows(store) == [1, 1]
    await store.audit.flush()
    assert await store._database.fetch(select(audit.c.kind)) == []


@pytest.mark.parametrize(("prefix", "is_long"), [("x" * 16, True), ("x" * 15, False), ("", False)])
async def test_a_prefix_that_could_be_anybodys_removes_nothing(store: SqlStore, prefix: str, is_long: bool) -> None:
    scratch = store.build_scratch()
    await scratch.open()
    try:
        if is_long:
            assert await scratch.remove(prefix) == 0
        else:
            with pytest.raises(ValueError, match="at least 16 characters"):
                await scratch.remove(prefix)
    finally:
        await scratch.aclose()


async def test_a_trial_makes_no_tables_and_needs_the_key_of_the_database(empty_url: str) -> None:
    with pytest.raises((ConfigError, StoreError), match=r"there is no database|migrate=True"):
        await open_store(empty_url).build_scratch().open()
    async with open_store(empty_url, encryption_key=Fernet.generate_key()) as store:
        assert store.is_encrypted
    with pytest.raises(StoreError, match="encryption_key is not the one"):
        await open_store(empty_url, encryption_key=Fernet.generate_key()).build_scratch().open()


async def test_a_database_that_was_replaced_is_not_tried_on(tmp_path: Path) -> None:
    file = tmp_path / "handrail.db"
    async with open_store(f"sqlite:///{file}") as store:
        assert not store.is_encrypted
        scratch = store.build_scratch()
        await scratch.open()
        other = tmp_path / "other.db"
        async with open_store(f"sqlite:///{other}"):
            pass
        other.replace(file)
        with pytest.raises(StoreError, match="replaced"):
            await scratch.ledger.recall(session_id="s-1", call_id="c-1")
        await scratch.aclose()


def test_the_password_of_the_database_goes_along() -> None:
    scratch = open_store("postgresql://ann:hunter2@127.0.0.1:9/shop").build_scratch()

    assert scratch._database.url.password == "hunter2"

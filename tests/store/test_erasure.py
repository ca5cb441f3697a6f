"""The data of one customer is erased everywhere, nothing else is, and no call runs twice for it."""

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, text, update

from handrail import ChatSession, ConfigError, Executor, Policy, Rule, ToolCall, ToolContext, ToolError, tool
from handrail.cli.main import main
from handrail.core import ApprovalDecided, CircuitBreakerChanged
from handrail.store import SqlStore, open_store
from handrail.store.tables import audit, metadata
from handrail.testing import ScriptedProvider
from tests.clocks import eventually, stopped_clock
from tests.execute.helpers import quiet
from tests.statements import Statements, counted
from tests.store.conftest import DATABASES, new_database
from tests.store.samples import an_approval

CANARY = "ann@example.org"
"""Stands in every text of the customer that is erased."""


class Shop:
    """A tool with effects, and how often each took place."""

    def __init__(self) -> None:
        self.paid: list[str] = []
        self.may_end = asyncio.Event()
        self.has_begun = asyncio.Event()

        @tool(key="what")
        async def pay(what: str) -> str:
            """Pay."""
            if what.startswith("slow"):
                self.has_begun.set()
                await self.may_end.wait()
            if what.startswith("bad"):
                raise ToolError(f"no {what}")
            self.paid.append(what)
            return f"paid {what}"

        self.pay = pay

    def executor(self, store: SqlStore, policy: Policy | None = None) -> Executor:
        return Executor([self.pay], policy=policy or Policy([Rule.allow("pay")]), store=store)


def call(id: str, what: str) -> ToolCall:
    return ToolCall(id=id, name="pay", arguments_json=json.dumps({"what": f"{what} {CANARY}"}))


def context(customer_id: str = CANARY, *, session_id: str = "s-1", tenant_id: str | None = "t-1") -> ToolContext[Any]:
    return ToolContext(session_id=session_id, customer_id=customer_id, tenant_id=tenant_id, turn=1)


async def dump(store: SqlStore) -> str:
    """Everything that is in the database, as text."""
    found = [await store._database.fetch(select(table)) for table in metadata.sorted_tables]  # pyright: ignore[reportPrivateUsage]
    return "\n".join(str(row) for rows in found for row in rows)


async def test_no_value_of_the_customer_is_left_in_any_table_file_or_recording(url: str, tmp_path: Path) -> None:
    shop = Shop()
    recordings = tmp_path / "calls"
    recordings.mkdir()
    (recordings / "s-1.jsonl").write_text(CANARY)
    (recordings / "s-9.jsonl").write_text("another's")
    async with open_store(url, audit_values=True) as store:
        executor = shop.executor(store)
        assert (await executor.run(call("c-1", "book"), context())).ok
        assert not (await executor.run(call("c-2", "bad"), context())).ok
        asking = shop.executor(store, Policy([Rule.ask("pay", by="operator", reason=f"for {CANARY}?")]))
        asked = await asking.run(call("c-3", "asked"), context())
        denied = await asking.run(call("c-4", "denied"), context())
        assert asked.approval is not None
        assert denied.approval is not None
        await store.approvals.deny(denied.approval.token, by="operator", who="bo", reason=f"not for {CANARY}")
        chat = ChatSession(ScriptedProvider([f"Hello {CANARY}."]), executor, context=context(), sessions=store.sessions)
        await chat.send(f"I am {CANARY}.")
        await store.audit.flush()
        assert CANARY in await dump(store)

        done = await store.erase(customer_id=CANARY, tenant_id="t-1", who="dpo", recordings=recordings)

        assert (done.calls, done.approvals, done.conversations, done.recordings, done.open_calls) == (2, 2, 1, 1, 0)
        assert done.is_complete
        assert CANARY not in await dump(store)
        assert sorted(path.name for path in recordings.iterdir()) == ["s-9.jsonl"]
        assert await store.approvals.pending() == []
        closed = await store.approvals.get(denied.approval.token)
        assert closed is not None
        assert (closed.state, closed.who) == ("denied", "bo")
        (fact,) = await store.audit.query(kind="customer_erased")
        assert (fact.tenant_id, fact.detail["who"], fact.detail["calls"]) == ("t-1", "dpo", 2)
        assert not is_in_files(tmp_path)


def is_in_files(folder: Path) -> bool:
    """Whether the canary is in a file of SQLite."""
    return any(CANARY.encode() in path.read_bytes() for path in folder.rglob("*.db*"))


async def test_the_write_ahead_log_is_emptied_when_nobody_reads_an_old_state_any_more(tmp_path: Path) -> None:
    # With one connection that reads: what is read after an attempt comes after it.
    async with open_store(f"sqlite:///{tmp_path}/a.db", pool_size=2) as store:
        await store._database.fetch(text("PRAGMA busy_timeout = 0"))  # pyright: ignore[reportPrivateUsage]
        assert (await Shop().executor(store).run(call("c-1", "book"), context())).ok
        await store.audit.flush()
        reader = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM handrail_ledger").fetchall()
        with stopped_clock() as clock, counted(store) as statements:
            erasing = asyncio.create_task(store.erase(customer_id=CANARY, tenant_id="t-1", who="dpo"))
            for attempts in (1, 2):
                await eventually(lambda: count_checkpoints(statements))
                for _ in range(3):
                    await store.sessions.load("nobody")
                    await quiet()
                assert (count_checkpoints(statements), erasing.done()) == (attempts, False)
                if attempts == 2:
                    reader.close()
                clock.now += 0.11
                await quiet()
            assert (await erasing).is_complete
        assert not is_in_files(tmp_path)


def count_checkpoints(statements: Statements) -> int:
    return sum("wal_checkpoint" in sql for sql, _ in statements.sent)


async def test_rows_of_the_customers_sessions_that_name_nobody_lose_their_values_and_others_keep_them(
    store: SqlStore,
) -> None:
    await Shop().executor(store).run(call("c-1", "book"), context())
    for session_id in ("s-1", "s-2"):
        store.audit(CircuitBreakerChanged(at=1.0, session_id=session_id, tool_name="pay", state="open"))

    await store.erase(customer_id=CANARY, tenant_id="t-1", who="dpo")

    rows = await store.audit.query(kind=CircuitBreakerChanged)
    assert {row.session_id: (row.reason, row.erased_at is None) for row in rows} == {
        "s-1": (None, False),
        "s-2": ("open", True),
    }


async def test_what_was_done_is_not_done_again_and_the_answer_says_when_it_was(store: SqlStore) -> None:
    shop = Shop()
    await shop.executor(store).run(call("c-1", "book"), context())
    await shop.executor(store).run(call("c-2", "bad"), context())
    await store.erase(customer_id=CANARY, tenant_id="t-1", who="dpo")

    again = await shop.executor(store).run(call("c-1", "book"), context())
    other_id = await shop.executor(store).run(call("c-9", "book"), context())
    failed = await shop.executor(store).run(call("c-2", "bad"), context())

    assert len(shop.paid) == 1
    assert again.origin == other_id.origin == "replayed"
    assert "was done at" in again.for_model()
    assert "erased" in again.for_model()
    assert "erased" in other_id.for_model()
    assert not failed.ok
    assert "Nothing was done" in failed.for_model() or "nothing was done" in failed.for_model()


async def test_nothing_of_others_is_touched(store: SqlStore) -> None:
    shop = Shop()
    executor = shop.executor(store)
    others = [
        context("bob", session_id="s-2"),
        context(CANARY, session_id="s-3", tenant_id="t-2"),
        context(CANARY, session_id="s-4", tenant_id=None),
    ]
    for number, one in enumerate(others):
        await executor.run(call(f"c-{number}", f"thing {number}"), one)
    await executor.run(call("c-8", "mine"), context())
    await store.audit.flush()

    await store.erase(customer_id=CANARY, tenant_id="t-1", who="dpo")

    for number, one in enumerate(others):
        again = await executor.run(call(f"c-{number}", f"thing {number}"), one)
        assert again.output == f"paid thing {number} {CANARY}"
        assert await store.audit.query(session_id=one.session_id, customer_id=one.customer_id)
    done = await store.erase(customer_id=CANARY, tenant_id=None, who="dpo")
    assert done.calls == 1


async def test_a_call_that_runs_keeps_its_values_until_it_is_settled(store: SqlStore) -> None:
    shop = Shop()
    executor = shop.executor(store)
    running = asyncio.create_task(executor.run(call("c-1", "slow"), context()))
    await shop.has_begun.wait()

    first = await store.erase(customer_id=CANARY, tenant_id="t-1", who="dpo")
    kept = (await store.ledger.recall(session_id="s-1", call_id="c-1")).by_id
    shop.may_end.set()
    result = await running
    settled = (await store.ledger.recall(session_id="s-1", call_id="c-1")).by_id
    second = await store.erase(customer_id=CANARY, tenant_id="t-1", who="dpo")

    assert (first.open_calls, first.is_complete) == (1, False)
    assert kept is not None
    assert CANARY in kept.arguments
    assert result.ok
    assert settled is not None
    assert (settled.state, settled.arguments, settled.customer_id, settled.recorded) == ("committed", "{}", None, None)
    assert second.is_complete
    assert CANARY not in await dump(store)
    again = await shop.executor(store).run(call("c-1", "slow"), context())
    assert "erased" in again.for_model()
    assert len(shop.paid) == 1


async def test_a_doubt_loses_its_values_when_it_is_resolved(store: SqlStore) -> None:
    @tool(key="what")
    async def pay(what: str) -> str:
        """Pay."""
        raise RuntimeError("cut off")

    executor = Executor([pay], policy=Policy([Rule.allow("pay")]), store=store)
    await executor.run(call("c-1", "lost"), context())
    first = await store.erase(customer_id=CANARY, tenant_id="t-1", who="dpo")

    await executor.resolve(session_id="s-1", call_id="c-1", happened=True, who="bo")

    entry = (await store.ledger.recall(session_id="s-1", call_id="c-1")).by_id
    assert first.open_calls == 1
    assert entry is not None
    assert (entry.state, entry.arguments, entry.customer_id, entry.recorded) == ("committed", "{}", None, None)


async def test_a_row_of_the_audit_changes_in_no_other_way(store: SqlStore) -> None:
    await Shop().executor(store).run(call("c-1", "book"), context())
    await store.audit.flush()

    for change in (
        {"kind": "other"},
        {"erased_at": 1.0},
        {"erased_at": 1.0, "customer_id": None, "argument_keys": None, "reason": None, "ok": None, "error": "x"},
    ):
        with pytest.raises(Exception, match=r"append-only|cannot write") as refused:
            await store._database.write(update(audit).values(**change), {})  # pyright: ignore[reportPrivateUsage]
        assert "append-only" in repr(refused.value.__cause__) + str(refused.value)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"customer_id": ""}, "customer_id"), ({"who": " "}, "who"), ({"recordings": "nowhere"}, "recordings")],
)
async def test_an_erasure_that_makes_no_sense_is_refused(store: SqlStore, wrong: dict[str, Any], message: str) -> None:
    given: Any = {"customer_id": "c", "tenant_id": None, "who": "dpo", **wrong}

    with pytest.raises(ConfigError, match=message):
        await store.erase(**given)


@pytest.mark.parametrize("database", DATABASES)
def test_the_command_says_what_it_did_and_exits_with_2_while_a_call_is_open(
    database: str, tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    url = new_database(database, tmp_path, request)

    async def prepare() -> None:
        async with open_store(url) as store:
            await Shop().executor(store).run(call("c-1", "book"), context())
            await store._database.write(text("UPDATE handrail_ledger SET state = 'unknown'"), {})  # pyright: ignore[reportPrivateUsage]

    asyncio.run(prepare())
    options = ["erase", "--store", url, "--customer", CANARY, "--who", "dpo"]

    assert main([*options, "--tenant", "t-1"]) == 2
    assert main([*options, "--no-tenant"]) == 0
    with pytest.raises(SystemExit):
        main(options)
    said = capsys.readouterr()
    assert "erased: 0 calls" in said.out
    assert "1 calls run or are in doubt" in said.err


@pytest.mark.parametrize(
    ("by", "who", "kept"),
    [("operator", "bo", {"who": "bo"}), ("operator", CANARY, {}), ("customer", CANARY, {})],
)
async def test_who_decided_stays_if_it_was_an_operator_and_not_the_customer(
    store: SqlStore, by: Any, who: str, kept: dict[str, str]
) -> None:
    asked = await store.approvals.ask(an_approval(by=by, customer_id=CANARY, tenant_id="t-1"))
    await store.approvals.approve(asked.token, by=by, who=who, reason="as they said")

    done = await store.erase(customer_id=CANARY, tenant_id="t-1", who="dpo")

    decided, *more = await store.audit.query(kind=ApprovalDecided)
    assert (more, decided.customer_id, decided.reason) == ([], None, None)
    assert {name: value for name, value in decided.detail.items() if name == "who"} == kept
    assert (decided.detail["token"], decided.detail["outcome"]) == (asked.token, "approved")
    assert (done.approvals, done.is_complete, done.audit_rows) == (1, True, 2)
    found = await store.approvals.get(asked.token)
    assert found is not None
    assert (found.state, found.who) == ("withdrawn", who if by == "operator" else None)


async def test_only_recordings_of_the_customers_sessions_in_the_folder_itself_are_removed(
    store: SqlStore, tmp_path: Path
) -> None:
    folder = tmp_path / "recordings"
    (folder / "s-2.jsonl").mkdir(parents=True)
    kept = [tmp_path / "s-0.jsonl", folder / "s-9.jsonl"]
    for file in (folder / "s-1.jsonl", *kept):
        file.write_text("{}")
    for session_id in ("s-1", "s-2", "../s-0", "s-3"):
        await store.approvals.ask(an_approval(session_id=session_id, customer_id=CANARY, tenant_id="t-1"))

    done = await store.erase(customer_id=CANARY, tenant_id="t-1", who="dpo", recordings=folder)

    assert done.recordings == 1
    assert [file.exists() for file in (folder / "s-1.jsonl", folder / "s-2.jsonl", *kept)] == [False, True, True, True]

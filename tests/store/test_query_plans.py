"""Every public query finds its rows by an index, in both databases: its cost does not grow with what is stored."""

import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert

from handrail.store import SqlStore, open_store
from handrail.store.tables import approvals, audit, ledger, messages, sessions
from handrail.store.transactions import Transaction
from tests.statements import counted
from tests.store.samples import an_item

ROWS = 2_000

Query = Callable[[SqlStore], Awaitable[Any]]

QUERIES: dict[str, tuple[Query, str]] = {
    "the audit": (lambda store: store.audit.query(), "audit_at"),
    "the audit since": (lambda store: store.audit.query(since=ROWS - 5.0), "audit_at"),
    "the audit of a session": (lambda store: store.audit.query(session_id="s-7"), "audit_session"),
    "the audit of a tenant": (lambda store: store.audit.query(tenant_id="t-7"), "audit_tenant"),
    "the audit of a call": (lambda store: store.audit.query(call_id="c-7"), "audit_call"),
    "the audit of a tool": (lambda store: store.audit.query(tool="tool-7"), "audit_tool"),
    "the audit of a kind": (lambda store: store.audit.query(kind="kind-7"), "audit_kind"),
    "the audit of a customer": (lambda store: store.audit.query(customer_id="cu-7"), "audit_customer"),
    "the audit of a tool of a customer with an error": (
        lambda store: store.audit.query(customer_id="cu-7", tool="tool-7", outcome="tool_timeout"),
        "audit",
    ),
    "the audit of an error": (lambda store: store.audit.query(outcome="tool_timeout"), "audit_error"),
    "the successes in the audit": (lambda store: store.audit.query(outcome="ok"), "audit_successes"),
    "the failures in the audit": (lambda store: store.audit.query(ok=False), "audit_failures"),
    "approvals by token": (lambda store: store.approvals.get("a-7"), "approvals"),
    "pending approvals": (lambda store: store.approvals.pending(), "approvals_pending"),
    "pending approvals of a session": (
        lambda store: store.approvals.pending(session_id="s-7"),
        "approvals_pending_session",
    ),
    "pending approvals of a tenant": (
        lambda store: store.approvals.pending(tenant_id="t-7"),
        "approvals_pending_tenant",
    ),
    "past approvals": (lambda store: store.approvals.history(), "approvals_created"),
    "past approvals of a session": (lambda store: store.approvals.history(session_id="s-7"), "approvals_session"),
    "past approvals of a tenant": (lambda store: store.approvals.history(tenant_id="t-7"), "approvals_tenant"),
    "past approvals of a customer": (lambda store: store.approvals.history(customer_id="cu-7"), "approvals_customer"),
    "past approvals of a tool": (lambda store: store.approvals.history(tool="tool-7"), "approvals_tool"),
    "past approvals of a person": (lambda store: store.approvals.history(who="w-7"), "approvals_who"),
    "what is known of a call": (
        lambda store: store.ledger.recall(session_id="s-7", call_id="c-7", key="key-7", full_key="key-7"),
        "ledger",
    ),
    "what is known of a call that is to be queued": (
        lambda store: store.work.put_new(an_item(), key="key-7", full_key="key-7"),
        "ledger",
    ),
    "calls in doubt": (lambda store: store.ledger.find_doubts(now=1.0), "ledger_unsettled"),
    "calls in doubt of a tenant": (lambda store: store.ledger.find_doubts(now=1.0, tenant_id="t-7"), "ledger"),
    "calls in doubt of a session": (lambda store: store.ledger.find_doubts(now=1.0, session_id="s-7"), "ledger"),
    "a conversation": (lambda store: store.sessions.load("none"), "messages"),
    "the conversations of a tenant": (lambda store: store.sessions.list_saved(tenant_id="t-7"), "sessions_tenant"),
    "older conversations of a tenant": (
        lambda store: store.sessions.list_saved(tenant_id="t-7", before=(1_500.0, "s-1")),
        "sessions_tenant",
    ),
    "the conversations without a tenant": (lambda store: store.sessions.list_saved(tenant_id=None), "sessions_tenant"),
    "the erasure": (lambda store: store.erase(customer_id="cu-7", tenant_id="t-7", who="me"), ""),
    "the purge": (lambda store: store.purge(before=1.0, audit_before=1.0), ""),
}


def rows_of(number: int) -> dict[Any, dict[str, Any]]:
    """A row of each table; every column that a query filters by has many values, and most rows are history."""
    ids = {"session_id": f"s-{number % 100}", "tenant_id": f"t-{number % 50}"}
    is_open = number % 100 == 0
    at = 2.0 + number
    return {
        ledger: {
            **{"identity": "i", "arguments_digest": "d", "arguments": "{}", "number": 0, "repeat": 0, "turn": 1},
            **ids,
            **{"call_id": f"c-{number}", "tool": "pay", "key": f"key-{number}", "sent_key": f"key-{number}"},
            **{"full_key": f"key-{number}", "full_number": 0, "repeat_until": at},
            **{
                "owner": "me",
                "customer_id": f"cu-{number % 50}",
                "claimed_at": at,
                "lease_until": at,
                "run_until": at,
                "settled_at": at,
            },
            "state": "unknown" if is_open else "committed",
        },
        approvals: {
            **{"digest": f"d-{number}", "by": "operator", "turn": 1, "arguments": {}, "question": "", "repeat": 0},
            **ids,
            **{"token": f"a-{number}", "tool": f"tool-{number % 50}", "customer_id": f"cu-{number % 50}"},
            **{"who": f"w-{number % 50}", "reason": "", "created_at": at, "expires_at": 1e12 if is_open else at},
            **{"state": "pending" if is_open else "used", "closed_at": None if is_open else at},
        },
        audit: {
            **ids,
            **{"writer": "w", "number": number, "at": at, "kind": f"kind-{number % 50}"},
            **{"tool": f"tool-{number % 50}", "call_id": f"c-{number}", "customer_id": f"cu-{number % 50}"},
            "ok": number % 200 == 0 if is_open else None,
            "error": "tool_timeout" if is_open and number % 200 else None,
        },
        sessions: {
            **ids,
            "session_id": f"s-{number}",
            "customer_id": f"cu-{number % 50}",
            "revision": 1,
            "saved_at": at,
            "state": b"{}",
        },
        messages: {"session_id": f"s-{number}", "position": 0, "message": b"{}"},
    }


@asynccontextmanager
async def explaining(store: SqlStore) -> AsyncGenerator[Callable[[str, Any], Awaitable[str]]]:
    """The plan of a statement of the store, in an analyzed database."""
    database = store._database
    if database.is_sqlite:
        with closing(sqlite3.connect(database.url.database or "")) as opened:
            opened.execute("ANALYZE")

            async def explain_sqlite(text: str, parameters: Any) -> str:
                return "\n".join(str(row[-1]) for row in opened.execute(f"EXPLAIN QUERY PLAN {text}", parameters))

            yield explain_sqlite
        return
    async with database._postgres.connect() as connection:
        await connection.exec_driver_sql("ANALYZE")
        await connection.exec_driver_sql("SET enable_seqscan = off")

        async def explain_postgres(text: str, parameters: Any) -> str:
            explained = await connection.exec_driver_sql(f"EXPLAIN {text}", tuple(parameters))
            return "\n".join(str(row[-1]) for row in explained)

        yield explain_postgres


def reads_whole_table(plan: str) -> bool:
    lines = [line.strip(" ->") for line in plan.splitlines()]
    return any(
        line.startswith("Seq Scan") or (line.startswith("SCAN handrail_") and "INDEX" not in line) for line in lines
    )


async def test_every_public_query_uses_an_index(url: str) -> None:
    wrong: dict[str, str] = {}
    async with open_store(url) as store:
        every = [rows_of(number) for number in range(ROWS)]

        def fill(transaction: Transaction) -> None:
            for table in every[0]:
                transaction.execute_many(insert(table), [item[table] for item in every])

        await store._database.run(fill)
        async with explaining(store) as explain:
            for name, (query, index) in QUERIES.items():
                with counted(store) as statements:
                    await query(store)
                plans = [
                    await explain(text, parameters)
                    for (text, _), parameters in zip(statements.sent, statements.parameters, strict=True)
                    if not text.startswith(("BEGIN", "INSERT INTO handrail_audit", "UPDATE handrail_audit", "PRAGMA"))
                ]
                assert plans
                if any(map(reads_whole_table, plans)) or f"handrail_{index}" not in "".join(plans):
                    wrong[name] = "\n".join(plans)

    assert wrong == {}


@pytest.mark.parametrize(
    ("filters", "index"),
    [
        ({"tenant_id": "t-7"}, "tenant"),
        ({"tenant_id": "t-7", "tool": "pay"}, "tenant"),
        ({"tenant_id": "t-7", "outcome": "tool_timeout"}, "tenant"),
        ({"session_id": "s-7", "tenant_id": "t-7"}, "session"),
        ({"customer_id": "cu-7", "tenant_id": "t-7"}, "customer"),
        ({"tool": "pay"}, "tool"),
        ({}, "kind"),
    ],
)
async def test_sqlite_finds_calls_by_what_few_rows_have(filters: dict[str, Any], index: str, tmp_path: Path) -> None:
    """It has no figures about its tables, and would take any of several indexes: that of a kind has the most rows."""
    async with open_store(f"sqlite:///{tmp_path}/plans.db") as store:
        with counted(store) as statements:
            await store.audit.query(kind="call_finished", limit=50, **filters)
        ((text, _),), (parameters,) = statements.sent, statements.parameters
        with closing(sqlite3.connect(tmp_path / "plans.db")) as opened:
            plan = "\n".join(str(row[-1]) for row in opened.execute(f"EXPLAIN QUERY PLAN {text}", parameters))
    assert f"handrail_audit_{index} " in plan

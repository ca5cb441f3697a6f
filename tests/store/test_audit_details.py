"""What a row says beside its call: how a result came about, what the application logged, and what was decided."""

import asyncio
import threading
from typing import Any

import pytest
from msgspec import structs

from handrail import MediaPart, Policy, Rule, ToolCall, ToolResult
from handrail.core import ApprovalRequested, CallFinished, CallStarted, LogEvent
from handrail.store import SqlStore, audit_rows, open_store
from tests.execute.helpers import Bus
from tests.store.samples import an_approval
from tests.store.test_audit import a_call, a_context, an_executor, facts
from tests.store.test_audit_writer import an_event, expected, tools

PICTURE = MediaPart(mime_type="image/png", data=b"\x89PNG")


@pytest.mark.parametrize(
    ("values", "detail"),
    [
        ({}, {}),
        ({"origin": "replayed"}, {"origin": "replayed"}),
        ({"recorded": False}, {"recorded": False}),
        ({"silent": True}, {"silent": True}),
    ],
)
async def test_a_result_that_is_not_like_most_says_how(
    store: SqlStore, values: dict[str, Any], detail: dict[str, Any]
) -> None:
    result = ToolResult(output="done", **{"origin": "run", "recorded": True, **values})
    store.audit(CallFinished(at=1.0, session_id="s-1", call=a_call(), result=result))

    (row,) = await facts(store)
    assert row.detail == {**detail, "slow": False}


async def test_what_the_application_logs_is_audited_without_the_field_that_cannot_be_looked_at(store: SqlStore) -> None:
    store.audit(LogEvent(at=1.0, session_id="s-1", name="order_checked", fields={"body": b"\xff", "order": 7}))

    (row,) = await facts(store)
    assert (row.kind, row.detail) == ("order_checked", {"body": "[redacted]", "order": 7})


async def test_a_result_with_a_picture_says_so_and_one_without_does_not(store: SqlStore) -> None:
    for media in ((), (PICTURE,)):
        store.audit(
            CallFinished(at=1.0, session_id="s-1", call=a_call(), result=ToolResult(output="done", media=media))
        )

    plain, pictured = await facts(store)
    assert "media" not in plain.detail
    assert len(pictured.detail["media"]) == 1
    assert "PNG" not in str(pictured.detail)


@pytest.mark.parametrize("call", [None, ToolCall(id="c-9", name="pay", arguments_json='{"invoice": "i-1"}')])
@pytest.mark.parametrize("fields", [{}, {"order": 7}])
async def test_what_the_application_logs_has_its_name_its_fields_and_its_call(
    store: SqlStore, call: ToolCall | None, fields: dict[str, Any]
) -> None:
    store.audit(LogEvent(at=1.0, session_id="s-1", name="order_checked", fields=fields, call=call))

    (row,) = await facts(store)
    assert (row.kind, row.detail) == ("order_checked", fields)
    assert (row.call_id, row.tool) == (("c-9", "pay") if call else (None, None))
    assert row.argument_keys == (("invoice",) if call else None)


async def test_a_question_that_the_audit_hears_of_twice_is_one_row(store: SqlStore) -> None:
    bus = Bus()
    store.approvals.events.subscribe(bus)
    await store.approvals.ask(an_approval())
    (asked,) = bus.heard
    store.audit(asked)
    assert len(await facts(store, kind=ApprovalRequested)) == 1

    store.audit(structs.replace(asked))
    assert len(await facts(store, kind=ApprovalRequested)) == 2  # One that is only equal is another event.


async def test_a_long_argument_of_a_claimed_call_is_written_redacted(url: str) -> None:
    text = f"password=hunter2 {'x ' * 40_000}"
    async with open_store(url, audit_values=True) as store:
        executor = an_executor(store, policy=Policy([Rule.allow("pay")]))
        sent = ToolCall(id="c-1", name="pay", arguments_json=f'{{"invoice": "{text}", "amount": 1}}')
        assert (await executor.run(sent, a_context())).ok

        started, *_ = await facts(store, call_id="c-1")
    assert "x x x" in str(started.arguments)
    assert "hunter2" not in str(started.arguments)


async def test_names_are_remembered_up_to_a_limit(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_rows, "_MAX_CACHED", 2)
    builder: Any = store.audit._row_builder
    kept: list[int] = []
    for name in ("a", "b", "c", "d", "e"):
        assert builder._redact_name(name) == name
        kept.append(len(builder._cache))

    assert kept == [1, 2, 1, 2, 1]


# Before it is open, and after its loop.


async def test_what_happened_before_the_database_was_open_is_written_then(url: str) -> None:
    store = open_store(url, audit_interval=0)
    store.audit(an_event(1))
    async with store:
        await store.audit.flush(timeout=20)
        assert (await tools(store), store.audit.waiting) == (expected(1), 0)


async def test_as_many_rows_wait_as_may_and_the_next_is_dropped(url: str) -> None:
    store = open_store(url, audit_batch_size=2, audit_max_waiting=3)
    for number in range(4):
        store.audit(an_event(number))
    assert (store.audit.waiting, store.audit.dropped) == (3, 1)

    async with store:
        await store.audit.flush(timeout=20)
        assert await tools(store) == expected(0, 1, 2)
    store.audit(an_event(5))
    assert store.audit.dropped == 2  # It is closed.


def test_a_loop_that_ends_writes_what_waits_once_and_the_next_goes_on(tmp_path: Any) -> None:
    store = open_store(f"sqlite:///{tmp_path}/handrail.db", audit_interval=60.0)

    async def report(number: int) -> list[str | None]:
        await store.open()
        store.audit(an_event(number))
        return await tools(store)

    def run(number: int) -> None:
        found.append(asyncio.run(report(number)))

    found: list[list[str | None]] = []
    for number in range(3):
        thread = threading.Thread(target=run, args=(number,))
        thread.start()
        thread.join(60)
        assert not [item for item in threading.enumerate() if item.name.startswith("handrail:sqlite")]
    store.audit(an_event(3))  # Between two event loops: it waits for the next one.

    assert found == [expected(), expected(0), expected(0, 1)]
    assert (store.audit.written, store.audit.waiting, store.audit.dropped) == (3, 1, 0)
    asyncio.run(store.audit.flush(timeout=20))
    assert (store.audit.written, store.audit.waiting, store.audit.dropped) == (4, 0, 0)


def test_a_loop_that_ends_writes_long_values_redacted(tmp_path: Any) -> None:
    store = open_store(f"sqlite:///{tmp_path}/handrail.db", audit_interval=60.0, audit_values=True)
    sent = ToolCall(id="c-1", name="pay", arguments_json=f'{{"note": "password=hunter2 {"x " * 40_000}"}}')

    async def report() -> None:
        await store.open()
        store.audit(CallStarted(at=1.0, session_id="s", call=sent))

    asyncio.run(report())
    (row,) = asyncio.run(store.audit.query())
    assert "x x x" in str(row.arguments)
    assert "hunter2" not in str(row.arguments)

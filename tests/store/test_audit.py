"""The audit has one row for each event, with ids, names and codes, and no value that nobody asked for."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from handrail import Decision, Executor, Policy, Rule, ToolCall, ToolContext, ToolResult, tool
from handrail.core import (
    CallFinished,
    CallStarted,
    CircuitBreakerChanged,
    Event,
    Progress,
    Redactor,
    ToolsBuilt,
    TurnPlanned,
)
from handrail.errors import ConfigError, ToolError
from handrail.store import SqlStore, open_store
from handrail.store.tables import metadata


@tool
async def pay(invoice: str, amount: int) -> str:
    """Pay an invoice."""
    if amount < 0:
        raise ToolError("No.", code="too_little")
    return f"paid {invoice}"


@tool(read_only=True)
async def look_up(name: str) -> dict[str, str]:
    """Look something up."""
    return {"name": name}


def a_call(id_: str = "c-1", name: str = "pay", arguments: str = '{"invoice":"i-1","amount":3}') -> ToolCall:
    return ToolCall(
        id=id_, name=name, arguments_json=arguments, response_id="r-1", item_id="it-1", guideline_ids=("g-1", "g-2")
    )


def a_context(**values: Any) -> ToolContext[Any]:
    return ToolContext(**{"session_id": "s-1", "tenant_id": "t-1", **values})


def an_executor(store: SqlStore, **options: Any) -> Executor:
    return Executor(
        [pay, look_up],
        policy=options.pop("policy", Policy([Rule.allow("pay", name="paying is allowed", source="rules.yaml:3")])),
        store=store,
        **options,
    )


async def facts(store: SqlStore, **wanted: Any) -> list[Any]:
    await store.audit.flush()
    return await store.audit.query(**wanted)


# What is in a row.


async def test_a_call_is_found_from_its_start_to_its_result(store: SqlStore) -> None:
    before = time.time()

    result = await an_executor(store).run(a_call(), a_context())

    rows = await facts(store, session_id="s-1")
    started = next(row for row in rows if row.kind == "call_started")
    finished = rows[-1]
    assert finished.kind == "call_finished"
    for row in (started, finished):
        assert (row.session_id, row.tenant_id, row.call_id, row.tool) == ("s-1", "t-1", "c-1", "pay")
        assert (row.response_id, row.item_id, row.guideline_ids) == ("r-1", "it-1", ("g-1", "g-2"))
        assert row.argument_keys == ("invoice", "amount")
        assert before <= row.at <= time.time()
    assert (finished.ok, finished.error) == (True, None)
    assert finished.duration_ms == result.duration_ms
    assert finished.output_length == len("paid i-1")
    assert (finished.action, finished.rule, finished.source) == ("allow", "paying is allowed", "rules.yaml:3")
    assert finished.detail["slow"] is False


async def test_a_failure_has_its_code(store: SqlStore) -> None:
    await an_executor(store).run(a_call(arguments='{"invoice":"i-1","amount":-1}'), a_context())

    (finished,) = await facts(store, kind=CallFinished)
    assert (finished.ok, finished.error) == (False, "too_little")


async def test_a_refusal_says_who_has_to_agree_and_why(store: SqlStore) -> None:
    policy = Policy([Rule.ask("pay", by="operator", reason="it is a lot")])

    await an_executor(store, policy=policy).run(a_call(), a_context())

    (decision,) = await facts(store, kind="decision_made")
    assert (decision.action, decision.by, decision.reason) == ("ask", "operator", "it is a lot")
    assert decision.rule.startswith("ask('pay'")
    assert decision.detail == {"observed": False}


async def test_a_call_that_came_again_is_noted_as_ignored(store: SqlStore) -> None:
    executor = an_executor(store)
    await executor.run(a_call(), a_context())
    await executor.run(a_call(), a_context())

    (ignored,) = await facts(store, kind="call_ignored")
    assert ignored.reason == "already_executed"


@pytest.mark.parametrize("arguments", ['{"invoice":"\ud800"}', "{", "[1]", '"x"'])
async def test_arguments_that_are_no_object_have_no_keys(store: SqlStore, arguments: str) -> None:
    await an_executor(store).run(a_call(arguments=arguments), a_context())

    (finished,) = await facts(store, kind="call_finished")
    assert (finished.argument_keys, finished.error) == (None, "tool_args_parse_error")


async def test_empty_arguments_have_no_keys_but_are_an_object(store: SqlStore) -> None:
    await an_executor(store).run(a_call(arguments=""), a_context())

    assert (await facts(store))[-1].argument_keys == ()


OTHERS: dict[str, tuple[Callable[..., Event], dict[str, Any], dict[str, Any]]] = {
    "breaker": (CircuitBreakerChanged, {"tool_name": "pay", "state": "open"}, {"tool": "pay", "reason": "open"}),
    "progress": (
        Progress,
        {"call_id": "c", "tool_name": "pay", "message": "half of it", "fraction": 0.5},
        {"call_id": "c", "tool": "pay", "detail": {"fraction": 0.5}},
    ),
    "tools": (
        ToolsBuilt,
        {"tool_names": ("a", "b"), "failed": ("c",)},
        {"detail": {"tool_names": ["a", "b"], "failed": ["c"]}},
    ),
    "turn": (
        TurnPlanned,
        {"turn": 3, "guideline_ids": ("g",), "call_ids": ("c",), "model_calls": 2, "iterations": 1, "trace": ("1 g",)},
        {
            "guideline_ids": ("g",),
            "detail": {"turn": 3, "call_ids": ["c"], "model_calls": 2, "iterations": 1, "trace": ["1 g"]},
        },
    ),
}


@pytest.mark.parametrize("case", OTHERS)
async def test_the_other_events_have_their_names_and_numbers(store: SqlStore, case: str) -> None:
    kind, fields, expected = OTHERS[case]

    store.audit(kind(at=1.5, session_id="s", **fields))

    (row,) = await facts(store)
    assert {name: getattr(row, name) for name in expected} == expected
    assert row.at == 1.5


class Bell(Event, frozen=True, kw_only=True):
    """An event of somebody's own."""

    times: int
    loud: bool
    words: str
    volume: float = float("inf")


async def test_of_an_event_that_is_not_known_only_numbers_and_flags_are_written(store: SqlStore) -> None:
    store.audit(Bell(at=1.0, session_id="s", times=3, loud=True, words="a secret"))

    (row,) = await facts(store, kind=Bell)
    assert (row.kind, row.detail) == ("bell", {"times": 3, "loud": True, "volume": None})


# Whose values are in it.

CANARY = "canary-7d1f"
CARD = "4111 1111 1111 1111"


@tool
async def remember(password: SecretStr, note: str, nested: dict[str, str]) -> dict[str, str]:
    """Remember a note."""
    return {"note": note, "token": CANARY}


@tool
async def refuse(note: str) -> str:
    """Refuse a note."""
    raise ToolError(f"I will not keep {note}.")


def objection(arguments: dict[str, Any], context: ToolContext[Any]) -> None:
    raise ToolError(f"not {arguments['note']}")


@tool(permission_check=objection)
async def object_to(note: str) -> str:
    """Object to a note."""
    return note


def with_canaries(words: str) -> list[ToolCall]:
    secrets = f'{{"password":"{CANARY}","note":"{words}","nested":{{"api_key":"{CANARY}"}}}}'
    return [
        a_call("1", "remember", secrets),
        a_call("2", "refuse", f'{{"note":"{words}"}}'),
        a_call("3", "object_to", f'{{"note":"{words}"}}'),
        a_call("4", "remember", f'{{"password":"{CANARY}","note":3}}'),
        a_call("5", "pay_" + CARD, f'{{"{CARD}":1}}'),
    ]


async def everything(url: str) -> str:
    """Every value of every table, as text."""
    engine = create_async_engine(url)
    async with engine.connect() as connection:
        rows = [row for table in metadata.sorted_tables for row in await connection.execute(table.select())]
    await engine.dispose()
    return repr(rows)


async def run_canaries(url: str, words: str, **options: Any) -> str:
    async with open_store(url, **options) as store:
        executor = Executor(
            [remember, refuse, object_to],
            policy=Policy([Rule.allow("remember", "refuse", "object_to")]),
            store=store,
        )
        for call in with_canaries(words):
            await executor.run(call, a_context())
        asked = a_call("6", "remember", with_canaries(words)[0].arguments_json)
        await Executor([remember], store=store).run(asked, a_context(session_id="s-2"))
        for approval in await store.approvals.pending():  # Whole until somebody has decided, redacted from then on.
            await store.approvals.deny(approval.token, by=approval.by, who=approval.customer_id or "ann", reason="no")
        store.audit(Progress(at=1.0, session_id="s", call_id="c", tool_name="t", message=words))
    return await everything(url)


async def test_no_value_of_an_argument_and_no_output_is_in_the_audit(url: str) -> None:
    async with open_store(url) as store:
        executor = Executor(
            [remember, refuse, object_to],
            policy=Policy([Rule.allow("remember", "refuse", "object_to")]),
            listeners=[store.audit],
        )
        for call in with_canaries("ordinary words"):
            await executor.run(call, a_context())
        store.audit(Progress(at=1.0, session_id="s", call_id="c", tool_name="t", message="ordinary words"))
        assert len(await facts(store)) > 8

    written = await everything(url)

    assert "password" in written
    assert "ordinary words" not in written
    assert CANARY not in written
    assert CARD not in written


@pytest.mark.parametrize("values", [False, True])
async def test_no_secret_is_in_any_table(url: str, values: bool) -> None:
    written = await run_canaries(url, CARD, audit_values=values)

    assert "password" in written
    assert CANARY not in written
    assert CARD not in written


async def test_values_are_written_redacted_where_somebody_asked_for_them(url: str) -> None:
    async with open_store(url, audit_values=True, redactor=Redactor(fields=["invoice"])) as store:
        await an_executor(store).run(a_call(), a_context())
        await an_executor(store).run(a_call("c-2", arguments='{"broken'), a_context())
        store.audit(Progress(at=time.time(), session_id="s-1", call_id="c", tool_name="pay", message="half of it"))

        finished, broken, progress = [row for row in await facts(store) if row.kind in ("call_finished", "progress")]

    assert finished.arguments == {"invoice": "[redacted]", "amount": 3}
    assert finished.output == "paid i-1"
    assert broken.arguments == '{"broken'
    assert "tool_args_parse_error" in broken.output
    assert progress.detail["message"] == "half of it"


HOSTILE = "\0\ud800 \N{PILE OF POO} " + "x" * 5_000


@pytest.mark.parametrize("values", [False, True])
async def test_an_event_is_written_whatever_is_in_it(url: str, values: bool) -> None:
    call = ToolCall(
        id=HOSTILE,
        name=HOSTILE,
        arguments_json='{"\\u0000": "\\u0000", "a": 1e999, "b": ' + "9" * 400 + "}",
        response_id=HOSTILE,
        guideline_ids=(HOSTILE,) * 1_000,
    )
    result = ToolResult(output={"x": HOSTILE, "y": float("nan")}, duration_ms=float("nan"))
    decision = Decision(action="deny", rule=HOSTILE, source=HOSTILE, reason=HOSTILE)
    async with open_store(url, audit_values=values) as store:
        for number in (float("nan"), float("inf"), 10**30, -1.0):
            store.audit(CallStarted(at=number, session_id=HOSTILE, tenant_id=HOSTILE, call=call))
        store.audit(CallFinished(at=1.0, session_id="", call=call, result=result, decision=decision))

        assert len(await facts(store)) == 5
        assert store.audit.dropped == 0


# Only growing.


@pytest.mark.parametrize("change", ["UPDATE handrail_audit SET ok = NULL", "DELETE FROM handrail_audit"])
async def test_a_row_is_neither_changed_nor_deleted(store: SqlStore, url: str, change: str) -> None:
    store.audit(CircuitBreakerChanged(at=1.0, session_id="s", tool_name="pay", state="open"))
    before = await facts(store)
    engine = create_async_engine(url)

    with pytest.raises(DBAPIError, match="append-only"):
        async with engine.begin() as connection:
            await connection.execute(text(change))

    await engine.dispose()
    assert await facts(store) == before != []


@pytest.mark.postgres
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
async def test_the_table_is_not_truncated(store: SqlStore, url: str) -> None:
    engine = create_async_engine(url)
    with pytest.raises(DBAPIError, match="append-only"):
        async with engine.begin() as connection:
            await connection.execute(text("TRUNCATE handrail_audit"))
    await engine.dispose()


# Asking it.


@pytest.fixture
async def full(store: SqlStore) -> SqlStore:
    """A store with some calls in it."""
    for number in range(8):
        store.audit(
            CallFinished(
                at=100.0 + number,
                session_id=f"s-{number % 2}",
                tenant_id=f"t-{number // 4}",
                customer_id=f"cu-{number}",
                call=ToolCall(id=f"c-{number}", name="pay" if number < 6 else "sell"),
                result=ToolResult(error="no" if number == 7 else None),
            )
        )
    store.audit(CircuitBreakerChanged(at=99.0, session_id="", tool_name="pay", state="open"))
    await store.audit.flush()
    return store


QUESTIONS: dict[str, tuple[dict[str, Any], list[int]]] = {
    "session": ({"session_id": "s-1"}, [1, 3, 5, 7]),
    "tenant": ({"tenant_id": "t-1"}, [4, 5, 6, 7]),
    "tool": ({"tool": "sell"}, [6, 7]),
    "call": ({"call_id": "c-3"}, [3]),
    "customer": ({"customer_id": "cu-2"}, [2]),
    "ok": ({"ok": True}, [0, 1, 2, 3, 4, 5, 6]),
    "not ok": ({"ok": False}, [7]),
    "a good outcome": ({"outcome": "ok"}, [0, 1, 2, 3, 4, 5, 6]),
    "an error": ({"outcome": "tool_execution_failed"}, [7]),
    "an outcome of none": ({"outcome": "ok", "ok": False}, []),
    "since": ({"since": 105.0}, [5, 6, 7]),
    "until": ({"until": 102.0, "kind": "call_finished"}, [0, 1]),
    "kind": ({"kind": CallFinished}, list(range(8))),
    "several": ({"session_id": "s-1", "tenant_id": "t-1", "tool": "pay"}, [5]),
    "the newest": ({"limit": 3}, [5, 6, 7]),
    "nothing": ({"session_id": "s-9"}, []),
}


@pytest.mark.parametrize("question", QUESTIONS)
async def test_rows_are_found_by_what_they_say_in_the_order_of_their_time(full: SqlStore, question: str) -> None:
    wanted, expected = QUESTIONS[question]

    found = await full.audit.query(**wanted)

    assert [row.call_id for row in found] == [f"c-{number}" for number in expected]


async def test_the_rows_of_one_writer_are_numbered_without_gaps(full: SqlStore) -> None:
    rows = await full.audit.query()

    assert sorted(row.number for row in rows) == list(range(9))
    assert len({row.writer for row in rows}) == 1


async def test_the_smallest_batch_is_one_row_that_is_written_at_once(url: str) -> None:
    async with open_store(url, audit_batch_size=1, audit_max_waiting=1, audit_interval=0) as store:
        store.audit(CircuitBreakerChanged(at=99.0, session_id="", tool_name="pay", state="open"))
        await store.audit.flush()
        assert len(await store.audit.query()) == 1


@pytest.mark.parametrize("wrong", [{"audit_batch_size": 0}, {"audit_interval": -1.0}, {"audit_max_waiting": 5}])
async def test_a_batch_that_cannot_be_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="audit"):
        async with open_store(f"sqlite+aiosqlite:///{tmp_path}/executor.db", **wrong):
            pass

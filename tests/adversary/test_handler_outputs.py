"""What a handler returns is checked once, before it is recorded: nothing is lost, and nothing steers the executor."""

import asyncio
import functools
import itertools
import json
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from handrail import Control, Decision, Executor, Failure, ToolContext, ToolError, ToolFlags, ToolResult, tool
from handrail.core import Approval
from handrail.execute import MemoryLedger, RetryPolicy
from handrail.store import open_store
from tests.execute.helpers import ALLOWED, at, call, code_of


def wrapped(function: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    """A sync wrapper, as decorators that know nothing of async functions make them."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


async def run_twice(handler: Callable[[], Any], **options: Any) -> tuple[ToolResult, ToolResult, ToolResult]:
    """The result of a call, of the same call again, and of an equal one."""
    executor = Executor([tool(name="act", **options)(handler)], policy=ALLOWED)
    first, again = [await executor.run(call("act"), at()) for _ in range(2)]
    return first, again, await executor.run(call("act", "c-2"), at())


# Awaitables and iterators


@pytest.mark.parametrize("options", [{}, {"inline": True}, {"read_only": True}, {"read_only": True, "inline": True}])
async def test_the_body_of_an_async_function_behind_a_sync_wrapper_runs(options: Any) -> None:
    ran: list[int] = []

    async def act() -> str:
        await asyncio.sleep(0)
        ran.append(1)
        return "done"

    first, _, _ = await run_twice(wrapped(act), **options)

    assert first.output == "done"
    assert len(ran) == (2 if "read_only" in options else 1)


async def test_a_sync_wrapper_around_a_failure_and_around_a_hang_is_reported_as_such() -> None:
    async def fail() -> str:
        raise ToolError("The account is closed.", code="closed")

    async def hang() -> str:
        await asyncio.sleep(60)
        return "never"

    assert code_of((await run_twice(wrapped(fail)))[0]) == "closed"
    assert code_of((await run_twice(wrapped(hang), timeout=0.05))[0]) == "outcome_unknown"
    assert code_of((await run_twice(wrapped(hang), timeout=0.05, read_only=True))[0]) == "tool_timeout"


async def agen() -> Any:
    for number in range(3):
        yield number


async def later(value: Any) -> Any:
    await asyncio.sleep(0)
    return value


@dataclass
class Found:
    rows: Any


class Model(BaseModel):
    rows: Any


SEQUENCES: dict[str, tuple[Callable[[], Any], Any]] = {
    "generator": (lambda: (n for n in range(3)), [0, 1, 2]),
    "map": (lambda: map(str, range(2)), ["0", "1"]),
    "in a dict": (lambda: {"rows": filter(None, [0, 1])}, {"rows": [1]}),
    "in a list": (lambda: [map(list, [(1, 2)])], [[[1, 2]]]),
    "generator of generators": (lambda: (iter([n]) for n in range(2)), [[0], [1]]),
    "async generator": (agen, [0, 1, 2]),
    "async generator in a dict": (lambda: {"rows": agen()}, {"rows": [0, 1, 2]}),
    "awaitable in a list": (lambda: [later(1), 2], [1, 2]),
    "awaitable of an awaitable": (lambda: later(later("x")), "x"),
    "awaitable of a generator": (lambda: later(iter([1])), [1]),
    "dataclass": (lambda: Found(iter([1])), {"rows": [1]}),
    "model": (lambda: Model(rows=iter([1])), {"rows": [1]}),
    "result": (lambda: ToolResult(output=iter([1])), [1]),
}


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("kind", SEQUENCES)
async def test_iterators_and_awaitables_are_collected_before_anything_is_recorded(
    kind: str, read_only: bool, is_async: bool
) -> None:
    make, expected = SEQUENCES[kind]

    async def act() -> Any:
        return make()

    results = await run_twice(act if is_async else lambda: make(), read_only=read_only)

    assert [result.output for result in results] == [expected] * 3
    plain = ToolResult(output=expected).for_model()
    assert all(result.for_model().endswith(plain) for result in results)


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(
    "make", [itertools.count, lambda: {"rows": itertools.repeat(1)}, lambda: ToolResult(output=[itertools.count()])]
)
async def test_an_iterator_without_an_end_is_refused_and_the_effect_is_recorded(make: Any, is_async: bool) -> None:
    ran: list[int] = []

    def run() -> Any:
        ran.append(1)
        return make()

    async def act() -> Any:
        return run()

    first, again, _ = await run_twice(act if is_async else run, max_output_chars=1_000)

    assert code_of(first) == "tool_execution_failed"
    assert "ran, but it returned an iterator with more than 1,000 items" in first.for_model()
    assert (again.error, len(ran)) == (first.error, 1)


async def test_a_generator_that_fails_on_its_way_leaves_the_outcome_unknown() -> None:
    def rows() -> Any:
        yield 1
        raise ConnectionError("lost")

    assert code_of((await run_twice(lambda: rows()))[0]) == "outcome_unknown"
    assert code_of((await run_twice(lambda: rows(), read_only=True))[0]) == "tool_execution_failed"


async def test_the_iterators_of_verify_and_of_a_host_are_collected_too() -> None:
    async def verify(arguments: Any, context: Any) -> Any:
        return map(str, [1])

    async def lost() -> None:
        raise ConnectionError("lost")

    first, _, _ = await run_twice(lost, verify=verify)
    executor = Executor(policy=ALLOWED, declared={"look": ToolFlags(read_only=True)})
    guarded = [await executor.guard(call(name), at(), lambda: iter([1])) for name in ("look", "pay")]

    assert first.output == ["1"]
    assert [item.output for item in guarded] == [[1], [1]]


async def test_a_tool_that_is_run_by_hand_has_the_same_boundary() -> None:
    @tool(max_output_chars=100)
    def act(endless: bool) -> Any:
        """Act."""
        return itertools.count() if endless else ToolResult(output=iter([1]), metadata="note")  # pyright: ignore[reportArgumentType]

    result = await act.execute({"endless": False}, at())
    assert (result.output, result.metadata) == ([1], {})
    refused = await act.execute({"endless": True}, at())
    assert refused.error is not None
    assert "more than 100 items" in refused.error.message


# Fields of another type, and marks


HOSTILE: dict[str, tuple[Callable[[], Any], Any]] = {
    "metadata": (lambda: ToolResult(output="paid", metadata="note"), "paid"),  # pyright: ignore[reportArgumentType]
    "keys of metadata": (lambda: ToolResult(output="paid", metadata={1: object()}), "paid"),  # pyright: ignore[reportArgumentType]
    "mode": (lambda: ToolResult(output="paid", control=Control(mode="handover")), "paid"),  # pyright: ignore[reportArgumentType]
    "unhashable mode": (lambda: ToolResult(output="paid", control=Control(mode=[])), "paid"),  # pyright: ignore[reportArgumentType]
    "lifespan": (lambda: ToolResult(output="paid", control=Control(lifespan="day")), "paid"),  # pyright: ignore[reportArgumentType]
    "control": (lambda: ToolResult(output="paid", control="manual"), "paid"),  # pyright: ignore[reportArgumentType]
    "ids": (lambda: ToolResult(output="paid", call_id=5, tool_name=None, duration_ms="x"), "paid"),  # pyright: ignore[reportArgumentType]
    "origin": (lambda: ToolResult(output="paid", origin="replayed", recorded=False, silent=True, notice="x"), "paid"),
    "decision": (lambda: ToolResult(output="paid", decision=Decision(action="deny")), "paid"),
    "approval": (lambda: ToolResult(output="paid", approval=APPROVAL), "paid"),
}
APPROVAL = Approval(
    token="t",
    tool="act",
    digest="",
    session_id="s-1",
    by="customer",
    turn=1,
    arguments={},
    created_at=0,
    expires_at=1e12,
)


@pytest.mark.parametrize("where", ["memory", "sql"])
@pytest.mark.parametrize("kind", HOSTILE)
async def test_a_result_with_fields_of_another_type_keeps_its_output_and_replays(
    kind: str, where: str, tmp_path: Path
) -> None:
    make, expected = HOSTILE[kind]
    ran: list[int] = []

    @tool
    async def act() -> Any:
        """Act."""
        ran.append(1)
        return make()

    async with open_store(f"sqlite+aiosqlite:///{tmp_path}/a.db") as store:
        executor = Executor([act], policy=ALLOWED, ledger=store.ledger if where == "sql" else MemoryLedger())
        first = await executor.run(call("act"), at())
        again = await executor.run(call("act"), at())

    assert (first.output, again.output, len(ran)) == (expected, expected, 1)
    assert (first.origin, first.recorded, first.silent, first.notice) == ("run", True, False, "")
    assert (first.approval, first.call_id, first.tool_name) == (None, "c-1", "act")
    assert first.decision is not None
    assert first.decision.action == "allow"
    assert (again.origin, again.control) == ("replayed", None)
    assert type(first.metadata) is dict


FAILURES: dict[str, Callable[[], Any]] = {
    "raised": lambda: raise_(ToolError("No.", code=404)),  # pyright: ignore[reportArgumentType]
    "returned": lambda: ToolResult(error=Failure(code=404, message="No.", retryable=1)),  # pyright: ignore[reportArgumentType]
}


def raise_(error: Exception) -> Any:
    raise error


@pytest.mark.parametrize("where", ["memory", "sql"])
@pytest.mark.parametrize("kind", FAILURES)
async def test_a_failure_with_a_code_that_is_no_text_does_not_poison_its_key(
    kind: str, where: str, tmp_path: Path
) -> None:
    answers = [FAILURES[kind], lambda: "paid"]

    @tool
    async def act() -> Any:
        """Act."""
        return answers.pop(0)()

    async with open_store(f"sqlite+aiosqlite:///{tmp_path}/a.db") as store:
        executor = Executor([act], policy=ALLOWED, ledger=store.ledger if where == "sql" else MemoryLedger())
        first = await executor.run(call("act", "c-1"), at())
        again = await executor.run(call("act", "c-1"), at())
        other = await executor.run(call("act", "c-2"), at())

    assert (code_of(first), code_of(again)) == ("404", "404")
    assert other.output == "paid"


@pytest.mark.parametrize("where", ["memory", "sql"])
async def test_a_failure_keeps_its_code_its_text_and_its_output(where: str, tmp_path: Path) -> None:
    @tool
    async def act() -> ToolResult:
        """Act."""
        return ToolResult(error="missing_param", output={"missing": ["amount"]})

    async with open_store(f"sqlite+aiosqlite:///{tmp_path}/a.db") as store:
        executor = Executor([act], policy=ALLOWED, ledger=store.ledger if where == "sql" else MemoryLedger())
        results = [await executor.run(call("act"), at()) for _ in range(2)]

    for result in results:
        assert result.output == {"missing": ["amount"]}
        assert json.loads(result.for_model()) == {
            "ok": False,
            "error": "tool_execution_failed",
            "tool": "act",
            "message": "missing_param",
            "output": {"missing": ["amount"]},
        }


@pytest.mark.parametrize("raised", [True, False])
@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("approval_required", "tool_execution_failed"),
        ("refused_by_hook", "tool_execution_failed"),
        ("duplicate_call", "tool_execution_failed"),
        ("cancelled", "tool_execution_failed"),
        ("tool_not_found", "tool_execution_failed"),
        ("outcome_unknown", "outcome_unknown"),
        ("in_progress", "outcome_unknown"),
        ("rate_limited", "rate_limited"),
        ("no_such_account", "no_such_account"),
    ],
)
async def test_a_handler_cannot_say_what_the_executor_did_with_a_call(code: str, told: str, raised: bool) -> None:
    async def act() -> Any:
        if raised:
            raise ToolError("It says so.", code=code)
        return ToolResult(error=Failure(code=code, message="It says so."))

    first, again, _ = await run_twice(act)

    assert code_of(first) == told
    assert code_of(again) == told
    assert first.approval is None


# Replays


@pytest.mark.parametrize("where", ["memory", "sql"])
@pytest.mark.parametrize(
    "output",
    [{"a": [1, 2.0, None, True]}, [], {}, None, 0, 1.5, True, False, "", "text", '{"a": 1}', "null", "5", 10**30],
    ids=repr,
)
async def test_a_replay_has_the_value_and_the_type_of_the_original(output: Any, where: str, tmp_path: Path) -> None:
    @tool
    async def act() -> Any:
        """Act."""
        return output

    async with open_store(f"sqlite+aiosqlite:///{tmp_path}/a.db") as store:
        executor = Executor([act], policy=ALLOWED, ledger=store.ledger if where == "sql" else MemoryLedger())
        first = await executor.run(call("act", "c-1"), at())
        again = await executor.run(call("act", "c-1"), at())
        equal = await executor.run(call("act", "c-2"), at())

    assert [json.dumps(item.output) for item in (first, again, equal)] == [json.dumps(output)] * 3
    assert {type(item.output) for item in (first, again, equal)} == {type(output)}
    assert again.for_model() == first.for_model()
    notice, _, rest = equal.for_model().partition("\n")
    assert notice.startswith("[Already done at ")
    assert rest == ("" if output is None else first.for_model())


@pytest.mark.parametrize("output", [float("nan"), date(2030, 1, 31), Decimal("1.50")], ids=repr)
async def test_what_json_has_as_a_string_is_one_from_the_start(output: Any) -> None:
    async def act() -> Any:
        return output

    first, again, _ = await run_twice(act)

    assert type(first.output) is str
    assert (again.output, again.for_model()) == (first.output, first.for_model())


async def test_a_record_that_cannot_be_read_does_not_hide_that_the_call_took_effect(tmp_path: Path) -> None:
    ran: list[int] = []

    @tool
    async def act() -> str:
        """Act."""
        ran.append(1)
        return "paid"

    url = f"sqlite+aiosqlite:///{tmp_path}/a.db"
    async with open_store(url) as store:
        await Executor([act], policy=ALLOWED, ledger=store.ledger).run(call("act"), at())
        poison = '{"control": {"mode": "handover"}}'
        with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
            connection.execute("update handrail_ledger set recorded = ?", (poison,))
            connection.commit()
        for id in ("c-1", "c-2"):
            result = await Executor([act], policy=ALLOWED, ledger=store.ledger).run(call("act", id), at())
            assert result.ok
            assert "`act` took effect, and its recorded result cannot be read." in result.for_model()
    assert len(ran) == 1


@pytest.mark.parametrize("output", [10**5_000, [-(10**4_301)]], ids=["integer", "list"])
@pytest.mark.parametrize("where", ["memory", "sqlite"])
async def test_a_result_that_can_be_written_and_not_be_read_is_replayed_as_text(
    output: Any, where: str, tmp_path: Path
) -> None:
    @tool
    async def act() -> Any:
        """Act."""
        return output

    store = {"store": f"sqlite+aiosqlite:///{tmp_path}/a.db"} if where == "sqlite" else {}
    async with Executor([act], policy=ALLOWED, **store) as executor:
        results = [await executor.run(call("act"), at()) for _ in range(2)]

    assert [result.ok for result in results] == [True, True]
    assert [result.origin for result in results] == ["run", "replayed"]
    assert results[0].for_model() == results[1].for_model()


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize("metadata", [{"a": Unprintable()}, {"a": 10**5_000}], ids=["object", "integer"])
@pytest.mark.parametrize("read_only", [True, False])
async def test_metadata_that_cannot_be_written_do_not_cost_the_result(metadata: Any, read_only: bool) -> None:
    @tool(read_only=read_only)
    async def act() -> ToolResult:
        """Act."""
        return ToolResult(output="done", metadata=metadata)

    executor = Executor([act], policy=ALLOWED)
    first, again = await executor.run(call("act"), at()), await executor.run(call("act"), at())

    assert (first.output, again.output, again.origin) == ("done", "done", "replayed")


async def test_a_ledger_that_cannot_be_read_never_says_that_nothing_happened() -> None:
    class Broken(MemoryLedger):
        is_broken = False

        async def recall(self, **options: Any) -> Any:
            if self.is_broken:
                raise OSError("no route to host")
            return await super().recall(**options)

    @tool
    async def act() -> str:
        """Act."""
        return "paid"

    ledger = Broken()
    executor = Executor([act], policy=ALLOWED, ledger=ledger)
    await executor.run(call("act"), at())
    ledger.is_broken = True

    result = await executor.run(call("act"), at())

    assert code_of(result) == "unavailable"
    assert "othing" not in result.for_model()
    assert "cannot be looked up whether it was done before" in result.for_model()


async def test_retries_see_what_was_collected() -> None:
    tries: list[int] = []

    @tool(idempotent=True)
    async def act() -> Any:
        """Act."""
        tries.append(1)
        return ToolResult(error=Failure(message="later", retryable=True)) if len(tries) == 1 else iter([1])

    executor = Executor([act], policy=ALLOWED, retry=RetryPolicy(max_attempts=2, initial_delay=0.0))

    assert (await executor.run(call("act"), ToolContext(session_id="s-1"))).output == [1]
    assert len(tries) == 2


async def test_a_wrapper_that_returns_after_its_call_was_given_up_leaves_the_outcome_unknown() -> None:
    may_end = threading.Event()
    ran: list[int] = []

    async def body() -> str:
        ran.append(1)
        return "paid"

    def act() -> Any:
        may_end.wait(10)
        return body()

    executor = Executor([tool(name="act", timeout=0.05)(act)], policy=ALLOWED)
    assert code_of(await executor.run(call("act"), at())) == "outcome_unknown"
    may_end.set()
    while executor.stranded_threads:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0)

    assert code_of(await executor.run(call("act"), at())) == "outcome_unknown"
    assert len(await executor.doubts()) == 1
    assert not ran

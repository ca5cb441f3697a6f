"""What one operation costs when ten times as much is stored, waiting or said: each axis at several sizes.

    benchmarks/run --growth

A growth exponent of 0 means that the cost does not depend on the size, 1 that it grows in proportion. A line through
all sizes hides a step, so each part between two sizes has an exponent of its own (`slopes`).
"""

import asyncio
import gc
import itertools
import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec import structs
from sqlalchemy import text as sql

from benchmarks.slopes import find_steepest, fit_exponent
from benchmarks.targets import MEANING_ROW
from handrail import Executor, Policy, Rule, ToolCall, ToolContext, build_tool
from handrail.chat import ChatSession, Conversation, FileSessionStore
from handrail.core import Redactor
from handrail.execute import Timeouts
from handrail.providers import ModelRequest, ModelResponse, StreamEvent, TextDelta, UserMessage
from handrail.registry import ToolSearch
from handrail.store import open_store

Operation = Callable[[], Awaitable[Any]]
Prepare = Callable[[int, Path], AbstractAsyncContextManager[Operation]]
"""Sets an axis up at a size, in an empty directory, and gives the operation to measure."""

ROUNDS, SAMPLE_MS = 7, 3.0


@dataclass(frozen=True, kw_only=True)
class Axis:
    """What grows, what is measured, and how it may grow."""

    grows: str
    operation: str
    sizes: tuple[int, ...]
    prepare: Prepare
    expected: int = 0
    """The exponent that the operation cannot go below: 1 if it has to look at all that grows."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The costs of one axis."""

    grows: str
    operation: str
    sizes: tuple[int, ...]
    microseconds: tuple[float, ...]
    """Medians."""
    low: tuple[float, ...]
    """Lower quartiles."""
    high: tuple[float, ...]
    """Upper quartiles."""
    exponent: float
    """Over all sizes."""
    expected: int


CONTEXT = ToolContext[Any](session_id="s-1", customer_id="c-1", turn=1)
ASK = Policy([Rule.ask("pay", by="operator")])
_numbers = itertools.count(1)


def _tool(name: str, description: str = "Do something.", **options: Any) -> Any:
    async def handler(payload: dict[str, Any]) -> str:
        return "done"

    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "additionalProperties": False}
    given = {"name": name, "description": description, "input_schema": schema, "execute": handler}
    return build_tool({**given, **options})


def _call(name: str, text: str = "x") -> ToolCall:
    return ToolCall(id=f"c{next(_numbers)}", name=name, arguments_json=json.dumps({"text": text}))


# Tools and rules.


@asynccontextmanager
async def one_of_many_tools(size: int, directory: Path) -> AsyncGenerator[Operation]:
    executor = Executor([_tool(f"tool_{number}", read_only=True) for number in range(size)])
    yield lambda: executor.run(_call(f"tool_{size // 2}"), CONTEXT)


@asynccontextmanager
async def unknown_tool(size: int, directory: Path) -> AsyncGenerator[Operation]:
    executor = Executor([_tool(f"tool_{number}", read_only=True) for number in range(size)])
    yield lambda: executor.run(_call("tol_5x"), CONTEXT)


class _NoModel:
    is_available = False

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        raise NotImplementedError


class _RandomVectors:
    """An embedder that costs nothing: what is measured is the search without the model."""

    is_available = True

    def __init__(self) -> None:
        self._vectors = [[random.Random(number).gauss(0, 1) for _ in range(384)] for number in range(50)]

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        return [self._vectors[number % 50] for number in range(len(texts))]


@asynccontextmanager
async def _search(size: int, embedder: Any) -> AsyncGenerator[Operation]:
    tools = [_tool(f"tool_{number}", f"Look up record {number} of the archive.") for number in range(size)]
    search = ToolSearch(tools, embedder=embedder)

    async def find() -> None:
        search.search("look up an old record")

    yield find


def search_by_words(size: int, directory: Path) -> AbstractAsyncContextManager[Operation]:
    return _search(size, _NoModel())


def search_by_meaning(size: int, directory: Path) -> AbstractAsyncContextManager[Operation]:
    return _search(size, _RandomVectors())


@asynccontextmanager
async def rules_about_others(size: int, directory: Path) -> AsyncGenerator[Operation]:
    tools = [_tool("look", read_only=True), *(_tool(f"tool_{number}") for number in range(size))]
    rules = [Rule.deny(f"tool_{number}", tenant=f"t-{number}") for number in range(size)]
    executor = Executor(tools, policy=Policy([*rules, Rule.allow("look")]))
    yield lambda: executor.run(_call("look"), CONTEXT)


# Calls, sessions, messages.


@asynccontextmanager
async def cancel_a_session(size: int, directory: Path) -> AsyncGenerator[Operation]:
    started = asyncio.Event()

    async def wait(payload: dict[str, Any]) -> str:
        started.set()
        await asyncio.Event().wait()
        return ""

    tool = build_tool({"name": "wait", "input_schema": {"type": "object"}, "execute": wait, "read_only": True})
    executor = Executor([tool], timeouts=Timeouts(call=3600))
    others = [ToolContext[Any](session_id=f"other-{number}") for number in range(size)]
    tasks = [asyncio.ensure_future(executor.run(_call("wait"), other)) for other in others]
    await asyncio.sleep(0)

    async def cancel() -> None:
        started.clear()
        task = asyncio.ensure_future(executor.run(_call("wait"), CONTEXT))
        await started.wait()
        await executor.cancel_all("s-1", grace=0)
        await task

    yield cancel
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def call_beside_sessions(size: int, directory: Path) -> AsyncGenerator[Operation]:
    executor = Executor([_tool("look", read_only=True), _tool("pay")], policy=Policy([Rule.allow("*")]))
    for number in range(size):
        await executor.run(_call("pay", f"{number}"), ToolContext(session_id=f"other-{number}"))
    yield lambda: executor.run(_call("pay", f"{next(_numbers)}"), CONTEXT)


async def _save(sessions: Any, size: int) -> Operation:
    """Save one more message of a conversation."""
    history = tuple(UserMessage(text="How are you today?") for _ in range(size))
    saved = Conversation(session_id="s-1", messages=history, revision=1)
    await sessions.save(saved)

    async def save() -> None:
        nonlocal saved
        following = structs.replace(saved.with_messages(UserMessage(text="More.")), revision=saved.revision + 1)
        await sessions.save(following, previous=saved)
        saved = following

    return save


@asynccontextmanager
async def save_to_file(size: int, directory: Path) -> AsyncGenerator[Operation]:
    yield await _save(FileSessionStore(directory), size)


@asynccontextmanager
async def save_to_sqlite(size: int, directory: Path) -> AsyncGenerator[Operation]:
    async with _open(directory) as store:
        yield await _save(store.sessions, size)


@asynccontextmanager
async def load_one_session(size: int, directory: Path) -> AsyncGenerator[Operation]:
    async with _open(directory) as store:
        await store.sessions.save(Conversation(session_id="s-1", messages=(UserMessage(text="Hello."),), revision=1))
        for table in ("handrail_sessions", "handrail_messages"):
            await _copy_rows(store, table, size, ("session_id",))
        yield lambda: store.sessions.load("s-1")


class _Talkative:
    name = "talkative:model"

    def __init__(self, deltas: int) -> None:
        self._deltas = [TextDelta(text=f"word {number} ") for number in range(deltas)]
        self._whole = ModelResponse(text="".join(delta.text for delta in self._deltas))

    async def ask(self, request: ModelRequest) -> ModelResponse:
        return self._whole

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamEvent]:
        for delta in self._deltas:
            yield delta
        yield self._whole


@asynccontextmanager
async def read_a_stream(size: int, directory: Path) -> AsyncGenerator[Operation]:
    provider, executor = _Talkative(size), Executor()

    async def read() -> None:
        session = ChatSession(provider, executor, context=ToolContext[Any](session_id=f"s-{next(_numbers)}"))
        async for _ in session.stream("Go."):
            pass

    yield read


# What is stored.


def _open(directory: Path) -> AbstractAsyncContextManager[Any]:
    return open_store(f"sqlite+aiosqlite:///{directory / 'growth.db'}")


async def _copy_rows(store: Any, table: str, size: int, unique: tuple[str, ...]) -> None:
    """Copy the one row of a table until there are `size` more, with other values where they must differ."""
    columns = [row[1] for row in await store._database.fetch(sql(f"PRAGMA table_info({table})"))]
    chosen = ", ".join(f"\"{column}\" || '-' || n" if column in unique else f'"{column}"' for column in columns)
    named = ", ".join(f'"{column}"' for column in columns)
    numbers = f"WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {size})"
    source = f"(SELECT * FROM {table} LIMIT 1), n"
    await store._database.write(sql(f"{numbers} INSERT INTO {table} ({named}) SELECT {chosen} FROM {source}"), {})


@asynccontextmanager
async def consequential_call(size: int, directory: Path) -> AsyncGenerator[Operation]:
    async with _open(directory) as store:
        executor = Executor([_tool("pay")], policy=Policy([Rule.allow("pay")]), ledger=store.ledger)
        await executor.run(_call("pay", "first"), CONTEXT)
        await _copy_rows(store, "handrail_ledger", size, ("call_id", "key", "full_key", "sent_key"))
        yield lambda: executor.run(_call("pay", f"{next(_numbers)}"), CONTEXT)
        await executor.aclose()


@asynccontextmanager
async def audit_of_one_call(size: int, directory: Path) -> AsyncGenerator[Operation]:
    async with _open(directory) as store:
        executor = Executor([_tool("look", read_only=True)], listeners=[store.audit])
        await executor.run(ToolCall(id="wanted", name="look", arguments_json="{}"), CONTEXT)
        await store.audit.flush()
        await _copy_rows(store, "handrail_audit", size, ("writer", "call_id"))
        yield lambda: store.audit.query(call_id="wanted")


@asynccontextmanager
async def failures_of_the_audit(size: int, directory: Path) -> AsyncGenerator[Operation]:
    async with _open(directory) as store:
        executor = Executor([_tool("look", read_only=True)], listeners=[store.audit])
        await executor.run(_call("look"), CONTEXT)
        await store.audit.flush()
        await _copy_rows(store, "handrail_audit", size, ("writer", "call_id"))
        for _ in range(10):
            await executor.run(_call("lok"), CONTEXT)
        await store.audit.flush()
        yield lambda: store.audit.query(ok=False)


@asynccontextmanager
async def pending_of_a_session(size: int, directory: Path) -> AsyncGenerator[Operation]:
    async with _open(directory) as store:
        executor = Executor([_tool("pay")], policy=ASK, approvals=store.approvals)
        await executor.run(_call("pay"), CONTEXT)
        await _copy_rows(store, "handrail_approvals", size, ("token", "session_id"))
        yield lambda: store.approvals.pending(session_id="s-1")
        await executor.aclose()


@asynccontextmanager
async def pending_page(size: int, directory: Path) -> AsyncGenerator[Operation]:
    async with _open(directory) as store:
        executor = Executor([_tool("pay")], policy=ASK, approvals=store.approvals)
        await executor.run(_call("pay"), CONTEXT)
        await _copy_rows(store, "handrail_approvals", size, ("token", "session_id"))
        yield lambda: store.approvals.pending(limit=10)
        await executor.aclose()


# What is sent.


@asynccontextmanager
async def long_arguments(size: int, directory: Path) -> AsyncGenerator[Operation]:
    executor, text = Executor([_tool("look", read_only=True)]), "word " * (size // 5)
    yield lambda: executor.run(_call("look", text), CONTEXT)


@asynccontextmanager
async def long_output(size: int, directory: Path) -> AsyncGenerator[Operation]:
    output = "word " * (size // 5)

    async def write(payload: dict[str, Any]) -> str:
        return output

    executor = Executor(
        [build_tool({"name": "write", "input_schema": {"type": "object"}, "execute": write, "read_only": True})]
    )

    async def run() -> None:
        (await executor.run(ToolCall(id=f"c{next(_numbers)}", name="write"), CONTEXT)).for_model()

    yield run


@asynccontextmanager
async def _redact(unit: str, size: int) -> AsyncGenerator[Operation]:
    redactor, text = Redactor(), unit * (size // len(unit))

    async def redact() -> None:
        redactor.text(text)

    yield redact


def redact_text(size: int, directory: Path) -> AbstractAsyncContextManager[Operation]:
    return _redact("The order 17 of 2026-11-16 is paid. ", size)


def redact_hostile_text(size: int, directory: Path) -> AbstractAsyncContextManager[Operation]:
    return _redact("4 ", size)


STORED = (100, 1_000, 10_000, 100_000)
MANY = (10, 100, 1_000, 10_000)
TOOLS = (10, 100, 1_000, 4_200, 10_000)  # Large products of matrices are done in another way above about 4,000.
MESSAGES = (50, 500, 5_000, 20_000, 50_000)
CHARACTERS = (1_000, 10_000, 100_000, 1_000_000)
AXES = (
    Axis(grows="tools", operation="run one of them", sizes=MANY, prepare=one_of_many_tools),
    Axis(grows="tools", operation="answer a call of an unknown one", sizes=MANY, prepare=unknown_tool),
    Axis(grows="tools", operation="search by words", sizes=TOOLS, prepare=search_by_words, expected=1),
    Axis(
        grows="tools",
        operation=MEANING_ROW,
        sizes=TOOLS,
        prepare=search_by_meaning,
        expected=1,
    ),
    Axis(
        grows="rules", operation="a call that they are not about", sizes=(5, 50, 500, 5_000), prepare=rules_about_others
    ),
    Axis(
        grows="waiting calls",
        operation="cancel another session",
        sizes=(20, 200, 2_000, 20_000),
        prepare=cancel_a_session,
    ),
    Axis(
        grows="sessions",
        operation="consequential call of another",
        sizes=(20, 200, 2_000, 20_000),
        prepare=call_beside_sessions,
    ),
    Axis(grows="sessions", operation="load one, SQLite", sizes=STORED, prepare=load_one_session),
    Axis(grows="messages", operation="save one more, file", sizes=MESSAGES, prepare=save_to_file),
    Axis(grows="messages", operation="save one more, SQLite", sizes=MESSAGES, prepare=save_to_sqlite),
    Axis(
        grows="stream deltas", operation="read all", sizes=(30, 300, 3_000, 30_000), prepare=read_a_stream, expected=1
    ),
    Axis(grows="ledger rows", operation="consequential call, SQLite", sizes=STORED, prepare=consequential_call),
    Axis(grows="audit rows", operation="find those of a call, SQLite", sizes=STORED, prepare=audit_of_one_call),
    Axis(grows="audit rows", operation="find the failures, SQLite", sizes=STORED, prepare=failures_of_the_audit),
    Axis(grows="approvals", operation="open ones of a session, SQLite", sizes=STORED, prepare=pending_of_a_session),
    Axis(grows="approvals", operation="first ten open ones, SQLite", sizes=STORED, prepare=pending_page),
    Axis(
        grows="argument size",
        operation="run a call, in characters",
        sizes=(100, 1_000, 10_000, 100_000),
        prepare=long_arguments,
        expected=1,
    ),
    Axis(
        grows="output size",
        operation="run a call, in characters",
        sizes=(100, 1_000, 10_000, 100_000),
        prepare=long_output,
    ),
    Axis(grows="text size", operation="redact ordinary text", sizes=CHARACTERS, prepare=redact_text, expected=1),
    Axis(
        grows="text size",
        operation="redact digits and spaces",
        sizes=CHARACTERS,
        prepare=redact_hostile_text,
        expected=1,
    ),
)


async def _sample(operation: Operation, times: int) -> float:
    begun = time.process_time()
    for _ in range(times):
        await operation()
    return (time.process_time() - begun) / times * 1e6


async def measure_axis(axis: Axis, *, rounds: int) -> Curve:
    """The CPU time of the operation at each size: median and quartiles."""
    costs: list[list[float]] = []
    for size in axis.sizes:
        with TemporaryDirectory() as directory:
            async with axis.prepare(size, Path(directory)) as operation:
                await operation()
                times = max(1, min(1_000, round(SAMPLE_MS * 1e3 / max(await _sample(operation, 1), 1.0))))
                gc.collect()
                gc.disable()
                try:
                    costs.append([await _sample(operation, times) for _ in range(rounds)])
                finally:
                    gc.enable()
    medians = tuple(map(statistics.median, costs))
    quartiles = [statistics.quantiles(cost, n=4, method="inclusive") for cost in costs]
    return Curve(
        grows=axis.grows,
        operation=axis.operation,
        sizes=axis.sizes,
        microseconds=medians,
        low=tuple(quartile[0] for quartile in quartiles),
        high=tuple(quartile[-1] for quartile in quartiles),
        exponent=fit_exponent(axis.sizes, medians),
        expected=axis.expected,
    )


def measure(*, rounds: int = ROUNDS) -> dict[str, Any]:
    """All axes, one after the other."""
    load = os.getloadavg()[0]
    curves: list[Curve] = []
    for axis in AXES:
        curve = asyncio.run(measure_axis(axis, rounds=rounds))
        costs = " ".join(f"{microsecond:>10.1f}" for microsecond in curve.microseconds)
        steepest = find_steepest(asdict(curve))
        told = f"exponent {curve.exponent:5.2f}, at most {steepest.exponent:5.2f}{', a STEP' * steepest.is_step}"
        print(f"{curve.grows:<14} {curve.operation:<38} {costs} µs   {told}", file=sys.stderr, flush=True)
        curves.append(curve)
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        "load": [load, os.getloadavg()[0]],
        "rounds": rounds,
        "curves": [asdict(item) for item in curves],
    }


if __name__ == "__main__":
    measure(rounds=3)

"""Hostile loops: processes that are killed, calls that are cancelled, responses and returns that nobody expects.

    python -m benchmarks.hostile --minutes 10
    python -m benchmarks.hostile --minutes 10 --postgres

Each loop gets an equal share of the time; `--seed` makes the same choices again. The table counts effects that took
place twice, were lost or were falsely reported, and exceptions where a result was due. All are 0, or the exit code
is 1.
"""

import argparse
import asyncio
import atexit
import itertools
import json
import os
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from handrail import (
    Control,
    Decision,
    Executor,
    Failure,
    Policy,
    Rule,
    ToolCall,
    ToolContext,
    ToolError,
    ToolResult,
    tool,
)
from handrail.core.log import log
from handrail.execute import MemoryLedger, Timeouts
from handrail.store import open_store
from handrail.testing.crashtest import STEPS, Attempt, crashtest
from tests.adversary.test_hostile_responses import ODD, STREAMS, build_response, mutate
from tests.formats.apis import ALL, Said
from tests.postgres import PostgresServer

ALLOWED = Policy([Rule.allow("*")])
SETTLED = ("ok", "outcome_unknown", "in_progress")


@dataclass
class Row:
    """What one loop came to."""

    name: str
    tries: int = 0
    double: int = 0
    lost: int = 0
    false: int = 0
    raised: int = 0
    in_doubt: int = 0
    """Calls that were reported as `outcome_unknown`: true, and for a person to find out."""

    @property
    def is_clean(self) -> bool:
        return not (self.double or self.lost or self.false or self.raised)


Loop = Callable[[Row, random.Random, float], Awaitable[None]]
servers: list[PostgresServer] = []
"""The server of `--postgres`."""


def new_database(folder: str) -> str:
    """The URL of a new database: SQLite in this folder, or a database of the server."""
    return servers[0].new_database() if servers else f"sqlite+aiosqlite:///{folder}/hostile.db"


async def kill_at_any_moment(row: Row, chance: random.Random, ends: float) -> None:
    """SIGKILL to a forked process after a random time; then its call arrives again in this one, and an equal one."""
    with TemporaryDirectory() as folder:
        url = new_database(folder)
        async with open_store(url):
            pass
        for number in itertools.count():
            if time.monotonic() >= ends:
                return
            world, has_verify = Path(folder) / f"{number}", chance.random() < 0.5
            world.touch()
            pay_and_die(url, world, has_verify=has_verify, after=chance.uniform(0, 0.12))
            results: list[tuple[str, int]] = []
            for call_id in ("first", "second"):
                code = await pay_once(url, world, call_id, has_verify=has_verify)
                results.append((code, len(world.read_text().splitlines())))
            effects = results[-1][1]
            attempt = Attempt(step="any", verified=has_verify, effects=effects, results=tuple(results))
            row.tries += 1
            row.double += attempt.double
            row.lost += attempt.lost
            row.false += attempt.false
            row.in_doubt += results[-1][0] == "outcome_unknown"


def pay_and_die(url: str, world: Path, *, has_verify: bool, after: float) -> None:
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(pay_once(url, world, "first", has_verify=has_verify))
        finally:
            os._exit(0)
    time.sleep(after)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


async def pay_once(url: str, world: Path, call_id: str, *, has_verify: bool) -> str:
    def look(arguments: Any, context: Any) -> bool:
        return bool(world.read_text())

    @tool(timeout=0.2, verify=look if has_verify else None)
    async def pay(invoice_id: str) -> str:
        """Pay an invoice."""
        await asyncio.sleep(0)
        with world.open("a") as file:
            file.write(f"{invoice_id}\n")
            file.flush()
            os.fsync(file.fileno())
        await asyncio.sleep(0.005)
        return "paid"

    async with open_store(url, migrate=False) as store:
        # The lease is as short as it can be: one of a process that was killed is over in a moment.
        executor = Executor([pay], policy=ALLOWED, ledger=store.ledger, timeouts=Timeouts(lease_grace=0))
        call = ToolCall(id=call_id, name="pay", arguments_json=json.dumps({"invoice_id": world.name}))
        result = await executor.run(call, ToolContext(session_id=world.name, customer_id=world.name, turn=1))
        return result.error.code if result.error else "ok"


async def kill_processes(row: Row, chance: random.Random, ends: float) -> None:
    """SIGKILL at every step of a call, with and without `verify`; then the call arrives again, and an equal one."""
    for step in itertools.cycle(chance.sample(STEPS, len(STEPS))):
        with TemporaryDirectory() as folder:
            report = await crashtest(new_database(folder), steps=[step])
        row.tries += len(report.attempts)
        row.in_doubt += sum(attempt.results[-1][0] == "outcome_unknown" for attempt in report.attempts)
        row.double += report.double
        row.lost += report.lost
        row.false += report.false
        if time.monotonic() >= ends:
            return


async def repeat(
    attempt: Callable[[Row, random.Random, Any, str], Awaitable[None]], row: Row, chance: random.Random, ends: float
) -> None:
    """Make attempts until the time is over, each in its own session: every fourth in a database, the rest in memory."""
    with TemporaryDirectory() as folder:
        async with open_store(new_database(folder)) as store:
            for number in itertools.count():
                if time.monotonic() >= ends:
                    return
                ledger: Any = store.ledger if number % 4 == 0 else MemoryLedger()
                await attempt(row, chance, ledger, f"s-{number}")


async def cancel_calls(row: Row, chance: random.Random, ends: float) -> None:
    """Callers, calls and sessions are cancelled at any moment; then the same call arrives again, and an equal one."""
    await repeat(cancel_one, row, chance, ends)


async def cancel_one(row: Row, chance: random.Random, ledger: Any, session_id: str) -> None:
    done: list[str] = []
    waits = [chance.choice([0, 0.0005, 0.002]) for _ in range(2)]

    async def effect(invoice: str) -> str:
        await asyncio.sleep(waits[0])
        done.append(invoice)
        await asyncio.sleep(waits[1])
        return "paid"

    def effect_in_thread(invoice: str) -> str:
        time.sleep(waits[0])
        done.append(invoice)
        time.sleep(waits[1])
        return "paid"

    handler = chance.choice([effect, effect, effect_in_thread])
    on_interrupt = chance.choice(["cancel", "finish", None])
    pay = tool(name="pay", on_interrupt=on_interrupt, timeout=chance.choice([0.001, 5]))(handler)
    executor = Executor([pay], policy=ALLOWED, ledger=ledger)
    context = ToolContext(session_id=session_id, turn=1)
    first = ToolCall(id="c-1", name="pay", arguments_json='{"invoice": "R-7"}')
    running = asyncio.create_task(executor.run(first, context))
    await asyncio.sleep(chance.choice([0, 0.0005, 0.001, 0.003]))
    match chance.randrange(3):
        case 0:
            running.cancel()
        case 1:
            executor.cancel("c-1", session_id=session_id)
        case _:
            await executor.cancel_all(session_id, grace=0.001)
    answers: list[ToolResult] = []
    with suppress(asyncio.CancelledError):
        answers.append(await running)
    while executor.running_calls(session_id) or executor.stranded_threads:  # noqa: ASYNC110  # it has no event
        await asyncio.sleep(0.001)
    for call_id in ("c-1", "c-2"):
        call = ToolCall(id=call_id, name="pay", arguments_json=first.arguments_json)
        answers.append(await executor.run(call, context))
    row.tries += 1
    row.double += len(done) > 1
    row.in_doubt += answers[-1].error is not None and answers[-1].error.code == "outcome_unknown"
    said = "ok" if answers[-1].ok else answers[-1].error.code
    row.lost += not done and said not in SETTLED
    row.false += any(answer.ok and not done for answer in answers)
    row.false += bool(done) and said not in SETTLED


async def mutate_responses(row: Row, chance: random.Random, ends: float) -> None:
    """`calls()` of every wire format gets responses in which parts are something else, missing, or there twice."""
    for _ in itertools.count():
        for api in ALL:
            whole = build_response(api)
            check_response(row, api.wire, mutate(json.loads(json.dumps(whole)), chance), None)
            said = [api.says(f"c-{number}", "pay", {"amount": number}) for number in range(3)]
            place, field = chance.randrange(3), chance.choice(["id", "name", "arguments"])
            fields = {
                "id": said[place].id,
                "name": "pay",
                "arguments": said[place].arguments,
                field: chance.choice(ODD),
            }
            said[place] = Said(**fields)
            check_response(row, api.wire, api.response(said), 3)
        for wire, stream in STREAMS.items():
            check_response(row, wire, mutate(json.loads(json.dumps(stream)), chance), None)
        if time.monotonic() >= ends:
            return
        await asyncio.sleep(0)


def check_response(row: Row, wire: Any, response: Any, count: int | None) -> None:
    row.tries += 1
    try:
        calls = wire.calls(response)
        texts = [(call.id, call.name, call.arguments_json) for call in calls]
    except Exception as error:
        print(f"{wire.__name__}: {error!r}: {response!r}"[:2_000], file=sys.stderr)
        row.raised += 1
        return
    row.lost += count is not None and len(calls) != count
    row.false += any(type(text) is not str for item in texts for text in item)


class Hostile:
    """An object whose every method fails."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("do not look")


def build_output(chance: random.Random, depth: int = 0) -> Any:
    """Something that a handler should not return, or should."""
    if depth > 3:
        return chance.choice([None, True, 5, 1.5, "text", "\ud800", 10**40, float("nan"), b"\xff", ""])

    def below() -> Any:
        return build_output(chance, depth + 1)

    async def later() -> Any:
        return below()

    async def rows() -> Any:
        yield below()

    return chance.choice(
        [
            lambda: {"a": below(), chance.choice(["b", 1, None, (1,)]): below()},
            lambda: [below(), below()],
            lambda: (below() for _ in range(2)),
            lambda: map(str, [1, 2]),
            lambda: {"rows": itertools.count()},
            lambda: {1, 2},
            lambda: object(),
            lambda: Hostile(),
            lambda: ValueError("returned"),
            lambda: Exception,
            later,
            rows,
            lambda: build_result(chance, below) if depth == 0 else below(),
            lambda: build_output(chance, 9),
        ]
    )()


def build_result(chance: random.Random, below: Callable[[], Any]) -> Any:
    odd: list[Any] = [None, 5, "x", [], {}, {1: 2}, object(), True]
    fields: dict[str, Callable[[], Any]] = {
        "output": below,
        "metadata": lambda: chance.choice(odd),
        "control": lambda: chance.choice([*odd, Control(mode="handover"), Control(lifespan=[])]),
        "error": lambda: chance.choice([None, "failed", Failure(code=404, message=None, retryable="x")]),
        "media": lambda: chance.choice([(), [], "x", [object()]]),
        "origin": lambda: chance.choice(["replayed", "joined", 5]),
        "decision": lambda: Decision(action="deny"),
        "recorded": lambda: chance.choice([False, None]),
        "notice": lambda: "already done",
        "call_id": lambda: chance.choice(odd),
    }
    chosen = chance.sample(sorted(fields), chance.randrange(len(fields)))
    return ToolResult(**{name: fields[name]() for name in chosen})


async def return_anything(row: Row, chance: random.Random, ends: float) -> None:
    """Handlers return and raise anything; the same call arrives again, and is answered alike without running."""
    await repeat(return_one, row, chance, ends)


async def return_one(row: Row, chance: random.Random, ledger: Any, session_id: str) -> None:
    ran: list[int] = []
    seed = chance.random()

    def make() -> Any:
        ran.append(1)
        if seed < 0.1:
            raise ToolError(chance.choice(["no", 5, None]), code=chance.choice([404, "", "approval_required", "gone"]))
        if seed < 0.15:
            raise chance.choice([RuntimeError("no"), asyncio.CancelledError(), StopIteration(), SystemExit(3)])
        return build_output(chance)

    async def act() -> Any:
        return make()

    handler = chance.choice([act, act, make])
    act_tool = tool(name="act", max_output_chars=2_000, timeout=5, inline=handler is make and seed > 0.5)(handler)
    executor = Executor([act_tool], policy=ALLOWED, ledger=ledger)
    context, call = ToolContext(session_id=session_id, turn=1), ToolCall(id="c-1", name="act")
    row.tries += 1
    try:
        first = await executor.run(call, context)
        again = await executor.run(call, context)
        told, told_again = first.for_model(), again.for_model()
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        print(f"a result was due: {error!r}", file=sys.stderr)
        row.raised += 1
        return
    row.double += len(ran) != 1
    row.in_doubt += first.error is not None and first.error.code == "outcome_unknown"
    if told != told_again or first.origin not in ("run", "verified") or first.approval is not None:
        print(f"told {told!r}, then {told_again!r}"[:2_000], file=sys.stderr)
        row.false += 1


LOOPS: dict[str, Loop] = {
    "processes killed at each step": kill_processes,
    "processes killed at any moment": kill_at_any_moment,
    "calls cancelled": cancel_calls,
    "responses mutated": mutate_responses,
    "hostile returns": return_anything,
}


def count_large_responses() -> Iterator[str]:
    """100,000 calls in one response of each format: all are there, and take about ten times as long as 10,000."""
    for api in ALL:
        seconds: list[float] = []
        for count in (10_000, 100_000):
            response = api.response([api.says(f"c-{n}", "pay", {"amount": n}) for n in range(count)])
            started = time.perf_counter()
            found = len(api.wire.calls(response))
            seconds.append(time.perf_counter() - started)
            assert found == count, f"{api.name}: {found} of {count} calls"
        yield f"| {api.name} | 100,000 | {seconds[1]:.2f} s | {seconds[1] / seconds[0]:.1f} |"


def main() -> int:
    """Run every loop and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--postgres", action="store_true", help="on a Postgres server of its own, not on SQLite")
    parser.add_argument("--only", choices=list(LOOPS), help="run one loop")
    parser.add_argument("--output", type=Path, help="also write the tables to a file")
    options = parser.parse_args()
    log.logger.disabled = True  # Every hostile return is logged, which is as it should be, and unreadable here.
    chosen = {name: loop for name, loop in LOOPS.items() if options.only in (None, name)}
    if options.postgres:  # The other loop needs no database.
        chosen = {name: loop for name, loop in chosen.items() if loop is not mutate_responses}
        servers.append(PostgresServer())
        servers[0].start()
        atexit.register(servers[0].remove)
    rows: list[Row] = []
    for name, loop in chosen.items():
        row = Row(name)
        ends = time.monotonic() + options.minutes * 60 / len(chosen)
        asyncio.run(loop(row, random.Random(f"{options.seed} {name}"), ends))
        rows.append(row)
        print(row, file=sys.stderr)
    lines = [
        "| loop | tries | double | lost | falsely reported | raised | left in doubt |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {r.name} | {r.tries:,} | {r.double} | {r.lost} | {r.false} | {r.raised} | {r.in_doubt:,} |" for r in rows
    ]
    if options.only is None and not options.postgres:
        lines += ["", "| format | calls | time | times that of 10,000 |", "|---|--:|--:|--:|", *count_large_responses()]
    text = "\n".join(lines)
    print(text)
    if options.output is not None:
        options.output.write_text(text + "\n", encoding="utf-8")
    return 0 if all(row.is_clean for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())

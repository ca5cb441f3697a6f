"""Durable calls under kills and freezes: three workers, four kinds of calls, and what became of each.

    python -m benchmarks.durable --minutes 10
    python -m benchmarks.durable --minutes 10 --postgres
    python -m benchmarks.durable --minutes 10 --temporal      # its development server delivers: `.ci/adapters temporal`

Every few seconds a worker is killed (`kill -9`, another one starts), or frozen and thawed (SIGSTOP, SIGCONT). Some
calls wait for an operator's yes. A person finds out about doubts by looking into the books of the bank. It counts
effects that took place twice (an idempotency key counts once), calls without an answer, and answers that are not true.
All are 0, or the exit code is 1. A worker that is frozen in the instant in which it pays, between two awaits and for
longer than its timeout, is past what a lease can prevent (docs/durable.md): such a payment is counted on its own.
"""

import argparse
import asyncio
import itertools
import json
import os
import random
import signal
import statistics
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from handrail import ConfigError, Executor, Policy, Rule, ToolCall, ToolContext, ToolResult, tool
from handrail.core.log import log
from handrail.execute import Timeouts, Worker
from handrail.store import SqlStore, open_store
from tests.durable.engines import open_delivery, open_temporal
from tests.postgres import PostgresServer

ROOT: Final = Path(__file__).parents[1]
LEASE: Final = 1.0
TIMEOUTS: Final = Timeouts(call=2.0, lease=LEASE, lease_grace=0.5, repeat_window=3600, overhead=10.0)
POLICY: Final = Policy([Rule.ask("pay_*", by="operator", where={"amount": {"above": 500}}), Rule.allow("pay_*")])
KINDS: Final = ("pay_idempotent", "pay_found", "pay_missed", "pay_once")
WORKERS: Final = 3
AT_ONCE: Final = 12
"""Calls that are under way at the same time."""
OPEN: Final = frozenset(("in_progress", "approval_required", "unavailable"))
"""The codes of answers that say: not yet."""


@dataclass(frozen=True)
class Line:
    """What a worker wrote down: `began`, `paid` or `looked`, with the time of its machine before and after."""

    what: str
    invoice: str
    pid: int
    key: str
    began: float
    at: float


class Books:
    """The books of the bank: a file that outlives a kill, to which every worker adds lines."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, what: str, invoice: str, key: str | None, *, began: float) -> None:
        line = f"{what} {invoice} {os.getpid()} {key} {began} {time.monotonic()}\n"
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)

    def read(self) -> list[Line]:
        if not self._path.exists():
            return []
        lines = [line.split() for line in self._path.read_text().splitlines()]
        return [
            Line(what, invoice, int(pid), key, float(began), float(at)) for what, invoice, pid, key, began, at in lines
        ]

    def has(self, invoice: str) -> bool:
        return any((line.what, line.invoice) == ("paid", invoice) for line in self.read())


def build_executor(store: SqlStore, books: Books) -> Executor:
    """Four tools that pay: what is known about a payment whose worker is gone differs."""

    async def pay(invoice: str, context: ToolContext[Any], *, before: float, after: float) -> str:
        books.add("began", invoice, context.idempotency_key, began=time.monotonic())
        await asyncio.sleep(before)
        began = time.monotonic()
        books.add("paid", invoice, context.idempotency_key, began=began)
        await asyncio.sleep(after)
        return f"paid {invoice}"

    def look(arguments: dict[str, Any], context: Any) -> bool:
        books.add("looked", arguments["invoice"], None, began=time.monotonic())
        return books.has(arguments["invoice"])

    @tool(durable=True, key="invoice", idempotent=True)
    async def pay_idempotent(invoice: str, amount: int, context: ToolContext[Any]) -> str:
        """Pay with a key that the bank recognises."""
        return await pay(invoice, context, before=0.2, after=0.2)

    @tool(durable=True, key="invoice", verify=look)
    async def pay_found(invoice: str, amount: int, context: ToolContext[Any]) -> str:
        """Pay first, then wait: a look finds it."""
        return await pay(invoice, context, before=0.0, after=0.4)

    @tool(durable=True, key="invoice", verify=look)
    async def pay_missed(invoice: str, amount: int, context: ToolContext[Any]) -> str:
        """Wait first, then pay: a look does not find it."""
        return await pay(invoice, context, before=0.4, after=0.0)

    @tool(durable=True, key="invoice")
    async def pay_once(invoice: str, amount: int, context: ToolContext[Any]) -> str:
        """Pay, where only a person can look."""
        return await pay(invoice, context, before=0.2, after=0.2)

    return Executor([pay_idempotent, pay_found, pay_missed, pay_once], policy=POLICY, store=store, timeouts=TIMEOUTS)


async def work(url: str, books: str, engine: str) -> None:
    """A worker, until it is killed."""
    async with (
        open_delivery(engine) as delivery,
        open_store(url, migrate=False, audit_interval=0.2, delivery=delivery) as store,
        Worker(build_executor(store, Books(Path(books))), max_running=8) as worker,
    ):
        print("ready", flush=True)
        await worker.run()


class WorkerProcess:
    """A worker that is killed and started anew, frozen and thawed."""

    def __init__(self, url: str, folder: Path, engine: str) -> None:
        self._url = url
        self._folder = folder
        self._engine = engine
        self._process: Process | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
        own = (self._url, str(self._folder / "books"), self._engine)
        arguments = ("-W", "ignore", "-m", "benchmarks.durable", "--work", *own)
        with (self._folder / "log").open("a") as errors:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, *arguments, stdout=PIPE, stderr=errors, env=environment
            )
        assert self._process.stdout is not None
        async with asyncio.timeout(120):
            line = await self._process.stdout.readline()
        assert line == b"ready\n", (self._folder / "log").read_text()[-2000:]

    async def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def send(self, signal_number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(signal_number)


@dataclass
class Harm:
    """What was done to a worker."""

    how: str
    pid: int
    began: float
    ended: float = float("inf")
    """When it was thawed."""


@dataclass
class Report:
    """What it came to."""

    calls: int = 0
    approvals: int = 0
    double: int = 0
    past_lease: int = 0
    """Second payments of a worker that was frozen in the instant in which it paid."""
    lost: int = 0
    false: int = 0
    not_done: int = 0
    """Calls whose answer says that nothing was done, which is true."""
    resolved: int = 0
    """Doubts that a person found out about."""
    harms: list[Harm] = field(default_factory=list[Harm])
    takeovers: dict[str, list[float]] = field(default_factory=lambda: {"kill": [], "freeze": []})
    """From the harm until another worker had the call, in leases."""
    wrong: list[str] = field(default_factory=list[str])
    """What was not right, call by call."""

    @property
    def is_clean(self) -> bool:
        return not (self.double or self.lost or self.false)

    def count(self, how: str) -> int:
        return sum(harm.how == how for harm in self.harms)


class Chaos:
    """One run: submits calls, harms workers, answers questions, and counts."""

    def __init__(self, url: str, folder: Path, *, seed: int, engine: str = "-") -> None:
        self._url = url
        self._engine = engine
        self._folder = folder
        self._chance = random.Random(seed)
        self._books = Books(folder / "books")
        self._numbers = itertools.count(1)
        self._answers: dict[str, ToolResult | None] = {}
        self._executor: Any = None
        self.report = Report()

    async def run(self, seconds: float, *, every: float, patience: float = 120.0) -> Report:
        """Harm a worker `every` seconds for this long; then everything has `patience` to come to its end."""
        async with (
            open_delivery(self._engine) as delivery,
            open_store(self._url, audit_interval=0.2, delivery=delivery) as store,
            self._open_workers() as workers,
        ):
            self._executor = build_executor(store, self._books)
            ends = time.monotonic() + seconds
            callers = [asyncio.create_task(self._call_until(ends, patience)) for _ in range(AT_ONCE)]
            while time.monotonic() + every < ends:
                await asyncio.sleep(every)
                await self._harm(self._chance.choice(workers))
            await asyncio.gather(*callers)
        self._count()
        return self.report

    @asynccontextmanager
    async def _open_workers(self) -> AsyncGenerator[list[WorkerProcess]]:
        workers = [WorkerProcess(self._url, self._folder, self._engine) for _ in range(WORKERS)]
        try:
            await asyncio.gather(*(worker.start() for worker in workers))
            yield workers
        finally:
            for worker in workers:
                await worker.kill()

    async def _harm(self, worker: WorkerProcess) -> None:
        harm = Harm(how=self._chance.choice(("kill", "freeze")), pid=worker.pid, began=time.monotonic())
        self.report.harms.append(harm)
        if harm.how == "kill":
            await worker.kill()
            await worker.start()
            return
        worker.send(signal.SIGSTOP)
        # Half of them come back after their lease and before their timeout, when they may still pay.
        longest = self._chance.choice((TIMEOUTS.call / LEASE, 5.0))
        await asyncio.sleep(self._chance.uniform(1.2 if longest < 5 else 0.5, longest) * LEASE)
        worker.send(signal.SIGCONT)
        harm.ended = time.monotonic()

    # Calls.

    async def _call_until(self, ends: float, patience: float) -> None:
        while time.monotonic() < ends:
            number = next(self._numbers)
            kind = KINDS[number % len(KINDS)]
            invoice = f"{kind}-{number}"
            self._answers[invoice] = None
            with suppress(TimeoutError):
                async with asyncio.timeout_at(asyncio.get_running_loop().time() + ends - time.monotonic() + patience):
                    self._answers[invoice] = await self._call(kind, invoice, is_asked=self._chance.random() < 0.25)

    async def _call(self, kind: str, invoice: str, *, is_asked: bool) -> ToolResult:
        arguments = {"invoice": invoice, "amount": 900 if is_asked else 20}
        call = ToolCall(id="c-1", name=kind, arguments_json=json.dumps(arguments))
        context = ToolContext[Any](session_id=invoice, customer_id=invoice, turn=1)
        result = await self._executor.submit(call, context)
        while result is not None and result.approval is None:  # The database is busy.
            if result.ok or result.error.code != "unavailable":
                return result
            await asyncio.sleep(0.2)
            result = await self._executor.submit(call, context)
        if result is not None:
            self.report.approvals += 1
            await asyncio.sleep(self._chance.uniform(0, LEASE))
            await self._executor.approvals.approve(result.approval.token, by="operator", who="bo")
        while True:
            result = await self._executor.wait(session_id=invoice, call_id="c-1", timeout=1.0)
            if result.ok:
                return result
            if result.error.code == "outcome_unknown":
                await self._find_out(kind, invoice)
            elif result.error.code not in OPEN:
                return result

    async def _find_out(self, kind: str, invoice: str) -> None:
        """A person looks into the books, if nobody else can; a worker that comes back may be first."""
        if kind != "pay_once":
            return
        with suppress(ConfigError):  # It is no doubt any more, or its handler may still run.
            happened = self._books.has(invoice)
            await self._executor.resolve(session_id=invoice, call_id="c-1", happened=happened, who="bo")
            self.report.resolved += 1

    # Counting.

    def _count(self) -> None:
        lines = self._books.read()
        for invoice, result in self._answers.items():
            own = [line for line in lines if line.invoice == invoice]
            self.count_call(invoice, result, [line for line in own if line.what == "paid"])
            self._measure_takeover(own)

    def count_call(self, invoice: str, result: ToolResult | None, paid: list[Line]) -> None:
        """Compare what was answered with what is in the books."""
        report = self.report
        report.calls += 1
        past_lease = sum(self._was_frozen_paying(line) for line in paid) if len(paid) > 1 else 0
        effects = len({line.key for line in paid}) if invoice.startswith("pay_idempotent") else len(paid)
        what: list[str] = []
        if effects > 1 and effects - past_lease <= 1:
            report.past_lease += effects - 1
        elif effects > 1:
            report.double += 1
            what.append(f"paid {effects} times")
        if result is None:
            report.lost += 1
            what.append("no answer")
        elif result.ok != bool(effects):
            report.false += 1
            what.append(f"answered {result.for_model()[:200]!r}, paid {effects} times")
        elif not result.ok:  # Its worker came back after its timeout, or a person found nothing.
            report.not_done += 1
        if what:
            report.wrong.append(f"{invoice}: {', '.join(what)}")

    def _was_frozen_paying(self, line: Line) -> bool:
        """Whether a worker was frozen after it had decided to pay, and before it had paid."""
        return any(
            harm.how == "freeze" and harm.pid == line.pid and line.began <= harm.began and line.at >= harm.ended - 0.1
            for harm in self.report.harms
        )

    def _measure_takeover(self, own: list[Line]) -> None:
        """How long after a harm another worker had the call, where it was under way; in leases."""
        for harm in self.report.harms:
            before = [line for line in own if line.at < harm.began]
            if not before or before[-1].pid != harm.pid or before[-1].what == "looked":
                continue
            after = next((line for line in own if line.at > harm.began), None)
            if after is not None and after.pid != harm.pid and after.at < harm.ended:
                self.report.takeovers[harm.how].append((after.at - harm.began) / LEASE)


def describe(values: list[float]) -> str:
    """How many there are, their median and their 99th percentile."""
    if len(values) < 2:
        return str(len(values))
    last = statistics.quantiles(values, n=100, method="inclusive")[98]
    return f"{len(values)}, {statistics.median(values):.1f}, {last:.1f}"


def to_table(name: str, report: Report) -> str:
    """One column for each database."""
    rows = {
        "calls, with approval": f"{report.calls}, {report.approvals}",
        "kills, freezes": f"{report.count('kill')}, {report.count('freeze')}",
        "took effect twice": report.double,
        "lost": report.lost,
        "falsely reported": report.false,
        "twice, frozen in the instant of paying": report.past_lease,
        "ended in “nothing was done”, which is true": report.not_done,
        "doubts that a person resolved": report.resolved,
        "takeover after a kill: number, p50, p99 in leases": describe(report.takeovers["kill"]),
        "takeover after a freeze: number, p50, p99 in leases": describe(report.takeovers["freeze"]),
    }
    return "\n".join((f"| | {name} |", "|---|--:|", *(f"| {what} | {value} |" for what, value in rows.items())))


async def run(url: str, folder: Path, options: argparse.Namespace) -> Report:
    """Run it, with a Temporal server if that is wanted."""
    async with open_temporal() if options.temporal else nullcontext("-") as engine:
        chaos = Chaos(url, folder, seed=options.seed, engine=engine)
        return await chaos.run(options.minutes * 60, every=options.every)


def main() -> int:
    """Run it and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--every", type=float, default=3.0, help="seconds between two harms")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--postgres", action="store_true", help="on a Postgres server of its own, not on SQLite")
    parser.add_argument("--temporal", action="store_true", help="delivered by a Temporal development server of its own")
    parser.add_argument("--work", nargs=3, metavar=("URL", "BOOKS", "ENGINE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        asyncio.run(work(*options.work))
        return 0
    log.logger.disabled = True
    with TemporaryDirectory() as folder:
        server = PostgresServer() if options.postgres else None
        try:
            url = f"sqlite+aiosqlite:///{folder}/durable.db"
            if server is not None:
                server.start()
                url = server.new_database()
            report = asyncio.run(run(url, Path(folder), options))
        finally:
            if server is not None:
                server.remove()
    print("\n".join(report.wrong), file=sys.stderr)
    name = "Postgres" if options.postgres else "SQLite"
    print(to_table(f"{name}, Temporal" if options.temporal else name, report))
    return 0 if report.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())

"""Worker processes that tests kill, freeze and thaw."""

import asyncio
import os
import signal
import sqlite3
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import closing
from pathlib import Path
from typing import Any

from msgspec import structs
from sqlalchemy import make_url

from handrail import Executor, Policy, Rule, ToolCall, ToolContext, tool
from handrail.execute import Timeouts, Worker
from handrail.store import SqlStore, SqlWork, open_store
from handrail.store.ledger import SqlLedger
from tests.durable.engines import open_delivery

ROOT = Path(__file__).parents[2]
LEASE = 0.6
TIMEOUTS = Timeouts(call=2.0, lease=LEASE, lease_grace=0.2, repeat_window=60)
HANGING = structs.replace(TIMEOUTS, call=30.0)
"""Of a worker that stops after its effect: a call that timed out on a slow machine would be made once more."""


def freeze_at(stage: str) -> None:
    """Stop this process, once, between two steps of the call that it runs: `taken`, `claimed` or `settling`."""
    part, name, is_before = {
        "taken": (SqlWork, "take_many", False),
        "claimed": (SqlLedger, "claim", False),
        "settling": (SqlLedger, "settle", True),
    }[stage]
    step = getattr(part, name)

    async def stop(*arguments: Any, **options: Any) -> Any:
        nonlocal is_frozen
        if is_before and not is_frozen:
            is_frozen = True
            freeze_here()
        result = await step(*arguments, **options)
        if result and not is_frozen:
            is_frozen = True
            freeze_here()
        return result

    is_frozen = False
    setattr(part, name, stop)


def freeze_here() -> None:
    """Stop all threads of this process, until somebody thaws it."""
    print("frozen", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)


class Effects:
    """A file of effects: which call of which process, with which idempotency key. It outlives a kill."""

    def __init__(self, path: str) -> None:
        self._path = path

    def add(self, what: str, context: ToolContext[Any]) -> None:
        with open(self._path, "a") as file:
            file.write(f"{what} {os.getpid()} {context.idempotency_key}\n")
            file.flush()
            os.fsync(file.fileno())

    def list(self, what: str) -> "list[tuple[str, str]]":
        """The processes and keys of the effects of a call."""
        if not Path(self._path).exists():
            return []
        lines = [line.split() for line in Path(self._path).read_text().splitlines()]
        return [(pid, key) for name, pid, key in lines if name == what]


def build_executor(store: SqlStore, effects: Effects, how: str = "") -> Executor:
    """Four tools that pay; `how` says where a worker stops for ever: before its effect, or after it."""

    async def pay(invoice: str, context: ToolContext[Any]) -> str:
        if how == "before":  # Frozen inside one await: only its timeout ends it.
            print("running", flush=True)
            await asyncio.Event().wait()
        effects.add(invoice, context)
        if how == "after":
            await hang()
        return f"paid {invoice}"

    async def hang() -> None:
        print("running", flush=True)
        while not Path(f"{effects._path}.go").exists():  # pyright: ignore[reportPrivateUsage]
            await asyncio.sleep(0.02)

    def find(arguments: dict[str, Any], context: Any) -> Any:
        found = effects.list(arguments["invoice"])
        return f"found {arguments['invoice']}" if found else False

    @tool(durable=True, idempotent=True, key="invoice")
    async def pay_idempotent(invoice: str, context: ToolContext[Any]) -> str:
        """Pay with a key that the bank recognises."""
        return await pay(invoice, context)

    @tool(durable=True, verify=find, key="invoice")
    async def pay_verified(invoice: str, context: ToolContext[Any]) -> str:
        """Pay, where it can be looked up."""
        return await pay(invoice, context)

    @tool(durable=True, key="invoice", timeout=30)
    async def pay_once(invoice: str, context: ToolContext[Any]) -> str:
        """Pay, where nobody can look it up."""
        return await pay(invoice, context)

    policy, timeouts = Policy([Rule.allow("pay_*")]), HANGING if how == "after" else TIMEOUTS
    return Executor([pay_idempotent, pay_verified, pay_once], policy=policy, store=store, timeouts=timeouts)


def build_call(name: str, invoice: str) -> ToolCall:
    return ToolCall(id=invoice, name=name, arguments_json=f'{{"invoice": "{invoice}"}}')


CONTEXT = ToolContext[Any](session_id="s-1", customer_id="ann", turn=1)


async def work(url: str, path: str, how: str, mode: str, engine: str) -> None:
    """Run a worker until it is told to drain, or run one call here."""
    async with open_delivery(engine) as delivery, open_store(url, audit_interval=0.05, delivery=delivery) as store:
        if how.startswith("at-"):
            freeze_at(how.removeprefix("at-"))
        executor = build_executor(store, Effects(path), how)
        if mode != "worker":
            name, invoice = mode.split(":")
            print((await executor.run(build_call(name, invoice), CONTEXT)).for_model(), flush=True)
            return
        async with Worker(executor) as worker:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: asyncio.ensure_future(worker.drain()))
            print("ready", flush=True)
            await worker.run()


class WorkerProcess:
    """A process that can be killed, frozen and thawed."""

    def __init__(self, process: Process, url: str) -> None:
        self._process = process
        self._url = make_url(url)

    @classmethod
    async def start(
        cls, url: str, effects: str, *, how: str = "-", mode: str = "worker", engine: str = "-"
    ) -> "WorkerProcess":
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        arguments = ("-m", "tests.durable.workers", url, effects, how, mode, engine)
        process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=PIPE, env=environment)
        return cls(process, url)

    async def wait_for(self, line: str) -> None:
        assert self._process.stdout is not None
        async with asyncio.timeout(30):
            while (heard := (await self._process.stdout.readline()).decode().strip()) != line:
                assert heard, "the process ended"

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def freeze(self) -> None:
        """Stop the process, but not while it writes: with the lock of an SQLite file it would stop all others, too."""
        async with asyncio.timeout(30):
            while True:
                self._process.send_signal(signal.SIGSTOP)
                await asyncio.to_thread(os.waitid, os.P_PID, self._process.pid, os.WSTOPPED)
                if await asyncio.to_thread(self._can_write):
                    return
                self.thaw()
                await asyncio.sleep(0.02)  # It ends its transaction.

    def _can_write(self) -> bool:
        if self._url.get_backend_name() != "sqlite":
            return True
        with closing(sqlite3.connect(str(self._url.database), timeout=0.5, isolation_level=None)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return False
            connection.execute("ROLLBACK")
        return True

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    async def drain(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(20):
            return await self._process.wait()


if __name__ == "__main__":
    asyncio.run(work(*sys.argv[1:6]))

"""A consequential call whose ledger is a file of SQLite, beside the same three statements in bare `sqlite3`."""

import asyncio
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

from sqlalchemy import bindparam

from handrail import Executor, Policy, Rule, ToolCall, ToolContext, tool
from handrail.store import open_store
from handrail.store.ledger_statements import LedgerStatements
from handrail.store.sqlite_plans import SqlitePlan
from handrail.store.tables import ledger

AT_ONCE = 100
_BATCH = 20
"""Calls of one sample: the clock of CPU time is coarse."""


def measure(*, calls: int) -> dict[str, float]:
    """Medians per call: CPU on a file system in memory, wall time on the disk, and how many commits calls share."""
    memory = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        cpu = asyncio.run(_in_turns(Path(folder), calls, time.process_time))
    with tempfile.TemporaryDirectory() as folder:
        wall = asyncio.run(_in_turns(Path(folder), calls, time.perf_counter))
        together = asyncio.run(_measure_together(Path(folder)))
    return {
        "bare_cpu_us": cpu[0],
        "cpu_us": cpu[1],
        "bare_wall_us": wall[0],
        "wall_us": wall[1],
        **together,
    }


def _bare(folder: Path, calls: int) -> Callable[[], Awaitable[None]]:
    """The ledger's own statements on its own tables: look for the call, claim it, settle it; two are committed.

    With values like those of a call, since an index costs more where keys come in no order.
    """
    connection = sqlite3.connect(folder / "bare.db", isolation_level=None)
    for setting in ("journal_mode = WAL", "synchronous = FULL"):
        connection.execute(f"PRAGMA {setting}")
    statements = LedgerStatements(is_sqlite=True)
    found = {"id_session": "s-1", "id_call": "", "of_key": "", "of_full_key": ""}
    claimed: dict[str, Any] = {f"new_{column.name}": None for column in ledger.columns}
    for name in ("identity", "arguments_digest", "owner"):
        claimed[f"new_{name}"] = "0" * 64
    claimed |= dict.fromkeys(("new_number", "new_full_number", "new_repeat", "new_turn"), 0)
    claimed |= dict.fromkeys(("new_claimed_at", "new_lease_until", "new_run_until", "new_repeat_until"), 1.0)
    claimed |= {"new_session_id": "s-1", "new_tool": "pay", "new_state": "running", "new_arguments": "{}"}
    settled = {"of_session": "s-1", "of_owner": "0" * 64, "to_state": "committed", "to_recorded": '{"text":"paid"}'}
    settled |= {"to_changed": None, "is_settled": True, "to_settled_at": 1.0}
    claimed["new_customer_id"] = "c-1"
    insert = ledger.insert().values({column.name: bindparam(f"new_{column.name}") for column in ledger.columns})
    look_up = SqlitePlan(statements.recall, tuple(found))
    claim, settle = SqlitePlan(insert, tuple(claimed)), SqlitePlan(statements.settle, (*settled, "of_call"))
    found = dict(look_up.bind(found))
    numbers, keys = count(), iter([sha256(b"%d" % number).hexdigest() for number in range(calls)])

    async def three_statements() -> None:
        call_id, key = f"call_{next(numbers)}", next(keys)
        found.update(id_call=call_id, of_key=key, of_full_key=key)
        claimed.update(new_call_id=call_id, new_key=key, new_full_key=key, new_sent_key=key)
        settled.update(of_call=call_id)
        connection.execute(look_up.sql, found).fetchall()
        connection.execute(claim.sql, claimed)
        connection.execute(settle.sql, settled)

    return three_statements


@tool(concurrency_safe=True)  # Otherwise the calls of a session run one after the other.
async def pay(number: int) -> str:
    """Pay."""
    return f"paid {number}"


def _build_calls(store: Any) -> Callable[[], Awaitable[None]]:
    executor = Executor([pay], policy=Policy([Rule.allow("pay")]), ledger=store.ledger, approvals=store.approvals)
    context = ToolContext[Any](session_id="s-1", customer_id="c-1")
    numbers = count()

    async def one_call() -> None:
        number = next(numbers)
        call = ToolCall(id=f"call_{number}", name="pay", arguments_json=f'{{"number": {number}}}')
        result = await executor.run(call, context)
        if result.output != f"paid {number}":
            raise RuntimeError(f"{result}")

    return one_call


async def _in_turns(folder: Path, calls: int, clock: Callable[[], float]) -> list[float]:
    async with open_store(f"sqlite:///{folder}/handrail.db"):
        pass  # Closed, so that all of it is in one file.
    async with open_store(f"sqlite:///{folder}/handrail.db") as store:
        shutil.copy(folder / "handrail.db", folder / "bare.db")
        works = (_bare(folder, calls + 3 * _BATCH), _build_calls(store))
        samples: list[list[float]] = [[], []]
        for number in range(-2, calls // _BATCH):
            for work, kept in zip(works, samples, strict=True):
                began = clock()
                for _ in range(_BATCH):
                    await work()
                if number >= 0:
                    kept.append((clock() - began) / _BATCH * 1e6)
    return [statistics.median(sample) for sample in samples]


async def _measure_together(folder: Path) -> dict[str, float]:
    """Calls one at a time, and as many at once."""
    async with open_store(f"sqlite:///{folder}/together.db") as store:
        one_call = _build_calls(store)
        for _ in range(20):
            await one_call()
        single: list[float] = []
        many: list[float] = []
        for _ in range(5):
            began = time.perf_counter()
            for _ in range(AT_ONCE):
                await one_call()
            middle = time.perf_counter()
            await asyncio.gather(*(one_call() for _ in range(AT_ONCE)))
            single.append(middle - began)
            many.append(time.perf_counter() - middle)
    return {
        "alone_wall_us": statistics.median(single) / AT_ONCE * 1e6,
        "together_wall_us": statistics.median(many) / AT_ONCE * 1e6,
    }


if __name__ == "__main__":
    for _name, _value in measure(calls=1000).items():
        print(f"{_name:20} {_value:10.1f}")

"""A read-only call with the listeners of Handrail, as a multiple of the same call without any.

python -m benchmarks.listeners

Log writes JSON lines at level INFO to a stream that forgets them, before the call goes on or in the background;
Traces has a provider of the SDK that samples everything and exports nothing. The audit is a SQLite file, written
after every 100 calls. A row is the CPU of the thread that makes the calls: without the writing of the audit, and of a
log in the background.
"""

import asyncio
import io
import json
import logging
import statistics
import sys
import tempfile
import time
from itertools import count
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from prometheus_client import CollectorRegistry

from benchmarks.dispatch import ARGUMENTS, NAME
from benchmarks.targets import AUDIT_ROW, EVERY_MONITOR_ROW, IN_BACKGROUND_ROW
from handrail import Executor, ToolCall, ToolContext, tool
from handrail.monitor import JsonFormatter, Log, Metrics, Traces
from handrail.store import open_store

CALLS = 100
"""Calls of one sample."""
NONE = "none"


class _Nowhere(io.StringIO):
    def write(self, text: str, /) -> int:
        return len(text)


def _log(*, in_background: bool = False) -> Log:
    logger = logging.Logger("handrail.events", logging.INFO)  # noqa: LOG001  # one for each row
    handler = logging.StreamHandler(_Nowhere())
    handler.setFormatter(JsonFormatter())
    logger.addHandler(handler)
    return Log(logger, in_background=in_background)


async def measure(*, rounds: int) -> dict[str, float]:
    """Medians of the CPU time of one call, in microseconds: every round has one sample of each row."""

    @tool(name=NAME, read_only=True, concurrency_safe=True)
    async def plain(city: str, days: int) -> str:
        """Say what the weather will be."""
        return f"{city}: sun for {days} days"

    def ignore(event: object) -> None: ...

    with tempfile.TemporaryDirectory() as folder:
        async with open_store(f"sqlite:///{folder}/audit.db") as store:
            listeners: dict[str, list[Any]] = {
                NONE: [],
                "a function": [ignore],
                "Log": [_log()],
                "Log in the background": [_log(in_background=True)],
                "Metrics": [Metrics(CollectorRegistry())],
                "Traces": [Traces(TracerProvider())],
                EVERY_MONITOR_ROW: [
                    _log(), Metrics(CollectorRegistry()), Traces(TracerProvider())
                ],
                IN_BACKGROUND_ROW: [
                    _log(in_background=True), Metrics(CollectorRegistry()), Traces(TracerProvider())
                ],
                AUDIT_ROW: [store.audit],
            }  # fmt: skip
            executors = {name: Executor([plain], listeners=some) for name, some in listeners.items()}
            samples: dict[str, list[float]] = {name: [] for name in listeners}
            numbers, context = count(1), ToolContext[Any](session_id="s-1")
            for _ in range(rounds):
                for name, executor in executors.items():
                    start = time.thread_time_ns()
                    for _ in range(CALLS):
                        call = ToolCall(id=f"call_{next(numbers)}", name=NAME, arguments_json=ARGUMENTS)
                        (await executor.run(call, context)).for_model()
                    samples[name].append((time.thread_time_ns() - start) / CALLS / 1e3)
                await store.audit.flush(timeout=60)
    return {name: statistics.median(some[rounds // 10 :]) for name, some in samples.items()}


def measure_all(*, rounds: int) -> list[dict[str, Any]]:
    """A row for each set of listeners: its name, microseconds, and the multiple of the same call without any."""
    figures = asyncio.run(measure(rounds=rounds))
    return [
        {"name": name, "us": round(us, 2), "ratio": round(us / figures[NONE], 2)} for name, us in figures.items()
    ]  # fmt: skip


if __name__ == "__main__":
    json.dump(measure_all(rounds=int(sys.argv[1]) if len(sys.argv) > 1 else 100), sys.stdout, indent=2)
    sys.stdout.write("\n")

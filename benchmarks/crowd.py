"""Ten thousand calls that sleep at once: what each of them takes of the memory."""

import asyncio
import gc
import tracemalloc
from typing import Any

from handrail import Executor, Policy, Rule, ToolCall, ToolContext, tool

KINDS = ("read", "change")


async def bytes_per_call(calls: int, kind: str) -> float:
    """Memory of one call while `calls` of them sleep, each in a session of its own. All of them are answered."""
    wake, all_sleep, begun = asyncio.Event(), asyncio.Event(), 0

    async def sleep(n: int) -> str:
        """Sleep."""
        nonlocal begun
        begun += 1
        if begun == calls:
            all_sleep.set()
        await wake.wait()
        return f"slept {n}"

    made = tool(sleep, read_only=kind == "read", concurrency_safe=True)
    executor = Executor([made], policy=Policy([Rule.allow("sleep")]))
    wanted = [ToolCall(id=f"c-{n}", name="sleep", arguments_json=f'{{"n": {n}}}') for n in range(calls)]
    contexts = [ToolContext[Any](session_id=f"s-{n}") for n in range(calls)]
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        running = [asyncio.ensure_future(executor.run(*item)) for item in zip(wanted, contexts, strict=True)]
        await all_sleep.wait()
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    wake.set()
    results = await asyncio.gather(*running)
    assert [result.output for result in results] == [f"slept {n}" for n in range(calls)]
    return taken / calls


def measure() -> list[dict[str, Any]]:
    """A thousand and ten thousand calls of each kind."""
    return [
        {"kind": kind, "calls": calls, "bytes": asyncio.run(bytes_per_call(calls, kind))}
        for kind in KINDS
        for calls in (1_000, 10_000)
    ]

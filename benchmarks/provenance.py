"""What a rule with `from` costs: beside a rule with `matches`, and after many results. Run it with `python -m`.

Ratios of CPU time, each the middle of several rounds that alternate: a machine that does other things disturbs both.
"""

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from handrail import Executor, Policy, Provenance, Rule, ToolCall, ToolContext, tool

ROUNDS, CALLS = 15, 400
IBAN = "CH93-0076-2011-6238-5295-7"
LIMITS = {"a `from` beside a `matches`": 2.0, "after 2,000 results beside after 20": 1.3}


@tool(repeatable=True)
async def send_money(recipient: str, amount: float) -> str:
    """Send money."""
    return "sent"


@tool(read_only=True)
async def search_contacts(query: str) -> list[dict[str, str]]:
    """Search the contacts."""
    return [{"name": f"{query} {number}", "iban": f"CH{number:04d}-{query}"} for number in range(20)]


async def build(where: dict[str, Any], results: int) -> Callable[[], Any]:
    executor = Executor([send_money, search_contacts], policy=Policy([Rule.allow("send_money", where=where)]))
    provenance = Provenance()
    provenance.add_customer(f"Please send 20 to {IBAN}, and thank you.")
    context = ToolContext(session_id="s-1", turn=1, provenance=provenance)
    for number in range(results):
        arguments = json.dumps({"query": f"q{number}"})
        await executor.run(ToolCall(id=f"r{number}", name="search_contacts", arguments_json=arguments), context)
    number = 0

    async def run() -> None:
        nonlocal number
        for _ in range(CALLS):
            number += 1
            arguments = f'{{"recipient": "{IBAN}", "amount": 20}}'
            result = await executor.run(ToolCall(id=f"c{number}", name="send_money", arguments_json=arguments), context)
            assert result.ok, result

    return run


async def compare(one: Callable[[], Any], other: Callable[[], Any]) -> float:
    ratios: list[float] = []
    for _ in range(ROUNDS):
        times: list[float] = []
        for run in (one, other):
            started = time.process_time()
            await run()
            times.append(time.process_time() - started)
        ratios.append(times[0] / times[1])
    return statistics.median(ratios)


async def main() -> int:
    by_origin = {"recipient": {"from": ["customer", "tool:search_contacts.iban"]}}
    matches = await build({"recipient": {"matches": r"[A-Z]{2}\d\d(-\d{1,4})+"}}, 0)
    ratios = {
        "a `from` beside a `matches`": await compare(await build(by_origin, 0), matches),
        "after 2,000 results beside after 20": await compare(await build(by_origin, 2_000), await build(by_origin, 20)),
    }
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:.2f} × (at most {LIMITS[name]} ×)")
    return int(any(ratio > LIMITS[name] for name, ratio in ratios.items()))


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))

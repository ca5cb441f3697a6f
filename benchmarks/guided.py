"""Guided turns: the framework's own time, model calls, and prompt tokens. `python -m benchmarks.guided [--quick]`

The judge is scripted, so that nothing but Handrail is measured. Tokens are counted by the tokenizer of MiniLM
(`handrail model pull minilm`), over everything that a provider is sent: instructions, question, and the schema.
"""

import argparse
import asyncio
import gc
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from handrail import Agent, Tool, tool
from handrail.core.text import compact_json
from handrail.guide import Draft, GuidelineMatch, Plan, PlanRequest, ReplyRequest, ToolVerdict
from handrail.guide.judges.provider import (
    build_plan_instructions,
    build_plan_schema,
    build_reply_instructions,
    build_reply_schema,
    render_plan_request,
    render_reply_request,
)

RESULTS = Path(__file__).with_name("guided.json")
ORIGINAL = {"ms": "280–360", "one tool": 5, "cascade": 6, "22 guidelines": 11, "tokens": 15_000}
"""The product that the design comes from, measured with a model stub."""


@tool(read_only=True, concurrency_safe=True)
async def get_balance(account: str) -> str:
    """Retrieves the account balance of a customer."""
    return "20000 EUR"


@tool(read_only=True, concurrency_safe=True)
async def get_investment_options() -> list[str]:
    """Lists the investments that can be recommended."""
    return ["bonds", "funds"]


@tool(read_only=True, concurrency_safe=True)
async def get_rates(currency: str) -> str:
    """Looks up the exchange rates of a currency."""
    return "1.1"


def many(number: int) -> Tool[..., Any]:
    """A read-only tool with a name of its own."""

    @tool(name=f"look_up_{number}", read_only=True, concurrency_safe=True)
    async def look_up(what: str) -> str:
        """Looks something up."""
        return what

    return look_up


class Judge:
    """Wants one tool, or several in a cascade; keeps its requests."""

    def __init__(self, *steps: tuple[str, str, dict[str, Any]]) -> None:
        self.steps = steps
        self.plans: list[PlanRequest] = []
        self.replies: list[ReplyRequest] = []

    def reset(self) -> None:
        self.plans.clear()
        self.replies.clear()

    async def plan(self, request: PlanRequest) -> Plan:
        """Match the guideline of the next step; infer its call where its tool is shown."""
        self.plans.append(request)
        guideline, name, arguments = self.steps[min(len(self.replies), len(self.steps) - 1)]
        shown = any(item.name == name for item in request.tools)
        verdicts = (ToolVerdict(name, "needs_to_run", arguments),) if shown else ()
        return Plan((GuidelineMatch(guideline, True, "it fits"),), verdicts)

    async def reply(self, request: ReplyRequest) -> Draft:
        """Bring the next step in, or reply."""
        self.replies.append(request)
        following = self.steps[len(self.replies) :][:1]
        return Draft("You have 20000 EUR.", tuple(item[0] for item in following))


async def one_tool() -> tuple[Agent, Judge]:
    judge = Judge(("g1", "get_balance", {"account": "current"}))
    agent = Agent(judge=judge, tools=[get_balance], instructions="You work for a bank.")
    await agent.create_guideline(
        "Customer asks about their account balance", "Look up their balance and tell them", tools=["get_balance"]
    )
    await agent.create_guideline("Customer is rude", "Stay polite")
    return agent, judge


async def cascade() -> tuple[Agent, Judge]:
    judge = Judge(("g1", "get_balance", {"account": "current"}), ("g2", "get_investment_options", {}))
    agent = Agent(judge=judge, tools=[get_balance, get_investment_options])
    await agent.create_guideline("Customer asks about their account balance", tools=["get_balance"])
    await agent.create_guideline("The balance is high", "Recommend investments", tools=["get_investment_options"])
    return agent, judge


async def cascade_with_arguments() -> tuple[Agent, Judge]:
    judge = Judge(("g1", "get_balance", {"account": "current"}), ("g2", "get_rates", {"currency": "USD"}))
    agent = Agent(judge=judge, tools=[get_balance, get_rates])
    await agent.create_guideline("Customer asks about their account balance", tools=["get_balance"])
    await agent.create_guideline("The balance is high", "Tell them the rates", tools=["get_rates"])
    return agent, judge


async def guidelines(count: int) -> tuple[Agent, Judge]:
    wanted = count // 2
    judge = Judge((f"g{wanted + 1}", f"look_up_{wanted}", {"what": "it"}))
    agent = Agent(judge=judge, tools=[many(number) for number in range(count)])
    subjects = ["balance", "transfer", "card", "branch", "loan", "mortgage", "insurance", "pension", "fees", "fraud"]
    for number in range(count):
        subject = subjects[number % len(subjects)]
        await agent.create_guideline(
            f"Customer asks about the {subject} of product {number}",
            f"Look it up, case {number}",
            tools=[f"look_up_{number}"],
        )
    return agent, judge


SETUPS: dict[str, Callable[[], Awaitable[tuple[Agent, Judge]]]] = {
    "1 tool, 2 guidelines": one_tool,
    "cascade, no arguments": cascade,
    "cascade, with arguments": cascade_with_arguments,
    "10 guidelines": lambda: guidelines(10),
    "50 guidelines": lambda: guidelines(50),
    "200 guidelines": lambda: guidelines(200),
}


async def measure(setup: Callable[[], Awaitable[tuple[Agent, Judge]]], *, rounds: int, count: Any) -> dict[str, Any]:
    """CPU milliseconds of one turn in a new session, model calls and tokens."""
    agent, judge = await setup()
    wanted = agent.guidelines[len(agent.guidelines) // 2].condition
    spent: list[float] = []
    for number in range(rounds + 20):
        judge.reset()
        session = agent.session(session_id=f"s-{number}", customer_id="c-1")
        if number == 20:
            gc.collect()
            gc.freeze()
        start = time.process_time_ns()
        result = await session.send(wanted)
        spent.append((time.process_time_ns() - start) / 1e6)
        assert result.text == "You have 20000 EUR."
        assert len(result.results) == len(judge.steps)
    found: dict[str, Any] = {
        "ms": round(statistics.median(spent[20:]), 3),
        "model_calls": len(judge.plans) + len(judge.replies),
    }
    if count is not None:
        plans = [
            (build_plan_instructions(plan), render_plan_request(plan), compact_json(build_plan_schema(plan)))
            for plan in judge.plans
        ]
        replies = [
            (build_reply_instructions(reply), render_reply_request(reply), compact_json(build_reply_schema(reply)))
            for reply in judge.replies
        ]
        found["tokens"] = sum(count(text) for question in (*plans, *replies) for text in question)
    return found


def tokenizer() -> Any:
    """Counts the tokens of a text; None where the tokenizer is not on this machine."""
    try:
        from tokenizers import Tokenizer

        from handrail.models.cache import find_directory
        from handrail.models.catalogue import MINILM

        loaded: Any = Tokenizer.from_file(str(find_directory(MINILM.name) / "tokenizer.json"))
    except Exception as error:
        print(f"no tokens: {error}", file=sys.stderr)
        return None
    loaded.no_truncation()
    loaded.no_padding()
    return lambda text: len(loaded.encode(text, add_special_tokens=False).ids)


async def main() -> None:
    """Measure, print, and write unless it is quick."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.guided", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, printed, nothing written")
    quick = parser.parse_args().quick
    count = tokenizer()
    rows = {name: await measure(setup, rounds=30 if quick else 300, count=count) for name, setup in SETUPS.items()}
    for name, row in rows.items():
        print(f"{name:<26}{row['ms']:>8.3f} ms{row['model_calls']:>4} model calls{row.get('tokens', 0):>7} tokens")
    if not quick:
        machine = {"cores": os.cpu_count(), "python": platform.python_version(), "load": os.getloadavg()[0]}
        results = {"date": datetime.now(UTC).date().isoformat(), "machine": machine, "rows": rows, "original": ORIGINAL}
        RESULTS.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    asyncio.run(main())

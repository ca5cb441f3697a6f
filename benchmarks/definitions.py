"""The definitions of 1,000 tools for a request: worked out for the first time, and once more."""

import gc
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import pydantic
import toolcall.openai.core as toolcall

from benchmarks import harness
from handrail import Tool, ToolRegistry, tool
from handrail.openai import core

COUNT = 1_000
FORMATS: dict[str, Callable[[ToolRegistry], Any]] = {
    "`registry.to_openai_tools()`": ToolRegistry.to_openai_tools,
    "`registry.to_openai_chat_tools()`": ToolRegistry.to_openai_chat_tools,
    "`registry.to_openai_realtime_tools()`": ToolRegistry.to_openai_realtime_tools,
    "`registry.to_anthropic_tools()`": ToolRegistry.to_anthropic_tools,
    "`registry.to_gemini_tools()`": ToolRegistry.to_gemini_tools,
    "`registry.to_mcp_tools()`": ToolRegistry.to_mcp_tools,
}


@dataclass(frozen=True, kw_only=True)
class Served:
    """Milliseconds of CPU time for the definitions of all tools."""

    name: str
    sent: int
    """How many go out: an API may take fewer."""
    first_ms: float
    again_ms: float
    ratio: float
    """`again_ms` as a multiple of what `json.loads` takes to build the same dicts and lists of their text."""


def measure(*, rounds: int, first_rounds: int) -> tuple[float, list[Served]]:
    """Milliseconds to make the tools of functions, and what their definitions cost."""
    made: list[float] = []
    first: dict[str, list[float]] = {}
    serve: dict[str, Callable[[], Any]] = {}
    for _ in range(first_rounds):
        functions = [_function(number) for number in range(COUNT)]
        tools: list[Tool[..., Any]] = []
        made.append(_spent_ms(lambda functions=functions, tools=tools: tools.extend(map(tool, functions))))
        registry = ToolRegistry(tools)
        serve = {name: partial(make, registry) for name, make in FORMATS.items()}
        for name, work in serve.items():
            first.setdefault(name, []).append(_spent_ms(work))
    served = _served(serve, first, rounds)
    # After the registries: 2,000 classes crowd the memory, and everything in the process gets slower. They are dear to
    # make, and stay, so there is only one first time.
    groups = _groups()
    return statistics.median(made), served + _served(groups, {n: [_spent_ms(w)] for n, w in groups.items()}, rounds)


def _served(serve: dict[str, Callable[[], Any]], first: dict[str, list[float]], rounds: int) -> list[Served]:
    rows: list[harness.Row] = []
    for name, work in serve.items():
        floor = f"json.loads, {name}"
        rows.append(harness.Row(name=name, floor=floor, run=work, is_async=False))
        rows.append(harness.Row(name=floor, floor=floor, run=partial(json.loads, json.dumps(work())), is_async=False))
    return [
        Served(
            name=again.name,
            sent=COUNT - len(getattr(serve[again.name](), "skipped", ())),
            first_ms=statistics.median(first[again.name]),
            again_ms=again.ns / 1e6,
            ratio=again.ratio,
        )
        for again in harness.measure(rows, rounds=rounds)
        if again.name in serve
    ]


def _function(number: int) -> Callable[..., Any]:
    async def search(
        account_id: str, kind: Literal["order", "invoice", "ticket"], limit: int = 10, tags: list[str] | None = None
    ) -> str:
        """Search the records of an account.

        Args:
            account_id: Whose records.
            kind: What to look for.
            limit: How many to return.
            tags: Only records that have all of these.
        """
        return ""

    search.__name__ = search.__qualname__ = f"search_{number}"
    return search


def _groups() -> dict[str, Callable[[], Any]]:
    fields: dict[str, Any] = {
        "account_id": (str, pydantic.Field(description="Whose records.")),
        "kind": (Literal["order", "invoice", "ticket"], pydantic.Field(description="What to look for.")),
        "limit": (int, pydantic.Field(default=10, description="How many to return.")),
        "tags": (list[str] | None, pydantic.Field(default=None, description="Only records that have all of these.")),
    }

    def classes(base: Any) -> list[Any]:
        about = "Search the records of an account."
        return [
            pydantic.create_model(f"search_{number}", __base__=base, __doc__=about, **fields) for number in range(COUNT)
        ]

    return {
        'Handrail facade: `group.tool_definitions("responses")`': partial(
            core.LLMFunctionToolGroup.from_list(classes(core.LLMFunctionTool)).tool_definitions, "responses"
        ),
        'toolcall: `group.tool_definitions("responses")`': partial(
            toolcall.LLMFunctionToolGroup.from_list(classes(toolcall.LLMFunctionTool)).tool_definitions, "responses"
        ),
    }


def _spent_ms(work: Callable[[], Any]) -> float:
    gc.collect()
    gc.disable()
    try:
        start = time.process_time_ns()
        work()
        return (time.process_time_ns() - start) / 1e6
    finally:
        gc.enable()

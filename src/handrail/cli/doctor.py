"""`handrail doctor`: shows what is installed, what each missing extra would give, and whether a store opens."""

import argparse
import asyncio
import platform
import re
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Final

from handrail.cli.model import format_size
from handrail.core.version import __version__
from handrail.errors import HandrailError
from handrail.models.cache import get_cache_directory, list_models
from handrail.store import open_store

EXTRAS: Final[Mapping[str, str]] = {
    "sql": "ledger, approvals, conversations and audit in SQLite or Postgres; handrail doubts",
    "encryption": "encrypted arguments in the database",
    "openai": "OpenAI's models and compatible servers, phone calls",
    "anthropic": "Anthropic's models",
    "gemini": "Google's models",
    "embedded": "a small model in the process, without a key; search by meaning",
    "mcp": "tools of MCP servers; serving tools over MCP",
    "openapi": "tools from OpenAPI documents",
    "serve": "handrail serve: the gateway and its console",
    "yaml": "policies, tenants and agents in YAML files",
    "cli": "handrail chat",
    "otel": "traces with OpenTelemetry",
    "metrics": "metrics for Prometheus",
    "pydantic-ai": "Handrail under pydantic-ai",
    "langchain": "Handrail under LangChain and LangGraph",
    "openai-agents": "Handrail under the OpenAI Agents SDK",
    "fastmcp": "Handrail under FastMCP",
    "livekit": "Handrail under LiveKit",
    "google-adk": "Handrail under Google's Agent Development Kit",
    "claude-agent-sdk": "Handrail under the Claude Agent SDK",
    "temporal": "durable calls delivered by Temporal",
}
"""What each extra gives."""

_REQUIREMENT: Final = re.compile(r"([\w.-]+)(?:\[[^]]*\])?(?:>=([\d.]+))?.*; extra == ['\"]([\w-]+)['\"]")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "--store", metavar="URL", help="also open this database: sqlite:///… or postgresql://…; it is not changed"
    )


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code: 1 if the database does not open. A missing extra is no failure."""
    print(f"handrail {__version__}, in {Path(__file__).parents[1]}")
    print(f"Python {platform.python_version()} ({platform.python_implementation()}, {sys.platform}), {sys.executable}")
    print("\nExtras:")
    states = _check_extras()
    width = max(map(len, EXTRAS))
    for extra, gives in EXTRAS.items():
        state, _, problems = states[extra].partition(": ")
        print(f"  {extra:<{width}}  {state:<11}{gives}{f' ({problems})' if problems else ''}")
    if set(states.values()) != {"installed"}:
        print("  A missing one is installed with: pip install 'handrail[NAME]'")
    print(f"\nModels in {get_cache_directory()}:")
    for listed in list_models():
        state = "downloaded" if listed.is_complete else f"handrail model pull {listed.model.name}"
        print(f"  {listed.model.name:<20}{format_size(listed.model.size):>8}  {state}")
    if options.store is None:
        return 0
    print("\nStore:")
    try:
        asyncio.run(_open(options.store))
    except HandrailError as error:
        print(f"  does not open: {error}")
        return 1
    print("  opens, and its tables are those of this version")
    return 0


def _check_extras() -> dict[str, str]:
    """For each extra: installed, missing, or in part, with what of it is missing or too old."""
    try:
        found = [match for line in requires("handrail") or () if (match := _REQUIREMENT.match(line))]
    except PackageNotFoundError:
        return dict.fromkeys(EXTRAS, "unknown")
    states: dict[str, str] = {}
    for extra in EXTRAS:
        problems = [_find_problem(match[1], match[2] or "0") for match in found if match[3] == extra]
        real = [problem for problem in problems if problem is not None]
        is_absent = len(real) == len(problems) and all(problem.endswith("missing") for problem in real)
        states[extra] = "installed" if not real else "missing" if is_absent else f"in part: {', '.join(real)}"
    return states


def _find_problem(name: str, least: str) -> str | None:
    """Why a distribution is not there as an extra needs it; None if it is."""
    try:
        installed = version(name)
    except PackageNotFoundError:
        return f"{name} missing"
    return None if _parse(installed) >= _parse(least) else f"{name} {installed} is older than {least}"


def _parse(text: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", text.partition("+")[0])]


async def _open(url: str) -> None:
    async with open_store(url, migrate=False, timeout=5):
        pass

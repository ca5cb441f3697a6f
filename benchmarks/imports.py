"""What an import costs, in CPU time of a new interpreter, without the interpreter's own start."""

import subprocess
import sys
from collections.abc import Sequence

from benchmarks.harness import Figure, figure

FLOOR = "import asyncio, pydantic"
TOOL = "from handrail import tool"
EXECUTOR = "from handrail import Executor"
AGENT = "from handrail import Agent"
PHONE = "from handrail.phone import PhoneGateway"
STATEMENTS = (
    FLOOR,
    TOOL,
    EXECUTOR,
    AGENT,
    PHONE,
    "from handrail.openai.core import LLMFunctionTool",
    "from toolcall.openai.core import LLMFunctionTool",
    "from langchain_core.tools import tool",
    "from pydantic_ai import Agent",
    "from agents import function_tool",
    "from fastmcp import FastMCP",
)
SDKS = ("openai", "anthropic", "google.genai", "mcp")

_TIMED = """import time
start = time.process_time_ns()
{statement}
print(time.process_time_ns() - start)"""
_LOADED = """{statement}
import sys
print(*(sdk for sdk in {sdks!r} if sdk in sys.modules))"""


def measure(*, rounds: int, statements: Sequence[str] = STATEMENTS) -> list[Figure]:
    """The statements in turn, each in an interpreter of its own; the first turn writes the bytecode."""
    samples: dict[str, list[float]] = {statement: [] for statement in statements}
    for number in range(-1, rounds):
        for statement in statements:
            spent = int(_python(_TIMED.format(statement=statement)))
            if number >= 0:
                samples[statement].append(spent)
    return [figure(statement, FLOOR, samples[statement], samples[FLOOR]) for statement in statements]


def sdks_loaded(statement: str) -> list[str]:
    """The providers' SDKs that an import brings with it."""
    return _python(_LOADED.format(statement=statement, sdks=SDKS)).split()


def _python(program: str) -> str:
    # Isolated, so that nothing of the caller's environment changes the figures; the bytecode cache is handed on.
    kept = ["-X", f"pycache_prefix={sys.pycache_prefix}"] if sys.pycache_prefix else []
    command = [sys.executable, "-I", *kept, "-c", program]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout

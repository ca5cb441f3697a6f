"""Loads what the command line names: an agent's file with its tools and policy, and objects as `module:object`."""

import runpy
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final, cast

from msgspec import Struct

from handrail.authorize.policy import Policy
from handrail.errors import ConfigError, HandrailError
from handrail.guide import Agent
from handrail.registry.registry import ToolRegistry
from handrail.sources.source import Source

_EXAMPLE: Final = "bank_agent.py"
_NOT_PYTHON: Final = frozenset({".json", ".yaml", ".yml"})
"""A gateway's file, a policy or a tenant, which other commands take."""


class AgentFile(Struct, frozen=True, kw_only=True):
    """What an agent file defines."""

    tools: ToolRegistry
    policy: Policy
    instructions: str
    make_deps: Callable[[], Any]
    sources: tuple[Source, ...] = ()
    """MCP servers and other sources, which are connected while the conversation lasts."""
    agent: Agent | None = None
    """The agent that follows guidelines, if the file defines one."""


def find_example(name: str) -> Path:
    """An example: beside this module in an installed package, in `examples/` in a checkout."""
    installed = Path(__file__).with_name(name)
    return installed if installed.exists() else Path(__file__).parents[3] / "examples" / name


def run_file(file: Path) -> dict[str, Any]:
    """Run a Python file and return its names; `ConfigError` with the line if it raises."""
    try:
        return runpy.run_path(str(file))
    except HandrailError:
        raise
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
        line = f":{lines[-1]}" if lines else f":{error.lineno}" if isinstance(error, SyntaxError) else ""
        raise ConfigError(
            f"{file}{line}: {type(error).__name__}: {error}. `python {file}` shows the whole traceback."
        ) from error


def load_agent_file(path: str | Path | None = None) -> AgentFile:
    """Run a Python file and read `AGENT` or `TOOLS`, `POLICY` and `INSTRUCTIONS` from it; default: the example.

    The file is executed, so load only files that you trust.
    """
    file = Path(path) if path is not None else find_example(_EXAMPLE)
    if not file.is_file():
        raise ConfigError(f"{file} is not a file; expected a Python file that defines TOOLS.")
    if file.suffix in _NOT_PYTHON:
        raise ConfigError(f"{file} is not a Python file; expected one that defines TOOLS.")
    names = run_file(file)
    agent = names.get("AGENT")
    if agent is None and not names.keys() & {"TOOLS", "SOURCES"}:
        raise ConfigError(
            f"{file} must define TOOLS, a list of tools, such as functions decorated with @tool; SOURCES, a list of "
            f"sources, such as McpServer(…); or AGENT, an Agent."
        )
    tools, sources = names.get("TOOLS", ()), names.get("SOURCES", [])
    policy, instructions, make_deps = names.get("POLICY"), names.get("INSTRUCTIONS", ""), names.get("make_deps")
    for name, value, is_valid, expected in (
        ("AGENT", agent, agent is None or isinstance(agent, Agent), "an Agent"),
        ("POLICY", policy, policy is None or isinstance(policy, Policy), "a Policy"),
        ("INSTRUCTIONS", instructions, isinstance(instructions, str), "a str"),
        ("TOOLS", tools, isinstance(tools, Iterable) and not isinstance(tools, str), "a list of tools"),
        ("SOURCES", sources, isinstance(sources, list | tuple), "a list"),
        ("make_deps", make_deps, make_deps is None or callable(make_deps), "a function without arguments"),
    ):
        if not is_valid:
            raise ConfigError(f"{name} in {file} must be {expected}, got {type(value).__name__}.")
    make = cast(Callable[[], Any], make_deps or (lambda: None))
    if isinstance(agent, Agent):
        if given := [name for name in ("TOOLS", "POLICY", "INSTRUCTIONS", "SOURCES") if name in names]:
            raise ConfigError(f"{file} defines AGENT, which has its own; remove {', '.join(given)}.")
        own = agent.executor.registry
        return AgentFile(tools=own, policy=agent.policy, instructions=agent.instructions, make_deps=make, agent=agent)
    return AgentFile(
        tools=ToolRegistry(cast(Iterable[object], tools)),
        sources=tuple(cast(Sequence[Source], sources)),
        policy=cast(Policy, policy or Policy()),
        instructions=cast(str, instructions),
        make_deps=make,
    )


def load_object(text: str) -> Any:
    """Load an object from a module or a file, which is executed."""
    where, _, name = text.rpartition(":")
    if not where or not name:
        raise ConfigError(f"Name an object as module:object or file.py:object, got {text!r}.")
    if where.endswith(".py"):
        if not Path(where).is_file():
            raise ConfigError(f"There is no file {where}.")
        names = run_file(Path(where))
        if name not in names:
            raise ConfigError(f"{where} defines no {name}.")
        return names[name]
    sys.path.insert(0, "")
    try:
        module = import_module(where)
    except ModuleNotFoundError as error:
        raise ConfigError(f"There is no module {where}: {error}.") from error
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"{where} has no {name}.")
        found = getattr(found, part)
    return found

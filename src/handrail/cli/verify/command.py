"""`handrail verify`: plays faults against your policy, your tools' flags and your store; says which guarantees hold."""

import argparse
import asyncio
import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec import structs

from handrail.cli.object_reference import load_object
from handrail.cli.processes import run_processes
from handrail.cli.verify.configuration import check_executor, check_tool
from handrail.cli.verify.faults import FAULT_NAMES, SCRATCH_PREFIX, VerifiedTool, play_cells
from handrail.cli.verify.guarantee import Guarantee, format_junit, format_report
from handrail.core.log import silence_log
from handrail.core.text import suggest
from handrail.core.tool import Tool
from handrail.errors import ConfigError, HandrailError, StoreError
from handrail.execute.executor import Executor
from handrail.execute.ledger import MemoryLedger
from handrail.store import open_store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("executor", metavar="EXECUTOR", help="module:object or file.py:object, an Executor")
    parser.add_argument(
        "--store", metavar="URL", help="sqlite:///… or postgresql://…, in the place of the executor's own store"
    )
    parser.add_argument("--migrate", action="store_true", help="create or update the tables of --store first")
    parser.add_argument("--tool", action="append", default=[], metavar="NAME", help="only this tool; can be repeated")
    parser.add_argument(
        "--accept",
        action="append",
        default=[],
        metavar="NAME",
        help="a guarantee that need not hold, such as encryption, or recovery:send_mail for one tool; can be repeated",
    )
    parser.add_argument("--junit", metavar="FILE", type=Path, help="also write the report as JUnit XML")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code: 1 if a guarantee does not hold."""
    if not hasattr(os, "fork"):
        raise ConfigError("this command kills processes that it forks, and this system cannot fork.")
    if options.junit is not None and not options.junit.parent.is_dir():
        raise ConfigError(f"the directory of --junit must exist: {options.junit.parent}")
    executor = load_object(options.executor)
    if not isinstance(executor, Executor):
        raise ConfigError(f"{options.executor} must be an Executor, got {type(executor).__name__}.")
    return verify(executor, options)


def verify(executor: Executor, options: argparse.Namespace) -> int:
    """Check everything, print the report, and remove what was written."""
    tools = choose_tools(executor, options.tool)
    store = open_store(options.store, migrate=options.migrate) if options.store else executor.store
    build_store: Callable[[], Any] | None = getattr(store, "build_scratch", None)
    if build_store is None and not isinstance(store.ledger, MemoryLedger):
        raise ConfigError(
            f"the rows of a {type(store.ledger).__name__} cannot be removed again: name a database with --store."
        )
    name = secrets.token_hex(4)
    guarantees = check_executor(
        executor,
        is_shared=store.ledger.needs_lease,
        is_encrypted=getattr(store, "is_encrypted", False),
        is_audited=store.audit is not None,
    )
    raise_if_unknown(options.accept, executor, guarantees)
    if build_store is not None:
        [problem] = run_processes(lambda: asyncio.run(_find_problem(store)))
        if problem:
            raise StoreError(problem)
    count = f"{len(tools)} consequential tool{'s' * (len(tools) != 1)}"
    print(f"{options.executor}: {count}; no handler of theirs is run.")
    try:
        for tool in tools:
            subject = VerifiedTool(executor=executor, tool=tool, run=name, build_store=build_store)
            with silence_log():  # What fails here is meant to.
                played = list(play_cells(subject))
            guarantees += [*check_tool(executor, tool), *played]
    finally:
        if build_store is not None:
            run_processes(lambda: asyncio.run(_remove(build_store, name)))
    guarantees = [_accept(guarantee, options.accept) for guarantee in guarantees]
    print(format_report(guarantees))
    if options.junit is not None:
        options.junit.write_text(format_junit(guarantees), "utf-8")
    return 1 if any(guarantee.is_failed for guarantee in guarantees) else 0


def choose_tools(executor: Executor, names: Sequence[str]) -> list[Tool[..., Any]]:
    """The consequential tools, or those that were named."""
    known = {tool.name: tool for tool in executor.known_tools}
    for name in names:
        if name not in known:
            raise ConfigError(f"there is no tool {name!r}{suggest(name, known)}")
        if known[name].read_only:
            raise ConfigError(f"{name!r} is read-only: nothing has to be verified about it.")
    return [tool for tool in known.values() if not tool.read_only and (not names or tool.name in names)]


def raise_if_unknown(accepted: Sequence[str], executor: Executor, guarantees: Sequence[Guarantee]) -> None:
    """Refuse to accept what is no guarantee: it would never be missed."""
    known = [guarantee.name for guarantee in guarantees]
    for tool in choose_tools(executor, ()):
        names = [*(guarantee.name for guarantee in check_tool(executor, tool)), *FAULT_NAMES]
        known += [*names, *(f"{name}:{tool.name}" for name in names)]
    for name in accepted:
        if name not in known:
            raise ConfigError(f"there is no guarantee {name!r}{suggest(name, known)}")


async def _find_problem(store: Any) -> str:
    """Why the database cannot be used; empty if it can. It is migrated here, if that is wanted."""
    try:
        await store.open()
        await store.aclose()
    except HandrailError as error:
        return str(error)
    return ""


async def _remove(build_store: Callable[[], Any], name: str) -> None:
    scratch = build_store()
    await scratch.open()
    try:
        await scratch.remove(f"{SCRATCH_PREFIX}{name}-")
    finally:
        await scratch.aclose()


def _accept(one: Guarantee, names: Sequence[str]) -> Guarantee:
    return structs.replace(one, status="accepted") if one.is_failed and one.is_named_by(names) else one

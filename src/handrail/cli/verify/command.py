"""`handrail verify`: plays faults against your policy, your tools' flags and your store; says which guarantees hold."""

import argparse
import asyncio
import os
import secrets
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import structs

from handrail.cli.agent_file import load_object
from handrail.cli.processes import run_processes
from handrail.cli.verify.faults import FAULT_NAMES, SCRATCH_PREFIX, VerifiedTool, play_cells
from handrail.cli.verify.guarantee import Guarantee, GuaranteeStatus, format_junit, format_report
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


_MIN_LEASE: Final = 1.0
"""Seconds. A shorter lease runs out while a busy process waits for its processor."""


def check_executor(executor: Executor, *, is_shared: bool, is_encrypted: bool, is_audited: bool) -> list[Guarantee]:
    """What holds for every tool."""
    timeouts = executor.timeouts
    return [
        _build(
            "store",
            "other processes know what was done, and it survives a restart",
            is_shared,
            'the ledger is in memory: Executor(…, store="sqlite:///handrail.db") or postgresql://…, or --store URL',
        ),
        _build(
            "audit",
            "every decision and every call is audited",
            is_audited,
            "nothing is audited: the audit is part of a store",
        ),
        _build(
            "encryption",
            "the arguments of open approvals are encrypted",
            is_encrypted,
            "they are stored in plain text until somebody has decided: open_store(…, encryption_key=…)",
        ),
        _build(
            "lease",
            "a process that is busy is not taken for dead",
            not is_shared or timeouts.lease >= _MIN_LEASE,
            f"Timeouts(lease={timeouts.lease:g}) runs out in a pause of the process; the default is 15 seconds",
        ),
        _build(
            "repeat_window",
            "a repetition is recognised for as long as its approval can be used",
            timeouts.repeat_window >= timeouts.approval,
            f"Timeouts(repeat_window={timeouts.repeat_window:g}) is shorter than approval={timeouts.approval:g}",
        ),
    ]


def check_tool(executor: Executor, tool: Tool[..., Any]) -> Generator[Guarantee]:
    """What the flags of one consequential tool, and the policy, say."""
    lease_grace = executor.timeouts.lease_grace
    names = list(tool.input_schema.get("properties", {}))
    yield _build(
        "key",
        "two calls for the same effect are recognised, also if the model words them differently",
        tool.key is not None or tool.repeatable or len(names) == 1,
        f"without a key, calls that differ in any argument ({', '.join(names) or 'no schema is known'}) are two "
        "effects: @tool(key=…) names what makes two calls the same, repeatable=True says that each is one of its own",
        tool,
    )
    yield _build(
        "recovery",
        "after a crash, nobody has to look what happened",
        tool.idempotent or tool.verify is not None,
        "the outcome of a call whose process died is unknown until a person resolves it: @tool(verify=…) finds out, "
        "idempotent=True runs again with the same idempotency key",
        tool,
    )
    yield _build(
        "takeover",
        "a call is taken over only once its first handler cannot take effect any more",
        tool.idempotent or tool.verify is None or lease_grace > 0,
        "Timeouts(lease_grace=0): a handler that was slow to end may take effect after `verify` has said no",
        tool,
    )
    yield _build(
        "policy",
        "the policy decides, and does not only observe",
        not executor.is_observed(tool),
        'mode="observe": the decision is recorded, and every call runs',
        tool,
    )


def _build(name: str, title: str, holds: bool, text: str, tool: Tool[..., Any] | None = None) -> Guarantee:
    status: GuaranteeStatus = "holds" if holds else "fails"
    return Guarantee(
        name=name, title=title, tool=None if tool is None else tool.name, status=status, text="" if holds else text
    )

"""`handrail worker`: runs the durable calls that other processes have stored."""

import argparse
import asyncio
import signal
from contextlib import AsyncExitStack, suppress
from typing import Any

from handrail.cli.agent_file import load_object
from handrail.errors import ConfigError
from handrail.execute.executor import Executor
from handrail.execute.worker import Worker
from handrail.store import open_store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `handrail worker`."""
    parser.add_argument(
        "object", help="module:object or file.py:object, an Executor, or a function that takes a store and returns one"
    )
    parser.add_argument("--store", help="the URL of the database, in place of the URL that the executor was built with")
    parser.add_argument("--context", help="module:object, a function that makes the ToolContext of a WorkItem")
    parser.add_argument("--max-running", type=int, default=50, help="calls that run at once (default: 50)")
    parser.add_argument("--grace", type=float, default=10.0, help="seconds to finish after SIGTERM (default: 10)")


def run(options: argparse.Namespace) -> int:
    """Run a worker until SIGTERM or SIGINT."""
    asyncio.run(_run(options))
    return 0


async def _run(options: argparse.Namespace) -> None:
    if not options.grace >= 0:
        raise ConfigError(f"grace must be at least 0 seconds, got {options.grace:g}.")
    given = load_object(options.object)
    context = None if options.context is None else load_object(options.context)
    async with AsyncExitStack() as stack:
        executor = await _open_executor(given, options.object, options.store, stack)
        await stack.enter_async_context(executor)
        await run_worker(executor, context=context, max_running=options.max_running, grace=options.grace)


async def _open_executor(given: object, name: str, url: str | None, stack: AsyncExitStack) -> Executor:
    """The executor that was named, with the store that was named."""
    if isinstance(given, Executor):
        if url is None:
            return given
        is_at: Any = getattr(given.store, "is_at", None)  # `SqlStore` is there with the extra `sql` only.
        if is_at is not None and is_at(url):
            return given
        if not given.has_replaceable_store:
            raise ConfigError(
                f"{name} was built with another store than --store: leave --store out, name a function that takes the "
                "store, or build the executor with a URL, which --store then replaces."
            )
        return given.with_store(url)
    if not callable(given) or url is None:
        raise ConfigError(f"{name} must be an Executor, or a function of a store, with --store URL.")
    executor = given(await stack.enter_async_context(open_store(url)))
    if not isinstance(executor, Executor):
        raise ConfigError(f"{name} must return an Executor, got {type(executor).__name__}.")
    return executor


async def run_worker(executor: Executor, *, context: Any = None, max_running: int = 50, grace: float = 10.0) -> None:
    """Run a worker until the process is asked to end, and drain it then."""
    loop, worker = asyncio.get_running_loop(), Worker(executor, context=context, max_running=max_running)
    draining: list[asyncio.Task[None]] = []

    def drain() -> None:
        if not draining:
            draining.append(loop.create_task(worker.drain(grace=grace)))

    for number in (signal.SIGTERM, signal.SIGINT):
        with suppress(NotImplementedError):  # Windows: Ctrl-C ends it at once.
            loop.add_signal_handler(number, drain)
    async with worker:
        print(f"handrail worker {executor.owner} takes calls", flush=True)
        await worker.run()
    await asyncio.gather(*draining)

"""`handrail doubts`: lists calls with an unknown outcome, and records whether they took effect."""

import argparse
import asyncio
import sys
from typing import Final

from handrail.cli.store_option import add_store_option, open_chosen_store
from handrail.core.failure_results import format_time
from handrail.core.text import escape_line
from handrail.execute.executor import Executor

_MAX_ARGUMENT_CHARS: Final = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="list the calls, oldest first")
    resolving = actions.add_parser("resolve", help="record whether a call took effect")
    for action in (listing, resolving):
        add_store_option(action)
    listing.add_argument("--session", help="only the calls of this session")
    listing.add_argument("--limit", type=int, default=100)
    resolving.add_argument("--session", required=True, help="the session of the call")
    resolving.add_argument("--call", required=True, help="the id of the call")
    resolving.add_argument("--happened", required=True, choices=("yes", "no"), help="whether the call took effect")
    resolving.add_argument("--who", required=True, help="who found out")
    resolving.add_argument("--reason", default="", help="how you know: a receipt, the account statement")
    resolving.add_argument("--expected", metavar="VERSION", help="refuse if the entry has changed since it was listed")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    return asyncio.run(_list(options) if options.action == "list" else _resolve(options))


async def _list(options: argparse.Namespace) -> int:
    async with open_chosen_store(options.store) as store:
        found = await Executor(store=store).doubts(session_id=options.session, limit=options.limit)
    for doubt in found:
        at = format_time(doubt.claimed_at)
        line = f"{at}  {doubt.tool}  session {doubt.session_id}  call {doubt.call_id}  key {doubt.idempotency_key}"
        print(escape_line(f"{line}  {doubt.arguments[:_MAX_ARGUMENT_CHARS]}"))
        taken = f"  taken {doubt.attempts} times" if doubt.attempts else ""
        print(f"    worker {doubt.owner}{taken}  version {doubt.version}")
    print(f"{len(found)} in doubt" if found else "nothing is in doubt", file=sys.stderr)
    return 0


async def _resolve(options: argparse.Namespace) -> int:
    async with open_chosen_store(options.store) as store:
        result = await Executor(store=store).resolve(
            session_id=options.session,
            call_id=options.call,
            happened=options.happened == "yes",
            who=options.who,
            reason=options.reason,
            expected=options.expected,
        )
        await store.audit.flush(timeout=10)
    print(result.for_model())
    return 0

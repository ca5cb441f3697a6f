"""`handrail why`: everything that the database knows about one call, on one screen."""

import argparse
import asyncio
import sys

from handrail.cli.store_option import add_store_option, open_chosen_store
from handrail.core.text import escape_invisible


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("session", metavar="SESSION", help="the session of the call")
    parser.add_argument("call", metavar="CALL", help="the id of the call; `handrail audit` shows both")
    add_store_option(parser)


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code: 1 if nothing is known about the call."""
    return asyncio.run(_explain(options))


async def _explain(options: argparse.Namespace) -> int:
    from handrail.serve.call_report import explain_past_call  # noqa: PLC0415  # needs the extra `sql`

    async with open_chosen_store(options.store) as store:
        report = await explain_past_call(store, session_id=options.session, call_id=options.call)
    if report is None:
        print(f"nothing is known about the call {options.call!r} of the session {options.session!r}", file=sys.stderr)
        return 1
    print(escape_invisible(str(report)))
    return 0

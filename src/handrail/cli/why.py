"""`handrail why`: everything that the database knows about one call, on one screen."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from handrail.cli.store_option import add_store_option, open_chosen_store
from handrail.core.text import escape_invisible

if TYPE_CHECKING:
    from handrail.store import SqlStore

_MAX_ROWS = 1000
_MAX_SUGGESTIONS = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("session", metavar="SESSION", help="the session of the call")
    parser.add_argument("call", metavar="CALL", help="the id of the call; `handrail audit` shows both")
    add_store_option(parser)


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code: 1 if nothing is known about the call."""
    return asyncio.run(_explain(options))


async def _explain(options: argparse.Namespace) -> int:
    async with open_chosen_store(options.store) as store:
        from handrail.serve.call_report import explain_past_call  # noqa: PLC0415  # needs the extra `sql`

        report = await explain_past_call(store, session_id=options.session, call_id=options.call)
        similar = () if report is not None else await _find_similar(store, options.session, options.call)
    if report is None:
        unknown = f"nothing is known about the call {options.call!r} of the session {options.session!r}"
        print(f"{unknown}{_suggest(similar)}", file=sys.stderr)
        return 1
    print(escape_invisible(str(report)))
    return 0


async def _find_similar(store: "SqlStore", session_id: str, call_id: str) -> list[str]:
    """The newest calls of the session whose id ends in this one: `call_0` of `resp_7/call_0`."""
    rows = await store.audit.query(session_id=session_id, limit=_MAX_ROWS)
    found = dict.fromkeys(row.call_id for row in reversed(rows) if row.call_id and row.call_id.endswith(call_id))
    return list(found)[:_MAX_SUGGESTIONS] if call_id else []


def _suggest(call_ids: Sequence[str]) -> str:
    if not call_ids:
        return "; `handrail audit --session SESSION` lists the calls of a session"
    return f"; did you mean {escape_invisible(' or '.join(map(repr, call_ids)))}?"

"""`handrail why`: everything that the database knows about one call, on one screen."""

import argparse
import asyncio
import sys
from collections.abc import Iterable
from itertools import islice
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
        hint = "" if report is not None else await _find_hint(store, options.session, options.call)
    if report is None:
        unknown = f"nothing is known about the call {options.call!r} of the session {options.session!r}"
        print(escape_invisible(f"{unknown}; {hint}"), file=sys.stderr)
        return 1
    print(escape_invisible(str(report)))
    return 0


async def _find_hint(store: "SqlStore", session_id: str, call_id: str) -> str:
    """The newest calls that may be meant: of the session, those whose id ends in this one, as `call_0` of
    `resp_7/call_0`; else this call in the session that has this name for an HTTP client, as `s-1` of `api:acme/s-1`."""
    if call_id:
        rows = await store.audit.query(session_id=session_id, limit=_MAX_ROWS)
        if calls := _list_ending(reversed([row.call_id for row in rows]), call_id):
            return f"did you mean {calls}?"
        rows = await store.audit.query(call_id=call_id, limit=_MAX_ROWS)
        if sessions := _list_ending(reversed([row.session_id for row in rows]), f"/{session_id}"):
            return f"did you mean the session {sessions}?"
    return "`handrail audit --session SESSION` lists the calls of a session"


def _list_ending(ids: Iterable[str | None], end: str) -> str:
    found = dict.fromkeys(id for id in ids if id and id.endswith(end))
    return " or ".join(map(repr, islice(found, _MAX_SUGGESTIONS)))

"""`handrail audit`: the rows of the audit, filtered, for people or as JSON."""

import argparse
import asyncio
import sys
import time

import msgspec

from handrail.cli.store_option import add_store_option, open_chosen_store
from handrail.core.failure_results import format_time
from handrail.core.text import escape_invisible, escape_line, parse_duration


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    for name, text in (
        ("customer", "only the rows of this customer"),
        ("tenant", "only the rows of this tenant"),
        ("session", "only the rows of this session"),
        ("call", "only the rows of this call"),
        ("tool", "only the rows of this tool"),
        ("outcome", "only calls that ended so: ok, or an error code"),
        ("kind", "only events of this kind, such as call_finished"),
    ):
        parser.add_argument(f"--{name}", help=text)
    parser.add_argument("--since", metavar="AGE", help="only rows that are not older: 90s, 5m, 2h, 7d")
    parser.add_argument("--limit", type=int, default=100, help="the newest so many (default: 100)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    add_store_option(parser)


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    return asyncio.run(_print(options))


async def _print(options: argparse.Namespace) -> int:
    since = None if options.since is None else time.time() - parse_duration(options.since)
    async with open_chosen_store(options.store) as store:
        from handrail.serve.call_report import describe_decision  # noqa: PLC0415  # needs the extra `sql`

        rows = await store.audit.query(
            customer_id=options.customer,
            tenant_id=options.tenant,
            session_id=options.session,
            call_id=options.call,
            tool=options.tool,
            outcome=options.outcome,
            kind=options.kind,
            since=since,
            limit=options.limit,
        )
    for row in rows:
        if options.json:
            print(escape_invisible(msgspec.json.encode(row).decode()))
            continue
        outcome = "" if row.ok is None else f"  {'ok' if row.ok else row.error}"
        action = f"  {row.action}{f' {row.by}' if row.by else ''} ({row.rule})" if row.action else ""
        whose = "".join(
            f"  {name} {value}" for name, value in (("customer", row.customer_id), ("tenant", row.tenant_id)) if value
        )
        said = f"  {text}" if (text := describe_decision(row)) else ""
        line = f"{format_time(row.at)}  {row.kind}  {row.tool or '-'}{outcome}{action}{said}{whose}"
        token = row.detail.get("token")
        about = f"approval {token}" if token and row.call_id is None else f"call {row.call_id or '-'}"
        print(escape_line(f"{line}  session {row.session_id}  {about}"))
    print(f"{len(rows)} rows", file=sys.stderr)
    return 0

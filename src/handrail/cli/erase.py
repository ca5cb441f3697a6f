"""`handrail erase`: erases the values of one customer from a database and from recorded phone calls."""

import argparse
import asyncio
import sys

from handrail.store import open_store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = "Exits with 2 while calls run or are in doubt: they keep their values until they are settled."
    parser.add_argument("--store", required=True, metavar="URL", help="sqlite:///… or postgresql://…")
    parser.add_argument("--customer", required=True, help="the id of the customer")
    tenant = parser.add_mutually_exclusive_group(required=True)
    tenant.add_argument("--tenant", help="the tenant of the customer")
    tenant.add_argument("--no-tenant", action="store_true", help="the rows that have no tenant")
    parser.add_argument("--who", required=True, help="who erases; it is audited")
    parser.add_argument("--recordings", metavar="DIR", help="the directory of the recorded phone calls")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    return asyncio.run(_erase(options))


async def _erase(options: argparse.Namespace) -> int:
    async with open_store(options.store, migrate=False) as store:
        done = await store.erase(
            customer_id=options.customer, tenant_id=options.tenant, who=options.who, recordings=options.recordings
        )
    print(
        f"erased: {done.calls} calls, {done.approvals} approvals, {done.conversations} conversations, "
        f"{done.audit_rows} rows of the audit, {done.recordings} recordings"
    )
    if not done.is_complete:
        print(
            f"{done.open_calls} calls run or are in doubt, and keep their values until they are settled: "
            "see `handrail doubts`, then erase again",
            file=sys.stderr,
        )
    return 0 if done.is_complete else 2

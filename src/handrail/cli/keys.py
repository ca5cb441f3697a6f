"""`handrail keys`: creates, lists and revokes the keys of people and clients."""

import argparse
import asyncio
import sys

from handrail.cli.store_option import add_store_option, open_chosen_store
from handrail.core.failure_results import format_time


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    creating = actions.add_parser("create", help="create a key, and print it once")
    creating.add_argument(
        "--role",
        required=True,
        choices=("admin", "operator", "viewer", "caller"),
        help="caller: calls tools; viewer: sees; operator: sees and decides; admin: also manages keys",
    )
    creating.add_argument(
        "--who", required=True, help="the holder: audited as who decided, and as whose calls they are"
    )
    creating.add_argument("--tenant", help="the only tenant that the holder sees and acts for (default: every tenant)")
    listing = actions.add_parser("list", help="list the keys, oldest first, without their secrets")
    listing.add_argument("--tenant", help="only those of this tenant")
    revoking = actions.add_parser("revoke", help="revoke a key for good; every process refuses it within a second")
    revoking.add_argument("id", help="the id that `handrail keys list` shows")
    for action in (creating, listing, revoking):
        add_store_option(action)


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    return asyncio.run({"create": _create, "list": _list, "revoke": _revoke}[options.action](options))


async def _create(options: argparse.Namespace) -> int:
    async with open_chosen_store(options.store, migrate=True) as store:
        if not await store.keys.list():  # `handrail serve` would have made some.
            text = f"this is the first key of {store.url}; for a service with another database, name that with --store"
            print(text, file=sys.stderr)
        key, secret = await store.keys.create(role=options.role, who=options.who, tenant_id=options.tenant)
    scope = f"the tenant {key.tenant_id}" if key.tenant_id else "every tenant"
    print(f"key {key.id} of {key.who}: {key.role}, for {scope}. It is shown only now:", file=sys.stderr)
    print(secret)
    return 0


async def _list(options: argparse.Namespace) -> int:
    async with open_chosen_store(options.store) as store:
        keys = await store.keys.list(tenant_id=options.tenant)
    for key in keys:
        state = f"revoked {format_time(key.revoked_at)}" if key.revoked_at else "valid"
        scope = key.tenant_id or "every tenant"
        print(f"{key.id}  {key.role:<8}  {key.who}  {scope}  created {format_time(key.created_at)}  {state}")
    print(f"{len(keys)} keys" if keys else "there is no key", file=sys.stderr)
    return 0


async def _revoke(options: argparse.Namespace) -> int:
    async with open_chosen_store(options.store) as store:
        key = await store.keys.revoke(options.id)
    print(f"key {key.id} of {key.who} is revoked")
    return 0

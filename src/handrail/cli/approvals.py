"""`handrail approvals`: lists what waits for an operator, shows one question, and decides it."""

import argparse
import asyncio
import json
import sys
import time
from typing import Any, cast

from handrail.cli.store_option import add_store_option, open_chosen_store
from handrail.core.failure_results import format_time
from handrail.core.text import compact_json, escape_invisible, escape_line
from handrail.core.values import Approval
from handrail.errors import ApprovalError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="list what waits, the oldest first")
    listing.add_argument("--tenant", help="only those of this tenant")
    listing.add_argument("--history", action="store_true", help="also what was decided or has expired")
    listing.add_argument("--limit", type=int, default=100)
    showing = actions.add_parser("show", help="show one question with its exact arguments")
    approving = actions.add_parser("approve", help="approve: the call runs when it is sent again, once")
    denying = actions.add_parser("deny", help="deny: the call is told why")
    for action in (showing, approving, denying):
        action.add_argument("token", help="the token that `handrail approvals list` shows")
    for action in (approving, denying):
        action.add_argument("--who", required=True, help="who decides; it is audited")
        action.add_argument("--reason", default="", help="why; a denied call is told")
    approving.add_argument(
        "--arguments", metavar="JSON", help="run with these instead; they are validated when the call is sent again"
    )
    for action in (listing, showing):
        action.add_argument("--json", action="store_true", help="one JSON object a line")
    for action in (listing, showing, approving, denying):
        add_store_option(action)


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code: 1 if there is no such question, or it is decided otherwise."""
    return asyncio.run({"list": _list, "show": _show}.get(options.action, _decide)(options))


async def _list(options: argparse.Namespace) -> int:
    async with open_chosen_store(options.store) as store:
        if options.history:
            found = await store.approvals.history(tenant_id=options.tenant, limit=options.limit)
        else:
            found = await store.approvals.pending(tenant_id=options.tenant, limit=options.limit)
    for approval in sorted(found, key=lambda approval: approval.created_at):
        if options.json:
            print(escape_invisible(compact_json(_to_dict(approval))))
            continue
        who = f" by {approval.who}" if approval.who else ""
        line = f"{approval.token}  {format_time(approval.created_at)}  {_state(approval)}{who}  {approval.tool}"
        why = f"  ({approval.question})" if approval.question else ""
        print(escape_line(f"{line}  for {approval.by}  {compact_json(dict(approval.arguments))[:200]}{why}"))
        for path, sentence in approval.seen.items():
            print(escape_line(f"    {path}: {sentence}"))
    print(f"{len(found)} approvals" if found else "nothing waits", file=sys.stderr)
    return 0


async def _show(options: argparse.Namespace) -> int:
    async with open_chosen_store(options.store) as store:
        approval = await store.approvals.get(options.token)
    if approval is None:
        raise ApprovalError(f"There is no approval {options.token!r:.60}.")
    if options.json:
        print(escape_invisible(compact_json(_to_dict(approval))))
        return 0
    for name, value in _to_dict(approval).items():
        # What the model wrote is in the values, and begins no line that looks like one of these.
        is_object = isinstance(value, dict)
        print(f"{name}: {escape_invisible(json.dumps(value, indent=2)) if is_object else escape_line(str(value))}")
    return 0


async def _decide(options: argparse.Namespace) -> int:
    arguments: Any = None
    if getattr(options, "arguments", None) is not None:
        try:
            arguments = json.loads(options.arguments, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise ApprovalError(f"--arguments must be JSON: {error}.") from error
        if not isinstance(cast(object, arguments), dict):
            raise ApprovalError("--arguments must be a JSON object.")
    async with open_chosen_store(options.store) as store:
        before = await store.approvals.get(options.token)
        given: dict[str, Any] = {"by": "operator", "who": options.who, "reason": options.reason}
        if options.action == "approve":
            after = await store.approvals.approve(options.token, arguments=arguments, **given)
        else:
            after = await store.approvals.deny(options.token, **given)
        await store.audit.flush(timeout=10)
    if after.who != options.who:
        print(escape_line(f"{after.who} was faster: it is {after.state} already"), file=sys.stderr)
        return 1
    if before is not None and before.state != "pending":
        reason = f" ({after.reason})" if after.reason else ""
        told = f"{after.tool} is {after.state} already, by {after.who}{reason}: what was decided first stays."
        print(escape_line(told), file=sys.stderr)
        return 0
    end = " It runs when its client sends the call again, once." if after.state == "approved" else ""
    print(f"{after.tool} is {after.state}.{end}")
    return 0


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a number that JSON has")


def _state(approval: Approval) -> str:
    return "expired" if approval.state == "pending" and approval.is_expired(time.time()) else approval.state


def _to_dict(approval: Approval) -> dict[str, Any]:
    names = ("token", "tool", "by", "session_id", "tenant_id", "customer_id", "call_id", "question", "repeat")
    return {
        "state": _state(approval),
        **{name: getattr(approval, name) for name in names},
        "asked": format_time(approval.created_at),
        "expires": format_time(approval.expires_at),
        "arguments": dict(approval.arguments),
        "seen": dict(approval.seen),
        "changed_arguments": None if approval.changed_arguments is None else dict(approval.changed_arguments),
        "who": approval.who,
        "reason": approval.reason,
    }

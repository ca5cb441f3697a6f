"""Entries, approvals and durable calls for the tests of the store."""

import itertools
import time
from typing import Any

from handrail import ToolCall
from handrail.authorize.approvals import new_token
from handrail.core import Approval
from handrail.execute import Entry, WorkItem
from handrail.execute.ledger import RecordedResult, State, settle_entry

_numbers = itertools.count()


def an_entry(**values: Any) -> Entry:
    """A claim of a new call for a new effect."""
    number = next(_numbers)
    now = time.time()
    given = {
        "session_id": "s-1",
        "call_id": f"call-{number}",
        "tool": "pay",
        "identity": f"identity-{number}",
        "key": f"key-{number}",
        "number": 0,
        "repeat": 0,
        "turn": 1,
        "owner": "me",
        "claimed_at": now,
        "lease_until": now + 60,
    }
    given |= values
    return Entry(**{"full_key": given["key"], "full_number": given["number"], **given})


def done(entry: Entry, state: State = "committed", **values: Any) -> Entry:
    """The entry with an outcome."""
    return settle_entry(entry, state, a_recorded(**values), now=time.time())


def an_item(**values: Any) -> WorkItem:
    """A new durable call, queued."""
    number = next(_numbers)
    sent = ToolCall(id=f"call-{number}", name="pay", arguments_json="{}")
    given = {"session_id": "s-1", "call_id": sent.id, "tool": "pay", "definition": "d-1", "call": sent}
    return WorkItem(**{**given, "sent_call": sent, **values})


def a_recorded(**values: Any) -> RecordedResult:
    """What is kept of a result."""
    return RecordedResult(**{"text": "done", **values})


def an_approval(**values: Any) -> Approval:
    """A new question about a new call."""
    number = next(_numbers)
    now = time.time()
    given = {
        "token": new_token(),
        "tool": "pay",
        "digest": f"digest-{number}",
        "session_id": "s-1",
        "by": "operator",
        "turn": 1,
        "arguments": {"invoice": "i-1", "amount": 3},
        "created_at": now,
        "expires_at": now + 900,
    }
    return Approval(**{**given, **values})

"""Which calls are on their way: counted once each, and forgotten when they are over."""

import pytest

from handrail.core.events import CallAccepted, CallFinished, CallIgnored, CallStarted
from handrail.core.values import ToolCall, ToolResult
from handrail.monitor.calls import Counts
from tests.monitor.conftest import call


def accepted(one: ToolCall, session: str = "s") -> CallAccepted:
    return CallAccepted(at=0.0, session_id=session, call=one)


def started(one: ToolCall, session: str = "s") -> CallStarted:
    return CallStarted(at=0.0, session_id=session, call=one)


def finished(one: ToolCall, session: str = "s") -> CallFinished:
    return CallFinished(at=0.0, session_id=session, call=one, result=ToolResult(output="x"))


def ignored(one: ToolCall, reason: str) -> CallIgnored:
    return CallIgnored(at=0.0, session_id="s", call=one, reason=reason)


def test_a_call_is_pending_from_its_acceptance_and_active_from_its_start() -> None:
    counts, one = Counts(), call("look")
    seen: list[tuple[int, int]] = []

    for event in (accepted(one), started(one), started(one), finished(one), finished(one)):
        counts.see(event)
        seen.append(counts.of("s"))

    assert seen == [(1, 0), (1, 1), (1, 1), (0, 0), (0, 0)]


def test_two_calls_of_one_id_are_two_and_one_call_in_two_sessions_too() -> None:
    counts, one, same = Counts(), call("look"), call("look")
    for event in (started(one), started(same), started(one, "s-2")):
        counts.see(event)

    assert (counts.of("s"), counts.of("s-2")) == ((2, 2), (1, 1))
    counts.see(finished(one))
    assert (counts.of("s"), counts.of("s-2")) == ((1, 1), (1, 1))


@pytest.mark.parametrize(("reason", "left"), [("already_pending", 1), ("already_executed", 0)])
def test_a_call_that_was_found_in_the_ledger_is_over(reason: str, left: int) -> None:
    counts, one = Counts(), call("look")
    counts.see(accepted(one))

    counts.see(ignored(one, reason))

    assert counts.of("s") == (left, 0)


def test_nothing_is_kept_of_a_session_whose_calls_are_over() -> None:
    counts = Counts()
    for number in range(100):
        one = call("look")
        counts.see(accepted(one, f"s-{number}"))
        counts.see(started(one, f"s-{number}"))
        counts.see(finished(one, f"s-{number}"))
        counts.of(f"s-{number}")

    assert len(counts) == 0

"""Approvals in memory, each promise of their protocol by itself."""

import asyncio
import time
from typing import Any

import pytest
from msgspec import structs

from handrail.authorize import MemoryApprovals
from handrail.authorize.approvals import can_be_used, is_denial_of
from handrail.core import Approval, ApprovalDecided, ApprovalRequested, ApprovalUsed
from handrail.errors import ApprovalError
from tests.execute.helpers import Bus, Heard
from tests.warped import warped

FAR = 4e9
"""Long after any test."""


def a_question(token: str = "t-1", **fields: Any) -> Approval:
    given: dict[str, Any] = {
        "tool": "pay",
        "digest": "d-1",
        "session_id": "s-1",
        "by": "operator",
        "turn": 1,
        "arguments": {"amount": 5},
        "created_at": 1_000.0,
        "expires_at": FAR,
        "call_id": "c-1",
    }
    return Approval(token=token, **{**given, **fields})


async def ask(*questions: Approval) -> MemoryApprovals:
    approvals = MemoryApprovals()
    for question in questions:
        await approvals.ask(question)
    return approvals


SUBJECT = {"session_id": "s-1", "tool": "pay", "digest": "d-1", "by": "operator", "repeat": 0}


# Asking


async def test_an_equal_question_is_the_same_until_it_expires() -> None:
    approvals = await ask(a_question(expires_at=2_000.0))

    same = await approvals.ask(a_question("t-2", call_id="c-2"))
    later = await approvals.ask(a_question("t-3", created_at=2_000.5))

    assert (same.token, later.token) == ("t-1", "t-3")


@pytest.mark.parametrize(
    "other", [{"session_id": "s-2"}, {"tool": "look"}, {"digest": "d-2"}, {"by": "customer"}, {"repeat": 1}]
)
async def test_a_question_about_another_call_is_another_question(other: dict[str, Any]) -> None:
    approvals = await ask(a_question())

    asked = await approvals.ask(a_question("t-2", **other))

    assert asked.token == "t-2"
    assert await approvals.find(**SUBJECT, now=1_500) == await approvals.get("t-1")
    assert await approvals.find(**{**SUBJECT, **other}, now=1_500) == asked


async def test_a_question_is_found_while_it_is_open_and_not_expired() -> None:
    approvals = await ask(a_question(expires_at=2_000.0))

    assert (await approvals.find(**SUBJECT, now=1_999)) is not None
    assert await approvals.find(**SUBJECT, now=2_001) is None
    assert await approvals.get("t-2") is None


@pytest.mark.parametrize(
    ("asked", "is_answer"),
    [
        ({}, True),
        ({"repeat": 3}, True),
        ({"call_id": "c-2"}, False),
        ({"call_id": None}, False),
        ({"session_id": "s-2"}, False),
        ({"tool": "look"}, False),
        ({"digest": "d-2"}, False),
    ],
)
async def test_a_no_is_the_answer_to_its_own_call_and_to_no_other(asked: dict[str, Any], is_answer: bool) -> None:
    denied = a_question(state="denied")

    assert is_denial_of(denied, a_question("t-2", **asked)) is is_answer
    assert not is_denial_of(structs.replace(denied, state="approved"), a_question("t-2", **asked))


async def test_a_denied_call_gets_its_no_and_an_equal_one_is_asked_about_anew() -> None:
    approvals = await ask(a_question(), a_question("t-9", digest="d-9", call_id="c-9"))
    await approvals.deny("t-1", by="operator", who="bo")

    own = await approvals.ask(a_question("t-2", created_at=FAR + 1, expires_at=FAR + 2))  # For ever.
    other = await approvals.ask(a_question("t-3", call_id="c-3"))

    assert (own.token, other.token) == ("t-1", "t-3")


async def test_calls_without_an_id_share_their_no_until_it_expires() -> None:
    approvals = await ask(a_question(call_id=None, expires_at=FAR))
    await approvals.deny("t-1", by="operator", who="bo")

    assert (await approvals.ask(a_question("t-2", call_id=None))).token == "t-1"
    assert (await approvals.ask(a_question("t-3", call_id=None, created_at=FAR + 1, expires_at=FAR + 9))).token == "t-3"


# Using


async def test_an_approval_is_used_once_and_only_after_a_yes_and_in_time() -> None:
    approvals = await ask(a_question())
    assert not await approvals.consume("t-0", now=1_500)
    assert not await approvals.consume("t-1", now=1_500)
    await approvals.approve("t-1", by="operator", who="bo")

    assert not await approvals.consume("t-1", now=FAR + 1)
    assert await approvals.consume("t-1", now=1_500)
    assert not await approvals.consume("t-1", now=1_500)
    assert await approvals.find(**SUBJECT, now=1_500) is None


@pytest.mark.parametrize(
    ("fields", "at", "is_usable"),
    [
        ({}, None, True),
        ({"state": "pending"}, None, False),
        ({"expires_at": 1_500.0}, None, False),
        ({"by": "operator"}, (1, 0), True),
        ({"by": "customer"}, (1, 0), False),
        ({"by": "customer"}, (2, 0), True),
        ({"by": "customer"}, (1, 1), True),
        ({"by": "customer", "wakes": 1}, (1, 1), False),
        ({"by": "customer"}, None, True),
    ],
)
def test_the_yes_of_a_customer_counts_later_than_the_question(
    fields: dict[str, Any], at: tuple[int, int] | None, is_usable: bool
) -> None:
    approval = a_question(**{"state": "approved", **fields})

    assert can_be_used(approval, now=1_501, at=at) is is_usable


async def test_what_was_used_for_nothing_is_given_back_unless_it_was_asked_about_again() -> None:
    approvals = await ask(a_question())
    await approvals.approve("t-1", by="operator", who="bo")
    await approvals.restore("t-1")  # It was not used.
    await approvals.restore("t-0")  # Nobody knows it.
    assert await approvals.consume("t-1", now=1_500)

    await approvals.restore("t-1")
    found = await approvals.find(**SUBJECT, now=1_500)
    assert found is not None
    assert (found.token, found.state) == ("t-1", "approved")

    assert await approvals.consume("t-1", now=1_500)
    await approvals.ask(a_question("t-2"))
    await approvals.restore("t-1")
    found = await approvals.find(**SUBJECT, now=1_500)
    assert found is not None
    assert found.token == "t-2"
    assert not await approvals.consume("t-1", now=1_500)


# Withdrawing


async def test_a_withdrawn_question_is_not_open_and_an_equal_call_asks_anew() -> None:
    approvals = await ask(a_question())
    await approvals.withdraw("t-0")
    await approvals.withdraw("t-1")

    withdrawn = await approvals.get("t-1")
    assert withdrawn is not None
    assert withdrawn.state == "withdrawn"
    assert await approvals.pending() == []
    with pytest.raises(ApprovalError, match="withdrawn"):
        await approvals.approve("t-1", by="operator", who="bo")
    assert (await approvals.ask(a_question("t-2"))).token == "t-2"


async def test_what_was_decided_and_used_stays_what_it_is_when_it_is_withdrawn() -> None:
    approvals = await ask(a_question(), a_question("t-2", digest="d-2"))
    await approvals.approve("t-1", by="operator", who="bo")
    await approvals.consume("t-1", now=1_500)
    await approvals.deny("t-2", by="operator", who="bo")
    for token in ("t-1", "t-2"):
        await approvals.withdraw(token)

    assert [(await approvals.get(token)).state for token in ("t-1", "t-2")] == ["used", "denied"]  # type: ignore[union-attr]
    assert await approvals.find(**{**SUBJECT, "digest": "d-2"}, now=1_500) is None


async def test_withdrawing_an_old_question_leaves_the_newer_one_open() -> None:
    approvals = await ask(a_question(expires_at=2_000.0), a_question("t-2", created_at=2_001.0))

    await approvals.withdraw("t-1")

    found = await approvals.find(**SUBJECT, now=2_002)
    assert found is not None
    assert found.token == "t-2"


async def test_what_is_pending_about_a_claimed_call_is_withdrawn_and_nothing_else() -> None:
    approvals = await ask(
        a_question(),
        a_question("t-2", digest="d-2", call_id="c-2"),
        a_question("t-3", digest="d-3"),
        a_question("t-4", session_id="s-2"),
    )
    await approvals.approve("t-3", by="operator", who="bo")

    await approvals.withdraw_pending(session_id="s-1", call_id="c-1")
    await approvals.withdraw_pending(session_id="s-9", call_id="c-1")

    states = {token: (await approvals.get(token)).state for token in ("t-1", "t-2", "t-3", "t-4")}  # type: ignore[union-attr]
    assert states == {"t-1": "withdrawn", "t-2": "pending", "t-3": "approved", "t-4": "pending"}


# Reading


async def test_open_questions_are_read_page_by_page_those_first_that_expire_first() -> None:
    approvals = await ask(
        a_question("t-2", digest="d-2", expires_at=FAR + 2, tenant_id="acme"),
        a_question("t-1", digest="d-1", expires_at=FAR + 1),
        a_question("t-3", digest="d-3", expires_at=FAR + 2, session_id="s-2"),
        a_question("t-4", digest="d-4", expires_at=1_500.0),
        a_question("t-5", digest="d-5"),
    )
    await approvals.deny("t-5", by="operator", who="bo")
    every = await approvals.pending()

    assert [item.token for item in every] == ["t-1", "t-2", "t-3"]
    assert await approvals.pending(limit=1) == every[:1]
    assert await approvals.pending(after=every[0]) == every[1:]
    assert await approvals.pending(session_id="s-2") == every[2:]
    assert await approvals.pending(tenant_id="acme") == every[1:2]
    assert await approvals.pending(session_id="s-9") == []


async def test_the_history_is_filtered_by_every_field_and_none_is_no_filter() -> None:
    approvals = await ask(
        a_question("t-1", created_at=1_001.0, tenant_id="acme", customer_id="ann"),
        a_question("t-2", created_at=1_000.0, session_id="s-2", tool="look"),
    )
    await approvals.approve("t-1", by="operator", who="bo")

    async def tokens(**filters: Any) -> list[str]:
        return [item.token for item in await approvals.history(**filters)]

    assert await tokens() == await tokens(tool=None, who=None, session_id=None) == ["t-2", "t-1"]
    for filters in (
        {"session_id": "s-1"},
        {"tenant_id": "acme"},
        {"customer_id": "ann"},
        {"tool": "pay"},
        {"who": "bo"},
    ):
        assert await tokens(**filters) == ["t-1"], filters
    assert await tokens(tool="pay", session_id="s-2") == []
    assert await tokens(limit=1) == ["t-1"]
    assert await tokens(before=await approvals.get("t-1")) == ["t-2"]
    assert await tokens(before=await approvals.get("t-2")) == []
    with pytest.raises(TypeError, match="toool"):
        await approvals.history(toool="pay")  # type: ignore[call-arg]


# Waiting


@warped
async def test_who_waits_is_told_as_soon_as_somebody_decided() -> None:

    approvals = await ask(a_question())
    waiting = asyncio.create_task(approvals.wait("t-1", timeout=60))
    await asyncio.sleep(5)
    assert not waiting.done()
    began = asyncio.get_running_loop().time()
    await approvals.approve("t-1", by="operator", who="bo")

    assert (await waiting).state == "approved"
    assert asyncio.get_running_loop().time() - began < 1


@warped
async def test_waiting_ends_when_a_question_expires_or_takes_too_long_or_does_not_exist() -> None:

    now = time.time()
    approvals = await ask(a_question(), a_question("t-2", digest="d-2", created_at=now, expires_at=now + 30))

    with pytest.raises(TimeoutError):
        await approvals.wait("t-1", timeout=10)
    assert (await approvals.wait("t-2", timeout=60)).state == "pending"
    assert now + 30 <= time.time() < now + 31
    with pytest.raises(ApprovalError, match="no such approval"):
        await approvals.wait("t-9", timeout=60)
    assert asyncio.get_running_loop().time() < 2_000


# Events


async def test_what_happens_is_told_to_the_audit_and_then_to_every_executor() -> None:
    approvals, bus, order = MemoryApprovals(), Bus(), []
    audit = Heard()
    approvals.events.set_audit(lambda event: (order.append("audit"), audit(event)))
    bus.emit = lambda event: (order.append("bus"), bus.heard(event))  # type: ignore[assignment]
    approvals.events.subscribe(bus)

    await approvals.ask(a_question())
    await approvals.ask(a_question("t-2"))  # The same one.
    await approvals.approve("t-1", by="operator", who="bo", reason="checked", arguments={"amount": 4})
    await approvals.approve("t-1", by="operator", who="eve", arguments={"amount": 4})  # It stands.
    await approvals.consume("t-1", now=1_500)

    assert audit.names == bus.heard.names == ["ApprovalRequested", "ApprovalDecided", "ApprovalUsed"]
    assert order == ["audit", "bus"] * 3
    requested, decided, used = audit
    assert isinstance(requested, ApprovalRequested)
    assert (requested.token, requested.tool_name, requested.by, requested.expires_at) == ("t-1", "pay", "operator", FAR)
    assert isinstance(decided, ApprovalDecided)
    assert (decided.who, decided.outcome, decided.reason) == ("bo", "approved", "checked")
    assert decided.has_changed_arguments
    assert decided.seconds > 0
    assert isinstance(used, ApprovalUsed)
    assert (used.who, used.token, used.session_id) == ("bo", "t-1", "s-1")


async def test_a_listener_that_fails_undoes_nothing_and_the_others_hear_it() -> None:
    def fail(event: object) -> None:
        raise RuntimeError("away")

    approvals, bus = MemoryApprovals(), Bus()
    approvals.events.set_audit(fail)
    approvals.events.subscribe(bus)
    await approvals.ask(a_question())
    await approvals.deny("t-1", by="operator", who="bo")

    denied = await approvals.get("t-1")
    assert denied is not None
    assert denied.state == "denied"
    [decided] = bus.heard.of(ApprovalDecided)
    assert (decided.outcome, decided.has_changed_arguments) == ("denied", False)


@pytest.mark.parametrize(("decided_at", "seconds"), [(1_005.0, 5.0), (990.0, 0.0)])
def test_how_long_somebody_took_is_told_and_never_less_than_nothing(decided_at: float, seconds: float) -> None:
    approvals, bus = MemoryApprovals(), Bus()
    approvals.events.subscribe(bus)
    approvals.events.emit_decided(a_question(state="approved", decided_at=decided_at))

    [decided] = bus.heard.of(ApprovalDecided)
    assert (decided.seconds, decided.outcome, decided.who) == (seconds, "approved", "")


# Deciding


@pytest.mark.parametrize(
    "arguments",
    [
        {"note": "[redacted]"},
        {"notes": ["a", "see [redacted]"]},
        {"to": {"name": "[redacted]"}},
        {"x": [{"y": "[redacted]"}]},
    ],
)
async def test_a_redacted_value_is_nothing_to_run_with(arguments: dict[str, Any]) -> None:
    approvals = await ask(a_question())

    with pytest.raises(ApprovalError, match="redacted"):
        await approvals.approve("t-1", by="operator", who="bo", arguments=arguments)
    assert (
        await approvals.approve("t-1", by="operator", who="bo", arguments={"x": ["fine", 5, None]})
    ).state == "approved"


async def test_arguments_that_are_nested_too_deeply_are_refused_and_the_question_stays_open() -> None:
    approvals = await ask(a_question())
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"in": deep}

    with pytest.raises(ApprovalError, match="nested"):
        await approvals.approve("t-1", by="operator", who="bo", arguments=deep)
    known = await approvals.get("t-1")
    assert known is not None
    assert known.state == "pending"


async def test_a_decision_stands_and_another_one_is_refused() -> None:
    approvals = await ask(a_question(), a_question("t-2", digest="d-2", expires_at=1_500.0))
    first = await approvals.approve("t-1", by="operator", who="bo")

    assert await approvals.approve("t-1", by="operator", who="eve") is first
    with pytest.raises(ApprovalError, match="other arguments"):
        await approvals.approve("t-1", by="operator", who="bo", arguments={"amount": 1})
    with pytest.raises(ApprovalError, match="not open any more: it is approved"):
        await approvals.deny("t-1", by="operator", who="bo")
    await approvals.consume("t-1", now=1_500)
    assert (await approvals.approve("t-1", by="operator", who="bo")).state == "used"
    with pytest.raises(ApprovalError, match="expired"):
        await approvals.approve("t-2", by="operator", who="bo")
    with pytest.raises(ApprovalError, match="no such"):
        await approvals.approve("t-3", by="operator", who="bo")
    with pytest.raises(ApprovalError, match="who"):
        await approvals.deny("t-2", by="operator", who="")


@pytest.mark.parametrize(
    ("customer_id", "who", "is_theirs"), [("ann", "ann", True), ("ann", "eve", False), (None, "x", True)]
)
async def test_a_customers_question_is_for_that_customer(customer_id: str | None, who: str, is_theirs: bool) -> None:
    approvals = await ask(a_question(by="customer", customer_id=customer_id))

    if is_theirs:
        assert (await approvals.deny("t-1", by="customer", who=who)).who == who
    else:
        with pytest.raises(ApprovalError, match="nobody else"):
            await approvals.deny("t-1", by="customer", who=who)

"""Approvals are asked once, answered by the right person, and used once, wherever they are kept."""

import asyncio
import time
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from handrail import Executor, Policy, Rule, ToolCall, ToolContext, tool
from handrail.authorize.approvals import new_token
from handrail.core import Approval, ApprovalUsed
from handrail.errors import ApprovalError, ConfigError
from handrail.store import SqlStore, open_store
from tests.store.samples import an_approval


async def found(approvals: Any, asked: Approval, *, now: float | None = None) -> Approval | None:
    return await approvals.find(
        session_id=asked.session_id,
        tool=asked.tool,
        digest=asked.digest,
        by=asked.by,
        repeat=asked.repeat,
        now=time.time() if now is None else now,
    )


def anew(approval: Approval, **values: Any) -> Approval:
    """The same question, asked a second time."""
    return structs.replace(approval, token=new_token(), **values)


# Asking.


async def test_a_question_is_kept_as_it_was_asked(kept: Any) -> None:
    asked = an_approval(tenant_id="t", customer_id="c", question="really?", repeat=2, arguments={"a": [1, {"b": None}]})

    assert await kept.approvals.ask(asked) == asked

    assert await found(kept.approvals, asked) == asked
    assert await kept.approvals.pending() == [asked]


async def test_where_values_come_from_is_kept_whole_until_it_is_decided(kept: Any) -> None:
    seen = {"recipient": "not from customer; first seen in the result of read_file (call_7)", "cc[1]": "from customer"}
    asked = await kept.approvals.ask(an_approval(by="operator", seen=seen, unsaid=("recipient",)))

    assert (await kept.approvals.get(asked.token)).seen == seen
    assert [(approval.seen, approval.unsaid) for approval in await kept.approvals.pending()] == [(seen, ("recipient",))]
    await kept.approvals.approve(asked.token, by="operator", who="op")
    decided = await kept.approvals.get(asked.token)
    assert (decided.seen, decided.unsaid) == (seen, ("recipient",))


async def test_the_same_question_is_asked_once(kept: Any) -> None:
    first = await kept.approvals.ask(an_approval())

    assert await kept.approvals.ask(anew(first)) == first
    assert await kept.approvals.pending() == [first]


async def test_the_same_question_asked_by_many_at_once_is_one_question(kept: Any) -> None:
    question = an_approval()

    answers = await asyncio.gather(*(kept.approvals.ask(anew(question)) for _ in range(15)))

    assert len({answer.token for answer in answers}) == 1
    assert len(await kept.approvals.pending()) == 1


@pytest.mark.parametrize(
    "other", [{"session_id": "s-2"}, {"tool": "sell"}, {"digest": "x"}, {"by": "customer"}, {"repeat": 1}]
)
async def test_another_question_is_another_approval(kept: Any, other: dict[str, Any]) -> None:
    first = await kept.approvals.ask(an_approval())

    second = await kept.approvals.ask(anew(first, **other))

    assert second.token != first.token
    assert len(await kept.approvals.pending()) == 2


async def test_an_expired_question_is_asked_anew(kept: Any) -> None:
    now = time.time()
    old = await kept.approvals.ask(an_approval(created_at=now - 20, expires_at=now - 10))

    assert await found(kept.approvals, old) is None
    new = await kept.approvals.ask(anew(old, created_at=now, expires_at=now + 10))

    assert new.token != old.token
    assert await found(kept.approvals, old) == new
    with pytest.raises(ApprovalError):
        await kept.approvals.approve(old.token, by="operator", who="ann")


@pytest.mark.parametrize("answer", ["approve", "deny"])
async def test_who_decided_an_expired_question_and_why_stays_under_its_token(kept: Any, answer: str) -> None:
    now = time.time()
    first = await kept.approvals.ask(an_approval(created_at=now, expires_at=now + 0.5, call_id="c-1"))
    decided = await getattr(kept.approvals, answer)(first.token, by="operator", who="ann", reason="looked at it")
    later = now + 10
    if isinstance(kept, SqlStore):
        await asyncio.sleep(0.6)

    second = await kept.approvals.ask(anew(first, created_at=later, expires_at=later + 100, call_id="c-2"))
    third = await kept.approvals.ask(anew(first, created_at=later, expires_at=later + 100, call_id="c-3"))

    assert third == second
    assert (second.state, second.call_id, second.token != first.token) == ("pending", "c-2", True)
    past = await kept.approvals.history(session_id=first.session_id)
    assert [(item.token, item.state, item.who, item.reason, item.call_id) for item in past] == [
        (first.token, decided.state, "ann", "looked at it", "c-1"),
        (second.token, "pending", None, "", "c-2"),
    ]
    assert not await kept.approvals.consume(first.token, now=later)


async def test_a_no_answers_its_own_call_whoever_is_asked_and_no_other_call(kept: Any) -> None:
    first = await kept.approvals.ask(an_approval(call_id="c-1"))
    denied = await kept.approvals.deny(first.token, by="operator", who="ann")

    assert await kept.approvals.ask(anew(first)) == denied
    assert await kept.approvals.ask(anew(first, by="customer", repeat=1)) == denied
    async with asyncio.timeout(10):
        other = await kept.approvals.ask(anew(first, call_id="c-2"))
    assert (other.state, other.call_id) == ("pending", "c-2")
    assert await kept.approvals.ask(anew(first, by="customer")) == denied
    assert (await kept.approvals.get(first.token)).state == "denied"


async def test_a_question_expires_at_its_moment(kept: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if isinstance(kept, SqlStore) and not kept._database.is_sqlite:  # Its own clock counts: see test_clocks.py.
        return
    asked = await kept.approvals.ask(an_approval())
    monkeypatch.setattr(time, "time", lambda: asked.expires_at - 0.001)
    assert await kept.approvals.pending() == [asked]
    assert await found(kept.approvals, asked) == asked

    monkeypatch.setattr(time, "time", lambda: asked.expires_at)
    assert await kept.approvals.pending() == []
    assert await found(kept.approvals, asked) is None
    async with asyncio.timeout(10):
        again = await kept.approvals.ask(anew(asked, created_at=time.time(), expires_at=time.time() + 900))
    assert (again.token != asked.token, again.state) == (True, "pending")


async def test_a_used_approval_does_not_answer_the_next_question(kept: Any) -> None:
    first = await kept.approvals.ask(an_approval())
    await kept.approvals.approve(first.token, by="operator", who="ann")
    await kept.approvals.consume(first.token, now=time.time())

    second = await kept.approvals.ask(anew(first))

    assert (second.token, second.state) != (first.token, "used")
    assert second.state == "pending"


# Answering.


@pytest.mark.parametrize("state", ["approved", "denied"])
async def test_an_answer_is_found_with_who_gave_it_and_why(kept: Any, state: Literal["approved", "denied"]) -> None:
    asked = await kept.approvals.ask(an_approval())
    answer = kept.approvals.approve if state == "approved" else kept.approvals.deny

    given_back = await answer(asked.token, by="operator", who="ann", reason="checked")

    assert given_back.decided_at is not None
    assert given_back == structs.replace(
        asked, state=state, who="ann", reason="checked", decided_at=given_back.decided_at
    )
    assert await found(kept.approvals, asked) == given_back
    assert await kept.approvals.ask(anew(asked)) == given_back
    assert await kept.approvals.pending() == []


async def test_changed_arguments_are_kept_beside_those_that_were_asked_about(kept: Any) -> None:
    asked = await kept.approvals.ask(an_approval(arguments={"amount": 300}))

    await kept.approvals.approve(asked.token, by="operator", who="ann", arguments={"amount": 200})

    known = await found(kept.approvals, asked)
    assert known is not None
    assert (known.arguments, known.changed_arguments) == ({"amount": 300}, {"amount": 200})


async def test_an_approval_without_changed_arguments_has_none(kept: Any) -> None:
    asked = await kept.approvals.ask(an_approval())

    await kept.approvals.approve(asked.token, by="operator", who="ann")

    known = await found(kept.approvals, asked)
    assert known is not None
    assert known.changed_arguments is None


WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "unknown": ({}, {"token": "apr_made-up"}, "no such approval"),
    "expired": ({"expires_at": 1.0}, {}, "expired"),
    "wrong kind of person": ({"by": "customer"}, {}, "for the customer to decide"),
    "nobody": ({}, {"who": ""}, "Say who decides"),
    "another customer": ({"by": "customer", "customer_id": "c-1"}, {"by": "customer"}, "nobody else"),
}


@pytest.mark.parametrize("answer", ["approve", "deny"])
@pytest.mark.parametrize("case", WRONG)
async def test_a_response_that_cannot_be_given_is_refused(kept: Any, case: str, answer: str) -> None:
    question, how, message = WRONG[case]
    asked = await kept.approvals.ask(an_approval(**question))
    how = {"token": asked.token, "by": "operator", "who": "ann", **how}

    with pytest.raises(ApprovalError, match=message):
        await getattr(kept.approvals, answer)(how.pop("token"), **how)

    known = await found(kept.approvals, asked, now=0.0)
    assert known is None or known.state == "pending"


async def test_of_many_answers_at_once_exactly_one_counts(kept: Any) -> None:
    asked = await kept.approvals.ask(an_approval())

    async def decide(number: int) -> Approval | str:
        answer = kept.approvals.approve if number % 2 else kept.approvals.deny
        try:
            return await answer(asked.token, by="operator", who=f"person {number}")
        except ApprovalError as error:
            return error.message

    said = await asyncio.gather(*(decide(number) for number in range(15)))

    # Who decides the same later gets the decision that counts; who decides otherwise is told.
    (counts, *same) = [text for text in said if isinstance(text, Approval)]
    assert [(item.who, item.state) for item in same] == [(counts.who, counts.state)] * len(same)
    known = await found(kept.approvals, asked)  # Its time is that of the database, to the second.
    assert (known.who, known.state) == (counts.who, counts.state)
    assert {text for text in said if isinstance(text, str)} == {
        f"This approval is not open any more: it is {counts.state}."
    }


# Using up.


async def test_an_approval_is_used_up_by_exactly_one(kept: Any) -> None:
    asked = await kept.approvals.ask(an_approval())
    await kept.approvals.approve(asked.token, by="operator", who="ann")

    used = await asyncio.gather(*(kept.approvals.consume(asked.token, now=time.time()) for _ in range(15)))

    assert sum(used) == 1
    assert await found(kept.approvals, asked) is None
    if isinstance(kept, SqlStore):
        await kept.audit.flush()
        told = await kept.audit.query(kind=ApprovalUsed)
        assert [(event.detail["token"], event.detail["who"]) for event in told] == [(asked.token, "ann")]


@pytest.mark.parametrize("answer", [None, "approve", "deny"])
async def test_a_question_that_was_withdrawn_is_not_open_not_usable_and_can_be_asked_anew(
    kept: Any, answer: str | None
) -> None:
    first = await kept.approvals.ask(an_approval())
    if answer is not None:
        await getattr(kept.approvals, answer)(first.token, by=first.by, who=first.customer_id or "somebody")
    await kept.approvals.withdraw(first.token)
    await kept.approvals.withdraw("apr_nobody")

    assert await kept.approvals.pending() == []
    assert await found(kept.approvals, first) is None
    assert not await kept.approvals.consume(first.token, now=time.time())
    again = await kept.approvals.ask(anew(first))
    assert again.token != first.token
    closed = await kept.approvals.get(first.token)
    assert closed.state == ("denied" if answer == "deny" else "withdrawn")
    assert closed.who == (None if answer is None else "somebody")


async def test_only_what_is_pending_about_one_call_is_withdrawn_with_it(kept: Any) -> None:
    mine = await kept.approvals.ask(an_approval(call_id="c-1"))
    decided = await kept.approvals.ask(an_approval(call_id="c-1", digest="decided"))
    await kept.approvals.approve(decided.token, by="operator", who="ann")
    others = [
        await kept.approvals.ask(an_approval(call_id="c-1", session_id="s-2")),
        await kept.approvals.ask(an_approval(call_id="c-2", digest="other")),
    ]

    await kept.approvals.withdraw_pending(session_id=mine.session_id, call_id="c-1")

    assert {approval.token for approval in await kept.approvals.pending()} == {other.token for other in others}
    assert (await kept.approvals.get(mine.token)).state == "withdrawn"
    assert (await kept.approvals.get(decided.token)).state == "approved"
    with pytest.raises(ApprovalError, match="it is withdrawn"):
        await kept.approvals.approve(mine.token, by="operator", who="ann")


async def test_a_question_whose_reason_is_gone_is_withdrawn_when_its_call_runs(kept: Any) -> None:
    """A release that allows the tool: the resent call runs, and nobody is asked about it any more."""

    @tool
    async def pay(amount: int) -> str:
        """Pay."""
        return "paid"

    parts: Any = {"ledger": kept.ledger, "approvals": kept.approvals}
    call = ToolCall(id="c-1", name="pay", arguments_json='{"amount": 5}')
    context = ToolContext(session_id="s-1", customer_id="ann")
    asked = await Executor([pay], **parts).run(call, context)
    other = await kept.approvals.ask(an_approval(session_id="s-1", call_id="c-2"))
    assert asked.approval is not None
    assert asked.approval.call_id == "c-1"

    allowed = await Executor([pay], policy=Policy([Rule.allow("pay")]), **parts).run(call, context)

    assert allowed.ok
    assert await kept.approvals.pending() == [other]
    assert (await kept.approvals.get(asked.approval.token)).state == "withdrawn"


@pytest.mark.parametrize("answer", ["approve", "deny"])
async def test_what_was_decided_the_same_way_is_returned_and_not_decided_again(kept: Any, answer: str) -> None:
    asked = await kept.approvals.ask(an_approval())
    first = await getattr(kept.approvals, answer)(asked.token, by="operator", who="ann", reason="fine")

    again = await getattr(kept.approvals, answer)(asked.token, by="operator", who="bob", reason="me too")

    assert (again.state, again.who, again.reason, again.decided_at) == (first.state, "ann", "fine", first.decided_at)
    other = "deny" if answer == "approve" else "approve"
    with pytest.raises(ApprovalError, match=f"it is {first.state}"):
        await getattr(kept.approvals, other)(asked.token, by="operator", who="bob")
    with pytest.raises(ApprovalError, match="for the operator to decide"):
        await getattr(kept.approvals, answer)(asked.token, by="customer", who="bob")


async def test_a_used_approval_is_returned_unless_other_arguments_are_wanted(kept: Any) -> None:
    asked = await kept.approvals.ask(an_approval())
    await kept.approvals.approve(asked.token, by="operator", who="ann", arguments={"amount": 1})
    await kept.approvals.consume(asked.token, now=time.time())

    again = await kept.approvals.approve(asked.token, by="operator", who="bob", arguments={"amount": 1})

    assert (again.state, again.who) == ("used", "ann")
    with pytest.raises(ApprovalError, match="already given, with other arguments"):
        await kept.approvals.approve(asked.token, by="operator", who="bob")


async def test_an_approval_is_usable_until_the_moment_it_expires(kept: Any) -> None:
    asked = await kept.approvals.ask(an_approval())
    await kept.approvals.approve(asked.token, by="operator", who="ann")

    if isinstance(kept, SqlStore) and not kept._database.is_sqlite:  # Its own clock counts: see test_clocks.py.
        return
    assert not await kept.approvals.consume(asked.token, now=asked.expires_at)
    assert await kept.approvals.consume(asked.token, now=asked.expires_at - 0.001)


async def test_an_approval_that_was_given_back_can_be_used_once_more(kept: Any) -> None:
    asked = await kept.approvals.ask(an_approval())
    await kept.approvals.approve(asked.token, by="operator", who="ann")
    await kept.approvals.consume(asked.token, now=time.time())

    await kept.approvals.restore(asked.token)

    used = [await kept.approvals.consume(asked.token, now=time.time()) for _ in range(2)]
    assert used == [True, False]


async def test_giving_back_makes_no_approval_of_what_was_not_used(store: SqlStore) -> None:
    asked = await store.approvals.ask(an_approval())

    await store.approvals.restore(asked.token)

    assert not await store.approvals.consume(asked.token, now=time.time())
    assert await store.approvals.pending() == [asked]


async def test_an_approval_is_not_given_back_over_the_same_question_that_is_open_again(store: SqlStore) -> None:
    first = await store.approvals.ask(an_approval())
    await store.approvals.approve(first.token, by="operator", who="ann")
    await store.approvals.consume(first.token, now=time.time())
    second = await store.approvals.ask(anew(first))

    await store.approvals.restore(first.token)

    assert await found(store.approvals, first) == second
    assert not await store.approvals.consume(first.token, now=time.time())


# What is open.


async def test_the_open_questions_are_listed_oldest_first_and_by_session_or_tenant(kept: Any) -> None:
    now = time.time()
    asked = [
        await kept.approvals.ask(an_approval(session_id=session, tenant_id=tenant, created_at=now + number))
        for number, (session, tenant) in enumerate([("s-1", "t-1"), ("s-2", "t-1"), ("s-1", "t-2"), ("s-3", None)])
    ]
    gone = await kept.approvals.ask(an_approval(created_at=now - 20, expires_at=now - 10))
    denied = await kept.approvals.ask(an_approval())
    await kept.approvals.deny(denied.token, by="operator", who="ann")

    assert gone not in await kept.approvals.pending()
    assert await kept.approvals.pending() == asked
    assert await kept.approvals.pending(session_id="s-1") == [asked[0], asked[2]]
    assert await kept.approvals.pending(tenant_id="t-1") == [asked[0], asked[1]]
    assert await kept.approvals.pending(session_id="s-1", tenant_id="t-1") == [asked[0]]


async def test_open_questions_and_past_ones_are_read_page_by_page(kept: Any) -> None:
    now = time.time()
    asked = [
        await kept.approvals.ask(an_approval(created_at=now + number // 2, expires_at=now + 900 + number // 2))
        for number in range(7)  # Two at a time.
    ]
    await kept.approvals.ask(an_approval(session_id="s-2"))

    pages = [await kept.approvals.pending(session_id="s-1", limit=3)]
    while page := await kept.approvals.pending(session_id="s-1", limit=3, after=pages[-1][-1]):
        pages.append(page)
    past = [await kept.approvals.history(session_id="s-1", limit=3)]
    while page := await kept.approvals.history(session_id="s-1", limit=3, before=past[-1][0]):
        past.append(page)

    assert [len(page) for page in pages] == [len(page) for page in past] == [3, 3, 1]
    in_order = sorted(asked, key=lambda one: (one.created_at, one.token))
    assert [row for page in pages for row in page] == in_order
    assert [row for page in reversed(past) for row in page] == in_order


async def test_a_limit_below_one_and_an_unknown_filter_are_refused(kept: Any) -> None:
    for query in (kept.approvals.pending, kept.approvals.history):
        with pytest.raises(ConfigError, match="limit must be at least 1, got 0"):
            await query(limit=0)
    with pytest.raises(TypeError, match="unexpected keyword argument 'sesion_id'"):
        await kept.approvals.history(sesion_id="s-1")


async def test_a_question_is_answered_through_another_store_in_the_same_database(url: str) -> None:
    async with open_store(url) as ours, open_store(url) as theirs:
        asked = await ours.approvals.ask(an_approval())

        (open_question,) = await theirs.approvals.pending()
        await theirs.approvals.approve(open_question.token, by="operator", who="ann")

        known = await found(ours.approvals, asked)
        assert known is not None
        assert (known.state, known.who) == ("approved", "ann")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(text=st.text(max_size=20), reason=st.text(max_size=20))
async def test_a_question_can_hold_whatever_a_model_sends(store: SqlStore, text: str, reason: str) -> None:
    asked = await store.approvals.ask(an_approval(arguments={"text": text}, question=reason))
    changed = {"text": f"{text}{text}x"}
    await store.approvals.approve(asked.token, by="operator", who="ann", reason=reason, arguments=changed)

    known = await found(store.approvals, asked)

    assert known is not None
    assert known.state == "approved"
    if text.isprintable() and reason.isprintable():
        assert (known.arguments, known.changed_arguments) == ({"text": text}, changed)
        assert (known.question, known.reason) == (reason, reason)

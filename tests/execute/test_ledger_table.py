"""The state table of the ledger, line by line, and the rules of the ledger in memory at their boundaries."""

import contextlib
from itertools import product
from typing import Any, cast

import pytest
from msgspec import structs

from handrail import ConfigError, Failure, MediaPart
from handrail.authorize import MemoryApprovals
from handrail.errors import CallTakenOverError, LedgerFullError
from handrail.execute import Entry, MemoryLedger, Recalled
from handrail.execute.ledger import (
    LedgerDecision,
    RecordedResult,
    decide_from_ledger,
    is_same_decision,
    is_unchanged,
    settle_entry,
    take_entry,
    with_answer,
)

NOW = 1_000_000.0
WINDOW = 600.0


def an_entry(call_id: str = "c-1", **values: Any) -> Entry:
    """A call that was claimed ten seconds ago, whose lease ends in ten."""
    given: dict[str, Any] = {
        "session_id": "s-1",
        "call_id": call_id,
        "tool": "pay",
        "identity": "same",
        "arguments_digest": "digest",
        "key": "key",
        "number": 0,
        "repeat": 0,
        "turn": 1,
        "owner": "ann",
        "claimed_at": NOW - 10,
        "lease_until": NOW + 10,
        **values,
    }
    return Entry(**{"full_key": given["key"], "full_number": given["number"], **given})


def decide(recalled: Recalled, **call: Any) -> LedgerDecision:
    given: dict[str, Any] = {"identity": "same", "arguments_digest": "digest", "session_id": "s-1", "turn": 1}
    return decide_from_ledger(recalled, **{**given, **call}, now=NOW, repeat_window=WINDOW)


OVER = {"lease_until": NOW}
DONE = {"state": "committed", "settled_at": NOW - 5}
FAILED = {"state": "failed", "settled_at": NOW - 5}


@pytest.mark.parametrize(
    ("known", "identity", "step"),
    [
        ({}, "same", "in_progress"),
        (OVER, "same", "unknown"),
        ({"state": "unknown"}, "same", "unknown"),
        (DONE, "same", "replay"),
        (FAILED, "same", "replay"),
        (DONE, "other", "duplicate_id"),
        ({"lease_until": NOW + 10, "read_at": NOW + 10}, "same", "unknown"),  # By the clock of the database.
        ({"lease_until": NOW - 10, "read_at": NOW - 11}, "same", "in_progress"),
    ],
)
def test_what_arrives_with_a_known_id(known: dict[str, Any], identity: str, step: str) -> None:
    entry = an_entry(**known)
    other = an_entry("c-2", state="unknown")

    assert decide(Recalled(entry, other, other), identity=identity) == LedgerDecision(step=step, entry=entry)


@pytest.mark.parametrize(
    ("known", "call", "step", "repeat", "is_same"),
    [
        ({}, {}, "in_progress", 0, True),
        (OVER, {}, "unknown", 0, True),
        (OVER, {"identity": "other"}, "unknown", 0, True),  # The same values, written otherwise.
        (OVER, {"arguments_digest": "other"}, "unknown", 0, True),
        (OVER, {"identity": "other", "arguments_digest": "other"}, "unknown", 0, False),
        (DONE, {}, "replay", 0, True),
        (DONE, {"identity": "other", "arguments_digest": "other"}, "duplicate_effect", 0, False),
        (DONE, {"turn": 2}, "ask_again", 1, True),
        (DONE, {"session_id": "s-2"}, "ask_again", 1, True),
        ({**DONE, "repeat": 3}, {"turn": 2}, "ask_again", 4, True),
        ({**DONE, "settled_at": NOW - WINDOW + 1}, {"turn": 2}, "ask_again", 1, True),
        ({**DONE, "settled_at": NOW - WINDOW}, {"turn": 2}, "run", 1, True),
        ({**DONE, "settled_at": None, "claimed_at": NOW - WINDOW}, {"turn": 2}, "run", 1, True),
        ({**DONE, "settled_at": NOW, "read_at": NOW + WINDOW}, {"turn": 2}, "run", 1, True),
        (FAILED, {"turn": 2}, "run", 0, True),
        ({**FAILED, "repeat": 1}, {"turn": 2}, "ask_again", 1, True),
        ({**FAILED, "repeat": 1, "settled_at": NOW - WINDOW}, {"turn": 2}, "run", 1, True),
    ],
)
def test_what_arrives_with_the_key_of_another_call(
    known: dict[str, Any], call: dict[str, Any], step: Any, repeat: int, is_same: bool
) -> None:
    entry = an_entry(number=4, **known)
    expected = LedgerDecision(step=step, entry=entry, number=5, full_number=5, repeat=repeat, is_same=is_same)

    assert decide(Recalled(None, entry, entry), **call) == expected
    assert decide(Recalled(None, entry, None), **call) == structs.replace(expected, full_number=0)
    assert decide(Recalled(None, None, entry), **call) == structs.replace(expected, number=0)


def test_of_two_entries_of_one_effect_the_one_that_is_not_settled_decides_and_else_the_newest() -> None:
    old, new = an_entry("c-1", **DONE, number=1), an_entry("c-2", **{**DONE, "claimed_at": NOW - 1}, number=2)
    running, lost = an_entry("c-3"), an_entry("c-4", state="unknown")

    def chosen(by_key: Entry | None, by_full_key: Entry | None, by_sent_key: Entry | None = None) -> Entry | None:
        return decide(Recalled(None, by_key, by_full_key, by_sent_key)).entry

    assert chosen(old, new) is chosen(new, old) is new
    assert chosen(new, running) is chosen(running, new) is running
    assert chosen(new, lost) is chosen(lost, new) is lost
    assert chosen(None, None, old) is old
    assert chosen(new, None, old) is new
    assert decide(Recalled()).step == decide(Recalled(None, None, None, None)).step == "run"


def test_a_handler_can_be_alive_until_its_owner_says_otherwise_or_its_time_is_over() -> None:
    entry = an_entry(run_until=NOW)

    assert [entry.has_ended_at(now) for now in (NOW - 1, NOW)] == [False, True]
    assert structs.replace(entry, read_at=NOW).has_ended_at(NOW - 1)
    assert not structs.replace(entry, read_at=NOW - 1).has_ended_at(NOW)
    assert structs.replace(entry, state="unknown").has_ended_at(NOW - 1)


def test_what_an_approver_changed_is_kept_only_as_long_as_nobody_knows_the_outcome() -> None:
    entry = an_entry(changed_arguments="{}", lease_until=NOW, recorded=RecordedResult(text="x"), settled_at=NOW)

    assert settle_entry(entry, "unknown", RecordedResult(), now=NOW).changed_arguments == "{}"
    assert settle_entry(entry, "committed", RecordedResult(), now=NOW).changed_arguments is None
    taken = take_entry(structs.replace(entry, repeat_until=NOW + 5), owner="bob", lease_until=NOW + 1, run_until=NOW)
    assert (taken.owner, taken.state, taken.recorded, taken.settled_at) == ("bob", "running", None, None)
    assert taken.repeat_until == NOW + 5
    assert with_answer(entry, "no").text == "x"


@pytest.mark.parametrize("changed", [{"owner": "bob"}, {"state": "unknown"}, {"lease_until": NOW}])
def test_a_decision_is_the_same_if_it_is_because_of_the_same_entry_unchanged(changed: dict[str, Any]) -> None:
    entry = an_entry()
    decision = LedgerDecision(step="unknown", entry=entry)

    assert is_same_decision(decision, LedgerDecision(step="unknown", entry=an_entry(arguments="{}")))
    assert not is_unchanged(structs.replace(entry, **changed), entry)
    for other in (
        LedgerDecision(step="unknown", entry=structs.replace(entry, **changed)),
        LedgerDecision(step="unknown", entry=an_entry("c-2")),
        LedgerDecision(step="unknown", entry=an_entry(session_id="s-2")),
        LedgerDecision(step="in_progress", entry=entry),
        LedgerDecision(step="unknown", entry=entry, number=1),
        LedgerDecision(step="unknown"),
    ):
        assert not is_same_decision(decision, other)
        assert not is_same_decision(other, decision)
    assert is_same_decision(LedgerDecision(step="run"), LedgerDecision(step="run"))


# The ledger in memory.


async def claim(ledger: MemoryLedger, entry: Entry) -> bool:
    return await ledger.claim(entry, approval=None, approvals=MemoryApprovals())


async def done(ledger: MemoryLedger, entry: Entry, text: str = "done", **recorded: Any) -> Entry:
    assert await claim(ledger, entry)
    settled = settle_entry(entry, "committed", RecordedResult(text=text, **recorded), now=NOW)
    await ledger.settle(settled)
    return settled


async def recall(ledger: MemoryLedger, entry: Entry) -> Recalled:
    return await ledger.recall(
        session_id=entry.session_id, call_id=entry.call_id, key=entry.key, full_key=entry.full_key
    )


async def test_a_claim_needs_the_next_number_of_both_of_its_keys_and_an_id_of_its_own() -> None:
    ledger = MemoryLedger()
    assert not await claim(ledger, an_entry(number=1))
    assert not await claim(ledger, an_entry(full_number=1))
    await done(ledger, an_entry())
    assert not await claim(ledger, an_entry("c-2"))
    assert not await claim(ledger, an_entry("c-1", number=1))
    assert not await claim(ledger, an_entry("c-2", number=1, full_number=0))
    assert not await claim(ledger, an_entry("c-2", number=0, full_number=1))
    assert await claim(ledger, an_entry("c-2", number=1))
    assert await claim(ledger, an_entry("c-3", key="other", full_key="key", full_number=2))
    recalled = await recall(ledger, an_entry("c-9"))
    assert [entry and entry.call_id for entry in (recalled.by_id, recalled.by_key, recalled.by_full_key)] == [
        None,
        "c-2",
        "c-3",
    ]


async def test_only_what_an_approver_changed_is_found_by_what_was_sent() -> None:
    ledger = MemoryLedger()
    for number, sent in enumerate(("", "k-1", "sent")):
        await claim(ledger, an_entry(f"c-{number}", key=f"k-{number}", sent_key=sent))

    async def find(key: str) -> Entry | None:
        return (await ledger.recall(session_id="s-1", call_id="unknown", key=key)).by_sent_key

    assert [item and item.call_id for item in [await find(key) for key in ("", "k-0", "k-1", "k-2", "sent")]] == [
        *([None] * 4),
        "c-2",
    ]


async def test_what_is_settled_late_does_not_replace_what_came_after_it() -> None:
    ledger = MemoryLedger()
    first = an_entry("c-1")
    await claim(ledger, first)
    await claim(ledger, an_entry("c-2", number=1))
    await ledger.settle(settle_entry(first, "committed", RecordedResult(), now=NOW))

    recalled = await recall(ledger, an_entry("c-1"))
    assert [item and item.call_id for item in (recalled.by_id, recalled.by_key, recalled.by_full_key)] == [
        "c-1",
        "c-2",
        "c-2",
    ]


async def test_a_claim_whose_approval_is_gone_or_cannot_be_read_leaves_everything_as_it_was() -> None:
    class Gone(MemoryApprovals):
        async def consume(self, token: str, *, now: float, call_id: str | None = None) -> bool:
            return False

    class Away(MemoryApprovals):
        async def consume(self, token: str, *, now: float, call_id: str | None = None) -> bool:
            raise ConnectionError("away")

    approval: Any = type("Token", (), {"token": "t-1"})
    for before, approvals in product((None, an_entry("c-0", sent_key="sent")), (Gone(), Away())):
        ledger = MemoryLedger()
        if before is not None:
            await done(ledger, before)
        again = an_entry("c-1", number=0 if before is None else 1, sent_key="sent-1")
        with contextlib.suppress(ConnectionError):
            assert not await ledger.claim(again, approval=approval, approvals=approvals)
        recalled = await ledger.recall(session_id="s-1", call_id="c-1", key="key", full_key="key")
        known = None if before is None else before.call_id
        assert recalled.by_id is None
        assert [item and item.call_id for item in (recalled.by_key, recalled.by_full_key)] == [known, known]
        assert (await ledger.recall(session_id="s-1", call_id="x", key="sent-1")).by_sent_key is None
        assert await ledger.find_doubts(now=NOW + 100) == []


async def test_a_claim_whose_approval_is_gone_does_not_hide_what_an_approver_made_of_the_same_call_before() -> None:
    class Gone(MemoryApprovals):
        async def consume(self, token: str, *, now: float, call_id: str | None = None) -> bool:
            return False

    ledger, approval = MemoryLedger(), cast(Any, type("Token", (), {"token": "t-1"}))
    await done(ledger, an_entry("c-1", key="changed", sent_key="sent"))
    again = an_entry("c-2", key="changed otherwise", sent_key="sent")
    assert not await ledger.claim(again, approval=approval, approvals=Gone())

    recalled = await ledger.recall(session_id="s-1", call_id="c-3", key="sent")
    assert recalled.by_sent_key is not None
    assert recalled.by_sent_key.call_id == "c-1"


async def test_a_claim_whose_approval_is_gone_does_not_hide_a_call_that_was_made_meanwhile() -> None:
    class Gone(MemoryApprovals):
        async def consume(self, token: str, *, now: float, call_id: str | None = None) -> bool:
            await done(ledger, an_entry("c-3", key="changed meanwhile", sent_key="sent"))
            return False

    ledger, approval = MemoryLedger(), cast(Any, type("Token", (), {"token": "t-1"}))
    await done(ledger, an_entry("c-1", key="changed", sent_key="sent"))
    again = an_entry("c-2", key="changed otherwise", sent_key="sent")
    assert not await ledger.claim(again, approval=approval, approvals=Gone())

    recalled = await ledger.recall(session_id="s-1", call_id="c-4", key="sent")
    assert recalled.by_sent_key is not None
    assert recalled.by_sent_key.call_id == "c-3"


async def test_only_its_owner_settles_a_call_and_only_once() -> None:
    ledger = MemoryLedger()
    entry = await done(ledger, an_entry())
    await ledger.settle(settle_entry(an_entry(), "failed", RecordedResult(), now=NOW))
    assert (await recall(ledger, entry)).by_id == entry

    running = an_entry("c-2", key="k-2")
    await claim(ledger, running)
    theirs = structs.replace(running, owner="bob")
    with pytest.raises(CallTakenOverError):
        await ledger.settle(settle_entry(theirs, "committed", RecordedResult(), now=NOW))
    await ledger.settle(settle_entry(theirs, "failed", RecordedResult(), now=NOW))
    assert (await recall(ledger, running)).by_id == running
    await ledger.settle(settle_entry(an_entry("c-9"), "committed", RecordedResult(), now=NOW))
    assert (await recall(ledger, an_entry("c-9"))).by_id is None


async def test_a_call_is_taken_over_only_as_it_was_read_and_not_once_it_is_settled() -> None:
    ledger = MemoryLedger()
    entry = an_entry()
    given: dict[str, Any] = {"owner": "bob", "lease_until": NOW + 60, "run_until": NOW + 60}
    assert await ledger.take_over(entry, **given) is None
    await claim(ledger, entry)
    assert await ledger.take_over(structs.replace(entry, lease_until=NOW), **given) is None
    taken = await ledger.take_over(entry, **given)
    assert taken is not None
    assert await ledger.take_over(entry, **given) is None
    settled = settle_entry(taken, "committed", RecordedResult(), now=NOW)
    await ledger.settle(settled)
    assert await ledger.take_over(settled, **given) is None


async def test_over_its_bytes_every_way_to_an_entry_leads_to_the_short_one() -> None:
    ledger = MemoryLedger(max_bytes=5_000)
    first = an_entry(sent_key="sent", full_key="full", arguments="a" * 1_001)
    media = (MediaPart(mime_type="image/png", data=b"x" * 100),)
    long = {"failure": Failure(code="x", message="m" * 2_000), "notice": "n" * 2_000, "media": media}
    await done(ledger, first, "t" * 1_001, is_json=True, **long)
    second = an_entry("c-2", key="k-2", sent_key="s-2", full_key="f-2", arguments="a" * 1_000)
    await done(ledger, second, "t" * 1_000, is_json=True)

    found = await ledger.recall(session_id="s-1", call_id="c-1", key="key", full_key="full")
    short = found.by_id
    assert short is not None
    assert short is found.by_key is found.by_full_key
    assert (await ledger.recall(session_id="s-1", call_id="x", key="sent")).by_sent_key is short
    assert short.arguments.startswith("a" * 1_000 + "… [the rest is left out")
    recorded = short.recorded
    assert recorded is not None
    assert recorded.text is not None
    assert recorded.failure is not None
    assert "is left out" in recorded.text
    assert (recorded.is_json, len(recorded.failure.message), len(recorded.notice)) == (False, 1_000, 1_000)
    assert [part.data for part in recorded.media] == [None]

    await done(ledger, an_entry("c-3", key="k-3"), "t" * 4_900)
    exact = (await recall(ledger, second)).by_id
    assert exact is not None
    assert exact.recorded is not None
    assert (exact.arguments, exact.recorded.text, exact.recorded.is_json) == ("a" * 1_000, "t" * 1_000, True)


async def test_media_that_is_not_there_takes_no_room() -> None:
    ledger = MemoryLedger(max_bytes=5_000)
    part = MediaPart(mime_type="image/png", data=b"x" * 3_000)
    for number, media in enumerate((part, part.omit("too large"))):
        await done(ledger, an_entry(f"c-{number}", key=f"k-{number}"), "t" * 1_500, media=(media,))
    first, second = [(await recall(ledger, an_entry(f"c-{n}", key=f"k-{n}"))).by_id for n in range(2)]
    assert first is not None
    assert first.recorded is not None
    assert second is not None
    assert second.recorded is not None
    assert first.recorded.text == "[The result of `pay` is left out: it is not kept any more.]"
    assert second.recorded.text == "t" * 1_500

    ledger = MemoryLedger(max_bytes=5_000)
    omitted = [an_entry(f"c-{number}", key=f"k-{number}") for number in range(3)]
    for entry in omitted:
        await done(ledger, entry, "t" * 1_500, media=(part.omit("too large"),))
    found = [(await recall(ledger, entry)).by_id for entry in omitted]
    assert [item is not None and item.recorded is not None and item.recorded.text == "t" * 1_500 for item in found] == [
        True,
        True,
        True,
    ]


@pytest.mark.parametrize(
    "long",
    [
        {"metadata": {"note": "m" * 3_000}},
        {"notice": "n" * 3_000},
        {"failure": Failure(code="x", message="f" * 3_000)},
        {"media": (MediaPart(mime_type="image/png", data=b"x" * 3_000),)},
    ],
    ids=lambda long: next(iter(long)),
)
async def test_everything_that_is_recorded_takes_room(long: dict[str, Any]) -> None:
    ledger = MemoryLedger(max_bytes=5_000)
    for number, more in enumerate((long, {})):
        await done(ledger, an_entry(f"c-{number}", key=f"k-{number}"), "t" * 2_000, **more)
    first, second = [(await recall(ledger, an_entry(f"c-{n}", key=f"k-{n}"))).by_id for n in range(2)]

    assert [
        item is not None and item.recorded is not None and item.recorded.text == "t" * 2_000 for item in (first, second)
    ] == [
        False,
        True,
    ]


async def test_a_full_ledger_forgets_what_is_old_enough_by_every_key_and_nothing_else() -> None:
    ledger = MemoryLedger(max_entries=2, keep_for=100)
    old = await done(ledger, an_entry("c-1", sent_key="sent"))
    await claim(ledger, an_entry("c-2", key="k-2"))

    too_young = an_entry("c-3", key="k-3", claimed_at=NOW + 99)
    with pytest.raises(LedgerFullError):
        await claim(ledger, too_young)
    assert (await recall(ledger, old)).by_id is not None
    assert await claim(ledger, structs.replace(too_young, claimed_at=NOW + 100))
    forgotten = await ledger.recall(session_id="s-1", call_id="c-1", key="key", full_key="key")
    assert forgotten == Recalled()
    assert (await ledger.recall(session_id="s-1", call_id="x", key="sent")).by_sent_key is None
    with pytest.raises(LedgerFullError):  # Both run.
        await claim(ledger, an_entry("c-4", key="k-4", claimed_at=NOW + 9_999))


async def test_what_is_forgotten_does_not_take_a_newer_call_of_its_key_with_it() -> None:
    ledger = MemoryLedger(max_entries=2, keep_for=0)
    await done(ledger, an_entry("c-1", sent_key="sent"))
    await done(ledger, an_entry("c-2", number=1, sent_key="sent"))
    assert await claim(ledger, an_entry("c-3", key="k-3", claimed_at=NOW))

    recalled = await ledger.recall(session_id="s-1", call_id="c-1", key="key", full_key="key")
    assert [item and item.call_id for item in (recalled.by_id, recalled.by_key, recalled.by_full_key)] == [
        None,
        "c-2",
        "c-2",
    ]
    sent = (await ledger.recall(session_id="s-1", call_id="x", key="sent")).by_sent_key
    assert sent is not None
    assert sent.call_id == "c-2"


async def test_doubts_are_listed_by_session_and_tenant_the_oldest_first() -> None:
    ledger = MemoryLedger()
    for number, (session, tenant) in enumerate([("s-1", "a"), ("s-2", "a"), ("s-1", "b"), ("s-1", "a")]):
        await claim(ledger, an_entry(f"c-{number}", key=f"k-{number}", session_id=session, tenant_id=tenant))

    async def find(now: float = NOW + 10, **given: Any) -> list[str]:
        return [entry.call_id for entry in await ledger.find_doubts(now=now, **given)]

    assert await find(NOW + 9) == []
    assert await find() == ["c-0", "c-1", "c-2", "c-3"]
    assert await find(session_id="s-1") == ["c-0", "c-2", "c-3"]
    assert await find(tenant_id="a") == ["c-0", "c-1", "c-3"]
    assert await find(session_id="s-1", tenant_id="a") == ["c-0", "c-3"]
    assert await find(limit=2) == ["c-0", "c-1"]
    await ledger.renew([an_entry("c-0", key="k-0")], lease_until=NOW + 100)
    assert await find(limit=2) == ["c-1", "c-2"]


async def test_what_is_said_about_a_doubt_is_written_only_while_it_is_one() -> None:
    ledger = MemoryLedger()
    entry = an_entry(state="running")
    await claim(ledger, entry)
    lost = settle_entry(entry, "unknown", RecordedResult(text="lost"), now=NOW)
    await ledger.settle(lost)
    await ledger.record_answer(structs.replace(lost, owner="bob"), "no")
    known = (await recall(ledger, entry)).by_id
    assert known == lost
    await ledger.record_answer(lost, "no")
    known = (await recall(ledger, entry)).by_id
    assert known is not None
    assert known.recorded == RecordedResult(text="lost", verified="no")

    settled = settle_entry(lost, "failed", RecordedResult(), now=NOW)
    assert not await ledger.resolve(structs.replace(settled, owner="bob"))
    assert await ledger.resolve(settled)
    assert not await ledger.resolve(settled)


@pytest.mark.parametrize("least", [{"max_entries": 1}, {"max_bytes": 0}, {"keep_for": 0}])
def test_the_smallest_ledger(least: dict[str, int]) -> None:
    MemoryLedger(**least)
    [(name, value)] = least.items()
    with pytest.raises(ConfigError, match=name):
        MemoryLedger(**{name: value - 1})

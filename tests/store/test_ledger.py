"""A ledger keeps entries: a claim is won by one caller, takes its approval with it, and is settled once for all."""

import asyncio
import string
import time
from typing import Any

import pytest
from cryptography.fernet import Fernet
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs
from sqlalchemy import text

from handrail import Control, Decision, Failure
from handrail.authorize import MemoryApprovals
from handrail.core import Approval, ApprovalUsed
from handrail.errors import CallTakenOverError, StoreError
from handrail.execute import Entry
from handrail.execute.ledger import RecordedResult
from handrail.store import SqlStore, open_store
from tests.execute.helpers import Bus
from tests.postgres import PostgresServer
from tests.store.proxy import proxied
from tests.store.samples import a_recorded, an_approval, an_entry, done

TIMES = dict.fromkeys(("claimed_at", "lease_until", "run_until", "repeat_until", "read_at"), 0.0)


class Found:
    """An entry as it was read: one that its database has timed by its own clock is compared without its times."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry

    def __eq__(self, other: object) -> bool:
        if not self.entry.read_at or not isinstance(other, Entry):
            return self.entry == other
        assert (self.entry.settled_at is None) == (other.settled_at is None)
        return structs.replace(self.entry, **TIMES, settled_at=None) == structs.replace(other, **TIMES, settled_at=None)

    __hash__ = None  # type: ignore[assignment]


async def recalled(ledger: Any, entry: Entry) -> tuple[Found | None, Found | None]:
    """The entry with this id, and the newest one of this effect."""
    found = await ledger.recall(
        session_id=entry.session_id, call_id=entry.call_id, key=entry.key, full_key=entry.full_key
    )
    entries = found.by_id, found.by_key or found.by_full_key or found.by_sent_key
    return tuple(item and Found(item) for item in entries)  # type: ignore[return-value]


async def claimed(kept: Any, entry: Entry) -> bool:
    return await kept.ledger.claim(entry, approval=None, approvals=kept.approvals)


async def approved(approvals: Any, **values: Any) -> Approval:
    """An approval that can be used."""
    asked = await approvals.ask(an_approval(**values))
    return await approvals.approve(asked.token, by=asked.by, who="ann")


# Claiming.


async def test_what_was_claimed_is_found_by_its_id_and_by_its_key(kept: Any) -> None:
    decision = Decision(action="ask", by="operator", rule="r", source="rules.yaml:3", reason="over 500")
    entry = an_entry(tenant_id="t-1", decision=decision, approval="apr_1")

    assert await recalled(kept.ledger, entry) == (None, None)
    assert await claimed(kept, entry)

    assert await recalled(kept.ledger, entry) == (entry, entry)
    assert await recalled(kept.ledger, an_entry(key=entry.key)) == (None, entry)
    assert await recalled(kept.ledger, structs.replace(entry, key="another", full_key="another")) == (entry, None)


@pytest.mark.parametrize("known_by", ["call_id", "key", "full_key", "sent_key", "nothing"])
async def test_a_call_that_was_not_looked_up_is_claimed_only_if_looking_would_find_nothing(
    kept: Any, known_by: str
) -> None:
    known = an_entry(sent_key="sent")
    assert await claimed(kept, known)
    key = {"key": known.key, "sent_key": "sent"}.get(known_by)
    values = {"call_id": known.call_id} if known_by == "call_id" else {}
    values |= {"full_key": known.full_key} if known_by == "full_key" else {}
    entry = an_entry(**values, **({"key": key, "full_key": "own"} if key else {}))

    found = await recalled(kept.ledger, entry)
    is_claimed = await kept.ledger.claim(entry, approval=None, approvals=kept.approvals, is_new=True)
    assert is_claimed == (known_by == "nothing") == (found == (None, None))
    assert (await recalled(kept.ledger, entry) == found) is not is_claimed


async def test_a_call_that_was_not_looked_up_is_not_new_if_only_a_repetition_of_it_is_left(kept: Any) -> None:
    first = an_entry()
    assert await claimed(kept, an_entry(key="k", number=0, full_key="f", full_number=0)) is True
    assert await claimed(kept, an_entry(key="k", number=1, full_key=first.key, full_number=0)) is True
    entry = an_entry(key="k", number=0, full_key="another")
    assert await kept.ledger.claim(entry, approval=None, approvals=kept.approvals, is_new=True) is False


async def test_the_id_of_a_call_is_its_own_in_its_session_only(kept: Any) -> None:
    first = an_entry(session_id="s-1", call_id="c")
    second = an_entry(session_id="s-2", call_id="c")

    assert await claimed(kept, first)
    assert await claimed(kept, second)
    assert (await recalled(kept.ledger, first))[0] == first
    assert (await recalled(kept.ledger, second))[0] == second


async def test_the_newest_entry_of_a_key_is_found(kept: Any) -> None:
    tries = [an_entry(key="k", number=number) for number in range(12)]
    for entry in tries:
        assert await claimed(kept, entry)

    assert (await recalled(kept.ledger, tries[3])) == (tries[3], tries[11])


async def test_a_taken_id_is_not_claimed_again(kept: Any) -> None:
    first = an_entry()
    await claimed(kept, first)

    assert not await claimed(kept, an_entry(session_id=first.session_id, call_id=first.call_id))
    assert await recalled(kept.ledger, first) == (first, first)


async def test_a_taken_number_of_a_key_is_not_claimed_again(kept: Any) -> None:
    first = an_entry()
    await claimed(kept, first)
    second = an_entry(key=first.key, number=first.number)

    assert not await claimed(kept, second)
    assert await recalled(kept.ledger, second) == (None, first)


@pytest.mark.parametrize("same", ["id", "key"])
@pytest.mark.parametrize("asked", [False, True])
async def test_of_many_that_claim_at_once_exactly_one_wins(kept: Any, same: str, asked: bool) -> None:
    approval = await approved(kept.approvals) if asked else None
    one = an_entry()
    of_one_id = {"session_id": one.session_id, "call_id": one.call_id}
    rivals = [an_entry(owner=f"o-{n}", **(of_one_id if same == "id" else {"key": one.key})) for n in range(20)]

    won = await asyncio.gather(
        *(kept.ledger.claim(rival, approval=approval, approvals=kept.approvals) for rival in rivals)
    )

    assert sum(won) == 1
    winner = rivals[won.index(True)]
    assert await recalled(kept.ledger, winner) == (winner, winner)


# With an approval.


async def test_a_claim_uses_up_its_approval(kept: Any) -> None:
    approval = await approved(kept.approvals)

    assert await kept.ledger.claim(an_entry(), approval=approval, approvals=kept.approvals)

    assert not await kept.approvals.consume(approval.token, now=time.time())


async def test_one_approval_is_good_for_one_claim(kept: Any) -> None:
    approval = await approved(kept.approvals)
    rivals = [an_entry() for _ in range(20)]

    won = await asyncio.gather(
        *(kept.ledger.claim(rival, approval=approval, approvals=kept.approvals) for rival in rivals)
    )

    assert sum(won) == 1
    stands = [(await recalled(kept.ledger, rival))[0] is not None for rival in rivals]
    assert stands == list(won)


@pytest.mark.parametrize("state", ["forged", "pending", "denied", "used", "expired"])
async def test_an_approval_that_cannot_be_used_claims_nothing(kept: Any, state: str) -> None:
    soon = time.time() + (0.5 if state == "expired" else 900)
    asked = await kept.approvals.ask(an_approval(expires_at=soon))
    approval = structs.replace(asked, token="apr_made-up") if state == "forged" else asked
    if state in ("used", "expired"):
        await kept.approvals.approve(asked.token, by="operator", who="ann")
    if state == "used":
        await kept.approvals.consume(asked.token, now=time.time())
    if state == "denied":
        await kept.approvals.deny(asked.token, by="operator", who="ann")
    if state == "expired":
        await asyncio.sleep(0.6)
    entry = an_entry()

    assert not await kept.ledger.claim(entry, approval=approval, approvals=kept.approvals)

    assert await recalled(kept.ledger, entry) == (None, None)


async def test_a_claim_that_is_lost_leaves_its_approval_as_it_was(kept: Any) -> None:
    approval = await approved(kept.approvals)
    first = an_entry()
    await claimed(kept, first)

    assert not await kept.ledger.claim(an_entry(key=first.key), approval=approval, approvals=kept.approvals)

    if isinstance(kept, SqlStore):
        await kept.audit.flush()
        assert await kept.audit.query(kind=ApprovalUsed) == []
    assert await kept.approvals.consume(approval.token, now=time.time())


async def test_listeners_hear_once_that_a_claim_used_an_approval(kept: Any) -> None:
    kept.approvals.events.subscribe(bus := Bus())
    approval = await approved(kept.approvals)
    entry = an_entry()

    assert await kept.ledger.claim(entry, approval=approval, approvals=kept.approvals)
    assert await claimed(kept, an_entry())

    used = bus.heard.of(ApprovalUsed)
    assert [(event.token, event.call_id) for event in used] == [(approval.token, entry.call_id)]


async def test_listeners_hear_which_call_used_an_approval_that_is_kept_elsewhere(kept: Any) -> None:
    elsewhere = MemoryApprovals()
    elsewhere.events.subscribe(bus := Bus())
    approval, entry = await approved(elsewhere), an_entry()

    assert await kept.ledger.claim(entry, approval=approval, approvals=elsewhere)

    assert [(event.token, event.call_id) for event in bus.heard.of(ApprovalUsed)] == [(approval.token, entry.call_id)]


async def test_approvals_that_are_kept_elsewhere_are_used_up_and_given_back(kept: Any) -> None:
    elsewhere = MemoryApprovals()
    first, second = await approved(elsewhere), await approved(elsewhere)
    entry = an_entry()

    assert await kept.ledger.claim(entry, approval=first, approvals=elsewhere)
    assert not await kept.ledger.claim(an_entry(key=entry.key), approval=second, approvals=elsewhere)
    assert not await kept.ledger.claim(an_entry(), approval=first, approvals=elsewhere)

    assert not await kept.ledger.claim(structs.replace(entry, key="other"), approval=second, approvals=elsewhere)
    assert not await elsewhere.consume(first.token, now=time.time())
    assert await elsewhere.consume(second.token, now=time.time())


async def test_of_many_with_an_approval_from_elsewhere_exactly_one_claims(kept: Any) -> None:
    elsewhere = MemoryApprovals()
    approval = await approved(elsewhere)
    one = an_entry()
    rivals = [an_entry(key=one.key) for _ in range(10)]

    won = await asyncio.gather(*(kept.ledger.claim(rival, approval=approval, approvals=elsewhere) for rival in rivals))

    assert sum(won) == 1


class ApprovalsAway(MemoryApprovals):
    """Approvals whose database is away."""

    async def consume(self, token: str, *, now: float, call_id: str | None = None) -> bool:
        raise ConnectionError("away")

    async def withdraw_pending(self, *, session_id: str, call_id: str) -> None:
        raise ConnectionError("away")


@pytest.mark.parametrize("is_asked", [True, False])
async def test_approvals_that_cannot_be_reached_leave_no_entry_behind(kept: Any, is_asked: bool) -> None:
    entry, elsewhere = an_entry(), ApprovalsAway()
    await elsewhere.ask(an_approval(session_id=entry.session_id, call_id=entry.call_id))

    with pytest.raises((ConnectionError, StoreError)):
        await kept.ledger.claim(entry, approval=an_approval() if is_asked else None, approvals=elsewhere)

    assert await recalled(kept.ledger, entry) == (None, None)
    assert await claimed(kept, entry)


@pytest.mark.postgres
async def test_an_approval_from_elsewhere_is_given_back_when_the_claim_breaks(postgres: PostgresServer) -> None:
    name = postgres.new_database().rpartition("/")[2]
    elsewhere = MemoryApprovals()
    approval = await approved(elsewhere)
    async with proxied(postgres.port) as proxy, open_store(postgres.url(name, port=proxy.port)) as store:
        proxy.lose = b"INSERT 0 1\0"

        with pytest.raises(Exception, match="connection"):
            await store.ledger.claim(an_entry(), approval=approval, approvals=elsewhere)

    assert proxy.lost == 1
    assert await elsewhere.consume(approval.token, now=time.time())


async def test_two_stores_in_one_database_share_their_approvals(url: str) -> None:
    async with open_store(url) as ours, open_store(url) as theirs:
        approval = await approved(theirs.approvals)
        entry = an_entry()

        assert await ours.ledger.claim(entry, approval=approval, approvals=theirs.approvals)
        assert not await theirs.approvals.consume(approval.token, now=time.time())
        assert (await recalled(theirs.ledger, entry))[0] == entry


# Settling.


@pytest.mark.parametrize("state", ["committed", "failed", "unknown"])
async def test_an_outcome_is_found_as_it_was_written(kept: Any, state: Any) -> None:
    entry = an_entry()
    await claimed(kept, entry)
    after = done(
        entry,
        state,
        failure=Failure(code="x", message="no", retryable=True),
        control=Control(mode="manual", lifespan="response"),
        metadata={"receipt": [1, {"a": None}]},
    )

    await kept.ledger.settle(after)

    assert await recalled(kept.ledger, entry) == (after, after)


async def test_an_outcome_that_became_known_later_is_written_over_an_unknown_one(kept: Any) -> None:
    entry = an_entry()
    await claimed(kept, entry)
    await kept.ledger.settle(done(entry, "unknown"))
    after = done(entry, "committed")

    await kept.ledger.settle(after)

    assert (await recalled(kept.ledger, entry))[0] == after


@pytest.mark.parametrize("late", ["running", "failed", "unknown"])
async def test_what_is_committed_stays_committed(kept: Any, late: Any) -> None:
    """Somebody asked `verify` too early, and its "no" arrives after the handler's "done"."""
    entry = an_entry()
    await claimed(kept, entry)
    after = done(entry, "committed")
    await kept.ledger.settle(after)

    await kept.ledger.settle(done(entry, late))

    assert (await recalled(kept.ledger, entry))[0] == after


async def test_nobody_settles_the_entry_of_another_owner(kept: Any) -> None:
    entry = an_entry(owner="me")
    await claimed(kept, entry)

    await kept.ledger.settle(done(structs.replace(entry, owner="somebody else"), "failed"))

    assert (await recalled(kept.ledger, entry))[0] == entry


async def test_settling_twice_is_settling_once(kept: Any) -> None:
    """The first answer of the database was lost, and the executor tries again."""
    entry = an_entry()
    await claimed(kept, entry)
    after = done(entry)

    await kept.ledger.settle(after)
    await kept.ledger.settle(after)

    assert (await recalled(kept.ledger, entry))[0] == after


async def test_an_outcome_without_an_entry_is_an_error_unless_nothing_happened(store: SqlStore) -> None:
    entry = an_entry()

    await store.ledger.settle(done(entry, "failed"))
    with pytest.raises(StoreError):
        await store.ledger.settle(done(entry, "committed"))

    assert await recalled(store.ledger, entry) == (None, None)


async def test_an_older_entry_that_is_settled_late_does_not_become_the_newest(kept: Any) -> None:
    old, new = an_entry(key="k", number=0), an_entry(key="k", number=1)
    await claimed(kept, old)
    await claimed(kept, new)

    await kept.ledger.settle(done(old))

    assert (await recalled(kept.ledger, new)) == (new, new)


# What can be written.

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
any_text = st.text(max_size=20)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
records = st.builds(
    RecordedResult,
    text=st.none() | texts,
    failure=st.none() | st.builds(Failure, code=texts, message=texts, retryable=st.booleans()),
    control=st.none() | st.builds(Control, mode=st.sampled_from(["auto", "manual", None])),
    metadata=st.dictionaries(texts, json_values, max_size=3),
)
moments = st.floats(0, 4e9)
whole = st.integers(0, 2**53)
PATIENT = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)


@PATIENT
@given(data=st.data())
async def test_every_entry_comes_back_as_it_was(store: SqlStore, data: st.DataObject) -> None:
    entry = an_entry(
        session_id=data.draw(texts),
        call_id=data.draw(texts) + an_entry().call_id,
        tool=data.draw(texts),
        tenant_id=data.draw(st.none() | texts),
        identity=data.draw(st.text(string.hexdigits)),
        repeat=data.draw(whole),
        turn=data.draw(whole),
        claimed_at=data.draw(moments),
        lease_until=data.draw(moments),
    )
    await claimed(store, entry)
    after = structs.replace(
        entry,
        state=data.draw(st.sampled_from(["committed", "failed", "unknown"])),
        settled_at=data.draw(moments),
        recorded=data.draw(records),
    )

    await store.ledger.settle(after)

    assert await recalled(store.ledger, entry) == (after, after)


async def test_metadata_that_is_no_json_is_left_out_and_everything_else_is_kept(store: SqlStore) -> None:
    entry = an_entry()
    await claimed(store, entry)
    given: dict[str, Any] = {"failure": Failure(message="no"), "control": Control(mode="manual"), "notice": "changed"}

    await store.ledger.settle(done(entry, metadata={"a": object(), "b": [1]}, **given))

    assert (await read(store.ledger, entry)).recorded == a_recorded(metadata={"b": [1]}, **given)


@pytest.mark.parametrize(("state", "is_failed"), [("committed", False), ("failed", True)])
async def test_a_recorded_result_that_cannot_be_read_says_what_became_of_its_call(
    store: SqlStore, state: Any, is_failed: bool
) -> None:
    entry = an_entry()
    await claimed(store, entry)
    await store.ledger.settle(done(entry, state))
    await store._database.write(text("UPDATE handrail_ledger SET recorded = 'nonsense'"), {})

    recorded = (await read(store.ledger, entry)).recorded
    assert recorded is not None
    assert (recorded.failure is not None) == is_failed
    assert "cannot be read" in recorded.to_result().for_model()


@PATIENT
@given(text=any_text, message=any_text, name=any_text)
async def test_an_outcome_is_written_whatever_is_in_it(store: SqlStore, text: str, message: str, name: str) -> None:
    entry = an_entry()
    await claimed(store, entry)
    recorded = a_recorded(text=text, failure=Failure(message=message), metadata={name: object(), "kept": {"a": 1}})
    after = structs.replace(done(entry), recorded=recorded)

    await store.ledger.settle(after)

    found = await read(store.ledger, entry)
    assert found.state == "committed"
    assert found.recorded is not None
    assert found.recorded.metadata["kept"] == {"a": 1}


# One key for all digests.


async def test_the_key_of_the_digests_is_made_once_for_a_database(url: str) -> None:
    async with open_store(url) as first, open_store(url) as second:
        assert first.ledger.digest_key == second.ledger.digest_key
    async with open_store(url) as third:
        assert third.ledger.digest_key == first.ledger.digest_key
    assert len(first.ledger.digest_key) == 32


async def test_two_databases_have_two_keys(url: str, tmp_path: Any) -> None:
    async with open_store(url) as first, open_store(f"sqlite+aiosqlite:///{tmp_path}/other.db") as second:
        assert first.ledger.digest_key != second.ledger.digest_key


# Taking over.


async def read(ledger: Any, entry: Entry) -> Entry:
    found = (await ledger.recall(session_id=entry.session_id, call_id=entry.call_id)).by_id
    assert found is not None
    return found


async def test_an_entry_whose_lease_lasts_is_not_taken_over_however_it_looks_here(store: SqlStore) -> None:
    entry = an_entry()
    assert await claimed(store, entry)
    seen = await read(store.ledger, entry)

    assert await store.ledger.take_over(seen, owner="another", lease_until=1.0, run_until=1.0) is None
    assert await recalled(store.ledger, entry) == (entry, entry)


async def test_an_entry_is_taken_over_once_and_its_old_owner_can_write_nothing_more(kept: Any) -> None:
    entry = an_entry(lease_until=time.time() - 1)
    assert await claimed(kept, entry)
    new = {"lease_until": time.time() + 60, "run_until": time.time() + 90}
    entry = await read(kept.ledger, entry)

    taken = await kept.ledger.take_over(entry, owner="another", **new)
    again = await kept.ledger.take_over(entry, owner="a third", **new)
    await kept.ledger.renew([entry], lease_until=time.time() + 1_000)
    await kept.ledger.end_renewals()
    with pytest.raises(CallTakenOverError):
        await kept.ledger.settle(done(entry))

    assert again is None
    assert (await recalled(kept.ledger, entry))[0] == taken
    assert (taken.owner, taken.state, taken.idempotency_key) == ("another", "running", entry.idempotency_key)
    await kept.ledger.settle(done(taken))
    assert await kept.ledger.take_over(done(taken), owner="a fourth", **new) is None


@pytest.mark.parametrize("change", [{"owner": "somebody"}, {"state": "unknown"}, {"lease_until": 1.0}])
async def test_an_entry_that_changed_since_it_was_read_is_not_taken_over(kept: Any, change: dict[str, Any]) -> None:
    entry = an_entry(lease_until=time.time() - 1)
    assert await claimed(kept, entry)

    seen = structs.replace(await read(kept.ledger, entry), **change)

    assert await kept.ledger.take_over(seen, owner="another", lease_until=1.0, run_until=1.0) is None
    assert (await recalled(kept.ledger, entry))[0] == entry


async def test_what_an_operator_found_out_is_written_once_and_only_about_a_doubt(store: SqlStore) -> None:
    running, doubt, undone = an_entry(), an_entry(lease_until=time.time() - 1), an_entry()
    for entry in (running, doubt, undone):
        assert await claimed(store, entry)
    await store.ledger.settle(done(undone, "unknown"))

    assert not await store.ledger.resolve(done(running))
    assert await store.ledger.resolve(done(doubt))
    assert not await store.ledger.resolve(done(doubt, "failed"))
    assert await store.ledger.resolve(done(undone, "failed"))
    assert not await store.ledger.resolve(done(structs.replace(undone, owner="another")))

    assert [(await read(store.ledger, entry)).state for entry in (running, doubt, undone)] == [
        "running",
        "committed",
        "failed",
    ]


async def test_an_entry_is_in_doubt_from_the_end_of_its_lease_on(tmp_path: Any) -> None:
    async with open_store(f"sqlite:///{tmp_path}/a.db") as store:  # Postgres has a clock of its own.
        entry = an_entry()
        assert await claimed(store, entry)

        assert await store.ledger.find_doubts(now=entry.lease_until - 0.01) == []
        assert [doubt.call_id for doubt in await store.ledger.find_doubts(now=entry.lease_until)] == [entry.call_id]


async def test_doubts_are_listed_without_a_key_for_what_an_approver_changed(url: str) -> None:
    async with open_store(url, encryption_key=Fernet.generate_key()) as store:
        entry = an_entry()
        await claimed(store, entry)
        await store.ledger.settle(structs.replace(done(entry, "unknown"), changed_arguments='{"amount": 1}'))
    async with open_store(url) as other:
        (doubt,) = await other.ledger.find_doubts(now=time.time())
    assert (doubt.call_id, doubt.changed_arguments) == (entry.call_id, None)


async def test_what_verify_said_is_written_unless_the_entry_was_changed(kept: Any) -> None:
    entry = an_entry(lease_until=time.time() - 1)
    assert await claimed(kept, entry)
    seen = await read(kept.ledger, entry)

    await kept.ledger.record_answer(seen, "cannot_tell")
    (doubt,) = await kept.ledger.find_doubts(now=time.time())
    assert (doubt.recorded.verified, doubt.state, doubt.owner) == ("cannot_tell", "running", entry.owner)

    taken = await kept.ledger.take_over(seen, owner="another", lease_until=time.time() + 60, run_until=1.0)
    await kept.ledger.record_answer(seen, "failed")
    assert (await read(kept.ledger, entry)).recorded is None
    await kept.ledger.settle(done(taken))
    await kept.ledger.record_answer(done(taken), "failed")
    assert (await read(kept.ledger, entry)).recorded.verified is None  # type: ignore[union-attr]


async def test_renewals_that_were_never_begun_can_be_ended(store: SqlStore) -> None:
    await store.ledger.end_renewals()
    entry = an_entry()
    assert await claimed(store, entry)

    await store.ledger.renew([entry], lease_until=entry.lease_until + 1_000)
    (connection,) = store.ledger._renewing.values()

    def is_open() -> bool:
        if connection._sqlite is not None:
            return connection._sqlite._thread is not None
        pool: Any = connection._postgres.pool
        return pool.checkedin() == 1

    assert is_open()
    await store.ledger.end_renewals()
    await store.ledger.end_renewals()
    assert not is_open()

    assert (await read(store.ledger, entry)).lease_until > entry.lease_until + 500


async def test_a_call_whose_arguments_were_changed_is_found_by_what_was_sent(kept: Any) -> None:
    changed = an_entry(sent_key="sent")
    plain = an_entry(key="sent", sent_key="sent", number=0)
    assert await claimed(kept, changed)
    found = await kept.ledger.recall(session_id="s-9", call_id="c-9", key="sent", full_key="sent")
    assert (found.by_key, found.by_sent_key and found.by_sent_key.call_id) == (None, changed.call_id)

    assert await claimed(kept, plain)
    found = await kept.ledger.recall(session_id="s-9", call_id="c-9", key="sent", full_key="sent")
    assert found.by_key is not None
    assert (found.by_key.call_id, found.by_sent_key.call_id) == (plain.call_id, changed.call_id)

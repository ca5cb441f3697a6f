"""A call whose owner is gone ends in the truth: run again where that is safe, verified, or a doubt."""

import asyncio
import time
from typing import Any

import pytest
from msgspec import structs

from handrail import ConfigError, Executor, Policy, Rule, ToolContext, ToolError, tool
from handrail.core import CallStarted, CallTakenOver, DoubtResolved
from handrail.errors import CallTakenOverError
from handrail.execute import Entry, MemoryLedger, Timeouts
from handrail.execute.ledger import RecordedResult, settle_entry
from tests.execute.helpers import ALLOWED, Heard, Held, Stubborn, at, call, code_of
from tests.warped import warped

LEASE = 0.2
TIMEOUTS = Timeouts(call=0.5, lease=LEASE, lease_grace=0.01, in_progress=20)
SLOW = Timeouts(call=600, lease=LEASE, in_progress=1.5)
"""With these a handler may run for ten minutes."""


class SharedLedger(MemoryLedger):
    """A ledger that other processes see, too; one of them dies before it writes what became of its call."""

    is_immediate, needs_lease = False, True
    is_owner_dead = True

    async def settle(self, entry: Entry, **given: Any) -> None:
        if not self.is_owner_dead:
            await super().settle(entry, **given)


class Bank:
    """Pays, and keeps with which idempotency key."""

    def __init__(self, **options: Any) -> None:
        self.keys: list[str | None] = []
        self.ledger = SharedLedger()
        self.options = options

    def start(self, policy: Policy = ALLOWED, timeouts: Timeouts = TIMEOUTS, **options: Any) -> Executor:
        """Another process."""

        @tool(**self.options)
        async def pay(invoice: str, context: ToolContext[Any]) -> str:
            """Pay."""
            self.keys.append(context.idempotency_key)
            return "paid"

        return Executor([pay], policy=policy, ledger=self.ledger, timeouts=timeouts, **options)

    async def die(self, timeouts: Timeouts = TIMEOUTS) -> None:
        """Pay, and die before it is recorded."""
        await self.start(timeouts=timeouts).run(PAYMENT, at(customer_id="ann"))
        self.ledger.is_owner_dead = False


PAYMENT = call("pay", "c-1", invoice="R-1")
AGAIN = call("pay", "c-2", invoice="R-1")


@pytest.mark.parametrize("sent", [PAYMENT, AGAIN])
@warped
async def test_an_idempotent_call_is_taken_over_and_runs_again_with_the_same_key(sent: Any) -> None:
    bank = Bank(idempotent=True)
    await bank.die()
    worker = bank.start()

    result = await worker.run(sent, at(customer_id="ann"))
    replayed = await worker.run(PAYMENT, at(customer_id="ann"))

    assert (result.output, result.origin, replayed.origin) == ("paid", "run", "replayed")
    assert len(bank.keys) == 2
    assert len(set(bank.keys)) == 1
    assert await worker.doubts() == []


@pytest.mark.parametrize("sent", [PAYMENT, AGAIN])
@warped
async def test_verify_settles_what_happened(sent: Any) -> None:
    bank = Bank(verify=lambda arguments, context: "receipt 7")
    await bank.die()

    result = await bank.start().run(sent, at(customer_id="ann"))

    assert (result.output, result.origin, len(bank.keys)) == ("receipt 7", "verified", 1)


@pytest.mark.parametrize("sent", [PAYMENT, AGAIN])
@warped
async def test_what_did_not_happen_is_taken_over_once_the_first_handler_can_no_longer_be_alive(sent: Any) -> None:
    bank = Bank(verify=lambda arguments, context: False)
    await bank.die()
    await asyncio.sleep(TIMEOUTS.call + TIMEOUTS.lease_grace)  # Time is the subject.

    result = await bank.start().run(sent, at(customer_id="ann"))

    assert (result.output, len(bank.keys), len(set(bank.keys))) == ("paid", 2, 1)


@pytest.mark.parametrize("options", [{}, {"verify": lambda arguments, context: None}])
@warped
async def test_anything_else_is_a_doubt(options: dict[str, Any]) -> None:
    bank = Bank(**options)
    await bank.die()
    worker = bank.start()

    for sent in (PAYMENT, AGAIN, PAYMENT):
        assert code_of(await worker.run(sent, at(customer_id="ann"))) == "outcome_unknown"
    assert [doubt.call_id for doubt in await worker.doubts()] == ["c-1"]
    assert len(bank.keys) == 1


def fail(arguments: Any, context: Any) -> None:
    raise ConnectionError("away")


@pytest.mark.parametrize(
    ("verify", "answer"),
    [
        (lambda arguments, context: None, "cannot_tell"),
        (lambda arguments, context: False, "too_early"),
        (fail, "failed"),
        (None, None),
    ],
)
@warped
async def test_a_doubt_says_what_verify_said(verify: Any, answer: str | None) -> None:
    bank = Bank(verify=verify)
    await bank.die(timeouts=SLOW)
    worker = bank.start(timeouts=SLOW)
    assert [doubt.verified for doubt in await worker.doubts()] in ([], [None])  # Nobody has asked yet.

    assert code_of(await worker.run(PAYMENT, at(customer_id="ann"))) == "outcome_unknown"

    for process in (worker, bank.start()):
        assert [doubt.verified for doubt in await process.doubts()] == [answer]


@warped
async def test_what_verify_said_about_a_call_of_its_own_is_recorded_for_others() -> None:
    bank = Bank(verify=fail)
    bank.ledger.is_owner_dead = False

    @tool(verify=fail)
    async def pay(invoice: str) -> str:
        """Pay."""
        raise RuntimeError("boom")

    owner = Executor([pay], policy=ALLOWED, ledger=bank.ledger)
    assert code_of(await owner.run(PAYMENT, at(customer_id="ann"))) == "outcome_unknown"

    assert [doubt.verified for doubt in await bank.start().doubts()] == ["failed"]


@warped
async def test_a_handler_that_may_still_run_is_not_run_again_because_verify_finds_nothing_yet() -> None:
    bank = Bank(verify=lambda arguments, context: False)
    await bank.die(timeouts=SLOW)

    result = await bank.start(timeouts=SLOW).run(PAYMENT, at(customer_id="ann"))

    assert (code_of(result), len(bank.keys)) == ("outcome_unknown", 1)


class Closed:
    """A hook that refuses."""

    async def authorised(self, call: Any, tool: Any, decision: Any, context: Any) -> None:
        raise ToolError("closed")


def object_to(arguments: Any, context: Any) -> bool:
    return False


@pytest.mark.parametrize("by", ["a rule", "a check", "a hook"])
@warped
async def test_what_is_denied_now_is_not_taken_over_and_stays_a_doubt(by: str) -> None:
    bank = Bank(idempotent=True)
    await bank.die()
    bank.options |= {"permission_check": object_to} if by == "a check" else {}
    worker = bank.start(
        policy=Policy([Rule.deny("pay", reason="closed")]) if by == "a rule" else ALLOWED,
        hooks=[Closed()] if by == "a hook" else (),
    )

    result = await worker.run(PAYMENT, at(customer_id="ann"))

    assert (code_of(result), len(bank.keys)) == ("outcome_unknown", 1)
    assert len(await worker.doubts()) == 1


@warped
async def test_a_takeover_asks_nobody_again() -> None:
    bank = Bank(idempotent=True)
    asking = Policy([Rule.ask("pay", by="operator")])
    first = bank.start(policy=asking)
    approval = (await first.run(PAYMENT, at(customer_id="ann"))).approval
    assert approval is not None
    await first.approvals.approve(approval.token, by="operator", who="bo")
    await first.run(PAYMENT, at(customer_id="ann"))
    bank.ledger.is_owner_dead = False

    entry = (await bank.ledger.recall(session_id="s-1", call_id="c-1")).by_id
    assert entry is not None
    result = await bank.start(policy=asking).run(PAYMENT, at(customer_id="ann"))

    assert (result.output, len(bank.keys)) == ("paid", 2)
    assert entry.approval == approval.token
    for decision in (result.decision, entry.decision):  # What was decided then holds for who takes it over.
        assert decision is not None
        assert (decision.action, decision.by) == ("ask", "operator")


class Renewing(SharedLedger):
    """Its owner lives, and its clock is behind: every lease is over, and is renewed all the same."""

    async def recall(self, **given: Any) -> Any:
        for number, entry in enumerate(list(self._by_id.values())):
            await self.renew([entry], lease_until=1_000.0 + time.monotonic() + number)
        return await super().recall(**given)


@warped
async def test_a_lease_that_is_renewed_while_it_is_watched_is_not_taken_over() -> None:
    bank = Bank(idempotent=True)
    await bank.die(timeouts=SLOW)

    bank.ledger.__class__ = Renewing
    result = await bank.start(timeouts=SLOW).run(PAYMENT, at(customer_id="ann"))

    assert (code_of(result), len(bank.keys)) == ("outcome_unknown", 1)


@warped
async def test_of_two_workers_one_takes_the_call_over() -> None:
    bank = Bank(idempotent=True)
    await bank.die()

    results = await asyncio.gather(*(bank.start().run(PAYMENT, at(customer_id="ann")) for _ in range(4)))

    assert len(bank.keys) == 2
    assert {result.output for result in results if result.ok} == {"paid"}


@warped
async def test_an_operator_cannot_say_that_nothing_happened_while_the_handler_may_still_run() -> None:
    bank = Bank()
    await bank.die(timeouts=SLOW)
    worker = bank.start(timeouts=SLOW)
    assert code_of(await worker.run(PAYMENT, at(customer_id="ann"))) == "outcome_unknown"
    doubt = (await worker.doubts())[0]

    with pytest.raises(ConfigError, match="may still run until"):
        await worker.resolve(session_id="s-1", call_id="c-1", happened=False, who="bo")
    result = await worker.resolve(session_id="s-1", call_id="c-1", happened=True, who="bo")

    assert (doubt.arguments, doubt.customer_id) == ('{"invoice":"R-1"}', "ann")
    assert doubt.run_until > doubt.claimed_at + 500
    assert result.ok


@warped
async def test_an_operator_says_that_nothing_happened_once_the_owner_is_known_to_be_gone() -> None:
    bank = Bank()
    await bank.die()
    worker = bank.start()
    assert code_of(await worker.run(PAYMENT, at(customer_id="ann"))) == "outcome_unknown"
    await asyncio.sleep(TIMEOUTS.call + TIMEOUTS.lease_grace)  # Time is the subject.

    await worker.resolve(session_id="s-1", call_id="c-1", happened=False, who="bo")

    assert await worker.doubts() == []
    assert (await worker.run(AGAIN, at(customer_id="ann"))).output == "paid"


@warped
async def test_an_operator_cannot_say_that_nothing_happened_to_a_call_whose_lease_is_still_renewed() -> None:
    bank = Bank()
    await bank.die()
    worker = bank.start()
    await asyncio.sleep(TIMEOUTS.call + TIMEOUTS.lease_grace)  # Time is the subject.
    bank.ledger.__class__ = Renewing

    with pytest.raises(ConfigError, match="is alive, or was settled meanwhile"):
        await worker.resolve(session_id="s-1", call_id="c-1", happened=False, who="bo")
    assert len(await worker.doubts()) == 1


@warped
async def test_a_takeover_is_reported_to_those_who_listen() -> None:
    bank, heard = Bank(idempotent=True), Heard()
    await bank.die()
    executor = bank.start(listeners=[heard])
    assert (await executor.run(PAYMENT, at(customer_id="ann"))).ok

    [taken] = heard.of(CallTakenOver)
    assert taken.owner == executor.owner != taken.previous_owner
    assert len(heard.of(CallStarted)) == 1
    assert len(bank.keys) == 2


@warped
async def test_a_call_that_is_taken_over_waits_for_its_turn_and_one_that_is_stopped_meanwhile_stays_a_doubt() -> None:
    bank, held = Bank(idempotent=True, on_interrupt="cancel"), Held()
    await bank.die()
    hold = tool(name="hold", on_interrupt="finish_silently")(held.__call__)
    executor = bank.start(timeouts=Timeouts(call=500, lease=LEASE, lease_grace=0.01, in_progress=20))
    executor.replace_tools([*executor.registry, hold])
    await asyncio.sleep(2)
    holding = asyncio.create_task(executor.run(call("hold", "h-1"), at(customer_id="ann")))
    await held.begun.wait()
    waiting = asyncio.create_task(executor.run(PAYMENT, at(customer_id="ann")))
    await asyncio.sleep(10)
    assert not waiting.done()
    assert executor.cancel("c-1", session_id="s-1")

    assert code_of(await waiting) == "outcome_unknown"
    assert len(bank.keys) == 1
    held.go.set()
    await holding
    assert (await executor.run(PAYMENT, at(customer_id="ann"))).ok
    assert len(bank.keys) == 2


# What an operator finds out.


async def test_a_doubt_is_resolved_by_somebody_and_everybody_hears_of_it() -> None:
    bank, heard = Bank(), Heard()

    @tool
    async def lose() -> str:
        """Lose."""
        raise ConnectionError("lost")

    executor = Executor([lose], policy=ALLOWED, listeners=[heard])
    about: dict[str, Any] = {"session_id": "s-1", "call_id": "c-1", "happened": True}
    with pytest.raises(ConfigError, match="there is no call 'c-1'"):
        await executor.resolve(**about, who="bo")
    await executor.run(call("lose"), at(tenant_id="t"))
    with pytest.raises(ConfigError, match="who must name the person"):
        await executor.resolve(**about, who="")
    result = await executor.resolve(**about, who="bo", reason="saw it")

    assert result.ok
    assert "bo: saw it" in result.for_model()
    [event] = heard.of(DoubtResolved)
    assert (event.call_id, event.tenant_id, event.happened, event.who, event.reason) == (
        "c-1",
        "t",
        True,
        "bo",
        "saw it",
    )
    with pytest.raises(ConfigError, match="is not in doubt: it is committed"):
        await executor.resolve(**about, who="bo")
    assert bank.keys == []


async def test_a_doubt_that_is_settled_while_it_is_resolved_stays_as_it_was_settled() -> None:
    class Quick(MemoryLedger):
        async def resolve(self, entry: Entry, **given: Any) -> bool:
            return False

    @tool
    async def lose() -> str:
        """Lose."""
        raise ConnectionError("lost")

    heard = Heard()
    executor = Executor([lose], policy=ALLOWED, ledger=Quick(), listeners=[heard])
    await executor.run(call("lose"), at())
    with pytest.raises(ConfigError, match="was settled meanwhile"):
        await executor.resolve(session_id="s-1", call_id="c-1", happened=True, who="bo")
    assert heard.of(DoubtResolved) == []


# A lease that is over before the handler begins.


class Slow(MemoryLedger):
    """A ledger of several processes, which takes its time for a claim, and whose clock may be behind."""

    is_immediate, needs_lease = False, True

    def __init__(self, *, slow_takes: int = 0, fails: bool = False, behind: float = 0) -> None:
        super().__init__()
        self.slow_takes, self.fails, self.behind = slow_takes, fails, behind
        self.is_claimed = False
        self.taken: list[str] = []
        self.meanwhile: Any = None

    async def claim(self, entry: Entry, **given: Any) -> bool:
        is_claimed = await super().claim(entry, **given)
        self.is_claimed = True
        await asyncio.sleep(20)
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
        return is_claimed

    async def recall(self, **given: Any) -> Any:
        if self.is_claimed and self.fails:
            raise ConnectionError("away")
        known = await super().recall(**given)
        if not self.behind or known.by_id is None:
            return known
        return structs.replace(known, by_id=structs.replace(known.by_id, read_at=time.time() - self.behind))

    async def take_over(self, entry: Entry, **given: Any) -> Entry | None:
        self.taken.append(given["owner"])
        taken = await super().take_over(entry, **given)
        if len(self.taken) <= self.slow_takes:
            await asyncio.sleep(16)
        return taken


PATIENT = Timeouts(call=60, lease=15, overhead=120, in_progress=0)


def pay_with(ledger: MemoryLedger, ran: list[str], **options: Any) -> Executor:
    @tool(**options)
    async def pay(invoice: str) -> str:
        """Pay."""
        ran.append(invoice)
        return "paid"

    return Executor([pay], policy=ALLOWED, ledger=ledger, timeouts=PATIENT)


async def read_entry(ledger: MemoryLedger) -> Entry:
    entry = (await MemoryLedger.recall(ledger, session_id="s-1", call_id="c-1")).by_id
    assert entry is not None
    return entry


@pytest.mark.parametrize(("behind", "takes"), [(0, True), (10, False)])
@warped
async def test_a_call_whose_claim_took_longer_than_its_lease_runs_once_it_has_another_lease(
    behind: float, takes: bool
) -> None:
    ledger, ran = Slow(behind=behind), list[str]()
    executor = pay_with(ledger, ran)
    before = time.time()
    result = await executor.run(PAYMENT, at())

    assert (result.output, ran) == ("paid", ["R-1"])
    assert ledger.taken == ([executor.owner] if takes else [])  # By the clock of the ledger, the first one may last.
    entry = await read_entry(ledger)
    assert entry.state == "committed"
    assert entry.lease_until >= before + 20 + 15
    assert entry.run_until >= before + PATIENT.call + PATIENT.lease_grace + (20 if takes else 0)


@pytest.mark.parametrize("is_settled", [False, True])
@warped
async def test_a_call_that_another_worker_took_over_before_its_handler_began_does_not_run_here(
    is_settled: bool,
) -> None:
    ledger, ran = Slow(), list[str]()

    async def take_over() -> None:
        entry = await read_entry(ledger)
        taken = await MemoryLedger.take_over(
            ledger, entry, owner="another", lease_until=time.time() + 15, run_until=time.time() + 60
        )
        assert taken is not None
        if is_settled:
            await ledger.settle(settle_entry(taken, "committed", RecordedResult(text="theirs"), now=time.time()))

    ledger.meanwhile = take_over
    executor = pay_with(ledger, ran)
    result = await executor.run(PAYMENT, at())

    assert (code_of(result), ran, ledger.taken) == ("in_progress", [], [])
    assert (await read_entry(ledger)).owner == "another"


@pytest.mark.parametrize("how", [{"fails": True}, {"slow_takes": 9}], ids=["it fails", "it is too slow"])
@warped
async def test_a_call_whose_lease_cannot_be_confirmed_does_not_run(how: dict[str, Any]) -> None:
    ledger, ran = Slow(**how), list[str]()
    result = await pay_with(ledger, ran).run(PAYMENT, at())

    assert (code_of(result), ran) == ("unavailable", [])
    assert "Nothing was done" in result.for_model()
    assert (await read_entry(ledger)).state == "failed"


@warped
async def test_a_call_whose_lease_was_confirmed_slowly_is_confirmed_again() -> None:
    ledger, ran = Slow(slow_takes=2), list[str]()
    executor = pay_with(ledger, ran)

    assert (await executor.run(PAYMENT, at())).output == "paid"
    assert (ran, ledger.taken) == (["R-1"], [executor.owner] * 3)


# A doubt that cannot be looked into.


class Failing(SharedLedger):
    """A ledger that can be read so often, and then not any more."""

    reads = 1

    async def recall(self, **given: Any) -> Any:
        self.reads -= 1
        if self.reads < 0:
            raise ConnectionError("away")
        return await super().recall(**given)


@warped
async def test_a_ledger_that_fails_while_an_owner_is_watched_leaves_a_doubt() -> None:
    bank = Bank(idempotent=True)
    await bank.die()
    await asyncio.sleep(1)  # Time is the subject: the lease is over.
    bank.ledger.__class__ = Failing

    assert code_of(await bank.start().run(PAYMENT, at(customer_id="ann"))) == "outcome_unknown"
    assert len(bank.keys) == 1


@warped
async def test_an_owner_that_is_not_known_to_be_gone_when_the_time_is_over_leaves_a_doubt() -> None:
    bank = Bank(idempotent=True)
    await bank.die()
    timeouts = Timeouts(call=0.5, lease=15, lease_grace=0.01, in_progress=5)
    started = time.monotonic()

    assert code_of(await bank.start(timeouts=timeouts).run(PAYMENT, at(customer_id="ann"))) == "outcome_unknown"
    assert time.monotonic() - started < 15
    assert len(bank.keys) == 1


@warped
async def test_a_ledger_that_fails_while_another_process_runs_a_call_leaves_it_in_progress() -> None:
    bank = Bank()
    await bank.die(timeouts=Timeouts(call=600, lease=600))
    bank.ledger.__class__ = Failing

    result = await bank.start(timeouts=Timeouts(in_progress=60)).run(PAYMENT, at(customer_id="ann"))
    assert (code_of(result), len(bank.keys)) == ("in_progress", 1)


@warped
async def test_a_call_that_another_process_finishes_meanwhile_has_its_result() -> None:
    bank = Bank()
    await bank.die(timeouts=Timeouts(call=600, lease=600))
    waiting = asyncio.create_task(bank.start(timeouts=Timeouts(in_progress=60)).run(PAYMENT, at(customer_id="ann")))
    await asyncio.sleep(30)
    assert not waiting.done()
    entry = (await bank.ledger.recall(session_id="s-1", call_id="c-1")).by_id
    assert entry is not None
    await bank.ledger.settle(settle_entry(entry, "committed", RecordedResult(text="theirs"), now=time.time()))

    assert ((await waiting).output, len(bank.keys)) == ("theirs", 1)


@warped
async def test_a_call_that_another_process_runs_for_longer_than_it_is_waited_for_is_in_progress() -> None:
    bank = Bank()
    await bank.die(timeouts=Timeouts(call=600, lease=600))
    started = time.monotonic()

    result = await bank.start(timeouts=Timeouts(in_progress=60)).run(PAYMENT, at(customer_id="ann"))

    assert (code_of(result), len(bank.keys)) == ("in_progress", 1)
    assert time.monotonic() - started == pytest.approx(60)


@warped
async def test_a_takeover_that_is_cancelled_in_a_hook_that_swallows_it_stays_a_doubt() -> None:
    bank, hook = Bank(idempotent=True), Stubborn()
    await bank.die()
    worker = bank.start(hooks=[hook], timeouts=Timeouts(call=0.5, lease=LEASE, lease_grace=0.01, overhead=600))
    # A check of who may have the result is passed first: the call is the same caller's own.
    running = asyncio.create_task(worker.run(PAYMENT, at(customer_id="ann")))
    await hook.reached.wait()
    assert worker.cancel("c-1", session_id="s-1")

    assert code_of(await running) == "outcome_unknown"
    assert len(bank.keys) == 1


@warped
async def test_a_call_whose_changed_arguments_the_tool_does_not_take_any_more_is_not_taken_over() -> None:
    bank = Bank(idempotent=True)
    await bank.die()
    [(ref, entry)] = bank.ledger._by_id.items()  # pyright: ignore[reportPrivateUsage]
    bank.ledger._by_id[ref] = structs.replace(  # pyright: ignore[reportPrivateUsage]
        entry, changed_arguments='{"invoice": [1]}'
    )

    result = await bank.start().run(PAYMENT, at(customer_id="ann"))
    assert (code_of(result), len(bank.keys)) == ("outcome_unknown", 1)


async def test_nobody_says_that_nothing_happened_to_a_call_that_still_runs_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = Held()

    @tool
    async def pay() -> str:
        """Pay."""
        return await held()

    executor = Executor([pay], policy=ALLOWED)
    running = asyncio.create_task(executor.run(call("pay"), at()))
    await held.begun.wait()
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 1e6)  # A clock that jumps: its lease seems to be over.
    with pytest.raises(ConfigError, match="still runs in this process"):
        await executor.resolve(session_id="s-1", call_id="c-1", happened=False, who="bo")
    held.go.set()

    assert (await running).output == "done"


async def test_what_another_worker_took_over_is_not_recorded_here_and_not_said_to_be() -> None:
    class Taken(MemoryLedger):
        """A ledger in which another worker has every call before it is settled."""

        tries = 0

        async def settle(self, entry: Entry, **given: Any) -> None:
            self.tries += 1
            raise CallTakenOverError(entry.tool)

    @tool
    async def pay() -> str:
        """Pay."""
        return "paid"

    ledger = Taken()
    result = await Executor([pay], policy=ALLOWED, ledger=ledger).run(call("pay"), at())

    assert (result.output, result.recorded, ledger.tries) == ("paid", False, 1)


class Refusing(Bank):
    """A bank whose tool fails in every process but the first one, which has paid."""

    def __init__(self, failure: BaseException, **options: Any) -> None:
        super().__init__(**options)
        self.failure = failure

    def start(self, policy: Policy = ALLOWED, timeouts: Timeouts = TIMEOUTS, **options: Any) -> Executor:
        @tool(**self.options)
        async def pay(invoice: str, context: ToolContext[Any]) -> str:
            """Pay."""
            if self.keys:
                raise self.failure
            self.keys.append(context.idempotency_key)
            return "paid"

        return Executor([pay], policy=policy, ledger=self.ledger, timeouts=timeouts, **options)


@pytest.mark.parametrize("sent", [PAYMENT, AGAIN])
@warped
async def test_a_failure_of_a_call_that_was_taken_over_does_not_say_that_nothing_happened(sent: Any) -> None:
    bank = Refusing(ToolError("The account is closed."), idempotent=True)
    await bank.die()
    worker = bank.start()

    result = await worker.run(sent, at(customer_id="ann"))

    assert code_of(result) == "outcome_unknown"
    assert [doubt.call_id for doubt in await worker.doubts()] == ["c-1"]


@pytest.mark.parametrize(("happened", "told"), [(True, None), (False, "tool_execution_failed")])
@warped
async def test_verify_tells_what_became_of_a_call_whose_takeover_failed(happened: bool, told: str | None) -> None:
    bank = Refusing(ToolError("No."), idempotent=True, verify=lambda arguments, context: happened)
    await bank.die()
    await asyncio.sleep(TIMEOUTS.call + TIMEOUTS.lease_grace)  # Time is the subject.
    worker = bank.start()

    assert code_of(await worker.run(PAYMENT, at(customer_id="ann"))) == told
    assert await worker.doubts() == []


@warped
async def test_verify_is_too_early_while_the_first_handler_of_a_call_that_was_taken_over_may_still_run() -> None:
    bank = Refusing(ToolError("No."), idempotent=True, verify=lambda arguments, context: False)
    await bank.die(timeouts=SLOW)
    worker = bank.start(timeouts=SLOW)

    assert code_of(await worker.run(PAYMENT, at(customer_id="ann"))) == "outcome_unknown"
    assert [doubt.verified for doubt in await worker.doubts()] == ["too_early"]

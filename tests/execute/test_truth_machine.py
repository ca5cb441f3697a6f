"""Whatever happens around a ledger, no effect takes place twice, and what is said about one is true.

Two releases of each tool, two owners of each, processes that die, clocks that jump, operators who resolve, purges, and
a second customer, in any order, over memory, SQLite and Postgres. Unlike the model of the state table, this one does
not know which result is right: it knows what took place, and what may be said of it.
"""

import asyncio
import itertools
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from handrail import ConfigError, Executor, Policy, Rule, Tool, ToolCall, ToolContext, ToolResult, tool
from handrail.authorize import MemoryApprovals
from handrail.errors import ToolError
from handrail.execute import MemoryLedger, Timeouts
from tests.execute.test_ledger_machine import a_store
from tests.postgres import DATABASES, new_database
from tests.postgres import postgres as postgres  # a fixture

TOOLS = ("pay", "check", "book")
"""One that nobody can ask about, one with `verify`, and an idempotent one."""
ENDINGS = ("ok", "ok", "refuses", "crashes before", "crashes after", "dies before", "dies after")
HOURS = 6 * 3600.0
TIMEOUTS = Timeouts(call=30, lease=0.03, lease_grace=0, in_progress=0.07)
numbers = itertools.count()
Subject = tuple[str, str, str, float]
"""The tool, the customer, the invoice and the amount: what a person would call the same payment."""


class World:
    """What really took place."""

    def __init__(self) -> None:
        self.ending = "ok"
        self.effects: Counter[str] = Counter()
        """By idempotency key."""
        self.keys: defaultdict[Subject, set[str]] = defaultdict(set)
        self.by_call: Counter[tuple[str, str]] = Counter()
        """By the session and the id of the call whose handler did it."""
        self.approved: Counter[Subject] = Counter()

    def act(self, name: str, invoice: str, amount: float, context: ToolContext[Any]) -> str:
        """What every handler does."""
        if self.ending == "refuses":
            raise ToolError("There is no money.")
        if self.ending.endswith("before"):
            raise RuntimeError("boom")
        assert context.idempotency_key is not None
        assert context.call is not None
        if not (name == "book" and self.effects[context.idempotency_key]):  # Downstream knows the key.
            self.effects[context.idempotency_key] += 1
            self.by_call[(context.session_id, context.call.id)] += 1
        self.keys[(name, context.customer_id or "", invoice, float(amount))].add(context.idempotency_key)
        if self.ending.endswith("after"):
            raise RuntimeError("boom")
        return f"paid {invoice}"

    def verify(self, arguments: Any, context: ToolContext[Any]) -> bool:
        """The truth, downstream."""
        return bool(self.effects[context.idempotency_key or ""])

    def tools(self, release: int) -> list[Tool[..., Any]]:
        """The tools of a release: the second one has a parameter more, and another type."""
        return [self.tool(name, release) for name in TOOLS]

    def tool(self, name: str, release: int) -> Tool[..., Any]:
        async def first(invoice: str, amount: int, context: ToolContext[Any]) -> str:
            """Pay."""
            return self.act(name, invoice, amount, context)

        async def second(invoice: str, amount: float, context: ToolContext[Any], note: str = "") -> str:
            """Pay."""
            return self.act(name, invoice, amount, context)

        options: dict[str, Any] = {"check": {"verify": self.verify}, "book": {"idempotent": True}}.get(name, {})
        return tool(name=name, **options)(first if release == 1 else second)


class SharedLedger(MemoryLedger):
    """A ledger in memory that is looked at as one that several processes see."""

    is_immediate, needs_lease = False, True


class Doomed:
    """The ledger of a process that dies in its handler: what it claims is never settled, and never renewed."""

    is_immediate, needs_lease, is_written = False, True, True

    def __init__(self, ledger: Any) -> None:
        self.digest_key, self.recall, self.claim = ledger.digest_key, ledger.recall, ledger.claim
        self.take_over = ledger.take_over

    async def settle(self, entry: Any) -> None:
        pass

    async def renew(self, entries: Any, *, lease_until: float) -> None:
        pass

    async def end_renewals(self) -> None:
        pass


class Clock:
    """The clock of every process here, which jumps."""

    def __init__(self) -> None:
        self.real, self.offset = time.time, 0.0

    def __call__(self) -> float:
        return self.real() + self.offset


class TruthMachine(RuleBasedStateMachine):
    """Calls arrive at four executors, and things happen around them."""

    def __init__(self, runner: asyncio.Runner, store: Any, clock: Clock) -> None:
        super().__init__()
        self.runner, self.store, self.clock = runner, store, clock
        self.ledger = store.ledger if store else SharedLedger()
        self.approvals = store.approvals if store else MemoryApprovals()
        self.customers = [f"customer-{next(numbers)}" for _ in range(2)]
        self.turn = 1
        self.clock.offset = 0.0

    @initialize()
    def begin(self) -> None:
        async def begun() -> None:
            self.world = World()
            self.executors = [self.executor(release) for release in (1, 2) for _ in range(2)]

        self.runner.run(begun())

    def executor(self, release: int, ledger: Any = None) -> Executor:
        return Executor(
            self.world.tools(release),
            policy=Policy([Rule.allow("*")]),
            ledger=ledger or self.ledger,
            approvals=self.approvals,
            timeouts=TIMEOUTS,
        )

    sent = st.fixed_dictionaries(
        {
            "executor": st.integers(0, 3),
            "customer": st.sampled_from([0, 0, 0, 1]),
            "session": st.sampled_from([0, 0, 1]),
            "id_": st.sampled_from([f"c-{number}" for number in range(10)]),
            "name": st.sampled_from(TOOLS),
            "invoice": st.sampled_from(["i-1", "i-1", "i-1", "i-2"]),
            "amount": st.sampled_from([1, 1, 1, 2]),
            "ending": st.sampled_from(ENDINGS),
        }
    )

    @rule(sent=st.lists(sent, min_size=1, max_size=3))
    def calls_arrive(self, sent: list[dict[str, Any]]) -> None:
        for message in sent:
            self.arrives(**message)

    def arrives(
        self, executor: int, customer: int, session: int, id_: str, name: str, invoice: str, amount: int, ending: str
    ) -> None:
        who = self.customers[customer]
        self.world.ending = ending
        call = ToolCall(id=id_, name=name, arguments_json=f'{{"invoice":"{invoice}","amount":{amount}}}')
        context = ToolContext[Any](session_id=f"{who}-{session}", customer_id=who, turn=self.turn)

        async def made() -> ToolResult:
            if ending.startswith("dies"):
                return await self.executor(1 + executor // 2, Doomed(self.ledger)).run(call, context)
            return await self.executors[executor].run(call, context)

        result = self.runner.run(made())
        if not ending.startswith("dies"):  # Nobody hears what a dead process says.
            self.check(result, (name, who, invoice, float(amount)), (context.session_id, id_))

    def check(self, result: ToolResult, subject: Subject, ref: tuple[str, str]) -> None:
        """What is said is true."""
        said, done = result.for_model(), self.world.keys[subject]
        if result.ok:
            assert done, said
        if result.ok and result.origin == "run":
            assert self.world.by_call[ref] or subject[0] == "book", said
        if "othing was done" in said:
            assert not self.world.by_call[ref], said
        if "was already done" in said or "took effect, as a person" in said:
            assert any(keys for other, keys in self.world.keys.items() if other[:3] == subject[:3]), said
        if "did not take effect" in said:
            assert not self.world.by_call[ref], said

    @rule()
    def the_conversation_goes_on(self) -> None:
        self.turn += 1

    @rule(offset=st.sampled_from([0.0, HOURS, -HOURS]))
    def the_clock_jumps(self, offset: float) -> None:
        self.clock.offset = offset

    @rule(executor=st.integers(0, 3), which=st.integers(0, 5))
    def an_operator_finds_out_about_a_doubt(self, executor: int, which: int) -> None:
        async def resolved() -> None:
            doubts = await self.executors[executor].doubts(limit=1_000)
            mine = [doubt for doubt in doubts if doubt.customer_id in self.customers]
            if not mine:
                return
            doubt = mine[which % len(mine)]
            happened = bool(self.world.effects[doubt.idempotency_key])
            try:
                await self.executors[executor].resolve(
                    session_id=doubt.session_id, call_id=doubt.call_id, happened=happened, who="ann"
                )
            except ConfigError:  # Too early, or it was settled meanwhile.
                return

        self.runner.run(resolved())

    @rule(which=st.integers(0, 5))
    def a_customer_agrees_to_a_repetition(self, which: int) -> None:
        async def agreed() -> None:
            asked = [
                approval
                for approval in await self.approvals.pending(limit=1_000)
                if approval.customer_id in self.customers
            ]
            if asked:
                one = asked[which % len(asked)]
                await self.approvals.approve(one.token, by=one.by, who=one.customer_id or "")
                values = one.arguments
                self.world.approved[(one.tool, one.customer_id or "", values["invoice"], float(values["amount"]))] += 1

        self.runner.run(agreed())

    @rule()
    def what_is_old_is_purged(self) -> None:
        if self.store is not None:
            self.runner.run(self.store.purge(before=time.time() + 1_000))

    @invariant()
    def no_effect_took_place_twice(self) -> None:
        effects = getattr(self, "world", World()).effects
        assert all(count == 1 for count in effects.values()), effects

    @invariant()
    def nothing_was_repeated_that_nobody_agreed_to(self) -> None:
        world = getattr(self, "world", World())
        for subject, keys in world.keys.items():
            assert len(keys) <= 1 + world.approved[subject], (subject, keys)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["memory", *DATABASES])
def test_what_is_said_is_what_took_place_whatever_happens(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = None if kind == "memory" else new_database(kind, tmp_path, request)
    most = settings.default.max_examples if settings.default else 100
    fewer = settings(max_examples=max(10, most // (2 if url is None else 5)), stateful_step_count=12)
    clock = Clock()
    monkeypatch.setattr(time, "time", clock)

    with asyncio.Runner() as runner, a_store(runner, url) as store:
        run_machine(lambda: TruthMachine(runner, store, clock), settings=fewer)

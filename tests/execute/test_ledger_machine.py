"""The state table of the design holds over memory, SQLite and Postgres, whatever arrives in whatever order."""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine
from msgspec import structs

from handrail import Executor, Policy, Rule, Tool, ToolCall, ToolContext, ToolResult, tool
from handrail.authorize import MemoryApprovals
from handrail.errors import ToolError
from handrail.execute import Entry, MemoryLedger, Timeouts
from handrail.store import open_store
from tests.execute.ledger_model import AFTER, Answer, Ending, Model, Question, Wanted
from tests.postgres import DATABASES, new_database
from tests.postgres import postgres as postgres  # a fixture

ENDINGS: list[Ending] = [
    "ok", "ok", "ok", "refuses", "crashes before", "crashes after", "hangs before", "hangs after", "is cancelled",
]  # fmt: skip
FOR_EVER = 1e6


class World:
    """Where effects take place, and what handlers do next."""

    def __init__(self) -> None:
        self.effects: Counter[str] = Counter()
        self.ending: Ending = "ok"
        self.tells = False
        self.began: asyncio.Event = asyncio.Event()
        self.go_on: asyncio.Event | None = None

    async def act(self, invoice: str, context: ToolContext[Any]) -> str:
        """What every handler does."""
        ending, go_on, key = self.ending, self.go_on, context.idempotency_key
        self.began.set()
        if go_on is not None:
            await go_on.wait()
        if ending == "refuses":
            raise ToolError("There is no money.", code="no_money")
        if ending in AFTER:
            assert key is not None
            self.effects[key] += 1
        if ending.startswith("crashes"):
            raise RuntimeError("boom")
        if ending.startswith("hangs") or ending == "is cancelled":
            await asyncio.get_running_loop().create_future()
        return f"paid {invoice}"

    async def verify(self, arguments: Any, context: ToolContext[Any]) -> str | bool | None:
        """The truth, if anybody wants it."""
        if not self.tells:
            return None
        return f"found {arguments['invoice']}" if self.effects[context.idempotency_key or ""] else False

    def tools(self) -> list[Tool[..., Any]]:
        @tool(key=("invoice",), verify=self.verify)
        async def pay(invoice: str, amount: int, context: ToolContext[Any]) -> str:
            """Pay; everybody may."""
            return await self.act(invoice, context)

        @tool(key=("invoice",), verify=self.verify)
        async def wire(invoice: str, amount: int, context: ToolContext[Any]) -> str:
            """Wire; an operator is asked."""
            return await self.act(invoice, context)

        return [pay, wire]


class Doomed:
    """The ledger of a process that is killed while its handler runs: it claims, and never writes what became of it."""

    is_immediate, needs_lease, is_written = False, True, True
    can_claim_new = True

    def __init__(self, ledger: Any, *, lease_over: bool) -> None:
        self._ledger = ledger
        self._lease_over = lease_over
        self._claimed: Entry | None = None
        self.digest_key, self.recall = ledger.digest_key, ledger.recall

    async def claim(self, entry: Entry, **options: Any) -> bool:
        is_claimed = await self._ledger.claim(entry, **options)
        if is_claimed:
            await self._hold(entry)
        return is_claimed

    async def take_over(self, entry: Entry, **options: Any) -> Entry | None:
        taken = await self._ledger.take_over(entry, **options)
        if taken is not None:
            await self._hold(taken)
        return taken

    async def _hold(self, entry: Entry) -> None:
        self._claimed = entry
        if self._lease_over:
            await self._ledger.settle(structs.replace(entry, state="unknown", settled_at=time.time()))

    async def settle(self, entry: Entry) -> None:
        if self._claimed is None or entry.call_id != self._claimed.call_id:
            await self._ledger.settle(entry)


numbers = itertools.count()


class LedgerMachine(RuleBasedStateMachine):
    """Two executors, as in two processes, and others that die, on one ledger."""

    def __init__(self, runner: asyncio.Runner, store: Any) -> None:
        super().__init__()
        self.runner = runner
        self.ledger = store.ledger if store else MemoryLedger()
        self.approvals = store.approvals if store else MemoryApprovals()
        self.customer = f"customer-{next(numbers)}"
        self.turn = 1
        self.model = Model()

    @initialize()
    def begin(self) -> None:
        async def begun() -> None:
            self.world = World()
            self.executors = [self.executor() for _ in range(2)]
            self.patient = [self.executor(timeout=FOR_EVER) for _ in range(2)]

        self.runner.run(begun())

    def executor(self, *, timeout: float = 0.005, ledger: Any = None) -> Executor:
        return Executor(
            self.world.tools(),
            policy=Policy([Rule.allow("pay"), Rule.ask("wire", by="operator")]),
            ledger=ledger or self.ledger,
            approvals=self.approvals,
            # Nobody renews the lease of a process that is only said to be dead.
            timeouts=Timeouts(call=timeout, lease_grace=FOR_EVER, in_progress=0, lease=3_600),
        )

    def context(self, wanted: Wanted) -> ToolContext[Any]:
        return ToolContext(session_id=f"{self.customer}-{wanted.session}", customer_id=self.customer, turn=wanted.turn)

    async def started(self, executor: Executor, wanted: Wanted) -> asyncio.Task[ToolResult]:
        """A call on its way: its handler has begun, or it has its answer already."""
        self.world.ending, self.world.tells = wanted.ending, wanted.tells
        self.world.began = asyncio.Event()
        arguments = f'{{"invoice":"{wanted.invoice}","amount":{wanted.amount}}}'
        call = ToolCall(id=wanted.id, name=wanted.tool, arguments_json=arguments)
        task = asyncio.create_task(executor.run(call, self.context(wanted)))
        began = asyncio.create_task(self.world.began.wait())
        await asyncio.wait([task, began], return_when=asyncio.FIRST_COMPLETED)
        began.cancel()
        return task

    async def ended(self, executor: Executor, wanted: Wanted, task: asyncio.Task[ToolResult]) -> ToolResult:
        if wanted.ending == "is cancelled":
            executor.cancel(wanted.id, session_id=self.context(wanted).session_id)
        return await task

    def check(self, wanted: Wanted, expected: Answer, result: ToolResult, *, ran: bool) -> None:
        says = result.error.code if result.error else result.for_model()
        assert (result.call_id, result.tool_name) == (wanted.id, wanted.tool)
        assert (result.ok, result.origin == "replayed") == (expected.ok, expected.replayed)
        assert says == expected.says if not result.ok else says.startswith(expected.says)
        assert ran == expected.ran
        if result.approval is not None:
            self.note(wanted, result.approval.token)

    def note(self, wanted: Wanted, token: str) -> None:
        """The model's question is this one of the store."""
        repeat = self.model.repeat_of(self.model.newest(wanted))
        asked = next(
            question
            for question in self.model.questions
            if (question.asked.session, question.asked.identity, question.repeat)
            == (wanted.session, wanted.identity, repeat)
            and question.state != "denied"
        )
        assert asked.token in ("", token)
        asked.token = token

    wanted = st.builds(
        dict,
        executor=st.integers(0, 1),
        session=st.sampled_from(["s-1", "s-1", "s-2"]),
        id=st.sampled_from([f"c-{number}" for number in range(12)]),
        tool=st.sampled_from(["pay", "pay", "wire"]),
        invoice=st.sampled_from(["i-1", "i-1", "i-2", "i-3"]),
        amount=st.sampled_from([1, 1, 1, 2]),
        ending=st.sampled_from(ENDINGS),
        tells=st.booleans(),
    )

    @rule(wanted=wanted)
    def a_call_arrives(self, wanted: dict[str, Any]) -> None:
        self.arrives(Wanted(**wanted, turn=self.turn))

    @precondition(lambda self: self.model.lines)
    @rule(data=st.data(), executor=st.integers(0, 1), tells=st.booleans(), new_id=st.booleans())
    def a_call_arrives_again(self, data: st.DataObject, executor: int, tells: bool, new_id: bool) -> None:
        before = data.draw(st.sampled_from([line.wanted for line in self.model.lines]))
        id_ = f"again-{len(self.model.lines)}" if new_id else before.id
        self.arrives(replace(before, id=id_, executor=executor, tells=tells, turn=self.turn))

    def arrives(self, call: Wanted) -> None:
        expected = self.model.arrives(call)
        executor = self.executors[call.executor]

        async def made() -> ToolResult:
            return await self.ended(executor, call, await self.started(executor, call))

        result = self.runner.run(made())
        self.check(call, expected, result, ran=self.world.began.is_set())

    @rule(wanted=wanted, second=wanted, like=st.sampled_from(["same id", "same arguments", "same effect"]))
    def a_call_arrives_while_another_runs(self, wanted: dict[str, Any], second: dict[str, Any], like: str) -> None:
        first = Wanted(**{**wanted, "ending": "ok"}, turn=self.turn)
        alike = {"same id": ("session", "id"), "same arguments": ("amount",), "same effect": ()}
        given = {**second, "tool": first.tool, "invoice": first.invoice, "ending": "ok", "tells": first.tells}
        other = Wanted(**{**given, **{name: wanted[name] for name in alike[like]}}, turn=self.turn)
        expected = self.model.arrives(first)
        executor, elsewhere = self.patient[first.executor], self.patient[other.executor]

        async def both() -> tuple[ToolResult, ToolResult | None]:
            go_on = self.world.go_on = asyncio.Event()
            running = await self.started(executor, first)
            self.world.go_on = None
            if not self.world.began.is_set():
                return await running, None
            rival = asyncio.create_task(self.rival(elsewhere, other))
            if elsewhere is executor:  # It joins, and so does not come back before the first is done.
                await asyncio.wait([rival], timeout=0.005)
            else:
                await rival
            go_on.set()
            return await running, await rival

        result, answer = self.runner.run(both())
        self.check(first, expected, result, ran=answer is not None)
        if answer is None:
            return
        # One that took over the entry of another id has none of its own, by which another process would know its id.
        is_known = elsewhere is executor or self.model.by_id(first) is not None
        if first.place == other.place and first.identity != other.identity and is_known:
            self.check(other, Answer(says="duplicate_call"), answer, ran=False)
        elif elsewhere is not executor and self.model.by_id(other) in (None, self.model.by_id(first)):
            self.check(other, Answer(says="in_progress"), answer, ran=False)
        elif self.model.by_id(other) is None and answer.error is not None and answer.error.code == "in_progress":
            # It is told that the effect is under way: with other arguments it never joins, and with equal ones it may
            # read the ledger before the first one is settled and look for it in this process after that.
            pass
        elif (
            answer.origin != "joined" and other.place != first.place
        ):  # It had an answer of its own, or came too late to join.
            self.check(other, self.model.arrives(other), answer, ran=False)
        else:
            assert first.identity == other.identity
            self.check(other, Answer(says=f"paid {first.invoice}", ok=True), answer, ran=False)

    async def rival(self, executor: Executor, wanted: Wanted) -> ToolResult:
        arguments = f'{{"invoice":"{wanted.invoice}","amount":{wanted.amount}}}'
        call = ToolCall(id=wanted.id, name=wanted.tool, arguments_json=arguments)
        return await executor.run(call, self.context(wanted))

    @rule(wanted=wanted, lease_over=st.booleans())
    def a_process_is_killed_while_its_handler_runs(self, wanted: dict[str, Any], lease_over: bool) -> None:
        ending = "hangs after" if wanted["ending"] in AFTER else "hangs before"
        call = Wanted(**{**wanted, "ending": ending}, turn=self.turn)
        expected = self.model.arrives(call, dies=True)
        if expected.ran and lease_over:
            assert self.model.newest_run is not None
            self.model.newest_run.state = "unknown"

        async def made() -> ToolResult:
            doomed = self.executor(ledger=Doomed(self.ledger, lease_over=lease_over))
            return await (await self.started(doomed, call))

        result = self.runner.run(made())
        assert self.world.began.is_set() == expected.ran
        if not expected.ran:
            self.check(call, expected, result, ran=False)

    @rule()
    def the_conversation_goes_on(self) -> None:
        self.turn += 1

    @precondition(lambda self: any(item.state == "pending" for item in self.model.questions))
    @rule(data=st.data(), answer=st.sampled_from(["approved", "approved", "denied"]))
    def somebody_decides(self, data: st.DataObject, answer: Any) -> None:
        open_ones = [item for item in self.model.questions if item.state == "pending"]
        question: Question = data.draw(st.sampled_from(open_ones))
        decide = self.approvals.approve if answer == "approved" else self.approvals.deny
        who = self.customer if question.by == "customer" else "ann"

        self.runner.run(decide(question.token, by=question.by, who=who))

        question.state = answer

    @invariant()
    def no_effect_took_place_twice(self) -> None:
        effects = getattr(self, "world", World()).effects
        assert all(count == 1 for count in effects.values()), effects

    @invariant()
    def every_effect_is_one_that_the_table_allowed(self) -> None:
        happened = sum(line.happened for line in self.model.lines)
        assert getattr(self, "world", World()).effects.total() == happened


@contextmanager
def a_store(runner: asyncio.Runner, url: str | None) -> Generator[Any]:
    if url is None:
        yield None
        return
    opening = open_store(url)
    store = runner.run(opening.__aenter__())
    try:
        yield store
    finally:
        runner.run(opening.__aexit__(None, None, None))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["memory", *DATABASES])
def test_the_table_holds_whatever_arrives(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    url = None if kind == "memory" else new_database(kind, tmp_path, request)
    most = settings.default.max_examples if settings.default else 100
    fewer = settings(max_examples=most if url is None else max(10, most // 5), stateful_step_count=30)

    with asyncio.Runner() as runner, a_store(runner, url) as store:
        run_machine(lambda: LedgerMachine(runner, store), settings=fewer)


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("kind", ["memory", *DATABASES])
def test_of_many_that_race_for_one_effect_exactly_one_runs(
    kind: str, asked: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Five executors, as in five processes, each with several calls; in the second case they share one approval."""
    url = None if kind == "memory" else new_database(kind, tmp_path, request)
    context: ToolContext[Any] = ToolContext(session_id="s-1", customer_id="c-1", turn=1)

    async def race(store: Any) -> tuple[Counter[str], list[ToolResult]]:
        world = World()
        ledger = store.ledger if store else MemoryLedger()
        approvals = store.approvals if store else MemoryApprovals()
        policy = Policy([Rule.allow("pay"), Rule.ask("wire", by="operator")])
        rails = [Executor(world.tools(), policy=policy, ledger=ledger, approvals=approvals) for _ in range(5)]
        calls = [
            ToolCall(id=f"c-{number}", name="wire" if asked else "pay", arguments_json='{"invoice":"i","amount":1}')
            for number in range(40)
        ]
        if asked:
            token = (await rails[0].run(calls[0], context)).approval.token
            await approvals.approve(token, by="operator", who="ann")
        runs = [rails[number % 5].run(call, context) for number, call in enumerate(calls)]
        return world.effects, list(await asyncio.gather(*runs))

    with asyncio.Runner() as runner, a_store(runner, url) as store:
        effects, results = runner.run(race(store))

    assert effects.total() == 1
    ran = [result for result in results if result.ok and result.origin == "run"]
    assert len(ran) == 1
    # Who looked just before the approval was used up asks for another one.
    may_say = {"in_progress", "approval_required"} if asked else {"in_progress"}
    assert {result.error.code for result in results if result.error} <= may_say

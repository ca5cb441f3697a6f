"""What a worker does with a call that is delivered to it, and when it wants it again."""

import asyncio
from typing import Any

import pytest
from msgspec import structs

from handrail import ConfigError, Executor, Policy, Rule, ToolContext, ToolError, tool
from handrail.authorize import MemoryApprovals
from handrail.core import CallCancelled
from handrail.execute import CircuitBreaker, Entry, Limits, MemoryWork, Timeouts, Worker, WorkItem
from handrail.execute.stored_calls import build_work_id
from tests.execute.helpers import ALLOWED, Book, Heard, Held, at, call, code_of, quiet
from tests.warped import warped

ID = build_work_id("s-1", "c-1")
ANN = at(customer_id="ann", tenant_id="t", agent_id="bot", turn=3)
TIMEOUTS = Timeouts(lease=12)


class Desk:
    """An executor with a tool that pays, everything in memory."""

    def __init__(self, policy: Policy = ALLOWED, **options: Any) -> None:
        self.work, self.ledger = MemoryWork(), Book()
        self.stores: Any = {"ledger": self.ledger, "work": self.work, "approvals": MemoryApprovals()}
        self.contexts: list[ToolContext[Any]] = []
        self.hold: Held | None = None

        @tool(durable=True, key="invoice", on_interrupt="cancel")
        async def pay(invoice: str, context: ToolContext[Any]) -> str:
            """Pay."""
            self.contexts.append(context)
            if self.hold is not None:
                await self.hold()
            if invoice == "down":
                raise ConnectionError("down")
            if invoice == "wrong":
                raise ToolError("There is no such invoice.")
            return "paid"

        self.pay = pay
        self.executor = Executor([pay], policy=policy, timeouts=TIMEOUTS, **self.stores, **options)

    async def submit(self, invoice: str = "R-1", id: str = "c-1") -> None:
        await self.executor.submit(call("pay", id, invoice=invoice), ANN)

    async def row(self) -> tuple[str, int, str | None]:
        item = await self.work.get(session_id="s-1", call_id="c-1")
        assert item is not None
        return item.state, item.attempts, None if item.recorded is None else str(item.recorded.failure or "result")


@warped
async def test_what_is_not_there_or_is_over_is_not_wanted_again() -> None:
    desk = Desk()
    worker = Worker(desk.executor)
    assert await worker.handle(ID) is None
    await desk.submit()
    assert await worker.handle(ID) is None
    assert (await desk.row())[:2] == ("done", 1)
    assert await worker.handle(ID) is None
    assert len(desk.contexts) == 1
    await quiet()
    leases = desk.executor.durable.settlement.leases
    assert not leases._rows  # pyright: ignore[reportPrivateUsage]  # Nothing is renewed any more.


async def test_a_parked_call_is_sent_by_who_decides() -> None:
    desk = Desk(Policy([Rule.ask("pay", by="operator")]))
    await desk.submit()

    assert await Worker(desk.executor).handle(ID) is None
    assert (await desk.row())[:2] == ("parked", 0)


@warped
async def test_a_call_of_another_worker_is_wanted_when_its_lease_is_over() -> None:
    desk = Desk()
    await desk.submit()
    await desk.work.take(session_id="s-1", call_id="c-1", owner="another", lease=12)
    worker = Worker(desk.executor)

    await asyncio.sleep(2)
    assert await worker.handle(ID) == pytest.approx(10)
    await asyncio.sleep(10)
    assert await worker.handle(ID) is None
    assert (await desk.row())[:2] == ("done", 2)


@warped
async def test_a_definition_that_it_does_not_have_is_left_to_others() -> None:
    desk = Desk()
    await desk.submit()
    other = Executor(policy=ALLOWED, **desk.stores)

    delay = await Worker(other).handle(ID)

    assert delay is not None
    assert delay > 0
    assert await desk.row() == ("queued", 0, None)


@warped
async def test_who_is_drained_takes_nothing_more() -> None:
    desk = Desk()
    await desk.submit()
    worker = Worker(desk.executor)
    await worker.drain()

    assert await worker.handle(ID) == 0.0
    assert await desk.row() == ("queued", 0, None)


@warped
async def test_one_call_that_is_delivered_twice_runs_once_and_both_get_the_same_answer() -> None:
    desk = Desk()
    desk.hold = Held()
    await desk.submit()
    worker = Worker(desk.executor)
    first, second = asyncio.create_task(worker.handle(ID)), asyncio.create_task(worker.handle(ID))
    await desk.hold.begun.wait()
    assert worker.running == 1
    second.cancel()  # A delivery that gives up does not reach the call.
    await asyncio.wait([second])
    desk.hold.go.set()

    assert await first is None
    await quiet()
    assert (worker.running, len(desk.contexts)) == (0, 1)


@warped
async def test_what_cannot_be_done_now_is_tried_again_ever_later_and_ends_at_last() -> None:
    breaker = CircuitBreaker(max_failures=1, reset_timeout=10_000_000)
    desk = Desk(limits=Limits(circuit_breaker=breaker))
    await desk.executor.run(call("pay", "c-0", invoice="down"), ANN)
    await desk.submit()
    worker = Worker(desk.executor)
    delays: list[float] = []
    while (delay := await worker.handle(ID)) is not None:
        delays.append(delay)
        await asyncio.sleep(delay)

    assert len(delays) == 19
    assert delays == sorted(delays)
    assert (delays[0], delays[-1]) == (pytest.approx(9), 30)
    state, attempts, recorded = await desk.row()
    assert (state, attempts) == ("done", 20)
    assert recorded is not None
    assert code_of(await desk.executor.wait(session_id="s-1", call_id="c-1", timeout=0)) == "unavailable"


@warped
async def test_a_doubt_waits_and_an_error_for_the_model_is_final() -> None:
    desk = Desk()
    await desk.submit("down")
    worker = Worker(desk.executor)
    assert await worker.handle(ID) == pytest.approx(9)
    assert (await desk.row())[:2] == ("waiting", 1)

    await desk.submit("wrong", "c-2")
    assert await worker.handle(build_work_id("s-1", "c-2")) is None
    assert code_of(await desk.executor.wait(session_id="s-1", call_id="c-2", timeout=0)) == "tool_execution_failed"


@warped
async def test_a_call_whose_row_was_left_open_ends_with_what_the_ledger_has() -> None:
    class Torn(Book):
        """A ledger that settles a call, and loses that its row has ended."""

        async def settle(self, entry: Entry, **given: Any) -> None:
            await super().settle(entry)

    desk = Desk()
    desk.ledger = desk.stores["ledger"] = Torn()
    executor = Executor([desk.pay], policy=ALLOWED, timeouts=TIMEOUTS, **desk.stores)
    assert await executor.submit(call("pay", invoice="R-1"), ANN) is None
    assert await Worker(executor).handle(ID) is None
    assert (await desk.row())[:2] == ("running", 1)
    await asyncio.sleep(12)  # Time is the subject: the lease is over.

    assert await Worker(executor).handle(ID) is None
    assert (await desk.row())[:2] == ("done", 2)
    assert len(desk.contexts) == 1
    again = await executor.submit(call("pay", invoice="R-1"), ANN)
    assert again is not None
    assert again.origin == "replayed"


@warped
async def test_a_context_function_that_raises_a_cancellation_of_its_own_is_tried_again() -> None:
    desk = Desk()
    await desk.submit()

    def build(item: WorkItem) -> ToolContext[Any]:
        raise asyncio.CancelledError

    async def find(item: WorkItem) -> Executor:
        raise asyncio.CancelledError

    assert await Worker(desk.executor, context=build).handle(ID) == pytest.approx(9)
    assert await desk.row() == ("queued", 1, None)
    await asyncio.sleep(10)
    assert await Worker(desk.executor, find_executor=find).handle(ID) is not None
    assert await desk.row() == ("queued", 2, None)


@warped
async def test_what_is_wrong_with_what_the_functions_of_a_worker_return_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    desk = Desk()
    await desk.submit()

    def build(item: WorkItem) -> Any:
        return {}

    async def find(item: WorkItem) -> Any:
        return None

    await Worker(desk.executor, context=build).handle(ID)
    await asyncio.sleep(10)
    await Worker(desk.executor, find_executor=find).handle(ID)

    assert "context must return a ToolContext, got dict." in caplog.text
    assert "find_executor must return an Executor, got NoneType." in caplog.text


@warped
async def test_a_worker_whose_executor_has_no_durable_tool_says_that_it_runs_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @tool(read_only=True)
    async def look() -> None:
        """Look."""

    for tools in ([look], [Desk().pay]):
        caplog.clear()
        worker = Worker(Executor(tools, ledger=Book(), work=MemoryWork()))
        running = asyncio.create_task(worker.run())
        await quiet()
        await worker.drain()
        await running
        assert ("runs no call" in caplog.text) == (tools == [look])


@pytest.mark.parametrize("made", [None, "a text", at("other", turn=9, customer_id="eve", tenant_id="x")])
@warped
async def test_a_context_has_the_ids_of_its_call_and_what_is_none_is_not_used(made: Any) -> None:
    desk = Desk()
    await desk.submit()

    async def build(item: Any) -> Any:
        return made

    delay = await Worker(desk.executor, context=build).handle(ID)

    if isinstance(made, ToolContext):
        [context] = desk.contexts
        assert (context.session_id, context.customer_id, context.turn) == ("s-1", "ann", 3)
        assert (context.tenant_id, context.agent_id) == ("t", "bot")
    else:
        assert (delay, desk.contexts) == (pytest.approx(9), [])
        assert await desk.row() == ("queued", 1, None)


@warped
async def test_a_call_that_was_cancelled_before_it_began_is_not_begun() -> None:
    desk = Desk()
    await desk.submit()
    await desk.work.take(session_id="s-1", call_id="c-1", owner="gone", lease=1)
    assert await desk.executor.cancel_stored("c-1", session_id="s-1")
    await asyncio.sleep(2)

    assert await Worker(desk.executor).handle(ID) is None
    assert desk.contexts == []
    assert code_of(await desk.executor.wait(session_id="s-1", call_id="c-1", timeout=0)) == "cancelled"


class FailingDelivery:
    """A delivery that fails twice, and then serves nothing until it is stopped."""

    def __init__(self) -> None:
        self.served = 0

    async def send(self, id: str, *, tenant: str | None, priority: int) -> None:
        raise ConnectionError("away")

    async def serve(self, handle: Any, *, max_running: int, stopping: asyncio.Event) -> None:
        self.served += 1
        if self.served <= 2:
            raise ConnectionError("away")
        await stopping.wait()


@warped
async def test_a_delivery_that_fails_is_tried_again_until_the_worker_is_drained() -> None:
    desk = Desk()
    delivery = FailingDelivery()
    work = MemoryWork(delivery=delivery)
    executor = Executor([desk.pay], policy=ALLOWED, timeouts=TIMEOUTS, **{**desk.stores, "work": work})
    async with Worker(executor) as worker:
        running = asyncio.create_task(worker.run())
        assert await executor.submit(call("pay", invoice="R-1"), ANN) is None  # It is stored all the same.
        await asyncio.sleep(60)
        assert delivery.served == 3
    await running
    assert delivery.served == 3


@warped
async def test_a_worker_whose_caller_is_cancelled_ends() -> None:
    desk = Desk()
    worker = Worker(desk.executor)
    before = asyncio.all_tasks()
    running = asyncio.create_task(worker.run())
    await asyncio.sleep(5)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await quiet()
    assert asyncio.all_tasks() == before


@warped
async def test_who_is_cancelled_by_another_process_is_stopped_once() -> None:
    desk = Desk()
    desk.hold = Held()
    async with Worker(desk.executor) as worker:
        running = asyncio.create_task(worker.run())
        await desk.submit()
        await desk.hold.begun.wait()
        await desk.executor.cancel_stored("c-1", session_id="s-1")
        await asyncio.sleep(10)
        assert code_of(await desk.executor.wait(session_id="s-1", call_id="c-1", timeout=0)) == "outcome_unknown"
    await running


def test_a_worker_runs_at_least_one_call() -> None:
    desk = Desk()
    Worker(desk.executor, max_running=1)
    with pytest.raises(ConfigError, match="max_running must be at least 1, got 0"):
        Worker(desk.executor, max_running=0)


@warped
async def test_a_worker_that_is_drained_leaves_what_still_runs_after_the_grace_to_its_lease() -> None:
    desk = Desk()
    desk.hold = Held()
    worker = Worker(desk.executor)
    running = asyncio.create_task(worker.run())
    await desk.submit()
    await desk.hold.begun.wait()
    started = asyncio.get_running_loop().time()
    await worker.drain(grace=5)
    await asyncio.wait_for(running, 60)

    assert asyncio.get_running_loop().time() - started < 10
    assert (worker.running, (await desk.row())[0]) == (1, "running")
    desk.hold.go.set()
    await quiet()
    assert (worker.running, (await desk.row())[0]) == (0, "done")


@warped
async def test_a_store_that_cannot_be_looked_through_is_asked_again_and_less_often() -> None:
    class Away(MemoryWork):
        """Stored calls that cannot be looked through for half a minute."""

        looks, until = 0, 30.0

        async def observe(self, *, owner: str) -> Any:
            if asyncio.get_running_loop().time() < started + self.until:
                self.looks += 1
                raise ConnectionError("away")
            return await super().observe(owner=owner)

    desk, started = Desk(), asyncio.get_running_loop().time()
    desk.work = desk.stores["work"] = work = Away()
    executor = Executor([desk.pay], policy=ALLOWED, timeouts=TIMEOUTS, **desk.stores)
    async with Worker(executor) as worker:
        running = asyncio.create_task(worker.run())
        await asyncio.sleep(60)
        assert work.looks == 10  # Every two seconds, and one more after each failure.
    await running


@warped
async def test_a_row_without_its_call_is_refused() -> None:
    desk = Desk()
    await desk.submit()
    items = desk.work._items  # pyright: ignore[reportPrivateUsage]
    items["s-1", "c-1"] = structs.replace(items["s-1", "c-1"], call=None)

    assert await Worker(desk.executor).handle(ID) is None
    result = await desk.executor.wait(session_id="s-1", call_id="c-1", timeout=0)
    assert (code_of(result), result.tool_name, desk.contexts) == ("permission_denied", "pay", [])


@warped
async def test_a_call_that_takes_its_time_to_stop_is_told_to_stop_once_and_nothing_is_kept_of_it() -> None:
    begun, heard = asyncio.Event(), Heard()

    @tool(durable=True, on_interrupt="cancel")
    async def pay(invoice: str) -> str:
        """Pay."""
        try:
            begun.set()
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(4.5)
        return "never"

    executor = Executor([pay], policy=ALLOWED, timeouts=TIMEOUTS, **Desk().stores)
    async with Worker(executor) as worker:
        running = asyncio.create_task(worker.run())
        with executor.subscribe("s-1", heard):
            await executor.submit(call("pay", invoice="R-1"), ANN)
            await begun.wait()
            await executor.cancel_stored("c-1", session_id="s-1")
            await asyncio.sleep(8)
        assert len(heard.of(CallCancelled)) == 1
        assert not worker._cancelled  # pyright: ignore[reportPrivateUsage]
    await running


@warped
async def test_what_was_given_back_is_not_kept_either() -> None:
    desk = Desk()
    desk.hold = Held()
    worker = Worker(desk.executor)
    running = asyncio.create_task(worker.run())
    for number in (1, 2):
        await desk.submit(f"R-{number}", f"c-{number}")
    await desk.hold.begun.wait()
    draining = asyncio.create_task(worker.drain())
    await quiet()
    desk.hold.go.set()
    await asyncio.wait([draining, running])

    assert [item.state for item in desk.work.list_items()] == ["done", "queued"]
    assert not worker._given_back  # pyright: ignore[reportPrivateUsage]


@warped
async def test_a_worker_that_is_drained_waits_for_its_delivery_to_end() -> None:
    class Slow(FailingDelivery):
        """A delivery that takes half a second to stop."""

        is_over = False

        async def serve(self, handle: Any, *, max_running: int, stopping: asyncio.Event) -> None:
            await stopping.wait()
            await asyncio.sleep(0.5)
            self.is_over = True

    desk, delivery = Desk(), Slow()
    work = MemoryWork(delivery=delivery)
    executor = Executor([desk.pay], policy=ALLOWED, timeouts=TIMEOUTS, **{**desk.stores, "work": work})
    worker = Worker(executor)
    running = asyncio.create_task(worker.run())
    await quiet()
    await worker.drain()

    assert delivery.is_over
    await running


async def test_the_row_of_a_call_ends_when_another_executor_takes_it_over() -> None:
    desk, fails = Desk(), [True]

    @tool(durable=True, idempotent=True)
    async def send(to: str) -> str:
        """Send."""
        if fails:
            raise ConnectionError("down")
        return "sent"

    first, second = (Executor([send], policy=ALLOWED, timeouts=TIMEOUTS, **desk.stores) for _ in range(2))
    assert code_of(await first.run(call("send", to="bo"), ANN)) == "outcome_unknown"
    assert (await desk.row())[0] != "done"
    fails.clear()

    assert (await second.run(call("send", to="bo"), ANN)).output == "sent"
    assert (await desk.row())[0] == "done"


async def test_a_call_that_is_tried_again_has_no_result_to_tell() -> None:
    desk = Desk()
    await desk.submit()
    read_result = desk.executor.durable._read_result  # pyright: ignore[reportPrivateUsage]
    assert await read_result(("s-1", "c-1")) is None
    assert await read_result(("s-1", "c-2")) is None
    await Worker(desk.executor).handle(ID)
    told = await read_result(("s-1", "c-1"))
    assert told is not None
    assert told.output == "paid"


@pytest.mark.parametrize("found", ["another ledger", "nothing", "nothing at all"])
@warped
async def test_a_call_runs_in_no_executor_that_does_not_share_the_ledger_of_the_worker(found: str) -> None:
    desk = Desk()
    await desk.submit()
    another = Executor([desk.pay], policy=ALLOWED, ledger=Book(), work=MemoryWork())

    async def find(item: WorkItem) -> Any:
        return {"another ledger": another, "nothing": Executor(policy=ALLOWED), "nothing at all": None}[found]

    assert await Worker(desk.executor, find_executor=find).handle(ID) is not None
    assert (desk.contexts, (await desk.row())[0]) == ([], "queued")


@warped
async def test_a_worker_runs_a_call_under_the_rules_of_the_executor_that_is_found_for_it() -> None:
    desk = Desk()
    await desk.submit()
    stopped = desk.executor.with_tools([desk.pay], policy=Policy([Rule.deny("pay")]))

    async def find(item: WorkItem) -> Executor:
        return stopped

    assert await Worker(desk.executor, find_executor=find).handle(ID) is None
    assert desk.contexts == []
    state, _, recorded = await desk.row()
    assert state == "done"
    assert "permission_denied" in str(recorded)


async def test_a_store_that_raises_a_cancellation_of_its_own_stores_nothing_and_says_so() -> None:
    desk = Desk()

    async def fail(*given: Any, **more: Any) -> Any:
        raise asyncio.CancelledError

    desk.work.put = fail  # type: ignore[method-assign]
    result = await desk.executor.submit(call("pay", invoice="R-1"), ANN)

    assert result is not None
    assert code_of(result) == "unavailable"


@pytest.mark.parametrize("how", ["they fail", "they hang"])
@warped
async def test_who_waits_for_a_parked_call_has_a_result_while_the_approvals_are_away(how: str) -> None:
    desk = Desk(Policy([Rule.ask("pay", by="operator")]))
    await desk.submit()

    async def get(token: str) -> Any:
        if how == "they fail":
            raise ConnectionError("away")
        await asyncio.Event().wait()

    desk.stores["approvals"].get = get
    result = await asyncio.wait_for(desk.executor.wait(session_id="s-1", call_id="c-1", timeout=1), 60)

    assert code_of(result) == "unavailable"

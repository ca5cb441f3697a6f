"""Everything that can hang has a deadline: the call has its result, and the session goes on."""

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from handrail import ConfigError, Executor, Policy, Rule, ToolCall, ToolContext, tool
from handrail.authorize import MemoryApprovals, blocking
from handrail.core import DoubtResolved
from handrail.execute import Limits, MemoryLedger, Timeouts
from handrail.store import open_store
from tests.execute.helpers import ALLOWED, Heard, at, call, code_of

FOREVER = 3600.0


async def hang(*arguments: Any) -> Any:
    """Never end, whatever is asked."""
    while True:
        try:
            await asyncio.sleep(FOREVER)
        except asyncio.CancelledError:
            if gone.is_set():
                raise


gone = asyncio.Event()


@pytest.fixture(autouse=True)
async def nothing_outlives_its_test() -> Any:
    gone.clear()
    yield
    gone.set()
    mine = asyncio.current_task()
    rest = [task for task in asyncio.all_tasks() if task is not mine]
    for item in rest:
        item.cancel()
    await asyncio.gather(*rest, return_exceptions=True)


async def answered(executor: Executor, wanted: ToolCall, context: ToolContext[Any] | None = None) -> str | None:
    """The code of the result, within a bound that is far above the deadline of the call."""
    async with asyncio.timeout(30):
        return code_of(await executor.run(wanted, context or at()))


async def test_a_read_that_ignores_its_cancellation_gets_a_result_and_is_abandoned() -> None:
    @tool(read_only=True, timeout=0.05)
    async def look() -> str:
        """Look."""
        return await hang()

    @tool(read_only=True)
    async def other() -> str:
        """Look elsewhere."""
        return "seen"

    executor = Executor([look, other])
    assert await answered(executor, call("look")) == "tool_timeout"
    assert (await executor.run(call("other", "c-2"), at())).output == "seen"
    assert executor.running_calls("s-1") == ()


@pytest.mark.parametrize("where", ["before", "authorised", "check", "verify"])
async def test_a_hook_a_check_and_a_verify_that_hang_are_bounded(where: str) -> None:
    class Hook:
        pass

    if where in ("before", "authorised"):
        setattr(Hook, where, staticmethod(hang))
    ran: list[str] = []

    @tool(permission_check=hang if where == "check" else None, verify=hang if where == "verify" else None)
    async def act() -> str:
        """Act."""
        ran.append("once")
        raise ConnectionError("lost")

    hooks = [Hook()] if where in ("before", "authorised") else []
    executor = Executor([act], policy=ALLOWED, hooks=hooks, timeouts=Timeouts(overhead=0.05))
    code = await answered(executor, call("act"))

    assert code == {"before": "refused_by_hook", "verify": "outcome_unknown"}.get(where, "unavailable")
    assert ran == (["once"] if where == "verify" else [])
    assert executor.running_calls("s-1") == ()


@pytest.mark.parametrize("where", ["before", "authorised", "check"])
async def test_a_marked_check_or_hook_that_blocks_is_bounded_and_blocks_nobody(where: str) -> None:
    release = threading.Event()

    class Hook:
        pass

    class Harmless:
        def before(self, call: Any, tool: Any, context: Any) -> None: ...

    @blocking
    def block(*arguments: Any) -> bool:
        return release.wait(30)

    if where != "check":
        setattr(Hook, where, staticmethod(block))

    @tool(permission_check=block if where == "check" else None)
    async def act() -> str:
        """Act."""
        return "done"

    @tool(read_only=True)
    async def look() -> str:
        """Look."""
        return "seen"

    executor = Executor(
        [act], policy=ALLOWED, hooks=[Hook() if where != "check" else Harmless()], timeouts=Timeouts(overhead=0.05)
    )
    other = Executor([look])
    try:
        acting = asyncio.create_task(answered(executor, call("act")))
        assert (await other.run(call("look"), at())).output == "seen"  # The loop is free meanwhile.
        assert await acting == ("refused_by_hook" if where == "before" else "unavailable")
    finally:
        release.set()


async def test_a_sync_check_that_blocks_the_loop_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    @tool(read_only=True, permission_check=lambda arguments, context: time.sleep(0.11))
    async def look() -> str:
        """Look."""
        return "seen"

    executor = Executor([look])
    assert [(await executor.run(call("look", f"c-{n}"), at())).output for n in range(2)] == ["seen"] * 2
    reports = [record.getMessage() for record in caplog.records if "blocked the event loop" in record.getMessage()]
    assert len(reports) == 1
    assert reports[0].startswith("the permission check of look blocked the event loop for 0.")
    with pytest.raises(ConfigError, match="hang is async: it does not need @blocking"):
        blocking(hang)


@pytest.mark.parametrize("read_only", [True, False])
async def test_a_check_that_hangs_before_somebody_elses_result_is_given_is_bounded(read_only: bool) -> None:
    async def check(arguments: Any, context: ToolContext[Any]) -> None:
        if context.agent_id == "other":
            await hang()

    @tool(read_only=read_only, permission_check=check)
    async def act() -> str:
        """Act."""
        return "done"

    executor = Executor([act], policy=ALLOWED, timeouts=Timeouts(overhead=0.05))
    assert await answered(executor, call("act"), at(agent_id="first")) is None
    assert await answered(executor, call("act"), at(agent_id="other")) == "unavailable"
    if read_only:
        assert await executor.request_approval(call("act", "c-2"), at(agent_id="other")) is None


class Stuck(MemoryLedger):
    """A database that does not answer one kind of request."""

    is_immediate = False  # type: ignore[assignment,misc]
    needs_lease = True  # type: ignore[assignment,misc]
    is_written = True  # type: ignore[assignment,misc]

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where
        self.can_claim_new = where != "recall"  # type: ignore[misc]  # Otherwise nothing is looked up.
        self.free = asyncio.Event()

    async def recall(self, **options: Any) -> Any:
        await self._maybe_wait("recall")
        return await super().recall(**options)

    async def claim(self, *arguments: Any, **options: Any) -> bool:
        claimed = await super().claim(*arguments, **options)
        await self._maybe_wait("claim")
        return claimed

    async def settle(self, entry: Any) -> None:
        await self._maybe_wait("settle")
        await super().settle(entry)

    async def _maybe_wait(self, where: str) -> None:
        if self.where == where:
            await self.free.wait()


@pytest.mark.parametrize(("where", "code"), [("recall", "unavailable"), ("claim", "unavailable"), ("settle", None)])
async def test_a_ledger_that_does_not_answer_is_not_waited_for(where: str, code: str | None) -> None:
    ran: list[str] = []

    @tool
    async def act() -> str:
        """Act."""
        ran.append("once")
        return "done"

    ledger = Stuck(where)
    executor = Executor([act], policy=ALLOWED, ledger=ledger, timeouts=Timeouts(overhead=0.05))
    async with asyncio.timeout(30):
        result = await executor.run(call("act"), at())
    assert (code_of(result), result.recorded) == (code, where != "settle")

    ledger.where = ""
    ledger.free.set()
    async with asyncio.timeout(30):
        while (await ledger.recall(session_id="s-1", call_id="c-1")).by_id.state == "running" if ran else False:
            await asyncio.sleep(0.001)
    again = await executor.run(call("act", "c-2" if where != "settle" else "c-1"), at())
    assert (again.output, ran) == ("done", ["once"])  # Nothing is lost, nothing is done twice.


class StuckApprovals(MemoryApprovals):
    """A database that asks and answers, and does not consume what was approved."""

    is_immediate = False

    async def consume(self, token: str, *, now: float, call_id: str | None = None) -> bool:
        return await hang()


@pytest.mark.parametrize("read_only", [True, False])
async def test_approvals_that_cannot_be_consumed_are_not_waited_for(read_only: bool) -> None:
    ran: list[str] = []

    @tool(read_only=read_only)
    async def act() -> str:
        """Act."""
        ran.append("once")
        return "done"

    policy, approvals = Policy([Rule.ask("act", by="operator")]), StuckApprovals()
    executor = Executor([act], policy=policy, approvals=approvals, timeouts=Timeouts(overhead=0.2))
    asked = await executor.run(call("act"), at())
    assert asked.approval is not None
    await approvals.approve(asked.approval.token, by="operator", who="ann")

    assert (await answered(executor, call("act")), ran) == ("unavailable", [])


async def test_a_tool_whose_threads_never_come_back_starves_no_other() -> None:
    release = threading.Event()

    @tool(read_only=True, concurrency_safe=True, timeout=0.02)
    def block() -> str:
        """Block."""
        release.wait(30)
        return "late"

    @tool(read_only=True, concurrency_safe=True)
    def look() -> str:
        """Look."""
        return "seen"

    executor = Executor([block, look], limits=Limits(max_threads=2))
    try:
        codes = [await answered(executor, call("block", f"b-{n}")) for n in range(10)]
        assert codes == ["tool_timeout"] * 2 + ["unavailable"] * 8
        assert executor.stranded_threads == 2
        assert (await executor.run(call("look", "l"), at())).output == "seen"
    finally:
        release.set()


async def test_a_full_ledger_in_memory_forgets_nothing_recent_and_refuses() -> None:
    paid: list[int] = []

    @tool
    async def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return f"paid {amount}"

    executor = Executor([pay], policy=ALLOWED, ledger=MemoryLedger(max_entries=3))
    codes = [code_of(await executor.run(call("pay", f"c-{n}", amount=n), at())) for n in range(5)]
    assert codes == [None, None, None, "unavailable", "unavailable"]
    assert (await executor.run(call("pay", "c-0", amount=0), at())).origin == "replayed"
    assert paid == [0, 1, 2]

    short = Executor([pay], policy=ALLOWED, ledger=MemoryLedger(max_entries=3, keep_for=0))
    assert [code_of(await short.run(call("pay", f"d-{n}", amount=n), at())) for n in range(5)] == [None] * 5


async def test_a_doubt_is_listed_and_resolved_by_an_operator(tmp_path: Path) -> None:
    @tool
    async def pay(amount: int) -> str:
        """Pay."""
        raise ConnectionError("lost")

    heard = Heard()
    async with open_store(f"sqlite+aiosqlite:///{tmp_path / 'ledger.db'}") as store:
        executor = Executor([pay], policy=Policy([Rule.allow("pay")]), ledger=store.ledger, listeners=[heard])
        for number in (1, 2):
            assert await answered(executor, call("pay", f"c-{number}", amount=number)) == "outcome_unknown"
        first, second = await executor.doubts()
        assert [(item.call_id, item.tool) for item in (first, second)] == [("c-1", "pay"), ("c-2", "pay")]

        with pytest.raises(ConfigError, match="expected must be the version"):
            await executor.resolve(session_id="s-1", call_id="c-1", happened=True, who="ann", expected="another")
        await executor.resolve(
            session_id="s-1", call_id="c-1", happened=True, who="ann", reason="receipt 7", expected=first.version
        )
        await executor.resolve(session_id="s-1", call_id="c-2", happened=False, who="ann")
        with pytest.raises(ConfigError, match="not in doubt: it is committed"):
            await executor.resolve(session_id="s-1", call_id="c-1", happened=False, who="bob")

        assert await executor.doubts() == []
        truth = [await executor.run(call("pay", f"c-{number}", amount=number), at()) for number in (1, 2)]
        assert [code_of(item) for item in truth] == [None, "tool_execution_failed"]
        assert "ann: receipt 7" in truth[0].for_model()
        assert [(event.call_id, event.happened, event.who) for event in heard.of(DoubtResolved)] == [
            ("c-1", True, "ann"),
            ("c-2", False, "ann"),
        ]


async def test_a_stalled_loop_keeps_its_lease_and_the_other_process_waits_for_the_truth(tmp_path: Path) -> None:
    """Two executors on one database stand for two processes; the first blocks its loop for longer than its lease."""
    url = f"sqlite+aiosqlite:///{tmp_path / 'ledger.db'}"
    done: list[str] = []
    answers: list[Any] = []

    def verify(arguments: Any, context: Any) -> bool:
        return bool(done)

    @tool(verify=verify, timeout=30)
    async def act() -> str:
        """Act."""
        await asyncio.to_thread(time.sleep, 1.2) if done else time.sleep(1.2)  # a blocked loop
        done.append("once")
        return "acted"

    def play(call_id: str, started: threading.Event) -> None:
        async def run() -> None:
            async with open_store(url) as store:
                executor = Executor(
                    [act],
                    policy=ALLOWED,
                    ledger=store.ledger,
                    timeouts=Timeouts(lease=0.6, lease_grace=0.1),
                    listeners=[listen],
                )
                answers.append(await executor.run(call("act", call_id), at()))

        def listen(event: Any) -> None:
            started.set()

        asyncio.run(run())

    begun, later = threading.Event(), threading.Event()
    first = threading.Thread(target=play, args=("c-1", begun))
    first.start()
    assert await asyncio.to_thread(begun.wait, 30)
    second = threading.Thread(target=play, args=("c-2", later))
    second.start()
    for thread in (first, second):
        await asyncio.to_thread(thread.join, 60)

    assert done == ["once"]
    assert [answer.ok for answer in answers] == [True, True]
    assert "acted" in answers[1].for_model()

"""Sync handlers run in worker threads: bounded, with the caller's context, and visible when one outlives its call."""

import asyncio
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import Future
from contextvars import ContextVar
from pathlib import Path
from typing import Any, ClassVar

import pytest

from handrail import Executor, ToolContext, ToolResult, tool
from handrail.core import Progress
from handrail.errors import ThreadsStrandedError
from handrail.execute import Limits, MemoryLedger, Timeouts
from handrail.execute.threads import WorkerThreads
from handrail.store import open_store
from tests.execute.helpers import ALLOWED, Book, Heard, at, call, code_of, list_unawaited

WHO: ContextVar[str] = ContextVar("WHO", default="nobody")


class Latch:
    """A blocking handler that says when it has begun, and goes on when it is told."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.go = threading.Event()
        self.runs = 0

    def __call__(self) -> str:
        self.runs += 1
        self.begun.release()
        assert self.go.wait(30)
        return "done"

    async def has_begun(self) -> None:
        assert await asyncio.to_thread(self.begun.acquire, timeout=30)


@pytest.fixture
def latch() -> Iterator[Latch]:
    made = Latch()
    yield made
    made.go.set()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0.001)


@pytest.mark.proves("PH-80")
@pytest.mark.parametrize("read_only", [True, False])
async def test_a_sync_handler_blocks_nobody_and_has_the_callers_context_variables(
    read_only: bool, latch: Latch
) -> None:
    seen: list[str] = []

    @tool(read_only=read_only)
    def work() -> str:
        """Block."""
        seen.append(f"{WHO.get()} {threading.current_thread() is threading.main_thread()}")
        return latch()

    @tool(read_only=True)
    async def look() -> str:
        """Look."""
        return "seen"

    executor = Executor([work, look], policy=ALLOWED)
    WHO.set("me")
    running = asyncio.create_task(executor.run(call("work"), at()))
    await latch.has_begun()
    assert (await executor.run(call("look"), at("s-2"))).output == "seen"
    latch.go.set()

    assert (await running).output == "done"
    assert seen == ["me False"]


async def test_an_inline_handler_runs_where_it_is_called() -> None:
    @tool(read_only=True, inline=True)
    def where() -> bool:
        """Where."""
        return threading.current_thread() is threading.main_thread()

    assert (await Executor([where]).run(call("where"), at())).output is True


async def test_there_are_never_more_threads_than_allowed(latch: Latch) -> None:
    together: list[int] = []
    most: list[int] = []
    lock = threading.Lock()

    @tool(concurrency_safe=True)
    def work(n: int) -> int:
        """Block."""
        with lock:
            together.append(n)
            most.append(len(together))
        latch()
        with lock:
            together.remove(n)
        return n

    executor = Executor([work], policy=ALLOWED, limits=Limits(max_threads=2))
    running = asyncio.create_task(executor.run_all([call("work", f"c-{n}", n=n) for n in range(6)], at()))
    await latch.has_begun()
    await latch.has_begun()
    latch.go.set()

    assert [item.output for item in await running] == list(range(6))
    assert max(most) == 2


@pytest.mark.parametrize(("read_only", "code"), [(True, "tool_timeout"), (False, "outcome_unknown")])
async def test_a_thread_that_outlives_its_timeout_is_counted_and_visible(
    read_only: bool, code: str, latch: Latch
) -> None:
    @tool(read_only=read_only, timeout=0.05)
    def work() -> str:
        """Block."""
        return latch()

    executor = Executor([work], policy=ALLOWED)
    result = await executor.run(call("work"), at())

    assert code_of(result) == code
    assert executor.stranded_threads == 1
    latch.go.set()
    await until(lambda: executor.stranded_threads == 0)


async def test_calls_that_wait_for_a_thread_of_a_tool_that_hangs_are_refused_and_strand_no_more(latch: Latch) -> None:
    @tool(read_only=True, concurrency_safe=True, timeout=0.2)
    def work(n: int) -> str:
        """Block."""
        return latch()

    executor = Executor([work], policy=ALLOWED, limits=Limits(max_threads=4))
    results = await executor.run_all([call("work", f"c-{n}", n=n) for n in range(60)], at())

    codes = Counter(code_of(result) for result in results)
    assert latch.runs == 4
    assert executor.stranded_threads == latch.runs
    assert codes["tool_timeout"] >= latch.runs
    assert set(codes) <= {"tool_timeout", "unavailable"}
    latch.go.set()
    await until(lambda: executor.stranded_threads == 0)


async def test_what_never_reached_a_thread_did_nothing(latch: Latch) -> None:
    ran: list[str] = []

    @tool(concurrency_safe=True)
    def block() -> str:
        """Block."""
        return latch()

    @tool(concurrency_safe=True, timeout=0.05)
    def act() -> None:
        """Act."""
        ran.append("acted")

    book = Book()
    executor = Executor([block, act], policy=ALLOWED, limits=Limits(max_threads=1), ledger=book)
    blocking = asyncio.create_task(executor.run(call("block"), at()))
    await latch.has_begun()

    late = await executor.run(call("act", "c-2"), at())
    waiting = asyncio.create_task(executor.run(call("act", "c-3"), at()))
    await until(lambda: len(executor.running_calls("s-1")) == 2)
    executor.cancel("c-3", session_id="s-1")
    dropped = await waiting
    latch.go.set()
    await blocking
    last = await executor.run(call("act", "c-4"), at(customer_id="c-9"))  # In the one thread, after all before it.

    assert [code_of(late), code_of(dropped), last.ok] == ["tool_timeout", "cancelled", True]
    assert [await book.state("c-2"), await book.state("c-3")] == ["failed", "failed"]
    assert ran == ["acted"]
    assert executor.stranded_threads == 0


async def test_an_effect_in_a_thread_is_finished_when_its_caller_leaves_or_the_session_ends(latch: Latch) -> None:
    @tool
    def work() -> str:
        """Block."""
        return latch()

    book = Book()
    executor = Executor([work], policy=ALLOWED, ledger=book)
    caller = asyncio.create_task(executor.run(call("work"), at()))
    await latch.has_begun()
    caller.cancel()
    await asyncio.wait([caller])
    ending = asyncio.create_task(executor.cancel_all("s-1", grace=30))
    await asyncio.sleep(0)
    latch.go.set()

    assert (await ending).cancelled == 0
    assert (await book.state(), latch.runs, executor.stranded_threads) == ("committed", 1, 0)


async def test_a_thread_that_is_still_at_work_is_never_verified_as_not_happened(latch: Latch) -> None:
    """`verify` looks too early: it says that nothing happened, while the thread is about to do it."""
    happened: list[str] = []

    def verify(arguments: dict[str, Any], context: ToolContext[Any]) -> bool:
        return bool(happened)

    @tool(timeout=0.05, verify=verify)
    def act() -> str:
        """Act."""
        latch()
        happened.append("once")
        return "acted"

    book = Book()
    executor = Executor([act], policy=ALLOWED, ledger=book, timeouts=Timeouts(in_progress=0))
    first = await executor.run(call("act", "c-1"), at())
    second = await executor.run(call("act", "c-2"), at(turn=2))
    assert [code_of(first), code_of(second)] == ["outcome_unknown", "in_progress"]
    latch.go.set()
    await until(lambda: executor.stranded_threads == 0)

    third = await executor.run(call("act", "c-3"), at(turn=3))
    assert code_of(third) == "approval_required"  # It is known as done now: doing it again has to be wanted.
    assert third.approval is not None
    assert "already done" in third.approval.question
    again = await executor.run(call("act", "c-1"), at())
    assert (again.output, again.origin) == ("acted", "replayed")  # The end of its thread settled it.
    assert happened == ["once"]


async def test_a_sync_verify_blocks_nobody(latch: Latch) -> None:
    threads: list[bool] = []

    def verify(arguments: dict[str, Any], context: ToolContext[Any]) -> bool:
        threads.append(threading.current_thread() is threading.main_thread())
        return True

    @tool(verify=verify)
    async def act() -> None:
        """Act."""
        raise ConnectionError("lost")

    assert (await Executor([act], policy=ALLOWED).run(call("act"), at())).ok
    assert threads == [False]


async def test_progress_from_a_thread_is_reported() -> None:
    @tool
    def work(context: ToolContext[Any]) -> str:
        """Work."""
        context.progress("half", fraction=0.5)
        return "done"

    heard = Heard()
    await Executor([work], policy=ALLOWED, listeners=[heard]).run(call("work"), at(tenant_id="acme"))

    (told,) = heard.of(Progress)
    assert (told.message, told.fraction, told.call_id, told.tool_name, told.tenant_id) == (
        "half",
        0.5,
        "c-1",
        "work",
        "acme",
    )


async def test_a_loop_that_is_gone_is_not_reported_to(latch: Latch) -> None:
    @tool(read_only=True, timeout=0.05)
    def work() -> str:
        """Block."""
        return latch()

    executor = Executor([work])
    done: list[ToolResult] = []

    def elsewhere() -> None:
        done.append(asyncio.run(executor.run(call("work"), at())))

    await asyncio.to_thread(elsewhere)
    assert code_of(done[0]) == "tool_timeout"
    latch.go.set()
    deadline = time.monotonic() + 30
    while executor.stranded_threads and time.monotonic() < deadline:
        await asyncio.sleep(0.001)
    assert executor.stranded_threads == 0


async def test_a_thread_that_ends_before_the_loop_sees_its_timeout_is_recorded() -> None:
    begun, go_on = threading.Event(), threading.Event()

    @tool(timeout=0.3)
    def act() -> str:
        """Act."""
        begun.set()
        go_on.wait(30)
        return "done"

    executor = Executor([act], policy=ALLOWED)
    running = asyncio.ensure_future(executor.run(call("act"), at()))
    while not begun.is_set():
        await asyncio.sleep(0)
    go_on.set()
    time.sleep(0.5)  # the loop sees the end of the thread and the timeout together
    await running
    again = await executor.run(call("act"), at())
    for _ in range(1_000):
        if again.ok:
            break
        await asyncio.sleep(0.01)
        again = await executor.run(call("act"), at())

    assert again.output == "done"
    assert again.origin == "replayed"


async def test_a_cancellation_reaches_a_call_in_its_check_at_once() -> None:
    checking, ran = asyncio.Event(), list[str]()

    async def check(arguments: dict[str, Any], context: ToolContext[Any]) -> None:
        checking.set()
        await asyncio.Event().wait()

    @tool(permission_check=check)
    async def act() -> str:
        """Act."""
        ran.append("act")
        return "acted"

    executor = Executor([act], policy=ALLOWED, timeouts=Timeouts(overhead=600))
    running = asyncio.ensure_future(executor.run(call("act"), at()))
    await checking.wait()

    assert executor.cancel("c-1", session_id="s-1")
    assert code_of(await asyncio.wait_for(running, 60)) == "cancelled"
    assert ran == []


async def test_a_cancellation_reaches_a_call_that_waits_for_the_ledger_at_once() -> None:
    reading = asyncio.Event()

    class Stuck(MemoryLedger):
        is_immediate: ClassVar[bool] = False
        can_claim_new: ClassVar[bool] = False

        async def recall(self, **of: Any) -> Any:
            reading.set()
            await asyncio.Event().wait()

    @tool
    async def act() -> str:
        """Act."""
        raise AssertionError("it was cancelled before")

    executor = Executor([act], policy=ALLOWED, ledger=Stuck(), timeouts=Timeouts(overhead=600))
    running = asyncio.ensure_future(executor.run(call("act"), at()))
    await reading.wait()

    assert executor.cancel("c-1", session_id="s-1")
    assert code_of(await asyncio.wait_for(running, 60)) == "cancelled"


async def test_a_tool_that_hangs_has_never_more_threads_than_allowed_its_stranded_ones_included(latch: Latch) -> None:
    @tool(concurrency_safe=True, timeout=0.05, read_only=True)
    def hang() -> str:
        """Hang."""
        return latch()

    @tool(concurrency_safe=True, read_only=True)
    def other() -> str:
        """Work."""
        return "done"

    executor = Executor([hang, other], policy=ALLOWED, limits=Limits(max_threads=3))
    results = await asyncio.gather(*(executor.run(call("hang", f"c-{n}"), at(f"s-{n}")) for n in range(12)))

    assert {code_of(result) for result in results} <= {"tool_timeout", "unavailable"}
    assert (latch.runs, executor.stranded_threads) == (3, 3)
    assert (await executor.run(call("other"), at())).output == "done"  # The others go on.


async def test_a_tool_whose_threads_never_come_back_gets_no_more_and_others_still_do(latch: Latch) -> None:
    threads = WorkerThreads(max_threads=2, max_stranded=2)
    stuck = [asyncio.create_task(threads.run(latch, owner="stuck")) for _ in range(2)]
    for _ in stuck:
        await latch.has_begun()
    refused: list[str] = []
    waiting = asyncio.create_task(threads.run(lambda: refused.append("ran"), owner="stuck"))
    other = asyncio.create_task(threads.run(lambda: "free", owner="other"))
    await asyncio.sleep(0)
    stuck[0].cancel()
    await asyncio.wait([stuck[0]])
    assert threads.has_room("stuck")
    stuck[1].cancel()
    await asyncio.wait(stuck)

    assert (threads.stranded, threads.has_room("stuck"), threads.has_room("other")) == (2, False, True)
    assert await asyncio.wait_for(other, 30) == "free"
    with pytest.raises(ThreadsStrandedError, match="2 threads of 'stuck' never came back"):
        await asyncio.wait_for(waiting, 30)
    with pytest.raises(ThreadsStrandedError):
        threads.submit(lambda: "never", owner="stuck")

    latch.go.set()
    await until(lambda: threads.stranded == 0)
    assert await asyncio.wait_for(threads.run(lambda: "again", owner="stuck"), 30) == "again"
    assert refused == []


@pytest.mark.parametrize("max_threads", [1, 5])
async def test_an_idle_thread_is_used_again(max_threads: int) -> None:
    threads, used = WorkerThreads(max_threads=max_threads), set[threading.Thread]()
    for _ in range(5):
        used.add(await threads.run(threading.current_thread))
        await until(lambda: threads._idle == 1)  # pyright: ignore[reportPrivateUsage]

    assert len(used) == 1


async def test_a_call_that_is_refused_and_cancelled_in_the_same_moment_is_cancelled(latch: Latch) -> None:
    threads = WorkerThreads(max_threads=1)
    stuck = asyncio.create_task(threads.run(latch, owner="stuck"))
    await latch.has_begun()
    waiting = asyncio.create_task(threads.run(lambda: "never", owner="stuck"))
    await asyncio.sleep(0)
    stuck.cancel()
    stuck.add_done_callback(lambda _: waiting.cancel())
    await asyncio.wait([stuck, waiting])

    assert waiting.cancelled()
    assert not threads._queue  # pyright: ignore[reportPrivateUsage]


async def test_a_thread_that_cannot_be_started_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = WorkerThreads(max_threads=1)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        for _ in range(2):
            with pytest.raises(RuntimeError):
                threads.submit(lambda: "never")

    assert await asyncio.wait_for(threads.run(lambda: "runs"), 30) == "runs"


async def test_a_call_that_is_given_up_when_no_thread_can_be_started_is_cancelled_and_its_place_is_free_later(
    monkeypatch: pytest.MonkeyPatch, latch: Latch
) -> None:
    threads = WorkerThreads(max_threads=1)
    stuck = asyncio.create_task(threads.run(latch, owner="stuck"))
    await latch.has_begun()
    waiting = asyncio.create_task(threads.run(lambda: "waited", owner="other"))
    await asyncio.sleep(0)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        stuck.cancel()
        await asyncio.wait([stuck])

    assert stuck.cancelled()
    assert await asyncio.wait_for(threads.run(lambda: "runs"), 30) == "runs"
    assert await asyncio.wait_for(waiting, 30) == "waited"


def test_a_sync_caller_can_try_again_after_a_moment_in_which_no_thread_could_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @tool(read_only=True)
    async def look() -> str:
        """Look."""
        return "seen"

    executor = Executor([look])

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            executor.run_sync(call("look"), at())
    results: list[Any] = []
    again = threading.Thread(target=lambda: results.append(executor.run_sync(call("look"), at())), daemon=True)
    again.start()
    again.join(30)

    assert [result.output for result in results] == ["seen"]


def test_a_sync_caller_that_is_interrupted_cancels_what_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(Future[Any]):
        def result(self, timeout: float | None = None) -> Any:
            raise KeyboardInterrupt

    waited = Interrupted()

    def start(coroutine: Any, loop: Any) -> Interrupted:
        coroutine.close()
        return waited

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", start)
    with pytest.raises(KeyboardInterrupt):
        Executor().run_coroutine(asyncio.sleep(0))

    assert waited.cancelled()


@pytest.mark.parametrize("read_only", [True, False])
async def test_a_call_of_a_tool_whose_threads_never_came_back_does_nothing_and_says_so(
    read_only: bool, latch: Latch
) -> None:
    @tool(read_only=read_only, timeout=0.02, key="n")
    def work(n: int) -> str:
        """Block."""
        return latch()

    book = Book()
    executor = Executor([work], policy=ALLOWED, limits=Limits(max_threads=1), ledger=book)
    await executor.run(call("work", "c-1", n=1), at())
    refused = await executor.run(call("work", "c-2", n=2), at())

    assert (code_of(refused), latch.runs) == ("unavailable", 1)
    assert "Nothing was done" in refused.for_model()
    assert await book.state("c-2") == (None if read_only else "failed")


@pytest.mark.parametrize("is_coroutine", [True, False])
async def test_a_thread_that_ends_late_with_code_that_never_ran_leaves_the_outcome_unknown(
    is_coroutine: bool, latch: Latch, recwarn: pytest.WarningsRecorder
) -> None:
    async def later() -> None: ...

    async def stream() -> AsyncGenerator[int]:
        yield 1

    @tool(timeout=0.02)
    def work() -> Any:
        """Block."""
        latch()
        return later() if is_coroutine else stream()

    book = Book()
    executor = Executor([work], policy=ALLOWED, ledger=book)
    assert code_of(await executor.run(call("work"), at())) == "outcome_unknown"
    assert await book.state() == "running"
    latch.go.set()
    while await book.state() == "running":
        await asyncio.sleep(0.001)

    assert await book.state() == "unknown"
    assert list_unawaited(recwarn) == []


async def test_no_thread_of_ours_keeps_the_program_from_ending(latch: Latch) -> None:
    async def find_thread() -> threading.Thread:
        return threading.current_thread()

    threads = WorkerThreads(max_threads=1)
    stuck = asyncio.create_task(threads.run(latch, owner="stuck"))
    await latch.has_begun()
    waiting = asyncio.create_task(threads.run(threading.current_thread, owner="other"))
    await asyncio.sleep(0)
    stuck.cancel()
    in_its_place = await asyncio.wait_for(waiting, 30)
    first = await WorkerThreads().run(threading.current_thread)
    portal = await asyncio.to_thread(Executor().run_coroutine, find_thread())

    assert [thread.daemon for thread in (in_its_place, first, portal)] == [True] * 3
    assert [thread.name for thread in (in_its_place, first, portal)] == [
        "handrail-tool",
        "handrail-tool",
        "handrail-portal",
    ]


PROGRAM = """
from handrail import Executor, Policy, Rule, ToolCall, ToolContext, tool

@tool
def pay(amount: int) -> str:
    "Pay."
    return "paid"

executor = Executor([pay], policy=Policy([Rule.allow("pay")]), store="sqlite:///audit.db")
call = ToolCall(id="c-1", name="pay", arguments_json='{"amount": 5}')
print(executor.run_sync(call, ToolContext(session_id="s-1", customer_id="ann")).output)
"""


async def test_a_program_without_a_loop_that_ends_leaves_its_whole_audit(tmp_path: Path) -> None:
    command = (sys.executable, "-c", PROGRAM)
    program = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, stdout=asyncio.subprocess.PIPE)
    output, _ = await asyncio.wait_for(program.communicate(), 60)
    assert (output, program.returncode) == (b"paid\n", 0)
    async with open_store(f"sqlite:///{tmp_path / 'audit.db'}") as store:
        kinds = [row.kind for row in await store.audit.query(session_id="s-1")]
    assert kinds == ["call_accepted", "call_started", "call_finished"]

"""A store that nobody opened is opened at its first use: by an executor that got a URL, or by any of its parts."""

import asyncio
import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from handrail import Agent, Executor, Policy, Rule, ToolCall, ToolContext, tool
from handrail.authorize import MemoryApprovals
from handrail.chat import Conversation
from handrail.errors import ConfigError, StoreError
from handrail.execute import MemoryLedger
from handrail.store import open_store
from tests.store.samples import an_item


@pytest.fixture
def url(empty_url: str) -> str:
    """The address of a database without tables."""
    return empty_url


ALLOWED = Policy([Rule.allow("*")])
CONTEXT: ToolContext[Any] = ToolContext(session_id="s-1", customer_id="c-1", turn=1)


@tool
async def pay(invoice: str) -> str:
    """Pay an invoice."""
    return f"paid {invoice}"


@tool(read_only=True)
async def look() -> str:
    """Look."""
    return "seen"


def call(name: str, id: str = "c-1", arguments: str = "{}") -> ToolCall:
    return ToolCall(id=id, name=name, arguments_json=arguments)


def pay_call(id: str = "c-1") -> ToolCall:
    return call("pay", id, '{"invoice": "i-1"}')


async def kinds(url: str) -> list[str]:
    async with open_store(url) as store:
        return [fact.kind for fact in await store.audit.query(session_id="s-1")]


async def test_an_executor_with_a_url_opens_it_at_the_first_call_and_closes_it_at_the_end(url: str) -> None:
    executor = Executor([pay, look], policy=ALLOWED, store=url)
    first, second = await asyncio.gather(executor.run(pay_call(), CONTEXT), executor.run(call("look", "c-2"), CONTEXT))
    await executor.aclose()
    other = Executor([pay], policy=ALLOWED, store=url)  # As another process.
    again = await other.run(pay_call(), CONTEXT)
    await other.aclose()

    assert (first.output, second.output) == ("paid i-1", "seen")
    assert (again.output, again.origin) == ("paid i-1", "replayed")
    assert (await kinds(url)).count("call_finished") == 2


async def test_a_closed_executor_opens_its_database_again(url: str) -> None:
    executor = Executor([pay], policy=ALLOWED, store=url)
    for _ in range(2):
        assert (await executor.run(pay_call(), CONTEXT)).output == "paid i-1"
        await executor.aclose()

    assert (await kinds(url)).count("call_finished") == 1


def test_an_executor_of_a_module_serves_one_event_loop_after_another(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/handrail.db"
    executor = Executor([pay], policy=ALLOWED, store=url)
    agent = Agent(tools=[pay], policy=ALLOWED, store=url)
    found = [
        asyncio.run(executor.run(pay_call(), CONTEXT)),  # Nobody closes it: its event loop just ends.
        asyncio.run(executor.run(pay_call(), CONTEXT)),
        asyncio.run(agent.executor.run(pay_call(), CONTEXT)),
        executor.run_sync(pay_call(), CONTEXT),
    ]
    executor.run_coroutine(executor.aclose())

    assert [result.output for result in found] == ["paid i-1"] * 4
    assert [result.origin for result in found] == ["run", "replayed", "replayed", "replayed"]
    assert asyncio.run(kinds(url)).count("call_finished") == 1


PROGRAM = """
import asyncio, sys
from handrail import Executor, ToolCall, ToolContext, tool

@tool(read_only=True)
async def look() -> str:
    "Look."
    return "seen"

executor = Executor([look], store=sys.argv[1])
result = asyncio.run(executor.run(ToolCall(id="c-1", name="look"), ToolContext(session_id="s-1")))
print(result.output)
"""


def test_a_program_that_closes_nothing_ends_and_leaves_its_audit(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/handrail.db"
    ran = subprocess.run([sys.executable, "-c", PROGRAM, url], capture_output=True, text=True, timeout=60, check=False)

    assert (ran.stdout, ran.stderr, ran.returncode) == ("seen\n", "", 0)
    assert asyncio.run(kinds(url)) == ["call_started", "call_finished"]


async def test_a_store_that_only_the_executor_keeps_lives_as_long_as_it(url: str) -> None:
    executor = Executor([pay], policy=ALLOWED, store=await open_store(url).__aenter__())
    for _ in range(3):
        gc.collect()
        await asyncio.sleep(0)
    result = await executor.run(pay_call(), CONTEXT)
    await executor.aclose()  # The store was passed open: it stays open.
    await executor._store.aclose()

    assert result.output == "paid i-1"
    assert (await kinds(url)).count("call_finished") == 1


async def test_approvals_sessions_and_doubts_of_a_url_need_no_call_before_them(url: str) -> None:
    executor = Executor([pay], store=url)
    assert await executor.approvals.pending() == []
    asked = await executor.run(pay_call(), CONTEXT)
    assert asked.approval is not None
    await executor.aclose()

    elsewhere = Executor([pay], store=url)
    await elsewhere.approvals.approve(asked.approval.token, by="customer", who="c-1")
    later = ToolContext(session_id="s-1", customer_id="c-1", turn=2)
    assert (await elsewhere.run(pay_call("c-2"), later)).output == "paid i-1"
    await elsewhere.aclose()

    assert await elsewhere.doubts() == []
    found = await elsewhere.look_up(pay_call("c-2"), later)
    await elsewhere.aclose()
    assert found is not None
    assert found.output == "paid i-1"


async def test_many_first_uses_open_a_store_once_and_a_caller_that_is_cancelled_does_not_stop_the_others(
    tmp_path: Path,
) -> None:
    store = open_store(f"sqlite:///{tmp_path}/handrail.db")
    first = asyncio.create_task(store.approvals.pending())
    others = [asyncio.create_task(store.audit.query()) for _ in range(5)]
    await asyncio.sleep(0)
    first.cancel()

    assert await asyncio.gather(*others) == [[]] * 5
    await store.aclose()


async def test_a_call_is_refused_while_the_database_cannot_be_opened_and_runs_when_it_can(tmp_path: Path) -> None:
    (tmp_path / "handrail.db").write_text("this is not a database")
    executor = Executor([pay, look], policy=ALLOWED, store=f"sqlite:///{tmp_path}/handrail.db")
    refused = [await executor.run(item, CONTEXT) for item in (pay_call(), call("look", "c-2"))]
    asked, known = await executor.request_approval(pay_call(), CONTEXT), await executor.look_up(pay_call(), CONTEXT)
    with pytest.raises(StoreError):
        await executor.open()
    with pytest.raises(StoreError, match="not open"):
        executor.digest_secret(b"s3cret")
    (tmp_path / "handrail.db").unlink()
    ran = await executor.run(pay_call(), CONTEXT)
    await executor.aclose()

    assert [result.error and (result.error.code, result.error.retryable) for result in refused] == [
        ("unavailable", True)
    ] * 2
    assert asked is None
    assert known is not None
    assert known.error is not None
    assert known.error.code == "outcome_unknown"
    assert ran.output == "paid i-1"


async def test_a_database_that_was_replaced_while_it_was_closed_is_refused(tmp_path: Path) -> None:
    executor = Executor([pay], policy=ALLOWED, store=f"sqlite:///{tmp_path}/handrail.db")
    await executor.run(pay_call(), CONTEXT)
    await executor.aclose()
    for path in tmp_path.iterdir():
        path.unlink()
    result = await executor.run(pay_call(), CONTEXT)
    await executor.aclose()

    assert result.error is not None
    assert result.error.code == "unavailable"


async def test_a_store_that_is_open_in_one_event_loop_is_refused_in_another(tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path}/handrail.db") as store:
        with pytest.raises(StoreError, match="open in another event loop"):
            await asyncio.to_thread(asyncio.run, store.approvals.pending())


@pytest.mark.parametrize(
    ("store", "message"),
    [
        ("handrail.db", "url must be a database URL"),
        ("mysql://host/name", "url must start with"),
        ("sqlite://", "url must name a file"),
        (MemoryLedger(), "store must be a Store or the URL of a database, got MemoryLedger"),
        (5, "store must be a Store or the URL of a database, got int"),
    ],
)
def test_what_is_no_store_is_refused_when_the_executor_is_built(store: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Executor([pay], store=store)


def test_parts_of_a_store_that_is_not_open_are_refused_when_the_executor_is_built(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/handrail.db")
    with pytest.raises(StoreError, match="pass store=store, or open it first"):
        Executor([pay], ledger=store.ledger, approvals=MemoryApprovals())


async def test_a_store_that_nobody_opened_keeps_a_durable_call(url: str) -> None:
    store = open_store(url)
    await store.work.put(item := an_item())
    await store.aclose()

    async with open_store(url) as other:
        kept = await other.work.get(session_id=item.session_id, call_id=item.call_id)
    assert kept is not None
    assert (kept.state, kept.call) == ("queued", item.call)


async def test_a_customer_is_erased_through_a_store_that_nobody_opened(url: str) -> None:
    async with open_store(url) as store:
        await store.sessions.save(Conversation(session_id="s-1", customer_id="ann", revision=1))
    again = open_store(url)
    assert (await again.erase(customer_id="ann", tenant_id=None, who="bo")).conversations == 1
    assert [row.kind for row in await again.audit.query()] == ["customer_erased"]
    await again.aclose()

"""Promises that need more than one part: each is proved as a whole here, through the public API."""

import asyncio
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from handrail import Executor, Failure, Policy, Rule, ToolCall, ToolContext, ToolError, ToolResult, tool
from handrail.execute import Timeouts
from handrail.formats import anthropic, gemini, mcp, openai_chat, openai_realtime, openai_responses
from handrail.monitor import Log, Metrics
from handrail.store import open_store
from handrail.tenants import ToolBuilder
from handrail.testing import run_tool
from tests.tenants.samples import acme

ALLOWED = Policy([Rule.allow("*")])
CONTEXT = ToolContext(session_id="s-1", customer_id="c-1", tenant_id="acme", turn=1)


def call(name: str, arguments: str = "{}", id: str = "c-1") -> ToolCall:
    return ToolCall(id=id, name=name, arguments_json=arguments)


@pytest.mark.proves("PH-49")
@pytest.mark.parametrize(("read_only", "code"), [(True, "tool_execution_failed"), (False, "outcome_unknown")])
async def test_an_exception_is_a_code_and_a_fixed_text_for_the_model_and_itself_for_the_log(
    read_only: bool, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    texts: set[str] = set()
    for number in range(2):

        @tool(read_only=read_only, name=f"crash_{number}")
        async def crash(number: int = number) -> None:
            """Crash."""
            raise LookupError(f"secret-{number}")

        result = await Executor([crash], policy=ALLOWED).run(call(crash.name), CONTEXT)
        assert result.error is not None
        assert result.error.code == code
        texts.add(result.error.message.replace(crash.name, "it"))
    assert len(texts) == 1
    assert "secret" not in next(iter(texts))
    assert [record.levelno for record in caplog.records if "LookupError" in caplog.text] == [logging.ERROR] * 2


@pytest.mark.proves("PH-56")
@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("raises", [True, False])
async def test_the_model_reads_the_code_and_the_message_of_a_failure(read_only: bool, raises: bool) -> None:
    @tool(read_only=read_only)
    async def close() -> ToolResult:
        """Close."""
        error = ToolError("The shop is closed.", code="shop_closed")
        if raises:
            raise error
        return ToolResult(error=Failure(code="shop_closed", message="The shop is closed."))

    result = await Executor([close], policy=ALLOWED).run(call("close"), CONTEXT)
    assert json.loads(result.for_model()) == {
        "ok": False,
        "error": "shop_closed",
        "tool": "close",
        "message": "The shop is closed.",
    }


@pytest.mark.proves("PH-72")
async def test_cancel_all_returns_when_every_call_has_ended_and_none_is_remembered() -> None:
    started, ended = asyncio.Semaphore(0), 0

    @tool(read_only=True, concurrency_safe=True)
    async def wait(number: int) -> None:
        """Wait."""
        nonlocal ended
        started.release()
        try:
            await asyncio.Event().wait()
        finally:
            ended += 1

    executor = Executor([wait])
    calls = [call("wait", f'{{"number": {number}}}', f"c-{number}") for number in range(3)]
    running = asyncio.create_task(executor.run_all(calls, CONTEXT))
    for _ in calls:
        await asyncio.wait_for(started.acquire(), 20)
    assert len(executor.running_calls("s-1")) == 3
    await executor.cancel_all("s-1")

    assert ended == 3
    assert executor.running_calls("s-1") == ()
    assert [item.error.code for item in await running if item.error] == ["cancelled"] * 3


@pytest.mark.proves("PH-78")
def test_a_tool_is_tested_in_one_line_with_good_and_with_invalid_arguments() -> None:
    @tool
    async def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    assert run_tool(pay, amount=5).output == "paid 5"
    failed = run_tool(pay, amount="lots").error
    assert failed is not None
    assert (failed.code, "amount" in failed.message) == ("invalid_arguments", True)


@pytest.mark.proves("PH-84")
async def test_each_tool_of_each_tenant_has_a_histogram_of_its_own() -> None:
    @tool(read_only=True)
    async def look() -> str:
        """Look."""
        return "seen"

    @tool(read_only=True)
    async def find() -> str:
        """Find."""
        return "found"

    metrics = Metrics(CollectorRegistry())
    executor = Executor([look, find], listeners=[metrics])
    runs = {("look", "a"): 3, ("look", "b"): 1, ("find", "a"): 2}
    for (name, tenant), count in runs.items():
        for number in range(count):
            one = call(name, id=f"{name}-{tenant}-{number}")
            await executor.run(one, ToolContext(session_id="s-1", tenant_id=tenant))

    name = "handrail_call_duration_seconds_count"
    for (tool_name, tenant), count in runs.items():
        assert metrics.registry.get_sample_value(name, {"tool": tool_name, "tenant": tenant}) == count


@pytest.mark.proves("PH-D14")
async def test_failures_are_logged_above_info_and_no_log_has_the_configuration_of_a_tenant(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @tool
    async def crash() -> None:
        """Crash."""
        raise RuntimeError("boom")

    @tool(read_only=True)
    async def hang() -> None:
        """Hang."""
        await asyncio.Event().wait()

    caplog.set_level(logging.DEBUG)
    log = Log(logging.getLogger("tests.promises"))
    executor = Executor([crash, hang], policy=ALLOWED, listeners=[log], timeouts=Timeouts(call=0.01))
    for name in ("crash", "hang"):
        assert not (await executor.run(call(name, id=name), CONTEXT)).ok
    cfg = acme()
    ToolBuilder().build_tools(cfg, listeners=[log])

    finished = [record for record in caplog.records if getattr(record, "event", "") == "call_finished"]
    assert [record.levelno > logging.INFO for record in finished] == [True, True]
    addresses = [str(destination.target_uri) for destination in cfg.features.refer.destinations]  # type: ignore[union-attr]
    assert addresses
    assert not any(address in caplog.text for address in addresses)


@pytest.mark.proves("PH-D15")
async def test_dependencies_reach_a_tool_in_the_same_way_whatever_its_name_is() -> None:
    @tool(read_only=True)
    async def look(context: ToolContext[dict[str, int]]) -> int:
        """Look."""
        return context.deps["answer"]

    names = ("look", "request_transfer", "call_service", "model_tool_handler")
    executor = Executor([replace(look, name=name) for name in names])
    context = ToolContext(session_id="s-1", deps={"answer": 42})
    assert [(await executor.run(call(name, id=name), context)).output for name in names] == [42] * len(names)


@pytest.mark.proves("PH-D17")
async def test_what_is_remembered_of_executed_calls_is_shared_through_a_store(tmp_path: Path) -> None:
    ran = 0

    @tool
    async def pay(amount: int) -> str:
        """Pay."""
        nonlocal ran
        ran += 1
        return "paid"

    origins: list[str] = []
    for _ in range(2):  # Each time as another process would.
        async with open_store(f"sqlite+aiosqlite:///{tmp_path}/a.db") as store:
            executor = Executor([pay], policy=ALLOWED, ledger=store.ledger, approvals=store.approvals)
            origins.append((await executor.run(call("pay", '{"amount": 5}'), CONTEXT)).origin)
    assert (origins, ran) == (["run", "replayed"], 1)


@pytest.mark.proves("GC-28")
@pytest.mark.parametrize("wire", [anthropic, gemini, mcp, openai_chat, openai_realtime, openai_responses])
def test_no_wire_format_renders_metadata(wire: Any) -> None:
    results = [
        ToolResult(output="seen", metadata={"canary": "kestrel"}, call_id="c-1", tool_name="look"),
        ToolResult(error="no", metadata={"canary": "kestrel"}, call_id="c-2", tool_name="look"),
    ]
    sent = repr(wire.results(results))
    assert "seen" in sent
    assert "canary" not in sent
    assert "kestrel" not in sent


@pytest.mark.proves("GC-41")
@pytest.mark.parametrize(("read_only", "expected"), [(True, 2), (False, None)])
async def test_of_two_equal_keys_the_last_one_counts_only_for_a_read(read_only: bool, expected: int | None) -> None:
    @tool(read_only=read_only)
    async def count(number: int) -> int:
        """Count."""
        return number

    result = await Executor([count], policy=ALLOWED).run(call("count", '{"number": 1, "number": 2}'), CONTEXT)
    assert result.output == expected
    assert result.ok is read_only

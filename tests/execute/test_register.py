"""Adding a tool to an executor gives a new one that shares everything else."""

import asyncio

import pytest

from handrail import Executor, Policy, Rule, ToolCall, ToolContext, tool
from handrail.errors import DuplicateToolError

CONTEXT = ToolContext(session_id="s-1")


async def test_a_function_is_registered_under_a_name_and_the_old_executor_stays_as_it_was() -> None:
    def count(of: str) -> int:
        """Count."""
        return len(of)

    old = Executor(policy=Policy([Rule.allow("*")]))
    new = old.register("count_letters", count).register("answer", lambda: 42)

    assert [old.has_tool(name) for name in ("count_letters", "count", "answer")] == [False] * 3
    assert [new.has_tool(name) for name in ("count_letters", "count", "answer")] == [True, False, True]
    result = await new.run(ToolCall(id="c-1", name="count_letters", arguments_json='{"of": "four"}'), CONTEXT)
    assert result.output == 4
    assert (await new.run(ToolCall(id="c-2", name="answer"), CONTEXT)).output == 42
    missing = await old.run(ToolCall(id="c-3", name="answer"), CONTEXT)
    assert missing.error is not None
    assert missing.error.code == "tool_not_found"
    with pytest.raises(DuplicateToolError):
        new.register("answer", lambda: 43)


async def test_both_executors_share_the_ledger_and_the_running_calls() -> None:
    ran: list[str] = []
    go_on = asyncio.Event()

    @tool
    async def pay(invoice: str) -> str:
        """Pay."""
        ran.append(invoice)
        await go_on.wait()
        return "paid"

    old = Executor(policy=Policy([Rule.allow("*")]))
    new = old.register("pay", pay)
    newer = new.register("other", lambda: 1)
    call = ToolCall(id="c-1", name="pay", arguments_json='{"invoice": "i-1"}')
    runs = [asyncio.create_task(item.run(call, CONTEXT)) for item in (new, newer)]
    while not ran:
        await asyncio.sleep(0)
    assert old.running_calls("s-1") == newer.running_calls("s-1") == (call,)
    go_on.set()

    assert [result.output for result in await asyncio.gather(*runs)] == ["paid", "paid"]
    assert ran == ["i-1"]

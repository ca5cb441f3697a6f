"""Executors that record: what was called, what was decided, and what a failed assertion shows."""

import asyncio
from typing import Any

import pytest

from handrail import Executor, Policy, Rule, ToolCall, ToolContext, ToolError, tool
from handrail.core import CallFinished, CallIgnored, CallStarted, DecisionMade, Progress
from handrail.execute import Timeouts
from handrail.testing import ExecutorFactory

HERE = ToolContext(session_id="s-1", customer_id="ann", turn=1)


@tool(read_only=True)
async def balance(account: str = "main") -> int:
    """How much is there."""
    return 100


@tool
def pay(amount: int, context: ToolContext[Any]) -> str:
    """Pay an amount."""
    context.progress("paying")
    if amount > 100:
        raise ToolError("Too much.", code="too_much")
    return f"paid {amount}"


def call(name: str, arguments: str = "{}", call_id: str = "1") -> ToolCall:
    return ToolCall(id=call_id, name=name, arguments_json=arguments)


async def test_calls_are_recorded_in_order_with_their_arguments_and_results() -> None:
    factory = ExecutorFactory()
    executor = factory.allow_all([balance, pay])
    assert isinstance(executor, Executor)
    await executor.run(call("balance"), HERE)
    await executor.run(call("pay", '{"amount": 5}', "2"), HERE)
    await executor.run(call("pay", '{"amount": 101}', "3"), HERE)

    assert [(item.name, item.arguments) for item in factory.calls] == [
        ("balance", {}),
        ("pay", {"amount": 5}),
        ("pay", {"amount": 101}),
    ]
    assert [item.result.output for item in factory.calls] == [100, "paid 5", None]
    error = factory.calls[2].result.error
    assert error is not None
    assert error.code == "too_much"
    assert {decision.action for decision in factory.decisions} == {"allow"}


async def test_without_a_policy_a_missing_rule_is_noticed() -> None:
    factory = ExecutorFactory()
    executor = factory([balance, pay])
    await executor.run(call("balance"), HERE)
    result = await executor.run(call("pay", '{"amount": 5}', "2"), HERE)

    assert result.error is not None
    assert result.error.code == "approval_required"
    assert [(decision.action, decision.by) for decision in factory.decisions] == [("allow", None), ("ask", "customer")]
    assert [item.decision.action for item in factory.find_calls("pay") if item.decision] == ["ask"]


async def test_a_policy_of_the_test_counts_and_the_decision_names_its_rule() -> None:
    factory = ExecutorFactory()
    executor = factory([pay], policy=Policy([Rule.deny("pay", reason="closed"), Rule.allow("*")]))
    await executor.run(call("pay", '{"amount": 5}'), HERE)

    (decision,) = factory.decisions
    assert (decision.action, decision.reason) == ("deny", "closed")


async def test_calls_are_found_by_name_and_by_some_of_their_arguments() -> None:
    factory = ExecutorFactory()
    executor = factory.allow_all([pay, balance])
    for number, amount in enumerate((5, 6, 7)):
        await executor.run(call("pay", f'{{"amount": {amount}}}', str(number)), HERE)
    await executor.run(call("pay", "not JSON", "9"), HERE)
    await executor.run(call("pai", '["amount"]', "10"), HERE)

    assert len(factory.find_calls("pay")) == 4
    assert [item.result.output for item in factory.find_calls("pay", amount=6)] == ["paid 6"]
    assert not factory.find_calls("pay", amount=8)
    assert not factory.find_calls("pay", amount=5, currency=None)
    assert factory.find_calls("pay")[-1].arguments == "not JSON"
    assert factory.find_calls("pai")[0].decision is None
    assert not factory.find_calls("balance")


async def test_events_are_all_kept_and_other_listeners_hear_them_too() -> None:
    heard: list[Any] = []
    factory = ExecutorFactory()
    executor = factory.allow_all([pay], listeners=[heard.append])
    await executor.run(call("pay", '{"amount": 5}'), HERE)

    assert factory.events == heard
    assert [type(event) for event in factory.events if isinstance(event, CallStarted | Progress | CallFinished)] == [
        CallStarted,
        Progress,
        CallFinished,
    ]
    assert not [event for event in factory.events if isinstance(event, DecisionMade)]


async def test_options_are_those_of_the_executor() -> None:
    @tool(read_only=True)
    async def slow() -> None:
        """Slow."""
        await asyncio.Event().wait()

    factory = ExecutorFactory()
    result = await factory([slow], timeouts=Timeouts(call=0.01)).run(call("slow"), HERE)

    assert result.error is not None
    assert result.error.code == "tool_timeout"
    with pytest.raises(TypeError, match="timeout"):
        factory([slow], timeout=1)


async def test_several_executors_are_recorded_together() -> None:
    factory = ExecutorFactory()
    await factory([balance]).run(call("balance"), HERE)
    await factory([balance]).run(call("balance", '{"account": "other"}'), HERE)

    assert [item.arguments for item in factory.find_calls("balance")] == [{}, {"account": "other"}]


async def test_a_failed_assertion_shows_what_was_called_instead() -> None:
    factory = ExecutorFactory()
    assert repr(factory) == "<ExecutorFactory: no calls>"
    await factory([balance, pay]).run_all([call("balance"), call("pay", '{"amount": 5}', "2")], HERE)

    assert repr(factory) == '<ExecutorFactory: balance({}) -> 100, pay({"amount": 5}) -> approval_required>'


@tool(read_only=True)
async def hangs() -> None:
    """Hangs until it is cancelled."""
    await asyncio.Event().wait()


def test_closing_ends_what_a_loop_that_stopped_left_behind() -> None:
    factory = ExecutorFactory()
    executor = factory([hangs])
    loop = asyncio.new_event_loop()
    try:
        task = loop.create_task(executor.run(call("hangs"), HERE))
        while not factory.events:
            loop.run_until_complete(asyncio.sleep(0))
        assert executor.running_calls("s-1")
        factory.close()

        assert executor.running_calls("s-1") == ()
        assert loop.run_until_complete(task).error.code == "cancelled"  # type: ignore[union-attr]
    finally:
        loop.close()
    assert [item.name for item in factory.calls] == ["hangs"]


def test_closing_ends_what_runs_for_a_sync_caller() -> None:
    factory = ExecutorFactory()
    executor = factory([balance, hangs])
    executor.run_sync(call("balance"), HERE)  # Its loop runs in a thread from now on.
    task = executor.run_coroutine(_begun(executor))
    factory.close()

    assert executor.running_calls("s-1") == ()
    assert task.done()


async def _begun(executor: Executor) -> "asyncio.Task[Any]":
    task = asyncio.ensure_future(executor.run(call("hangs", call_id="2"), HERE))
    while not executor.running_calls("s-1"):
        await asyncio.sleep(0)
    return task


async def test_a_call_that_arrives_again_is_not_recorded_as_another() -> None:
    factory = ExecutorFactory()
    executor = factory.allow_all([pay])
    for _ in range(2):
        await executor.run(call("pay", '{"amount": 5}'), HERE)

    assert len(factory.find_calls("pay")) == 1
    assert [event.reason for event in factory.events if isinstance(event, CallIgnored)] == ["already_executed"]


def test_closing_after_the_loop_is_closed_or_before_anything_ran_is_fine() -> None:
    ExecutorFactory().close()
    factory = ExecutorFactory()
    asyncio.run(factory([balance]).run(call("balance"), HERE))
    factory.close()

    assert len(factory.calls) == 1

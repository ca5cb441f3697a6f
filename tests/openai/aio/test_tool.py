"""What is special about the async module: calls run together, and none is left behind."""

import asyncio
import inspect
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from handrail.openai import aio

Step = Callable[[], Awaitable[Any]]


class step(aio.LLMFunctionTool[dict[str, Step], int]):
    """Take the step of this name."""

    key: str

    async def model_tool_handler(self, context: dict[str, Step]) -> tuple[str, int]:
        return str(await context[self.key]()), len(self.key)


GROUP = aio.LLMFunctionToolGroup[dict[str, Step], int].from_list([step])


def calls(*keys: str) -> list[dict[str, Any]]:
    return [{"call_id": f"call_{key}", "name": "step", "arguments": f'{{"key": "{key}"}}'} for key in keys]


async def nothing_else_runs() -> bool:
    return asyncio.all_tasks() == {asyncio.current_task()}


def says(value: Any) -> Step:
    async def say() -> Any:
        return value

    return say


def fails(error: BaseException) -> Step:
    async def fail() -> None:
        raise error

    return fail


@pytest.mark.proves("TC-02")
async def test_a_call_is_awaited_and_its_handler_is_a_coroutine() -> None:
    running = step.model_tool_run_tool_call(calls("a")[0], {"a": says("done")})
    assert asyncio.iscoroutine(running)
    assert await running == aio.ToolCallSuccess(call_id="call_a", result_content="done", context=1)


async def test_a_plain_method_is_a_handler_too() -> None:
    class plain(aio.LLMFunctionTool[int, int]):
        def model_tool_handler(self, context: int) -> tuple[str, int]:
            return "at once", context

    result = await plain.model_tool_run_tool_call({"call_id": "c", "name": "plain", "arguments": "{}"}, 3)
    assert (result.result_content, result.context) == ("at once", 3)


@pytest.mark.proves("TC-60")
async def test_calls_run_together_and_answer_in_their_order() -> None:
    ended: list[str] = []
    done = {key: asyncio.Event() for key in "abc"}

    def after(key: str, *others: str) -> Step:
        async def wait() -> str:
            for other in others:
                await done[other].wait()
            ended.append(key)
            done[key].set()
            return key

        return wait

    # Each waits for the next one, so that one after the other they would never end.
    context = {"a": after("a", "b"), "b": after("b", "c"), "c": after("c")}
    results = await asyncio.wait_for(GROUP.run_tool_calls(calls("a", "b", "c"), context), 10)

    assert ended == ["c", "b", "a"]
    assert [result.call_id for result in results] == ["call_a", "call_b", "call_c"]
    assert [result.result_content for result in results] == ["a", "b", "c"]


@pytest.mark.proves("TC-60", "TC-D2")
async def test_failures_that_the_model_reads_are_answers_like_any_other() -> None:
    context = {"a": says("a"), "b": fails(aio.ToolErrorMessageForLLMToSee("no b"))}
    other = {"call_id": "x", "name": "other", "arguments": ""}

    results = await GROUP.run_tool_calls([*calls("b", "a"), other], context)

    assert [result.fail_reason for result in results] == ["explicit_handler_error", None, "invalid_name"]
    assert await GROUP.run_tool_calls([], context) == []


@pytest.mark.proves("TC-61", "TC-D1")
@pytest.mark.parametrize("order", ["ab", "ba"])
async def test_an_error_reaches_the_caller_when_the_other_calls_have_ended(order: str) -> None:
    error = LookupError("a")
    failed = asyncio.Event()
    ended: list[str] = []

    async def fail() -> None:
        failed.set()
        raise error

    async def go_on() -> str:
        await failed.wait()
        for _ in range(5):
            await asyncio.sleep(0)
        ended.append("b")
        return "b"

    with pytest.raises(LookupError) as caught:
        await GROUP.run_tool_calls(calls(*order), {"a": fail, "b": go_on})

    assert caught.value is error
    assert ended == ["b"]
    assert await nothing_else_runs()


@pytest.mark.proves("TC-61")
async def test_of_two_errors_the_first_call_s_is_raised_and_names_the_other() -> None:
    first, second = LookupError("the first"), ValueError("the second")
    context = {"a": says("a"), "b": fails(first), "c": fails(second)}

    with pytest.raises(LookupError) as caught:
        await GROUP.run_tool_calls(calls("a", "b", "c"), context)

    assert caught.value is first
    assert "Another call failed, too: ValueError('the second')" in "".join(traceback.format_exception(first))


@pytest.mark.proves("TC-61")
async def test_a_caller_that_is_cancelled_takes_its_calls_with_it() -> None:
    started, cancelled = asyncio.Event(), list[str]()

    async def hang() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            cancelled.append("cleaned up")
            raise

    running = asyncio.create_task(GROUP.run_tool_calls(calls("a", "b"), {"a": hang, "b": hang}))
    await started.wait()
    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await running
    assert cancelled == ["cleaned up"] * 2
    assert await nothing_else_runs()


def test_the_base_handler_is_a_coroutine_function() -> None:
    assert inspect.iscoroutinefunction(aio.LLMFunctionTool.model_tool_handler)

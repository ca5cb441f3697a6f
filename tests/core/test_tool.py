"""The one tool value: what it refuses to be, and the harness protocol for loops written by hand."""

import asyncio
import contextvars
import functools
import inspect
import threading
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from types import MappingProxyType
from typing import Any

import pytest

from handrail import (
    InvalidArgumentsError,
    PermissionDeniedError,
    ToolArgsParseError,
    ToolCall,
    ToolContext,
    ToolDefinitionError,
    ToolError,
    ToolLike,
    ToolResult,
    tool,
)

CONTEXT: ToolContext[Any] = ToolContext(session_id="s-1", call=ToolCall(id="call_1", name="pay"))
request_id = contextvars.ContextVar("request_id", default="none")


@tool
def pay(invoice: str, amount: int = 1) -> str:
    """Pay an invoice."""
    return f"paid {amount} for {invoice}"


@tool(read_only=True)
async def look(invoice: str) -> str:
    """Look at an invoice."""
    return f"looked at {invoice}"


@pytest.mark.proves("HC-01", "GC-06")
def test_a_tool_has_the_members_of_the_harness_protocol() -> None:
    assert (pay.name, pay.id, pay.description) == ("pay", "pay", "Pay an invoice.")
    assert pay.input_schema["required"] == ["invoice"]
    assert inspect.iscoroutinefunction(pay.execute)
    assert inspect.iscoroutinefunction(pay.check_permissions)
    assert (pay.is_read_only(), pay.is_concurrency_safe()) == (False, False)
    assert (look.is_read_only(), look.is_concurrency_safe()) == (True, False)
    assert isinstance(pay, ToolLike)


@pytest.mark.proves("GC-37", "GC-D15", "HC-31")
def test_a_tool_that_says_nothing_is_consequential_and_exclusive() -> None:
    assert (pay.read_only, pay.consequential, pay.concurrency_safe, pay.idempotent) == (False, True, False, False)
    assert (look.read_only, look.consequential) == (True, False)


def test_calling_a_tool_calls_its_function() -> None:
    assert pay("i-1", amount=3) == "paid 3 for i-1"
    assert asyncio.run(look("i-1")) == "looked at i-1"
    assert str(inspect.signature(pay)) == "(invoice: str, amount: int = 1) -> str"


def test_a_tool_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        pay.read_only = True


# Running


@pytest.mark.parametrize("payload", [{"invoice": "i-1"}, '{"invoice": "i-1"}', MappingProxyType({"invoice": "i-1"})])
@pytest.mark.proves("HC-05")
async def test_execute_validates_runs_and_takes_the_time(payload: Any) -> None:
    result = await pay.execute(payload, CONTEXT)

    assert (result.output, result.error) == ("paid 1 for i-1", None)
    assert (result.call_id, result.tool_name) == ("call_1", "pay")
    assert result.duration_ms > 0


@pytest.mark.parametrize("payload", [{}, {"invoice": 5}, {"invoice": "i-1", "amount": "much"}])
@pytest.mark.proves("HC-05", "GC-42")
async def test_arguments_that_do_not_fit_never_reach_the_handler(payload: dict[str, Any]) -> None:
    ran: list[str] = []

    @tool
    def spend(invoice: str, amount: int = 1) -> None:
        ran.append(invoice)

    result = await spend.execute(payload, CONTEXT)

    assert result.error is not None
    assert (result.error.code, result.error.retryable, result.call_id) == ("invalid_arguments", True, "call_1")
    assert ran == []


@pytest.mark.parametrize("payload", [["invoice"], None, 5])
async def test_a_payload_that_is_no_mapping_is_refused_with_the_reason(payload: Any) -> None:
    result = await pay.execute(payload, CONTEXT)

    assert result.error is not None
    assert result.error.code == "tool_args_parse_error"
    assert "must be a JSON object" in result.error.message


@pytest.mark.parametrize("payload", [{"invoice": object()}, {"invoice": "half \ud800"}, {"invoice": b"\xff"}])
async def test_a_payload_that_no_json_could_hold_is_refused_and_not_mended(payload: dict[str, Any]) -> None:
    result = await pay.execute(payload, CONTEXT)

    assert result.error is not None
    assert result.error.code == "tool_args_parse_error"


async def test_execute_runs_without_authorising() -> None:
    assert pay.permission_check is None

    assert (await pay.execute({"invoice": "i-1"}, CONTEXT)).ok


async def test_what_a_handler_raises_for_the_model_becomes_the_failure() -> None:
    @tool
    def closed() -> None:
        raise ToolError("The account is closed.", code="closed", retryable=True)

    error = (await closed.execute({}, CONTEXT)).error

    assert error is not None
    assert (error.code, error.message, error.retryable) == ("closed", "The account is closed.", True)


async def test_any_other_exception_of_a_handler_reaches_the_caller() -> None:
    @tool
    def broken() -> None:
        raise LookupError("no such row")

    with pytest.raises(LookupError, match="no such row"):
        await broken.execute({}, CONTEXT)


async def test_a_result_that_a_handler_makes_is_kept_and_gets_the_ids_of_its_call() -> None:
    @tool
    def report() -> ToolResult:
        return ToolResult(output="done", metadata={"rows": 3}, context=[1], call_id="forged", tool_name="forged")

    result = await report.execute({}, CONTEXT)

    assert (result.output, result.metadata, result.context) == ("done", {"rows": 3}, [1])
    assert (result.call_id, result.tool_name) == ("call_1", "report")


async def test_a_sync_handler_runs_in_a_thread_with_the_callers_context_variables() -> None:
    @tool
    def where() -> list[Any]:
        return [threading.current_thread() is threading.main_thread(), request_id.get()]

    request_id.set("r-1")

    assert (await where.execute({}, CONTEXT)).output == [False, "r-1"]


async def test_an_inline_handler_runs_where_the_loop_runs() -> None:
    @tool(inline=True)
    def where() -> bool:
        return threading.current_thread() is threading.main_thread()

    assert (await where.execute({}, CONTEXT)).output is True


async def test_an_async_handler_runs_in_the_loop() -> None:
    @tool
    async def where() -> bool:
        return asyncio.current_task() is task

    task = asyncio.current_task()

    assert (await where.execute({}, CONTEXT)).output is True


@pytest.mark.parametrize("inline", [False, True])
async def test_a_plain_function_around_a_coroutine_function_is_awaited(inline: bool) -> None:
    async def inner(number: int) -> int:
        await asyncio.sleep(0)
        return number + 1

    @functools.wraps(inner)
    def outer(*args: Any, **kwargs: Any) -> Any:
        return inner(*args, **kwargs)

    assert (await tool(inline=inline)(outer).execute({"number": 1}, CONTEXT)).output == 2


async def test_cancelling_is_not_swallowed() -> None:
    started = asyncio.Event()

    @tool
    async def waits() -> None:
        started.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(waits.execute({}, CONTEXT))
    await started.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


# Permission


@pytest.mark.proves("HC-D2", "HC-06")
async def test_a_tool_that_declares_no_check_is_refused_with_what_would_allow_it() -> None:
    with pytest.raises(PermissionError, match=r"`pay` may change something.*permission_check=…, or read_only=True"):
        await pay.check_permissions({"invoice": "i-1"}, CONTEXT)


@pytest.mark.proves("HC-D2", "HC-06")
async def test_a_read_only_tool_that_declares_no_check_may_go_ahead() -> None:
    assert await look.check_permissions({"invoice": "i-1"}, CONTEXT) is None


async def verdict_of(check: Callable[..., Any], payload: Any = '{"invoice": "i-1"}', **options: Any) -> None:
    made = tool(permission_check=check, **options)(pay.function)
    assert await made.check_permissions(payload, CONTEXT) is None


@pytest.mark.parametrize("verdict", [None, True])
@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.proves("HC-06")
async def test_a_check_that_returns_nothing_or_true_has_no_objection(verdict: Any, read_only: bool) -> None:
    async def later(arguments: dict[str, Any], context: ToolContext[Any]) -> Any:
        return verdict

    await verdict_of(lambda arguments, context: verdict, read_only=read_only)
    await verdict_of(later, read_only=read_only)


@pytest.mark.parametrize("verdict", [False, 0, 1, "", "denied", [], PermissionError("returned")])
@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.proves("HC-06")
async def test_any_other_verdict_refuses(verdict: Any, read_only: bool) -> None:
    async def later(arguments: dict[str, Any], context: ToolContext[Any]) -> Any:
        return verdict

    for check in (later, lambda arguments, context: verdict):
        with pytest.raises(PermissionDeniedError, match="The permission check of `pay` refused the call"):
            await verdict_of(check, read_only=read_only)


@pytest.mark.proves("HC-06")
async def test_a_permission_error_of_the_users_own_check_passes_on() -> None:
    def check(arguments: dict[str, Any], context: ToolContext[Any]) -> None:
        raise PermissionError(f"{context.session_id} may not pay {arguments['amount']}")

    with pytest.raises(PermissionError, match="s-1 may not pay 1") as caught:
        await verdict_of(check)
    assert type(caught.value) is PermissionError


async def test_a_check_sees_the_arguments_with_their_defaults() -> None:
    seen: list[dict[str, Any]] = []

    await verdict_of(lambda arguments, context: seen.append(arguments), '{"invoice": "i-1"}')

    assert seen == [{"invoice": "i-1", "amount": 1}]


async def test_a_check_is_not_asked_about_arguments_that_do_not_fit() -> None:
    for payload, error in (("{", ToolArgsParseError), ("{}", InvalidArgumentsError)):
        with pytest.raises(error):
            await verdict_of(lambda arguments, context: pytest.fail("asked"), payload)


# What a tool refuses to be


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": ""}, "name is 1 to 256 printable characters"),
        ({"name": " pay"}, "without spaces around them"),
        ({"name": "pay\n"}, "printable"),
        ({"name": "pay\ud800"}, "printable"),
        ({"name": "x" * 257}, "1 to 256"),
        ({"name": "mcp:pay"}, "cannot contain a colon"),
        ({"name": 5}, "A tool's name"),
        ({"description": 5}, "`pay`: description must be text"),
        ({"description": "half \ud800"}, "`pay`: description must be text"),
        ({"read_only": 1}, "`pay`: read_only must be True or False, not 1"),
        ({"concurrency_safe": "yes"}, "concurrency_safe must be True or False"),
        ({"idempotent": "no"}, "idempotent must be True or False"),
        ({"strict": 0}, "strict must be True or False"),
        ({"inline": "x"}, "inline must be True or False"),
        ({"timeout": 0}, "`pay`: timeout must be a positive number, not 0"),
        ({"timeout": True}, "timeout must be a positive number"),
        ({"timeout": float("nan")}, "timeout must be a positive number"),
        ({"timeout": "5"}, "timeout must be a positive number"),
        ({"max_output_chars": -1}, "max_output_chars must be a positive number"),
        ({"cache_for": 5}, "cache_for needs read_only=True"),
        ({"on_interrupt": "maybe"}, "on_interrupt must be one of cancel, finish, finish_silently, uninterruptible"),
        ({"key": "invoce"}, "key names `invoce`, but its arguments are: invoice, amount"),
        ({"lock_key": ["invoice", "desk"]}, "lock_key names `desk`"),
        ({"key": 5}, "key must be a list of str, not 5"),
        ({"tags": "money"}, "tags must be a list of str, not 'money'"),
        ({"tags": [1]}, "tags must be a list of str"),
        ({"examples": {"invoice": "i-1"}}, "examples must be a list of Mapping"),
        ({"examples": ["i-1"]}, "examples must be a list of Mapping"),
        ({"permission_check": True}, "permission_check must be a function, not True"),
        ({"verify": lambda: True}, "verify must take the arguments and the context"),
        ({"verify": lambda arguments: True}, "verify must take the arguments and the context"),
        ({"verify": "later"}, "verify must be a function"),
        ({"readonly": True}, "A tool has no option 'readonly'. Did you mean 'read_only'?"),
        ({"handler": print}, "A tool has no option 'handler'"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ToolDefinitionError) as caught:
        tool(**{"name": "pay", **options})(pay.function)

    assert message in str(caught.value)


def test_options_take_the_shapes_that_a_tool_holds() -> None:
    made = tool(key="invoice", lock_key=["invoice"], tags=["money", "money"], examples=[{"invoice": "i-1"}], timeout=5)(
        pay.function
    )

    assert (made.key, made.lock_key, made.tags) == (("invoice",), ("invoice",), frozenset({"money"}))
    assert (made.examples, made.timeout) == (({"invoice": "i-1"},), 5)


def test_an_option_that_is_none_is_left_out() -> None:
    made = tool(**dict.fromkeys(["name", "timeout", "tags", "metadata", "read_only"]))(pay.function)

    assert (made.name, made.timeout, made.tags, made.metadata, made.read_only) == ("pay", None, frozenset(), {}, False)

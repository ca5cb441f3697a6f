"""One tool in one line: the real line, with a test as the authority."""

import asyncio
import threading
from typing import Any

import pytest
from hypothesis import given

from handrail import ConfigError, LLMFunctionTool, ToolContext, ToolError, ToolResult, build_tool, tool
from handrail.testing import run_tool, run_tool_async
from tests.testing.kit import JSON


@tool
def pay(amount: int, currency: str = "EUR") -> str:
    """Pay an amount."""
    if amount > 100:
        raise ToolError("Too much.", code="too_much")
    return f"paid {amount} {currency}"


@pytest.mark.parametrize("given", [{"amount": 5}, '{"amount": 5}'], ids=["a mapping", "a text"])
def test_arguments_are_a_mapping_or_the_text_of_a_model(given: Any) -> None:
    assert run_tool(pay, given).output == "paid 5 EUR"


def test_arguments_are_keywords() -> None:
    result = run_tool(pay, amount=5, currency="CHF")

    assert (result.output, result.tool_name, result.call_id) == ("paid 5 CHF", "pay", "call_1")


def test_a_tool_without_arguments_needs_none() -> None:
    ping = build_tool({"name": "ping", "input_schema": {}, "execute": lambda arguments, context: "pong"})

    assert run_tool(ping).output == "pong"


def test_a_class_is_a_tool_too() -> None:
    class greet(LLMFunctionTool[Any, Any]):
        """Greet somebody."""

        name: str

        async def model_tool_handler(self, context: Any) -> tuple[str, None]:
            return f"Hello {self.name}", None

    assert run_tool(greet, name="Ann").output == "Hello Ann"


def test_an_error_for_the_model_is_in_the_result() -> None:
    error = run_tool(pay, amount=101).error

    assert error is not None
    assert (error.code, error.message) == ("too_much", "Too much.")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"amount": "x"}, "invalid_arguments"),
        ({"amount": 1, "to": "me"}, "invalid_arguments"),
        ("{", "tool_args_parse_error"),
        ('{"amount": NaN}', "tool_args_parse_error"),
        ({"amount": float("nan")}, "tool_args_parse_error"),
    ],
)
def test_arguments_are_validated_as_those_of_a_model_are(arguments: Any, code: str) -> None:
    error = run_tool(pay, arguments).error

    assert error is not None
    assert error.code == code


def test_the_permission_check_of_the_tool_still_counts() -> None:
    def refuse(arguments: dict[str, Any], context: ToolContext[Any]) -> None:
        raise PermissionError("Not today.")

    @tool(permission_check=refuse)
    def close() -> None:
        """Close the account."""
        raise AssertionError("it ran")

    error = run_tool(close).error

    assert error is not None
    assert error.code == "permission_denied"


def test_the_context_has_the_deps_and_a_customer_who_is_in_the_first_turn() -> None:
    @tool
    def who(context: ToolContext[list[str]]) -> list[Any]:
        """Who is there."""
        return [context.session_id, context.customer_id, context.turn, context.deps]

    assert run_tool(who, deps=["bank"]).output == ["test", "customer", 1, ["bank"]]
    assert run_tool(who, context=ToolContext(session_id="s", deps=["mine"])).output == ["s", None, 0, ["mine"]]
    assert run_tool(who).output == ["test", "customer", 1, None]


def test_secrets_come_with_the_context() -> None:
    @tool(read_only=True)
    def key_length(context: ToolContext[None]) -> int:
        """How long the key is."""
        return len(context.secrets["key"])

    assert run_tool(key_length, context=ToolContext(session_id="s", secrets={"key": "12345"})).output == 5


def test_two_runs_have_nothing_to_do_with_each_other() -> None:
    seen: list[int] = []

    @tool
    def count() -> int:
        """Count."""
        seen.append(1)
        return len(seen)

    assert [run_tool(count).output, run_tool(count).output] == [1, 2]


def test_arguments_that_are_called_like_ours_go_into_a_mapping() -> None:
    named = build_tool(
        {
            "name": "named",
            "input_schema": {"type": "object", "properties": {"deps": {}, "arguments": {}, "tool": {}}},
            "execute": lambda arguments, context: arguments,
        }
    )

    assert run_tool(named, {"deps": 1}).output == {"deps": 1}
    assert run_tool(named, arguments=2, tool=3).output == {"arguments": 2, "tool": 3}


async def test_an_async_test_awaits_the_async_form() -> None:
    @tool
    async def slow(amount: int) -> int:
        """Slow."""
        await asyncio.sleep(0)
        return amount

    assert (await run_tool_async(slow, amount=5)).output == 5
    assert (await run_tool_async(slow, {"amount": 6})).output == 6


async def test_the_sync_form_in_an_async_test_says_what_to_write() -> None:
    with pytest.raises(ConfigError, match="await run_tool_async"):
        run_tool(pay, amount=1)


def test_the_current_loop_of_the_test_stays_as_it_is_and_no_thread_is_left_waiting_for_more() -> None:
    mine = asyncio.new_event_loop()
    before = _portals()
    asyncio.set_event_loop(mine)
    try:
        run_tool(pay, amount=1)

        assert asyncio.get_event_loop() is mine
        assert _portals() == before
    finally:
        asyncio.set_event_loop(None)
        mine.close()


def _portals() -> int:
    return sum(item.name == "handrail-portal" for item in threading.enumerate())


@pytest.mark.parametrize(
    ("arguments", "options", "why"),
    [
        ({"amount": 1}, {"amount": 2}, "either as keywords or as one mapping"),
        ("{}", {"amount": 2}, "either as keywords or as one mapping"),
        ({"amount": object()}, {}, "must be JSON values"),
        ({"amount": 1}, {"deps": 1, "context": ToolContext(session_id="s")}, "not both"),
    ],
)
def test_what_cannot_be_meant_is_an_error_for_the_developer(arguments: Any, options: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        run_tool(pay, arguments, **options)


@given(value=JSON)
def test_any_json_arrives_as_it_was_given(value: Any) -> None:
    echo = build_tool(
        {
            "name": "echo",
            "read_only": True,
            "input_schema": {"type": "object", "properties": {"value": {}}},
            "execute": lambda arguments, context: ToolResult(context=arguments["value"]),
        }
    )

    assert run_tool(echo, value=value).context == value

"""What the tests of cassettes share: tools, and short ways to record and to replay them."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from handrail import (
    Tool,
    ToolContext,
    ToolError,
    ToolResult,
    tool,
)
from handrail.providers import ModelRequest, UserMessage
from handrail.testing import Cassette, run_tool

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)

CANARY = "canary-7f3a-Zx"
HERE = ToolContext(session_id="s", turn=1)
ASKED = ModelRequest(messages=[UserMessage(text="Hi.")])


def recorded(path: Path, tools: list[Any], *calls: tuple[str, dict[str, Any]], **options: Any) -> list[ToolResult]:
    """Run calls for real, and record them."""
    with Cassette(path, mode="record", **options) as cassette:
        return _run(cassette.tools(tools), calls)


def replayed(path: Path, tools: list[Any], *calls: tuple[str, dict[str, Any]], **options: Any) -> list[ToolResult]:
    """Answer calls from the file, with handlers that would end the process."""
    with Cassette(path, **options) as cassette:
        return _run(cassette.tools([deadly(item) for item in tools]), calls)


def _run(tools: list[Tool[..., Any]], calls: Any) -> list[ToolResult]:
    by_name = {item.name: item for item in tools}
    return [run_tool(by_name[name], arguments) for name, arguments in calls]


def deadly(one: Tool[..., Any]) -> Tool[..., Any]:
    """The same tool with a handler, a function and a `verify` that nothing survives."""

    def die(*args: Any, **kwargs: Any) -> Any:
        os._exit(97)

    async def die_async(*args: Any) -> Any:
        os._exit(97)

    handler: Callable[..., Any] = die_async if one.is_async else die
    return replace(one, handler=handler, function=die, verify=die if one.verify else None)


def shown(result: ToolResult) -> Any:
    return result.output, result.error, dict(result.metadata), result.control


@tool(read_only=True)
async def balance(account: str = "main") -> dict[str, Any]:
    """How much is there."""
    return {"z": 1, "account": account, "amount": 100}


@tool
def pay(amount: int) -> str:
    """Pay an amount."""
    if amount > 100:
        raise ToolError("Too much.", code="too_much", retryable=True)
    if amount < 0:
        raise ZeroDivisionError("the bank is broken")
    return f"paid {amount}"


@tool(read_only=True)
def counter(step: int = 1) -> int:
    """Count."""
    counted.append(step)
    return len(counted)


counted: list[int] = []


def call_and_raise(cassette: Cassette, error: type[BaseException]) -> None:
    """A test that fails after a call."""
    with cassette:
        run_tool(cassette.tools([pay])[0], amount=6)
        raise error

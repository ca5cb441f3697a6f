"""Results that must not be thrown away; in a file of its own, because the rule would forbid every `assert_type` too."""

# pyright: reportUnusedCallResult=error

from typing import Any

from handrail import Tool, ToolRegistry


def the_harness_sees_a_discarded_result(names: list[str]) -> None:
    sorted(names)  # E: reportUnusedCallResult


def a_registry_that_is_thrown_away_is_an_error(registry: ToolRegistry, pay: Tool[..., Any]) -> ToolRegistry:
    registry.register(pay)  # E: reportUnusedCallResult
    registry.select("pay")  # E: reportUnusedCallResult
    return registry.register(pay)

"""Arguments that are not of the declared type, and the parser that follows the flags of a tool."""

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel

from handrail import InvalidArgumentsError, LLMFunctionTool, ToolArgsParseError, ToolDefinitionError, as_tool, tool


class Line(BaseModel):
    count: int


@tool
def pay(amount: int, urgent: bool = False, lines: list[Line | str] | None = None, total: Decimal | None = None) -> str:
    """Pay."""
    return "paid"


@tool(read_only=True)
def look(amount: int, urgent: bool = False) -> str:
    """Look."""
    return ""


class Refund(LLMFunctionTool):
    """Refund."""

    amount: int

    def model_tool_handler(self, context: Any) -> tuple[str, None]:
        return "refunded", None


WRONG = ['{"amount": true}', '{"amount": "1_000"}', '{"amount": "5"}', '{"amount": 1, "urgent": "yes"}']


@pytest.mark.parametrize("text", [*WRONG, '{"amount": 3.5}', '{"amount": 1, "lines": [{"count": "2"}]}'])
def test_a_consequential_tool_converts_nothing(text: str) -> None:
    with pytest.raises(InvalidArgumentsError):
        pay.parse(text)


def test_a_whole_float_is_an_integer_also_inside_of_a_union() -> None:
    parsed = pay.parse('{"amount": 3.0, "lines": [{"count": 2.0}, "x"], "total": "12345678901234567890.10"}')

    assert parsed["amount"] == 3
    assert type(parsed["amount"]) is int
    assert parsed["lines"] == [Line(count=2), "x"]
    assert parsed["total"] == Decimal("12345678901234567890.10")


@pytest.mark.parametrize("text", ['{"amount": "5"}', '{"amount": 5, "urgent": "yes"}'])
def test_coerce_and_read_only_convert(text: str) -> None:
    assert replace(pay, coerce=True).parse(text)["amount"] == 5
    assert look.parse(text)["amount"] == 5


def test_the_parser_follows_the_flag() -> None:
    ambiguous, text = '{"amount": 1, "amount": 2}', '{"amount": "5"}'
    assert look.parse(ambiguous)["amount"] == 2

    consequential = replace(look, read_only=False)

    with pytest.raises(ToolArgsParseError):
        consequential.parse(ambiguous)
    with pytest.raises(InvalidArgumentsError):
        consequential.parse(text)
    assert replace(consequential, read_only=True).parse(text)["amount"] == 5


def test_a_parser_of_your_own_stays() -> None:
    changed = replace(pay, parse=lambda text: {"amount": 7})

    assert replace(changed, read_only=True).parse("") == {"amount": 7}


def test_a_class_is_strict_for_an_executor_and_lenient_for_the_facade() -> None:
    with pytest.raises(InvalidArgumentsError):
        as_tool(Refund).parse('{"amount": "5"}')
    assert Refund.model_tool_validate_tool_call("Refund", '{"amount": "5"}').amount == 5


def test_coerce_must_be_a_bool() -> None:
    with pytest.raises(ToolDefinitionError, match="coerce"):
        tool(name="x", coerce=1)(lambda: None)  # pyright: ignore[reportArgumentType]

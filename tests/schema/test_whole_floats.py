"""Integers that arrive as floats: exact ones are taken, and one that may be another number is refused."""

import pytest

from handrail import Tool, ToolError, build_tool, tool


@tool
async def by_signature(n: int) -> str:
    """Take a number."""
    return str(n)


by_schema = build_tool(
    {
        "name": "by_schema",
        "description": "Take a number.",
        "input_schema": {"type": "object", "properties": {"n": {"type": "integer"}}},
        "execute": lambda arguments, context: str(arguments["n"]),
    }
)
both = pytest.mark.parametrize("taken", [by_signature, by_schema], ids=["signature", "schema"])


@both
@pytest.mark.parametrize(("text", "number"), [("5.0", 5), ("-3.0", -3), ("9007199254740991.0", 2**53 - 1)])
def test_a_whole_float_that_is_exact_is_an_integer(taken: Tool[..., object], text: str, number: int) -> None:
    assert taken.dump(taken.parse(f'{{"n": {text}}}')) == {"n": number}


@both
@pytest.mark.parametrize("text", ["9007199254740993.0", "9007199254740992.0", "-9007199254740993.0", "1e20"])
def test_a_float_that_may_be_another_integer_is_refused(taken: Tool[..., object], text: str) -> None:
    """9007199254740993.0 is read as 9007199254740992: another amount than the one that was sent."""
    with pytest.raises(ToolError, match="The arguments are not valid"):
        taken.parse(f'{{"n": {text}}}')


@both
def test_an_integer_of_any_length_is_taken(taken: Tool[..., object]) -> None:
    assert taken.dump(taken.parse('{"n": 9007199254740993}')) == {"n": 9007199254740993}

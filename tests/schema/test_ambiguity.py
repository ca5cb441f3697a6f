"""A tool with consequences acts on no JSON that two readers understand differently."""

import json
import math
from dataclasses import replace
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from handrail import (
    InvalidArgumentsError,
    LLMFunctionTool,
    Tool,
    ToolArgsParseError,
    ToolError,
    ToolFlags,
    as_tool,
    build_tool,
    tool,
)
from handrail.schema.arguments import find_non_finite, refuse_ambiguous

SCHEMA = {
    "type": "object",
    "properties": {"amount": {"type": "number"}, "note": {"type": "string"}, "parts": {"type": "array"}},
}


def a_function(read_only: bool) -> Tool[..., Any]:
    @tool(read_only=read_only)
    def pay(amount: float = 0.0, note: str = "", parts: list[Any] | None = None) -> None: ...

    return pay


def a_class(read_only: bool) -> Tool[..., Any]:
    class Pay(LLMFunctionTool):
        model_tool_flags = ToolFlags(read_only=read_only)
        amount: float = 0.0
        note: str = ""
        parts: list[Any] | None = None

        def model_tool_handler(self, context: None) -> tuple[str, None]:
            return "", None

    return as_tool(Pay)


def a_mapping(read_only: bool) -> Tool[..., Any]:
    return build_tool({"name": "pay", "input_schema": SCHEMA, "execute": lambda payload: 1, "read_only": read_only})


KINDS = pytest.mark.parametrize("kind", [a_function, a_class, a_mapping])


def value_of(arguments: Any, name: str) -> Any:
    return arguments[name] if isinstance(arguments, dict) else getattr(arguments, name)


@KINDS
@pytest.mark.parametrize(
    "text",
    [
        '{"amount": 1, "amount": 2}',
        '{"amount": 1, "\\u0061mount": 2}',
        '{"parts": [{"a": 1, "b": 2, "a": 3}]}',
        '{"parts": [[[{"": 1, "": 2}]]]}',
    ],
)
@pytest.mark.proves("GC-41")
def test_a_key_that_appears_twice_is_refused_where_it_matters(kind: Any, text: str) -> None:
    with pytest.raises(ToolArgsParseError, match=r"the key '(a|amount|)' appears twice"):
        kind(read_only=False).parse(text)

    last = json.loads(text)
    arguments = kind(read_only=True).parse(text)
    for name, value in last.items():
        assert value_of(arguments, name) == value


@KINDS
@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1E+999"])
@pytest.mark.parametrize("text", ['{{"amount": {}}}', '{{"parts": [1, [{}]]}}', '{{"parts": [{{"a": {}}}]}}'])
@pytest.mark.proves("GC-41")
def test_a_number_that_is_not_finite_is_refused_where_it_matters(kind: Any, number: str, text: str) -> None:
    with pytest.raises(ToolArgsParseError, match=r"is not a JSON number|is out of range"):
        kind(read_only=False).parse(text.format(number))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", '"nan"'])
def test_a_read_only_function_gets_such_a_number_only_if_its_parameter_allows_it(number: str) -> None:
    @tool(read_only=True)
    def look(amount: Annotated[float, Field(allow_inf_nan=True)], other: float = 0.0) -> str:
        """Look."""
        return ""

    assert not math.isfinite(value_of(look.parse(f'{{"amount": {number}}}'), "amount"))
    with pytest.raises(InvalidArgumentsError, match="finite number"):
        look.parse(f'{{"amount": 1, "other": {number}}}')


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
def test_a_read_only_class_gets_such_a_number_if_its_model_lets_it_through(number: str) -> None:
    arguments = a_class(read_only=True).parse(f'{{"amount": {number}}}')

    assert not math.isfinite(value_of(arguments, "amount"))


@KINDS
@pytest.mark.parametrize(
    "sent", ['"NaN"', '"nan"', '"Infinity"', '" -inf "', '"1e999"', '"i_nf"', '"\\u006ean"', "9" * 400]
)
@pytest.mark.proves("GC-41")
def test_a_text_that_would_become_such_a_number_is_refused_too(kind: Any, sent: str) -> None:
    if kind is a_mapping and sent.isdigit():
        assert kind(read_only=False).parse(f'{{"amount": {sent}}}') == {"amount": int(sent)}
        return

    with pytest.raises(InvalidArgumentsError, match=r"amount: (must|input should) be (a finite|of type) number"):
        replace(kind(read_only=False), coerce=True).parse(f'{{"amount": {sent}}}')


@KINDS
def test_a_text_that_is_only_a_text_may_say_nan(kind: Any) -> None:
    arguments = kind(read_only=False).parse('{"note": "NaN", "parts": ["inf", "1e999"]}')

    assert value_of(arguments, "note") == "NaN"
    assert value_of(arguments, "parts") == ["inf", "1e999"]


def test_a_default_of_infinity_is_the_functions_own_business() -> None:
    @tool(read_only=True)
    def search(text: str, most: float = math.inf, others: tuple[float, ...] = (math.nan,)) -> None: ...

    assert search.parse('{"text": "nan"}')["most"] == math.inf

    @tool(coerce=True)
    def order(text: str, others: tuple[float, ...] = ()) -> None: ...

    with pytest.raises(InvalidArgumentsError, match=r"others\[1\]: input should be a finite number"):
        order.parse('{"text": "", "others": [1, "nan"]}')


@pytest.mark.timeout(120)
def test_a_hundred_thousand_keys_are_no_burden() -> None:
    keys = [f'"k{number}": 1' for number in range(100_000)]

    with pytest.raises(ToolArgsParseError, match="the key 'k99999' appears twice"):
        refuse_ambiguous("{" + ", ".join([*keys, keys[-1]]) + "}")
    refuse_ambiguous("{" + ", ".join(keys) + "}")


@pytest.mark.parametrize("text", ["[" * 1_000_000, '{"a":' * 200_000, "[" * 500_000 + "]" * 500_000])
def test_deep_nesting_is_a_result_and_not_a_crash(text: str) -> None:
    with pytest.raises(ToolArgsParseError, match="nested too deeply"):
        refuse_ambiguous(text)


def test_a_number_of_too_many_digits_is_reported_without_the_text_of_python() -> None:
    with pytest.raises(ToolArgsParseError, match="a number has more than 4,300 digits"):
        refuse_ambiguous('{"a": -' + "9" * 4_301 + "}")
    refuse_ambiguous('{"a": -' + "9" * 4_300 + "}")


plain_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
objects = st.dictionaries(st.text(max_size=5), plain_json, max_size=4)


@given(value=objects)
def test_plain_json_is_not_ambiguous(value: Any) -> None:
    refuse_ambiguous(json.dumps(value))

    assert list(find_non_finite(value)) == []


@given(before=objects, key=st.text(max_size=5), after=objects, again=plain_json)
def test_any_key_given_twice_is_found(before: dict[str, Any], key: str, after: dict[str, Any], again: Any) -> None:
    value = json.dumps(before | {key: 1} | after)
    text = f"{value[:-1]}, {json.dumps(key)}: {json.dumps(again)}}}"

    with pytest.raises(ToolArgsParseError, match="appears twice"):
        refuse_ambiguous(text)


@given(text=st.text())
def test_any_text_is_refused_or_not_and_nothing_else_happens(text: str) -> None:
    try:
        refuse_ambiguous(text)
    except ToolError as error:
        str(error).encode()
    else:
        json.loads(text)

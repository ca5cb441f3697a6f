"""What a model sends in strict mode comes back as the tool accepts it, and nothing else changes on the way."""

import json
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from handrail import InvalidArgumentsError, Tool, ToolArgsParseError, ToolCall, build_tool, tool
from handrail.formats import anthropic, openai_responses


def came_back(one: Tool[..., Any], text: str, wire: Any = openai_responses) -> str:
    call = ToolCall(id="1", name=one.name, arguments_json=text)
    definitions = wire.tools([one])
    assert definitions[0]["strict"] is True
    return definitions.decode(call).arguments_json


class Payment(BaseModel):
    amount: Annotated[int, Field(ge=0)] = 1
    note: str = ""


@tool(strict=True)
def pay(payment: Payment, tip: float = 0.5) -> str:
    return ""


@pytest.mark.parametrize(
    ("from_model", "for_tool"),
    [
        ('{"payment":{"amount":null,"note":null},"tip":null}', '{"payment":{}}'),
        ('{"payment":{"amount":3,"note":"ü"},"tip":null}', '{"payment":{"amount":3,"note":"ü"}}'),
        ('{"payment":{"amount":1,"note":"x"},"tip":2}', '{"payment":{"amount":1,"note":"x"},"tip":2}'),
    ],
)  # fmt: skip
def test_null_is_turned_back_and_the_rest_stays_as_the_model_wrote_it(from_model: str, for_tool: str) -> None:
    assert came_back(pay, from_model) == for_tool


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no JSON",
        "[null]",
        "null",
        '{"payment":{"amount":1,"amount":2},"tip":null}',
        '{"tip":NaN,"payment":null}',
        '{"tip":1e999,"payment":null}',
        '{"payment":' + "[" * 100_000,
        '{"payment":' * 500 + "1" + "}" * 500,
        '{"payment":{"amount":null,"note":',
        '{"unknown":null,"payment":{}}',
    ],
    ids=lambda text: text[:20],
)
def test_text_that_has_no_way_back_is_left_for_the_tools_own_parser(text: str) -> None:
    assert came_back(pay, text) == text
    with pytest.raises((ToolArgsParseError, InvalidArgumentsError)):
        pay.parse(came_back(pay, text))


@pytest.mark.proves("GC-41")
def test_a_key_that_appears_twice_is_refused_on_the_way_back_too() -> None:
    with pytest.raises(ToolArgsParseError, match="appears twice"):
        pay.parse(came_back(pay, '{"payment":{},"tip":null,"tip":3}'))


def test_half_a_character_is_still_refused_on_the_way_back() -> None:
    text = came_back(pay, '{"payment":{"amount":null,"note":"\\ud800"},"tip":null}')

    assert text.encode()
    with pytest.raises(ToolArgsParseError):
        pay.parse(text)


names = st.sampled_from(["payment", "amount", "note", "tip"]) | st.text()
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(names, inner),
)


@given(anything)
def test_no_response_of_a_model_breaks_the_way_back(value: Any) -> None:
    text = json.dumps(value)
    decoded = came_back(pay, text)
    if not isinstance(value, dict):  # There is no way back for it.
        assert decoded == text
    elif decoded != text:  # Only what strict mode had to add is gone.
        before = json.loads(text)
        assert set(json.loads(decoded)) <= {name.removesuffix("?") for name in before}


class Add(BaseModel):
    left: "Expression"
    op: Literal["add"] = "add"
    times: int = 1


class Neg(BaseModel):
    left: "Expression"
    op: Literal["neg"] = "neg"
    times: int = 1


class Leaf(BaseModel):
    op: Literal["leaf"] = "leaf"
    value: int


Expression = Annotated[Add | Neg | Leaf, Field(discriminator="op")]


@tool(strict=True, read_only=True)
def evaluate(expression: Expression) -> str:
    return ""


def test_a_deep_union_is_not_looked_into_twice() -> None:
    value: Any = {"op": "leaf", "value": 1}
    for level in range(60):
        value = {"left": value, "times": None, "op": "add" if level % 2 else "neg"}

    found = evaluate.parse(came_back(evaluate, json.dumps({"expression": value})))["expression"]

    depth = 0
    while not isinstance(found, Leaf):
        found, depth = found.left, depth + 1
    assert depth == 60


def test_a_union_nested_beyond_reason_is_left_for_the_tools_own_parser() -> None:
    text = '{"expression":' + '{"op":"neg","times":null,"left":' * 450 + '{"op":"leaf","value":1}' + "}" * 451

    assert came_back(evaluate, text) == text
    with pytest.raises(ToolArgsParseError):
        evaluate.parse(text)


class Given(BaseModel):
    x: int | None


class Assumed(BaseModel):
    x: int = 1


class Named(BaseModel):
    x: str | None


@pytest.mark.parametrize("union", [Given | Assumed, Assumed | Given, Named | Assumed, Assumed | Named], ids=str)
def test_a_union_in_which_null_could_mean_two_things_is_not_strict(union: Any) -> None:
    @tool(strict=True)
    def take(value: union) -> str:
        return ""

    definitions = openai_responses.tools([take])
    assert definitions[0]["strict"] is False
    assert (
        definitions.notes[0].text == "is sent without strict mode: value is a union whose branches cannot be told apart"
    )


def test_a_union_in_which_null_means_one_thing_is_strict() -> None:
    @tool(strict=True)
    def take(value: Named | Given | list[Assumed]) -> str:
        return ""

    assert take.parse(came_back(take, '{"value":[{"x":null}]}')) == {"value": [Assumed(x=1)]}
    assert take.parse(came_back(take, '{"value":{"x":null}}')) == {"value": Named(x=None)}


def test_a_raw_schema_of_a_read_only_tool_goes_the_same_way() -> None:
    schema = {"type": "object", "properties": {"limit": {"type": "integer"}}, "additionalProperties": False}
    listing = build_tool(
        {"name": "list", "input_schema": schema, "execute": lambda payload: "", "read_only": True, "strict": True}
    )
    (definition,) = openai_responses.tools([listing])
    assert definition["parameters"]["properties"]["limit"] == {"type": ["integer", "null"]}
    assert listing.parse(came_back(listing, '{"limit":null}')) == {}


def test_a_number_keeps_all_of_its_digits() -> None:
    text = came_back(pay, '{"payment":{"amount":12345678901234567.89,"note":null},"tip":1.10}')

    assert text == '{"payment":{"amount":12345678901234567.89},"tip":1.10}'


# Anthropic may answer with other capitals than those of the schema.


class Cat(BaseModel):
    kind: Literal["Cat"]
    color: Literal["Red", "BLUE"]


class Dog(BaseModel):
    kind: Literal["Dog"]
    color: Literal["red", "RED", "Blue"]


@tool(strict=True)
def adopt(
    pet: Cat | Dog,
    home: Literal["City", "Farm"],
    others: list[Literal["A", "b"]] | None = None,
    name: Literal["Rex"] | str = "",
) -> str:
    return ""


@pytest.mark.parametrize(
    ("from_model", "for_tool"),
    [
        ({"home": "CITY"}, {"home": "City"}),
        ({"home": "City"}, {"home": "City"}),
        ({"home": "Village"}, {"home": "Village"}),
        ({"others": ["a", "B"]}, {"others": ["A", "b"]}),
        ({"others": ["a", "c"]}, {"others": ["a", "c"]}),
        ({"pet": {"kind": "cat", "color": "red"}}, {"pet": {"kind": "Cat", "color": "Red"}}),
        ({"pet": {"kind": "DOG", "color": "blue"}}, {"pet": {"kind": "Dog", "color": "Blue"}}),
        ({"pet": {"kind": "Dog", "color": "Red"}}, {"pet": {"kind": "Dog", "color": "Red"}}),
        ({"pet": {"kind": "bird"}}, {"pet": {"kind": "bird"}}),
        ({"name": "REX"}, {"name": "REX"}),
    ],
)
def test_a_fixed_value_gets_its_own_spelling_back_where_only_one_can_be_meant(from_model: Any, for_tool: Any) -> None:
    assert json.loads(came_back(adopt, json.dumps(from_model), anthropic)) == for_tool


def test_a_tool_without_fixed_texts_needs_no_way_back_from_anthropic() -> None:
    @tool(strict=True)
    def add(a: int, b: int = 0) -> str:
        return ""

    assert came_back(add, '{"a": 1}', anthropic) == '{"a": 1}'

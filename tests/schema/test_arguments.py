"""Between JSON text and validated arguments: what goes in, what a handler sees, what keys and policies see."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, RootModel, TypeAdapter

from handrail import InvalidArgumentsError, ToolArgsParseError, ToolContext, tool
from handrail.schema.arguments import build_from_annotations
from handrail.schema.pydantic_schema import build_output_schema


class Colour(Enum):
    RED = "red"


class Line(BaseModel):
    sku: str = Field(alias="SKU")
    count: int = 1
    children: list["Line"] = []


FIELDS: dict[str, Any] = {
    "colour": Colour,
    "day": date,
    "lines": list[Line],
    "size": Annotated[Literal["S", "M"] | None, Field(default=None)],
    "share": Annotated[float, Field(default=0.5, ge=0, le=1)],
}


class Trip(BaseModel):
    day: date = Field("2000-01-01", validate_default=True)  # pyright: ignore[reportArgumentType]
    stops: list[date] = Field(["2000-01-01"], validate_default=True)  # pyright: ignore[reportArgumentType]
    seats: int = 1


def test_a_nested_default_is_converted_and_a_nested_value_that_was_sent_is_not() -> None:
    parse = build_from_annotations({"trips": list[Trip]}).build_parsers().strict

    assert parse('{"trips": [{}]}')["trips"][0].day == date(2000, 1, 1)
    for trip in ({"seats": "2"}, {"day": 1}, {"stops": [1]}, "1"):
        with pytest.raises(InvalidArgumentsError):
            parse(json.dumps({"trips": [trip]}))


class Price(BaseModel, extra="forbid"):
    amount: Decimal = Field("0.0000", validate_default=True)  # pyright: ignore[reportArgumentType]


class Owner(BaseModel):
    owner: str


def test_a_default_in_a_branch_of_a_union_is_converted_and_a_value_that_was_sent_is_not() -> None:
    parse = build_from_annotations({"one": Owner | Price | None}).build_parsers().strict

    assert parse('{"one": {}}') == {"one": Price()}
    for item in ({"amount": True}, {"owner": 1}, {"owner": 1, "amount": False}):
        with pytest.raises(InvalidArgumentsError):
            parse(json.dumps({"one": item}))


class Tags(BaseModel):
    tags: set[int] = Field(alias="TAGS")
    more: int


class RootTags(RootModel[set[int]]):
    pass


@dataclass(slots=True)
class TagsOfADataclass:
    more: int
    tags: set[int]


def turn_lists(value: Any) -> Any:
    """A JSON value with its lists in the opposite order, but for lists of lists."""
    if isinstance(value, dict):
        return {name: turn_lists(child) for name, child in value.items()}
    if isinstance(value, list):
        return [turn_lists(child) for child in value] if isinstance(value[0], list) else value[::-1]
    return value


class Leg(BaseModel, frozen=True):
    number: int
    seats: tuple[int, ...] = Field([1], validate_default=True)  # pyright: ignore[reportArgumentType]


def test_a_default_in_a_set_is_refused_before_it_takes_the_value_of_its_neighbour() -> None:
    parse = build_from_annotations({"legs": frozenset[Leg]}).build_parsers().strict

    assert parse('{"legs": [{"number": 2}]}')["legs"] == {Leg(number=2)}
    with pytest.raises(InvalidArgumentsError):
        parse('{"legs": [{"number": 3, "seats": [3]}, {"number": 2}]}')


SETS = [
    (set[int], [3, 11]),
    (frozenset[int], [11, 3]),
    (list[set[int]], [[3, 11], [11, 3]]),
    (dict[str, frozenset[int]], {"a": [3, 11]}),
    (set[frozenset[int]], [[3, 11], [5, 13]]),
    (Tags, {"TAGS": [3, 11], "more": 1}),
    (RootTags, [11, 3]),
    (TagsOfADataclass, {"more": 1, "tags": [11, 3]}),
]
"""Types with a set in them, and a value whose sets have an order in which Python keeps the items of the first set."""


@pytest.mark.parametrize(("annotation", "default"), SETS)
def test_a_set_has_one_form_and_its_default_is_valid_however_python_orders_it(annotation: Any, default: Any) -> None:
    """3 and 11 collide in a small set, so that their order is that of insertion, as with strings and a hash seed."""
    sent = build_from_annotations({"value": annotation})
    texts = [json.dumps({"value": value}) for value in (default, turn_lists(default))]

    one, other = (sent.dump(sent.build_parsers().strict(text)) for text in texts)

    assert json.dumps(one) == json.dumps(other)
    omitted = build_from_annotations({"value": Annotated[annotation, Field(default=default, validate_default=True)]})
    assert omitted.dump(omitted.build_parsers().strict("{}")) == one


def test_a_list_keeps_its_order_beside_a_set() -> None:
    arguments = build_from_annotations({"tags": set[int], "order": list[int]})

    assert arguments.dump(arguments.parse('{"tags": [11, 3], "order": [11, 3]}')) == {"tags": [3, 11], "order": [11, 3]}


def test_arguments_are_parsed_into_types_and_dumped_into_what_was_sent() -> None:
    arguments = build_from_annotations(FIELDS)
    sent = {"colour": "red", "day": "2030-01-02", "lines": [{"SKU": "a", "children": [{"SKU": "b"}]}]}

    parsed = arguments.parse(json.dumps(sent))

    assert (parsed["colour"], parsed["day"], parsed["size"], parsed["share"]) == (
        Colour.RED,
        date(2030, 1, 2),
        None,
        0.5,
    )
    assert parsed["lines"][0].children[0].sku == "b"
    assert arguments.dump(parsed) == {
        "colour": "red",
        "day": "2030-01-02",
        "lines": [{"SKU": "a", "count": 1, "children": [{"SKU": "b", "count": 1, "children": []}]}],
        "size": None,
        "share": 0.5,
    }
    assert arguments.parse(json.dumps(arguments.dump(parsed))) == parsed


def test_the_schema_is_without_the_titles_that_say_nothing() -> None:
    schema = build_from_annotations(FIELDS).input_schema

    jsonschema_rs.meta.validate(schema)
    assert '"title"' not in json.dumps(schema)
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["colour", "day", "lines"]


@pytest.mark.proves("PH-44")
@pytest.mark.parametrize("text", ["", "{}", " {} "])
def test_empty_text_means_no_arguments(text: str) -> None:
    open_to_all = build_from_annotations({"size": Annotated[int, Field(default=3)]})

    assert open_to_all.parse(text) == {"size": 3}
    assert open_to_all.build_parsers().strict(text) == {"size": 3}


def test_arguments_that_are_not_closed_pass_over_what_they_do_not_know() -> None:
    assert build_from_annotations({"a": int}, forbid_extra=False).parse('{"a": 1, "b": 2}') == {"a": 1}
    with pytest.raises(InvalidArgumentsError):
        build_from_annotations({"a": int}).parse('{"a": 1, "b": 2}')


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (None, None),
        (str, None),
        (Any, None),
        (object, None),
        (type(None), None),
        (Callable[[], int], None),
        (ToolContext, None),
        (int, {"type": "integer"}),
        (list[date], {"type": "array", "items": {"type": "string", "format": "date"}}),
        ("NotDefined", None),
    ],
)
def test_the_output_schema_is_sent_where_it_says_something(annotation: Any, schema: Any) -> None:
    assert build_output_schema(annotation) == schema


# What a handler sees

HINTS: dict[str, tuple[Any, type | tuple[type, ...]]] = {
    "number": (int, int),
    "share": (float, float),
    "flag": (bool, bool),
    "text": (str, str),
    "maybe": (int | None, (int, type(None))),
    "words": (list[str], list),
    "scores": (dict[str, int], dict),
    "colour": (Colour, Colour),
    "day": (date, date),
    "line": (Line, Line),
    "pair": (tuple[int, str], tuple),
    "many": (frozenset[int], frozenset),
}

leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
keys = st.text() | st.sampled_from(["SKU", "count", "children"])
json_values = st.recursive(
    leaves | st.sampled_from(["red", "2030-01-02", "1", "no", "nan"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=5,
)
fitting = {
    "number": st.integers(),
    "share": st.floats(),
    "flag": st.booleans() | st.sampled_from(["false", "yes", 0]),
    "colour": st.just("red"),
    "day": st.dates().map(str),
    "line": st.builds(lambda sku: {"SKU": sku}, st.text()),
    "words": st.lists(st.text()),
    "pair": st.tuples(st.integers(), st.text()),
}


@pytest.mark.parametrize("read_only", [True, False])
@given(data=st.data())
@pytest.mark.proves("GC-42", "GC-18")
def test_a_handler_only_ever_sees_values_of_its_types(read_only: bool, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(HINTS)))
    value = data.draw(fitting.get(name, json_values) | json_values)
    annotation, expected = HINTS[name]

    def handler(value: Any) -> None: ...

    handler.__annotations__["value"] = annotation
    made = tool(read_only=read_only)(handler)
    try:
        seen = made.parse(json.dumps({"value": value}))["value"]
    except (InvalidArgumentsError, ToolArgsParseError):
        return
    assert isinstance(seen, expected)
    TypeAdapter(annotation).validate_python(seen, strict=True)

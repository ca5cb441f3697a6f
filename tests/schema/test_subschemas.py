"""Schemas without what costs tokens and tells nothing, and the walk through all of their parts."""

import copy
import json
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, TypeAdapter

from handrail import tool
from handrail.schema.subschemas import iter_subschemas, map_children, remove_titles
from tests.schema.kinds import Made, made_tools


def test_titles_that_pydantic_makes_of_names_are_removed() -> None:
    class Size(BaseModel):
        max_width: int
        title: str

    class Order(BaseModel):
        size_of_it: Size
        many: list[Size | None] = []

    assert '"title": "' in json.dumps(Order.model_json_schema())
    cleaned = remove_titles(Order.model_json_schema())
    assert '"title": "' not in json.dumps(cleaned)
    assert cleaned["$defs"]["Size"]["properties"] == {"max_width": {"type": "integer"}, "title": {"type": "string"}}


def test_a_title_that_somebody_wrote_is_kept() -> None:
    kept = {"properties": {"max_width": {"type": "integer", "title": "How wide it may be"}}}

    assert remove_titles(kept) == kept


def test_the_title_of_the_whole_is_removed() -> None:
    assert remove_titles({"title": "Anything", "type": "object"}) == {"type": "object"}


@pytest.mark.parametrize(
    "node",
    [
        {"default": {"title": "title"}},
        {"enum": [{"title": ""}, "title"]},
        {"const": {"properties": {"a": {"title": "A"}}}},
        {"examples": [{"properties": {"a": {"title": "A"}}}]},
        {"required": ["title"]},
    ],
    ids=lambda node: next(iter(node)),
)
def test_values_in_a_schema_are_not_taken_for_schemas(node: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"a": node}}

    assert remove_titles(schema) == schema


def test_parameters_called_like_keywords_are_parameters() -> None:
    @tool
    def odd(
        title: Annotated[str, Field(title="Title")], properties: int, items: list[int], anyOf: str, enum: str = "x"
    ) -> str:
        return ""

    assert list(odd.input_schema["properties"]) == ["title", "properties", "items", "anyOf", "enum"]
    assert odd.input_schema["properties"]["title"] == {"type": "string"}


PLACES: dict[str, Any] = {
    "properties": {"a": {"x": 1}},
    "$defs": {"B": {"x": 2}},
    "definitions": {"C": {"x": 3}},
    "patternProperties": {"^d": {"x": 4}},
    "dependentSchemas": {"e": {"x": 5}},
    "anyOf": [{"x": 6}],
    "oneOf": [{"x": 7}],
    "allOf": [{"x": 8}],
    "prefixItems": [{"x": 9}],
    "items": {"x": 10},
    "additionalProperties": {"x": 11},
    "not": {"x": 12},
    "if": {"x": 13},
    "then": {"x": 14},
    "else": {"x": 15},
    "contains": {"x": 16},
    "propertyNames": {"x": 17},
    "unevaluatedProperties": {"x": 18},
    "unevaluatedItems": {"x": 19},
}


def test_every_place_of_a_schema_is_visited_with_the_name_that_it_stands_under() -> None:
    visited = [(name, child["x"]) for name, child in iter_subschemas(PLACES)]

    names = ["a", "B", "C", "^d", "e"]
    assert visited == [*zip(names, range(1, 6), strict=True), *(("", number) for number in range(6, 20))]


def test_a_change_reaches_every_place_and_leaves_the_original_alone() -> None:
    before = copy.deepcopy(PLACES)

    changed = map_children(PLACES, lambda name, child: {"x": -child["x"]})

    assert [child["x"] for _, child in iter_subschemas(changed)] == [-number for number in range(1, 20)]
    assert before == PLACES


@pytest.mark.parametrize("schema", [{"additionalProperties": False}, {"items": True}, {"properties": {"a": True}}])
def test_true_and_false_are_schemas_without_parts(schema: dict[str, Any]) -> None:
    assert list(iter_subschemas(schema)) == []
    assert remove_titles(schema) == schema


@given(made_tools(), st.data())
def test_tidying_changes_no_keyword_but_the_title(made: Made, data: st.DataObject) -> None:
    schema = TypeAdapter(type(data.draw(st.sampled_from([1, "x", [1]])))).json_schema() | dict(made.tool.input_schema)

    assert remove_titles(remove_titles(schema)) == remove_titles(schema)
    assert without_titles(remove_titles(schema)) == without_titles(schema)


def without_titles(node: Any) -> Any:
    copy = map_children(node, lambda _, child: without_titles(child) if isinstance(child, dict) else child)
    copy.pop("title", None)
    return copy

"""What a decoder is asked to keep to."""

import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from handrail.providers.embedded.schema_reduction import build_decodable_schema, extract_spans, has_mention
from handrail.providers.embedded.spans import extract_numbers

WORDS = st.sampled_from(
    [
        *("type", "properties", "required", "enum", "const", "anyOf", "allOf", "items", "$ref", "$defs", "pattern"),
        *("format", "minimum", "maxLength", "minItems", "additionalProperties", "x"),
    ]
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.sampled_from(["string", "object", "array"])
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=5),
    max_leaves=25,
)
KNOWN = {
    *("type", "properties", "required", "additionalProperties", "enum", "anyOf", "items", "minItems", "maxItems"),
    *("minLength", "maxLength", "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    *("$ref", "$defs", "definitions"),
}


def keywords(node: Any) -> set[str]:
    """Every keyword of a schema; the names of properties and definitions are none."""
    found = set(node)
    for key, value in node.items():
        if key in ("properties", "$defs", "definitions"):
            found |= {word for part in value.values() for word in keywords(part)}
        elif key in ("items", "additionalProperties") and isinstance(value, dict):
            found |= keywords(value)
        elif key == "anyOf":
            found |= {word for part in value for word in keywords(part)}
    return found


@given(st.dictionaries(WORDS, VALUES, max_size=6), st.none() | st.text())
def test_whatever_a_schema_says_what_comes_out_is_plain(schema: dict[str, Any], text: str | None) -> None:
    lowered = build_decodable_schema(schema, copy_from=text)

    assert keywords(lowered) <= KNOWN
    json.dumps(lowered)


def test_strings_lists_and_numbers_get_an_end() -> None:
    lowered = build_decodable_schema(
        {
            "type": "object",
            "properties": {
                "s": {"type": "string"},
                "n": {"type": "integer"},
                "l": {"type": "array", "items": {"type": "string", "maxLength": 3}},
            },
        }
    )

    assert lowered["properties"]["s"] == {"type": "string", "minLength": 0, "maxLength": 200}
    assert lowered["properties"]["l"]["maxItems"] == 8
    assert lowered["properties"]["l"]["items"]["maxLength"] == 3
    assert lowered["properties"]["n"] == {"type": "integer", "minimum": -(10**12), "maximum": 10**12}


SCHEMA = {
    "type": "object",
    "properties": {
        "to": {"type": "string"},
        "amount": {"type": "integer", "minimum": 1},
        "account": {"enum": ["current", "savings"]},
        "note": {"type": "string"},
        "copies": {"type": "integer", "minimum": 100},
        "speed": {"enum": ["slow", "fast"]},
    },
    "required": ["to", "amount", "account"],
}


def test_values_are_copied_from_the_text_and_what_nobody_spoke_of_stays_out() -> None:
    lowered = build_decodable_schema(SCHEMA, copy_from="Send 50 euros from my Savings to Peter Novak, fast!")[
        "properties"
    ]

    assert lowered["amount"] == {"enum": [50]}
    assert lowered["account"] == {"enum": ["savings"]}
    assert "Peter Novak" in lowered["to"]["enum"]
    assert list(lowered) == ["to", "amount", "account", "speed"]


def test_where_the_text_says_nothing_every_value_may_be_meant() -> None:
    lowered = build_decodable_schema(SCHEMA, copy_from="")["properties"]

    assert lowered["account"] == {"enum": ["current", "savings"]}
    assert lowered["to"]["type"] == "string"
    assert lowered["amount"]["minimum"] == 1


@pytest.mark.parametrize("value", [{"to": "Anna", "amount": 3, "account": "current"}])
def test_what_fits_the_reduced_schema_fits_the_given_one(value: Any) -> None:
    assert jsonschema_rs.is_valid(build_decodable_schema(SCHEMA), value)
    assert jsonschema_rs.is_valid(SCHEMA, value)
    assert not jsonschema_rs.is_valid(build_decodable_schema(SCHEMA), {**value, "more": 1})


@given(st.text())
def test_a_span_is_a_piece_of_the_text(text: str) -> None:
    assert all(span in text and span.strip() == span and span for span in extract_spans(text))


@pytest.mark.parametrize(
    ("text", "found"),
    [("50 euros", [50]), ("order A-17", []), ("1500,50 or -3", [1500.5, -3]), ("B-203 for 2.", [2]), ("v1.2", [])],
)
def test_numbers_stand_alone(text: str, found: list[float]) -> None:
    assert extract_numbers(text) == found


def test_a_value_is_mentioned_as_a_word_of_its_own() -> None:
    assert has_mention("my SAVINGS, please", ["savings"])
    assert has_mention("in New York today", ["new york"])
    assert not has_mention("currently", ["current"])
    assert not has_mention("", ["", "x"])

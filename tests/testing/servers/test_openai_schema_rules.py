"""Every rule about OpenAI's strict schemas, with a tool that breaks it, through the official client."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from handrail.testing.servers import OpenAIServer, text
from handrail.testing.servers.rules import openai as rules
from handrail.testing.servers.rules.schemas import is_malformed
from tests.testing.servers.wire import Body, Wrong, rules_of, schema, wrong

NODE = schema({"value": {"type": "string"}, "next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}})


def nested(levels: int) -> Body:
    found = schema()
    for _ in range(levels - 1):
        found = schema({"in": found})
    return found


def many(count: int) -> Body:
    return schema({f"p{n}": {"type": "string"} for n in range(count)})


def values(*items: Any) -> Body:
    return schema({"one": {"type": "string", "enum": list(items)}})


def prop(**keywords: Any) -> Body:
    return schema({"a": keywords})


RIGHT: list[Body] = [
    schema({}),
    schema({"a": {"type": ["string", "null"]}, "b": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}),
    prop(type="integer", minimum=1, maximum=10, multipleOf=2, description="Even."),
    prop(type="string", pattern="^a+$", format="date-time"),
    prop(type="array", items={"type": "string"}, minItems=1, maxItems=3),
    prop(const="yes"),
    schema({"tree": {"$ref": "#/$defs/Node"}}, **{"$defs": {"Node": NODE}}),
    schema({"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}),
    nested(10),
    many(5000),
    values(*(f"v{n}" for n in range(1000))),
    values("x" * 119_990),
]

WRONG = [
    wrong("no object", rules.root_is_an_object, {"type": "array", "items": {}}, "got 'type: \"array\"'"),
    wrong("no schema", is_malformed, prop(type="text"), "JSON schema is invalid"),
    wrong("union at the root", rules.root_is_not_a_union, schema(anyOf=[schema()]), "not permitted at the root"),
    wrong(
        "open object",
        rules.objects_are_closed,
        {"type": "object", "properties": {}, "required": []},
        "In context=(), 'additionalProperties' is required to be supplied and to be false",
    ),
    wrong(
        "open map inside",
        rules.objects_are_closed,
        prop(type="object", additionalProperties={"type": "integer"}),
        "In context=('properties', 'a'), 'additionalProperties' is required",
    ),
    wrong(
        "open object in a definition",
        rules.objects_are_closed,
        schema(**{"$defs": {"X": {"type": "object"}}}),
        "In context=('$defs', 'X'), 'additionalProperties' is required",
    ),
    wrong(
        "optional property",
        rules.every_property_is_required,
        schema({"a": {"type": "string"}, "b": {"type": "string"}}, required=["a"]),
        "to be an array including every key in properties. Missing 'b'.",
    ),
    wrong(
        "unknown required property", rules.every_property_is_required, schema(required=["city", "x"]), "Extra required"
    ),
    *(
        wrong(
            f"keyword {keyword}",
            rules.keywords_are_supported,
            prop(type="string", **{keyword: value}),
            f"'{keyword}' is n",
        )
        for keyword, value in {
            "allOf": [{"type": "string"}],
            "oneOf": [{"type": "string"}],
            "not": {"type": "null"},
            "if": {"type": "string"},
            "then": {"type": "string"},
            "else": {"type": "string"},
            "default": "x",
            "dependentRequired": {"a": ["b"]},
            "dependentSchemas": {"a": {"type": "string"}},
            "patternProperties": {"^a": {"type": "string"}},
            "propertyNames": {"type": "string"},
            "prefixItems": [{"type": "string"}],
            "uniqueItems": True,
            "contains": {"type": "string"},
            "minProperties": 1,
            "unevaluatedProperties": False,
        }.items()
    ),
    wrong("format uri", rules.formats_are_supported, prop(type="string", format="uri"), "'uri' is not a valid format"),
    wrong(
        "lookahead", rules.patterns_do_not_look_around, prop(type="string", pattern="a(?=b)"), "must not use lookaround"
    ),
    wrong(
        "lookbehind",
        rules.patterns_do_not_look_around,
        prop(type="string", pattern="(?<!a)b"),
        "must not use lookaround",
    ),
    wrong(
        "sibling of a reference",
        rules.references_stand_alone,
        schema({"a": {"$ref": "#/$defs/N", "description": "x"}}, **{"$defs": {"N": {"type": "string"}}}),
        "In context=('properties', 'a'), $ref cannot have keywords ['description']",
    ),
    wrong(
        "reference into properties",
        rules.references_are_local,
        schema({"a": {"type": "string"}, "b": {"$ref": "#/properties/a"}}),
        "reference '#/properties/a' is not supported",
    ),
    wrong(
        "items without type",
        rules.items_are_typed,
        prop(type="array", items={}),
        "array schema items must have a 'type'",
    ),
    wrong(
        "array without items", rules.items_are_typed, prop(type="array"), "array schema items must have a 'type' key"
    ),
    wrong("5001 properties", rules.properties_are_few, many(5001), "5001 properties, more than the limit of 5000"),
    wrong("11 levels", rules.nesting_is_shallow, nested(11), "11 levels of nesting, more than the limit of 10"),
    wrong("120001 characters", rules.names_and_values_are_short, values("x" * 120_000), "the limit is 120000"),
    wrong("1001 values", rules.enums_are_small, values(*(f"v{n}" for n in range(1001))), "more than the limit of 1000"),
    wrong(
        "251 long values",
        rules.enums_are_small,
        values(*(f"{n:060}" for n in range(251))),
        "more than the limit of 15000",
    ),
]


@pytest.fixture(scope="module")
def client() -> Iterator[OpenAI]:
    with OpenAIServer([]) as server, OpenAI(base_url=server.url, api_key="k", max_retries=0) as client:
        yield client


def send(client: OpenAI, parameters: Body, *, strict: bool = True) -> Any:
    tool: Any = {"type": "function", "function": {"name": "look", "parameters": parameters, "strict": strict}}
    return client.chat.completions.create(model="gpt-test", messages=[{"role": "user", "content": "Hi"}], tools=[tool])


@pytest.mark.parametrize("parameters", RIGHT)
def test_a_schema_in_the_subset_is_accepted(parameters: Body) -> None:
    with OpenAIServer([text("Hello")]) as server, OpenAI(base_url=server.url, api_key="k", max_retries=0) as client:
        assert send(client, parameters).choices


@pytest.mark.parametrize("case", WRONG)
def test_a_schema_outside_of_the_subset_is_refused(client: OpenAI, case: Wrong) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        send(client, case.body)
    assert case.says in caught.value.message
    assert caught.value.code == "invalid_function_parameters"


@pytest.mark.parametrize("case", [case for case in WRONG if case.values[0].rule in rules.STRICT])
def test_a_function_that_is_not_strict_may_leave_the_subset(case: Wrong) -> None:
    with OpenAIServer([text("Hello")]) as server, OpenAI(base_url=server.url, api_key="k", max_retries=0) as client:
        assert send(client, case.body, strict=False).choices


@pytest.mark.parametrize("case", WRONG)
def test_responses_has_the_same_subset(client: OpenAI, case: Wrong) -> None:
    tool: Any = {"type": "function", "name": "look", "parameters": case.body, "strict": True}
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="gpt-test", input="Hi", tools=[tool])
    assert case.says in caught.value.message


def test_every_rule_has_a_wrong_tool() -> None:
    assert {rule.__name__ for rule in rules.STRICT} <= rules_of(WRONG)

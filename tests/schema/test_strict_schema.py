"""What strict mode can say of a type, said; what it cannot say, told; and the way back for every value."""

import json
from typing import Annotated, Any, NotRequired

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, given, settings
from pydantic import Field
from typing_extensions import TypedDict

from handrail import InvalidArgumentsError, Tool, ToolCall, tool
from handrail.formats import anthropic
from handrail.formats import openai_responses as wire
from handrail.schema import strict_schema
from tests.schema.kinds import LEAVES, UNSAYABLE, Made, made_tools
from tests.schema.subsets import anthropic_problems, openai_problems

made_up = settings(
    max_examples=settings.default.max_examples * 3 // 5,  # Types are dear to make.
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def sent(one: Tool[..., Any]) -> Any:
    (definition,) = wire.tools([one])
    return definition


def came_back(one: Tool[..., Any], text: str) -> str:
    call = ToolCall(id="1", name=one.name, arguments_json=text)
    return wire.tools([one]).decode(call).arguments_json


def lowered(schema: dict[str, Any], dialect: strict_schema.Dialect = strict_schema.OPENAI) -> strict_schema.Lowered:
    return strict_schema.lower({"type": "object", "additionalProperties": False, **schema}, dialect)


def of(**properties: Any) -> dict[str, Any]:
    return {"properties": properties, "required": list(properties)}


# Made-up types.


@made_up
@given(made_tools())
def test_what_goes_out_strict_is_accepted_and_every_value_finds_its_way_back(made: Made) -> None:
    definition = sent(made.tool)
    if not definition["strict"]:
        assert "cannot be told apart" in wire.tools([made.tool]).notes[0].text
        return
    assert openai_problems(definition["parameters"]) == []
    validator = jsonschema_rs.validator_for(json.loads(json.dumps(definition["parameters"])))
    for plain, sent_by_model in made.arguments:
        assert validator.is_valid(sent_by_model)
        arguments = made.tool.parse(came_back(made.tool, json.dumps(sent_by_model)))
        assert arguments == made.tool.parse(json.dumps(plain))


@made_up
@given(made_tools())
def test_what_goes_out_strict_to_anthropic_is_accepted_and_no_value_is_lost(made: Made) -> None:
    definitions = anthropic.tools([made.tool])
    schema = json.loads(json.dumps(definitions[0]["input_schema"]))
    if not definitions[0].get("strict"):
        assert definitions.notes[0].text.startswith("is sent without strict mode: ")
        return
    assert anthropic_problems(schema) == []
    for plain, _ in made.arguments:
        assert jsonschema_rs.is_valid(schema, plain)
        call = ToolCall(id="1", name="made", arguments_json=json.dumps(plain))
        assert made.tool.parse(definitions.decode(call).arguments_json) == made.tool.parse(json.dumps(plain))


@made_up
@given(made_tools(LEAVES[:3] + UNSAYABLE))
def test_what_strict_mode_cannot_say_goes_out_as_it_is_with_the_reason(made: Made) -> None:
    definitions = wire.tools([made.tool])

    if not definitions[0]["strict"]:
        assert definitions[0]["parameters"].keys() == made.tool.input_schema.keys()
        assert definitions.notes[0].tool == "made"
        assert definitions.notes[0].text.startswith("is sent without strict mode: ")
        for plain, _ in made.arguments:
            assert came_back(made.tool, json.dumps(plain)) == json.dumps(plain)
    else:
        assert openai_problems(definitions[0]["parameters"]) == []


@pytest.mark.parametrize("kind", UNSAYABLE, ids=lambda kind: str(kind.annotation))
def test_a_type_without_a_strict_form_keeps_its_tool_out_of_strict_mode(kind: Any) -> None:
    @tool(strict=True)
    def take(value: kind.annotation) -> str:
        return ""

    definition = sent(take)
    assert definition["strict"] is False
    assert take.input_schema["properties"]["value"].items() <= definition["parameters"]["properties"]["value"].items()


# What cannot be said, with the place and the reason.


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (of(meta={"type": "object", "additionalProperties": {"type": "integer"}}), "meta is a map with open keys"),
        (of(meta={"type": "object"}), "meta is a map with open keys"),
        (of(meta={"type": "object", "properties": {}}), "meta is a map with open keys"),
        (of(meta={"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": True}), "open keys"),
        (of(value={}), "value accepts anything"),
        (of(value=True), "value accepts anything"),
        (of(value={"description": "Whatever.", "title": "Value"}), "value accepts anything"),
        (of(value={"minimum": 3}), "value has no type"),
        (of(value={"type": "array"}), "value is an array of anything"),
        (of(value={"type": "array", "items": {}}), r"value\[\] accepts anything"),
        (of(value={"type": "array", "prefixItems": [{"type": "string"}]}), "value uses prefixItems"),
        (of(value={"type": "string", "not": {"const": "x"}}), "value uses not"),
        (of(value={"type": "object", "patternProperties": {"^x": {"type": "string"}}}), "value uses patternProperties"),
        (of(value={"allOf": [{"type": "string"}, {"minLength": 1}]}), "it uses allOf"),
        (of(value={"allOf": [{"minLength": 2}], "minLength": 1, "type": "string"}), "it uses allOf beside minLength"),
        (of(value={"enum": [["a"], ["b"]]}), "value has fixed values that are objects or arrays"),
        (of(value={"anyOf": [{"required": ["a"]}], "type": "object"}), "value has no type"),
        (of(value={"anyOf": [{"type": "string"}], "oneOf": [{"type": "null"}]}), "value is a union that strict mode"),
        (of(value={"anyOf": [{"type": "string"}], "enum": ["a"]}), "value combines anyOf with enum"),
        (of(value={"$ref": "#/$defs/No"}), "#/\\$defs/No is not defined"),
        (of(value={"$ref": "https://example.com/schema"}), "value refers to https://example.com/schema"),
        (of(value={"$ref": "#/properties/other"}), "value refers to #/properties/other"),
        (of(value={"$ref": "#/$defs/A", "properties": {}}) | {"$defs": {"A": {"type": "null"}}}, "combines .ref with"),
        (of(value={"$ref": "#/$defs/A"}) | {"$defs": {"A": {"$ref": "#/$defs/A"}}}, "references are circular"),
        ({"properties": {}, "required": ["ghost"]}, "requires `ghost` without defining it"),
        ({"properties": {"x": {"type": ["string", "null"]}}}, "x can be null and can be left out"),
        ({"properties": {"x": {"type": ["integer", "null"], "default": 5}}}, "x can be null and can be left out"),
        ({"anyOf": [{"type": "object"}]}, "the root is not a plain object"),
        ({"$ref": "#/$defs/U", "$defs": {"U": {"anyOf": [{"type": "object"}]}}}, "the root is not a plain object"),
        ({"type": "array"}, "the root is not a plain object"),
    ],
)  # fmt: skip
def test_a_schema_that_strict_mode_cannot_say_is_refused_with_the_reason(schema: Any, reason: str) -> None:
    with pytest.raises(strict_schema.NotRepresentable, match=reason):
        lowered(schema)


def test_arguments_that_may_be_anything_are_not_emptied() -> None:
    with pytest.raises(strict_schema.NotRepresentable, match="open keys"):
        strict_schema.lower({"type": "object"}, strict_schema.OPENAI)


def test_no_arguments_at_all_can_be_said() -> None:
    assert openai_problems(strict_schema.lower({"type": "object", "properties": {}}, strict_schema.OPENAI).schema) == []


class Leash(TypedDict):
    length: NotRequired[int | None]


def test_null_that_means_something_else_than_left_out_keeps_a_tool_out_of_strict_mode() -> None:
    @tool(strict=True)
    def walk(leash: Leash) -> str:
        return ""

    assert sent(walk)["strict"] is False


# What is left to local validation.


def test_anthropic_enforces_less_and_keeps_defaults() -> None:
    properties = {
        "name": {"type": "string", "maxLength": 3, "format": "uri", "default": "x", "pattern": r"^a\b"},
        "size": {"type": "array", "items": {"type": "number", "minimum": 1}, "minItems": 1, "maxItems": 2},
        "pair": {"type": "array", "items": {"type": "string"}, "minItems": 2},
    }
    found = lowered({"properties": properties, "required": ["size"]}, strict_schema.ANTHROPIC)

    assert found.schema["properties"] == {
        "name": {"type": "string", "default": "x", "format": "uri"},
        "size": {"type": "array", "items": {"type": "number"}, "minItems": 1},
        "pair": {"type": "array", "items": {"type": "string"}},
    }
    assert found.schema["required"] == ["size"]
    assert set(found.lost) == {
        "name: maxLength",
        "name: pattern",
        "size: maxItems",
        "size[]: minimum",
        "pair: minItems",
    }


@pytest.mark.parametrize("target", ["#", "#/$defs/A"])
def test_anthropic_has_no_recursion(target: str) -> None:
    loop = {"type": "object", "properties": {"next": {"$ref": target}}}
    with pytest.raises(strict_schema.NotRepresentable, match="it refers to itself"):
        lowered({"properties": {"next": {"$ref": target}}, "$defs": {"A": loop}}, strict_schema.ANTHROPIC)


def test_constraints_that_the_provider_does_not_know_are_listed_with_their_place() -> None:
    found = lowered(
        of(
            name={"type": "string", "minLength": 2, "pattern": "^(?=a)", "format": "iri"},
            items={"type": "array", "items": {"type": "string", "maxLength": 3}, "uniqueItems": True, "maxItems": 2},
        )
    )

    assert found.lost[:3] == ("name: minLength", "name: pattern", "name: format")
    assert found.lost[3:] == ("items: uniqueItems", "items[]: maxLength")
    assert found.schema["properties"] == {
        "name": {"type": "string"},
        "items": {"type": "array", "maxItems": 2, "items": {"type": "string"}},
    }


def test_what_was_dropped_is_still_checked() -> None:
    @tool(strict=True)
    def greet(name: Annotated[str, Field(min_length=2)]) -> str:
        """Greet."""
        return ""

    assert sent(greet)["strict"] is True
    assert [note.text for note in wire.tools([greet]).notes] == ["checked here only: name: minLength"]
    with pytest.raises(InvalidArgumentsError, match="name"):
        greet.parse(came_back(greet, '{"name":"x"}'))


def test_words_and_vendors_extensions_do_not_keep_a_schema_out_of_strict_mode() -> None:
    found = lowered(of(a={"type": "string", "title": "A", "examples": ["x"], "x-order": 1, "description": "An a."}))

    assert found.schema["properties"]["a"] == {"type": "string", "description": "An a."}
    assert found.lost == ()


def test_older_schemas_have_their_definitions_elsewhere() -> None:
    found = lowered(
        of(a={"$ref": "#/definitions/A"}, definitions={"type": "string", "description": 'not "#/definitions/x"'})
        | {"definitions": {"A": {"type": "string"}}}
    )

    assert found.schema["properties"]["a"] == {"$ref": "#/$defs/A"}
    assert found.schema["properties"]["definitions"]["description"] == 'not "#/definitions/x"'
    assert found.schema["$defs"] == {"A": {"type": "string"}}


def test_a_definition_that_nothing_refers_to_does_not_count() -> None:
    assert "$defs" not in lowered(of(a={"type": "string"}) | {"$defs": {"Map": {"type": "object"}}}).schema


def test_words_beside_a_reference_reach_the_model() -> None:
    schema = of(
        a={"$ref": "#/$defs/A", "description": "The a."},
        b={"allOf": [{"$ref": "#/$defs/B"}], "description": "The b."},
    )
    definitions = {"A": {"enum": ["x", "y"]}, "B": {"type": "object", **of(c={"type": "null"})}}
    found = lowered(schema | {"$defs": definitions})

    assert found.schema["properties"]["a"] == {"type": "string", "description": "The a.", "enum": ["x", "y"]}
    assert found.schema["properties"]["b"] == {"anyOf": [{"$ref": "#/$defs/B"}], "description": "The b."}

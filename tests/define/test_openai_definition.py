"""What is sent to OpenAI about a tool: the parameters, strict or not, and the definition around them."""

import json
from typing import Any

import jsonschema_rs
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionToolParam
from openai.types.responses import FunctionToolParam

from handrail import as_tool
from handrail.define.tool_class import Api
from handrail.openai import core
from tests.define.models import APIS, book_table, flat, nested, parameters, sent, strict_of, tree


@pytest.mark.proves("TC-21", "TC-26", "TC-27", "TC-28")
def test_a_definition_is_what_pydantic_says_about_the_fields_and_no_more() -> None:
    schema = {
        "type": "object",
        "properties": {
            "guests": {"description": "How many come.", "title": "Guests", "type": "integer"},
            "place": {"default": "hall", "enum": ["hall", "garden"], "title": "Place", "type": "string"},
        },
        "required": ["guests"],
    }
    words = "Book a table.\n\nAt a place of ours."
    function = {"name": "book_table", "description": words, "parameters": schema}
    assert book_table.model_tool_definition(api="chat.completions") == {"type": "function", "function": function}
    assert book_table.model_tool_definition(api="responses") == {
        "type": "function",
        "name": "book_table",
        "parameters": schema,
        "strict": False,
        "description": words,
    }


@pytest.mark.proves("TC-26", "TC-27")
def test_a_tool_without_arguments_has_a_definition() -> None:
    class now(core.LLMFunctionTool):
        pass

    class anything(core.LLMFunctionTool):
        model_config = pydantic.ConfigDict(extra="allow")

    assert now.model_tool_definition("chat.completions") == {"type": "function", "function": {"name": "now"}}
    assert parameters(now) == {"type": "object", "properties": {}, "required": []}
    for api in APIS:
        assert parameters(anything, api)["additionalProperties"] is True


@pytest.mark.proves("TC-28")
@pytest.mark.parametrize("api", APIS)
def test_references_lead_somewhere_and_closed_objects_stay_closed(api: Api) -> None:
    schema = parameters(nested, api)
    assert schema["additionalProperties"] is False
    assert set(schema["$defs"]) == {"Place", "Kind"}
    check = jsonschema_rs.validator_for(schema)
    assert check.is_valid({"place": {"name": "Oslo", "kind": "red"}})
    assert not check.is_valid({"place": {"name": "Oslo", "kind": "green"}})
    assert not check.is_valid({"place": {"name": "Oslo"}, "extra": 1})


@pytest.mark.proves("TC-28")
@pytest.mark.parametrize("api", APIS)
def test_a_recursive_tool_keeps_its_arguments_and_its_words(api: Api) -> None:
    schema = parameters(tree, api)
    assert flat(tree, api)["description"] == "A tree."
    assert list(schema["properties"]) == ["label", "weight", "branches"]
    check = jsonschema_rs.validator_for(schema)
    assert check.is_valid({"label": "a", "branches": [{"label": "b", "branches": []}]})
    assert not check.is_valid({"label": "a", "branches": [{"branches": []}]})
    assert list(as_tool(tree).input_schema["properties"]) == ["label", "weight", "branches"]


# Strict mode


@pytest.mark.proves("TC-26", "TC-30")
def test_strict_is_off_unless_it_is_on() -> None:
    assert core.LLMFunctionTool.model_tool_strict is False
    assert "strict" not in book_table.model_tool_definition("chat.completions")["function"]
    strict = type("book_table", (book_table,), {"__module__": __name__, "model_tool_strict": True})
    assert strict.model_tool_definition("chat.completions")["function"]["strict"] is True
    assert strict.model_tool_definition("responses")["strict"] is True


def objects(schema: Any) -> list[dict[str, Any]]:
    """Every object schema inside a schema."""
    if isinstance(schema, list):
        return [found for item in schema for found in objects(item)]
    if not isinstance(schema, dict):
        return []
    return [schema] * ("properties" in schema) + [found for item in schema.values() for found in objects(item)]


@pytest.mark.proves("TC-28", "TC-30")
@pytest.mark.parametrize("tool", [book_table, nested, tree], ids=lambda tool: tool.__name__)
@pytest.mark.parametrize("api", APIS)
def test_a_strict_schema_requires_everything_and_closes_every_object(tool: Any, api: Api) -> None:
    schema = parameters(strict_of(tool), api)
    assert schema["type"] == "object"
    assert not {"title", "description"} & schema.keys()
    for item in objects(schema):
        assert item["required"] == list(item["properties"])
        assert item["additionalProperties"] is False
    assert "default" not in json.dumps(schema)


@pytest.mark.proves("TC-30")
def test_a_strict_tool_without_arguments_takes_none() -> None:
    now: Any = strict_of(type("now", (core.LLMFunctionTool,), {"__module__": __name__}))
    assert parameters(now) == {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    assert now.model_tool_definition("responses")["strict"] is True


@pytest.mark.proves("TC-30")
def test_null_in_strict_mode_is_an_argument_left_out() -> None:
    table = sent(strict_of(book_table), {"guests": 2, "place": None})
    assert (table.place, table.model_fields_set) == ("hall", {"guests"})
    place = sent(strict_of(nested), {"place": {"name": "Oslo", "kind": None}, "others": None, "day": None})
    assert (place.others, place.day, place.place.kind) == ([], None, None)
    inner = {"label": "b", "weight": 4, "branches": None}
    grown = sent(strict_of(tree), {"label": "a", "weight": None, "branches": [inner]})
    assert (grown.weight, grown.branches[0].weight, grown.branches[0].branches) == (1, 4, [])


STRICT_TREE: Any = strict_of(tree)
ACCEPTED = jsonschema_rs.validator_for(parameters(STRICT_TREE))
TREES = st.recursive(
    st.builds(tree, label=st.text(max_size=5), weight=st.integers(-3, 3)),
    lambda below: st.builds(tree, label=st.text(max_size=5), branches=st.lists(below, max_size=3)),
    max_leaves=6,
)


def in_strict_mode(grown: tree) -> dict[str, Any]:
    """What a model has to send for a tree: everything, with null for what it would leave out."""
    weight = None if grown.weight == 1 else grown.weight
    return {"label": grown.label, "weight": weight, "branches": [*map(in_strict_mode, grown.branches)] or None}


@pytest.mark.proves("TC-30")
@given(grown=TREES)
def test_what_strict_mode_can_say_comes_back_as_it_was_meant(grown: tree) -> None:
    arguments = in_strict_mode(grown)
    assert ACCEPTED.is_valid(arguments)
    text = STRICT_TREE.model_tool_decode_arguments(json.dumps(arguments))
    assert STRICT_TREE.model_validate_json(text).model_dump() == grown.model_dump()


@pytest.mark.proves("TC-30")
def test_a_child_in_strict_mode_has_arguments_of_its_own() -> None:
    parent = strict_of(book_table)
    assert sent(parent, {"guests": 2, "place": None}).place == "hall"
    text = parent.model_tool_decode_arguments('{"guests": 2, "place": null}')
    assert json.loads(text) == {"guests": 2}

    class child(parent):
        hour: int = 19

    text = child.model_tool_decode_arguments('{"guests": 2, "place": null, "hour": null}')
    assert json.loads(text) == {"guests": 2}


@pytest.mark.proves("TC-30")
def test_a_schema_that_strict_mode_cannot_say_goes_out_as_it_is_with_a_warning() -> None:
    class tagged(core.LLMFunctionTool):
        tags: dict[str, int]
        model_tool_strict = True

    for api in APIS:
        with pytest.warns(UserWarning, match="`tagged` is sent without strict mode: tags is a map with open keys"):
            definition = flat(tagged, api)
        assert definition.get("strict", False) is False
        assert definition["parameters"]["properties"]["tags"]["additionalProperties"] == {"type": "integer"}
    assert sent(tagged, {"tags": {"a": 1}}).tags == {"a": 1}


# Its definition


@pytest.mark.proves("TC-29")
@pytest.mark.parametrize("tool", [book_table, nested, tree, STRICT_TREE])
def test_definitions_are_what_the_sdk_says_they_are(tool: Any) -> None:
    pydantic.TypeAdapter(ChatCompletionToolParam).validate_python(tool.model_tool_definition("chat.completions"))
    pydantic.TypeAdapter(FunctionToolParam).validate_python(tool.model_tool_definition("responses"))


@pytest.mark.proves("TC-31", "TC-D4")
@pytest.mark.parametrize("api", APIS)
def test_the_pretty_definition_is_the_definition_behind_the_name_of_the_class(api: Api) -> None:
    pretty = book_table.model_tool_pretty_definition(api)
    assert pretty.startswith('book_table({\n    "type": "function",\n    "')
    assert pretty.endswith("\n})")
    assert json.loads(pretty.removeprefix("book_table(").removesuffix(")")) == book_table.model_tool_definition(api)


@pytest.mark.proves("TC-32")
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("description", ["Grow.", "", None])
def test_a_definition_can_be_made_from_its_parts(strict: bool, description: str | None) -> None:
    class grow(tree):
        model_tool_strict = strict
        model_tool_custom_description = description

    grow.__doc__ = None
    parts = ("grow", description, strict, tree.model_json_schema())
    chat, responses = core.tool_def_for_chat_completions_api(*parts), core.tool_def_for_responses_api(*parts)
    assert chat["function"].get("description") == responses.get("description") == (description or None)
    assert chat["function"]["parameters"] == responses["parameters"] == parameters(STRICT_TREE if strict else tree)
    assert chat["function"].get("strict", False) is responses["strict"] is strict
    assert chat["function"]["name"] == responses["name"] == "grow"

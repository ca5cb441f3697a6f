"""What holds for the definitions of every wire format."""

import copy
import json
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Annotated, Any, Literal

import jsonschema_rs
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from handrail import ConfigError, LLMFunctionTool, Tool, ToolCall, ToolRegistry, as_tool, build_tool, tool
from tests.formats.apis import ALL, ANTHROPIC, CHAT, GEMINI, MCP, REALTIME, RESPONSES, Api, every_api
from tests.formats.hard import SAYABLE, SAYABLE_STRICT, UNSAYABLE, hard_tools

NOT_MCP = [api for api in ALL if api is not MCP]


def raw(name: str = "raw", schema: Any = None, **options: Any) -> Tool[..., Any]:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}} if schema is None else schema
    known = {"name": name, "description": "Raw.", "input_schema": schema, "execute": lambda payload: ""}
    return build_tool(known | options)


def with_schema(schema: Any, name: str = "bad") -> Tool[..., Any]:
    """A tool with a schema that nobody has checked, as a class may have one."""
    return replace(raw(name), input_schema=schema)


good = raw("good")


# The same tools, in the same order.


@pytest.mark.proves("HC-12", "GC-01")
@every_api
@pytest.mark.parametrize("strict", [False, True])
def test_the_same_tools_go_out_in_the_same_order(api: Api, strict: bool) -> None:
    tools = [*hard_tools(strict=strict), good]
    before = [{field.name: copy.copy(getattr(each, field.name)) for field in fields(each)} for each in tools]
    schemas = [json.dumps(each.input_schema) for each in tools]

    definitions = api.wire.tools(ToolRegistry(tools))

    assert [item.name for item in api.shown(definitions)] == ["sayable", "unsayable", "good"]
    assert definitions.skipped == ()
    assert [json.dumps(each.input_schema) for each in tools] == schemas
    for each, was in zip(tools, before, strict=True):
        assert all(getattr(each, name) == value for name, value in was.items() if name != "wire")


@every_api
def test_the_same_tools_give_the_same_bytes(api: Api) -> None:
    first, again = (json.dumps(api.wire.tools(hard_tools(strict=True))) for _ in range(2))
    assert first == again


@every_api
def test_what_is_no_tool_is_refused_with_what_would_be_right(api: Api) -> None:
    with pytest.raises(ConfigError, match="as_tool"):
        api.wire.tools([print])


@every_api
def test_a_tool_without_a_description_is_sent_with_a_note(api: Api) -> None:
    definitions = api.wire.tools([raw("mute", description=""), good])

    assert [item.name for item in api.shown(definitions)] == ["mute", "good"]
    assert [note.tool for note in definitions.notes if "has no description" in note.text] == ["mute"]


@every_api
def test_no_tools_are_no_definitions(api: Api) -> None:
    assert list(api.wire.tools([])) == []


# Words.


class Size(BaseModel):
    width: Annotated[int, Field(description="From left to right.")]


@tool
def paint(
    color: Annotated[Literal["red", "blue"], "What to dip the brush in."],
    size: Annotated[Size, "How large."],
    coats: Annotated[int | None, "How often."] = None,
) -> str:
    """Paint a wall."""
    return ""


WORDS = ["Paint a wall.", "What to dip the brush in.", "How large.", "How often.", "From left to right."]


@pytest.mark.proves("PH-77")
@every_api
@pytest.mark.parametrize("strict", [False, True])
def test_descriptions_of_tools_and_parameters_reach_the_model(api: Api, strict: bool) -> None:
    text = json.dumps(api.wire.tools([replace(paint, strict=strict)]))

    assert [word for word in WORDS if word not in text] == []


@pytest.mark.proves("PH-77")
@pytest.mark.parametrize("api", [api for api in ALL if api is not ANTHROPIC], ids=lambda api: api.name)
def test_examples_are_in_the_description_where_there_is_no_field_for_them(api: Api) -> None:
    shy = raw(description="Say it.", examples=[{"a": "ü"}, {"a": "y"}])

    (shown,) = api.shown(api.wire.tools([shy]))

    assert shown.description == 'Say it.\n\nExamples of arguments:\n{"a":"ü"}\n{"a":"y"}'


# Names.


printable = st.text(st.characters(exclude_categories=["C", "Z"], exclude_characters=":"), min_size=1, max_size=256)
tool_names = printable | st.from_regex(r"[A-Za-z0-9_.-]{1,256}", fullmatch=True)


@every_api
@given(names=st.lists(tool_names, unique=True, max_size=5))
def test_every_name_goes_out_as_one_that_is_accepted_and_comes_back(api: Api, names: list[str]) -> None:
    definitions = api.wire.tools([replace(good, name=name) for name in names])

    sent = [item.name for item in api.shown(definitions)]
    assert all(map(api.accepts, sent))
    assert len(set(sent)) == len(sent)
    back = [definitions.decode(ToolCall(id="1", name=name)).name for name in sent]
    assert sorted([*back, *(skipped.tool for skipped in definitions.skipped)]) == sorted(names)
    assert back == [name for name in names if name in back]
    assert [definitions.wire_name(name) for name in back] == sent


@every_api
def test_names_that_look_alike_once_they_are_changed_all_go_out(api: Api) -> None:
    names = ["a b", "a/b", "a?b", "x" * 200, "x" * 201]

    definitions = api.wire.tools([replace(good, name=name) for name in names])

    assert len({item.name for item in api.shown(definitions)}) == 5
    assert definitions.skipped == ()


@every_api
def test_a_name_that_is_accepted_is_left_alone(api: Api) -> None:
    assert api.shown(api.wire.tools([good]))[0].name == "good"


@every_api
def test_a_name_that_had_to_be_changed_is_noted(api: Api) -> None:
    definitions = api.wire.tools([replace(good, name="über alles")])

    (shown,), (note,) = api.shown(definitions), definitions.notes
    assert note.tool == "über alles"
    assert shown.name in note.text


@every_api
def test_of_two_tools_that_would_have_one_name_the_second_is_skipped(api: Api) -> None:
    strange = replace(good, name="schön")
    (shown,) = api.shown(api.wire.tools([strange]))
    twin = replace(good, name=shown.name)

    definitions = api.wire.tools([strange, twin])

    assert [item.name for item in api.shown(definitions)] == [shown.name]
    assert definitions.decode(ToolCall(id="1", name=shown.name)).name == "schön"
    assert [(skipped.tool, "schön" in skipped.text) for skipped in definitions.skipped] == [(twin.name, True)]


@every_api
def test_a_call_to_a_tool_that_was_not_sent_stays_as_it_is(api: Api) -> None:
    call = ToolCall(id="1", name="ghost", arguments_json="{}")
    assert api.wire.tools([good]).decode(call) == call


# One bad tool is set aside.

BAD_SCHEMAS: dict[str, Any] = {
    "no object": {"type": "array", "items": {"type": "string"}},
    "no schema": {"type": "object", "properties": ["a"]},
    "a type that is none": {"type": "object", "properties": {"a": {"type": "text"}}},
    "a reference that leads nowhere": {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}},
    "a reference to elsewhere": {"type": "object", "properties": {"a": {"$ref": "https://example.com/a"}}},
    "a number that JSON does not have": {"type": "object", "properties": {"a": {"default": float("nan")}}},
    "a value that JSON does not have": {"type": "object", "properties": {"a": {"default": object()}}},
    "half a character": {"type": "object", "properties": {"a": {"description": "\ud800"}}},
    "a name that is no text": {"type": "object", "properties": {"a": {"default": {1: 2}}}},
}


@every_api
@pytest.mark.parametrize("schema", BAD_SCHEMAS.values(), ids=BAD_SCHEMAS)
@pytest.mark.parametrize("strict", [False, True])
def test_one_bad_tool_is_skipped_and_the_rest_goes_out(api: Api, schema: Any, strict: bool) -> None:
    bad = replace(with_schema(schema), strict=strict)

    definitions = api.wire.tools([bad, good])

    assert [item.name for item in api.shown(definitions)] == ["good"]
    assert [skipped.tool for skipped in definitions.skipped] == ["bad"]
    assert definitions.skipped[0].text
    json.dumps(definitions, allow_nan=False, ensure_ascii=False).encode()


@pytest.mark.parametrize("api", NOT_MCP, ids=lambda api: api.name)
@pytest.mark.parametrize("keyword", ["anyOf", "oneOf", "allOf"])
def test_a_union_at_the_root_is_skipped_where_the_api_refuses_it(api: Api, keyword: str) -> None:
    either = raw("either", {"type": "object", keyword: [{"required": ["a"]}, {"required": ["b"]}]})

    definitions = api.wire.tools([either, good])

    assert [item.name for item in api.shown(definitions)] == ["good"]
    assert keyword in definitions.skipped[0].text
    assert len(MCP.wire.tools([either])) == 1


@every_api
def test_a_schema_nested_beyond_reason_is_skipped(api: Api) -> None:
    deep: Any = {"type": "string"}
    for _ in range(2_000):
        deep = {"type": "array", "items": deep}

    definitions = api.wire.tools([with_schema({"type": "object", "properties": {"a": deep}}), good])

    assert [skipped.tool for skipped in definitions.skipped] == ["bad"]
    assert [item.name for item in api.shown(definitions)] == ["good"]


@every_api
def test_an_example_that_json_cannot_hold_skips_its_tool(api: Api) -> None:
    definitions = api.wire.tools([replace(good, name="bad", examples=({"a": object()},)), good])

    assert [skipped.tool for skipped in definitions.skipped] == ["bad"]


@pytest.mark.parametrize(("api", "most"), [(CHAT, 128), (GEMINI, 512)], ids=["openai_chat", "gemini"])
def test_what_is_more_than_a_request_takes_is_skipped(api: Api, most: int) -> None:
    definitions = api.wire.tools([replace(good, name=f"t{n}") for n in range(most + 2)])

    assert len(api.shown(definitions)) == most
    assert [skipped.tool for skipped in definitions.skipped] == [f"t{most}", f"t{most + 1}"]


class Root(LLMFunctionTool):
    """Grow."""

    branches: list["Root"]

    def model_tool_handler(self, context: Any) -> tuple[str, None]:
        return "", None


@every_api
def test_a_class_that_refers_to_itself_goes_out(api: Api) -> None:
    (shown,) = api.shown(api.wire.tools([as_tool(Root)]))

    assert shown.schema["type"] == "object"
    assert "branches" in json.dumps(shown.schema)


# Parameters whose names an API refuses.


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("api", "pattern"),
    [(ANTHROPIC, "[a-zA-Z0-9_.-]{1,64}"), (GEMINI, "[A-Za-z_][A-Za-z0-9_]{0,63}")],
    ids=["anthropic", "gemini"],
)
def test_parameters_go_out_under_names_that_are_accepted_and_come_back(api: Api, pattern: str, strict: bool) -> None:
    names = ["$filter", "x" * 80, "ok", "filter[id]", "größe"]
    schema = {"type": "object", "properties": {name: {"enum": ["A", name]} for name in names}, "required": ["$filter"]}
    odd = raw("odd", {**schema, "additionalProperties": False}, strict=strict)

    definitions = api.wire.tools([odd])

    (shown,) = api.shown(definitions)
    sent = list(shown.schema["properties"])
    assert all(re.fullmatch(pattern, name) for name in sent)
    assert shown.schema["required"] == [sent[0]]
    arguments = json.dumps(dict.fromkeys(sent, "A"))
    back = definitions.decode(ToolCall(id="1", name="odd", arguments_json=arguments))
    assert odd.parse(back.arguments_json) == dict.fromkeys(names, "A")
    assert len(definitions.notes) >= 3


@pytest.mark.parametrize("api", [ANTHROPIC, GEMINI], ids=lambda api: api.name)
def test_an_argument_under_both_of_its_names_is_refused(api: Api) -> None:
    odd = raw("odd", {"type": "object", "properties": {"$top": {}}, "additionalProperties": False})
    definitions = api.wire.tools([odd])
    ((sent, _),) = api.shown(definitions)[0].schema["properties"].items()

    back = definitions.decode(ToolCall(id="1", name="odd", arguments_json=json.dumps({"$top": 1, sent: 2})))

    with pytest.raises(ValueError, match="not an argument of this tool"):
        odd.parse(back.arguments_json)


@pytest.mark.parametrize("api", [ANTHROPIC, GEMINI], ids=lambda api: api.name)
def test_a_parameter_that_cannot_be_renamed_skips_its_tool(api: Api) -> None:
    dependent = raw("odd", {"properties": {"$a": {}, "$b": {}}, "dependentRequired": {"$a": ["$b"]}})

    assert [skipped.tool for skipped in api.wire.tools([dependent]).skipped] == ["odd"]


# Nobody changes a definition of somebody else.


@every_api
def test_a_change_to_a_definition_never_reaches_another_caller(api: Api) -> None:
    registry = ToolRegistry([paint])
    mine, yours = api.wire.tools(registry), api.wire.tools(registry)
    before = json.dumps(yours)

    for definition in mine:
        definition["cache_control"] = {"type": "ephemeral"}
        inner = definition.get("function") or definition.get("function_declarations", [definition])[0]
        inner["description"] = "Mine."
        schema = next(value for key, value in inner.items() if "chema" in key or key == "parameters")
        schema.update(title="Mine")
        schema["required"].append("mine")
        schema["properties"]["color"]["description"] = "Mine."
        schema["properties"].pop("color")

    assert json.dumps(yours) == json.dumps(api.wire.tools(registry)) == before
    assert paint.description == "Paint a wall."


@pytest.mark.parametrize("name", ["anthropic", "openai", "openai_chat", "openai_realtime", "gemini", "mcp"])
def test_a_change_to_what_a_registry_rendered_never_reaches_another_caller(name: str) -> None:
    registry = ToolRegistry([paint])
    render = getattr(registry, f"to_{name}_tools")
    before = json.dumps(render())

    open_everything(render())

    assert json.dumps(render()) == before


@every_api
def test_a_definition_is_made_of_plain_dicts_and_lists(api: Api) -> None:
    definitions = api.wire.tools([paint])

    assert {type(part) for definition in definitions for part in every_part(definition)} <= {
        *(dict, list, str, int, float, bool, type(None))
    }
    assert yaml.safe_load(yaml.safe_dump(list(definitions))) == list(definitions)
    for shown in api.shown(definitions):
        assert not jsonschema_rs.validator_for(shown.schema).is_valid({"color": "green"})


@every_api
def test_the_schema_of_a_definition_makes_a_tool_again(api: Api) -> None:
    (shown,) = api.shown(api.wire.tools([paint]))

    again = raw("again", shown.schema)

    assert again.input_schema == shown.schema


def every_part(value: Any) -> Iterator[Any]:
    yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from every_part(inner)


def open_everything(value: Any) -> None:
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        open_everything(inner)
    if isinstance(value, dict):
        value["mine"] = True
    elif isinstance(value, list):
        value.append("mine")


# Strict mode in the formats that have it.


@pytest.mark.parametrize("api", [CHAT, RESPONSES], ids=lambda api: api.name)
def test_openai_gets_strict_tools_where_they_can_be_said_and_the_others_as_they_are(api: Api) -> None:
    sayable, unsayable = hard_tools(strict=True)
    definitions = api.wire.tools([sayable, unsayable])
    first, second = (definition.get("function", definition) for definition in definitions)

    assert first["strict"] is True
    assert not second.get("strict")
    assert second["parameters"]["properties"]["meta"]["additionalProperties"] == {"type": "integer"}
    assert ("unsayable", "is sent without strict mode: meta is a map with open keys") in [
        (note.tool, note.text) for note in definitions.notes
    ]
    calls = api.wire.calls(
        api.response([api.says("1", "sayable", SAYABLE_STRICT), api.says("2", "unsayable", UNSAYABLE)]), definitions
    )
    assert sayable.parse(calls[0].arguments_json) == sayable.parse(json.dumps(SAYABLE))
    assert unsayable.parse(calls[1].arguments_json) == unsayable.parse(json.dumps(UNSAYABLE))


@pytest.mark.parametrize("api", [REALTIME, GEMINI], ids=lambda api: api.name)
def test_a_format_without_strict_mode_says_so(api: Api) -> None:
    definitions = api.wire.tools(hard_tools(strict=True))

    assert all("is sent without strict mode" in note.text for note in definitions.notes)
    assert '"strict":' not in json.dumps(definitions)


@pytest.mark.parametrize("api", [CHAT, RESPONSES, REALTIME], ids=lambda api: api.name)
def test_openai_gets_typed_items_for_every_array(api: Api) -> None:
    lists = {"a": {"type": "array"}, "b": {"type": "object", "properties": {"c": {"type": ["array", "null"]}}}}
    (shown,) = api.shown(api.wire.tools([raw("lists", {"type": "object", "properties": lists})]))

    assert shown.schema["properties"]["a"]["items"] == {}
    assert shown.schema["properties"]["b"]["properties"]["c"]["items"] == {}

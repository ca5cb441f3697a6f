"""A class whose fields are the arguments: its name, its words, its schema, its definition, its tool."""

import gc
import json
import warnings
import weakref
from typing import Any, ClassVar, Literal

import jsonschema_rs
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionToolParam
from openai.types.responses import FunctionToolParam

from handrail import (
    Executor,
    LLMFunctionTool,
    Policy,
    Rule,
    ToolCall,
    ToolContext,
    ToolError,
    ToolFlags,
    as_tool,
)
from handrail.define.llm_function_tool import Api
from handrail.errors import ToolDefinitionError
from handrail.openai import core
from tests.define.models import APIS, book_table, flat, nested, parameters, sent, strict_of, tree

BASES = pytest.mark.parametrize("base", [LLMFunctionTool, core.LLMFunctionTool], ids=["async", "sync"])


# The class


@BASES
@pytest.mark.proves("TC-11", "TC-12")
def test_it_is_a_pydantic_model_bare_or_with_its_contexts(base: Any) -> None:
    class bare(base):
        city: str

    class typed(base[int, float]):
        city: str

    for tool in (bare, typed):
        assert issubclass(tool, pydantic.BaseModel)
        assert list(tool.model_fields) == ["city"]
        assert tool.model_validate({"city": "Oslo"}) == tool(city="Oslo")
        assert tool.model_tool_name() == tool.__name__
        assert list(parameters(tool)["properties"]) == ["city"]


@pytest.mark.proves("TC-14")
def test_a_number_for_a_text_is_taken_and_an_alias_or_its_field_fills_a_field() -> None:
    class lookup(core.LLMFunctionTool):
        number: str
        from_city: str = pydantic.Field(alias="from")

    assert list(parameters(lookup)["properties"]) == ["number", "from"]
    for name in ("from", "from_city"):
        instance = sent(lookup, {"number": 42, name: "Oslo"})
        assert (instance.number, instance.from_city) == ("42", "Oslo")


@BASES
@pytest.mark.parametrize(
    ("setting", "annotation"),
    [("model_tool_custom_name", str), ("model_tool_strict", bool), ("model_tool_custom_json_schema", dict)],
)
@pytest.mark.proves("TC-D6")
def test_a_setting_with_an_annotation_is_refused_with_the_reason(base: Any, setting: str, annotation: type) -> None:
    body = {"__annotations__": {"city": str, setting: annotation}, setting: annotation(), "__module__": __name__}
    with (
        warnings.catch_warnings(action="ignore", category=UserWarning),  # Pydantic notices it too
        pytest.raises(ToolDefinitionError, match=rf"wrong\.{setting} has a type annotation.* without the annotation"),
    ):
        type("wrong", (base,), body)


def test_a_setting_that_is_said_to_be_a_class_variable_is_no_field() -> None:
    class lookup(core.LLMFunctionTool):
        model_tool_custom_name: ClassVar[str] = "look_up"
        city: str

    assert lookup.model_tool_name() == "look_up"
    assert list(lookup.model_fields) == ["city"]


# Its name


def upper(name: str) -> str:
    return name.upper()


@pytest.mark.proves("TC-15", "TC-16", "TC-17")
@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({}, "GetWeather"),
        ({"model_tool_name_generator": upper}, "GETWEATHER"),
        ({"model_tool_name_generator": staticmethod(upper)}, "GETWEATHER"),
        ({"model_tool_name_generator": lambda name: f"my_{name}"}, "my_GetWeather"),
        ({"model_tool_name_generator": str.lower}, "getweather"),
        ({"model_tool_name_generator": lambda name: ""}, "GetWeather"),
        ({"model_tool_custom_name": "weather"}, "weather"),
        ({"model_tool_custom_name": "weather", "model_tool_name_generator": upper}, "weather"),
        ({"model_tool_custom_name": ""}, "GetWeather"),
    ],
)
def test_the_name_is_the_custom_one_or_the_generated_one_or_that_of_the_class(
    settings: dict[str, Any], name: str
) -> None:
    tool = type("GetWeather", (core.LLMFunctionTool,), {"__module__": __name__, **settings})
    assert tool.model_tool_name() == name
    assert tool.model_tool_definition("responses")["name"] == name
    assert tool.model_tool_definition("chat.completions")["function"]["name"] == name


@pytest.mark.proves("TC-16")
def test_a_child_makes_its_own_name_with_the_generator_of_its_parent() -> None:
    class Tool(core.LLMFunctionTool):
        model_tool_name_generator = upper

    class GetWeather(Tool):
        pass

    assert GetWeather.model_tool_name() == "GETWEATHER"


# Its words


@pytest.mark.proves("TC-18", "TC-19", "TC-20")
def test_the_docstrings_are_the_descriptions() -> None:
    class quiet(core.LLMFunctionTool):
        city: str

    class spoken(book_table):
        """Another text."""

        model_tool_custom_description = "\n  Reserve a table:\n  - or two  \n"

    for api in APIS:
        assert flat(book_table, api)["description"] == "Book a table.\n\nAt a place of ours."
        assert flat(spoken, api)["description"] == "Reserve a table:\n  - or two"
        assert "description" not in flat(quiet, api)
    assert parameters(book_table)["properties"]["guests"]["description"] == "How many come."
    assert "description" not in parameters(book_table)["properties"]["place"]


def test_a_child_without_a_docstring_does_not_speak_for_its_parent() -> None:
    class child(book_table):
        pass

    assert "description" not in child.model_tool_definition("responses")


# Its schema


@pytest.mark.proves("TC-22", "TC-25")
def test_a_tool_that_is_written_out_behaves_like_the_one_that_is_not() -> None:
    class BookTable(core.LLMFunctionTool[None, None]):
        guests: int
        place: Literal["hall", "garden"] = "hall"

        model_tool_custom_name = "book_table"
        model_tool_custom_description = "Book a table.\n\nAt a place of ours."
        model_tool_custom_json_schema = book_table.model_tool_json_schema()

        model_tool_handler = book_table.model_tool_handler

    for api in APIS:
        assert BookTable.model_tool_definition(api) == book_table.model_tool_definition(api)
    for arguments in ('{"guests": 2}', "{}", '{"guests": 2, "place": "cellar"}'):
        call = core.StandardToolCall(id="c", name="book_table", arguments=arguments)
        answers = [tool.model_tool_run_tool_call(call, None) for tool in (BookTable, book_table)]
        assert answers[0].fail_reason == answers[1].fail_reason
        assert answers[0].result_content.replace("BookTable", "book_table") == answers[1].result_content


@pytest.mark.proves("TC-22", "TC-23", "TC-24")
def test_a_custom_schema_is_sent_before_a_generated_one_which_is_generated_once() -> None:
    made: list[type] = []

    class lookup(core.LLMFunctionTool):
        city: int

        @classmethod
        def model_tool_generate_json_schema(cls) -> dict[str, Any]:
            made.append(cls)
            return {"type": "object", "properties": {"city": {"type": "integer", "minimum": 5}}, "title": "x"}

    class child(lookup):
        zone: int

    class custom(lookup):
        model_tool_custom_json_schema = {"properties": {"city": {"type": "integer"}}}  # noqa: RUF012

    for _ in range(3):
        for tool in (lookup, child, custom):
            tool.model_tool_definition("responses")
            tool.model_tool_definition("chat.completions")
    assert made == [lookup, child]
    assert lookup.model_tool_json_schema() is lookup.model_tool_json_schema()
    assert parameters(lookup)["properties"]["city"]["minimum"] == 5
    assert custom.model_tool_json_schema() == {"properties": {"city": {"type": "integer"}}}
    assert parameters(custom) == {"type": "object", "properties": {"city": {"type": "integer"}}, "required": []}
    with pytest.raises(pydantic.ValidationError):
        custom.model_tool_validate_tool_call("custom", '{"city": "Oslo"}')


def test_a_class_that_nobody_has_is_not_kept_by_what_was_worked_out_for_it() -> None:
    tool: Any = type("gone", (core.LLMFunctionTool,), {"__module__": __name__, "model_tool_strict": True})
    tool.model_tool_definition("responses")
    tool.model_tool_validate_tool_call("gone", "{}")
    found = weakref.ref(tool)
    del tool
    gc.collect()
    assert found() is None


# Its tool


@BASES
@pytest.mark.proves("TC-13")
async def test_the_class_is_a_tool_whose_contexts_are_the_deps_and_the_context_of_the_result(base: Any) -> None:
    class pay(base[list[str], int]):
        """Pay an invoice."""

        invoice: str
        amount: int = 1
        model_tool_flags = ToolFlags(timeout=5.0)

        def model_tool_handler(self, context: list[str]) -> tuple[str, int]:
            if self.invoice == "closed":
                raise ToolError("The account is closed.", code="closed")
            context.append(self.invoice)
            return f"{self.invoice} is paid", self.amount

    tool = as_tool(pay)
    deps: list[str] = []
    context = ToolContext(session_id="s", deps=deps)

    result = await tool.execute({"invoice": "i-1"}, context)

    assert (result.output, result.context, result.ok) == ("i-1 is paid", 1, True)
    assert deps == ["i-1"]
    assert (tool.name, tool.description, tool.timeout, tool.read_only) == ("pay", "Pay an invoice.", 5.0, False)
    closed = await tool.execute({"invoice": "closed"}, context)
    assert (closed.error.code, closed.error.message) == ("closed", "The account is closed.")
    assert tool(invoice="i-2", context=deps) == ("i-2 is paid", 1)


async def test_a_coroutine_is_a_handler_of_the_tool() -> None:
    class read(LLMFunctionTool[int, int]):
        """Read it."""

        model_tool_flags = ToolFlags(read_only=True, concurrency_safe=True)
        model_tool_strict = True

        async def model_tool_handler(self, context: int) -> tuple[str, int]:
            return "read", context

    tool = as_tool(read)
    result = await tool.execute("", ToolContext(session_id="s", deps=7))
    assert (result.output, result.context) == ("read", 7)
    assert (tool.is_async, tool.read_only, tool.concurrency_safe, tool.strict) == (True, True, True, True)
    assert tool.description == "Read it."
    assert "description" not in tool.input_schema


@BASES
@pytest.mark.parametrize("number", ["NaN", '"NaN"', "1e999", '1.0, "amount": 2.0'])
async def test_a_class_with_consequences_refuses_what_can_be_read_in_two_ways(base: Any, number: str) -> None:
    class pay(base):
        amount: float

        def model_tool_handler(self, context: None) -> tuple[str, None]:
            return str(self.amount), None

    class peek(pay):
        model_tool_flags = ToolFlags(read_only=True)

    context = ToolContext(session_id="s")
    assert not (await as_tool(pay).execute(f'{{"amount": {number}}}', context)).ok
    assert (await as_tool(peek).execute(f'{{"amount": {number}}}', context)).ok


@BASES
async def test_the_words_that_a_class_has_for_errors_are_used_by_its_tool(base: Any) -> None:
    class polite(base):
        city: str

        @classmethod
        def model_tool_format_invalid_arguments_error(cls, err: pydantic.ValidationError) -> str:
            return f"Please check {err.error_count()} argument."

        @classmethod
        def model_tool_format_explicit_error(cls, err: ToolError) -> str:
            return f"We are sorry: {err}"

        def model_tool_handler(self, context: None) -> tuple[str, None]:
            raise ToolError("closed")

    context = ToolContext(session_id="s")
    bad = await as_tool(polite).execute({}, context)
    assert (bad.error.code, bad.error.message) == ("invalid_arguments", "Please check 1 argument.")
    failed = await as_tool(polite).execute({"city": "Oslo"}, context)
    assert failed.error.message == "We are sorry: closed"


@BASES
def test_a_class_without_a_handler_is_no_tool(base: Any) -> None:
    class lookup(base[None, None]):
        city: str

    with pytest.raises(ToolDefinitionError, match="lookup cannot be run: it has no model_tool_handler"):
        as_tool(lookup)


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


class Fare(LLMFunctionTool):
    city: str

    def model_tool_handler(self, context: Any) -> Any:  # A plain method, as that of a decorator.
        return self.find(context)

    async def find(self, context: Any) -> Any:
        if self.city == "nowhere":
            raise ToolError("There is no such city.")
        return f"to {self.city}", context


@pytest.mark.parametrize("way", ["group", "executor"])
async def test_a_plain_method_may_return_what_has_to_be_awaited(way: str) -> None:
    async def run(city: str) -> str | None:
        arguments = json.dumps({"city": city})
        if way == "group":
            called = {"call_id": "c-1", "name": "Fare", "arguments": arguments}
            return str((await Fare.model_tool_run_tool_call(called, 7)).result_content)
        result = await executor.run(
            ToolCall(id=city, name="Fare", arguments_json=arguments), ToolContext(session_id="s", deps=7)
        )
        return result.output if result.error is None else result.error.message

    executor = Executor([Fare], policy=Policy([Rule.allow("*")]))

    assert [await run("Oslo"), await run("nowhere")] == ["to Oslo", "There is no such city."]

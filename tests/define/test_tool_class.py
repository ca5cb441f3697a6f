"""A class whose fields are the arguments: its name, its words, its schema, its definition, its tool."""

import gc
import warnings
import weakref
from typing import Any, ClassVar, Literal

import pydantic
import pytest

from handrail import LLMFunctionTool, ToolContext, ToolError, ToolFlags, as_tool
from handrail.errors import ToolDefinitionError
from handrail.openai import core
from tests.define.models import APIS, book_table, flat, parameters, sent

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

"""A group of tools: what is in it, what it tells a model, and how it finds the tool of a call.

Every test runs against `core` and against `aio`.
"""

import json
from textwrap import indent
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import OpenAI
from openai.types.chat import ChatCompletionToolParam
from openai.types.responses import FunctionToolParam
from pydantic import TypeAdapter

from handrail.define.llm_function_tool import Api
from handrail.openai import core
from handrail.testing.servers import OpenAIServer, text, tool_calls
from tests.openai.facades import AIO, CORE, Facade

APIS = get_args(Api)


def tools_of(facade: Facade) -> tuple[Any, Any]:
    class double(facade.LLMFunctionTool[int, int]):
        """Twice a number."""

        number: int
        """The number."""

        model_tool_handler = facade.handler(lambda self, context: (str(2 * self.number + context), context))

    class Shout(facade.LLMFunctionTool[int, int]):
        text: str
        times: int | None = None

        model_tool_custom_name = "shout"
        model_tool_strict = True
        model_tool_handler = facade.handler(lambda self, context: (self.text.upper() * (self.times or 1), context))

    return double, Shout


def group_of(facade: Facade) -> Any:
    return facade.LLMFunctionToolGroup[int, int].from_list(tools_of(facade))


def call(name: str, arguments: dict[str, Any], id: str = "call_1") -> core.StandardToolCall:
    return core.StandardToolCall(id=id, name=name, arguments=json.dumps(arguments))


@pytest.mark.proves("TC-52", "TC-53")
def test_a_group_is_a_dict_that_classes_are_added_to_under_their_tool_names(facade: Facade) -> None:
    double, shout = tools_of(facade)
    group = facade.LLMFunctionToolGroup[int, int]()

    assert isinstance(group, dict)
    assert group == {}
    assert group.add_tool(double) is double
    assert group.add_tool(shout) is shout
    assert group == {"double": double, "shout": shout}


@pytest.mark.proves("TC-53")
def test_a_decorated_class_stays_what_it_is(facade: Facade) -> None:
    group = facade.LLMFunctionToolGroup()

    @group.add_tool
    class triple(facade.LLMFunctionTool):
        number: int

    assert group == {"triple": triple}
    assert triple(number=1).number == 1
    assert issubclass(triple, facade.LLMFunctionTool)


def test_a_class_added_again_replaces_the_one_of_its_name(facade: Facade) -> None:
    (double, _), (other, _) = tools_of(facade), tools_of(facade)
    group = facade.LLMFunctionToolGroup.from_list([double])
    group.add_tool(other)
    assert list(group.values()) == [other]


@pytest.mark.proves("TC-55")
def test_a_group_is_made_of_a_list(facade: Facade) -> None:
    double, shout = tools_of(facade)
    group = facade.LLMFunctionToolGroup[int, int].from_list((shout, double))
    assert type(group) is facade.LLMFunctionToolGroup
    assert list(group.items()) == [("shout", shout), ("double", double)]


@pytest.mark.proves("TC-62")
def test_a_group_says_what_is_in_it(facade: Facade) -> None:
    double, shout = tools_of(facade)
    group = facade.LLMFunctionToolGroup.from_list([shout])

    both = facade.LLMFunctionToolGroup.from_list([shout, double])
    assert (both.tool_names, both.tool_classes) == (["shout", "double"], [shout, double])
    assert "shout" in group
    assert shout in group
    assert "Shout" not in group
    assert "double" not in group
    assert double not in group
    assert 5 not in group
    assert str not in group


@pytest.mark.proves("TC-62")
@pytest.mark.parametrize("api", APIS)
def test_the_pretty_definition_of_a_group_has_those_of_its_tools(facade: Facade, api: Api) -> None:
    group = group_of(facade)
    parts = [tool.model_tool_pretty_definition(api) for tool in group.values()]
    inner = indent(",\n".join(parts), "    ")
    assert group.pretty_definition(api) == f"LLMFunctionToolGroup([\n{inner}\n])"


@pytest.mark.proves("TC-56")
@pytest.mark.parametrize(
    ("api", "shape"), [("chat.completions", ChatCompletionToolParam), ("responses", FunctionToolParam)]
)
def test_the_definitions_are_those_of_the_tools_in_their_order(facade: Facade, api: Api, shape: Any) -> None:
    double, shout = tools_of(facade)
    for tools in ([double, shout], [shout, double]):
        group = facade.LLMFunctionToolGroup.from_list(tools)
        definitions = group.tool_definitions(api=api)
        assert definitions == [tool.model_tool_definition(api) for tool in tools]
        TypeAdapter(list[shape]).validate_python(definitions)
    assert facade.LLMFunctionToolGroup().tool_definitions(api) == []


@pytest.mark.proves("TC-30", "TC-56", "TC-57")
@pytest.mark.parametrize("api", APIS)
def test_a_strict_server_takes_the_definitions_and_the_results(facade: Facade, api: Api) -> None:
    group = group_of(facade)
    asked = [("shout", {"text": "a", "times": None}), ("double", {"number": 4}), ("nobody", {}), ("shout", {})]

    with (
        OpenAIServer([tool_calls(*asked), text("Done.")]) as server,
        OpenAI(base_url=server.url, api_key="test", max_retries=0) as client,
    ):
        send: Any = client.chat.completions.create if api == "chat.completions" else client.responses.create
        where = "messages" if api == "chat.completions" else "input"
        told: list[Any] = [{"role": "user", "content": "Shout, and double."}]
        answer = send(model="local", tools=group.tool_definitions(api), **{where: told})
        if api == "chat.completions":
            told += [answer.choices[0].message]
            results = facade.wait(group.run_tool_calls(answer.choices[0].message.tool_calls, 1))
            told += [result.tool_message for result in results]
        else:
            told += answer.output
            results = facade.wait(group.run_tool_calls(answer.output, 1))
            told += [result.output_item for result in results]
        send(model="local", tools=group.tool_definitions(api), **{where: told})

    assert [request.refused for request in server.requests] == [None, None]
    assert [result.fail_reason for result in results] == [None, None, "invalid_name", "invalid_arguments"]
    assert [result.result_content for result in results[:2]] == ["A", "9"]


@pytest.mark.proves("TC-57")
def test_a_call_is_run_by_the_tool_that_it_names_with_the_context(facade: Facade) -> None:
    group = group_of(facade)
    result = facade.wait(group.run_tool_call(call("double", {"number": 4}), 100))
    assert result == facade.ToolCallSuccess(call_id="call_1", result_content="108", context=100)
    result = facade.wait(group.run_tool_call(call("shout", {"text": "a", "times": 2}), 100))
    assert result.result_content == "AA"


def test_a_class_that_runs_calls_in_its_own_way_is_asked(facade: Facade) -> None:
    async def run_async(cls: Any, call: Any, context: Any) -> Any:
        return run(cls, call, context)

    def run(cls: Any, call: Any, context: Any) -> Any:
        return facade.ToolCallSuccess(call_id=call.id, result_content=call.arguments, context=cls)

    class own(facade.LLMFunctionTool):
        model_tool_run_tool_call = classmethod(run_async if facade.is_async else run)

    group = facade.LLMFunctionToolGroup.from_list([own])
    assert facade.wait(group.run_tool_call(call("own", {"x": 1}), None)).result_content == '{"x": 1}'


@pytest.mark.proves("TC-58", "TC-46", "TC-D2")
@pytest.mark.parametrize("name", ["nobody", "Shout", "DOUBLE", "", "a b", "`x`", "double\n"])
def test_an_unknown_name_is_not_found(facade: Facade, name: str) -> None:
    result = facade.wait(group_of(facade).run_tool_call(call(name, {}, "call_7"), 1))
    assert result == facade.ToolCallFailure(
        call_id="call_7", result_content=f"Function `{name}` not found.", fail_reason="invalid_name", context=None
    )


def test_a_lone_surrogate_in_a_name_does_not_make_the_result_unsendable(facade: Facade) -> None:
    result = facade.wait(group_of(facade).run_tool_call(call("x\ud800", {}), 1))
    assert result.result_content == "Function `x?` not found."


GROUPS = [(facade, group_of(facade)) for facade in (CORE, AIO)]
CALLS = st.builds(
    call,
    st.sampled_from(["double", "shout", "nobody"]),
    st.fixed_dictionaries({}, optional={"number": st.integers(-9, 9), "text": st.sampled_from(["a", "b"])}),
    st.uuids().map(str),
)


@pytest.mark.proves("TC-59")
@given(calls=st.lists(CALLS, max_size=6))
def test_every_call_gets_a_result_under_its_id_in_the_order_of_the_calls(calls: list[core.StandardToolCall]) -> None:
    for facade, group in GROUPS:
        results = facade.wait(group.run_tool_calls(calls, 1))
        assert results == [facade.wait(group.run_tool_call(item, 1)) for item in calls]
        assert [result.call_id for result in results] == [item.id for item in calls]

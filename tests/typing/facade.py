"""How `handrail.openai` looks to a type checker. Nobody runs this; tests/repository/test_types.py checks it."""

from typing import Literal, Self, assert_type

from openai.types.chat import ChatCompletionMessage, ChatCompletionToolMessageParam, ChatCompletionToolParam
from openai.types.responses import FunctionToolParam, ResponseFunctionToolCall
from openai.types.responses.response_input_param import FunctionCallOutput

from handrail.openai import aio, core

group = core.LLMFunctionToolGroup[int, float]()
async_group = aio.LLMFunctionToolGroup[int, float]()


# A decorated class keeps its type.


@group.add_tool
class Fits(core.LLMFunctionTool[int, float]):
    city: str

    def model_tool_handler(self, context: int) -> tuple[str, float]:
        return self.city, context / 2


@async_group.add_tool
class AsyncFits(aio.LLMFunctionTool[int, float]):
    city: str

    async def model_tool_handler(self, context: int) -> aio.ToolHandlerResult[float]:
        return aio.ToolHandlerResult(self.city, context / 2)


@group.add_tool
class Bare(core.LLMFunctionTool):
    city: str


@group.add_tool
class TakesMoreGivesLess(core.LLMFunctionTool[object, int]):
    city: str


class Child(Fits):
    country: str


assert_type(group.add_tool(Fits), type[Fits])
assert_type(Fits(city="Oslo"), Fits)
assert_type(Bare(city="Oslo").city, str)
assert_type(Child(city="Oslo", country="NO").country, str)
Fits(town="Oslo")  # E: reportCallIssue


# A tool whose contexts do not fit its group is an error.


class WrongIn(core.LLMFunctionTool[str, float]):
    pass


class WrongOut(core.LLMFunctionTool[int, str]):
    pass


class WrongOutAsync(aio.LLMFunctionTool[int, str]):
    pass


group.add_tool(WrongIn)  # E: reportArgumentType
group.add_tool(WrongOut)  # E: reportArgumentType
group.add_tool(AsyncFits)  # E: reportArgumentType
group.add_tool(str)  # E: reportArgumentType
async_group.add_tool(WrongOutAsync)  # E: reportArgumentType
async_group.add_tool(Fits)  # E: reportArgumentType
core.LLMFunctionToolGroup[int, float].from_list([Fits, WrongIn])  # E: reportArgumentType
group["WrongOut"] = WrongOut  # E: reportArgumentType

assert_type(core.LLMFunctionToolGroup[int, float].from_list([Fits, Bare]), core.LLMFunctionToolGroup[int, float])
assert_type(group["Fits"], type[core.LLMFunctionTool[int, float]])


class WrongHandler(core.LLMFunctionTool[int, float]):
    def model_tool_handler(self, context: int) -> str:  # E: reportIncompatibleMethodOverride
        return ""


class Overrides(core.LLMFunctionTool[int, float]):
    model_tool_custom_name = "overrides"
    model_tool_name_generator = str.lower
    model_tool_custom_json_schema = {"type": "object", "properties": {}}  # noqa: RUF012
    model_tool_strict = True

    @classmethod
    def model_tool_format_explicit_error(cls, err: core.ToolErrorMessageForLLMToSee) -> str:
        return f"Sorry: {err}"

    @classmethod
    def model_tool_validate_tool_call(cls, name: str, arguments: str) -> Self:
        return super().model_tool_validate_tool_call(name, arguments)


assert_type(group.add_tool(Overrides), type[Overrides])


# What runs a call, and what comes back.


def narrowing(message: ChatCompletionMessage, call: ResponseFunctionToolCall) -> None:
    group.run_tool_call(call, "text")  # E: reportArgumentType
    group.run_tool_call(5, 1)  # E: reportArgumentType
    group.run_tool_call({"call_id": "call_1", "name": "Fits", "arguments": "{}"}, 1)
    for answer in group.run_tool_calls(message.tool_calls or [], 1):
        assert_type(answer.tool_message, ChatCompletionToolMessageParam)
        assert_type(answer.context, float | None)

    result = Fits.model_tool_run_tool_call(call, 1)
    assert_type(result.output_item, FunctionCallOutput)
    if result.fail_reason is None:
        assert_type(result, core.ToolCallSuccess[float])
        assert_type(result.context, float)
    else:
        assert_type(result, core.ToolCallFailure)
        assert_type(result.context, None)
        assert_type(result.fail_reason, Literal["invalid_name", "invalid_arguments", "explicit_handler_error"])
    if result.fail_reason == "not_a_reason":  # E: reportUnnecessaryComparison
        pass


async def narrowing_async(call: ResponseFunctionToolCall) -> None:
    result = await AsyncFits.model_tool_run_tool_call(call, 1)
    if result.fail_reason is None:
        assert_type(result.context, float)
    for answer in await async_group.run_tool_calls([call], 1):
        if answer.fail_reason is None:
            assert_type(answer.context, float)
        else:
            assert_type(answer.context, None)
    async_group.run_tool_calls([call], 1)  # E: reportUnusedCoroutine


# The type of a definition follows from the API.

assert_type(Fits.model_tool_definition(api="chat.completions"), ChatCompletionToolParam)
assert_type(Fits.model_tool_definition(api="responses"), FunctionToolParam)
assert_type(group.tool_definitions(api="chat.completions"), list[ChatCompletionToolParam])
assert_type(async_group.tool_definitions(api="responses"), list[FunctionToolParam])
assert_type(core.tool_def_for_chat_completions_api("name", None, False, {}), ChatCompletionToolParam)
assert_type(core.tool_def_for_responses_api("name", None, False, {}), FunctionToolParam)
Fits.model_tool_definition(api="completions")  # E: reportArgumentType, reportCallIssue

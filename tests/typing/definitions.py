"""How definitions look to a type checker: each SDK takes its own."""

from typing import Any, assert_type

from anthropic import Anthropic
from anthropic.types import ToolParam
from google.genai.types import ToolDict
from openai import OpenAI
from openai.types.chat import ChatCompletionFunctionToolParam
from openai.types.realtime import RealtimeFunctionToolParam
from openai.types.responses import FunctionToolParam, ResponseInputParam

from handrail import ToolCall, ToolRegistry, ToolResult
from handrail.formats import Definitions, anthropic, gemini, mcp, openai_chat, openai_realtime, openai_responses


def definitions_have_the_types_of_the_sdks(registry: ToolRegistry) -> None:
    assert_type(registry.to_anthropic_tools(), Definitions[ToolParam])
    assert_type(registry.to_openai_tools(), Definitions[FunctionToolParam])
    assert_type(registry.to_openai_chat_tools(), Definitions[ChatCompletionFunctionToolParam])
    assert_type(registry.to_openai_realtime_tools(), Definitions[RealtimeFunctionToolParam])
    assert_type(registry.to_gemini_tools(), Definitions[ToolDict])
    assert_type(registry.to_mcp_tools(), Definitions[dict[str, Any]])
    assert_type(anthropic.tools(registry), Definitions[ToolParam])
    assert_type(openai_responses.tools(registry), Definitions[FunctionToolParam])
    assert_type(openai_chat.tools(registry), Definitions[ChatCompletionFunctionToolParam])
    assert_type(openai_realtime.tools(registry), Definitions[RealtimeFunctionToolParam])
    assert_type(gemini.tools(registry), Definitions[ToolDict])
    assert_type(mcp.tools(registry), Definitions[dict[str, Any]])


def a_request_takes_them_as_they_are(registry: ToolRegistry, results: list[ToolResult]) -> list[ToolCall]:
    definitions = anthropic.tools(registry)
    message = Anthropic().messages.create(
        model="m",
        max_tokens=1,
        messages=[{"role": "user", "content": "Hi."}, *anthropic.results(results)],
        tools=definitions,
        tool_choice=anthropic.tool_choice(tool="pay", definitions=definitions),
    )
    flat = openai_responses.tools(registry)
    messages: ResponseInputParam = [{"role": "user", "content": "Hi."}]
    messages += openai_responses.results(results)
    response = OpenAI().responses.create(
        model="m", input=messages, tools=flat, tool_choice=openai_responses.tool_choice("required")
    )
    wrapped = openai_chat.tools(registry)
    completion = OpenAI().chat.completions.create(
        model="m", messages=openai_chat.results(results), tools=wrapped, tool_choice=openai_chat.tool_choice("none")
    )
    return [
        *anthropic.calls(message, definitions),
        *openai_responses.calls(response, flat),
        *openai_chat.calls(completion, wrapped),
    ]

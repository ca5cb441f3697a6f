"""Definitions, results and choices are what the official SDKs say can be sent."""

from collections.abc import Iterator
from typing import Any

import mcp_types
import pytest
from anthropic.types import ToolChoiceParam, ToolParam, ToolResultBlockParam
from google.genai import types as genai
from openai.types.chat import (
    ChatCompletionFunctionToolParam,
    ChatCompletionToolChoiceOptionParam,
    ChatCompletionToolMessageParam,
)
from openai.types.realtime import ConversationItemCreateEventParam, RealtimeFunctionToolParam
from openai.types.realtime.realtime_tool_choice_config_param import RealtimeToolChoiceConfigParam
from openai.types.responses import FunctionToolParam
from openai.types.responses.response_create_params import ToolChoice
from openai.types.responses.response_input_param import FunctionCallOutput
from pydantic import TypeAdapter

from handrail import Tool, ToolRegistry, ToolResult, tool
from tests.formats.apis import ANTHROPIC, CHAT, GEMINI, MCP, REALTIME, RESPONSES, Api
from tests.formats.hard import hard_tools

RESULTS = [
    ToolResult(output={"a": [1, None]}, call_id="c-1", tool_name="sayable"),
    ToolResult(output="text", call_id="c-2", tool_name="sayable"),
    ToolResult(error="No.", call_id="c-3", tool_name="sayable"),
]
CHOICES: list[dict[str, Any]] = [{}, {"mode": "none"}, {"mode": "required"}, {"tool": "sayable"}]
ALLOWED: list[dict[str, Any]] = [{"allowed": ["sayable"]}, {"mode": "required", "allowed": ["sayable"]}]


@tool(examples=[{"city": "Ulm"}], read_only=True)
def weather(city: str) -> dict[str, int]:
    """Look out of the window."""
    return {"degrees": 20}


def every_tool() -> Iterator[Tool[..., Any]]:
    yield weather
    yield from hard_tools(strict=False)
    for item in hard_tools(strict=True):
        yield tool(name=f"strict_{item.name}", strict=True)(item.function)


def plain(value: Any) -> Any:
    """A value of the SDK's type with its lazy iterators run through."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    return [plain(part) for part in value] if isinstance(value, list) or hasattr(value, "__next__") else value


def fits(kind: Any, value: Any) -> None:
    """The value is of the SDK's type, and has nothing that the type does not have."""
    assert plain(TypeAdapter(kind).validate_python(value)) == value


@pytest.mark.parametrize(
    ("api", "kind"),
    [
        (CHAT, ChatCompletionFunctionToolParam),
        (RESPONSES, FunctionToolParam),
        (REALTIME, RealtimeFunctionToolParam),
        (ANTHROPIC, ToolParam),
    ],
    ids=["openai_chat", "openai_responses", "openai_realtime", "anthropic"],
)
def test_definitions_are_of_the_sdks_type(api: Api, kind: Any) -> None:
    definitions = api.wire.tools(every_tool())

    assert len(definitions) == 5
    for definition in definitions:
        fits(kind, definition)


def test_gemini_definitions_are_of_the_sdks_type() -> None:
    (entry,) = GEMINI.wire.tools(every_tool())

    found = genai.Tool.model_validate(entry)

    assert len(found.function_declarations or ()) == 5
    assert found.model_dump(exclude_none=True) == entry
    assert genai.GenerateContentConfig(tools=[found], tool_config=GEMINI.wire.tool_choice(tool="sayable"))


def test_mcp_definitions_are_of_the_sdks_type() -> None:
    definitions = MCP.wire.tools(every_tool())

    assert len(definitions) == 5
    for definition in definitions:
        found = mcp_types.Tool.model_validate(definition)
        assert found.model_dump(by_alias=True, exclude_none=True) == definition


@pytest.mark.proves("HC-18", "PH-28")
@pytest.mark.parametrize(
    ("api", "kind"),
    [
        (CHAT, ChatCompletionToolMessageParam),
        (RESPONSES, FunctionCallOutput),
        (REALTIME, ConversationItemCreateEventParam),
    ],
    ids=["openai_chat", "openai_responses", "openai_realtime"],
)
def test_results_are_of_the_sdks_type(api: Api, kind: Any) -> None:
    results = api.wire.results(RESULTS)

    assert len(results) == 3
    for result in results:
        fits(kind, result)


@pytest.mark.proves("HC-16")
def test_anthropic_results_are_of_the_sdks_type() -> None:
    (message,) = ANTHROPIC.wire.results(RESULTS)

    assert message["role"] == "user"
    assert len(message["content"]) == 3
    for block in message["content"]:
        fits(ToolResultBlockParam, block)


def test_gemini_results_are_of_the_sdks_type() -> None:
    (content,) = GEMINI.wire.results(RESULTS)

    assert genai.Content.model_validate(content).model_dump(exclude_none=True) == content


def test_mcp_results_are_of_the_sdks_type() -> None:
    for result in MCP.wire.results(RESULTS):
        found = mcp_types.CallToolResult.model_validate(result)
        assert found.model_dump(by_alias=True, exclude_none=True) == result | {"resultType": "complete"}


@pytest.mark.parametrize(
    ("api", "kind", "asked"),
    [
        *((CHAT, ChatCompletionToolChoiceOptionParam, asked) for asked in CHOICES + ALLOWED),
        *((RESPONSES, ToolChoice, asked) for asked in CHOICES + ALLOWED),
        *((REALTIME, RealtimeToolChoiceConfigParam, asked) for asked in CHOICES),
        *((ANTHROPIC, ToolChoiceParam, asked) for asked in CHOICES),
    ],
    ids=lambda given: given.name if isinstance(given, Api) else "" if not isinstance(given, dict) else str(given),
)
def test_choices_are_of_the_sdks_type(api: Api, kind: Any, asked: Any) -> None:
    fits(kind, api.wire.tool_choice(**asked))


@pytest.mark.parametrize("asked", CHOICES + ALLOWED, ids=str)
def test_gemini_choices_are_of_the_sdks_type(asked: Any) -> None:
    value = GEMINI.wire.tool_choice(**asked, definitions=GEMINI.wire.tools(ToolRegistry(hard_tools(strict=False))))

    assert genai.ToolConfig.model_validate(value).model_dump(exclude_none=True, mode="json") == value

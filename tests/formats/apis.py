"""The six wire formats, seen alike: what a definition shows to a model, what a model answers, what is sent back."""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

from handrail import Failure, Tool, ToolCall, ToolContext, ToolNotFoundError, ToolRegistry, ToolResult
from handrail.formats import anthropic, gemini, mcp, openai_chat, openai_realtime, openai_responses


@dataclass(frozen=True)
class Shown:
    """What a model sees of a tool."""

    name: str
    description: str
    schema: Any


@dataclass(frozen=True)
class Answer:
    """What a model reads about a call."""

    id: str | None
    text: str
    failed: bool | None
    """None where the API has no mark for it."""


@dataclass(frozen=True)
class Said:
    """A call as a model says it."""

    id: str
    name: str
    arguments: Any
    """JSON text for the APIs that have text, a value for the others; `arguments_of` makes either of a value."""


@dataclass(frozen=True)
class Api:
    """One wire format."""

    name: str
    wire: ModuleType
    name_pattern: str
    """What the API accepts as a tool's name, the length included."""
    sends_text: bool
    """Whether arguments come back as JSON text; elsewhere the SDK has parsed them already."""
    shown: Callable[[Sequence[Any]], list[Shown]]
    response: Callable[[Iterable[Said]], Any]
    answers: Callable[[Sequence[Any]], list[Answer]]

    def says(self, id: str, name: str, value: Any) -> Said:
        return Said(id, name, json.dumps(value) if self.sends_text else value)

    def accepts(self, name: str) -> bool:
        return re.fullmatch(self.name_pattern, name) is not None


def _chat_response(calls: Iterable[Said]) -> Any:
    tool_calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in calls
    ]
    message = {"role": "assistant", "content": None, "tool_calls": tool_calls}
    return {"id": "chatcmpl_1", "choices": [{"index": 0, "finish_reason": "tool_calls", "message": message}]}


def function_call(one: Said, status: str = "completed") -> dict[str, Any]:
    item = {"type": "function_call", "id": f"fc_{one.id}", "call_id": one.id, "name": one.name}
    return item | {"arguments": one.arguments, "status": status}


def _responses_response(calls: Iterable[Said]) -> Any:
    return {"id": "resp_1", "status": "completed", "output": [function_call(call) for call in calls]}


def _realtime_response(calls: Iterable[Said]) -> Any:
    return [
        {
            "type": "response.output_item.done",
            "response_id": "resp_1",
            "output_index": index,
            "item": function_call(one),
        }
        for index, one in enumerate(calls)
    ]


def _anthropic_response(calls: Iterable[Said]) -> Any:
    blocks = [{"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments} for call in calls]
    return {"id": "msg_1", "role": "assistant", "stop_reason": "tool_use", "content": blocks}


def _gemini_response(calls: Iterable[Said]) -> Any:
    parts = [{"functionCall": {"id": call.id, "name": call.name, "args": call.arguments}} for call in calls]
    candidate = {"finishReason": "STOP", "content": {"role": "model", "parts": parts}}
    return {"responseId": "resp_1", "candidates": [candidate]}


def _mcp_response(calls: Iterable[Said]) -> Any:
    return [
        {"id": call.id, "method": "tools/call", "params": {"name": call.name, "arguments": call.arguments}}
        for call in calls
    ]


CHAT = Api(
    "openai_chat",
    openai_chat,
    "[a-zA-Z0-9_-]{1,64}",
    True,
    lambda definitions: [
        Shown(item["name"], item["description"], item["parameters"]) for item in (d["function"] for d in definitions)
    ],
    _chat_response,
    lambda results: [Answer(result["tool_call_id"], result["content"], None) for result in results],
)
RESPONSES = Api(
    "openai_responses",
    openai_responses,
    "[a-zA-Z0-9_-]{1,128}",
    True,
    lambda definitions: [
        Shown(definition["name"], definition["description"], definition["parameters"]) for definition in definitions
    ],
    _responses_response,
    lambda results: [Answer(result["call_id"], result["output"], None) for result in results],
)
REALTIME = Api(
    "openai_realtime",
    openai_realtime,
    "[a-zA-Z0-9_-]{1,128}",
    True,
    lambda definitions: [
        Shown(definition["name"], definition["description"], definition["parameters"]) for definition in definitions
    ],
    _realtime_response,
    lambda results: [Answer(result["item"]["call_id"], result["item"]["output"], None) for result in results],
)
ANTHROPIC = Api(
    "anthropic",
    anthropic,
    "[a-zA-Z0-9_-]{1,128}",
    False,
    lambda definitions: [
        Shown(definition["name"], definition["description"], definition["input_schema"]) for definition in definitions
    ],
    _anthropic_response,
    lambda results: [
        Answer(block["tool_use_id"], block["content"], block.get("is_error", False))
        for message in results
        for block in message["content"]
    ],
)
GEMINI = Api(
    "gemini",
    gemini,
    "[A-Za-z_][A-Za-z0-9_.:-]{0,127}",
    False,
    lambda definitions: [
        Shown(declaration["name"], declaration["description"], declaration.get("parameters_json_schema"))
        for entry in definitions
        for declaration in entry["function_declarations"]
    ],
    _gemini_response,
    lambda results: [
        Answer(item.get("id"), *next((text, key == "error") for key, text in item["response"].items()))
        for content in results
        for item in (part["function_response"] for part in content["parts"])
    ],
)
MCP = Api(
    "mcp",
    mcp,
    "[A-Za-z0-9_.-]{1,128}",
    False,
    lambda definitions: [
        Shown(definition["name"], definition["description"], definition["inputSchema"]) for definition in definitions
    ],
    _mcp_response,
    lambda results: [Answer(None, result["content"][0]["text"], result["isError"]) for result in results],
)
ALL = (CHAT, RESPONSES, REALTIME, ANTHROPIC, GEMINI, MCP)
every_api = pytest.mark.parametrize("api", ALL, ids=lambda api: api.name)


async def answer(registry: ToolRegistry, call: ToolCall) -> ToolResult:
    """What a loop written by hand does with a call."""
    try:
        found: Tool[..., Any] = registry.get(call.name)
    except ToolNotFoundError as error:
        failure = Failure(code=error.code, message=error.message)
        return ToolResult(error=failure, call_id=call.id, provider_id=call.provider_id, tool_name=call.name)
    return await found.execute(call.arguments_json, ToolContext(session_id="s-1", call=call))

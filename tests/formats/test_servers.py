"""The hard tools through the official SDKs: definitions out, calls back, results out, against strict local servers."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from anthropic import Anthropic
from google import genai
from mcp.client.client import Client
from mcp.server.lowlevel.server import Server
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult
from mcp_types import Tool as McpTool
from openai import OpenAI

from handrail import ToolCall, ToolRegistry, ToolResult, build_tool, tool
from handrail.formats import anthropic, gemini, mcp, openai_chat, openai_responses
from handrail.testing.servers import AnthropicServer, GeminiServer, OpenAIServer, text, text_and_calls, truncated
from tests.formats.apis import answer
from tests.formats.hard import SAYABLE, SAYABLE_STRICT, UNSAYABLE, Address, Color, Even, Pet, hard_tools

ASK = "Take the dog."


@tool(read_only=True, examples=[{"city": "Ulm"}], name="wetter größe")
async def odd_name(city: str) -> dict[str, int]:
    """Look out of the window."""
    return {"degrees": 20}


odd_parameters = build_tool(
    {
        "name": "search",
        "input_schema": {"type": "object", "properties": {"$filter": {"type": "array"}}, "required": ["$filter"]},
        "execute": lambda payload: payload["$filter"],
        "is_read_only": True,
    }
)
bad = build_tool(
    {"name": "bad", "input_schema": {"type": "object", "anyOf": [{"required": ["a"]}]}, "execute": lambda payload: ""}
)


async def flat(pet: Pet, color: Color, address: Address, n: Even = 2, note: str | None = None) -> str:
    """Take an animal, without anything that refers to itself: also Anthropic can be strict about it."""
    return ""


def registry(*, strict: bool) -> ToolRegistry:
    return ToolRegistry([*hard_tools(strict=strict), odd_name, odd_parameters, tool(strict=strict)(flat)])


class Turn:
    """One request and the next, in the terms of one SDK."""

    def __init__(
        self, wire: Any, definitions: Any, send: Callable[[list[Any]], Any], said: Callable[[Any], Any]
    ) -> None:
        self.wire, self.definitions, self.send, self.said = wire, definitions, send, said
        self.history: list[Any] = []

    async def run(self, registry: ToolRegistry) -> list[ToolResult]:
        """Ask, run what is called, tell the results; a strict server refuses what is wrong in either request."""
        response = self.send(self.history)
        calls: list[ToolCall] = self.wire.calls(response, self.definitions)
        results = [await answer(registry, call) for call in calls]
        self.history += self.said(response)
        self.history += self.wire.results(results, self.definitions)
        self.send(self.history)
        return results


@contextmanager
def chat(script: Any, registry: ToolRegistry, stream: bool) -> Iterator[Turn]:
    definitions = openai_chat.tools([*registry, bad])
    with OpenAIServer(script) as server, OpenAI(api_key="test", base_url=server.url, max_retries=0) as client:

        def send(history: list[Any]) -> Any:
            messages: Any = [{"role": "user", "content": ASK}, *history]
            choice = openai_chat.tool_choice(allowed=["sayable", "unsayable"], definitions=definitions)
            answer = client.chat.completions.create(
                model="m", messages=messages, tools=definitions, tool_choice=choice, stream=stream
            )
            return list(answer) if stream else answer

        def said(response: Any) -> list[Any]:
            tool_calls = [
                {
                    "id": call.wire_id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments_json},
                }
                for call in openai_chat.calls(response)
            ]
            return [{"role": "assistant", "content": None, "tool_calls": tool_calls}]

        yield Turn(openai_chat, definitions, send, said)


@contextmanager
def responses(script: Any, registry: ToolRegistry, stream: bool) -> Iterator[Turn]:
    definitions = openai_responses.tools([*registry, bad])
    with OpenAIServer(script) as server, OpenAI(api_key="test", base_url=server.url, max_retries=0) as client:

        def send(history: list[Any]) -> Any:
            choice = openai_responses.tool_choice("required", allowed=["sayable"], definitions=definitions)
            answer: Any = client.responses.create(
                model="m",
                input=[{"role": "user", "content": ASK}, *history],
                tools=definitions,
                tool_choice=choice,
                stream=stream,
            )
            return list(answer) if stream else answer

        def said(response: Any) -> list[Any]:
            whole = response[-1].response if stream else response
            return [part.model_dump(exclude_none=True) for part in whole.output if part.type == "function_call"]

        yield Turn(openai_responses, definitions, send, said)


@contextmanager
def messages(script: Any, registry: ToolRegistry, stream: bool) -> Iterator[Turn]:
    definitions = anthropic.tools([*registry, bad])
    with AnthropicServer(script) as server, Anthropic(api_key="test", base_url=server.url, max_retries=0) as client:

        def send(history: list[Any]) -> Any:
            answer: Any = client.messages.create(
                model="m",
                max_tokens=100,
                messages=[{"role": "user", "content": ASK}, *history],
                tools=definitions,
                tool_choice=anthropic.tool_choice(tool="wetter größe", definitions=definitions),
                stream=stream,
            )
            return list(answer) if stream else answer

        def said(response: Any) -> list[Any]:
            uses = [
                {"type": "tool_use", "id": call.wire_id, "name": call.name, "input": json.loads(call.arguments_json)}
                for call in anthropic.calls(response)
            ]
            return [{"role": "assistant", "content": uses}]

        yield Turn(anthropic, definitions, send, said)


@contextmanager
def contents(script: Any, registry: ToolRegistry, stream: bool, call_ids: bool = True) -> Iterator[Turn]:
    definitions = gemini.tools([*registry, bad])
    with GeminiServer(script, call_ids=call_ids) as server:
        client = genai.Client(api_key="test", http_options={"base_url": server.url})

        def send(history: list[Any]) -> Any:
            asked: Any = {
                "model": "gemini-test",
                "contents": [{"role": "user", "parts": [{"text": ASK}]}, *history],
                "config": {
                    "tools": definitions,
                    "tool_config": gemini.tool_choice("required", allowed=["sayable"], definitions=definitions),
                },
            }
            if stream:
                return list(client.models.generate_content_stream(**asked))
            return client.models.generate_content(**asked)

        def said(response: Any) -> list[Any]:
            chunks = response if stream else [response]
            parts = [
                part.model_dump(exclude_none=True)
                for chunk in chunks
                for part in (chunk.candidates[0].content.parts or ())
                if part.function_call
            ]
            return [{"role": "model", "parts": parts}]

        yield Turn(gemini, definitions, send, said)
        client.close()


every_server = pytest.mark.parametrize("connect", [chat, responses, messages, contents])


def sent_name(wire: Any, name: str) -> str:
    return wire.tools([odd_name]).wire_name(name)


@every_server
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("strict", [False, True], ids=["loose", "strict"])
async def test_hard_tools_go_out_come_back_and_get_results(connect: Any, strict: bool, stream: bool) -> None:
    wire = {chat: openai_chat, responses: openai_responses, messages: anthropic, contents: gemini}[connect]
    by_openai = strict and connect in (chat, responses)
    filter_ = gemini_or_anthropic_name(wire)
    script = [
        text_and_calls(
            "",
            ("sayable", SAYABLE_STRICT if by_openai else SAYABLE),
            ("unsayable", UNSAYABLE),
            (sent_name(wire, "wetter größe"), {"city": "Ulm"}),
            ("search", {filter_: ["a"]}),
            ("sayable", {"pet": {}}),
        ),
        text("Done."),
    ]
    tools = registry(strict=strict)
    with connect(script, tools, stream) as turn:
        assert [skipped.tool for skipped in turn.definitions.skipped] == ["bad"]
        assert (json.dumps(turn.definitions).count('"strict": true') > 0) is (strict and connect is not contents)

        results = await turn.run(tools)

    assert [result.tool_name for result in results] == ["sayable", "unsayable", "wetter größe", "search", "sayable"]
    assert [result.output for result in results[:4]] == ["taken", "taken", {"degrees": 20}, ["a"]]
    assert results[4].error is not None
    assert results[4].error.code == "invalid_arguments"


def gemini_or_anthropic_name(wire: Any) -> str:
    """What `$filter` is called on the wire."""
    (definition,) = wire.tools([odd_parameters])
    inner = definition.get("function", definition.get("function_declarations", [definition])[0])
    schema = next(value for key, value in inner.items() if "chema" in key or key == "parameters")
    return next(iter(schema["properties"]))


async def test_gemini_calls_without_ids_get_results_too() -> None:
    tools = registry(strict=False)
    script = [text_and_calls("", ("unsayable", UNSAYABLE), ("unsayable", UNSAYABLE)), text("Done.")]

    with contents(script, tools, False, call_ids=False) as turn:
        assert [item.output for item in await turn.run(tools)] == ["taken", "taken"]


@every_server
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_the_last_call_of_a_response_that_was_cut_does_not_run(connect: Any, stream: bool) -> None:
    tools = registry(strict=False)
    with connect([truncated("", ("unsayable", UNSAYABLE), ("unsayable", UNSAYABLE))], tools, stream) as turn:
        calls = turn.wire.calls(turn.send([]), turn.definitions)

    results = [await answer(tools, call) for call in calls]
    assert [result.error.code if result.error else None for result in results] == [None, "tool_args_parse_error"]


async def test_an_mcp_client_sees_the_tools_and_gets_their_results() -> None:
    tools = registry(strict=False)
    definitions = mcp.tools(tools)

    async def list_tools(context: Any, parameters: Any) -> ListToolsResult:
        return ListToolsResult(tools=[McpTool.model_validate(definition) for definition in definitions])

    async def call_tool(context: Any, parameters: CallToolRequestParams) -> CallToolResult:
        (call,) = mcp.calls(parameters, definitions)
        (result,) = mcp.results([await answer(tools, call)], definitions)
        return CallToolResult.model_validate(result)

    async with Client(Server("handrail", on_list_tools=list_tools, on_call_tool=call_tool)) as client:
        listed = (await client.list_tools()).tools
        taken = await client.call_tool("sayable", SAYABLE)
        weather = await client.call_tool(definitions.wire_name("wetter größe"), {"city": "Ulm"})
        wrong = await client.call_tool("unsayable", {"meta": 1})

    assert [item.name for item in listed] == [definition["name"] for definition in definitions]
    assert [item.input_schema for item in listed] == [definition["inputSchema"] for definition in definitions]
    assert (taken.is_error, taken.content[0].text) == (False, "taken")  # pyright: ignore[reportAttributeAccessIssue]
    assert weather.structured_content == {"degrees": 20}
    assert wrong.is_error is True
    assert json.loads(wrong.content[0].text)["error"] == "invalid_arguments"  # pyright: ignore[reportAttributeAccessIssue]

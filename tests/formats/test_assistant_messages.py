"""What an answer adds to the history: plain dicts that can be sent back, whichever shape it came in."""

import json
from typing import Any

import pytest

from handrail.formats import anthropic, gemini, mcp, openai_chat, openai_realtime, openai_responses
from handrail.testing.servers import text, text_and_calls, tool_calls, truncated
from tests.execute.providers import PROVIDERS, Provider
from tests.execute.test_loop import executor

each = pytest.mark.parametrize("provider", PROVIDERS, ids=lambda provider: provider.name)
REPLIES = [
    text("In words."),
    tool_calls(("weather", {"city": "Paris", "note": None}), ("book", {"what": "table"})),
    text_and_calls("Both.", ("weather", {"city": "Rome"})),
    truncated("Cut o"),
]


def is_plain(value: Any) -> bool:
    match value:
        case dict():
            return all(isinstance(key, str) and is_plain(one) for key, one in value.items())
        case list():
            return all(map(is_plain, value))
        case _:
            return value is None or isinstance(value, str | int | float | bool | bytes)


@each
@pytest.mark.parametrize("reply", REPLIES, ids=["words", "calls", "both", "cut"])
def test_an_object_a_dict_and_a_stream_say_the_same(provider: Provider, reply: Any) -> None:
    tools = provider.wire.tools(executor().registry)
    messages = [provider.user("Hi.")]
    with provider.server([reply, reply]) as server:
        whole = provider.ask(server, messages, tools)
        streamed = provider.stream(server, messages, tools)
    said = provider.wire.assistant_messages(whole)

    assert said
    assert is_plain(said)
    assert meaning(provider.wire.assistant_messages(json.loads(whole.model_dump_json(exclude_none=True)))) == meaning(
        said
    )
    assert meaning(provider.wire.assistant_messages(streamed)) == meaning(said)


DROPPED = (
    "id",
    "call_id",
    "index",
    "annotations",
    "logprobs",
    "status",
    "refusal",
    "citations",
    "caller",
    "parsed_arguments",
    "namespace",
)


def meaning(value: Any) -> Any:
    """Without what differs between a stream and a whole answer, with one spelling, and texts put together."""
    if isinstance(value, dict):
        snake = {_snake(key): meaning(one) for key, one in value.items() if one is not None}
        if "parts" in snake:
            snake["parts"] = _joined(snake["parts"])
        return {key: one for key, one in snake.items() if key not in DROPPED}
    return [meaning(part) for part in value] if isinstance(value, list) else value


def _snake(key: str) -> str:
    return "".join(f"_{char.lower()}" if char.isupper() else char for char in key)


def _joined(parts: list[Any]) -> list[Any]:
    words = "".join(part.get("text", "") for part in parts)
    calls = [part for part in parts if "text" not in part]
    return [{"text": words}, *calls] if words else calls


def test_what_the_sdk_adds_is_left_out() -> None:
    completion = {"choices": [{"message": {"role": "assistant", "content": "{}", "parsed": {"a": 1}}}]}
    assert openai_chat.assistant_messages(completion) == [{"role": "assistant", "content": "{}"}]
    item = {"type": "function_call", "call_id": "c", "name": "n", "arguments": "{}", "parsed_arguments": {}}
    words = {"type": "message", "content": [{"type": "output_text", "text": "{}", "parsed": {"a": 1}}]}
    assert openai_responses.assistant_messages({"output": [item, words]}) == [
        {"type": "function_call", "call_id": "c", "name": "n", "arguments": "{}"},
        {"type": "message", "content": [{"type": "output_text", "text": "{}"}]},
    ]


def test_a_response_without_anything_adds_nothing() -> None:
    assert openai_chat.assistant_messages({"choices": []}) == []
    assert openai_responses.assistant_messages({"output": []}) == []
    assert anthropic.assistant_messages({"content": []}) == []
    assert gemini.assistant_messages({"candidates": []}) == []
    assert gemini.assistant_messages({"candidates": [{"content": None}]}) == []
    assert openai_realtime.assistant_messages({"type": "response.done"}) == []
    assert mcp.assistant_messages({"method": "tools/call"}) == []


def test_thoughts_go_back_with_their_signatures() -> None:
    events = [
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "thinking", "thinking": "", "signature": ""},
        },
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "Hm"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "."}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "abc"}},
        {
            "type": "content_block_start",
            "index": 1,
            "content_block": {"type": "tool_use", "id": "t", "name": "n", "input": {}},
        },
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"a":'}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": " 1}"}},
    ]
    assert anthropic.assistant_messages(events) == [
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "abc"},
                {"type": "tool_use", "id": "t", "name": "n", "input": {"a": 1}},
            ],
        }
    ]
    part = {"functionCall": {"name": "n", "args": {}}, "thoughtSignature": "abc"}
    assert gemini.assistant_messages({"candidates": [{"content": {"role": "model", "parts": [part]}}]}) == [
        {"role": "model", "parts": [part]}
    ]


def test_a_call_that_came_in_chunks_goes_back_whole() -> None:
    def piece(**call: Any) -> dict[str, Any]:
        return {"candidates": [{"content": {"role": "model", "parts": [{"functionCall": call}]}}]}

    pieces = [
        piece(id="1", name="n", willContinue=True),
        piece(partialArgs=[{"jsonPath": "$.a", "stringValue": "x", "willContinue": True}], willContinue=True),
        piece(partialArgs=[{"jsonPath": "$.a", "stringValue": "y"}]),
    ]
    assert gemini.assistant_messages(pieces) == [
        {"role": "model", "parts": [{"function_call": {"id": "1", "name": "n", "args": {"a": "xy"}}}]}
    ]


@pytest.mark.parametrize("arguments", ["", '{"a": ', "[1]", '{"a": "\ud83d"}'])
def test_arguments_that_were_cut_off_go_back_as_an_empty_object(arguments: str) -> None:
    events = [
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "tool_use", "id": "t", "name": "n", "input": {}},
        },
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": arguments}},
    ]
    (message,) = anthropic.assistant_messages(events)
    assert message["content"] == [{"type": "tool_use", "id": "t", "name": "n", "input": {}}]


def test_what_a_server_looked_for_by_itself_goes_back_with_its_arguments() -> None:
    block = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    pieces = ['{"query"', ': "x"}']
    events = [
        {"type": "content_block_start", "index": 0, "content_block": block},
        *(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": piece}}
            for piece in pieces
        ),
    ]
    assert anthropic.assistant_messages(events) == [
        {"role": "assistant", "content": [{**block, "input": {"query": "x"}}]}
    ]

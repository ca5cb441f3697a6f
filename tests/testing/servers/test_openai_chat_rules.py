"""Every rule of Chat Completions, with a client that breaks it."""

from typing import Any

import openai
import pytest
from openai import OpenAI

from handrail.testing.servers import OpenAIServer, text
from handrail.testing.servers.rules import openai as shared
from handrail.testing.servers.rules import openai_chat as rules
from handrail.testing.servers.rules.openai import root_is_an_object
from handrail.testing.servers.rules.schemas import is_malformed
from tests.testing.servers.wire import Body, Wrong, post, rules_of, schema, wrong

KEY = {"Authorization": "Bearer test"}
USER = {"role": "user", "content": "Hi"}


def function(name: str = "look", **more: Any) -> Body:
    return {"type": "function", "function": {"name": name, "parameters": schema(), **more}}


def call(name: str = "c1", **more: Any) -> Body:
    return {"id": name, "type": "function", "function": {"name": "look", "arguments": "{}"}, **more}


def asks(*names: str) -> Body:
    return {"role": "assistant", "content": None, "tool_calls": [call(name) for name in names]}


def tells(name: str, content: Any = "ok") -> Body:
    return {"role": "tool", "tool_call_id": name, "content": content}


def chat(*messages: Any, **more: Any) -> Body:
    return {"model": "gpt-test", "messages": list(messages) or [USER], **more}


def with_tools(*tools: Body, **more: Any) -> Body:
    return chat(tools=list(tools), **more)


RIGHT: list[Body] = [
    chat(),
    chat(USER, asks("c1", "c2"), tells("c2"), tells("c1"), USER),
    chat(USER, asks("c1"), tells("c1", [{"type": "text", "text": "ok"}])),
    chat(USER, asks("c1"), tells("c1"), asks("c1"), tells("c1")),
    chat({"role": "developer", "content": "Be brief."}, USER, {"role": "assistant", "content": "Yes?"}, USER),
    with_tools(function(), function("x" * 64), {"type": "custom", "custom": {"name": "code"}}),
    with_tools(*(function(f"f{n}") for n in range(128))),
    with_tools({"type": "function", "function": {"name": "nothing"}}, parallel_tool_calls=False),
    with_tools(function(), tool_choice="required", parallel_tool_calls=True),
    with_tools(function(), tool_choice={"type": "function", "function": {"name": "look"}}),
    with_tools(
        function(),
        tool_choice={
            "type": "allowed_tools",
            "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "look"}}]},
        },
    ),
    chat(response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema(), "strict": True}}),
    chat(temperature=None, tools=None, tool_choice=None),
]

WRONG = [
    wrong("no key", shared.key_is_sent, chat(), "You didn't provide an API key", status=401, headers={}),
    wrong("no bearer", shared.key_is_sent, chat(), "API key", status=401, headers={"Authorization": "Basic x"}),
    wrong("unknown field", rules.fields_are_known, chat(top_k=3), "Unrecognized request argument supplied: top_k"),
    wrong("no model", rules.fields_are_known, {"messages": [USER]}, "Missing required parameter: 'model'"),
    wrong("stream is text", rules.fields_are_known, chat(stream="yes"), "'stream': expected a boolean"),
    wrong("no messages", rules.messages_are_there, {"model": "m"}, "Missing required parameter: 'messages'"),
    wrong(
        "empty messages", rules.messages_are_there, {"model": "m", "messages": []}, "Invalid 'messages': empty array"
    ),
    wrong(
        "messages is text", rules.messages_are_there, {"model": "m", "messages": "Hi"}, "expected an array, but got a"
    ),
    wrong(
        "a message is text", rules.roles_and_contents_fit, chat("Hi"), "Invalid type for 'messages[0]': expected an o"
    ),
    wrong("unknown role", rules.roles_and_contents_fit, chat({"role": "bot", "content": "Hi"}), "Invalid value: 'bot'"),
    wrong(
        "user says nothing", rules.roles_and_contents_fit, chat({"role": "user"}), "'messages[0].content': expected a"
    ),
    wrong(
        "assistant says nothing",
        rules.roles_and_contents_fit,
        chat(USER, {"role": "assistant", "content": None}),
        "'messages[1].content': expected a string, got null",
    ),
    wrong("content is a number", rules.roles_and_contents_fit, chat({"role": "user", "content": 3}), "got an integer"),
    wrong(
        "content is an object",
        rules.roles_and_contents_fit,
        chat(USER, asks("c1"), tells("c1", {"ok": True})),
        "expected one of a string or an array of objects, but got an object",
    ),
    wrong(
        "image in a tool message",
        rules.roles_and_contents_fit,
        chat(USER, asks("c1"), tells("c1", [{"type": "image_url", "image_url": {"url": "data:"}}])),
        "Invalid value: 'image_url'. Supported values are: 'text'.",
    ),
    wrong("no calls", rules.calls_are_complete, chat({**asks(), "content": "Hi"}), "'messages[0].tool_calls': empty"),
    wrong(
        "user calls",
        rules.calls_are_complete,
        chat({**USER, "tool_calls": [call()]}),
        "Unknown parameter: 'messages[0]",
    ),
    wrong(
        "call without id",
        rules.calls_are_complete,
        chat(USER, {"role": "assistant", "tool_calls": [{"type": "function"}]}),
        "Missing required parameter: 'messages[1].tool_calls[0].id'",
    ),
    wrong(
        "arguments are an object",
        rules.calls_are_complete,
        chat(USER, {"role": "assistant", "tool_calls": [call(function={"name": "look", "arguments": {}})]}),
        "'messages[1].tool_calls[0].function.arguments': expected a string, but got an object",
    ),
    wrong(
        "call not answered at the end",
        rules.every_call_is_answered,
        chat(USER, asks("c1")),
        "must be followed by tool messages responding to each 'tool_call_id'",
    ),
    wrong(
        "one of two calls not answered",
        rules.every_call_is_answered,
        chat(USER, asks("c1", "c2"), tells("c1"), USER),
        "did not have response messages: c2",
    ),
    wrong(
        "user speaks before the answer",
        rules.every_call_is_answered,
        chat(USER, asks("c1"), USER, tells("c1")),
        "did not have response messages: c1",
    ),
    wrong(
        "answer without a call",
        rules.every_call_is_answered,
        chat(USER, tells("c1")),
        "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'",
    ),
    wrong(
        "answer to an unknown call",
        rules.every_call_is_answered,
        chat(USER, asks("c1"), tells("c9")),
        "must be a response to a preceeding message with 'tool_calls': 'c9'",
    ),
    wrong(
        "two answers to one call",
        rules.every_call_is_answered,
        chat(USER, asks("c1"), tells("c1"), tells("c1")),
        "Duplicate value for 'tool_call_id' of 'c1'",
    ),
    wrong(
        "two calls with one id",
        rules.every_call_is_answered,
        chat(USER, asks("c1", "c1"), tells("c1")),
        "Duplicate value for 'tool_call_id' of 'c1'",
    ),
    wrong(
        "answer without id",
        rules.every_call_is_answered,
        chat(USER, asks("c1"), {"role": "tool", "content": "ok"}),
        "Missing required parameter: 'messages[2].tool_call_id'",
    ),
    wrong("no tools", rules.tools_are_valid, with_tools(), "Invalid 'tools': empty array"),
    wrong(
        "129 tools", rules.tools_are_valid, with_tools(*(function(f"f{n}") for n in range(129))), "at most 128 tools"
    ),
    wrong(
        "unknown kind of tool", rules.tools_are_valid, with_tools({"type": "web_search"}), "Invalid value: 'web_search'"
    ),
    wrong(
        "a tool of Responses",
        rules.tools_are_valid,
        with_tools({"type": "function", "name": "look", "parameters": schema(), "strict": True}),
        "Unknown parameter: 'tools[0].name'",
    ),
    wrong(
        "unknown field of a function",
        rules.tools_are_valid,
        with_tools(function(defer_loading=True)),
        "Unknown parameter: 'tools[0].function.defer_loading'",
    ),
    wrong(
        "name with a dot", shared.name_is_valid, with_tools(function("a.b")), "'tools[0].function.name': string does no"
    ),
    wrong("empty name", shared.name_is_valid, with_tools(function("")), "string does not match pattern"),
    wrong(
        "name with 65 characters", shared.name_is_valid, with_tools(function("x" * 65)), "at most 64 characters, but "
    ),
    wrong("one name twice", shared.names_are_unique, with_tools(function(), function()), "'look' is there twice"),
    wrong(
        "parameters are an array",
        root_is_an_object,
        with_tools(function(parameters={"type": "array", "items": {}})),
        "Invalid schema for function 'look': schema must be a JSON Schema of 'type: \"object\"', got 'type: \"array\"'",
    ),
    wrong("parameters without type", root_is_an_object, with_tools(function(parameters={})), "got 'type: None'"),
    wrong(
        "parameters are no schema",
        is_malformed,
        with_tools(function(parameters=schema({"a": {"type": "strin"}}))),
        "Invalid schema for function 'look': JSON schema is invalid",
    ),
    wrong(
        "reference to the outside",
        is_malformed,
        with_tools(function(parameters=schema({"a": {"$ref": "https://example.com/schema.json"}}))),
        "https://example.com/schema.json is not in this schema",
    ),
    wrong(
        "choice of an unknown tool",
        rules.choice_names_a_tool,
        with_tools(function(), tool_choice={"type": "function", "function": {"name": "other"}}),
        "Tool choice 'other' not found in 'tools'",
    ),
    wrong(
        "choice of the wrong kind",
        rules.choice_names_a_tool,
        with_tools(function(), tool_choice={"type": "custom", "custom": {"name": "look"}}),
        "Tool choice 'look' not found in 'tools'",
    ),
    wrong("unknown word", rules.choice_names_a_tool, with_tools(function(), tool_choice="any"), "Invalid value: 'any'"),
    wrong(
        "choice in the shape of Responses",
        rules.choice_names_a_tool,
        with_tools(function(), tool_choice={"type": "function", "name": "look"}),
        "Missing required parameter: 'tool_choice.function'",
    ),
    wrong(
        "allowed tools with an unknown one",
        rules.choice_names_a_tool,
        with_tools(
            function(),
            tool_choice={
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "other"}}]},
            },
        ),
        "Tool choice 'other' not found in 'tools'",
    ),
    wrong(
        "allowed tools in an unknown mode",
        rules.choice_names_a_tool,
        with_tools(function(), tool_choice={"type": "allowed_tools", "allowed_tools": {"mode": "any", "tools": []}}),
        "Invalid value: 'any'",
    ),
    wrong(
        "choice without tools", shared.options_need_tools, chat(tool_choice="auto"), "'tool_choice' is only allowed whe"
    ),
    wrong(
        "parallel without tools", shared.options_need_tools, chat(parallel_tool_calls=True), "'parallel_tool_calls' is"
    ),
    wrong(
        "output that is not strict",
        rules.answer_format_is_valid,
        chat(response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {}, "strict": True}}),
        "Invalid schema for response_format 'n'",
    ),
    wrong(
        "unknown output", rules.answer_format_is_valid, chat(response_format={"type": "xml"}), "Invalid value: 'xml'"
    ),
    wrong(
        "output without a name",
        shared.output_format_is_valid,
        chat(response_format={"type": "json_schema", "json_schema": {"schema": schema()}}),
        "Missing required parameter: 'response_format.json_schema.name'",
    ),
    wrong(
        "stream options without a stream",
        rules.stream_options_need_a_stream,
        chat(stream_options={"include_usage": True}),
        "only allowed when 'stream' is enabled",
    ),
]


@pytest.mark.parametrize("body", RIGHT)
def test_a_right_request_is_accepted(body: Body) -> None:
    with OpenAIServer([text("Hello")]) as server:
        status, answer = post(f"{server.url}/chat/completions", body, KEY)
    assert status == 200, answer


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_request_is_refused(case: Wrong) -> None:
    with OpenAIServer([]) as server:
        headers = KEY if case.headers is None else case.headers
        status, answer = post(f"{server.url}/chat/completions", case.body, headers)
    assert (status, answer["error"]["type"]) == (case.status, "invalid_request_error")
    assert case.says in answer["error"]["message"]


def test_every_rule_has_a_wrong_client() -> None:
    assert {rule.__name__ for rule in rules.RULES} <= rules_of(WRONG)


def test_the_official_client_raises_bad_request() -> None:
    with OpenAIServer([]) as server, OpenAI(base_url=server.url, api_key="test", max_retries=0) as client:
        messages: Any = [USER, asks("c1"), USER]
        with pytest.raises(openai.BadRequestError, match="did not have response messages: c1") as caught:
            client.chat.completions.create(model="gpt-test", messages=messages)
    assert caught.value.param == "messages"

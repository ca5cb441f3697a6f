"""Every rule of Responses, with a client that breaks it."""

from typing import Any

import openai
import pytest
from openai import OpenAI

from handrail.testing.servers import OpenAIServer, text
from handrail.testing.servers.rules import openai as shared
from handrail.testing.servers.rules import openai_responses as rules
from handrail.testing.servers.rules.openai import root_is_an_object
from tests.testing.servers.wire import Body, Wrong, post, rules_of, schema, wrong

KEY = {"Authorization": "Bearer test"}
USER = {"role": "user", "content": "Hi"}


def function(name: str = "look", **more: Any) -> Body:
    return {"type": "function", "name": name, "parameters": schema(), "strict": False, **more}


def without(tool: Body, key: str) -> Body:
    return {name: value for name, value in tool.items() if name != key}


def call(name: str = "c1", **more: Any) -> Body:
    return {"type": "function_call", "call_id": name, "name": "look", "arguments": "{}", **more}


def output(name: str = "c1", content: Any = "ok") -> Body:
    return {"type": "function_call_output", "call_id": name, "output": content}


def respond(*items: Any, **more: Any) -> Body:
    return {"model": "gpt-test", "input": list(items) or "Hi", **more}


def with_tools(*tools: Body, **more: Any) -> Body:
    return respond(tools=list(tools), **more)


def namespace(*tools: Body) -> Body:
    return {"type": "namespace", "name": "crm", "description": "Customers.", "tools": list(tools)}


RIGHT: list[Body] = [
    respond(),
    respond(USER, call("c1"), call("c2"), output("c2"), output("c1")),
    respond(USER, call("c1"), USER, output("c1", [{"type": "input_text", "text": "ok"}])),
    respond(USER, call("c1", id="fc_1"), output("c1", "")),
    respond(USER, call("c1", **{"async": True})),
    respond({"role": "assistant", "content": [{"type": "output_text", "text": "Yes?"}]}, USER),
    respond(
        {"type": "custom_tool_call", "call_id": "c1", "name": "code", "input": "1+1"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "2"},
    ),
    with_tools(),
    with_tools(function("x" * 128), function(parameters=None, strict=None), {"type": "web_search"}),
    with_tools(namespace({"type": "function", "name": "look"}, {"type": "custom", "name": "code"}), function()),
    {"prompt": {"id": "pmpt_1"}, "input": "Hi"},
    with_tools(function(), tool_choice={"type": "function", "name": "look"}),
    with_tools({"type": "mcp", "server_label": "docs"}, tool_choice={"type": "mcp", "server_label": "docs"}),
    with_tools(
        function(),
        {"type": "image_generation"},
        tool_choice={
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "function", "name": "look"}, {"type": "image_generation"}],
        },
    ),
    respond(
        {"type": "additional_tools", "role": "developer", "tools": [function()]},
        USER,
        tool_choice={"type": "function", "name": "look"},
    ),
    respond(text={"format": {"type": "json_schema", "name": "n", "schema": schema(), "strict": True}}),
    respond(tool_choice="auto", parallel_tool_calls=True),
]

WRONG = [
    wrong("no key", shared.key_is_sent, respond(), "You didn't provide an API key", status=401, headers={}),
    wrong("unknown field", rules.fields_are_known, respond(messages=[]), "Unknown parameter: 'messages'"),
    wrong("no model", rules.fields_are_known, {"input": "Hi"}, "Missing required parameter: 'model'"),
    wrong("stream is text", rules.fields_are_known, respond(stream="yes"), "'stream': expected a boolean"),
    wrong("unknown item", rules.items_are_valid, respond({"type": "tool_result"}), "Invalid value: 'tool_result'"),
    wrong("unknown role", rules.items_are_valid, respond({"role": "tool", "content": "x"}), "Invalid value: 'tool'"),
    wrong("message without content", rules.items_are_valid, respond({"role": "user"}), "'input[0].content'"),
    wrong(
        "a part of Chat Completions",
        rules.items_are_valid,
        respond({"role": "user", "content": [{"type": "text", "text": "Hi"}]}),
        "Invalid value: 'text'. Supported values are: 'input_file', 'input_image', 'input_text'",
    ),
    wrong(
        "assistant says input text",
        rules.items_are_valid,
        respond({"role": "assistant", "content": [{"type": "input_text", "text": "Hi"}]}),
        "Invalid value: 'input_text'. Supported values are: 'output_text', 'refusal'",
    ),
    wrong("call without name", rules.items_are_valid, respond(without(call(), "name"), output()), "'input[0].name'"),
    wrong("call without id", rules.items_are_valid, respond(without(call(), "call_id")), "'input[0].call_id'"),
    wrong(
        "arguments are an object",
        rules.items_are_valid,
        respond(call(arguments={}), output()),
        "'input[0].arguments': expected a string, but got an object",
    ),
    wrong(
        "the call id as the id of the item",
        rules.items_are_valid,
        respond(call("call_1", id="call_1"), output("call_1")),
        "Invalid 'input[0].id': 'call_1'. Expected an ID that begins with 'fc'",
    ),
    wrong("no output", rules.items_are_valid, respond(call(), without(output(), "output")), "'input[1].output'"),
    wrong(
        "output is an object",
        rules.items_are_valid,
        respond(call(), output(content={"ok": True})),
        "expected one of a string or an array of objects, but got an object",
    ),
    wrong(
        "output with a part of a message",
        rules.items_are_valid,
        respond(call(), output(content=[{"type": "output_text", "text": "ok"}])),
        "Invalid value: 'output_text'",
    ),
    wrong(
        "output without call id",
        rules.items_are_valid,
        respond(call(), without(output(), "call_id")),
        "'input[1].call_id'",
    ),
    wrong(
        "call not answered",
        rules.every_call_is_answered,
        respond(USER, call("c1"), call("c2"), output("c1")),
        "No tool output found for function call c2.",
    ),
    wrong(
        "output without its call",
        rules.every_call_is_answered,
        respond(USER, output("c9")),
        "No tool call found for function call output with call_id c9.",
    ),
    wrong(
        "output before its call",
        rules.every_call_is_answered,
        respond(output("c1"), call("c1")),
        "No tool call found for function call output with call_id c1.",
    ),
    wrong(
        "output of the wrong kind",
        rules.every_call_is_answered,
        respond(call("c1"), {"type": "custom_tool_call_output", "call_id": "c1", "output": "2"}),
        "No tool call found",
    ),
    wrong(
        "two outputs for one call",
        rules.every_call_is_answered,
        respond(call("c1"), output("c1"), output("c1")),
        "Duplicate output for call_id 'c1'",
    ),
    wrong(
        "two calls with one id",
        rules.every_call_is_answered,
        respond(call("c1"), output("c1"), call("c1")),
        "Duplicate call_id 'c1'",
    ),
    wrong("unknown kind of tool", rules.tools_are_valid, with_tools({"type": "bash"}), "Invalid value: 'bash'"),
    wrong(
        "a tool of Chat Completions",
        rules.tools_are_valid,
        with_tools({"type": "function", "function": {"name": "look"}}),
        "Missing required parameter: 'tools[0].name'",
    ),
    wrong(
        "no parameters", rules.tools_are_valid, with_tools(without(function(), "parameters")), "'tools[0].parameters'"
    ),
    wrong("no strict", rules.tools_are_valid, with_tools(without(function(), "strict")), "'tools[0].strict'"),
    wrong(
        "unknown field of a function",
        rules.tools_are_valid,
        with_tools(function(x=1)),
        "Unknown parameter: 'tools[0].x'",
    ),
    wrong(
        "name with a space", shared.name_is_valid, with_tools(function("a b")), "'tools[0].name': string does not match"
    ),
    wrong("name with 129 characters", shared.name_is_valid, with_tools(function("x" * 129)), "at most 128 characters"),
    wrong("one name twice", shared.names_are_unique, with_tools(function(), function()), "'look' is there twice"),
    wrong(
        "one name twice in a namespace",
        shared.names_are_unique,
        with_tools(namespace({"type": "function", "name": "a"}, {"type": "function", "name": "a"})),
        "'crm.a' is there twice",
    ),
    wrong(
        "an added tool twice",
        shared.names_are_unique,
        respond({"type": "additional_tools", "role": "developer", "tools": [function()]}, USER, tools=[function()]),
        "'look' is there twice",
    ),
    wrong(
        "parameters are text",
        root_is_an_object,
        with_tools(function(parameters={"type": "string"})),
        "Invalid schema for function 'look': schema must be a JSON Schema of 'type: \"object\"'",
    ),
    wrong(
        "a namespace in a namespace",
        rules.tools_are_valid,
        with_tools(namespace(namespace(function()))),
        "Invalid value: 'namespace'",
    ),
    wrong(
        "choice of an unknown tool",
        rules.choice_names_a_tool,
        with_tools(function(), tool_choice={"type": "function", "name": "other"}),
        "Tool choice 'other' not found in 'tools'",
    ),
    wrong(
        "choice of a hosted tool that is not there",
        rules.choice_names_a_tool,
        with_tools(function(), tool_choice={"type": "file_search"}),
        "Tool choice 'file_search' not found in 'tools'",
    ),
    wrong(
        "choice of an unknown server",
        rules.choice_names_a_tool,
        with_tools(function(), tool_choice={"type": "mcp", "server_label": "docs"}),
        "Tool choice 'docs' not found in 'tools'",
    ),
    wrong(
        "choice in the shape of Chat Completions",
        rules.choice_names_a_tool,
        with_tools(function(), tool_choice={"type": "function", "function": {"name": "look"}}),
        "Missing required parameter: 'tool_choice.name'",
    ),
    wrong(
        "allowed tools with an unknown one",
        rules.choice_names_a_tool,
        with_tools(
            function(),
            tool_choice={"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "other"}]},
        ),
        "Tool choice 'other' not found in 'tools'",
    ),
    wrong("unknown word", rules.choice_names_a_tool, with_tools(function(), tool_choice="any"), "Invalid value: 'any'"),
    wrong(
        "required without tools", rules.choice_names_a_tool, respond(tool_choice="required"), "must be specified with"
    ),
    wrong(
        "output that is not strict",
        rules.answer_format_is_valid,
        respond(text={"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}}),
        "Invalid schema for response_format 'n'",
    ),
    wrong(
        "stream options without a stream",
        rules.stream_options_need_a_stream,
        respond(stream_options={"include_obfuscation": False}),
        "only allowed when 'stream' is enabled",
    ),
]


@pytest.mark.parametrize("body", RIGHT)
def test_a_right_request_is_accepted(body: Body) -> None:
    with OpenAIServer([text("Hello")]) as server:
        status, answer = post(f"{server.url}/responses", body, KEY)
    assert status == 200, answer


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_request_is_refused(case: Wrong) -> None:
    with OpenAIServer([]) as server:
        headers = KEY if case.headers is None else case.headers
        status, answer = post(f"{server.url}/responses", case.body, headers)
    assert (status, answer["error"]["type"]) == (case.status, "invalid_request_error")
    assert case.says in answer["error"]["message"]


def test_every_rule_has_a_wrong_client() -> None:
    named = {rule.__name__ for rule in (*rules.RULES, rules.every_call_is_answered)}
    assert named <= rules_of(WRONG)


def test_the_official_client_raises_bad_request() -> None:
    with OpenAIServer([]) as server, OpenAI(base_url=server.url, api_key="test", max_retries=0) as client:
        items: Any = [USER, call("c1")]
        with pytest.raises(openai.BadRequestError, match="No tool output found for function call c1") as caught:
            client.responses.create(model="gpt-test", input=items)
    assert caught.value.param == "input"

"""Every rule of Gemini, with a client that breaks it."""

from typing import Any

import pytest
from google import genai
from google.genai import errors, types

from handrail.testing.servers import GeminiServer, text
from handrail.testing.servers.rules import gemini as rules
from handrail.testing.servers.rules.schemas import is_malformed
from tests.testing.servers.wire import Body, Wrong, post, rules_of, schema, wrong

KEY = {"x-goog-api-key": "test"}
PATH = "/v1beta/models/gemini-test:generateContent"


def user(*parts: Any) -> Body:
    return {"role": "user", "parts": list(parts) or [{"text": "Hi"}]}


def model(*parts: Any) -> Body:
    return {"role": "model", "parts": list(parts) or [{"text": "Yes?"}]}


def call(name: str = "look", **more: Any) -> Body:
    return {"functionCall": {"name": name, "args": {}, **more}}


def response(name: str = "look", **more: Any) -> Body:
    return {"functionResponse": {"name": name, "response": {"output": 1}, **more}}


def ask(*contents: Any, **more: Any) -> Body:
    return {"contents": list(contents) or [user()], **more}


def declare(*declarations: Body, **config: Any) -> Body:
    chosen = {"toolConfig": {"functionCallingConfig": config}} if config else {}
    return ask(tools=[{"functionDeclarations": list(declarations)}], **chosen)


def function(name: str = "look", **more: Any) -> Body:
    return {"name": name, "parametersJsonSchema": schema(), **more}


def typed(**parameters: Any) -> Body:
    return {"name": "look", "parameters": {"type": "OBJECT", **parameters}}


RIGHT: list[Body] = [
    ask(),
    ask({"parts": [{"text": "Hi"}]}),
    ask(user(), model(), user()),
    ask(user(), model({"text": "Well."}, call(), call("see")), user(response("see"), response())),
    ask(user(), model(call(id="a"), call(id="b")), user(response(id="b"), response(id="a"))),
    ask(user(), model(call(id="a")), user(response(), {"text": "And?"})),
    ask(user(), model(call()), user(response()), model(call()), user(response())),
    ask(system_instruction={"parts": [{"text": "Be brief."}]}, generation_config={"temperature": 0}),
    declare(function("_x.y:z-1"), function("x" * 128), {"name": "nothing"}),
    declare(typed(properties={"a": {"type": "string", "min_length": 1}, "b": {"anyOf": [{"type": "NULL"}]}})),
    declare(function(), mode="ANY", allowedFunctionNames=["look"]),
    declare(function(), mode="VALIDATED"),
    ask(tools=[{"googleSearch": {}}, {"function_declarations": [function()]}]),
    declare(*(function(f"f{n}") for n in range(512))),
    ask(generationConfig={"responseMimeType": "application/json", "responseJsonSchema": schema()}),
]

WRONG = [
    wrong(
        "schema without its kind",
        rules.answer_format_is_valid,
        ask(generationConfig={"responseJsonSchema": schema()}),
        "needs a response_mime_type of application/json",
    ),
    wrong(
        "two schemas",
        rules.answer_format_is_valid,
        ask(generation_config={"response_schema": {"type": "OBJECT"}, "response_json_schema": schema()}),
        "mutually exclusive",
    ),
    wrong(
        "schema that is none",
        rules.answer_format_is_valid,
        ask(generationConfig={"responseMimeType": "application/json", "responseJsonSchema": {"type": "thing"}}),
        "generationConfig.responseJsonSchema: JSON schema is invalid",
    ),
    wrong("no key", rules.key_is_sent, ask(), "Method doesn't allow unregistered callers", status=403, headers={}),
    wrong("unknown field", rules.fields_are_known, ask(messages=[]), 'Unknown name "messages": Cannot find field.'),
    wrong(
        "unknown field of a content", rules.fields_are_known, ask({**user(), "name": "a"}), "\"name\" at 'contents[0]'"
    ),
    wrong("unknown field of a part", rules.fields_are_known, ask(user({"type": "text"})), "'contents[0].parts[0]'"),
    wrong("no contents", rules.contents_are_there, {}, "contents is not specified"),
    wrong("empty contents", rules.contents_are_there, {"contents": []}, "contents is not specified"),
    wrong(
        "no parts", rules.contents_are_there, ask({"role": "user", "parts": []}), "contents[0].parts: must not be empty"
    ),
    wrong(
        "contents are text", rules.contents_are_there, {"contents": "Hi"}, "Invalid value at 'contents': expected an"
    ),
    wrong(
        "role of OpenAI",
        rules.roles_alternate,
        ask(user(), {**model(), "role": "assistant"}),
        "Please use a valid role",
    ),
    wrong(
        "no role", rules.roles_alternate, ask(user(), model(), {"parts": [{"text": "Hi"}]}), "Please use a valid role"
    ),
    wrong("user twice", rules.roles_alternate, ask(user(), user()), "alternate between user and model"),
    wrong("model last", rules.roles_alternate, ask(user(), model()), "ends with a user role or a function response"),
    wrong(
        "call without name",
        rules.calls_and_responses_are_complete,
        ask(user(), model({"functionCall": {"args": {}}}), user(response())),
        "contents[1].parts[0].functionCall.name: required field is not set",
    ),
    wrong(
        "args are text",
        rules.calls_and_responses_are_complete,
        ask(user(), model(call(args="{}")), user(response())),
        "Invalid value at 'contents[1].parts[0].functionCall.args': expected an object",
    ),
    wrong(
        "response is text",
        rules.calls_and_responses_are_complete,
        ask(user(), model(call()), user(response(response="ok"))),
        "Invalid value at 'contents[2].parts[0].functionResponse.response': expected an object",
    ),
    wrong(
        "response without response",
        rules.calls_and_responses_are_complete,
        ask(user(), model(call()), user({"functionResponse": {"name": "look"}})),
        "functionResponse.response: required field is not set",
    ),
    wrong(
        "user calls",
        rules.calls_and_responses_are_complete,
        ask(user(call())),
        "function call turn is a turn of the mo",
    ),
    wrong(
        "response without a call",
        rules.responses_follow_calls,
        ask(user(response())),
        "function response turn comes immediately after a function call turn",
    ),
    wrong(
        "response after words of the model",
        rules.responses_follow_calls,
        ask(user(), model(), user(response())),
        "function response turn comes immediately after a function call turn",
    ),
    wrong(
        "call not answered",
        rules.responses_follow_calls,
        ask(user(), model(call()), user()),
        "number of function response parts is equal to the number of function call parts",
    ),
    wrong(
        "one of two calls not answered",
        rules.responses_follow_calls,
        ask(user(), model(call(), call("see")), user(response())),
        "number of function response parts is equal",
    ),
    wrong(
        "response with another name",
        rules.responses_follow_calls,
        ask(user(), model(call()), user(response("see"))),
        "The function response 'see' does not match a function call",
    ),
    wrong(
        "response with another id",
        rules.responses_follow_calls,
        ask(user(), model(call(id="a")), user(response(id="b"))),
        "The function response 'look' with id 'b' does not match a function call",
    ),
    wrong(
        "one id twice",
        rules.responses_follow_calls,
        ask(user(), model(call(id="a"), call(id="b")), user(response(id="a"), response(id="a"))),
        "'look' with id 'a' does not match",
    ),
    wrong("name with a space", rules.declarations_are_valid, declare(function("a b")), "Invalid function name"),
    wrong("name with a digit first", rules.declarations_are_valid, declare(function("1a")), "Invalid function name"),
    wrong(
        "name with 129 characters", rules.declarations_are_valid, declare(function("x" * 129)), "Invalid function name"
    ),
    wrong(
        "one name twice",
        rules.declarations_are_valid,
        declare(function(), function()),
        "Duplicate function declaration",
    ),
    wrong(
        "one name in two tools",
        rules.declarations_are_valid,
        ask(tools=[{"functionDeclarations": [function()]}, {"functionDeclarations": [function()]}]),
        "Duplicate function declaration found: look",
    ),
    wrong(
        "513 functions",
        rules.declarations_are_valid,
        declare(*(function(f"f{n}") for n in range(513))),
        "There are 513 function declarations. The limit is 512.",
    ),
    wrong(
        "unknown field of a function",
        rules.declarations_are_valid,
        declare(function(strict=True)),
        '"strict" at \'tools',
    ),
    wrong(
        "unknown tool",
        rules.declarations_are_valid,
        ask(tools=[{"type": "function"}]),
        'Unknown name "type" at \'tools',
    ),
    wrong(
        "both kinds of parameters",
        rules.declarations_are_valid,
        declare({**function(), **typed()}),
        "parameters and parameters_json_schema are mutually exclusive",
    ),
    wrong(
        "parameter name with a dash",
        rules.declarations_are_valid,
        declare(function(parametersJsonSchema=schema({"a-b": {"type": "string"}}))),
        "Invalid parameter name 'a-b'",
    ),
    wrong(
        "parameter name with 65 characters",
        rules.declarations_are_valid,
        declare(typed(properties={"x" * 65: {"type": "STRING"}})),
        "Invalid parameter name",
    ),
    wrong(
        "parameters are an array",
        rules.declarations_are_valid,
        declare(function(parametersJsonSchema={"type": "array"})),
        "the schema of parameters has to be of type OBJECT",
    ),
    wrong(
        "no schema", is_malformed, declare(function(parametersJsonSchema={"type": "text"})), "JSON schema is invalid"
    ),
    wrong(
        "keyword of JSON Schema",
        rules.declarations_are_valid,
        declare(typed(properties={"a": {"$ref": "#/$defs/A"}})),
        "Unknown name \"$ref\" at 'tools[0].functionDeclarations[0].parameters.properties.a'",
    ),
    wrong(
        "unknown type",
        rules.declarations_are_valid,
        declare(typed(properties={"a": {"type": "text"}})),
        '"text" is none',
    ),
    wrong(
        "enum of numbers",
        rules.declarations_are_valid,
        declare(typed(properties={"a": {"type": "ARRAY", "items": {"enum": [1]}}})),
        "properties.a.items.enum[0]': expected a string",
    ),
    wrong(
        "enum without a type",
        rules.declarations_are_valid,
        declare(typed(properties={"a": {"enum": ["x"]}})),
        "properties.a.enum: only allowed for STRING type",
    ),
    wrong(
        "enum with an empty text",
        rules.declarations_are_valid,
        declare(typed(properties={"a": {"type": "STRING", "enum": ["x", ""]}})),
        "enum[1]: cannot be empty",
    ),
    wrong(
        "enum of JSON Schema without a type",
        rules.has_wrong_enum,
        declare(function(parametersJsonSchema={"type": "object", "properties": {"a": {"enum": ["x"]}}})),
        "properties.a.enum: only allowed for STRING type",
    ),
    wrong(
        "enum of JSON Schema with an empty text",
        rules.has_wrong_enum,
        declare(
            function(parametersJsonSchema={"type": "object", "properties": {"a": {"type": "string", "enum": [""]}}})
        ),
        "properties.a.enum[0]: cannot be empty",
    ),
    wrong("unknown mode", rules.choice_names_a_function, declare(function(), mode="REQUIRED"), '"REQUIRED" is none of'),
    wrong(
        "choice of an unknown function",
        rules.choice_names_a_function,
        declare(function(), mode="ANY", allowedFunctionNames=["other"]),
        "'other' is not the name of a function declaration",
    ),
    wrong(
        "choice in mode auto",
        rules.choice_names_a_function,
        declare(function(), mode="AUTO", allowedFunctionNames=["look"]),
        "allowed_function_names should only be set when mode is ANY",
    ),
    wrong(
        "streamed arguments",
        rules.choice_names_a_function,
        declare(function(), mode="ANY", streamFunctionCallArguments=True),
        'Unknown name "streamFunctionCallArguments"',
    ),
]


@pytest.mark.parametrize("body", RIGHT)
def test_a_right_request_is_accepted(body: Body) -> None:
    with GeminiServer([text("Hello")]) as server:
        status, answer = post(server.url + PATH, body, KEY)
    assert status == 200, answer


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_request_is_refused(case: Wrong) -> None:
    with GeminiServer([]) as server:
        status, answer = post(server.url + PATH, case.body, KEY if case.headers is None else case.headers)
    name = {400: "INVALID_ARGUMENT", 403: "PERMISSION_DENIED"}[case.status]
    assert (status, answer["error"]["code"], answer["error"]["status"]) == (case.status, case.status, name)
    assert case.says in answer["error"]["message"]


def test_every_rule_has_a_wrong_client() -> None:
    assert {rule.__name__ for rule in rules.RULES} <= rules_of(WRONG)


def test_a_key_in_the_query_is_a_key_too() -> None:
    with GeminiServer([text("Hello")]) as server:
        assert post(f"{server.url}{PATH}?key=test", ask(), {})[0] == 200


def test_a_stream_has_to_be_asked_for_as_events() -> None:
    with GeminiServer([]) as server:
        status, _ = post(f"{server.url}/v1beta/models/gemini-test:streamGenerateContent", ask(), KEY)
    assert status == 501


def test_the_official_client_raises_a_client_error() -> None:
    declared: Any = {"tools": [{"function_declarations": [{"name": "a b"}]}]}
    with (
        GeminiServer([]) as server,
        genai.Client(api_key="test", http_options=types.HttpOptions(base_url=server.url)) as client,
        pytest.raises(errors.ClientError, match="Invalid function name") as caught,
    ):
        client.models.generate_content(model="gemini-test", contents="Hi", config=declared)
    assert (caught.value.code, caught.value.status) == (400, "INVALID_ARGUMENT")

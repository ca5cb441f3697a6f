"""Every rule of Anthropic Messages, with a client that breaks it."""

from typing import Any

import anthropic
import pytest
from anthropic import Anthropic

from handrail.testing.servers import AnthropicServer, text
from handrail.testing.servers.rules import anthropic_messages as rules
from handrail.testing.servers.rules import anthropic_schema as schemas
from handrail.testing.servers.rules.schemas import is_malformed
from tests.testing.servers.wire import Body, Wrong, post, rules_of, schema, wrong

VERSION = {"anthropic-version": "2023-06-01"}
KEY = {"x-api-key": "test", **VERSION}
USER = {"role": "user", "content": "Hi"}


def tool(name: str = "look", **more: Any) -> Body:
    return {"name": name, "input_schema": schema(), **more}


def says(*blocks: Any) -> Body:
    return {"role": "user", "content": list(blocks)}


def asks(*names: str) -> Body:
    blocks: list[Body] = [{"type": "tool_use", "id": name, "name": "look", "input": {}} for name in names]
    return {"role": "assistant", "content": [{"type": "text", "text": "Let me see."}, *blocks]}


def result(name: str, content: Any = "ok") -> Body:
    return {"type": "tool_result", "tool_use_id": name, "content": content}


def said(content: str = "And?") -> Body:
    return {"type": "text", "text": content}


def ask(*messages: Any, **more: Any) -> Body:
    return {"model": "claude-test", "max_tokens": 10, "messages": list(messages) or [USER], **more}


def with_tools(*tools: Body, **more: Any) -> Body:
    return ask(tools=list(tools), **more)


def without(body: Body, key: str) -> Body:
    return {name: value for name, value in body.items() if name != key}


def strict(found: Body) -> Body:
    return with_tools(tool(input_schema=found, strict=True))


def prop(**keywords: Any) -> Body:
    return strict(schema({"a": keywords}))


def optional(count: int) -> Body:
    return schema({f"p{n}": {"type": "string"} for n in range(count)}, required=[])


def unions(count: int) -> Body:
    return schema({f"p{n}": {"type": ["string", "null"]} for n in range(count)})


RIGHT: list[Body] = [
    ask(),
    ask(USER, USER, {"role": "assistant", "content": "Yes?"}, USER),
    ask(USER, asks("t1", "t2"), says(result("t2"), result("t1"), said())),
    ask(USER, asks("t1", "t2"), says(result("t1")), says(result("t2"))),
    ask(USER, {"role": "assistant", "content": "The answer is"}),
    ask(USER, asks("t1"), says(result("t1", [{"type": "text", "text": "ok"}]))),
    ask(USER, asks("t1"), says({"type": "tool_result", "tool_use_id": "t1", "is_error": True})),
    ask(USER, {"role": "assistant", "content": "Yes?"}, {"role": "system", "content": "Be brief."}, USER),
    with_tools(tool("x" * 128), tool(input_examples=[{"city": "Paris"}]), {"type": "bash_20250124", "name": "bash"}),
    with_tools(tool(input_schema={"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}})),
    with_tools(tool(), tool_choice={"type": "tool", "name": "look", "disable_parallel_tool_use": True}),
    with_tools(tool(), tool_choice={"type": "any"}),
    ask(tool_choice={"type": "none"}),
    with_tools(*(tool(f"t{n}", strict=True) for n in range(20)), *(tool(f"f{n}") for n in range(20))),
    strict(optional(24)),
    strict(unions(16)),
    prop(type="string", format="uri", default="x", enum=["a", 1, None]),
    prop(type="array", items={"type": "string"}, minItems=1),
    prop(allOf=[{"type": "string"}]),
    strict(schema({"a": {"$ref": "#/$defs/N"}, "b": {"$ref": "#/$defs/N"}}, **{"$defs": {"N": {"type": "string"}}})),
    ask(output_config={"format": {"type": "json_schema", "schema": schema()}}),
]

WRONG = [
    wrong("no key", rules.key_is_sent, ask(), "x-api-key header is required", status=401, headers=VERSION),
    wrong("no version", rules.version_is_sent, ask(), "anthropic-version: header is", headers={"x-api-key": "test"}),
    wrong("unknown field", rules.fields_are_known, ask(n=2), "n: Extra inputs are not permitted"),
    wrong("beta field without beta", rules.fields_are_known, ask(mcp_servers=[]), "mcp_servers: Extra inputs are not"),
    wrong("no model", rules.fields_are_known, without(ask(), "model"), "model: Field required"),
    wrong("stream is text", rules.fields_are_known, ask(stream="yes"), "stream: Input should be a valid boolean"),
    wrong("no max tokens", rules.max_tokens_is_given, without(ask(), "max_tokens"), "max_tokens: Field required"),
    wrong("zero max tokens", rules.max_tokens_is_given, ask(max_tokens=0), "max_tokens: Input should be greater than"),
    wrong(
        "max tokens is text", rules.max_tokens_is_given, ask(max_tokens="9"), "max_tokens: Input should be a valid int"
    ),
    wrong(
        "no messages", rules.first_message_is_the_users, ask(messages=[]), "messages: at least one message is required"
    ),
    wrong("assistant first", rules.first_message_is_the_users, ask(asks()), 'first message must use the "user" role'),
    wrong(
        "system first", rules.first_message_is_the_users, ask({"role": "system", "content": "x"}), "first message must"
    ),
    wrong(
        "unknown role",
        rules.blocks_fit_roles,
        ask(USER, {"role": "tool", "content": "x"}),
        "messages.1.role: Input sho",
    ),
    wrong(
        "unknown field of a message",
        rules.blocks_fit_roles,
        ask({**USER, "name": "a"}),
        "messages.0.name: Extra inputs",
    ),
    wrong("empty content", rules.blocks_fit_roles, ask({"role": "user", "content": ""}), "must have non-empty content"),
    wrong("no content", rules.blocks_fit_roles, ask({"role": "user"}), "messages.0.content: Field required"),
    wrong("empty text", rules.blocks_fit_roles, ask(says(said(""))), "text content blocks must be non-empty"),
    wrong(
        "unknown block", rules.blocks_fit_roles, ask(says({"type": "input_text"})), "messages.0.content.0.type: Input s"
    ),
    wrong(
        "user uses a tool",
        rules.blocks_fit_roles,
        ask(says({"type": "tool_use", "id": "t1", "name": "look", "input": {}})),
        "`tool_use` blocks can only be in `assistant` messages",
    ),
    wrong(
        "assistant brings a result",
        rules.blocks_fit_roles,
        ask(USER, {"role": "assistant", "content": [result("t1")]}),
        "`tool_result` blocks can only be in `user` messages",
    ),
    wrong(
        "input is text",
        rules.blocks_fit_roles,
        ask(USER, {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "look", "input": "{}"}]}),
        "messages.1.content.0.input: Input should be a valid object",
    ),
    wrong(
        "result is an object",
        rules.blocks_fit_roles,
        ask(USER, asks("t1"), says(result("t1", {"ok": True}))),
        "messages.2.content.0.content: Input should be a valid array",
    ),
    wrong(
        "result with an unknown block",
        rules.blocks_fit_roles,
        ask(USER, asks("t1"), says(result("t1", [{"type": "json", "json": {}}]))),
        "messages.2.content.0.content.0.type: Input should be one of",
    ),
    wrong(
        "result with an unknown field",
        rules.blocks_fit_roles,
        ask(USER, asks("t1"), says({**result("t1"), "name": "look"})),
        "messages.2.content.0.name: Extra inputs are not permitted",
    ),
    wrong(
        "call not answered at the end",
        rules.results_follow_calls,
        ask(USER, asks("t1")),
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: t1.",
    ),
    wrong(
        "one of two calls not answered",
        rules.results_follow_calls,
        ask(USER, asks("t1", "t2"), says(result("t1"))),
        "without `tool_result` blocks immediately after: t2.",
    ),
    wrong(
        "user speaks before the result",
        rules.results_follow_calls,
        ask(USER, asks("t1"), USER, says(result("t1"))),
        "without `tool_result` blocks immediately after: t1.",
    ),
    wrong(
        "text before the result",
        rules.results_follow_calls,
        ask(USER, asks("t1"), says(said(), result("t1"))),
        "without `tool_result` blocks immediately after: t1.",
    ),
    wrong(
        "result without a call",
        rules.results_follow_calls,
        ask(says(result("t9"))),
        "messages.0.content.0: unexpected `tool_use_id` found in `tool_result` blocks: t9.",
    ),
    wrong(
        "result a turn too late",
        rules.results_follow_calls,
        ask(USER, asks("t1"), says(result("t1")), {"role": "assistant", "content": "Hm."}, says(result("t1"))),
        "messages.4.content.0: unexpected `tool_use_id` found in `tool_result` blocks: t1.",
    ),
    wrong(
        "two results for one call",
        rules.results_follow_calls,
        ask(USER, asks("t1"), says(result("t1"), result("t1"))),
        "each tool_use must have a single result. Found multiple `tool_result` blocks with id: t1",
    ),
    wrong(
        "one id in two turns",
        rules.results_follow_calls,
        ask(USER, asks("t1"), says(result("t1")), asks("t1"), says(result("t1"))),
        "`tool_use` ids must be unique: t1",
    ),
    wrong(
        "name with a dot", rules.tools_are_valid, with_tools(tool("a.b")), "tools.0.custom.name: String should match p"
    ),
    wrong(
        "name with 129 characters", rules.tools_are_valid, with_tools(tool("x" * 129)), "String should match pattern"
    ),
    wrong("one name twice", rules.tools_are_valid, with_tools(tool(), tool()), "tools: Tool names must be unique"),
    wrong(
        "unknown field of a tool", rules.tools_are_valid, with_tools(tool(parameters={})), "tools.0.parameters: Extra"
    ),
    wrong(
        "unknown kind of tool", rules.tools_are_valid, with_tools({"type": "function"}), "tools.0: Input tag 'function'"
    ),
    wrong("no schema", rules.tools_are_valid, with_tools({"name": "look"}), "tools.0.input_schema: Field required"),
    wrong("schema without type", schemas.root_is_an_object, with_tools(tool(input_schema={})), "type: Field required"),
    wrong("array", schemas.root_is_an_object, with_tools(tool(input_schema={"type": "array"})), "should be 'object'"),
    wrong(
        "no json schema", is_malformed, with_tools(tool(input_schema={"type": "object", "required": 1})), "is invalid"
    ),
    wrong(
        "21 strict tools",
        rules.strict_tools_are_few,
        with_tools(*(tool(f"t{n}", strict=True) for n in range(21))),
        "Too many strict tools (21). The limit is 20.",
    ),
    wrong(
        "25 optional", schemas.check_totals, strict(optional(25)), "too many optional parameters (25). The limit is 24"
    ),
    wrong("17 unions", schemas.check_totals, strict(unions(17)), "parameters with union types (17). The limit is 16"),
    wrong(
        "25 optional in two tools",
        schemas.check_totals,
        with_tools(tool("a", input_schema=optional(20), strict=True), tool("b", input_schema=optional(5), strict=True)),
        "too many optional parameters (25)",
    ),
    wrong(
        "wrong example",
        rules.examples_are_valid,
        with_tools(tool(input_examples=[{"city": "Paris"}, {"city": 3}])),
        "tools.0.input_examples.1: Input example does not match",
    ),
    wrong(
        "choice without tools", rules.choice_names_a_tool, ask(tool_choice={"type": "auto"}), "while providing tools"
    ),
    wrong(
        "choice is text", rules.choice_names_a_tool, with_tools(tool(), tool_choice="auto"), "tool_choice: Input should"
    ),
    wrong(
        "choice of OpenAI",
        rules.choice_names_a_tool,
        with_tools(tool(), tool_choice={"type": "required"}),
        "tool_choice.type: Input should be one of any, auto, none, tool, not 'required'",
    ),
    wrong(
        "choice of an unknown tool",
        rules.choice_names_a_tool,
        with_tools(tool(), tool_choice={"type": "tool", "name": "other"}),
        "Tool 'other' not found in provided tools",
    ),
    wrong(
        "choice with an unknown field",
        rules.choice_names_a_tool,
        with_tools(tool(), tool_choice={"type": "auto", "name": "look"}),
        "tool_choice.name: Extra inputs are not permitted",
    ),
    wrong(
        "open output",
        rules.answer_format_is_valid,
        ask(output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}}),
        "output_config.format.schema: For 'object' type, 'additionalProperties' must be explicitly set to false",
    ),
    wrong("open object", schemas.objects_are_closed, strict({"type": "object"}), "must be explicitly set to false"),
    wrong(
        "open map", schemas.objects_are_closed, prop(type="object", additionalProperties={}), "explicitly set to false"
    ),
    *(
        wrong(
            f"keyword {word}",
            schemas.keywords_are_supported,
            prop(type="string", **{word: value}),
            f"properties {word} ar",
        )
        for word, value in {
            "minimum": 1,
            "exclusiveMaximum": 1,
            "multipleOf": 2,
            "minLength": 1,
            "maxLength": 1,
            "maxItems": 1,
            "uniqueItems": True,
            "oneOf": [{"type": "string"}],
            "not": {"type": "null"},
            "if": {"type": "string"},
            "patternProperties": {"^a": {"type": "string"}},
            "prefixItems": [{"type": "string"}],
        }.items()
    ),
    wrong(
        "two items", schemas.keywords_are_supported, prop(type="array", minItems=2), "'minItems' values other than 0 or"
    ),
    wrong(
        "allOf with a reference",
        schemas.all_of_has_no_reference,
        strict(schema({"a": {"allOf": [{"$ref": "#/$defs/N"}]}}, **{"$defs": {"N": {"type": "string"}}})),
        "'allOf' with '$ref' is not supported",
    ),
    wrong(
        "format", schemas.formats_are_supported, prop(type="string", format="regex"), "format 'regex' is not supported"
    ),
    wrong(
        "lookahead", schemas.patterns_are_simple, prop(type="string", pattern="a(?=b)"), "uses a backreference, a look"
    ),
    wrong("backreference", schemas.patterns_are_simple, prop(type="string", pattern=r"(a)\1"), "uses a backreference"),
    wrong("word boundary", schemas.patterns_are_simple, prop(type="string", pattern=r"\ba"), "uses a backreference"),
    wrong("enum of objects", schemas.enums_are_primitive, prop(enum=[{"a": 1}]), "Enum values must be primitives"),
    wrong(
        "reference to an anchor",
        schemas.references_are_local,
        strict(schema({"a": {"$ref": "#here"}}, **{"$defs": {"N": {"$id": "#x", "type": "string"}}})),
        "JSON schema is invalid",
    ),
    wrong(
        "reference to the outside",
        schemas.references_are_local,
        strict(schema({"a": {"$ref": "https://json-schema.org/draft/2020-12/schema"}})),
        "External schema references are not supported",
    ),
    wrong(
        "recursion",
        schemas.nothing_is_recursive,
        strict(schema({"n": {"$ref": "#/$defs/N"}}, **{"$defs": {"N": schema({"n": {"$ref": "#/$defs/N"}})}})),
        "Circular reference detected in schema definitions: #/$defs/N",
    ),
    wrong("recursion of the root", schemas.nothing_is_recursive, prop(**{"$ref": "#"}), "Circular reference detected"),
]


@pytest.mark.parametrize("body", RIGHT)
def test_a_right_request_is_accepted(body: Body) -> None:
    with AnthropicServer([text("Hello")]) as server:
        status, answer = post(f"{server.url}/v1/messages", body, KEY)
    assert status == 200, answer


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_request_is_refused(case: Wrong) -> None:
    with AnthropicServer([]) as server:
        headers = KEY if case.headers is None else case.headers
        status, answer = post(f"{server.url}/v1/messages", case.body, headers)
    kind = {400: "invalid_request_error", 401: "authentication_error"}[case.status]
    assert (status, answer["type"], answer["error"]["type"]) == (case.status, "error", kind)
    assert case.says in answer["error"]["message"]


def test_every_rule_has_a_wrong_client() -> None:
    assert {rule.__name__ for rule in (*rules.RULES, *schemas.STRICT)} <= rules_of(WRONG)


def test_a_beta_request_may_have_the_fields_of_the_beta() -> None:
    with AnthropicServer([text("Hello")]) as server:
        headers = {**KEY, "anthropic-beta": "mcp-client-2026-09-15"}
        assert post(f"{server.url}/v1/messages?beta=true", ask(mcp_servers=[]), headers)[0] == 200


def test_a_bearer_token_is_a_key_too() -> None:
    with AnthropicServer([text("Hello")]) as server:
        headers = {**VERSION, "Authorization": "Bearer token"}
        assert post(f"{server.url}/v1/messages", ask(), headers)[0] == 200


def test_the_official_client_raises_bad_request() -> None:
    messages: Any = [USER, asks("t1"), USER]
    with (
        AnthropicServer([]) as server,
        Anthropic(base_url=server.url, api_key="test", max_retries=0) as client,
        pytest.raises(anthropic.BadRequestError, match="tool_result"),
    ):
        client.messages.create(model="claude-test", max_tokens=10, messages=messages)

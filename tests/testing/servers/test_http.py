"""The part that all local servers share: the script, the record, and what cannot be read at all."""

import ast
import re
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

import handrail.testing.servers as servers
from handrail.testing.servers import (
    AnthropicServer,
    GeminiServer,
    OpenAIServer,
    Reply,
    ScriptedCall,
    error,
    text,
    tool_calls,
)
from handrail.testing.servers.rules import (
    anthropic_messages,
    anthropic_schema,
    gemini,
    openai_chat,
    openai_responses,
)
from handrail.testing.servers.rules import openai as openai_rules
from tests.testing.servers.wire import post

HELLO: dict[str, Any] = {"model": "gpt-test", "messages": [{"role": "user", "content": "Hi"}]}
KEY = {"Authorization": "Bearer secret-key"}


def say(server: OpenAIServer, body: object = HELLO) -> tuple[int, Any]:
    return post(f"{server.url}/chat/completions", body, KEY)


def test_replies_come_in_the_order_of_the_script() -> None:
    with OpenAIServer([text("one"), text("two")]) as server:
        answers = [say(server)[1]["choices"][0]["message"]["content"] for _ in range(2)]
    assert answers == ["one", "two"]


def test_a_function_of_the_script_sees_the_request_and_makes_the_reply() -> None:
    def shout(body: dict[str, Any]) -> Reply:
        return text(body["messages"][-1]["content"].upper())

    with OpenAIServer([shout]) as server:
        assert say(server)[1]["choices"][0]["message"]["content"] == "HI"


def test_replies_that_nobody_asked_for_are_an_error_at_the_end() -> None:
    with (
        pytest.raises(AssertionError, match="2 of 3 scripted replies were not asked for"),
        OpenAIServer([text("one"), text("two"), text("three")]) as server,
    ):
        say(server)


def test_an_error_inside_the_context_is_not_hidden_by_unused_replies() -> None:
    with pytest.raises(ZeroDivisionError), OpenAIServer([text("one")]):
        raise ZeroDivisionError


def test_a_script_that_is_used_up_answers_500_and_says_so() -> None:
    with OpenAIServer([text("one")]) as server, OpenAI(base_url=server.url, api_key="test") as client:
        client.chat.completions.create(**HELLO)
        with pytest.raises(openai.InternalServerError, match="The script has 1 replies; there is none"):
            client.chat.completions.create(**HELLO)
    assert [request.status for request in server.requests] == [200, 500]  # once: the client is told not to retry


def test_a_refused_request_does_not_use_up_a_reply() -> None:
    with OpenAIServer([text("one")]) as server:
        status, _ = say(server, {"model": "gpt-test"})
        assert status == 400
        assert say(server)[0] == 200
    assert [request.refused for request in server.requests] == ["Missing required parameter: 'messages'.", None]


def test_a_function_of_the_script_that_fails_is_raised_at_the_end() -> None:
    def fail(body: dict[str, Any]) -> Reply:
        raise LookupError("no such city")

    server = OpenAIServer([fail]).__enter__()
    status, answer = say(server)
    assert (status, "leaving its context" in answer["error"]["message"]) == (500, True)
    with pytest.raises(LookupError, match="no such city"):
        server.__exit__(None, None, None)


def test_a_failure_of_the_script_is_a_note_on_the_error_that_it_causes() -> None:
    def fail(body: dict[str, Any]) -> Reply:
        raise LookupError("no such city")

    with pytest.raises(AssertionError) as caught, OpenAIServer([fail]) as server:
        assert say(server)[0] == 200
    assert "no such city" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("server", "path", "headers"),
    [
        (OpenAIServer, "/chat/completions", {"Authorization": "Bearer secret-key"}),
        (AnthropicServer, "/v1/messages", {"x-api-key": "secret-key", "anthropic-version": "2023-06-01"}),
        (GeminiServer, "/v1beta/models/gemini-test:generateContent?key=secret-key", {"x-goog-api-key": "secret-key"}),
    ],
)
def test_the_record_of_requests_does_not_contain_the_key(server: Any, path: str, headers: dict[str, str]) -> None:
    with server([]) as running:
        post(running.url + path, {}, headers)
    assert running.requests[0].refused
    assert "secret-key" not in repr(running.requests)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        b'{"model": NaN}',
        b'{"model": "\xff"}',
        b'{"model": "\xed\xa0\x80"}',
        b'{"model": "\\ud800"}',
        b"[" * 100_000,
    ],
    ids=["nothing", "half", "array", "string", "nan", "latin", "encoded-surrogate", "lone-surrogate", "depth"],
)
@pytest.mark.parametrize(
    ("server", "path"),
    [
        (OpenAIServer, "/chat/completions"),
        (OpenAIServer, "/responses"),
        (AnthropicServer, "/v1/messages"),
        (GeminiServer, "/v1beta/models/gemini-test:generateContent"),
    ],
)
def test_a_body_that_is_not_json_in_utf_8_is_refused(server: Any, path: str, body: bytes) -> None:
    with server([]) as running:
        status, answer = post(running.url + path, body, {})
    assert status == 400
    assert re.search("could not parse|nested too deeply", answer["error"]["message"])


def test_a_path_that_the_api_does_not_have_is_404() -> None:
    with OpenAIServer([]) as server:
        assert post(f"{server.url}/completions", {}, KEY)[0] == 404
        assert server.requests[0].refused == "This server has no POST /v1/completions."
        with OpenAI(base_url=server.url, api_key="test", max_retries=0) as client, pytest.raises(openai.NotFoundError):
            client.models.list()


def test_the_url_is_there_only_while_the_server_runs() -> None:
    server = OpenAIServer([])
    with pytest.raises(RuntimeError, match="with Server"):
        _ = server.url


def test_a_piece_has_at_least_one_character() -> None:
    with pytest.raises(ValueError, match="at least one character"):
        OpenAIServer([], piece=0)


def test_nothing_answers_after_the_context_is_left() -> None:
    with OpenAIServer([text("one")]) as server:
        url = server.url
        client = OpenAI(base_url=url, api_key="test", max_retries=0)
        client.chat.completions.create(**HELLO)
    with client, pytest.raises(openai.APIConnectionError):
        client.chat.completions.create(**HELLO)


def test_the_same_script_gives_the_same_bytes() -> None:
    answers: list[Any] = []
    for _ in range(2):
        with OpenAIServer([tool_calls(("look", {"at": "sky"})), text("blue")]) as server:
            answers.append([say(server), say(server)])
    assert answers[0] == answers[1]


def test_a_call_can_be_given_as_a_value() -> None:
    with OpenAIServer([tool_calls(ScriptedCall(name="look", arguments="{}", id="mine"))]) as server:
        assert say(server)[1]["choices"][0]["message"]["tool_calls"][0]["id"] == "mine"


def test_scripted_errors_bring_their_headers() -> None:
    slow_down = error(429, "rate_limit_exceeded", "Slow down.", headers={"retry-after": "7"})
    with (
        OpenAIServer([slow_down]) as server,
        OpenAI(base_url=server.url, api_key="test", max_retries=0) as client,
        pytest.raises(openai.RateLimitError, match="Slow down") as caught,
    ):
        client.chat.completions.create(**HELLO)
    assert caught.value.response.headers["retry-after"] == "7"
    assert (caught.value.code, caught.value.type) == ("rate_limit_exceeded", "requests")


def test_the_servers_import_nothing_else_of_handrail() -> None:
    room = Path(servers.__file__).parent
    for file in room.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                package = room if file.parent == room else file.parent
                assert node.level <= (1 if package == room else 2), file
            elif isinstance(node, ast.Import | ast.ImportFrom):
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [name.name for name in node.names]
                assert not any(name.split(".")[0] == "handrail" for name in names), file


@pytest.mark.parametrize(
    "rule",
    [
        *openai_chat.RULES,
        *openai_responses.RULES,
        openai_responses.every_call_is_answered,
        openai_rules.key_is_sent,
        openai_rules.name_is_valid,
        openai_rules.names_are_unique,
        *openai_rules.STRICT,
        *anthropic_messages.RULES,
        anthropic_messages.key_is_sent,
        anthropic_messages.version_is_sent,
        *anthropic_schema.STRICT,
        anthropic_schema.check_totals,
        *gemini.RULES,
        gemini.key_is_sent,
    ],
    ids=lambda rule: rule.__name__,
)
def test_every_rule_says_where_it_comes_from(rule: Any) -> None:
    assert re.match("API reference|SDK types|Observed", rule.__doc__)

"""Whatever is sent, the servers answer it, and their own code does not fail."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from handrail.testing.servers import AnthropicServer, GeminiServer, OpenAIServer, Reply, text
from handrail.testing.servers.anthropic_messages import MessagesApi
from handrail.testing.servers.gemini import GeminiApi
from handrail.testing.servers.http import Incoming
from handrail.testing.servers.openai import ChatApi, ResponsesApi
from handrail.testing.servers.rules.reading import RequestRefused, as_list, as_map
from tests.testing.servers import (
    test_anthropic_rules,
    test_gemini_rules,
    test_openai_chat_rules,
    test_openai_responses_rules,
)

JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.text(max_size=5),
    st.just([]),
    st.just({}),
    st.just([{}]),
    st.just([None]),
    st.just({"type": "object"}),
    st.just({"type": ["string"]}),
    st.just({"type": "function"}),
    st.just({"type": {}, "name": []}),
)
"""Values of every kind, to be put where they do not belong."""

HEADERS = {
    "authorization": "Bearer test",
    "x-api-key": "test",
    "x-goog-api-key": "test",
    "anthropic-version": "1",
    "anthropic-beta": "all",
}
APIS: Any = [
    pytest.param(ChatApi, "/v1/chat/completions", test_openai_chat_rules, id="chat"),
    pytest.param(ResponsesApi, "/v1/responses", test_openai_responses_rules, id="responses"),
    pytest.param(MessagesApi, "/v1/messages", test_anthropic_rules, id="anthropic"),
    pytest.param(GeminiApi, test_gemini_rules.PATH, test_gemini_rules, id="gemini"),
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in a body."""
    steps: dict[Any, Any] = dict(enumerate(as_list(value))) | as_map(value)
    for step, inner in steps.items():
        yield (*path, step)
        yield from places(inner, (*path, step))


def put(body: Any, path: tuple[Any, ...], value: Any) -> Any:
    changed = copy.deepcopy(body)
    at = changed
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return changed


@pytest.mark.parametrize(("api", "path", "module"), APIS)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_body_with_junk_in_it_is_accepted_or_refused(api: Any, path: str, module: Any, data: st.DataObject) -> None:
    bodies = [body for body in module.RIGHT if len(repr(body)) < 3_000]
    body = data.draw(st.sampled_from(bodies))
    for _ in range(data.draw(st.integers(1, 2))):
        body = put(body, data.draw(st.sampled_from(list(places(body)))), data.draw(JUNK))
    incoming = Incoming(path=path, query={}, headers=HEADERS, body=body)
    served = api()
    try:
        served.check(incoming)
    except RequestRefused:
        return
    reply = Reply(text="Hello")
    assert served.build_body(incoming, reply, 1)
    assert list(served.build_events(incoming, reply, 1, 4))


@pytest.mark.parametrize("server", [OpenAIServer, AnthropicServer, GeminiServer])
def test_a_server_can_be_used_again(server: Any) -> None:
    again = server([text("Hello")] * 0)
    for _ in range(2):
        with again as running:
            assert running.url.startswith("http://127.0.0.1:")

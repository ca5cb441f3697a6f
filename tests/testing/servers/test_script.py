"""Replies that the vocabulary of the script has no words for."""

import pytest
from openai import APIStatusError, OpenAI

from handrail.testing.servers import OpenAIServer, raw

ITEM = {"id": "msg_x", "type": "message", "role": "assistant", "status": "completed", "content": []}


def test_a_raw_reply_is_sent_word_for_word() -> None:
    body = {"id": "resp_x", "object": "response", "output": [ITEM], "unheard_of": {"a": 1}}
    with OpenAIServer([raw(body)]) as server, OpenAI(base_url=server.url, api_key="test", max_retries=0) as client:
        answer = client.responses.with_raw_response.create(model="local", input="Hello")
    assert answer.http_response.json() == body
    assert [request.status for request in server.requests] == [200]


def test_a_raw_reply_cannot_be_streamed() -> None:
    server = OpenAIServer([raw({})])
    with (
        pytest.raises(TypeError, match="A raw reply is one body, and the request asks for a stream"),
        server,
        OpenAI(base_url=server.url, api_key="test", max_retries=0) as client,
        pytest.raises(APIStatusError),
    ):
        client.responses.create(model="local", input="Hello", stream=True)

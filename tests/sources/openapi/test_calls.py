"""Calls of a document's operations, through the executor, against a real server on a socket."""

import json
from pathlib import Path
from typing import Any

import pytest

from handrail import Executor, Policy, Rule, ToolCall, ToolContext, ToolResult
from handrail.execute import RetryPolicy
from handrail.sources import OpenApi
from tests.sources.api_server import ApiServer, Reply, serving

SHOP = Path(__file__).parents[1] / "documents" / "shop.yaml"
ALLOWED = Policy([Rule.allow("*")])


def shop(server: ApiServer, **options: Any) -> OpenApi:
    return OpenApi(SHOP, base_url=server.url, allow_private=True, **options)


async def call(executor: Executor, name: str, *, call_id: str = "c-1", **arguments: Any) -> ToolResult:
    context = ToolContext(session_id="s-1", turn=1, secrets={"shop": "tok-123456"})
    return await executor.run(ToolCall(id=call_id, name=name, arguments_json=json.dumps(arguments)), context)


@pytest.mark.proves("GC-19")
async def test_calling_an_operation_makes_its_request() -> None:
    with serving(lambda request: {"orders": [1, 2]}) as server:
        async with Executor(shop(server, bearer="secret:shop").tools()) as executor:
            result = await call(executor, "listOrders", customer="a&b", state=["open", "no"], limit=5)

    assert result.output == {"orders": [1, 2]}
    assert (server.last.method, server.last.path) == ("GET", "/orders")
    assert server.last.query == [("customer", "a&b"), ("state", "open"), ("state", "no"), ("limit", "5")]
    assert server.last.headers["authorization"] == "Bearer tok-123456"


async def test_a_body_is_made_of_the_arguments_and_needs_approval_first() -> None:
    with serving(lambda request: Reply(status=201, body={"number": "o-1"})) as server:
        async with Executor(shop(server).tools()) as executor:
            refused = await call(executor, "createOrder", customer="ann", lines=[{"article": "pen", "count": 2}])
        assert refused.error is not None
        assert refused.error.code == "approval_required"
        assert server.requests == []

        async with Executor(shop(server).tools(), policy=ALLOWED) as executor:
            done = await call(
                executor, "createOrder", customer="ann", note=None, lines=[{"article": "pen", "count": 2}]
            )

    assert done.output == {"number": "o-1"}
    assert server.last.json == {"customer": "ann", "note": None, "lines": [{"article": "pen", "count": 2}]}
    assert server.last.headers["content-type"] == "application/json"
    assert server.last.headers["idempotency-key"]


async def test_arguments_that_do_not_fit_the_document_are_never_sent() -> None:
    with serving(lambda request: None) as server:
        async with Executor(shop(server).tools(), policy=ALLOWED) as executor:
            deep = await call(executor, "createOrder", customer="ann", lines=[{"article": "pen", "count": 0}])
            read_only = await call(executor, "createOrder", customer="ann", number="7", lines=[])
            unknown = await call(executor, "listOrders", customer="ann", sort="up")

    assert [item.error.code for item in (deep, read_only, unknown) if item.error] == ["invalid_arguments"] * 3
    assert server.requests == []


def upload(**fields: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": fields, "required": list(fields)}
    operation = {"operationId": "upload", "requestBody": {"content": {"multipart/form-data": {"schema": schema}}}}
    operation["requestBody"]["required"] = True
    return {"openapi": "3.1.0", "info": {"title": "x", "version": "1"}, "paths": {"/files": {"post": operation}}}


@pytest.mark.parametrize(
    ("schema", "value", "count"),
    [
        ({"type": "string", "format": "binary"}, "aGk=", 1),
        ({"type": "array", "items": {"type": "string", "format": "binary"}}, ["aGk=", "aG8="], 2),
        ({"type": "string", "contentMediaType": "image/png"}, "aGk=", 1),
        ({"type": ["string", "null"], "format": "binary"}, "aGk=", 1),
        ({"type": ["string", "null"], "format": "binary"}, None, 0),
        ({"anyOf": [{"type": "string", "format": "binary"}, {"type": "null"}]}, "aGk=", 1),
        ({"type": "array", "items": {"type": "string", "contentMediaType": "application/pdf"}}, ["aGk="], 1),
    ],
)
async def test_files_in_a_form_are_uploaded_as_files_however_they_are_declared(
    schema: dict[str, Any], value: Any, count: int
) -> None:
    with serving(lambda request: {"ok": 1}) as server:
        api = OpenApi(upload(file=schema), base_url=server.url, allow_private=True)
        async with Executor(api.tools(), policy=ALLOWED) as executor:
            result = await call(executor, "upload", file=value)

    assert result.ok, result.error
    assert server.last.body.count(b'filename="file"') == count
    assert server.last.body.count(b"\r\n\r\nhi") == (1 if count else 0)
    assert b"aGk=" not in server.last.body


async def test_a_text_in_a_form_stays_a_text() -> None:
    with serving(lambda request: {"ok": 1}) as server:
        note = {"type": "string", "contentMediaType": "text/markdown"}
        api = OpenApi(upload(note=note), base_url=server.url, allow_private=True)
        async with Executor(api.tools(), policy=ALLOWED) as executor:
            await call(executor, "upload", note="aGk=")

    assert b"aGk=" in server.last.body


async def test_when_to_try_again_reaches_the_retry_and_the_model() -> None:
    replies = [Reply(status=429, headers={"Retry-After": "0"}), Reply(body={"orders": []})]
    with serving(lambda request: replies.pop(0)) as server:
        async with Executor(shop(server).tools(), retry=RetryPolicy(max_attempts=2, initial_delay=0)) as executor:
            result = await call(executor, "listOrders", customer="ann")
    assert result.output == {"orders": []}

    with serving(lambda request: Reply(status=503, headers={"Retry-After": "3600"})) as server:
        async with Executor(shop(server).tools(), retry=RetryPolicy(max_attempts=3, initial_delay=0)) as executor:
            result = await call(executor, "listOrders", customer="ann")
    assert result.error is not None
    assert "Try again in 3600 seconds." in result.error.message
    assert len(server.requests) == 1  # It is longer than a call waits.


@pytest.mark.parametrize("status", [200, 403])
@pytest.mark.parametrize(
    ("token", "body", "kind"),
    [
        ("tok/123456", b'{"seen": "tok\\/123456"}', "application/json"),
        ("tok/123456", b'{"seen": "\\u0074ok/123456"}', "application/json"),
        ("tok-123456", "seen tok-123456".encode("utf-16"), "text/plain; charset=utf-16"),
        ("tok-123456", b"seen tok-123456", "text/plain"),
    ],
)
async def test_a_server_that_repeats_the_credentials_is_cleaned_however_it_writes_them(
    status: int, token: str, body: bytes, kind: str
) -> None:
    with serving(lambda request: Reply(status=status, body=body, headers={"Content-Type": kind})) as server:
        api = shop(server, bearer=lambda: token)
        async with Executor(api.tools()) as executor:
            result = await call(executor, "listOrders", customer="ann")

    shown = result.for_model()
    assert "123456" not in shown
    assert "[redacted]" in shown

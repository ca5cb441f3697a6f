"""Calls of a document's operations, through the executor, against a real server on a socket."""

import json
from pathlib import Path
from typing import Any

import pytest

from handrail import Executor, Policy, Rule, ToolCall, ToolContext, ToolResult
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

    assert [one.error.code for one in (deep, read_only, unknown) if one.error] == ["invalid_arguments"] * 3
    assert server.requests == []

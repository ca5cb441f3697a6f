"""Lists that come page by page, and the schemas of responses."""

import json
from typing import Any

import pytest

from handrail import ConfigError, Executor, Policy, Rule, ToolCall, ToolContext, ToolResult
from handrail.formats import mcp
from handrail.sources import OpenApi, Pagination
from handrail.sources.openapi.pagination import find_next_link
from tests.sources.api_server import ApiServer, Reply, Request, serving

ORDER = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "readOnly": True},
        "note": {"type": "string"},
        "card": {"type": "string", "writeOnly": True},
    },
    "required": ["id", "card"],
}
DOCUMENT: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "Shop", "version": "1"},
    "components": {"schemas": {"Order": ORDER}},
    "paths": {
        "/orders": {
            "get": {
                "operationId": "listOrders",
                "parameters": [
                    {"name": "page", "in": "query", "schema": {"type": "integer"}},
                    {"name": "after", "in": "query", "schema": {"type": "string"}},
                ],
                "responses": {
                    "200": {"description": "", "content": {"application/json": {"schema": {"type": "array"}}}}
                },
            },
            "post": {
                "operationId": "order",
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Order"}}},
                },
                "responses": {
                    "201": {
                        "description": "",
                        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Order"}}},
                    }
                },
            },
        }
    },
}
ITEMS = [{"id": str(number)} for number in range(1, 8)]


def shop(server: ApiServer | None = None, **options: Any) -> OpenApi:
    url = "https://shop.example" if server is None else server.url
    return OpenApi(DOCUMENT, base_url=url, allow_private=True, **options)


async def run(api: OpenApi, arguments: dict[str, Any] | None = None) -> ToolResult:
    async with Executor(api.tools(), policy=Policy([Rule.allow("*")])) as executor:
        call = ToolCall(id="c-1", name="listOrders", arguments_json=json.dumps(arguments or {}))
        return await executor.run(call, ToolContext(session_id="s-1", secrets={"shop": "tok-123456"}))


def answer_by_link(request: Request) -> Reply:
    number = int(dict(request.query).get("page", "1"))
    more = f'</orders?page={number + 1}>; rel="next", </orders?page=9>; rel="last"' if number * 2 < len(ITEMS) else ""
    return Reply(body=ITEMS[number * 2 - 2 : number * 2], headers={"Link": more})


def answer_by_cursor(request: Request) -> Reply:
    start = int(dict(request.query).get("after", "0"))
    return Reply(body={"data": ITEMS[start : start + 3], "has_more": start + 3 < len(ITEMS)})


def answer_by_page(request: Request) -> Reply:
    number = int(dict(request.query).get("page", "1"))
    return Reply(body={"orders": ITEMS[number * 3 - 3 : number * 3]})


@pytest.mark.parametrize(
    ("answer", "pagination", "pages"),
    [
        (answer_by_link, Pagination(by="link"), 4),
        (
            answer_by_cursor,
            Pagination(by="cursor", parameter="after", cursor="data.-1.id", more="has_more", items="data"),
            3,
        ),
        (answer_by_page, Pagination(by="page", parameter="page", items="orders"), 4),
    ],
)
async def test_every_page_is_read_and_the_result_is_one_list(answer: Any, pagination: Pagination, pages: int) -> None:
    with serving(answer) as server:
        result = await run(shop(server, paginate={"listOrders": pagination}))

    assert result.output == {"items": ITEMS, "pages": pages, "has_more": False}
    assert len(server.requests) == pages


async def test_pages_begin_where_the_model_wants_and_carry_the_credentials() -> None:
    with serving(answer_by_page) as server:
        pagination = Pagination(by="page", parameter="page", items="orders")
        result = await run(shop(server, paginate={"listOrders": pagination}, bearer="secret:shop"), {"page": 3})

    assert result.output == {"items": ITEMS[6:], "pages": 2, "has_more": False}
    assert {request.headers["authorization"] for request in server.requests} == {"Bearer tok-123456"}


@pytest.mark.parametrize("limit", [{"max_pages": 2}, {"max_items": 4}])
async def test_a_list_is_bounded_and_says_that_there_is_more(limit: dict[str, Any]) -> None:
    with serving(answer_by_link) as server:
        result = await run(shop(server, paginate={"listOrders": Pagination(by="link", **limit)}))

    assert result.output == {"items": ITEMS[:4], "pages": 2, "has_more": True}


async def test_a_last_page_of_which_only_a_part_fits_is_not_the_whole_list() -> None:
    with serving(lambda request: Reply(body=ITEMS)) as server:
        result = await run(shop(server, paginate={"listOrders": Pagination(by="link", max_items=3)}))

    assert result.output == {"items": ITEMS[:3], "pages": 1, "has_more": True}


@pytest.mark.timeout(20)
async def test_a_header_that_is_made_to_be_slow_is_read_at_once() -> None:
    link = "<>;" * 1_000 + ";rel=" + " " * 4_000 + "x"
    with serving(lambda request: Reply(body=ITEMS, headers={"Link": link})) as server:
        result = await run(shop(server, paginate={"listOrders": Pagination(by="link")}))

    assert result.output == {"items": ITEMS, "pages": 1, "has_more": False}


@pytest.mark.parametrize(
    ("link", "following"),
    [
        ('</a>; rel="next", </b>; rel="last"', "/a"),
        ("</a>; rel=prev, </b?ids=1,2>; TITLE=next; REL = NEXT", "/b?ids=1,2"),
        ('</a>; rel="start next"', "/a"),
        ('</a>; rel="nextish", </b>; title="next"', None),
        ('</a>; rel="last", rel="next"', None),
    ],
)
def test_the_next_page_is_the_one_whose_relation_says_so(link: str, following: str | None) -> None:
    assert find_next_link({"link": link}) == following


async def test_pages_have_no_more_bytes_together_than_one_response_may_have() -> None:
    with serving(
        lambda request: Reply(body=["x" * 600], headers={"Link": f"<?page={id(request)}>; rel=next"})
    ) as server:
        api = shop(server, paginate={"listOrders": Pagination(by="link", max_pages=1_000)}, max_response_bytes=2_000)
        result = await run(api)

    assert result.output["has_more"] is True
    assert len(server.requests) == 4


async def test_a_page_that_comes_again_ends_the_list() -> None:
    with serving(lambda request: Reply(body=[1], headers={"Link": "</orders?page=1>; rel=next"})) as server:
        result = await run(shop(server, paginate={"listOrders": Pagination(by="link", max_pages=1_000)}))

    assert result.output == {"items": [1, 1], "pages": 2, "has_more": True}


async def test_a_link_to_another_host_is_not_followed() -> None:
    with serving(lambda request: Reply(body=[1], headers={"Link": "<https://evil.example/>; rel=next"})) as server:
        result = await run(shop(server, paginate={"listOrders": Pagination(by="link")}))

    assert result.error is not None
    assert "another host" in result.error.message
    assert len(server.requests) == 1


async def test_a_body_without_the_list_is_an_error_for_the_model() -> None:
    with serving(lambda request: Reply(body={"orders": None})) as server:
        pagination = Pagination(by="page", parameter="page", items="orders")
        result = await run(shop(server, paginate={"listOrders": pagination}))

    assert result.error is not None
    assert "'orders' of the body is none" in result.error.message


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: Pagination(by="cursor", parameter="after"), "needs where the body has it"),
        (lambda: Pagination(by="page"), "needs the query parameter"),
        (lambda: Pagination(by="offset"), "by must be 'link', 'cursor' or 'page', got 'offset'"),  # type: ignore[arg-type]
        (lambda: Pagination(by="link", max_pages=0), "max_pages must be at least 1, got 0"),
        (lambda: shop(paginate={"listOrders": "link"}), "must be a Pagination(by=…), got str"),
        (lambda: shop(paginate={"order": Pagination(by="link")}).tools(), "'order' is a POST"),
        (lambda: shop(paginate={"lstOrders": Pagination(by="link")}).tools(), "selects none"),
        (
            lambda: shop(paginate={"listOrders": Pagination(by="page", parameter="pge")}).tools(),
            "has no query parameter 'pge'; it has page, after",
        ),
    ],
)
def test_a_pagination_that_cannot_work_is_refused_and_says_why(build: Any, text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        build()
    assert text in str(refused.value)


def test_output_schemas_are_an_option_and_have_what_a_response_has() -> None:
    plain = {tool.name: tool.output_schema for tool in shop().tools()}
    described = {tool.name: tool for tool in shop(output_schemas=True).tools()}

    assert set(plain.values()) == {None}
    assert described["order"].output_schema == {
        "type": "object",
        "properties": {"id": {"type": "string"}, "note": {"type": "string"}},
        "required": ["id"],
    }
    assert set(described["order"].input_schema["properties"]) == {"note", "card"}
    definitions = {item["name"]: item for item in mcp.tools(described.values())}
    assert definitions["order"]["outputSchema"]["required"] == ["id"]
    assert "outputSchema" not in definitions["listOrders"]  # MCP promises objects only.


async def test_whoever_approves_is_told_which_host_is_asked() -> None:
    executor = Executor(shop().tools(), policy=Policy([Rule.ask("order", by="operator", reason="new orders")]))
    result = await executor.run(
        ToolCall(id="c-1", name="order", arguments_json='{"card": "4242"}'), ToolContext(session_id="s-1")
    )

    assert executor.registry.get("order").metadata["host"] == "shop.example"
    assert result.approval is not None
    assert result.approval.question == "new orders (sent to shop.example)"

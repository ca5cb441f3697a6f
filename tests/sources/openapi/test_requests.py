"""Where each argument goes, as a server sees it."""

import base64
import json
from collections.abc import Iterator
from email.message import Message
from email.parser import BytesParser
from pathlib import Path
from typing import Any

import pytest

from handrail import Executor, Policy, Rule, ToolCall, ToolContext, ToolResult
from handrail.sources import OpenApi
from tests.sources.api_server import ApiServer, serving

DOCUMENTS = Path(__file__).parents[1] / "documents"


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    with serving(lambda request: {"ok": True}) as server:
        yield server


def document(operation: dict[str, Any], *, path: str = "/x", method: str = "post", **more: Any) -> dict[str, Any]:
    return {
        "openapi": "3.0.3",
        "info": {"title": "Test", "version": "1"},
        "servers": [{"url": "https://api.example"}],
        "paths": {path: {method: {"operationId": "op", **operation}}},
        **more,
    }


async def send(
    server: ApiServer, source: Any, arguments: dict[str, Any], *, name: str = "op", **options: Any
) -> ToolResult:
    api = OpenApi(source, base_url=f"{server.url}/v1/", allow_private=True, **options)
    context = ToolContext(session_id="s-1", secrets={"key": "k-123456", "password": "p-123456"})
    async with Executor(api.tools(), policy=Policy([Rule.allow("*")])) as executor:
        assert api.skipped == ()
        return await executor.run(ToolCall(id="c-1", name=name, arguments_json=json.dumps(arguments)), context)


LIST, OBJECT = ["a b", "c/d"], {"R": 100, "G": True}


@pytest.mark.parametrize(
    ("place", "style", "explode", "value", "expected"),
    [
        ("path", "simple", False, "a/b?c#d%", "/v1/x/a%2Fb%3Fc%23d%25"),
        ("path", "simple", False, LIST, "/v1/x/a%20b,c%2Fd"),
        ("path", "simple", False, OBJECT, "/v1/x/R,100,G,true"),
        ("path", "simple", True, OBJECT, "/v1/x/R=100,G=true"),
        ("path", "label", False, LIST, "/v1/x/.a%20b,c%2Fd"),
        ("path", "label", True, LIST, "/v1/x/.a%20b.c%2Fd"),
        ("path", "label", True, OBJECT, "/v1/x/.R=100.G=true"),
        ("path", "matrix", False, 5, "/v1/x/;v=5"),
        ("path", "matrix", False, LIST, "/v1/x/;v=a%20b,c%2Fd"),
        ("path", "matrix", True, LIST, "/v1/x/;v=a%20b;v=c%2Fd"),
        ("path", "matrix", False, OBJECT, "/v1/x/;v=R,100,G,true"),
        ("path", "matrix", True, OBJECT, "/v1/x/;R=100;G=true"),
        ("query", "form", True, "ü&=", "/v1/x?v=%C3%BC%26%3D"),
        ("query", "form", True, LIST, "/v1/x?v=a%20b&v=c%2Fd"),
        ("query", "form", False, LIST, "/v1/x?v=a%20b,c%2Fd"),
        ("query", "form", True, OBJECT, "/v1/x?R=100&G=true"),
        ("query", "form", False, OBJECT, "/v1/x?v=R,100,G,true"),
        ("query", "spaceDelimited", False, LIST, "/v1/x?v=a%20b%20c%2Fd"),
        ("query", "pipeDelimited", False, LIST, "/v1/x?v=a%20b%7Cc%2Fd"),
        ("query", "deepObject", True, {"a": {"b": [1]}, "c": "d"}, "/v1/x?v%5Ba%5D%5Bb%5D%5B0%5D=1&v%5Bc%5D=d"),
        ("query", "form", True, [], "/v1/x"),
        ("query", "form", True, None, "/v1/x"),
        ("query", "form", True, 1.5, "/v1/x?v=1.5"),
        ("query", "form", True, "", "/v1/x?v="),
    ],
)
async def test_a_parameter_is_written_in_its_style(
    server: ApiServer, place: str, style: str, explode: bool, value: Any, expected: str
) -> None:
    parameter = {
        "name": "v",
        "in": place,
        "required": place == "path",
        "style": style,
        "explode": explode,
        "schema": {},
    }
    source = document({"parameters": [parameter]}, path="/x/{v}" if place == "path" else "/x", method="get")

    assert (await send(server, source, {"v": value})).ok
    assert server.last.target == expected


@pytest.mark.parametrize("value", ["..", ".", ""])
async def test_a_path_can_not_become_another_path(server: ApiServer, value: str) -> None:
    parameter = {"name": "v", "in": "path", "required": True, "schema": {"type": "string"}}
    before = len(server.requests)

    result = await send(server, document({"parameters": [parameter]}, path="/x/{v}", method="delete"), {"v": value})

    assert result.error is not None
    assert result.error.code == "invalid_arguments"
    assert len(server.requests) == before


async def test_headers_cookies_and_json_parameters_are_sent_and_cannot_add_lines(server: ApiServer) -> None:
    parameters = [
        {"name": "X-Trace", "in": "header", "schema": {}},
        {"name": "session", "in": "cookie", "schema": {"type": "string"}},
        {"name": "filter", "in": "query", "content": {"application/json": {"schema": {"type": "object"}}}},
        {"name": "Authorization", "in": "header", "schema": {"type": "string"}},
    ]
    source = document({"parameters": parameters}, method="get")

    ok = await send(server, source, {"X_Trace": ["a", 1], "session": "s;1", "filter": {"a": [1]}})
    refused = await send(server, source, {"X_Trace": "a\r\nX-Evil: 1"})
    unknown = await send(server, source, {"Authorization": "Bearer x"})

    assert ok.ok
    assert server.last.headers["x-trace"] == "a,1"
    assert server.last.headers["cookie"] == "session=s%3B1"
    assert server.last.query == [("filter", '{"a":[1]}')]
    assert [item.error.code for item in (refused, unknown) if item.error] == ["invalid_arguments"] * 2


async def test_form_bodies_have_the_styles_that_the_document_gives(server: ApiServer) -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "meta": {"type": "object"},
            "expand": {"type": "array"},
            "raw": {"type": "object"},
        },
    }
    media = {
        "schema": schema,
        "encoding": {"meta": {"style": "deepObject", "explode": True}, "expand": {"style": "deepObject"}},
    }
    source = document({"requestBody": {"content": {"application/x-www-form-urlencoded": media}}})

    await send(server, source, {"name": "a&b", "meta": {"k": {"x": 1}}, "expand": ["p", "q"], "raw": {"z": 1}})

    assert server.last.headers["content-type"] == "application/x-www-form-urlencoded"
    assert server.last.body == (
        b"name=a%26b&meta%5Bk%5D%5Bx%5D=1&expand%5B0%5D=p&expand%5B1%5D=q&raw=%7B%22z%22%3A1%7D"
    )


async def test_a_form_of_several_kinds_is_one_argument_that_must_be_an_object(server: ApiServer) -> None:
    kinds = [
        {"type": "object", "required": [name], "properties": {name: {"type": "string"}}} for name in ("code", "otp")
    ]
    source = document({"requestBody": {"content": {"application/x-www-form-urlencoded": {"schema": {"oneOf": kinds}}}}})

    await send(server, source, {"body": {"otp": "1 2"}})
    assert server.last.body == b"otp=1%202"
    assert (await send(server, source, {"body": "otp=1"})).error is not None


async def test_multipart_text_and_binary_bodies(server: ApiServer) -> None:
    picture = base64.b64encode(b"\x89PNG\r\n").decode()
    await send(
        server, DOCUMENTS / "swagger.json", {"petId": 7, "picture": picture, "title": "Hi"}, name="uploadPicture"
    )
    parts = {
        part.get_param("name", header="content-disposition"): part.get_payload(decode=True) for part in parsed(server)
    }
    assert parts == {"picture": b"\x89PNG\r\n", "title": b"Hi"}

    await send(
        server,
        document({"requestBody": {"content": {"text/plain": {"schema": {"type": "string"}}}}}),
        {"body": "grüße"},
    )
    assert (server.last.headers["content-type"], server.last.body) == ("text/plain; charset=utf-8", "grüße".encode())

    binary = document({"requestBody": {"content": {"application/octet-stream": {}}}})
    await send(server, binary, {"body": picture})
    assert server.last.body == b"\x89PNG\r\n"
    wrong = await send(server, binary, {"body": "no base64!"})
    assert wrong.error is not None
    assert wrong.error.code == "invalid_arguments"


def parsed(server: ApiServer) -> list[Message]:
    head = f"Content-Type: {server.last.headers['content-type']}\r\n\r\n".encode()
    return BytesParser().parsebytes(head + server.last.body).get_payload()  # type: ignore[return-value]


async def test_a_path_may_have_a_query_of_its_own(server: ApiServer) -> None:
    parameters = [{"name": "b", "in": "query", "schema": {"type": "string"}}]

    await send(server, document({"parameters": parameters}, path="/x y?a=1", method="get"), {"b": "2"})

    assert server.last.target == "/v1/x%20y?a=1&b=2"


async def test_a_body_that_is_no_object_or_may_be_left_out_is_one_argument(server: ApiServer) -> None:
    def json_body(schema: dict[str, Any], *, required: bool) -> dict[str, Any]:
        return document({"requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}})

    await send(server, json_body({"type": "array", "items": {"type": "integer"}}, required=True), {"body": [1, 2]})
    assert server.last.json == [1, 2]

    optional = json_body({"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}}}, required=False)
    await send(server, optional, {})
    assert (server.last.body, server.last.headers.get("content-type")) == (b"", None)
    await send(server, optional, {"body": {"a": "b"}})
    assert server.last.json == {"a": "b"}

    union = json_body(
        {"type": "object", "properties": {"a": {}, "b": {}}, "anyOf": [{"required": ["a"]}]}, required=True
    )
    assert (await send(server, union, {"body": {"b": 1}})).error is not None
    await send(server, union, {"body": {"a": 1}})
    assert server.last.json == {"a": 1}


@pytest.mark.parametrize(
    ("scheme", "options", "header", "query"),
    [
        ({"type": "http", "scheme": "bearer"}, {"bearer": "secret:key"}, "Bearer k-123456", ""),
        ({"type": "oauth2", "flows": {}}, {"bearer": lambda: "from a function"}, "Bearer from a function", ""),
        ({"type": "apiKey", "in": "header", "name": "Authorization"}, {"bearer": "secret:key"}, "Bearer k-123456", ""),
        ({"type": "http", "scheme": "Basic"}, {"basic": ("ann", "secret:password")}, "Basic YW5uOnAtMTIzNDU2", ""),
        ({"type": "apiKey", "in": "query", "name": "api key"}, {"api_key": "secret:key"}, None, "api%20key=k-123456"),
    ],
)
async def test_credentials_go_where_the_document_wants_them(
    server: ApiServer, scheme: dict[str, Any], options: dict[str, Any], header: str | None, query: str
) -> None:
    source = document({}, method="get", components={"securitySchemes": {"it": scheme}}, security=[{"it": []}])

    assert (await send(server, source, {}, **options)).ok
    assert server.last.headers.get("authorization") == header
    assert server.last.target.partition("?")[2] == query


async def test_an_api_key_of_swagger_2_goes_into_the_query(server: ApiServer) -> None:
    await send(server, DOCUMENTS / "swagger.json", {"tags": ["a", "b"]}, name="findPets", api_key={"key": "secret:key"})

    assert server.last.target == "/v1/pets?tags=a%7Cb&api_key=k-123456"


async def test_a_messenger_in_swagger_2_with_the_oddities_of_slacks_is_called_by_its_forms(server: ApiServer) -> None:
    """Tuples without a type, lists of types, two kinds of body, tokens as parameters, a recursive definition."""
    messenger = DOCUMENTS / "messenger.json"
    arguments = {"channel": "C 1&2", "thread_ts": 1503435956.000247, "as_user": True, "token": "t"}
    posted = await send(server, messenger, arguments, name="chat_postMessage", bearer="secret:key")
    assert posted.ok
    assert (server.last.method, server.last.target) == ("POST", "/v1/chat.postMessage")
    assert server.last.headers["authorization"] == "Bearer k-123456"
    assert server.last.headers["content-type"] == "application/x-www-form-urlencoded"
    assert server.last.headers["token"] == "t"
    assert server.last.body == b"channel=C%201%262&thread_ts=1503435956.000247&as_user=true"

    assert (await send(server, messenger, {"limit": 5}, name="conversations_history", bearer="secret:key")).ok
    assert server.last.target == "/v1/conversations.history?limit=5"

    file = {"file": base64.b64encode(b"\x00\xff").decode(), "title": None, "channels": "C1,C2"}
    assert (await send(server, messenger, file, name="files_upload")).ok
    assert server.last.headers["content-type"].startswith("multipart/form-data")
    assert b"\x00\xff" in server.last.body

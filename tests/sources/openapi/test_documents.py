"""Documents as people write them: versions, files, references, and what is wrong with some."""

import asyncio
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from handrail import ConfigError, Executor, Tool
from handrail.errors import SourceError
from handrail.sources import OpenApi, SourceStatus, connect
from handrail.sources.openapi import source
from tests.clocks import eventually
from tests.sources.api_server import Reply, Request, serving

DOCUMENTS = Path(__file__).parents[1] / "documents"


def document(paths: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "openapi": "3.0.3",
        "info": {"title": "Test", "version": "1"},
        "servers": [{"url": "https://api.example"}],
        "paths": paths,
        **more,
    }


def tools_of(source: Any, **options: Any) -> dict[str, Tool[..., Any]]:
    return {tool.name: tool for tool in OpenApi(source, **options).tools()}


def body(schema: dict[str, Any], *, required: bool = True) -> dict[str, Any]:
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}}


def test_a_document_says_what_its_tools_are() -> None:
    api = OpenApi(DOCUMENTS / "shop.yaml")
    tools = {tool.name: tool for tool in api.tools()}

    assert list(tools) == ["listOrders", "createOrder", "getOrder", "orderExists", "cancelOrder", "listStock"]
    assert [tool.name for tool in api.tools() if not tool.read_only] == ["createOrder", "cancelOrder"]
    assert tools["createOrder"].idempotent
    assert not tools["cancelOrder"].idempotent
    assert tools["getOrder"].description == "Look at one order."
    assert (tools["listStock"].source, tools["listStock"].tags) == ("openapi:shop", {"stock"})
    assert tools["listOrders"].input_schema == {
        "type": "object",
        "properties": {
            "customer": {"type": "string"},
            "state": {"type": "array", "items": {"type": "string", "enum": ["open", "paid", "no"]}},
            "limit": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20},
        },
        "required": ["customer"],
        "additionalProperties": False,
    }
    line = tools["createOrder"].input_schema["$defs"]["Line"]
    assert line["properties"]["count"] == {"type": "integer", "exclusiveMinimum": 0}
    assert line["properties"]["parts"]["items"] == {"$ref": "#/$defs/Line"}
    assert tools["createOrder"].input_schema["properties"]["note"] == {"type": ["string", "null"]}
    assert api.skipped == ()


def test_json_yaml_and_a_mapping_give_the_same_tools(tmp_path: Path) -> None:
    import yaml

    mapping = yaml.safe_load((DOCUMENTS / "shop.yaml").read_text().replace(", no]", ", 'no']"))
    (tmp_path / "shop.json").write_text(json.dumps(mapping))

    schemas = [
        [(tool.name, tool.input_schema) for tool in OpenApi(source).tools()]
        for source in (DOCUMENTS / "shop.yaml", tmp_path / "shop.json", mapping)
    ]

    assert schemas[0] == schemas[1] == schemas[2]


def test_swagger_2_has_bodies_forms_files_and_collections() -> None:
    api = OpenApi(DOCUMENTS / "swagger.json")
    tools = {tool.name: tool for tool in api.tools()}

    assert api.skipped == ()
    assert set(tools["findPets"].input_schema["properties"]) == {"tags", "limit"}
    assert tools["addPet"].input_schema["required"] == ["name"]
    assert tools["addPet"].input_schema["$defs"]["Owner"]["properties"]["pets"]["items"] == {"$ref": "#/$defs/Pet"}
    assert set(tools["renamePet"].input_schema["properties"]) == {"petId", "name", "colour"}
    assert tools["uploadPicture"].input_schema["properties"]["picture"] == {
        "type": "string",
        "format": "binary",
        "contentEncoding": "base64",
        "description": "A file.",
    }


def test_openapi_3_1_keeps_what_stands_beside_a_reference() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/components/schemas/A", "default": 3}, "b": {"type": ["string", "null"]}},
    }
    tools = tools_of(
        document(
            {"/x": {"post": {"operationId": "x", **body(schema)}}},
            openapi="3.1.0",
            components={"schemas": {"A": {"type": "integer", "exclusiveMinimum": 2}}},
        )
    )

    assert tools["x"].input_schema["properties"] == {
        "a": {"$ref": "#/$defs/A", "default": 3},
        "b": {"type": ["string", "null"]},
    }


def test_other_files_are_followed_inside_the_directory_and_not_outside(tmp_path: Path) -> None:
    root = tmp_path / "api"
    (root / "parts").mkdir(parents=True)
    (tmp_path / "secret.yaml").write_text("Key: {type: string, default: hunter2}")
    (root / "parts" / "pets.yaml").write_text(
        "get:\n  operationId: getPet\n  parameters:\n"
        "    - {name: pet, in: query, schema: {$ref: '../schemas.json#/Pet'}}\n"
    )
    (root / "schemas.json").write_text(
        json.dumps({"Pet": {"type": "object", "properties": {"mother": {"$ref": "#/Pet"}, "name": {"type": "string"}}}})
    )
    paths = {
        "/pets": {"$ref": "parts/pets.yaml"},
        "/out": {"get": {"parameters": [{"name": "k", "in": "query", "schema": {"$ref": "../secret.yaml#/Key"}}]}},
        "/web": {"get": {"parameters": [{"name": "k", "in": "query", "schema": {"$ref": "https://x.example/k#/K"}}]}},
        "/gone": {"$ref": "parts/gone.yaml"},
    }
    (root / "openapi.json").write_text(json.dumps(document(paths)))

    api = OpenApi(root / "openapi.json")

    assert [tool.name for tool in api.tools()] == ["getPet"]
    (definition,) = api.tools()[0].input_schema["$defs"].values()
    assert definition["properties"]["mother"] == {"$ref": "#/$defs/Pet"}
    reasons = {skipped.name: skipped.reason for skipped in api.skipped}
    assert "outside the directory" in reasons["get_out"]
    assert "outside the directory" in reasons["get_web"]
    assert "cannot be read" in reasons["/gone"]


def test_a_reference_may_lead_into_any_part_of_a_document(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    there, end = {"content": {"application/json": {"schema": schema}}}, "content/application~1json/schema"
    paths = {
        "/a": {
            "post": {
                "operationId": "a",
                "responses": {"200": there},
                **body({"$ref": f"#/components/responses/R/{end}"}),
            }
        },
        "/b": {"post": {"operationId": "b", **body({"$ref": f"#/paths/~1a/post/responses/200/{end}"})}},
        "/c": {"post": {"operationId": "c", **body({"$ref": "#/components/schemas/S/properties/inner"})}},
    }
    components = {"responses": {"R": there}, "schemas": {"S": {"type": "object", "properties": {"inner": schema}}}}
    (tmp_path / "openapi.json").write_text(json.dumps(document(paths, components=components)))

    tools = tools_of(tmp_path / "openapi.json")

    assert [tool.input_schema["properties"] for tool in tools.values()] == [{"a": {"type": "integer"}}] * 3


async def test_a_document_at_a_url_is_loaded_by_connect_with_relative_servers_and_references() -> None:
    shared = {"Id": {"type": "string", "maxLength": 3}}
    parameter = {"name": "id", "in": "path", "required": True, "schema": {"$ref": "shared.json#/Id"}}

    def answer(request: Request) -> Reply | Any:
        if request.path == "/docs/openapi.json":
            return {
                **document({"/pets/{id}": {"get": {"operationId": "pet", "parameters": [parameter]}}}),
                "servers": [{"url": "../v1"}],
            }
        return shared if request.path == "/docs/shared.json" else Reply(status=404)

    with serving(answer) as server:
        api = OpenApi(f"{server.url}/docs/openapi.json", allow_private=True)
        with pytest.raises(ConfigError, match=r"connect\(\[OpenApi"):
            api.tools()
        async with connect([api, OpenApi(f"{server.url}/none.json", name="none", allow_private=True)]) as sources:
            (tool,) = sources.tools
            status = sources.status

    assert tool.input_schema["$defs"]["Id"] == shared["Id"]
    assert tool.metadata["path"] == "/pets/{id}"
    assert [item.state for item in status.values()] == ["connected", "failed"]
    assert "404" in status["none"].reason


async def test_a_document_whose_server_is_away_is_loaded_once_it_answers() -> None:
    replies: list[Any] = [Reply(status=503), Reply(cut=True), document({"/pets": {"get": {"operationId": "pets"}}})]
    gone: list[Any] = [Reply(status=503), Reply(status=404)]

    def answer(request: Request) -> Any:
        return {"/pets": replies, "/gone": gone}[request.path].pop(0)

    with serving(answer) as server:
        documents = [OpenApi(f"{server.url}/{name}", name=name, allow_private=True) for name in ("pets", "gone")]
        async with connect(documents) as sources:
            assert sources.tools == ()
            assert [status.state for status in sources.status.values()] == ["reconnecting"] * 2
            assert "the server answered 503" in sources.status["pets"].reason
            executor = Executor([sources])
            await eventually(lambda: "pets" in executor.registry and sources.status["gone"].state == "failed")
            assert sources.status["pets"] == SourceStatus(name="pets", state="connected", tools=1)
            assert "404" in sources.status["gone"].reason


async def test_an_operation_in_a_document_that_is_away_is_there_once_it_answers() -> None:
    part: list[Any] = [Reply(status=503), Reply(cut=True), {"path": {"get": {"operationId": "orders"}}}]

    def answer(request: Request) -> Any:
        if request.path == "/part.json":
            return part.pop(0)
        return document({"/pets": {"get": {"operationId": "pets"}}, "/orders": {"$ref": "part.json#/path"}})

    with serving(answer) as server:
        async with connect([OpenApi(f"{server.url}/openapi.json", name="shop", allow_private=True)]) as sources:
            executor = Executor([sources])
            assert [tool.name for tool in sources.tools] == ["pets"]
            assert "the server answered 503" in sources.status["shop"].skipped[0].reason
            await eventually(lambda: "orders" in executor.registry)
            assert sources.status["shop"] == SourceStatus(name="shop", state="connected", tools=2)


async def test_a_document_that_hangs_costs_only_the_operations_that_refer_to_it() -> None:
    over = threading.Event()

    def answer(request: Request) -> Any:
        if request.path == "/part.json":
            over.wait(60)
        return document({"/pets": {"get": {"operationId": "pets"}}, "/orders": {"$ref": "part.json#/path"}})

    with serving(answer) as server:
        api = OpenApi(f"{server.url}/openapi.json", allow_private=True, timeout=0.5)
        assert [tool.name for tool in (await api.load()).tools()] == ["pets"]
        assert "part.json was not there within 0.5 seconds" in api.skipped[0].reason
        over.set()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
async def test_a_document_in_a_pipe_is_read_once_it_is_written_and_one_that_nobody_writes_is_not_waited_for(
    tmp_path: Path,
) -> None:
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    reading = asyncio.create_task(OpenApi(pipe).load())
    written = json.dumps(document({"/pets": {"get": {"operationId": "pets"}}, "/x": {"description": "x" * 200_000}}))
    await asyncio.to_thread(pipe.write_text, written)
    assert [tool.name for tool in (await reading).tools()] == ["pets"]
    async with connect([OpenApi(pipe, name="pipe", timeout=0.05)]) as sources:
        assert sources.status["pipe"].state == "failed"
        assert "was not there within 0.05 seconds" in sources.status["pipe"].reason


async def test_a_document_at_a_url_holds_nobody_up_and_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[threading.Thread] = set()
    for module, name in ((source, "open_document"), (source, "build_from_checked_schema")):
        done = getattr(module, name)

        def note(*given: Any, done: Any = done, **options: Any) -> Any:
            threads.add(threading.current_thread())
            return done(*given, **options)

        monkeypatch.setattr(module, name, note)
    paths = {f"/p{number}": {"get": {"operationId": f"o{number}"}} for number in range(5)}
    with serving(lambda request: document(paths)) as server:
        api = await OpenApi(f"{server.url}/openapi.json", allow_private=True, max_tools=2).load()
        with pytest.raises(SourceError, match="is larger than 100 bytes"):
            await OpenApi(f"{server.url}/openapi.json", allow_private=True, max_document_bytes=100).load()

    assert threads
    assert threading.main_thread() not in threads
    assert [tool.name for tool in api.tools()] == ["o0", "o1"]
    assert [(skipped.name, skipped.reason) for skipped in api.skipped] == [
        ("further operations", "only the first 2 of 5 are taken: name some with include")
    ]
    for option in ("max_tools", "max_document_bytes", "max_response_bytes"):
        with pytest.raises(ConfigError, match=f"{option} must be at least 1, got 0"):
            OpenApi({}, **{option: 0})


async def test_what_a_document_refers_to_is_bounded_with_it() -> None:
    paths = {f"/p{number}": {"$ref": f"part-{number}.json#/path"} for number in range(20)}

    def answer(request: Request) -> Any:
        if request.path == "/openapi.json":
            return document(paths)
        return {"path": {"get": {"operationId": request.path[1:-5]}}, "rest": "x" * 10_000}

    with serving(answer) as server:
        api = OpenApi(f"{server.url}/openapi.json", allow_private=True, max_document_bytes=25_000)
        tools = (await api.load()).tools()
        asked = len(server.requests)

    assert (len(tools), asked) == (3, 1 + 3)
    assert "more than 25,000 bytes with those it refers to" in api.skipped[-1].reason


async def test_a_document_in_a_private_network_is_not_read() -> None:
    with serving(lambda request: document({})) as server, pytest.raises(SourceError, match="private network"):
        await OpenApi(f"{server.url}/openapi.json").load()

    assert server.requests == []


def test_one_broken_operation_is_skipped_and_the_others_work() -> None:
    circle = {"A": {"$ref": "#/components/schemas/B"}, "B": {"allOf": [{"$ref": "#/components/schemas/A"}]}}
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(500):
        deep = {"type": "array", "items": deep}
    broken = {
        "/circle": {"post": {"operationId": "circle", **body({"$ref": "#/components/schemas/A"})}},
        "/nowhere": {"post": {"operationId": "nowhere", **body({"$ref": "#/components/schemas/None"})}},
        "/type": {
            "get": {
                "operationId": "bad_type",
                "parameters": [{"name": "a", "in": "query", "schema": {"type": "strnig"}}],
            }
        },
        "/{id}/missing": {"get": {"operationId": "missing"}},
        "/style": {
            "get": {"operationId": "style", "parameters": [{"name": "a", "in": "query", "style": "odd", "schema": {}}]}
        },
        "/ref": {"get": {"operationId": "ref", "parameters": [{"$ref": "#/components/parameters/loop"}]}},
        "/no-name": {"get": {"operationId": "no_name", "parameters": [{"in": "query"}]}},
        "/header": {"get": {"operationId": "header", "parameters": [{"name": "a\r\nb", "in": "header", "schema": {}}]}},
        "/server": {"get": {"operationId": "server", "servers": [{"url": "ftp://x.example"}]}},
        "/list": ["no object"],
        "/good": {"get": {"operationId": "good"}},
    }
    api = OpenApi(
        document(
            broken, components={"schemas": circle, "parameters": {"loop": {"$ref": "#/components/parameters/loop"}}}
        )
    )

    assert [tool.name for tool in api.tools()] == ["good"]
    assert {skipped.name: skipped.reason.partition(": ")[2] or skipped.reason for skipped in api.skipped} == {
        "circle": "its schema 'A' refers to itself without end",
        "nowhere": "$ref '#/components/schemas/None' leads nowhere",
        "bad_type": "its schema is not valid at properties.a.type: " + reason_for(api, "bad_type"),
        "missing": "its path has {id}, but there is no parameter of that name",
        "style": "the parameter 'a' has the style 'odd', which a query cannot have",
        "ref": "its references lead in a circle",
        "no_name": "one of its parameters has no name: {'in': 'query'}",
        "header": "'a��b' cannot be the name of a header",
        "server": "its server 'ftp://x.example' is no http or https URL; pass base_url=…",
        "/list": "a path must start with `/` and hold an object",
    }

    nested = OpenApi(document({"/deep": {"post": {"operationId": "deep", **body(deep)}}, "/good": broken["/good"]}))
    with pytest.raises(SourceError, match="more than 150 levels"):
        nested.tools()


def reason_for(api: OpenApi, name: str) -> str:
    return next(skipped.reason for skipped in api.skipped if skipped.name == name).rpartition("properties.a.type: ")[2]


def test_names_are_short_unique_and_do_not_depend_on_what_is_left_out() -> None:
    long = "a" * 100
    paths = {
        "/a": {"get": {"operationId": "repos/get-content"}, "post": {"operationId": "repos/get content"}},
        "/b/{id}": {"get": {"parameters": [{"name": "id", "in": "path", "required": True, "schema": {}}]}},
        "/c": {"get": {"operationId": f"{long}1"}, "put": {"operationId": f"{long}2"}},
        "/d": {"get": {"operationId": "ünï: \u0000code"}, "post": {"operationId": "::"}, "put": {"operationId": "1st"}},
    }
    names = {(tool.metadata["method"], tool.metadata["path"]): tool.name for tool in OpenApi(document(paths)).tools()}

    assert names["GET", "/a"] == "repos_get_content"
    assert names["POST", "/a"].startswith("repos_get_content_")
    assert names["GET", "/b/{id}"] == "get_b_id"
    assert names["GET", "/d"] == "n_code"
    assert names["POST", "/d"] == "post"
    assert names["PUT", "/d"] == "put_1st"
    assert len(set(names.values())) == 8
    assert max(map(len, names.values())) == 64
    assert [*tools_of(document(paths), include=["POST /a"])] == [names["POST", "/a"]]


def test_parameters_that_share_a_name_are_told_apart_by_their_place() -> None:
    parameters = [
        {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}},
        {"name": "id", "in": "query", "schema": {"type": "integer"}},
        {"name": "filter[name]", "in": "query", "schema": {"type": "string"}},
        {"name": "id_query", "in": "query", "schema": {"type": "boolean"}},
    ]
    schema = {"type": "object", "properties": {"id": {"type": "number"}, "name": {"type": "string"}}}
    tools = tools_of(document({"/x/{id}": {"put": {"operationId": "x", "parameters": parameters, **body(schema)}}}))

    kinds = {name: one["type"] for name, one in tools["x"].input_schema["properties"].items()}
    assert kinds == {
        "id_path": "string",
        "id_query_2": "integer",
        "filter_name": "string",
        "id_query": "boolean",
        "id_body": "number",
        "name": "string",
    }


def test_unions_say_which_discriminator_belongs_to_which_branch() -> None:
    schemas = {
        "Cat": {"type": "object", "properties": {"kind": {"type": "string"}, "lives": {"type": "integer"}}},
        "Dog": {"type": "object", "properties": {"kind": {"type": "string"}, "barks": {"type": "boolean"}}},
        "Pet": {
            "oneOf": [{"$ref": "#/components/schemas/Cat"}, {"$ref": "#/components/schemas/Dog"}],
            "discriminator": {"propertyName": "kind", "mapping": {"meow": "#/components/schemas/Cat"}},
        },
    }
    tools = tools_of(
        document(
            {"/x": {"post": {"operationId": "x", **body({"$ref": "#/components/schemas/Pet"})}}},
            components={"schemas": schemas},
        )
    )

    parse = tools["x"].parse
    assert parse('{"body": {"kind": "meow", "lives": 9}}') == {"body": {"kind": "meow", "lives": 9}}
    assert parse('{"body": {"kind": "Dog", "barks": true}}')["body"]["barks"] is True
    with pytest.raises(ValueError, match="body"):
        parse('{"body": {"kind": "Cat", "lives": 9}}')


def test_all_of_becomes_plain_arguments() -> None:
    schemas = {
        "Base": {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}}},
        "Full": {
            "allOf": [
                {"$ref": "#/components/schemas/Base"},
                {"type": "object", "properties": {"next": {"$ref": "#/components/schemas/Base"}}},
            ]
        },
    }
    tools = tools_of(
        document(
            {"/x": {"post": {"operationId": "x", **body({"$ref": "#/components/schemas/Full"})}}},
            components={"schemas": schemas},
        )
    )

    assert tools["x"].input_schema["properties"] == {"id": {"type": "string"}, "next": {"$ref": "#/$defs/Base"}}
    assert tools["x"].input_schema["required"] == ["id"]
    assert list(tools["x"].input_schema["$defs"]) == ["Base"]


def test_operations_are_chosen_by_tag_path_method_and_id() -> None:
    def chosen(**options: Any) -> list[str]:
        return list(tools_of(DOCUMENTS / "shop.yaml", **options))

    assert chosen(include=["tag:stock"]) == ["listStock"]
    assert chosen(include=["path:/orders/*"], exclude=["method:head"]) == ["getOrder", "cancelOrder"]
    assert chosen(include=["list*", "DELETE /orders/*"]) == ["listOrders", "cancelOrder", "listStock"]
    with pytest.raises(ConfigError, match=r"exclude: 'deleteOrder' selects none of the 6 operations"):
        chosen(exclude=["deleteOrder"])
    with pytest.raises(ConfigError, match="list of selectors"):
        chosen(include="tag:stock")


def test_overrides_change_a_tool_and_nothing_unknown() -> None:
    tools = tools_of(
        DOCUMENTS / "shop.yaml",
        overrides={
            "tag:orders": {"timeout": 5},
            "cancelOrder": {"name": "cancel", "key": "id", "description": "Stop it."},
        },
    )

    assert (tools["cancel"].timeout, tools["cancel"].description) == (5, "Stop it.")
    assert (tools["getOrder"].timeout, tools["listStock"].timeout) == (5, 30)
    with pytest.raises(ConfigError, match="unknown option 'readonly'"):
        OpenApi(DOCUMENTS / "shop.yaml", overrides={"listOrders": {"readonly": True}})
    with pytest.raises(ConfigError, match="selects none"):
        tools_of(DOCUMENTS / "shop.yaml", overrides={"listOrder": {"timeout": 1}})
    with pytest.raises(ConfigError, match="to two operations"):
        tools_of(DOCUMENTS / "shop.yaml", overrides={"tag:orders": {"name": "one"}})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", "is an object, got list"),
        ('{"openapi": "4.0"}', "must say `openapi: 3.0`"),
        ('{"openapi": "3.0.0", "paths": []}', "`paths` must be an object"),
        ("{", "neither JSON nor YAML"),
        ("a: &a [*a]", "levels deep"),
        (
            "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
            + "".join(f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join([f'*{chr(97 + n)}'] * 10)}]\n" for n in range(7)),
            r"more than \d+,\d+ values",
        ),
        ("a: !!python/object/apply:os.system [ls]", "neither JSON nor YAML"),
        ("a: " + "[" * 100_000, "levels deep"),
        ("a:\n" + "- " * 100_000, "levels deep"),
        ('{"a": ' + '{"a": ' * 100_000, "levels deep"),
        (
            "a0: &a0 {"
            + ", ".join(f"k{n}: v" for n in range(100))
            + "}\n"
            + "".join(f"a{n + 1}: &a{n + 1} {{<<: [{', '.join([f'*a{n}'] * 50)}]}}\n" for n in range(3)),
            "merges have too many keys",
        ),
    ],
)
def test_what_is_no_document_is_refused_with_the_reason(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "openapi.yaml").write_text(text)

    with pytest.raises(SourceError, match=message):
        OpenApi(tmp_path / "openapi.yaml").tools()


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"gone\.yaml cannot be read: No such file"):
        OpenApi(tmp_path / "gone.yaml").tools()

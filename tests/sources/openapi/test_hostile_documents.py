"""Documents with anything anywhere: the operations that can be used are tools, and nothing else happens."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from handrail import ConfigError
from handrail.errors import SourceError
from handrail.sources import OpenApi

DOCUMENTS = Path(__file__).parents[1] / "documents"
SHOP = yaml.safe_load((DOCUMENTS / "shop.yaml").read_text())
PETS = json.loads((DOCUMENTS / "swagger.json").read_text())
ODD: list[Any] = [
    *(None, True, 0, -1.5, "", "x", "\u0000", "http://[", [], {}, [1], [None], {"a": 1}, {"": {}}, {"type": 7}),
    *({"$ref": 5}, {"$ref": "#/paths"}, {"$ref": "#/components/schemas/Line"}, {"in": "path", "name": "id"}),
    *([{"$ref": "#/x"}], {"type": "object", "properties": []}, {"name": 7, "in": "query"}, {"required": [[]]}),
]


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path, *(place for key, one in inner for place in places(one, (*path, key)))]


@pytest.mark.parametrize("document", [SHOP, PETS], ids=["3.0", "2.0"])
@given(data=st.data())
def test_a_value_of_the_wrong_kind_breaks_no_more_than_its_operation(
    document: dict[str, Any], data: st.DataObject
) -> None:
    changed = copy.deepcopy(document)
    place = data.draw(st.sampled_from(places(document)[1:]))
    holder: Any = changed
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = copy.deepcopy(data.draw(st.sampled_from(ODD)))

    api = OpenApi(changed, bearer="env:TOKEN", base_url="https://api.example")
    try:
        tools = api.tools()
    except (SourceError, ConfigError):
        return
    if place[0] != "paths" or len(place) > 2:  # Else a path, or all of them, is not there any more.
        assert len(tools) + len(api.skipped) == (6 if document is SHOP else 4)
    for tool in tools:
        with pytest.raises(ValueError, match="not_an_argument"):
            tool.parse('{"not_an_argument": 1}')


def circle(kind: str, *, names: str = "AB") -> dict[str, Any]:
    """Components of a kind that refer to each other."""
    target = names[1:] + names[0]
    return {kind: {name: {"$ref": f"#/components/{kind}/{to}"} for name, to in zip(names, target, strict=True)}}


def in_body(schema: str) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    return {"requestBody": {"content": content}}


DOUBLING = {f"S{n}": {"allOf": [{"$ref": f"#/components/schemas/S{n + 1}"}] * 2} for n in range(40)}


@pytest.mark.parametrize(
    ("operation", "components", "reason"),
    [
        (in_body("A"), circle("schemas"), "refers to itself without end"),
        (in_body("A"), circle("schemas", names="A"), "refers to itself without end"),
        (
            in_body("A"),
            {"schemas": {"A": {"allOf": [{"$ref": "#/components/schemas/A"}, {"type": "object"}]}}},
            "refers to itself without end",
        ),
        ({"parameters": [{"$ref": "#/components/parameters/A"}]}, circle("parameters"), "lead in a circle"),
        ({"requestBody": {"$ref": "#/components/requestBodies/A"}}, circle("requestBodies"), "lead in a circle"),
        (in_body("S0"), {"schemas": {**DOUBLING, "S40": {"type": "object"}}}, "more than 20,000 checks of one value"),
    ],
)
def test_references_without_an_end_break_no_more_than_their_operation(
    operation: dict[str, Any], components: dict[str, Any], reason: str
) -> None:
    paths = {"/a": {"post": {"operationId": "bad", **operation}, "get": {"operationId": "good"}}}
    servers = [{"url": "https://api.example"}]
    info = {"title": "Circles", "version": "1"}
    api = OpenApi({"openapi": "3.0.3", "info": info, "servers": servers, "paths": paths, "components": components})

    assert [tool.name for tool in api.tools()] == ["good"]
    assert [skipped.name for skipped in api.skipped] == ["bad"]
    assert reason in api.skipped[0].reason


def test_a_document_of_10_mb_that_names_40_hosts_gets_credentials_for_those_that_were_named(tmp_path: Path) -> None:
    def operation(number: int) -> dict[str, Any]:
        server = {"url": f"https://api{number % 40}.example"}
        return {"get": {"operationId": f"op{number}", "servers": [server], "description": "x" * 25_000}}

    file = tmp_path / "large.json"
    paths = {f"/{number}": operation(number) for number in range(400)}
    file.write_text(json.dumps({"openapi": "3.1.0", "info": {"title": "Large", "version": "1"}, "paths": paths}))

    api = OpenApi(file, bearer="secret:token", hosts=["api7.example"])

    assert file.stat().st_size > 10_000_000
    assert {tool.metadata["host"] for tool in api.tools()} == {"api7.example"}
    assert (len(api.tools()), len(api.skipped)) == (10, 390)
    assert all("credentials are not sent to" in skipped.reason for skipped in api.skipped)


def test_an_escape_that_is_no_character_is_an_error_of_the_document(tmp_path: Path) -> None:
    (tmp_path / "api.yaml").write_text('openapi: "\\Uffffffff"\n')
    with pytest.raises(SourceError, match=r"api\.yaml"):
        OpenApi(tmp_path / "api.yaml").tools()

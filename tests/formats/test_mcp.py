"""The Model Context Protocol, from the server's side."""

import json
from typing import Any

import mcp_types
import pytest
from pydantic import BaseModel

from handrail import ToolRegistry, ToolResult, tool
from handrail.formats import mcp as wire


class Weather(BaseModel):
    degrees: int


@tool(read_only=True)
def get(city: str) -> Weather:
    """Look up the weather."""
    return Weather(degrees=20)


def test_a_definition_says_what_is_changed_by_it_and_what_comes_back() -> None:
    definition = {
        "name": "get",
        "description": "Look up the weather.",
        "inputSchema": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "outputSchema": {"type": "object", "properties": {"degrees": {"type": "integer"}}, "required": ["degrees"]},
        "annotations": {"readOnlyHint": True, "idempotentHint": True},
    }

    assert wire.tools([get]) == ToolRegistry([get]).to_mcp_tools() == [definition]


def test_a_tool_that_says_nothing_of_itself_is_not_hinted_to_be_harmless() -> None:
    @tool
    def pay(amount: int) -> str:
        return ""

    (definition,) = wire.tools([pay])

    assert definition["annotations"] == {"readOnlyHint": False, "idempotentHint": False}
    assert "outputSchema" not in definition


@pytest.mark.parametrize(
    "request_",
    [
        {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "get", "arguments": {"city": "Ulm"}}},
        mcp_types.JSONRPCRequest(
            jsonrpc="2.0", id=7, method="tools/call", params={"name": "get", "arguments": {"city": "Ulm"}}
        ),
    ],
    ids=["dict", "object"],
)
def test_a_request_is_a_call_under_its_id(request_: Any) -> None:
    (call,) = wire.calls(request_)

    assert (call.id, call.name, call.arguments_json) == ("7", "get", '{"city":"Ulm"}')


@pytest.mark.parametrize(
    "parameters",
    [
        {"name": "get", "arguments": {"city": "Ulm"}},
        mcp_types.CallToolRequestParams(name="get", arguments={"city": "Ulm"}),
        mcp_types.CallToolRequest(params=mcp_types.CallToolRequestParams(name="get", arguments={"city": "Ulm"})),
    ],
    ids=["dict", "parameters", "request"],
)
def test_parameters_without_an_id_are_a_call_with_one_of_its_own(parameters: Any) -> None:
    (first,), (second,) = wire.calls(parameters), wire.calls(parameters)

    assert (first.name, first.arguments_json) == ("get", '{"city":"Ulm"}')
    assert first.id
    assert first.id != second.id


def test_the_request_zero_has_an_id() -> None:
    assert wire.calls({"id": 0, "params": {"name": "get"}})[0].id == "0"


@pytest.mark.parametrize(
    ("output", "structured"),
    [
        ({"degrees": 20}, {"degrees": 20}),
        (Weather(degrees=20), {"degrees": 20}),
        ("20 degrees", None),
        ('{"a": "text"}', None),
        ([1, 2], None),
        (None, None),
    ],
)
def test_an_object_is_also_structured_content(output: Any, structured: Any) -> None:
    result = ToolResult(output=output, call_id="1", tool_name="get")

    (answer,) = wire.results([result])

    assert answer["content"] == [{"type": "text", "text": result.for_model()}]
    assert answer["isError"] is False
    assert answer.get("structuredContent") == structured


def test_structured_content_says_what_the_text_says() -> None:
    (answer,) = wire.results([ToolResult(output={"a": float("nan"), "b": "\ud800"}, call_id="1", tool_name="get")])

    assert json.loads(answer["content"][0]["text"]) == answer["structuredContent"]
    assert json.dumps(answer, ensure_ascii=False, allow_nan=False).encode()


def test_a_failure_is_marked_and_has_no_structured_content() -> None:
    (answer,) = wire.results([ToolResult(error="No.", call_id="1", tool_name="get")])

    assert answer["isError"] is True
    assert "structuredContent" not in answer

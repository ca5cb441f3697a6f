"""Schemas, functions and defaults that a tool cannot be made of, or that lose something on their way."""

import math
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel, Field

from handrail import LLMFunctionTool, ToolDefinitionError, as_tool, build_tool, tool
from handrail.formats import names
from tests.formats.apis import ANTHROPIC, CHAT, MCP, RESPONSES, Api, every_api

ROOT_REF: dict[str, Any] = {
    "$ref": "#/definitions/Payment",
    "description": "beside the reference",
    "properties": {"note": {"type": "string"}},
    "required": ["note"],
    "definitions": {
        "Payment": {"type": "object", "properties": {"amount": {"type": "number"}}, "required": ["amount"]},
    },
}


def build(schema: dict[str, Any], execute: Any = lambda payload: payload) -> Any:
    return build_tool({"name": "pay", "description": "", "input_schema": schema, "execute": execute})


@every_api
def test_a_root_reference_keeps_its_parameters_and_its_neighbours(api: Api) -> None:
    (shown,) = api.shown(api.wire.tools([build(ROOT_REF)]))

    if api is not MCP:  # MCP takes any schema unchanged.
        assert set(shown.schema["properties"]) == {"amount", "note"}
        assert set(shown.schema["required"]) == {"amount", "note"}


def test_a_reference_to_a_renamed_parameter_follows_it() -> None:
    schema = {
        "type": "object",
        "properties": {"$top": {"type": "integer"}, "skip": {"$ref": "#/properties/$top"}},
    }

    fitted = names.fit_parameters(schema, names.GEMINI_PARAMETER)

    assert fitted.schema["properties"]["skip"] == {"$ref": f"#/properties/{fitted.names['$top']}"}


def test_a_list_with_the_type_object_is_an_object() -> None:
    assert build({"type": ["object"], "properties": {"a": {"type": "integer"}}}).parse('{"a": 1}') == {"a": 1}


def test_a_whole_float_stays_a_float_for_a_number_and_is_an_int_for_an_integer() -> None:
    properties = {
        "price": {"type": "number"},
        "count": {"type": "integer"},
        "any": {},
        "list": {"type": "array", "items": {"type": "integer"}},
        "either": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "item": {"$ref": "#/$defs/Item"},
    }
    item = {"type": "object", "properties": {"n": {"type": "integer"}, "x": {"type": "number"}}}
    parse = build({"type": "object", "properties": properties, "$defs": {"Item": item}}).parse

    value = parse('{"price":3.0,"count":3.0,"any":3.0,"list":[1.0],"either":2.0,"item":{"n":1.0,"x":1.0}}')

    assert value == {"price": 3.0, "count": 3, "any": 3.0, "list": [1], "either": 2, "item": {"n": 1, "x": 1.0}}
    kinds = [value["price"], value["count"], value["list"][0], value["either"], value["item"]["n"], value["item"]["x"]]
    assert [type(kind).__name__ for kind in kinds] == ["float", "int", "int", "int", "int", "float"]


@pytest.mark.parametrize(
    "execute",
    [
        lambda args, invocation, deps=None: None,
        lambda args, extra=None: None,
        lambda args, context, *, deps: None,
        lambda args, *, context=None: None,
    ],
)
def test_parameters_that_nothing_fills_are_refused(execute: Any) -> None:
    with pytest.raises(ToolDefinitionError, match="execute must take"):
        build({"type": "object"}, execute)


@pytest.mark.parametrize(
    "execute", [lambda p: p, lambda p, c: p, lambda p, context=None: p, lambda p, ctx: p, lambda *args: args]
)
def test_the_two_forms_of_a_function_are_accepted(execute: Any) -> None:
    assert build({"type": "object"}, execute).name == "pay"


def test_a_consequential_tool_has_no_field_that_policy_approvals_and_keys_do_not_see() -> None:
    class Payment(BaseModel):
        invoice: str
        amount: int = Field(exclude=True)

    with pytest.raises(ToolDefinitionError, match="the field `amount` has exclude=True"):

        @tool
        def pay(payments: list[Payment]) -> None: ...

    @tool(read_only=True)
    def look(payments: list[Payment]) -> None: ...

    with pytest.raises(ToolDefinitionError, match="the field `amount`"):
        replace(look, read_only=False)

    class Pay(LLMFunctionTool):
        """Pay."""

        payment: Payment

        def model_tool_handler(self, context: Any) -> tuple[str, None]:
            return "paid", None

    with pytest.raises(ToolDefinitionError, match="the field `amount`"):
        as_tool(Pay)


def test_a_consequential_tool_has_no_default_that_json_cannot_hold() -> None:
    with pytest.raises(ToolDefinitionError, match="the default of `limit` cannot be written as JSON, got inf"):

        @tool
        def pay(limit: float = math.inf) -> None: ...

    @tool(read_only=True)
    def look(limit: float = math.inf) -> None: ...

    assert look.parse("{}")["limit"] == math.inf
    with pytest.raises(ToolDefinitionError, match="the default of `limit`"):
        replace(look, read_only=False)

    class Pay(LLMFunctionTool):
        """Pay."""

        limit: float = math.inf

        def model_tool_handler(self, context: Any) -> tuple[str, None]:
            return "paid", None

    with pytest.raises(ToolDefinitionError, match="the default of `limit`"):
        as_tool(Pay)


@pytest.mark.parametrize("api", [CHAT, RESPONSES, ANTHROPIC], ids=lambda api: api.name)
def test_what_strict_mode_closes_is_noted(api: Api) -> None:
    address = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    schema = {"type": "object", "properties": {"to": address}, "required": ["to"]}
    given = {"name": "send", "description": "Send.", "input_schema": schema, "execute": dict, "strict": True}

    notes = api.wire.tools([build_tool(given)]).notes

    assert [note.text for note in notes] == [
        "closed by strict mode: to accepts no properties but those listed",
        "closed by strict mode: the root accepts no properties but those listed",
    ]
    closed = {**schema, "properties": {"to": {**address, "additionalProperties": False}}, "additionalProperties": False}
    assert not api.wire.tools([build_tool({**given, "input_schema": closed})]).notes

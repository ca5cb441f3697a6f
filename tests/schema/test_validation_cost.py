"""Schemas that grow when their references are followed: refused where one value would be checked for ever."""

from typing import Any

import pytest

from handrail import ToolDefinitionError, build_tool


def build(schema: dict[str, Any]) -> Any:
    return build_tool({"name": "x", "input_schema": schema, "execute": lambda payload: 1, "read_only": True})


def doubling(keyword: str, levels: int) -> dict[str, Any]:
    """Each definition names the next one twice."""

    def double(target: str) -> dict[str, Any]:
        one = {"$ref": f"#/$defs/{target}"}
        if keyword == "if":
            return {"if": one, "then": one, "else": one}
        return {keyword: [one, dict(one)]}

    definitions: dict[str, Any] = {f"s{n}": double(f"s{n + 1}") for n in range(levels)}
    definitions[f"s{levels}"] = {"type": "string"}
    return {"type": "object", "properties": {"a": {"$ref": "#/$defs/s0"}}, "$defs": definitions}


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf", "if"])
@pytest.mark.parametrize("levels", [20, 40, 3_000])
def test_a_schema_that_means_a_million_checks_of_one_value_is_refused(keyword: str, levels: int) -> None:
    with pytest.raises(ToolDefinitionError, match="one value may need more than 20,000 checks"):
        build(doubling(keyword, levels))


def test_a_long_schema_without_such_growth_is_taken() -> None:
    names = [f"d{n}" for n in range(200)]
    definitions: dict[str, Any] = {name: {"type": "object", "properties": {"next": {"$ref": "#"}}} for name in names}
    union = [{"$ref": f"#/$defs/{name}"} for name in names]
    tool = build({"type": "object", "properties": {"a": {"anyOf": union}, "b": {"oneOf": union}}, "$defs": definitions})
    assert tool.parse('{"a": {"next": {"a": {}}}}')


def test_references_in_a_circle_are_no_growth() -> None:
    circle = {f"s{n}": {"anyOf": [{"type": "string"}, {"$ref": f"#/$defs/s{(n + 1) % 30}"}]} for n in range(30)}
    tool = build({"type": "object", "properties": {"a": {"$ref": "#/$defs/s0"}}, "$defs": circle})
    assert tool.parse('{"a": "text"}')

"""How large a schema may be for strict mode."""

from typing import Any

import pytest

from handrail.schema import strict_schema
from tests.schema.subsets import openai_problems


def lowered(schema: dict[str, Any]) -> strict_schema.Lowered:
    return strict_schema.lower({"type": "object", "additionalProperties": False, **schema}, strict_schema.OPENAI)


def of(**properties: Any) -> dict[str, Any]:
    return {"properties": properties, "required": list(properties)}


@pytest.mark.parametrize(
    ("count", "schema"),
    [
        (5_001, lambda count: of(**{f"p{n}": {"type": "null"} for n in range(count)})),
        (1_001, lambda count: of(a={"enum": [*range(count - 500)]}, b={"enum": [*range(500)]})),
        (15_001, lambda count: of(a={"enum": [f"{n:060}" for n in range(251)]})),
        (120_001, lambda count: of(**{"x" * count: {"type": "null"}})),
        (120_001, lambda count: of(a={"const": "x" * (count - 1)})),
        (11, lambda count: of(a=nested(count - 1))),
        (11, lambda count: of(a={"$ref": "#/$defs/D1"}) | {"$defs": chain(count - 1)}),
    ],
    ids=["properties", "enum values", "one enum", "names", "constants", "levels", "levels by reference"],
)  # fmt: skip
def test_a_schema_that_is_too_large_is_refused_with_the_number(count: int, schema: Any) -> None:
    with pytest.raises(strict_schema.NotRepresentable, match="OpenAI's strict mode allows"):
        lowered(schema(count))
    if count != 15_001:
        assert openai_problems(lowered(schema(count - 1)).schema) == []


def nested(levels: int) -> dict[str, Any]:
    inner = nested(levels - 1) if levels > 1 else {"type": "null"}
    return {"type": "object", "additionalProperties": False, **of(a=inner)}


def chain(levels: int) -> dict[str, Any]:
    objects = {
        f"D{n}": {"type": "object", "additionalProperties": False, **of(a={"$ref": f"#/$defs/D{n + 1}"})}
        for n in range(1, levels + 1)
    }
    return objects | {f"D{levels + 1}": {"type": "null"}}


def test_a_schema_nested_beyond_reason_is_refused() -> None:
    deep: Any = {"type": "string"}
    for _ in range(5_000):
        deep = {"type": "array", "items": deep}
    with pytest.raises(strict_schema.NotRepresentable, match="nested too deeply"):
        lowered(of(a=deep))


def test_a_schema_that_doubles_with_every_reference_is_read_once() -> None:
    twice = {f"D{n}": {"anyOf": [{"$ref": f"#/$defs/D{n + 1}"}, {"$ref": f"#/$defs/D{n + 1}"}]} for n in range(60)}
    found = lowered({"properties": {"a": {"$ref": "#/$defs/D0"}}, "$defs": twice | {"D60": {"type": "string"}}})
    assert openai_problems(found.schema) == []


def test_anthropics_strict_mode_has_none_of_these_limits() -> None:
    large = {"type": "object", **of(a={"enum": [*range(1_001)]}, b=nested(12))}

    assert strict_schema.lower(large, strict_schema.ANTHROPIC).schema["required"] == ["a", "b"]

"""Arguments that a tool accepts, for calls that its stand-in runs: its first example, or some made from its schema."""

import json
from collections.abc import Mapping
from typing import Any, cast

from handrail.core.tool import Tool
from handrail.errors import ToolError

_TEXTS = {
    "date": "2026-01-31",
    "date-time": "2026-01-31T12:00:00Z",
    "time": "12:00:00Z",
    "email": "verify@example.com",
    "uri": "https://example.com/",
    "uuid": "5f1b2c3d-0000-4000-8000-000000000000",
}


def make_arguments(tool: Tool[..., Any]) -> dict[str, Any] | None:
    """Arguments that the tool's own validation accepts; None if none were found."""
    for candidate in (*tool.examples, _make_value(tool.input_schema, tool.input_schema, 0)):
        if isinstance(candidate, Mapping) and _is_valid(tool, cast(Mapping[str, Any], candidate)):
            return dict(cast(Mapping[str, Any], candidate))
    return None


def change_arguments(tool: Tool[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    """The same arguments with one other value; None if the tool accepts none."""
    for name, value in arguments.items():
        for other in _list_others(value):
            changed = {**arguments, name: other}
            if _is_valid(tool, changed):
                return changed
    return None


def _list_others(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value + 1, value - 1]
    return [f"{value}0", f"{value}x"] if isinstance(value, str) else []


def _is_valid(tool: Tool[..., Any], arguments: Mapping[str, Any]) -> bool:
    try:
        tool.parse(json.dumps(arguments))
    except (ToolError, TypeError, ValueError):
        return False
    return True


def _make_value(schema: Any, root: Mapping[str, Any], depth: int) -> Any:
    """A small value for a JSON Schema: not every schema has one that is found here."""
    if depth > 20 or not isinstance(schema, Mapping):
        return None
    node = cast(Mapping[str, Any], schema)
    if isinstance(reference := node.get("$ref"), str):
        return _make_value(_follow(reference, root), root, depth + 1)
    if "const" in node:
        return node["const"]
    for name in ("enum", "examples"):
        if values := node.get(name):
            return values[0]
    if "default" in node:
        return node["default"]
    for name in ("anyOf", "oneOf", "allOf"):
        if options := node.get(name):
            return _make_value(options[0], root, depth + 1)
    match _get_type(node):
        case "integer" | "number":
            least = node.get("minimum", node.get("exclusiveMinimum", 0))
            return max(least + (1 if "exclusiveMinimum" in node else 0), min(1, node.get("maximum", 1)))
        case "boolean":
            return False
        case "array":
            count = node.get("minItems", 0)
            return [_make_value(node.get("items", {}), root, depth + 1) for _ in range(count)]
        case "string":
            text = _TEXTS.get(node.get("format", ""), "verify")
            return text.ljust(node.get("minLength", 0), "x")[: node.get("maxLength", 1_000)]
        case "null":
            return None
        case _:
            properties = cast(Mapping[str, Any], node.get("properties", {}))
            required = cast(list[str], node.get("required", []))
            return {name: _make_value(properties.get(name, {}), root, depth + 1) for name in required}


def _get_type(node: Mapping[str, Any]) -> str | None:
    kind = node.get("type")
    first = cast(list[object], kind)[0] if isinstance(kind, list) and kind else cast(object, kind)
    return first if isinstance(first, str) else None


def _follow(reference: str, root: Mapping[str, Any]) -> Any:
    node: Any = root
    for part in reference.removeprefix("#/").split("/"):
        node = cast(Mapping[str, Any], node).get(part) if isinstance(node, Mapping) else None
    return node

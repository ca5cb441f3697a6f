"""What strict modes accept, written down a second time and apart from the code that is tested."""

import re
from collections.abc import Iterator
from typing import Any

KEYWORDS = frozenset(
    {"type", "description", "enum", "const", "anyOf", "$ref", "$defs", "properties", "required"}
    | {"additionalProperties", "items", "pattern", "format", "minimum", "maximum", "exclusiveMinimum"}
    | {"exclusiveMaximum", "multipleOf", "minItems", "maxItems"}
)
FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})


def openai_problems(root: dict[str, Any]) -> list[str]:
    """Everything that is wrong with a schema for OpenAI's strict mode."""
    found = [f"{place}: {text}" for place, node in _nodes(root, "#") for text in _wrong_here(node, root)]
    if root.get("type") != "object" or "anyOf" in root:
        found.append("the root is not a plain object")
    return found + _too_large(root)


def _wrong_here(node: dict[str, Any], root: dict[str, Any]) -> Iterator[str]:
    if unknown := node.keys() - KEYWORDS:
        yield f"has {sorted(unknown)}"
    if "$ref" in node:
        if len(node) > 1:
            yield "has something beside $ref"
        name = str(node["$ref"]).removeprefix("#/$defs/")
        if node["$ref"] != "#" and name not in root.get("$defs", {}):
            yield f"refers to {node['$ref']}"
        return
    if "anyOf" in node:
        if not node["anyOf"] or node.keys() - {"anyOf", "description"}:
            yield "is not a plain union"
        return
    types = node.get("type")
    types = [types] if isinstance(types, str) else types
    if not types or not set(types) <= {"string", "number", "integer", "boolean", "null", "array", "object"}:
        yield f"has the type {types}"
        return
    if "object" in types:
        if node.get("additionalProperties") is not False:
            yield "is open"
        if sorted(node.get("required", ())) != sorted(node.get("properties", {"": 0})):
            yield "does not require everything"
    if "array" in types and not isinstance(node.get("items"), dict):
        yield "is an array of anything"
    if node.get("format", "date") not in FORMATS:
        yield f"has the format {node['format']}"
    if re.search(r"\(\?(=|!|<=|<!)", node.get("pattern", "")):
        yield "looks around in its pattern"


ANTHROPIC_KEYWORDS = frozenset(
    {"type", "description", "default", "enum", "const", "anyOf", "$ref", "$defs", "properties", "required"}
    | {"additionalProperties", "items", "pattern", "format", "minItems"}
)


def anthropic_problems(root: dict[str, Any]) -> list[str]:
    """Everything that is wrong with a schema for Anthropic's strict mode."""
    found: list[str] = []
    for place, node in _nodes(root, "#"):
        if unknown := node.keys() - ANTHROPIC_KEYWORDS:
            found.append(f"{place}: has {sorted(unknown)}")
        if "properties" in node and node.get("additionalProperties") is not False:
            found.append(f"{place}: is open")
        if not set(node.get("required", ())) <= node.get("properties", {}).keys():
            found.append(f"{place}: requires what it does not have")
        if node.get("minItems", 0) not in (0, 1) or node.get("format", "uri") not in FORMATS | {"uri"}:
            found.append(f"{place}: has a minItems or a format that is not known")
        if re.search(r"\(\?(=|!|<=|<!|P=)|\\[1-9bB]", node.get("pattern", "")):
            found.append(f"{place}: has a pattern that is not regular")
        if any(isinstance(value, dict | list) for value in node.get("enum", ())):
            found.append(f"{place}: has an enum of objects or arrays")
        if "$ref" in node and (len(node) > 1 or _comes_back(node["$ref"], root, ())):
            found.append(f"{place}: has something beside $ref, or refers to itself")
    return found


def _comes_back(reference: str, root: dict[str, Any], way: tuple[str, ...]) -> bool:
    if reference in way or reference == "#":
        return True
    target = root["$defs"][reference.removeprefix("#/$defs/")]
    onward = [node["$ref"] for _, node in _nodes(target, "#") if "$ref" in node]
    return any(_comes_back(item, root, (*way, reference)) for item in onward)


def _too_large(root: dict[str, Any]) -> list[str]:
    nodes = [node for _, node in _nodes(root, "#")]
    names = [name for node in nodes for name in node.get("properties", {})]
    values = [value for node in nodes for value in [*node.get("enum", []), node.get("const", "")]]
    enums = [node["enum"] for node in nodes if "enum" in node]
    text = sum(len(str(item)) for item in [*names, *root.get("$defs", {}), *values])
    long = [sum(len(str(value)) for value in values) for values in enums if len(values) > 250]
    limits = {
        "properties": (len(names), 5_000),
        "levels": (_depth(root), 10),
        "characters": (text, 120_000),
        "enum values": (sum(map(len, enums)), 1_000),
        "characters in one enum": (max(long, default=0), 15_000),
    }
    return [f"{count} {what}" for what, (count, most) in limits.items() if count > most]


def _depth(node: dict[str, Any]) -> int:
    below = [_depth(child) for place, child in _children(node) if not place.startswith("/$defs")]
    return ("properties" in node) + max(below, default=0)


def _nodes(node: dict[str, Any], place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    yield place, node
    for step, child in _children(node):
        yield from _nodes(child, place + step)


def _children(node: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for key in ("properties", "$defs"):
        for name, child in node.get(key, {}).items():
            yield f"/{key}/{name}", child
    for index, child in enumerate(node.get("anyOf", [])):
        yield f"/anyOf/{index}", child
    if isinstance(node.get("items"), dict):
        yield "/items", node["items"]

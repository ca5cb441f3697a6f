"""What the official conformance suite is pointed at: an executor, served over HTTP, with the tools that it calls."""

import asyncio
import sys
from base64 import b64decode
from typing import Any

from handrail import Executor, MediaPart, Policy, Rule, ToolContext, ToolError, ToolResult, build_tool, tool
from handrail.sources import serve_mcp

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
SOUND = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="
IMAGE = MediaPart(mime_type="image/png", data=b64decode(PIXEL))


@tool(read_only=True)
def test_simple_text() -> str:
    """Return text."""
    return "This is a simple text response for testing."


@tool(read_only=True)
def test_image_content() -> MediaPart:
    """Return an image."""
    return IMAGE


@tool(read_only=True)
def test_audio_content() -> MediaPart:
    """Return audio."""
    return MediaPart(mime_type="audio/wav", data=b64decode(SOUND))


def resource(uri: str, text: str, mime_type: str) -> dict[str, Any]:
    return {"type": "resource", "uri": uri, "mimeType": mime_type, "text": text}


@tool(read_only=True)
def test_embedded_resource() -> list[dict[str, Any]]:
    """Return a resource."""
    return [resource("test://embedded-resource", "This is an embedded resource content.", "text/plain")]


@tool(read_only=True)
def test_multiple_content_types() -> ToolResult:
    """Return text, an image and a resource."""
    file = resource("test://mixed-content-resource", '{"test":"data","value":123}', "application/json")
    return ToolResult(output=["Multiple content types test:", file], media=(IMAGE,))


@tool(read_only=True)
def test_error_handling() -> str:
    """Fail."""
    raise ToolError("This tool intentionally returns an error for testing")


@tool(read_only=True)
def test_tool_with_progress(context: ToolContext) -> str:
    """Report progress."""
    for fraction in (0.0, 0.5, 1.0):
        context.progress(f"{fraction:.0%}", fraction=fraction)
    return "done"


@tool
def test_streaming_elicitation() -> str:
    """Run once somebody has agreed."""
    return "done"


@tool(read_only=True)
def test_logging_tool() -> str:
    """Log nothing to the client."""
    return "done"


@tool(read_only=True)
def test_trigger_tool_change() -> str:
    """Change the tools."""
    executor.replace_tools([*TOOLS, build_tool({**ADDED, "name": f"added_{len(executor.registry)}"})])
    return "changed"


def run(payload: dict[str, Any]) -> str:
    return "done"


SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
HEADERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "priority": {"type": "integer", "x-mcp-header": "Priority"},
    },
}
ADDED: dict[str, Any] = {"description": "A new tool.", "input_schema": {"type": "object"}, "execute": run}
TOOLS = [
    test_simple_text,
    test_image_content,
    test_audio_content,
    test_embedded_resource,
    test_multiple_content_types,
    test_error_handling,
    test_tool_with_progress,
    test_streaming_elicitation,
    test_logging_tool,
    test_trigger_tool_change,
    build_tool(
        {"name": "json_schema_2020_12_tool", "description": "A schema.", "input_schema": SCHEMA, "execute": run}
    ),
    build_tool({"name": "test_custom_headers", "description": "Headers.", "input_schema": HEADERS, "execute": run}),
]

policy = Policy([Rule.allow("*"), Rule.ask("test_streaming_elicitation", by="customer")])
executor = Executor(TOOLS, policy=policy)

if __name__ == "__main__":
    asyncio.run(serve_mcp(executor, transport="http", port=int(sys.argv[1])))

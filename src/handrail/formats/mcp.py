"""The Model Context Protocol, from the server's side."""

import json
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import uuid4

from handrail.core.tool import Tool
from handrail.core.values import ToolCall, ToolResult
from handrail.errors import ConfigError
from handrail.formats.definitions import Definitions, Mode, SkippedTool, Wired, assemble, decoded, fitted_name
from handrail.formats.incoming import read, text_of
from handrail.formats.outgoing import rendered, valid, with_examples

if TYPE_CHECKING:
    from typing import NoReturn

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+")


def tools(pool: Iterable[Tool[..., Any]]) -> Definitions[dict[str, Any]]:
    """Definitions for the answer to `tools/list`."""
    return assemble(pool, dialect="mcp", wire=_wire)


def _wire(tool: Tool[..., Any]) -> Wired:
    name, notes = fitted_name(tool.name, allowed=_NAME, limit=128)
    schema = {"type": "object", **tool.input_schema}
    if schema["type"] != "object":
        raise SkippedTool("its input_schema is not an object")
    definition: dict[str, Any] = {
        "name": name,
        "description": with_examples(tool),
        "inputSchema": valid(schema),
        "annotations": {
            "readOnlyHint": tool.read_only,
            "idempotentHint": tool.read_only or tool.idempotent,
        },
    }
    if tool.output_schema is not None and tool.output_schema.get("type") == "object":
        definition["outputSchema"] = dict(tool.output_schema)
    return Wired(name=name, definition=definition, notes=notes)


def calls(response: Any, definitions: Sequence[Any] | None = None) -> list[ToolCall]:
    """The call in a `tools/call` request, or in its parameters."""
    requests = cast(Sequence[Any], response) if isinstance(response, list | tuple) else (response,)
    found: list[ToolCall] = []
    for request in requests:
        parameters = read(request, "params") or request
        request_id = read(request, "id")
        found.append(
            ToolCall(
                id=uuid4().hex if request_id is None else str(request_id),
                name=read(parameters, "name") or "",
                arguments_json=text_of(read(parameters, "arguments")),
            )
        )
    return decoded(found, definitions)


def results(results: Iterable[ToolResult], definitions: Sequence[Any] | None = None) -> list[dict[str, Any]]:
    """The answers, one result of `tools/call` each, failures marked as such."""
    answers: list[dict[str, Any]] = []
    for one in results:
        text, failed = rendered(one)
        answer: dict[str, Any] = {"content": [{"type": "text", "text": text}], "isError": failed}
        if not failed and not isinstance(one.output, str) and isinstance(value := json.loads(text), dict):
            answer["structuredContent"] = value
        answers.append(answer)
    return answers


def tool_choice(
    mode: Mode = "auto",
    *,
    tool: str | None = None,
    allowed: Sequence[str] = (),
    definitions: Sequence[Any] | None = None,
) -> "NoReturn":
    """MCP lets the client choose: there is nothing to send."""
    raise ConfigError("MCP has no tool choice: the client decides which tool it calls.")


def assistant_messages(response: Any) -> list[dict[str, Any]]:
    """Nothing: a server answers one call at a time, and there is no history."""
    return []

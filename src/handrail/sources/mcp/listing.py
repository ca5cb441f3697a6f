"""Takes bad definitions out of a list of tools before the SDK sees it, which would refuse the whole list for one."""

import json
from collections.abc import Callable
from typing import Any, Protocol, Self, cast

import mcp_types as types
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from handrail.errors import shorten
from handrail.sources.source import SkippedTool

StreamMessage = SessionMessage | Exception


class MessageStream(Protocol):
    """What the SDK reads messages from."""

    async def receive(self) -> StreamMessage: ...

    async def aclose(self) -> None: ...

    async def __anext__(self) -> StreamMessage: ...


class CheckedStream:
    """A stream of messages in which every list of tools holds only tools."""

    def __init__(
        self, inner: MessageStream, *, max_definition_bytes: int, on_skip: Callable[[SkippedTool], None]
    ) -> None:
        self._inner = inner
        self._limit = max_definition_bytes
        self._on_skip = on_skip

    @property
    def last_context(self) -> Any:
        """The context of whoever sent the last message; the SDK asks for it."""
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> StreamMessage:
        """The next message."""
        return self._check(await self._inner.receive())

    def _check(self, message: StreamMessage) -> StreamMessage:
        if isinstance(message, SessionMessage) and isinstance(message.message, types.JSONRPCResponse):
            result = message.message.result
            listed: object = result.get("tools")
            if isinstance(listed, list):
                result["tools"] = [item for item in cast(list[object], listed) if self._is_tool(item)]
        return message

    def _is_tool(self, given: object) -> bool:
        problem = find_problem(given, self._limit)
        if problem is None:
            return True
        name = cast(dict[str, object], given).get("name") if isinstance(given, dict) else None
        self._on_skip(SkippedTool(name=shorten(name) if isinstance(name, str) else "(no name)", reason=problem))
        return False

    async def aclose(self) -> None:
        """Close the stream."""
        await self._inner.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamMessage:
        return self._check(await self._inner.__anext__())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()


def find_problem(given: object, max_definition_bytes: int) -> str | None:
    """Why this is no definition of a tool; None if it may be one."""
    if not isinstance(given, dict):
        return "its definition is not an object"
    definition = cast(dict[str, Any], given)
    size = len(json.dumps(definition))
    if size > max_definition_bytes:
        return f"its definition has {size:,} bytes, and max_definition_bytes is {max_definition_bytes:,}"
    try:
        found = types.Tool.model_validate(definition, by_name=False)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        return f"its definition is not valid at {'.'.join(map(str, first['loc']))}: {first['msg']}"
    properties, required = found.input_schema.get("properties", {}), found.input_schema.get("required", [])
    if found.input_schema.get("type") != "object":
        return "its inputSchema must have type 'object'"
    if not isinstance(properties, dict) or not all(isinstance(item, dict) for item in cast(Any, properties).values()):
        return "its inputSchema is not valid at properties: each must be a schema"
    if not isinstance(required, list) or not all(isinstance(item, str) for item in cast(Any, required)):
        return "its inputSchema is not valid at required: must be a list of names"
    return None

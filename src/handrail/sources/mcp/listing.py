"""Takes bad definitions out of a list of tools before the SDK sees it, which would refuse the whole list for one."""

import asyncio
import json
from collections.abc import Callable
from typing import Any, Final, Protocol, Self, cast

import mcp_types as types
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from handrail.errors import shorten
from handrail.sources.source import SkippedTool

StreamMessage = SessionMessage | Exception

MAX_LISTED: Final = 10_000
"""How many definitions of one server are read at most, whatever it lists."""
_BATCH: Final = 100
"""How many definitions are checked before the loop may do something else."""


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
        self._is_legacy = False
        """Whether the server was initialized, as in the older revisions of the protocol."""

    @property
    def last_context(self) -> Any:
        """The context of whoever sent the last message; the SDK asks for it."""
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> StreamMessage:
        """The next message."""
        return await self._check(await self._inner.receive())

    async def _check(self, message: StreamMessage) -> StreamMessage:
        if not isinstance(message, SessionMessage):
            return message
        if isinstance(message.message, types.JSONRPCError):
            if message.message.error.code == types.CONNECTION_CLOSED:
                # The SDK says this code of a lost connection; what a server sends is its own error.
                message.message.error.code = types.INTERNAL_ERROR
        elif isinstance(message.message, types.JSONRPCResponse):
            result = message.message.result
            self._is_legacy = self._is_legacy or "protocolVersion" in result
            listed: object = result.get("tools")
            if isinstance(listed, list):
                result["tools"] = await self._select_tools(cast(list[object], listed))
        return message

    async def _select_tools(self, listed: list[object]) -> list[object]:
        """The definitions that are some; never so many at once that the other tasks of the loop have to wait."""
        found: list[object] = []
        if len(listed) > MAX_LISTED:
            reason = f"the server lists {len(listed):,} tools at once, and only {MAX_LISTED:,} are read"
            self._on_skip(SkippedTool(name=f"{len(listed) - MAX_LISTED:,} tools", reason=reason))
        for number, definition in enumerate(listed[:MAX_LISTED], start=1):
            if self._is_tool(definition):
                found.append(definition)
            if number % _BATCH == 0:
                await asyncio.sleep(0)
        return found

    def _is_tool(self, given: object) -> bool:
        problem = find_problem(given, self._limit, is_legacy=self._is_legacy)
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
        return await self._check(await self._inner.__anext__())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()


def find_problem(given: object, max_definition_bytes: int, *, is_legacy: bool) -> str | None:
    """Why this is no definition of a tool; None if it may be one. Older revisions want more of it."""
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
    if found.input_schema.get("type") != "object":
        return "its inputSchema must have type 'object'"
    problem = _find_schema_problem("inputSchema", found.input_schema)
    if problem is None and found.output_schema is not None:
        if is_legacy and found.output_schema.get("type") != "object":
            return "its outputSchema must have type 'object' in this revision of the protocol"
        problem = _find_schema_problem("outputSchema", found.output_schema)
    return problem


def _find_schema_problem(name: str, schema: dict[str, Any]) -> str | None:
    """What the SDK would refuse the whole list for."""
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not all(isinstance(item, dict) for item in cast(Any, properties).values()):
        return f"its {name} is not valid at properties: each must be a schema"
    if not isinstance(required, list) or not all(isinstance(item, str) for item in cast(Any, required)):
        return f"its {name} is not valid at required: must be a list of names"
    if not isinstance(schema.get("$schema", ""), str):
        return f"its {name} is not valid at $schema: must be a text"
    return None

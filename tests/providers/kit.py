"""The four adapters, seen alike: how each is made, the strict server that it talks to, its own words for an ending."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from handrail import Tool, ToolCall, ToolResult, tool
from handrail.providers import (
    AnthropicMessages,
    GeminiModel,
    Message,
    ModelRequest,
    ModelResponse,
    OpenAIChat,
    OpenAIResponses,
    StreamEvent,
    TextDelta,
    ToolMessage,
    UserMessage,
)
from handrail.testing.servers import AnthropicServer, GeminiServer, OpenAIServer

KEY = "sk-canary-7f3e0d4c/AB+=9182736455"


@dataclass(frozen=True)
class Subject:
    """One adapter and its server."""

    name: str
    adapter: Callable[..., Any]
    server: Callable[..., Any]
    variable: str
    label: str
    stops: Mapping[str, str]
    """The API's own stop reasons that a script can name, and ours."""
    sends_text: bool = True
    """Whether arguments travel as text, so that they can be no JSON."""

    @asynccontextmanager
    async def at(self, server: Any, **options: Any) -> AsyncIterator[Any]:
        """The adapter, for one test."""
        adapter = self.adapter("test-model", base_url=server.url, **{"api_key": KEY, "max_retries": 0, **options})
        try:
            yield adapter
        finally:
            await adapter.aclose()


CHAT = Subject(
    name="openai_chat",
    adapter=OpenAIChat,
    server=OpenAIServer,
    variable="OPENAI_API_KEY",
    label="openai",
    stops={
        "stop": "stop",
        "length": "length",
        "content_filter": "refusal",
        "tool_calls": "other",
        "something_new": "other",
    },
)
RESPONSES = Subject(
    name="openai_responses",
    adapter=OpenAIResponses,
    server=OpenAIServer,
    variable="OPENAI_API_KEY",
    label="openai-responses",
    stops={
        "completed": "stop",
        "max_output_tokens": "length",
        "content_filter": "refusal",
        "cancelled": "other",
        "something_new": "other",
    },
)
ANTHROPIC = Subject(
    name="anthropic",
    adapter=AnthropicMessages,
    server=AnthropicServer,
    variable="ANTHROPIC_API_KEY",
    label="anthropic",
    stops={
        "end_turn": "stop",
        "stop_sequence": "stop",
        "max_tokens": "length",
        "model_context_window_exceeded": "length",
        "refusal": "refusal",
        "pause_turn": "other",
        "compaction": "other",
    },
    sends_text=False,
)
GEMINI = Subject(
    name="gemini",
    adapter=GeminiModel,
    server=GeminiServer,
    variable="GEMINI_API_KEY",
    label="gemini",
    stops={
        "STOP": "stop",
        "MAX_TOKENS": "length",
        "SAFETY": "refusal",
        "RECITATION": "refusal",
        "BLOCKLIST": "refusal",
        "PROHIBITED_CONTENT": "refusal",
        "SPII": "refusal",
        "IMAGE_SAFETY": "refusal",
        "MALFORMED_FUNCTION_CALL": "other",
        "OTHER": "other",
        "LANGUAGE": "other",
    },
    sends_text=False,
)
ALL = (CHAT, RESPONSES, ANTHROPIC, GEMINI)
every_adapter = pytest.mark.parametrize("subject", ALL, ids=lambda subject: subject.name)


@tool(read_only=True)
async def weather(city: str, days: int = 1) -> str:
    """Get the weather somewhere."""
    return "sunny"


@tool(name="wetter größe", read_only=True, strict=True)
async def odd(city: str, days: int = 1) -> str:
    """A tool whose name no API takes."""
    return "cloudy"


TOOLS: list[Tool[..., Any]] = [weather, odd]


async def whole(provider: Any, request: ModelRequest) -> ModelResponse:
    return await provider.ask(request)


async def streamed(provider: Any, request: ModelRequest) -> ModelResponse:
    """The reply of a stream, which has to be its last piece, and to say what the pieces said."""
    *pieces, reply = [piece async for piece in provider.stream(request)]
    assert all(isinstance(piece, TextDelta) for piece in pieces)
    assert isinstance(reply, ModelResponse)
    assert "".join(piece.text for piece in pieces) == reply.text
    return reply


Way = Callable[[Any, ModelRequest], Awaitable[ModelResponse]]
both_ways = pytest.mark.parametrize("way", [whole, streamed], ids=["whole", "streamed"])


def hello(text: str = "Hello.") -> list[Message]:
    return [UserMessage(text=text)]


def answered(calls: Sequence[ToolCall], output: Any = "sunny") -> ToolMessage:
    """An answer to each call."""
    return ToolMessage(results=tuple(ToolResult(output=output, call_id=call.id, tool_name=call.name) for call in calls))


async def drained(pieces: AsyncIterator[StreamEvent]) -> list[StreamEvent]:
    return [piece async for piece in pieces]

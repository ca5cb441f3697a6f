"""The official clients of four APIs against their local servers, each as a step of the loop."""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from anthropic import Anthropic, AsyncAnthropic
from google import genai
from google.genai import types
from openai import AsyncOpenAI, OpenAI

from handrail.formats import anthropic, gemini, openai_chat, openai_responses
from handrail.testing.servers import AnthropicServer, GeminiServer, OpenAIServer


@dataclass(frozen=True)
class Provider:
    """One API: its wire format, its server, and ways to ask it."""

    name: str
    wire: ModuleType
    server: Callable[[Any], Any]
    ask: Callable[[Any, list[Any], Any], Any]
    """Waits for the answer."""
    ask_async: Callable[[Any, list[Any], Any], Any]
    stream: Callable[[Any, list[Any], Any], list[Any]]
    """Collects the events of a stream."""
    user: Callable[[str], Any]
    text: Callable[[Any], str | None]
    """The words of an answer."""
    answers: Callable[[list[Any]], list[str]]
    """The ids of the calls that have an answer in the messages."""


def _openai(server: Any) -> OpenAI:
    return OpenAI(base_url=server.url, api_key="test", max_retries=0)


def _chat(server: Any, messages: list[Any], tools: Any, **more: Any) -> Any:
    with _openai(server) as client:
        create: Any = client.chat.completions.create
        answer = create(model="gpt-test", messages=messages, tools=tools, **more)
        return list(answer) if more else answer


async def _chat_async(server: Any, messages: list[Any], tools: Any) -> Any:
    async with AsyncOpenAI(base_url=server.url, api_key="test", max_retries=0) as client:
        create: Any = client.chat.completions.create
        return await create(model="gpt-test", messages=messages, tools=tools)


def _responses(server: Any, messages: list[Any], tools: Any, **more: Any) -> Any:
    with _openai(server) as client:
        create: Any = client.responses.create
        answer = create(model="gpt-test", input=messages, tools=tools, **more)
        return list(answer) if more else answer


async def _responses_async(server: Any, messages: list[Any], tools: Any) -> Any:
    async with AsyncOpenAI(base_url=server.url, api_key="test", max_retries=0) as client:
        create: Any = client.responses.create
        return await create(model="gpt-test", input=messages, tools=tools)


def _claude(server: Any, messages: list[Any], tools: Any, **more: Any) -> Any:
    with Anthropic(base_url=server.url, api_key="test", max_retries=0) as client:
        create: Any = client.messages.create
        answer = create(model="claude-test", max_tokens=100, messages=messages, tools=tools, **more)
        return list(answer) if more else answer


async def _claude_async(server: Any, messages: list[Any], tools: Any) -> Any:
    async with AsyncAnthropic(base_url=server.url, api_key="test", max_retries=0) as client:
        create: Any = client.messages.create
        return await create(model="claude-test", max_tokens=100, messages=messages, tools=tools)


def _gemini(server: Any) -> genai.Client:
    return genai.Client(api_key="test", http_options=types.HttpOptions(base_url=server.url))


def _config(tools: Any) -> Any:
    return {"tools": list(tools), "automatic_function_calling": {"disable": True}}


def _google(server: Any, messages: list[Any], tools: Any) -> Any:
    with _gemini(server) as client:
        return client.models.generate_content(model="gemini-test", contents=messages, config=_config(tools))


def _google_stream(server: Any, messages: list[Any], tools: Any) -> list[Any]:
    with _gemini(server) as client:
        return list(
            client.models.generate_content_stream(model="gemini-test", contents=messages, config=_config(tools))
        )


async def _google_async(server: Any, messages: list[Any], tools: Any) -> Any:
    async with _gemini(server).aio as client:
        return await client.models.generate_content(model="gemini-test", contents=messages, config=_config(tools))


PROVIDERS = [
    Provider(
        name="openai_chat",
        wire=openai_chat,
        server=OpenAIServer,
        ask=_chat,
        ask_async=_chat_async,
        stream=lambda server, messages, tools: _chat(server, messages, tools, stream=True),
        user=lambda text: {"role": "user", "content": text},
        text=lambda answer: answer.choices[0].message.content,
        answers=lambda messages: [message["tool_call_id"] for message in messages if message["role"] == "tool"],
    ),
    Provider(
        name="openai_responses",
        wire=openai_responses,
        server=OpenAIServer,
        ask=_responses,
        ask_async=_responses_async,
        stream=lambda server, messages, tools: _responses(server, messages, tools, stream=True),
        user=lambda text: {"role": "user", "content": text},
        text=lambda answer: answer.output_text,
        answers=lambda messages: [
            message["call_id"] for message in messages if message.get("type") == "function_call_output"
        ],
    ),
    Provider(
        name="anthropic",
        wire=anthropic,
        server=AnthropicServer,
        ask=_claude,
        ask_async=_claude_async,
        stream=lambda server, messages, tools: _claude(server, messages, tools, stream=True),
        user=lambda text: {"role": "user", "content": text},
        text=lambda answer: answer.content[0].text,
        answers=lambda messages: [
            block["tool_use_id"]
            for message in messages
            for block in message["content"]
            if not isinstance(block, str) and block["type"] == "tool_result"
        ],
    ),
    Provider(
        name="gemini",
        wire=gemini,
        server=GeminiServer,
        ask=_google,
        ask_async=_google_async,
        stream=_google_stream,
        user=lambda text: {"role": "user", "parts": [{"text": text}]},
        text=lambda answer: answer.text,
        answers=lambda messages: [
            part["function_response"]["id"]
            for message in messages
            for part in message["parts"]
            if "function_response" in part
        ],
    ),
]

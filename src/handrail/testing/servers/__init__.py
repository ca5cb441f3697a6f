"""Strict local servers that implement the providers' APIs, to run the official SDKs offline."""

from .anthropic_messages import AnthropicServer
from .gemini import GeminiServer
from .http import Request
from .openai import OpenAIServer
from .script import (
    Error,
    Raw,
    Reply,
    ScriptedCall,
    ScriptedUsage,
    error,
    raw,
    refusal,
    text,
    text_and_calls,
    tool_calls,
    truncated,
)

__all__ = [
    "AnthropicServer",
    "Error",
    "GeminiServer",
    "OpenAIServer",
    "Raw",
    "Reply",
    "Request",
    "ScriptedCall",
    "ScriptedUsage",
    "error",
    "raw",
    "refusal",
    "text",
    "text_and_calls",
    "tool_calls",
    "truncated",
]

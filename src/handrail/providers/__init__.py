"""Language models behind one protocol: OpenAI, Anthropic, Gemini, compatible servers, and the embedded model."""

from typing import TYPE_CHECKING

from handrail.core.lazy_exports import build_getattr
from handrail.providers.messages import AssistantMessage, Message, Native, ToolMessage, UserMessage
from handrail.providers.provider import (
    FinishReason,
    ModelRequest,
    ModelResponse,
    Prices,
    Provider,
    StreamEvent,
    TextDelta,
    ToolChoice,
    Usage,
)
from handrail.providers.structured import generate_structured

if TYPE_CHECKING:
    from handrail.providers.anthropic import AnthropicMessages
    from handrail.providers.embedded import EmbeddedProvider
    from handrail.providers.gemini import GeminiModel
    from handrail.providers.openai_chat import OpenAIChat
    from handrail.providers.openai_responses import OpenAIResponses

__all__ = [
    "AnthropicMessages",
    "AssistantMessage",
    "EmbeddedProvider",
    "FinishReason",
    "GeminiModel",
    "Message",
    "ModelRequest",
    "ModelResponse",
    "Native",
    "OpenAIChat",
    "OpenAIResponses",
    "Prices",
    "Provider",
    "StreamEvent",
    "TextDelta",
    "ToolChoice",
    "ToolMessage",
    "Usage",
    "UserMessage",
    "generate_structured",
]

# Loaded on first use: each needs its own format, and most programs use one.
_ON_FIRST_USE = {
    "AnthropicMessages": "handrail.providers.anthropic",
    "EmbeddedProvider": "handrail.providers.embedded",
    "GeminiModel": "handrail.providers.gemini",
    "OpenAIChat": "handrail.providers.openai_chat",
    "OpenAIResponses": "handrail.providers.openai_responses",
}

__getattr__ = build_getattr(__name__, _ON_FIRST_USE)

"""Language models behind one protocol: OpenAI, Anthropic, Gemini, compatible servers, and the embedded model."""

from typing import TYPE_CHECKING

from handrail.core.lazy_loading import build_getattr

if TYPE_CHECKING:
    from handrail.providers.anthropic import AnthropicMessages
    from handrail.providers.embedded import EmbeddedProvider
    from handrail.providers.gemini import GeminiModel
    from handrail.providers.messages import AssistantMessage, Message, Native, ToolMessage, UserMessage
    from handrail.providers.openai_chat import OpenAIChat
    from handrail.providers.openai_responses import OpenAIResponses
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
    from handrail.providers.structured_output import generate_structured

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

# Loaded on first use, so that importing one module of this package does not import the others.
_ON_FIRST_USE = {
    "AnthropicMessages": "handrail.providers.anthropic",
    "AssistantMessage": "handrail.providers.messages",
    "EmbeddedProvider": "handrail.providers.embedded",
    "FinishReason": "handrail.providers.provider",
    "GeminiModel": "handrail.providers.gemini",
    "Message": "handrail.providers.messages",
    "ModelRequest": "handrail.providers.provider",
    "ModelResponse": "handrail.providers.provider",
    "Native": "handrail.providers.messages",
    "OpenAIChat": "handrail.providers.openai_chat",
    "OpenAIResponses": "handrail.providers.openai_responses",
    "Prices": "handrail.providers.provider",
    "Provider": "handrail.providers.provider",
    "StreamEvent": "handrail.providers.provider",
    "TextDelta": "handrail.providers.provider",
    "ToolChoice": "handrail.providers.provider",
    "ToolMessage": "handrail.providers.messages",
    "Usage": "handrail.providers.provider",
    "UserMessage": "handrail.providers.messages",
    "generate_structured": "handrail.providers.structured_output",
}

__getattr__ = build_getattr(__name__, _ON_FIRST_USE)

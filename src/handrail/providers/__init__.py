"""Ask a language model: one protocol, one module per API."""

from handrail.providers.messages import AssistantMessage, Message, Native, ToolMessage, UserMessage, shown
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

__all__ = [
    "AssistantMessage",
    "FinishReason",
    "Message",
    "ModelRequest",
    "ModelResponse",
    "Native",
    "Prices",
    "Provider",
    "StreamEvent",
    "TextDelta",
    "ToolChoice",
    "ToolMessage",
    "Usage",
    "UserMessage",
    "generate_structured",
    "shown",
]

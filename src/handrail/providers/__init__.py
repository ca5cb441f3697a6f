"""Ask a language model: one protocol, one module per API."""

from handrail.providers.messages import AssistantMessage, Message, Native, ToolMessage, UserMessage, shown
from handrail.providers.provider import Choice, Piece, Prices, Provider, Reply, Request, Stop, TextPiece, Usage
from handrail.providers.structured import ask_for

__all__ = [
    "AssistantMessage",
    "Choice",
    "Message",
    "Native",
    "Piece",
    "Prices",
    "Provider",
    "Reply",
    "Request",
    "Stop",
    "TextPiece",
    "ToolMessage",
    "Usage",
    "UserMessage",
    "ask_for",
    "shown",
]

"""Conversations between a person and a model that has tools."""

from handrail.chat.conversation import Conversation, PendingCall
from handrail.chat.session import ChatSession
from handrail.chat.session_store import FileSessionStore, SessionStore
from handrail.chat.turn import (
    Budget,
    ChatEvent,
    PlainStrategy,
    StopReason,
    TurnResult,
    TurnState,
    TurnStrategy,
)

__all__ = [
    "Budget",
    "ChatEvent",
    "ChatSession",
    "Conversation",
    "FileSessionStore",
    "PendingCall",
    "PlainStrategy",
    "SessionStore",
    "StopReason",
    "TurnResult",
    "TurnState",
    "TurnStrategy",
]

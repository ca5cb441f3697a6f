"""Conversations between a person and a model that has tools."""

from handrail.chat.conversation import Conversation, PendingCall
from handrail.chat.session import ChatSession
from handrail.chat.session_store import FileSessionStore, SessionStore
from handrail.chat.turn import ChatEvent, PlainStrategy, TurnResult, TurnState, TurnStrategy
from handrail.execute.loop import Budget, StopReason

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

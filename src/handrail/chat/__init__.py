"""Conversations between a person and a model that has tools."""

from typing import TYPE_CHECKING

from handrail.core.lazy_loading import build_getattr

if TYPE_CHECKING:
    from handrail.chat.conversation import Conversation, PendingCall
    from handrail.chat.session import ChatSession
    from handrail.chat.session_store import FileSessionStore, SessionStore
    from handrail.chat.turn import ChatEvent, PlainStrategy, TurnResult, TurnState, TurnStrategy
    from handrail.execute.budget import Budget, StopReason

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

# Loaded on first use, so that importing one module of this package does not import the others.
_ON_FIRST_USE = {
    "Budget": "handrail.execute.budget",
    "ChatEvent": "handrail.chat.turn",
    "ChatSession": "handrail.chat.session",
    "Conversation": "handrail.chat.conversation",
    "FileSessionStore": "handrail.chat.session_store",
    "PendingCall": "handrail.chat.conversation",
    "PlainStrategy": "handrail.chat.turn",
    "SessionStore": "handrail.chat.session_store",
    "StopReason": "handrail.execute.budget",
    "TurnResult": "handrail.chat.turn",
    "TurnState": "handrail.chat.turn",
    "TurnStrategy": "handrail.chat.turn",
}

__getattr__ = build_getattr(__name__, _ON_FIRST_USE)

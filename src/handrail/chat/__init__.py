"""One conversation: history, approvals, interruption, saving; a turn has two forms, plain and guided."""

from handrail.chat.conversation import Conversation
from handrail.chat.plain import PlainStrategy
from handrail.chat.saving import FileSessionStore, SessionStore
from handrail.chat.session import ChatSession
from handrail.chat.talk import Budget, ChatEvent, StopReason, TurnResult, TurnState, TurnStrategy

__all__ = [
    "Budget",
    "ChatEvent",
    "ChatSession",
    "Conversation",
    "FileSessionStore",
    "PlainStrategy",
    "SessionStore",
    "StopReason",
    "TurnResult",
    "TurnState",
    "TurnStrategy",
]

"""One conversation: history, approvals, interruption, saving; a turn has two forms, plain and guided."""

from handrail.chat.conversation import Conversation
from handrail.chat.plain import PlainTurn
from handrail.chat.saving import FileSessions, Sessions
from handrail.chat.session import ChatSession
from handrail.chat.talk import Answer, ChatEvent, Ended, Talk, Turn, TurnBudget

__all__ = [
    "Answer",
    "ChatEvent",
    "ChatSession",
    "Conversation",
    "Ended",
    "FileSessions",
    "PlainTurn",
    "Sessions",
    "Talk",
    "Turn",
    "TurnBudget",
]

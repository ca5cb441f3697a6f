"""A conversation as data: what is saved, and all that is needed to go on with it."""

from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import Struct, structs

from handrail.core.values import ToolCall, ToolResult
from handrail.errors import StoreError
from handrail.providers.messages import AssistantMessage, Message, ToolMessage
from handrail.providers.provider import Usage

VERSION: Final = 1


class Conversation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who talks, what was said, and which calls still have no answer."""

    session_id: str
    tenant_id: str | None = None
    agent_id: str | None = None
    customer_id: str | None = None
    turn: int = 0
    messages: tuple[Message, ...] = ()
    answered: tuple[ToolResult, ...] = ()
    """Results to some calls of the last message, while others still wait: for a person, or for a process that died."""
    handed_off: bool = False
    """Whether a person has taken over, and the agent is silent."""
    usage: Usage = Usage()
    """Of all turns."""
    revision: int = 0
    """Counts the savings: whoever saves an older one is refused."""
    version: int = VERSION

    def with_messages(self, *messages: Message) -> "Conversation":
        """The conversation with more said."""
        return structs.replace(self, messages=(*self.messages, *messages))

    @property
    def asked(self) -> tuple[ToolCall, ...]:
        """The calls of the last message, if it is the model's: all of them need an answer before anything else."""
        last = self.messages[-1] if self.messages else None
        return last.calls if isinstance(last, AssistantMessage) else ()

    @property
    def unanswered(self) -> tuple[ToolCall, ...]:
        """The calls that still have no answer."""
        known = {one.call_id for one in self.answered}
        return tuple(call for call in self.asked if call.id not in known)

    def with_answers(self, answers: Iterable[ToolResult]) -> "Conversation":
        """The conversation with these answers beside those that were there: a message of its own once all are there."""
        if not self.asked:
            return self
        known = {one.call_id: one for one in (*self.answered, *answers)}
        in_order = tuple(known[call.id] for call in self.asked if call.id in known)
        if len(in_order) < len(self.asked):
            return structs.replace(self, answered=in_order)
        return structs.replace(self, answered=(), messages=(*self.messages, ToolMessage(results=in_order)))

    def call_ids(self) -> set[str]:
        """The ids of all calls there were."""
        return {call.id for one in self.messages if isinstance(one, AssistantMessage) for call in one.calls}


def encoded(conversation: Conversation) -> bytes:
    """A conversation as JSON."""
    return msgspec.json.encode(conversation)


def is_storable(value: object) -> bool:
    """Whether a value can be part of what is saved."""
    try:
        msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


class _Versioned(Struct):
    version: int = VERSION


def decoded(text: bytes | str, *, source: str) -> Conversation:
    """A conversation from JSON; whatever it is not, is said."""
    try:
        if (version := msgspec.json.decode(text, type=_Versioned).version) != VERSION:
            raise StoreError(
                f"{source} was saved by another Handrail: version {version}, and this one reads {VERSION}."
            )
        return msgspec.json.decode(text, type=Conversation)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(f"{source} does not hold a conversation: {error}") from error

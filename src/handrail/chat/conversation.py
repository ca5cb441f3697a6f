"""A conversation as data: everything that is saved, and everything needed to resume it."""

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
    """The state of one conversation: whose it is, its messages, and the results of calls that are not all in yet."""

    session_id: str
    tenant_id: str | None = None
    agent_id: str | None = None
    customer_id: str | None = None
    turn: int = 0
    messages: tuple[Message, ...] = ()
    partial_results: tuple[ToolResult, ...] = ()
    """Results of some of the `last_calls`, while others are still open: awaiting an approval, or cut off by a crash."""
    handed_off: bool = False
    """Whether a person has taken over. The model is not asked while they have."""
    usage: Usage = Usage()
    """The sum over all turns."""
    revision: int = 0
    """Counts the saves; a store refuses any revision but the next one."""
    version: int = VERSION

    def with_messages(self, *messages: Message) -> "Conversation":
        """Return a copy with more messages."""
        return structs.replace(self, messages=(*self.messages, *messages))

    @property
    def last_calls(self) -> tuple[ToolCall, ...]:
        """The calls of the last message if the model wrote it. All need a result before any other message."""
        last = self.messages[-1] if self.messages else None
        return last.calls if isinstance(last, AssistantMessage) else ()

    @property
    def open_calls(self) -> tuple[ToolCall, ...]:
        """Those of the `last_calls` that have no result yet."""
        known = {one.call_id for one in self.partial_results}
        return tuple(call for call in self.last_calls if call.id not in known)

    def with_results(self, results: Iterable[ToolResult]) -> "Conversation":
        """Return a copy with results of open calls: a `ToolMessage` once there is one for every call."""
        if not self.last_calls:
            return self
        known = {one.call_id: one for one in (*self.partial_results, *results)}
        in_order = tuple(known[call.id] for call in self.last_calls if call.id in known)
        if len(in_order) < len(self.last_calls):
            return structs.replace(self, partial_results=in_order)
        return structs.replace(self, partial_results=(), messages=(*self.messages, ToolMessage(results=in_order)))

    @property
    def call_ids(self) -> set[str]:
        """The ids of all calls in the history."""
        return {call.id for one in self.messages if isinstance(one, AssistantMessage) for call in one.calls}


def encode_conversation(conversation: Conversation) -> bytes:
    """Encode a conversation as JSON."""
    return msgspec.json.encode(conversation)


def is_storable(value: object) -> bool:
    """Whether a value can be encoded as JSON, and so be part of a saved conversation."""
    try:
        msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


class _Versioned(Struct):
    version: int = VERSION


def decode_conversation(text: bytes | str, *, source: str) -> Conversation:
    """Decode a conversation from JSON; raise `StoreError`, naming the source, if it is not one."""
    try:
        if (version := msgspec.json.decode(text, type=_Versioned).version) != VERSION:
            raise StoreError(
                f"{source} was saved with format version {version}; this version of Handrail reads version {VERSION}."
            )
        return msgspec.json.decode(text, type=Conversation)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(f"{source} does not contain a valid conversation: {error}") from error

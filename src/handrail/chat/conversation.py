"""A conversation as data: everything that is saved, and everything needed to resume it."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from threading import Lock
from typing import Any, Final

import msgspec
from msgspec import Struct, structs

from handrail.core.text import encodable
from handrail.core.values import Approval, ToolCall, ToolResult
from handrail.errors import StoreError
from handrail.formats.call_parsing import make_unparsable
from handrail.providers.messages import AssistantMessage, Message, ToolMessage
from handrail.providers.provider import ModelResponse, Usage

VERSION: Final = 1


# Which messages are the same objects as in an earlier revision, without looking at any of them.


class Appended(Struct, frozen=True, dict=True):
    """Says of one tuple that it was made by appending to others; it goes with a conversation from copy to copy.

    It has no fields, so it is neither saved nor compared. It knows nothing about messages that came about in another
    way (loaded, replaced, removed, passed by a caller): those are compared one by one.
    """

    def append(self, before: tuple[Any, ...], after: tuple[Any, ...]) -> "Appended":
        """Return what to say of `after`, which is `before` and more."""
        own = vars(self)
        line: _Line | None = own["line"] if own.get("messages") is before else None
        if line is None or not line.take(len(before), len(after)):
            line = _Line(len(after))
        made = Appended()
        vars(made).update(messages=after, line=line)
        return made

    def count_shared(self, messages: tuple[Any, ...], other: "Appended", others: tuple[Any, ...]) -> int:
        """Return how many messages the two are known to have in common, from the first one on."""
        own, its = vars(self), vars(other)
        if own.get("messages") is not messages or its.get("messages") is not others:
            return len(messages) if messages is others else 0
        return min(len(messages), len(others)) if own["line"] is its["line"] else 0


class _Line:
    """Tuples of which each is the beginning of the next one. Every position is given away once."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._lock = Lock()

    def take(self, start: int, end: int) -> bool:
        """Whether messages appended at `start` belong to this line; if another tuple has others there, they do not."""
        with self._lock:
            if self._length != start:
                return False
            self._length = end
            return True


NOTHING_APPENDED: Final = Appended()


# The conversation.


class PendingCall(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call that a guided turn prepared and that awaits an approval. It is not in the history."""

    call: ToolCall
    approval: Approval
    """The open approval."""
    read_back_at: int = 0
    """The number of messages once a reply had read the call back to the customer; 0 before that."""
    said: Mapping[str, Any] = {}
    """The values as the customer said them, by parameter, where an adapter turned them into those that will run."""


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
    pending: tuple[PendingCall, ...] = ()
    """Calls that await an approval and are not among the messages; only guided turns leave some."""
    unsettled: tuple[ToolCall, ...] = ()
    """Calls whose result in the history is provisional: a new message came before their outcome was known. Every turn
    looks them up again, and replaces the result once it is."""
    transient: tuple[str, ...] = ()
    """Calls whose results have `lifespan="response"`: their outputs leave the history after the next reply, or before
    the next message."""
    tracked: tuple[str, ...] = ()
    """Guidelines with `track=True` whose action was taken, and whose condition has applied ever since."""
    handed_off: bool = False
    """Whether a person has taken over. The model is not asked while they have."""
    has_instructions: bool = False
    """Whether the session has instructions, which are not saved: whoever loads it must pass them again."""
    usage: Usage = Usage()
    """The sum over all turns."""
    revision: int = 0
    """Counts the saves; a store refuses any revision but the next one."""
    appended: Appended = NOTHING_APPENDED
    """Spares a store the comparison of messages that were only appended to. It is not saved."""
    version: int = VERSION

    def with_messages(self, *messages: Message) -> "Conversation":
        """Return a copy with more messages."""
        after = tuple(self.messages) + messages  # One copy; `(*a, *b)` makes two.
        return structs.replace(self, messages=after, appended=self.appended.append(self.messages, after))

    @property
    def last_calls(self) -> tuple[ToolCall, ...]:
        """The calls of the last message if the model wrote it. All need a result before any other message."""
        last = self.messages[-1] if self.messages else None
        return last.calls if isinstance(last, AssistantMessage) else ()

    @property
    def open_calls(self) -> tuple[ToolCall, ...]:
        """Those of the `last_calls` that have no result yet."""
        known = {result.call_id for result in self.partial_results}
        return tuple(call for call in self.last_calls if call.id not in known)

    def with_results(self, results: Iterable[ToolResult]) -> "Conversation":
        """Return a copy with results of open calls: a `ToolMessage` once there is one for every call."""
        if not self.last_calls:
            return self
        known = {result.call_id: result for result in (*self.partial_results, *results)}
        in_order = tuple(known[call.id] for call in self.last_calls if call.id in known)
        if len(in_order) < len(self.last_calls):
            return structs.replace(self, partial_results=in_order)
        return structs.replace(self, partial_results=()).with_messages(ToolMessage(results=in_order))

    def with_unsettled(self, calls: Iterable[ToolCall]) -> "Conversation":
        """Return a copy in which the results of these calls are provisional."""
        return structs.replace(self, unsettled=(*self.unsettled, *calls))

    def with_settled(self, results: Iterable[ToolResult]) -> "Conversation":
        """Return a copy with final results in the place of provisional ones."""
        final = {result.call_id: result for result in results}
        messages = tuple(
            ToolMessage(results=tuple(final.get(result.call_id, result) for result in message.results))
            if isinstance(message, ToolMessage) and any(result.call_id in final for result in message.results)
            else message
            for message in self.messages
        )
        unsettled = tuple(call for call in self.unsettled if call.id not in final)
        return structs.replace(self, messages=messages, unsettled=unsettled)

    def with_calls(self, calls: Iterable[ToolCall]) -> "Conversation":
        """Return a copy with calls that are about to run, with the agent's last text or as a message of their own."""
        calls = tuple(calls)
        ids = {call.id for call in calls}
        messages = self.messages
        if messages and isinstance(last := messages[-1], AssistantMessage) and not last.calls:
            messages = (*messages[:-1], structs.replace(last, calls=calls, native=None))
            after = structs.replace(self, messages=messages)
        else:
            after = self.with_messages(AssistantMessage(calls=calls))
        pending = tuple(pending_call for pending_call in self.pending if pending_call.call.id not in ids)
        return structs.replace(after, pending=pending)

    def with_pending(self, results: Iterable[ToolResult], pending: Iterable[PendingCall]) -> "Conversation":
        """Return a copy with results of open calls, in which those that await an approval have left the history."""
        awaiting = {pending_call.call.id: pending_call for pending_call in pending}
        messages, calls = self.messages, self.last_calls
        if awaiting and isinstance(last := messages[-1], AssistantMessage):
            calls = tuple(call for call in calls if call.id not in awaiting)
            last = structs.replace(last, calls=calls, native=None)
            messages = (*messages[:-1], last) if calls or last.text else messages[:-1]
        after = structs.replace(self, messages=messages, pending=(*self.pending, *awaiting.values()))
        return after.with_results(results) if calls else structs.replace(after, partial_results=())

    def with_pending_as_calls(self) -> "Conversation":
        """Return a copy in which pending calls are open calls, as the plain strategy knows them."""
        return self.with_calls(pending_call.call for pending_call in self.pending) if self.pending else self

    @property
    def results(self) -> Iterator[ToolResult]:
        """The results in the history, in their order."""
        return (result for message in self.messages if isinstance(message, ToolMessage) for result in message.results)

    @property
    def call_ids(self) -> set[str]:
        """The ids of all calls in the history, and of those that are pending."""
        made = {call.id for message in self.messages if isinstance(message, AssistantMessage) for call in message.calls}
        return made | {pending_call.call.id for pending_call in self.pending}


def normalize_response(response: ModelResponse, conversation: Conversation, *, step: int) -> ModelResponse:
    """Give the response an id, and each call one that no other call of this conversation has.

    A format already makes ids unique by the id of their response; some servers send none, or the same one again.
    """
    native = response.native if is_storable(response.native) else None
    used, turn = conversation.call_ids, conversation.turn
    response_id = response.id or f"response-{turn}-{step}"
    text = encodable(response.text)
    calls: list[ToolCall] = []
    for call in response.calls:
        call_id = encodable(call.id)
        for number in itertools.count(1):
            if call_id and call_id not in used:
                break
            call_id = f"{encodable(call.id) or 'call'}-{turn}-{step}-{number}"
        used.add(call_id)
        arguments, name = call.arguments_json, encodable(call.name)
        if (mended := encodable(arguments)) != arguments:  # Half a surrogate pair: repaired arguments must not run.
            arguments = make_unparsable(mended)
        provider_id = None if call_id == call.wire_id else encodable(call.wire_id)
        changes = {"id": call_id, "provider_id": provider_id, "name": name, "arguments_json": arguments}
        calls.append(structs.replace(call, response_id=call.response_id or response_id, **changes))
    return structs.replace(response, calls=tuple(calls), id=response_id, native=native, text=text)


def is_storable(value: object) -> bool:
    """Whether a value can be encoded as JSON, and so be part of a saved conversation."""
    try:
        msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


class ConversationDelta(Struct, frozen=True, kw_only=True):
    """What one save has to write: the messages that changed, and everything else as one small record."""

    state: bytes
    """The conversation without its messages, as JSON."""
    messages: tuple[tuple[int, bytes], ...]
    """Positions and messages that are new or changed, as JSON."""
    length: int
    """How many messages there are now."""
    previous_length: int
    """How many there were; positions below are replaced, the others are new."""


def diff_conversation(conversation: Conversation, previous: Conversation | None) -> ConversationDelta:
    """Compare a conversation with its previous revision; without one, every message counts as changed.

    Messages are frozen and shared between revisions, so an unchanged one is the same object. Those that are known to
    be are not looked at.
    """
    before, shared = (), 0
    messages = conversation.messages
    if previous is not None:
        before = previous.messages
        shared = conversation.appended.count_shared(messages, previous.appended, before)
    both = min(len(before), len(messages))
    replaced = (position for position in range(shared, both) if messages[position] is not before[position])
    changed = tuple(
        (position, msgspec.json.encode(messages[position]))
        for position in chain(replaced, range(len(before), len(messages)))
    )
    state = msgspec.json.encode(structs.replace(conversation, messages=(), appended=NOTHING_APPENDED))
    return ConversationDelta(
        state=state, messages=changed, length=len(conversation.messages), previous_length=len(before)
    )


def restore_conversation(state: bytes | str, messages: Iterable[bytes | str], *, source: str) -> Conversation:
    """Build a conversation from its state and its messages; raise `StoreError`, naming the source, if they are none."""
    found = decode_conversation(state, source=source)
    try:
        return structs.replace(found, messages=tuple(_MESSAGES.decode(message) for message in messages))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(f"{source} does not contain a valid conversation: {error}") from error


_MESSAGES: Final[msgspec.json.Decoder[Message]] = msgspec.json.Decoder(Message)


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

"""A conversation with a model that has tools: send, stream, approve, interrupt, save, load."""

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from typing import Any, Generic, Self, TypeAlias, cast

from msgspec import structs

from handrail.chat.conversation import Conversation, PendingCall
from handrail.chat.session_store import SessionStore
from handrail.chat.turn import (
    STORE_TIMEOUT,
    ChatEvent,
    PlainStrategy,
    ResultT,
    TurnResult,
    TurnState,
    TurnStrategy,
    rebuild_provenance,
)
from handrail.core.context import ToolContext
from handrail.core.events import TurnFinished, TurnStarted
from handrail.core.provenance import Provenance
from handrail.core.text import encodable
from handrail.core.time_budget import abandon
from handrail.core.values import Approval
from handrail.errors import ApprovalError, ConfigError, StoreError, shorten
from handrail.execute.budget import Budget
from handrail.execute.executor import Executor
from handrail.providers.messages import AssistantMessage
from handrail.providers.provider import Provider

_Events: TypeAlias = asyncio.Queue[ChatEvent | None]
"""The events of a streamed turn; None is its end."""


class ChatSession(Generic[ResultT]):
    """One conversation: it keeps the history, and the executor validates, authorises and runs every call.

    With `sessions`, the conversation is saved after every step and before any call runs, so that another process can
    resume it after a crash.
    """

    def __init__(
        self,
        provider: Provider,
        executor: Executor,
        *,
        context: ToolContext[Any],
        instructions: str = "",
        budget: Budget | None = None,
        strategy: TurnStrategy[ResultT] | None = None,
        sessions: SessionStore | None = None,
        conversation: Conversation | None = None,
        allow_memory_ledger: bool = False,
    ) -> None:
        """Start a conversation, or continue one that was loaded.

        Args:
            provider: The model.
            executor: Runs the calls.
            context: The context of every call; its `turn` is counted here.
            instructions: What the model is told about its work.
            budget: How much one turn may use.
            strategy: How a turn is played: by default the model chooses its calls freely; a `GuidedStrategy` follows
                guidelines.
            sessions: Where the conversation is saved after every step: a `FileSessionStore`, or `store.sessions`.
            conversation: The history to continue.
            allow_memory_ledger: Accept an executor whose ledger does not outlive the process, though the conversation
                does: a call that was running when the process ended may then run twice.
        """
        _check_parts(provider, executor, context, sessions)
        self.provider = provider
        self.executor = executor
        self.instructions = instructions
        self._budget = budget or Budget()
        self._strategy = strategy or cast(TurnStrategy[ResultT], PlainStrategy())
        self._sessions = sessions
        self._allow_memory_ledger = allow_memory_ledger
        self._checked_registry: object = None
        self._context = context if context.provenance is not None else structs.replace(context, provenance=Provenance())
        self._is_provenance_fed = False
        """Whether everything that the conversation has is in its provenance; only if a rule asks for it."""
        self._state: TurnState | None = None
        self._turn_start = 0.0
        self._saved: Conversation | None = None
        """What the store has: a save writes what changed since then."""
        self._saving = asyncio.Lock()
        self._last_save: asyncio.Future[Conversation] | None = None
        """Kept so that a save which its caller did not wait for is not lost."""
        self._conversation = conversation or Conversation(
            session_id=context.session_id,
            tenant_id=context.tenant_id,
            agent_id=context.agent_id,
            customer_id=context.customer_id,
            turn=context.turn,
        )
        if bool(instructions) != self._conversation.has_instructions:
            self._conversation = structs.replace(self._conversation, has_instructions=bool(instructions))
        for name in ("session_id", "tenant_id", "customer_id"):
            if (value := getattr(context, name)) != (expected := getattr(self._conversation, name)):
                raise ConfigError(f"context.{name} must be the conversation's {name}, {expected!r}, got {value!r}.")
        assert self._context.provenance is not None
        self._context.provenance.bind(context.session_id)
        self._check_ledger(sessions)
        self._feed_provenance()

    def _feed_provenance(self) -> Provenance | None:
        """Add the conversation so far, once a rule asks where values come from; return None while none does."""
        provenance, was_fed = self._context.provenance, self._is_provenance_fed
        self._is_provenance_fed = self.executor.asks_for_origins
        if provenance is None or not self._is_provenance_fed:
            return None
        if not was_fed and self._conversation.messages:
            rebuild_provenance(provenance, self._conversation, self.executor)
        return provenance

    @classmethod
    async def load(
        cls,
        provider: Provider,
        executor: Executor,
        *,
        context: ToolContext[Any],
        sessions: SessionStore,
        create: bool = False,
        **options: Any,
    ) -> Self:
        """Load the conversation `context.session_id`. With `create`, start a new one if none is saved under that id.

        The options are those of the constructor. The instructions are not saved: pass them again. Calls that await an
        approval still do.
        """
        session_id = context.session_id
        saved = await sessions.load(session_id)
        if saved is None and not create:
            raise StoreError(f"no conversation {session_id!r} is saved here. To start it, pass create=True.")
        if saved is not None and saved.has_instructions and "instructions" not in options:
            raise ConfigError(
                f"instructions must be passed to load(): conversation {session_id!r} has some, and they are not saved. "
                "To resume it without, pass instructions=''."
            )
        session = cls(provider, executor, context=context, sessions=sessions, conversation=saved, **options)
        session._saved = saved
        at_turn = structs.replace(session._context, turn=session.conversation.turn)
        for call in session.conversation.open_calls:  # An approval store in memory has lost them.
            await executor.request_approval(call, at_turn)
        if pending := session.conversation.pending:
            renewed = [
                _renew_pending(
                    pending_call,
                    await executor.request_approval(pending_call.call, at_turn),
                    has_digests=executor.outlives_process,
                )
                for pending_call in pending
            ]
            session._conversation = structs.replace(session.conversation, pending=tuple(renewed))
        return session

    def _check_ledger(self, sessions: SessionStore | None) -> None:
        """Refuse a conversation that outlives the ledger of its consequential calls."""
        executor = self.executor
        if sessions is None or self._allow_memory_ledger or executor.outlives_process:
            return
        if executor.registry is self._checked_registry or getattr(sessions, "in_memory", False):
            return
        if any(not tool.read_only for tool in executor.registry):
            raise ConfigError(
                "sessions keeps the conversation after this process ends, and the executor's ledger is in memory: a "
                "call that was running could run twice. Pass Executor(…, store=store), with the store of "
                "handrail.store.open_store(), or accept it with allow_memory_ledger=True."
            )
        self._checked_registry = executor.registry

    @property
    def conversation(self) -> Conversation:
        """The state of the conversation, as data."""
        return self._state.conversation if self._state is not None else self._conversation

    @property
    def is_busy(self) -> bool:
        """Whether a turn is running."""
        return self._state is not None

    # Turns.

    async def send(self, text: str, *, quoted: Iterable[str] = ()) -> ResultT:
        """Send a message and wait for the end of the turn.

        `quoted` is what the person pasted or forwarded: the model reads it, and for a rule with `from` it is nobody's
        word.
        """
        return await self._send(text, quoted=quoted)

    async def resume(self) -> ResultT:
        """Resume a turn that stopped: after a decision, a provider's failure, a crash, or a limit of the budget."""
        return await self._resume()

    def send_sync(self, text: str, *, quoted: Iterable[str] = ()) -> ResultT:
        """`send()` for a caller without an event loop."""
        return self.executor.run_coroutine(self.send(text, quoted=quoted))

    def resume_sync(self) -> ResultT:
        """`resume()` for a caller without an event loop."""
        return self.executor.run_coroutine(self.resume())

    def stream(self, text: str, *, quoted: Iterable[str] = ()) -> AsyncGenerator[ChatEvent]:
        """Send a message and yield the events of the turn: text, calls, progress, approvals, a `TurnResult` last."""
        return _stream_turn(lambda events: self._send(text, events, quoted=quoted))

    def resume_stream(self) -> AsyncGenerator[ChatEvent]:
        """Resume a turn as `resume()` does, and yield its events."""
        return _stream_turn(self._resume)

    async def _send(self, text: str, events: _Events | None = None, *, quoted: Iterable[str] = ()) -> ResultT:
        parts = _check_quoted(quoted)
        if not text.strip() and not any(part.strip() for part in parts):
            raise ConfigError("text must not be empty. To continue a turn that stopped, use resume().")
        state = self._start_turn(events)
        try:
            return await state.run_message(text, self._strategy, quoted=parts)
        finally:
            self._end_turn(state)

    async def _resume(self, events: _Events | None = None) -> ResultT:
        state = self._start_turn(events)
        try:
            return await state.run_rest(self._strategy)
        finally:
            self._end_turn(state)

    def _start_turn(self, events: _Events | None) -> TurnState:
        if self._state is not None:
            raise ConfigError("a turn of this conversation is running: wait for its end, or interrupt() it.")
        self._check_ledger(self._sessions)  # The tools may have changed.
        turn = self._conversation.turn + 1
        event = TurnStarted(agent_id=self._context.agent_id, **self._describe_turn(turn))
        provenance = self._feed_provenance()  # The policy may have changed, too.
        executor = self.executor.snapshot()  # Those of a turn do not change while it runs.
        self._state = TurnState(
            structs.replace(self._conversation, turn=turn),
            provider=self.provider,
            executor=executor,
            context=structs.replace(self._context, turn=turn),
            provenance=provenance,
            instructions=self.instructions,
            budget=self._budget,
            save=None if self._sessions is None else self._save_conversation,
            events=events,
        )
        self._turn_start = time.monotonic()
        self.executor.emit(event)
        return self._state

    def _end_turn(self, state: TurnState) -> None:
        self._conversation = state.conversation
        self._state = None
        result, is_error = state.result, isinstance(sys.exception(), Exception)  # A cancelled caller is no error.
        self.executor.emit(
            TurnFinished(
                stop_reason=result.stop_reason if result is not None else "error" if is_error else "interrupted",
                duration_ms=(time.monotonic() - self._turn_start) * 1000,
                model_calls=state.model_calls,
                tool_calls=len(result.results) if result is not None else 0,
                **self._describe_turn(state.context.turn),
            )
        )

    def _describe_turn(self, turn: int) -> dict[str, Any]:
        context = self._context
        return {
            "at": time.time(),
            "session_id": context.session_id,
            "tenant_id": context.tenant_id,
            "customer_id": context.customer_id,
            "turn": turn,
        }

    def interrupt(self) -> None:
        """Stop the running turn: the model's text ends here, and calls are cancelled as their `on_interrupt` says."""
        if self._state is not None:
            self._state.interrupt()

    # Approvals by the customer, the person in the conversation.

    async def approvals(self) -> list[Approval]:
        """The open approvals of this conversation, including those that an operator decides."""
        found = await self.executor.approvals.pending(session_id=self._context.session_id, limit=1_000)
        return [approval for approval in found if approval.tenant_id == self._context.tenant_id]

    async def approve(self, token: str) -> None:
        """Approve a call as the customer. It runs with the next `resume()` or `send()`."""
        who = self._who
        await self._require_open(token)
        await self.executor.approvals.approve(token, by="customer", who=who)

    async def deny(self, token: str, *, reason: str = "") -> None:
        """Deny a call as the customer. The model reads the reason."""
        who = self._who
        await self._require_open(token)
        await self.executor.approvals.deny(token, by="customer", who=who, reason=reason)

    async def _require_open(self, token: str) -> None:
        approval, context = await self.executor.approvals.get(token), self._context
        is_ours = approval is not None and (approval.session_id, approval.tenant_id) == (
            context.session_id,
            context.tenant_id,
        )
        if approval is None or not is_ours or not approval.is_open(time.time()):
            raise ApprovalError("this token belongs to no open approval of this conversation.")

    @property
    def _who(self) -> str:
        return self._context.customer_id or "customer"

    # An operator instead of the agent.

    @property
    def handed_off(self) -> bool:
        """Whether a person has taken over: messages are recorded, and the model is not asked."""
        return self.conversation.handed_off

    def reply_as_operator(self, text: str) -> None:
        """Add a message that a person wrote in the agent's place. Then `await session.save()`: until the next save it
        is only in memory."""
        self._replace_conversation(self._conversation.with_messages(AssistantMessage(text=encodable(text))))

    def hand_back(self) -> None:
        """Let the agent reply again, from the next message on. Then `await session.save()`: until the next save another
        process does not know."""
        self._replace_conversation(structs.replace(self._conversation, handed_off=False))

    def _replace_conversation(self, conversation: Conversation) -> None:
        if self._state is not None:
            raise ConfigError("a turn of this conversation is running: wait for its end.")
        self._conversation = conversation

    # Saving.

    async def save(self, sessions: SessionStore | None = None) -> None:
        """Save the conversation now. With `sessions`, save it there from now on, during every turn, too."""
        if self._state is not None:
            raise ConfigError("save() cannot be called during a turn: wait for its end. A turn saves after every step.")
        self._check_ledger(sessions)
        if sessions is not None and self._sessions is not sessions:
            self._replace_conversation(structs.replace(self._conversation, revision=0))
            self._sessions, self._saved = sessions, None
        if self._sessions is None:
            raise ConfigError(
                "save() needs a session store: pass sessions=FileSessionStore('directory') here or to ChatSession."
            )
        conversation = self._conversation
        saved = await self._save_conversation(conversation)
        is_same = self._conversation is conversation  # Else a person has written meanwhile: the next save has that.
        self._conversation = saved if is_same else structs.replace(self._conversation, revision=saved.revision)

    async def _save_conversation(self, conversation: Conversation) -> Conversation:
        if self._sessions is None:
            return conversation
        saving = self._last_save = asyncio.ensure_future(self._save_next(conversation, self._sessions))
        try:
            await asyncio.wait([saving], timeout=STORE_TIMEOUT)
        except asyncio.CancelledError:
            # The revision here must be the one in the store. If this is cancelled, too, the save goes on by itself.
            await asyncio.wait([saving], timeout=STORE_TIMEOUT)
            if not saving.done():
                abandon(saving)
            elif not saving.cancelled():
                saving.exception()  # Retrieved, or asyncio would warn.
            raise
        if not saving.done():
            abandon(saving)
            raise StoreError(f"the conversation was not saved within {STORE_TIMEOUT:g} seconds.")
        if saving.cancelled():
            raise StoreError("the store cancelled the save of the conversation by itself.")
        return saving.result()

    async def _save_next(self, conversation: Conversation, sessions: SessionStore) -> Conversation:
        """Save a conversation as the next revision, once no save is under way any more."""
        async with self._saving:
            previous = self._saved  # Perhaps by a save that began before this one.
            revision = conversation.revision if previous is None else previous.revision
            after = structs.replace(conversation, revision=revision + 1)
            await sessions.save(after, previous=previous)
            self._saved = after
            if self._state is not None and self._state.conversation is conversation:
                self._state.conversation = after
            return after


def _renew_pending(pending: PendingCall, asked: Approval | None, *, has_digests: bool) -> PendingCall:
    """A pending call with the question that it asks now; as it was if it asks none.

    A yes to the old question does not count for another one, which has to be read back first: the old one has expired,
    a release of the tool has other defaults, or the effect was done meanwhile. Without `has_digests` the digests of the
    two have other keys, and the values are compared.
    """
    if asked is None:
        return pending
    known = pending.approval
    is_same = asked.digest == known.digest if has_digests else asked.arguments == known.arguments
    is_same = is_same and (asked.by, asked.repeat) == (known.by, known.repeat)
    is_read_back = is_same and not known.is_expired(time.time())
    return structs.replace(pending, approval=asked, read_back_at=pending.read_back_at if is_read_back else 0)


def _check_parts(provider: object, executor: object, context: object, sessions: object) -> None:
    """Refuse what cannot be a part of a session before anything is sent."""
    for needs, given, is_right in (
        ("provider must be a Provider, such as OpenAIResponses(…)", provider, not isinstance(provider, str)),
        ("executor must be an Executor", executor, isinstance(executor, Executor)),
        ("context must be a ToolContext(session_id=…)", context, isinstance(context, ToolContext)),
        (
            "sessions must be a SessionStore, such as store.sessions or FileSessionStore(directory)",
            sessions,
            sessions is None or callable(getattr(sessions, "save", None)),
        ),
    ):
        if not is_right:
            raise ConfigError(f"{needs}, got {type(given).__name__}.")


def _check_quoted(quoted: object) -> tuple[str, ...]:
    if isinstance(quoted, str) or not isinstance(quoted, Iterable):
        raise ConfigError(f"quoted must be a list of texts: [{shorten(repr(quoted))}].")
    parts = tuple(cast(Iterable[object], quoted))
    for part in parts:
        if not isinstance(part, str):
            raise ConfigError(f"quoted must be a list of texts, and has a {type(part).__name__}.")
    return cast(tuple[str, ...], parts)


async def _stream_turn(run: Callable[[_Events], Coroutine[Any, Any, TurnResult]]) -> AsyncGenerator[ChatEvent]:
    """Run a turn as a task and yield its events, then its result. Closing this cancels the turn."""
    events: _Events = asyncio.Queue()
    turn = asyncio.ensure_future(run(events))
    turn.add_done_callback(lambda _: events.put_nowait(None))
    try:
        while (event := await events.get()) is not None:
            yield event
            events.task_done()
        yield await turn
    finally:
        if not turn.done():
            turn.cancel()
            await asyncio.wait([turn])
        if not turn.cancelled():
            turn.exception()  # Retrieved, or asyncio would warn: the reader has gone.

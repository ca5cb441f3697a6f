"""A conversation with a model that has tools: send, stream, approve, interrupt, save, load."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Self

from msgspec import structs

from handrail.authorize.approvals import Approval
from handrail.chat.conversation import Conversation
from handrail.chat.plain import PlainStrategy
from handrail.chat.saving import SessionStore
from handrail.chat.talk import Budget, ChatEvent, TurnResult, TurnState, TurnStrategy
from handrail.core.context import ToolContext
from handrail.core.text import encodable
from handrail.errors import ApprovalError, ConfigError
from handrail.execute.executor import Executor
from handrail.providers.messages import AssistantMessage, UserMessage
from handrail.providers.provider import Provider


class ChatSession:
    """One conversation. It owns the history; the executor decides about every call.

    With `sessions`, it is saved before every step that cannot be taken back, so that a process that dies leaves a
    conversation that another one can go on with.
    """

    def __init__(
        self,
        provider: Provider,
        executor: Executor,
        *,
        context: ToolContext[Any],
        instructions: str = "",
        budget: Budget | None = None,
        strategy: TurnStrategy | None = None,
        sessions: SessionStore | None = None,
        conversation: Conversation | None = None,
    ) -> None:
        self.provider = provider
        self.executor = executor
        self.instructions = instructions
        self._budget = budget or Budget()
        self._strategy = strategy or PlainStrategy()
        self._sessions = sessions
        self._context = context
        self._state: TurnState | None = None
        self._conversation = conversation or Conversation(
            session_id=context.session_id,
            tenant_id=context.tenant_id,
            agent_id=context.agent_id,
            customer_id=context.customer_id,
            turn=context.turn,
        )
        for name in ("session_id", "tenant_id", "customer_id"):
            if getattr(context, name) != getattr(self._conversation, name):
                raise ConfigError(f"This is the conversation of another {name}: it cannot be gone on with here.")

    @classmethod
    async def load(
        cls,
        provider: Provider,
        executor: Executor,
        *,
        context: ToolContext[Any],
        sessions: SessionStore,
        **options: Any,
    ) -> Self:
        """Go on with a conversation that was saved; a new one, if there is none under this id.

        The options are those of a new session. Calls that wait for an approval still wait.
        """
        found = await sessions.load(context.session_id)
        session = cls(provider, executor, context=context, sessions=sessions, conversation=found, **options)
        then = structs.replace(context, turn=session.conversation.turn)
        for call in session.conversation.unanswered:  # Where approvals are not kept, the questions are asked anew.
            await executor.request_approval(call, then)
        return session

    @property
    def conversation(self) -> Conversation:
        """All that was said, as data."""
        return self._state.conversation if self._state is not None else self._conversation

    @property
    def busy(self) -> bool:
        """Whether a turn is being played."""
        return self._state is not None

    # Turns.

    async def send(self, text: str) -> TurnResult:
        """Say something, and wait for the end of the turn."""
        return await _last(self.stream(text))

    async def resume(self) -> TurnResult:
        """Go on with a turn that stopped: somebody has decided, a provider failed, a budget ran out."""
        return await _last(self.resume_stream())

    def send_sync(self, text: str) -> TurnResult:
        """`send` for a caller that has no event loop."""
        return self.executor.run_coroutine(self.send(text))

    def resume_sync(self) -> TurnResult:
        """`resume()` for a caller that has no event loop."""
        return self.executor.run_coroutine(self.resume())

    async def stream(self, text: str) -> AsyncGenerator[ChatEvent]:
        """Say something, and hear the turn as it happens: words, calls, progress, questions, results; last, an
        `TurnResult`."""
        state = self._begin()
        try:
            if state.conversation.unanswered:
                # What was decided meanwhile is done now; what is still open stays undone, and the model is told so.
                async with aclosing(state.answer()) as events:
                    async for event in events:
                        yield event
                await state.close_questions()
            await state.change(state.conversation.with_messages(UserMessage(text=encodable(text))))
            async with aclosing(self._played(state)) as events:
                async for event in events:
                    yield event
        finally:
            self._end(state)

    async def resume_stream(self) -> AsyncGenerator[ChatEvent]:
        """`resume()`, as it happens."""
        state = self._begin()
        try:
            if not state.conversation.unanswered and _is_at_rest(state.conversation):
                raise ConfigError("There is nothing to go on with: send() something.")
            async with aclosing(self._played(state)) as events:
                async for event in events:
                    yield event
        finally:
            self._end(state)

    async def _played(self, state: TurnState) -> AsyncGenerator[ChatEvent]:
        if state.conversation.handed_off:
            state.stop_reason = "handed_off"
        else:
            async with aclosing(self._strategy.run(state)) as events:
                async for event in events:
                    yield event
        await state.forget_brief()
        yield state.finished()

    def _begin(self) -> TurnState:
        if self._state is not None:
            raise ConfigError("This conversation is in the middle of a turn: wait for its end, or interrupt() it.")
        turn = self._conversation.turn + 1
        self._state = TurnState(
            structs.replace(self._conversation, turn=turn),
            provider=self.provider,
            executor=self.executor,
            context=structs.replace(self._context, turn=turn),
            instructions=self.instructions,
            budget=self._budget,
            save=self._saved,
        )
        return self._state

    def _end(self, state: TurnState) -> None:
        self._conversation = state.conversation
        self._state = None

    def interrupt(self) -> None:
        """Stop the turn that is being played: the model's words end here, and each call as its tool wants it."""
        if self._state is not None:
            self._state.interrupt()

    # Approvals of the person in the conversation.

    async def approvals(self) -> list[Approval]:
        """The questions of this conversation that are open, the operator's among them."""
        return await self.executor.approvals.pending(session_id=self._context.session_id)

    async def approve(self, token: str) -> None:
        """The person in the conversation says yes to exactly this. It is done when the conversation goes on."""
        await self._check(token)
        await self.executor.approvals.approve(token, by="customer", who=self._who)

    async def deny(self, token: str, *, reason: str = "") -> None:
        """The person in the conversation says no."""
        await self._check(token)
        await self.executor.approvals.deny(token, by="customer", who=self._who, reason=reason)

    async def _check(self, token: str) -> None:
        if not any(one.token == token for one in await self.approvals()):
            raise ApprovalError("No such question is open in this conversation.")

    @property
    def _who(self) -> str:
        return self._context.customer_id or "customer"

    # A person instead of the agent.

    @property
    def handed_off(self) -> bool:
        """Whether a person has taken over: what is sent is kept, and the model is not asked."""
        return self.conversation.handed_off

    def reply_as_operator(self, text: str) -> None:
        """What the person who has taken over says in the agent's place."""
        self._change(self._conversation.with_messages(AssistantMessage(text=encodable(text))))

    def hand_back(self) -> None:
        """The agent talks again."""
        self._change(structs.replace(self._conversation, handed_off=False))

    def _change(self, conversation: Conversation) -> None:
        if self._state is not None:
            raise ConfigError("This conversation is in the middle of a turn: wait for its end.")
        self._conversation = conversation

    # Saving.

    async def save(self, sessions: SessionStore | None = None) -> None:
        """Save the conversation now, and from now on by itself during every turn; here, if a place is named."""
        if sessions is not None and self._sessions is not sessions:
            self._change(structs.replace(self._conversation, revision=0))
            self._sessions = sessions
        if self._sessions is None:
            raise ConfigError(
                "This conversation has nowhere to be saved: ChatSession(…, sessions=FileSessionStore('dir'))."
            )
        if self._state is None:
            self._conversation = await self._saved(self._conversation)

    async def _saved(self, conversation: Conversation) -> Conversation:
        if self._sessions is None:
            return conversation
        after = structs.replace(conversation, revision=conversation.revision + 1)
        saving = asyncio.ensure_future(self._sessions.save(after))
        try:
            await asyncio.shield(saving)
        except asyncio.CancelledError:
            await asyncio.wait([saving])  # Half saved is not a state: the revision here is the one that is there.
            if not saving.cancelled() and saving.exception() is None and self._state is not None:
                self._state.conversation = after
            raise
        return after


async def _last(events: AsyncGenerator[ChatEvent]) -> TurnResult:
    async with aclosing(events) as every:
        async for event in every:
            if isinstance(event, TurnResult):
                return event
    raise AssertionError("a turn ended without an answer")


def _is_at_rest(conversation: Conversation) -> bool:
    return not conversation.messages or isinstance(conversation.messages[-1], AssistantMessage)

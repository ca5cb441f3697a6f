"""The turns of an agent that is served: each conversation is in the store, and one process at a time runs its turn."""

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import aclosing, contextmanager
from typing import Any, Final, TypeAlias

from msgspec import Struct

from handrail.chat.conversation import Conversation
from handrail.chat.session import ChatSession
from handrail.chat.turn import ChatEvent, TurnResult
from handrail.core.context import ToolContext
from handrail.core.events import Progress
from handrail.core.log import log
from handrail.errors import ConfigError, HandrailError, StoreError
from handrail.execute.budget import Budget
from handrail.execute.executor import Executor
from handrail.guide.agent import Agent
from handrail.providers.messages import AssistantMessage
from handrail.providers.provider import Provider, TextDelta
from handrail.serve.api.error_responses import ApiError, not_found
from handrail.serve.api.request_limits import ApiLimits
from handrail.store import SqlStore

LEASE_SECONDS: Final = 15.0
"""After which another process may run the next turn, if the one that runs it has died."""
RENEW_SECONDS: Final = 2.0
"""Between two looks whether somebody interrupts the turn."""
_MAX_TEXT_CHARS: Final = 1_000_000
_MAX_PROGRESS: Final = 100
"""Of text and of progress that wait for a reader; what comes after that is left out of the stream."""
_IDLE_SECONDS: Final = 15.0
_CLOSE_SECONDS: Final = 5.0
"""How long a turn that is interrupted may take to end."""


class ChatAgent(Struct, frozen=True, kw_only=True):
    """An agent whose model chooses among all tools of the executor; `handrail.Agent` is one with guidelines."""

    provider: Provider
    instructions: str = ""
    """What the model is told about its work; those of a tenant's configuration are added to them."""
    budget: Budget | None = None
    """How much one turn may use."""
    agent_id: str | None = None
    """Its name in contexts, rules and logs."""


ServedAgent: TypeAlias = ChatAgent | Agent


class RunningTurn:
    """A turn that this process runs, and what its reader has not read yet.

    The turn does not wait for its reader. What waits is bounded: pieces of text become one, and beyond a limit text and
    progress are left out; the result has the whole text.
    """

    def __init__(self, session: ChatSession[Any]) -> None:
        self.session = session
        self.result: TurnResult | None = None
        self.error: Exception | None = None
        self.skipped = 0
        """How many pieces of text and of progress were left out."""
        self._waiting: deque[ChatEvent | list[str]] = deque()
        self._text_chars = 0
        self._progress = 0
        self._changed = asyncio.Event()
        self._ended = asyncio.Event()

    @property
    def is_over(self) -> bool:
        """Whether it has a result or an error."""
        return self._ended.is_set()

    @property
    def waiting(self) -> int:
        """How many events wait for the reader."""
        return len(self._waiting)

    def add(self, event: ChatEvent) -> None:
        """Keep an event for the reader."""
        if isinstance(event, TurnResult):
            self.result = event
            return
        if isinstance(event, TextDelta):
            if self._text_chars + len(event.text) > _MAX_TEXT_CHARS:
                self.skipped += 1
                return
            self._text_chars += len(event.text)
            if self._waiting and isinstance(last := self._waiting[-1], list):
                last.append(event.text)
            else:
                self._waiting.append([event.text])
        elif isinstance(event, Progress) and self._progress >= _MAX_PROGRESS:
            self.skipped += 1
            return
        else:
            self._progress += isinstance(event, Progress)
            self._waiting.append(event)
        self._changed.set()

    def end(self, error: Exception | None = None) -> None:
        """It is over: with a result, or with this error."""
        self.error = error
        self._ended.set()
        self._changed.set()

    async def wait(self, *, timeout: float) -> bool:
        """Wait for the end; whether it came in time."""
        try:
            async with asyncio.timeout(timeout):
                await self._ended.wait()
        except TimeoutError:
            return False
        return True

    async def wait_for_first(self, *, timeout: float) -> None:
        """Wait for the first event, or the end."""
        if not self._waiting and not self.is_over:
            try:
                async with asyncio.timeout(timeout):
                    await self._changed.wait()
            except TimeoutError:
                return

    async def read(self) -> AsyncGenerator[ChatEvent | None]:
        """The events as they come, until the turn is over; None when there was none for a while."""
        while True:
            while self._waiting:
                yield self._take()
            if self.is_over:
                return
            self._changed.clear()
            try:
                async with asyncio.timeout(_IDLE_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                yield None

    def _take(self) -> ChatEvent:
        event = self._waiting.popleft()
        if isinstance(event, list):
            text = "".join(event)
            self._text_chars -= len(text)
            return TextDelta(text=text)
        self._progress -= isinstance(event, Progress)
        return event


class Conversations:
    """The conversations of one agent, in the store that all replicas share."""

    def __init__(self, agent: ServedAgent, executor: Executor, store: SqlStore, *, limits: ApiLimits) -> None:
        _check_agent(agent, executor)
        self.agent = agent
        self._store = store
        self._limits = limits
        self._running: dict[str, RunningTurn] = {}
        self._starting: list[str | None] = []
        """The tenants whose turns are being started."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False

    async def find(self, session_id: str, *, tenant_id: str | None) -> Conversation | None:
        """A conversation of a tenant as it was saved last; None if there is none."""
        saved = await self._store.sessions.load(session_id)
        return saved if saved is not None and saved.tenant_id == tenant_id else None

    async def is_running(self, session_id: str) -> bool:
        """Whether a turn of the conversation is running, here or in another replica."""
        return session_id in self._running or await self._store.turns.is_running(session_id)

    async def start(
        self,
        executor: Executor,
        context: ToolContext[Any],
        *,
        message: str | None,
        quoted: Sequence[str] = (),
        expected_turn: int | None = None,
        default_customer: str | None = None,
    ) -> RunningTurn:
        """Start a turn with a message, or resume the last one without; it goes on whether or not anybody reads it.

        Without a customer in the context, it is the conversation's, or that of a new one. Raises `ApiError` if a turn
        is running already, if too many are, or if the conversation is not at the turn before the expected one.
        """
        with self._admit(context.tenant_id):
            return await self._start(
                executor,
                context,
                message=message,
                quoted=quoted,
                expected_turn=expected_turn,
                default_customer=default_customer,
            )

    @property
    def tenants(self) -> set[str | None]:
        """The tenants whose turns are running."""
        return {turn.session.conversation.tenant_id for turn in self._running.values()}

    @contextmanager
    def _admit(self, tenant_id: str | None) -> Generator[None]:
        """Count a turn that is being started, or raise `ApiError` if there are too many."""
        if self._is_closing:
            raise ApiError(503, "unavailable", "This replica is being stopped.", retryable=True)
        limits, after = self._limits, {"retry-after": "5"}
        every = [*self._starting, *(turn.session.conversation.tenant_id for turn in self._running.values())]
        if len(every) >= limits.max_turns:
            text = f"{limits.max_turns} turns are running in this replica. Send it again."
            raise ApiError(503, "unavailable", text, retryable=True, headers=after)
        if tenant_id is not None and every.count(tenant_id) >= limits.max_turns_per_tenant:
            text = f"{limits.max_turns_per_tenant} turns of this tenant are running in this replica. Send it again."
            raise ApiError(429, "rate_limited", text, retryable=True, headers=after)
        self._starting.append(tenant_id)
        try:
            yield
        finally:
            self._starting.remove(tenant_id)

    async def _start(
        self,
        executor: Executor,
        context: ToolContext[Any],
        *,
        message: str | None,
        quoted: Sequence[str],
        expected_turn: int | None,
        default_customer: str | None,
    ) -> RunningTurn:
        session_id, owner = context.session_id, secrets.token_hex(8)
        if session_id in self._running or not await self._store.turns.acquire(
            session_id, owner=owner, lease=LEASE_SECONDS
        ):
            text = "A turn of this conversation is running: wait for its end, or interrupt it."
            raise ApiError(409, "in_progress", text, retryable=True)
        try:
            session = await self._open(executor, context, is_new=message is not None, default_customer=default_customer)
            turn = session.conversation.turn + 1
            if expected_turn is not None and expected_turn != turn:
                text = f"The next turn of this conversation is {turn}, not {expected_turn}: read it, and decide anew."
                raise ApiError(409, StoreError.code, text)
            if message is None and not can_resume(session.conversation):
                text = "There is nothing to resume: no call is open, and the reply is complete. Send a message."
                raise ApiError(409, ConfigError.code, text)
        except BaseException:
            await asyncio.shield(self._release(session_id, owner))
            raise
        running = self._running[session_id] = RunningTurn(session)
        events = session.resume_stream() if message is None else session.stream(message, quoted=quoted)
        task = asyncio.create_task(self._run(running, events, owner), name=f"handrail:turn:{session_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return running

    async def interrupt(self, session_id: str) -> bool:
        """Interrupt the turn of a conversation, in whichever replica it runs; whether one was running."""
        if (turn := self._running.get(session_id)) is not None:
            turn.session.interrupt()
        return await self._store.turns.interrupt(session_id)

    async def aclose(self) -> None:
        """Interrupt the turns of this process, and wait for their ends; calls settle as their tools say."""
        self._is_closing = True
        for turn in self._running.values():
            turn.session.interrupt()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=_CLOSE_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _open(
        self, executor: Executor, context: ToolContext[Any], *, is_new: bool, default_customer: str | None
    ) -> ChatSession[Any]:
        """The conversation of a context, with the executor of its tenant."""
        saved = await self._store.sessions.load(context.session_id)
        if saved is None and not is_new:
            raise not_found("session")
        if saved is not None and saved.tenant_id != context.tenant_id:
            raise not_found("session")
        customer = context.customer_id
        if customer is None:
            customer = default_customer if saved is None else saved.customer_id
        elif saved is not None and saved.customer_id != customer:
            raise ApiError(409, ConfigError.code, "This conversation is with another customer.")
        tenant, agent, sessions = context.tenant, self.agent, _LoadedSession(self._store, saved)
        if isinstance(agent, Agent):
            return await agent.load_session(
                context.session_id,
                sessions=sessions,
                create=True,
                executor=executor,
                customer_id=customer,
                tenant_id=context.tenant_id,
                tenant=tenant,
                deps=context.deps,
                secrets=context.secrets,
            )
        texts = (agent.instructions, getattr(tenant, "instructions", ""))
        return await ChatSession.load(
            agent.provider,
            executor,
            context=ToolContext(
                session_id=context.session_id,
                tenant_id=context.tenant_id,
                agent_id=agent.agent_id,
                customer_id=customer,
                deps=context.deps,
                tenant=tenant,
                secrets=context.secrets,
            ),
            sessions=sessions,
            create=True,
            instructions="\n\n".join(text for text in texts if text),
            budget=agent.budget,
        )

    async def _run(self, turn: RunningTurn, events: AsyncGenerator[ChatEvent], owner: str) -> None:
        session_id, error = turn.session.conversation.session_id, None
        limit = self._limits.turn_timeout
        watching = asyncio.create_task(self._watch(turn, owner), name=f"handrail:turn-lease:{session_id}")
        late = asyncio.get_running_loop().call_later(limit, turn.session.interrupt)
        try:
            async with asyncio.timeout(limit + _CLOSE_SECONDS), aclosing(events):
                async for event in events:
                    turn.add(event)
        except TimeoutError:
            text = f"The turn took longer than {limit:g} seconds and was interrupted."
            error = ApiError(503, "unavailable", text, retryable=True)
        except HandrailError as failed:
            error = failed
        except Exception as failed:
            log.exception("a turn of the conversation %s failed", session_id)
            error = failed
        finally:
            late.cancel()
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            self._running.pop(session_id, None)
            try:
                await self._release(session_id, owner)
            finally:
                is_cut_off = error is None and turn.result is None
                turn.end(ApiError(503, "unavailable", "The turn was cut off.", retryable=True) if is_cut_off else error)

    async def _watch(self, turn: RunningTurn, owner: str) -> None:
        """Keep the lease, and pass on an interruption from another replica."""
        session_id = turn.session.conversation.session_id
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            try:
                state = await self._store.turns.renew(session_id, owner=owner, lease=LEASE_SECONDS)
            except StoreError:
                log.warning("the lease of a turn cannot be renewed", exc_info=True)
                continue
            if state != "held":
                turn.session.interrupt()
            if state == "lost":
                log.error("the turn of the conversation %s was taken over by another process", session_id)
                return

    async def _release(self, session_id: str, owner: str) -> None:
        try:
            await self._store.turns.release(session_id, owner=owner)
        except StoreError:  # It ends by itself.
            log.warning("the lease of a turn cannot be given back", exc_info=True)


def can_resume(conversation: Conversation) -> bool:
    """Whether a turn has stopped before its end: a call is open, awaits an approval, or the reply is missing."""
    if conversation.open_calls or conversation.pending or conversation.unsettled:
        return True
    return bool(conversation.messages) and not isinstance(conversation.messages[-1], AssistantMessage)


class _LoadedSession:
    """The sessions of a store, where the one conversation was read already."""

    def __init__(self, store: SqlStore, saved: Conversation | None) -> None:
        self._sessions = store.sessions
        self._saved = saved

    async def save(self, conversation: Conversation, *, previous: Conversation | None = None) -> None:
        await self._sessions.save(conversation, previous=previous)

    async def load(self, session_id: str) -> Conversation | None:
        return self._saved

    async def remove(self, session_id: str) -> bool:
        return await self._sessions.remove(session_id)


def _check_agent(agent: object, executor: Executor) -> None:
    if isinstance(agent, Agent):
        if agent.executor is not executor and agent.executor.policy is not executor.policy:
            raise ConfigError("agent must have the executor of the app: Agent(…, executor=executor).")
    elif not isinstance(agent, ChatAgent):
        raise ConfigError(f"agent must be a ChatAgent or an Agent, got {type(agent).__name__}.")
